"""Where the tokens of a file lie: what every format comes down to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Layout:
    """One run of tokens in a file.

    dtype: as stored, little-endian.  first_byte: where the first token begins.  token_count: at
    least 1.
    """

    dtype: np.dtype[np.unsignedinteger]
    first_byte: int
    token_count: int

    @property
    def content_bytes(self) -> int:
        """Bytes of the tokens, without header."""
        return self.token_count * self.dtype.itemsize
