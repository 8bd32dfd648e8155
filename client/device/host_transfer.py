"""Rows of a source -> (x, y) as NumPy arrays, widened once, directly from the received frames.

Knows nothing of torch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest
from tokenfeed.wire.row_block import RowBlock

from .numpy_batch import HostPart, Note
from .row_source import RowSource
from .target_mask import masks_of, widen_targets

Array = TypeVar("Array")
Pair: TypeAlias = tuple[Array, Array]
"""The x and y of a batch."""
WideRows = npt.NDArray[np.signedinteger]
NumpyPair = Pair[WideRows]

WIDE = (np.dtype(np.int64), np.dtype(np.int32))
"""The types that x and y may have."""

_INT32_MAX = (1 << 31) - 1


class Transfer(Protocol[Array]):
    """Moves batches from a source of rows to where the model takes them."""

    @property
    def noted(self) -> HostPart | None:
        """What the host knows of the batch that was returned last, if that is asked for."""

    def next(self, rows: RowSource, out: Pair[Array] | None) -> Pair[Array] | None:
        """Return the next batch, in out if given, else in new memory; None at the end. Waits."""


class HostTransfer:
    """To host memory."""

    def __init__(
        self,
        shape: tuple[int, int],
        x_dtype: np.dtype[np.signedinteger],
        y_dtype: np.dtype[np.signedinteger],
        masks: Collection[int] = (),
        *,
        note: Note | None = None,
        argument: str = "x_dtype",
    ) -> None:
        """shape: (batch_size, context_length).  x_dtype, y_dtype: int32 or int64.  masks: kinds of
        planes that mask targets.  note: sets `noted`.  argument: to name in errors.
        """
        self._shape = shape
        self._x_dtype = x_dtype
        self._y_dtype = y_dtype
        self._masks = masks
        self._note = note
        self._argument = argument
        self.noted: HostPart | None = None

    def next(self, rows: RowSource, out: NumpyPair | None) -> NumpyPair | None:
        """Return the next batch: contiguous arrays [B, T]."""
        parts = rows.peek(self._shape[0])
        if parts is None:
            return None
        argument = self._argument
        if out is None:
            out = np.empty(self._shape, self._x_dtype), np.empty(self._shape, self._y_dtype)
        else:
            argument = "x" if out[0].itemsize < out[1].itemsize else "y"
        require_tokens_fit(parts, min(array.itemsize for array in out), argument)
        widen_here(parts, *out, masks_of(parts, self._masks) if parts[0].planes else ())
        if self._note is not None:
            self.noted = self._note(parts)
        # Last, so that a Ctrl-C before it leaves the position of the stream unchanged.
        rows.consume(self._shape[0])
        return out


def widen_here(
    parts: Sequence[RowBlock], x: WideRows, y: WideRows, masks: Collection[int] = ()
) -> None:
    """Widen rows into x and y.

    parts: B rows in all.  x, y: [B, T].  masks: kinds of planes of these rows that mask targets.
    """
    if masks:
        widen_targets(parts, y, masks)
    first = 0
    for part in parts:
        tokens = part.tokens
        end = first + len(tokens)
        np.copyto(x[first:end], tokens[:, :-1], casting="unsafe")
        if not masks:
            np.copyto(y[first:end], tokens[:, 1:], casting="unsafe")
        first = end


def require_tokens_fit(parts: Sequence[RowBlock], width: int, argument: str = "x_dtype") -> None:
    """Raise InvalidRequest if a 4-byte token does not fit a signed integer of width bytes.

    width: 4 or 8.  argument: to name in the error.
    """
    if width > 4 or all(part.tokens.itemsize < 4 for part in parts):
        return
    largest = max(int(part.tokens.max()) for part in parts)
    if largest > _INT32_MAX:
        raise InvalidRequest(argument, f"token {largest} does not fit int32; pass int64")


def require_arrays_fit(shape: tuple[int, int], x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
    """Raise InvalidRequest unless shape, type and memory of arrays fit x and y of a batch."""
    for name, array in (("x", x), ("y", y)):
        if not isinstance(array, np.ndarray):
            raise InvalidRequest(name, f"is {type(array).__name__}, not an array")
        if array.shape != shape:
            raise InvalidRequest(name, f"has shape {array.shape}, but a batch has {shape}")
        if array.dtype not in WIDE:
            raise InvalidRequest(name, f"is {array.dtype}; pass numpy.int64 or numpy.int32")
        if not array.flags.c_contiguous:
            raise InvalidRequest(name, "is not contiguous; pass a contiguous array")
        if not array.flags.writeable:
            raise InvalidRequest(name, "is read-only; pass a writable array")
    if np.may_share_memory(x, y):
        raise InvalidRequest("y", "shares memory with x; pass two arrays")
