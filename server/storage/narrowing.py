"""Stored tokens -> served tokens: bytes, signed and 64-bit integers as uint16 or uint32.

Every number is checked: one that is negative or too large is an error, never another token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.wire.frame import TOKEN_DTYPES

from .formats import Stored

UINT16, UINT32 = TOKEN_DTYPES[2], TOKEN_DTYPES[4]


class TokenScan(NamedTuple):
    """What a scan of stored numbers has found.

    greatest: the largest number; -1 if no scan was needed.  wrong_place: index of the first number
    that is not a token, None if all are.
    """

    greatest: int = -1
    wrong_place: int | None = None


class Narrowing:
    """Converts from the type in the files to the type on the wire.

    served: uint16 or uint32.  is_identity: whether bytes are served as they are stored.
    needs_scan: whether the stored type has numbers that cannot be served.
    """

    def __init__(self, stored: Stored, token_max: int | None = None) -> None:
        """Choose the narrowest type.  token_max: largest token; None: that of the stored type."""
        bits = 8 * stored.itemsize
        # Negative numbers, read as unsigned, are at or above this one.
        stored_end = 1 << (bits - 1 if stored.kind == "i" else bits)
        self.is_identity = stored in (UINT16, UINT32)
        if token_max is None or self.is_identity:
            token_max = stored_end - 1
        self.served = UINT16 if token_max < 1 << 16 else UINT32
        self._stored = stored
        self._end = min(stored_end, token_max + 1, 1 << 8 * self.served.itemsize)
        self.needs_scan = min(stored_end, 1 << 8 * self.served.itemsize) < 1 << bits

    def scan(self, tokens: npt.NDArray[np.integer], end: int | None = None) -> TokenScan:
        """Check stored numbers.

        end: the first number that is not a token, if it is below the limit of the served type.
        """
        if not self.needs_scan and end is None:
            return TokenScan()
        unsigned = tokens.view(f"<u{self._stored.itemsize}")
        greatest = int(unsigned.max(initial=0))
        end = min(end or self._end, self._end)
        return TokenScan(greatest, int(np.argmax(unsigned >= end)) if greatest >= end else None)

    def serve(self, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.unsignedinteger]:
        """Convert stored numbers, all of which are tokens, to the served type."""
        return tokens.astype(self.served)
