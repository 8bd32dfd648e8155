"""Stored tokens -> served ones: bytes, signed and 64-bit integers as uint16 or uint32.

Every number is looked at: one that is negative or too great is an error, never another token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.wire.frame import TOKEN_DTYPES

from .formats import Stored

UINT16, UINT32 = TOKEN_DTYPES[2], TOKEN_DTYPES[4]


class TokenScan(NamedTuple):
    """What was found in numbers that should be tokens.

    greatest: of them; -1 where nobody had to look.  wrong_place: of the first that is no token,
    None if all are.
    """

    greatest: int = -1
    wrong_place: int | None = None


class Narrowing:
    """From the type in the files to the type on the wire.

    served: uint16 or uint32.  is_copy: whether bytes are served as they are stored.  looks: whether
    there are numbers that are no tokens.
    """

    def __init__(self, stored: Stored, token_max: int | None = None) -> None:
        """Narrow as far as possible.

        token_max: the greatest token there is; None: as great as the stored type allows.
        """
        bits = 8 * stored.itemsize
        # A negative number, read as unsigned, is at or above this one.
        stored_end = 1 << (bits - 1 if stored.kind == "i" else bits)
        self.is_identity = stored in (UINT16, UINT32)
        if token_max is None or self.is_identity:
            token_max = stored_end - 1
        self.served = UINT16 if token_max < 1 << 16 else UINT32
        self._stored = stored
        self._end = min(stored_end, token_max + 1, 1 << 8 * self.served.itemsize)
        self.needs_scan = min(stored_end, 1 << 8 * self.served.itemsize) < 1 << bits

    def scan(self, tokens: npt.NDArray[np.integer], end: int | None = None) -> TokenScan:
        """Look at stored numbers.

        end: the first that is no token, where that is less than what can be served.
        """
        if not self.needs_scan and end is None:
            return TokenScan()
        unsigned = tokens.view(f"<u{self._stored.itemsize}")
        greatest = int(unsigned.max(initial=0))
        end = min(end or self._end, self._end)
        return TokenScan(greatest, int(np.argmax(unsigned >= end)) if greatest >= end else None)

    def serve(self, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.unsignedinteger]:
        """Return stored numbers, all of which are tokens, as they are served."""
        return tokens.astype(self.served)
