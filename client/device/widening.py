"""Tokens as they are transferred to a CUDA device -> (x, y) as a model takes them.

Tokens are transferred in the width in which they are served. The width is not part of a stream's
identity: it may change from server to server, even within a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from tokenfeed.errors import InvalidRequest
from tokenfeed.wire.row_block import RowBlock

from .target_mask import IGNORED_TARGET, bit_columns, write_bits

Batch = tuple[torch.Tensor, torch.Tensor]

WIDE_NUMPY: dict[torch.dtype, np.dtype[np.signedinteger]] = {
    torch.int64: np.dtype(np.int64),
    torch.int32: np.dtype(np.int32),
}
"""The types that x may have: torch -> numpy."""
NARROW = {2: torch.uint16, 4: torch.uint32}
"""Width of a served token in bytes -> its type on a device until it is widened."""


def widen_there(narrow: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Widen rows into x and y, all on one device.

    narrow: as `join_into` made it; if it has bits of targets, y is -100 where they are 0.  x, y:
    [B, T], int64 or int32.
    """
    row_tokens = x.shape[1] + 1
    for wide, tokens in ((x, narrow[:, : row_tokens - 1]), (y, narrow[:, 1:row_tokens])):
        wide.copy_(tokens)
    if narrow.shape[1] > row_tokens:
        token_bytes = row_tokens * narrow.element_size()
        ignore_there(narrow.view(torch.uint8)[:, token_bytes:], y)


def ignore_there(bits: torch.Tensor, y: torch.Tensor) -> None:
    """Make a loss ignore the targets that do not count, on the device of both. Only enqueues work.

    bits: uint8 [B, at least (T + 8) // 8].  y: [B, T], int64 or int32.
    """
    # Made on the device: a copy from the host would wait for it.
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    counts = bits.unsqueeze(2).bitwise_right_shift(places).bitwise_and_(1).flatten(1)
    y.masked_fill_(counts[:, 1 : y.shape[1] + 1] == 0, IGNORED_TARGET)


def narrow_dtype(parts: Sequence[RowBlock]) -> torch.dtype:
    """Return the narrowest type that holds the rows of all parts."""
    return NARROW[max(part.tokens.itemsize for part in parts)]


def narrow_shape(
    shape: tuple[int, int], dtype: torch.dtype, masks: Collection[int]
) -> tuple[int, int]:
    """Return the shape of the memory for a batch of rows.

    shape: (B, T + 1).  dtype: of its tokens.  masks: kinds of planes that mask targets; if there
    are any, their bits follow the tokens of each row.
    """
    if not masks:
        return shape
    return shape[0], shape[1] + bit_columns(shape[1], dtype.itemsize)


def join_into(parts: Sequence[RowBlock], narrow: torch.Tensor, masks: Collection[int] = ()) -> None:
    """Concatenate rows into a tensor in host memory.

    narrow: of `narrow_shape`, contiguous, at least as wide as the rows' `narrow_dtype`.  masks: the
    kinds of planes that mask targets.
    """
    memory = narrow.numpy()
    tokens = [part.tokens for part in parts]
    if not masks:
        np.concatenate(tokens, out=memory)
        return
    row_tokens = parts[0].tokens.shape[1]
    np.concatenate(tokens, out=memory[:, :row_tokens])
    write_bits(parts, memory.view(np.uint8)[:, row_tokens * narrow.itemsize :], masks)


def require_fits(
    name: str, tensor: torch.Tensor, shape: tuple[int, int], device: torch.device
) -> None:
    """Raise InvalidRequest unless shape, type and device of a tensor fit x or y of a batch."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidRequest(name, f"is {type(tensor).__name__}, not a tensor")
    if tuple(tensor.shape) != shape:
        raise InvalidRequest(name, f"has shape {tuple(tensor.shape)}, but a batch has {shape}")
    if tensor.dtype not in WIDE_NUMPY:
        raise InvalidRequest(name, f"is {tensor.dtype}; pass torch.int64 or torch.int32")
    if not tensor.is_contiguous():
        raise InvalidRequest(name, "is not contiguous; pass a contiguous tensor")
    if tensor.device != device:
        raise InvalidRequest(name, f"is on {tensor.device}, but the feed's device is {device}")
