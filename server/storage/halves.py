"""Tokens that were taken for uint16 because nothing says otherwise, and are halves of wider ones.

Every other token would be 0 or 1, and a model would learn it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus

from .store import TokenStore

Tokens = npt.NDArray[np.integer]

# Of uint32 tokens read as uint16, every second one is the high half: 0 up to 65,535, 1 up to
# 131,071, and so on; the others, the low halves, are nearly all greater than that.
_HIGH_HALF_MAX = 3
_LOW_HALVES_MIN = 64
"""With less evidence than that there is no suspicion: a sparse corpus may look like anything."""
_ODD_LARGE_SHARE_MAX = 0.01


class Halves(NamedTuple):
    """What tells uint16 tokens from the halves of uint32 ones.

    Numbers of those that are too great for the high half of a uint32 token, at odd and at even
    places of the file, and of those at odd places that are the high half of a negative one.
    """

    odd_large: int = 0
    even_large: int = 0
    negative: int = 0

    @classmethod
    def of(cls, tokens: Tokens, first_token: int) -> Halves:
        """Return what some tokens tell.  first_token: place in the file of the first of them."""
        evens, odds = tokens[first_token % 2 :: 2], tokens[1 - first_token % 2 :: 2]
        even_large, odd_large = (
            int(np.count_nonzero(some > _HIGH_HALF_MAX)) for some in (evens, odds)
        )
        negative = int(np.count_nonzero(odds == 0xFFFF)) if odd_large else 0
        return cls(odd_large - negative, even_large, negative)

    def and_those(self, other: Halves) -> Halves:
        """Return what both tell together."""
        return Halves(*map(int.__add__, self, other))

    @property
    def look_alike(self) -> bool:
        """Whether these are halves, as far as can be told."""
        enough = self.even_large >= _LOW_HALVES_MIN
        return enough and self.odd_large <= self.even_large * _ODD_LARGE_SHARE_MAX


def require_no_halves(store: TokenStore, blocks: Iterable[Mapping[int, Halves]]) -> None:
    """Raise InvalidCorpus if tokens that were taken for uint16 look like the halves of wider ones.

    blocks: of each block that was read, what its tokens tell, by file.
    """
    found: dict[int, Halves] = {}
    for block in blocks:
        for index, halves in block.items():
            found[index] = found.get(index, Halves()).and_those(halves)
    for index, halves in sorted(found.items()):
        if halves.look_alike:
            shard = store.shards[index]
            dtype = "int32" if halves.negative else "uint32"
            dtype = "int64" if _has_empty_quarters(store, index) else dtype
            raise InvalidCorpus(
                shard.path,
                f"every second token is at most {_HIGH_HALF_MAX}: this looks like {dtype}. "
                f"Pass --dtype {dtype}, or --dtype uint16 if it really is uint16",
            )


def _has_empty_quarters(store: TokenStore, index: int) -> bool:
    """Say whether the halves of wider tokens are themselves halves of those of 8 bytes."""
    layout = store.shards[index].layout
    content = store.read(index, 0, min(1 << 16, layout.content_bytes // 8 * 8))
    return int(np.frombuffer(content, layout.dtype)[2::4].max(initial=0)) == 0
