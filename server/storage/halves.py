"""Detects tokens that were read as uint16 by default but are halves of wider tokens.

Otherwise every second token would be 0 or 1, and a model would learn that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus

from .option_names import DTYPE
from .store import TokenStore

StoredTokens = npt.NDArray[np.integer]

# In uint32 tokens read as uint16, every second one is the high half: 0 up to token 65,535, 1 up to
# 131,071, and so on. Nearly all of the others, the low halves, are larger than that.
_HIGH_HALF_MAX = 3
_LOW_HALVES_MIN = 64
"""Fewer large low halves are not enough evidence: a sparse corpus may look like anything."""
_ODD_LARGE_SHARE_MAX = 0.01


class Halves(NamedTuple):
    """Counts that tell uint16 tokens from the halves of uint32 ones.

    odd_large, even_large: tokens at odd and at even positions in the file that are too large for a
    high half.  negative: tokens at odd positions that are the high half of a negative number.
    """

    odd_large: int = 0
    even_large: int = 0
    negative: int = 0

    @classmethod
    def of(cls, tokens: StoredTokens, first_token: int) -> Halves:
        """Count in a block of tokens.  first_token: position of its first token in the file."""
        evens, odds = tokens[first_token % 2 :: 2], tokens[1 - first_token % 2 :: 2]
        even_large, odd_large = (
            int(np.count_nonzero(part > _HIGH_HALF_MAX)) for part in (evens, odds)
        )
        negative = int(np.count_nonzero(odds == 0xFFFF)) if odd_large else 0
        return cls(odd_large - negative, even_large, negative)

    @property
    def look_alike(self) -> bool:
        """Whether these look like halves of wider tokens."""
        enough = self.even_large >= _LOW_HALVES_MIN
        return enough and self.odd_large <= self.even_large * _ODD_LARGE_SHARE_MAX


def rule_out_halves(odd_large: int, token_count: int) -> bool:
    """Return whether a file is no halves, whatever the rest of it is.

    odd_large: as in Halves, of a part of the file.  token_count: of the whole file.
    """
    even_count = -(-token_count // 2)
    return odd_large > even_count * _ODD_LARGE_SHARE_MAX


def require_no_halves(store: TokenStore, blocks: Iterable[Mapping[int, Halves]]) -> None:
    """Raise InvalidCorpus if tokens that were read as uint16 look like the halves of wider ones.

    blocks: for each block that was read, its counts by index of the file.
    """
    found: dict[int, Halves] = {}
    for block in blocks:
        for index, halves in block.items():
            found[index] = Halves(*map(int.__add__, found.get(index, Halves()), halves))
    for index, halves in sorted(found.items()):
        if halves.look_alike:
            shard = store.shards[index]
            dtype = "int32" if halves.negative else "uint32"
            dtype = "int64" if _has_empty_quarters(store, index) else dtype
            wide, narrow = DTYPE.to(dtype), DTYPE.to("uint16")
            raise InvalidCorpus(
                shard.path,
                f"every second token is at most {_HIGH_HALF_MAX}: this looks like {dtype}. "
                f"Pass {wide}, or {narrow} if it really is uint16",
                *(wide, narrow),
            )


def _has_empty_quarters(store: TokenStore, index: int) -> bool:
    """Return whether the halves of wider tokens are themselves halves of 8-byte tokens."""
    layout = store.shards[index].layout
    content = store.files.read(index, 0, min(1 << 16, layout.content_bytes // 8 * 8))
    return int(np.frombuffer(content, layout.dtype)[2::4].max(initial=0)) == 0
