"""Stored tokens -> served ones: bytes, signed and 64-bit integers as uint16 or uint32.

Every number is looked at: one that is negative or too great is an error, never another token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tokenfeed.frame import TOKEN_DTYPES

from .formats import Stored

UINT16, UINT32 = TOKEN_DTYPES[2], TOKEN_DTYPES[4]


class NoToken(Exception):
    """A number that cannot be a token.  place: where it is.  value: what it is."""

    def __init__(self, place: int, value: int) -> None:
        """Remember both."""
        super().__init__(f"{value} is no token")
        self.place, self.value = place, value


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
        self.is_copy = stored in (UINT16, UINT32)
        if token_max is None or self.is_copy:
            token_max = stored_end - 1
        self.served = UINT16 if token_max < 1 << 16 else UINT32
        self._stored = stored
        self._end = min(stored_end, 1 << 8 * self.served.itemsize)
        self.looks = self._end < 1 << bits

    def stored_bytes(self, served_bytes: int) -> int:
        """Return how long in a file is what has so many bytes when it is served."""
        return served_bytes // self.served.itemsize * self._stored.itemsize

    def serve(self, content: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return stored bytes as they are served.  Raises: NoToken."""
        if self.is_copy:
            return content
        tokens = content.view(self._stored)
        self.require_tokens(tokens)
        return tokens.astype(self.served).view(np.uint8)

    def require_tokens(self, tokens: npt.NDArray[np.integer], end: int | None = None) -> int:
        """Return the greatest of stored numbers, -1 for none of them.

        end: the first that is no token, where that is less than what can be served.
        Raises: NoToken.
        """
        unsigned = tokens.view(f"<u{self._stored.itemsize}")
        greatest = int(unsigned.max(initial=0)) if self.looks or end is not None else -1
        end = min(end or self._end, self._end)
        if greatest >= end:
            place = int(np.argmax(unsigned >= end))
            raise NoToken(place, int(tokens[place]))
        return greatest
