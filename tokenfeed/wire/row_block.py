"""Rows with their tokens and planes. This value goes from the gather to the device."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..stream.planes import TOKEN_COUNTS

Run = tuple[int, int, int]
RUN_BYTES = 8
"""Of a run of plane 53: its first token and its end, 4 bytes each."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Data that accompanies the tokens of rows. Ragged: each row has its own number of bytes.

    kind: its field number in a frame (planes.py).  row_lengths: uint32[rows], bytes of each row.
    content: uint8[n], row after row, as on the wire.  runs: the content of plane 53, if it was read
    already (redacted_runs.py): row, first token and end of each run, ascending.
    """

    kind: int
    row_lengths: npt.NDArray[np.uint32]
    content: npt.NDArray[np.uint8]
    runs: Sequence[Run] | None = field(default=None, repr=False, compare=False)

    def __getitem__(self, rows: slice) -> Plane:
        """Return the plane of consecutive rows, without a copy of its content."""
        first, end, _ = rows.indices(self.row_lengths.size)
        lengths = self.row_lengths[first : max(first, end)]
        if not self.content.size:
            return Plane(self.kind, lengths, self.content)
        if self.runs is not None:
            begin, stop = bisect_left(self.runs, (first,)), bisect_left(self.runs, (end,))
            own = [(row - first, token, behind) for row, token, behind in self.runs[begin:stop]]
            content = self.content[RUN_BYTES * begin : RUN_BYTES * stop]
            return Plane(self.kind, lengths, content, own)
        # Not by their method `sum`, which takes twice as long for a few.
        first_byte = int(np.add.reduce(self.row_lengths[:first]))
        end_byte = first_byte + int(np.add.reduce(lengths))
        return Plane(self.kind, lengths, self.content[first_byte:end_byte])


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of a stream.

    tokens: uint16 or uint32 [rows, T + 1], little-endian.  planes: in ascending order of their
    kinds, each with the same number of rows.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    planes: tuple[Plane, ...] = ()

    @property
    def row_tokens(self) -> int:
        """Tokens of a row, padding included: T + 1."""
        return int(self.tokens.shape[1])

    @property
    def token_counts(self) -> npt.NDArray[np.int64] | None:
        """How many tokens of each row are from the corpus: int64[rows], T + 1 in a row of a window,
        which does not say it. None if no row says it.
        """
        for plane in self.planes:
            if plane.kind == TOKEN_COUNTS and plane.content.size:
                found = plane.content.view("<u4")
                if found.size == len(self):
                    return found.astype(np.int64)
                counts = np.full(len(self), self.row_tokens)
                counts[plane.row_lengths > 0] = found
                return counts
        return None

    def with_planes(self, kinds: tuple[int, ...]) -> RowBlock:
        """Return the rows with these kinds of planes: those that they lack have no bytes.  kinds:
        ascending, all those of the rows among them.
        """
        if len(kinds) == len(self.planes):
            return self
        known = {plane.kind: plane for plane in self.planes}
        none = np.zeros(len(self), np.uint32), np.zeros(0, np.uint8)
        return RowBlock(self.tokens, tuple(known.get(kind) or Plane(kind, *none) for kind in kinds))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.tokens)

    def __getitem__(self, rows: slice) -> RowBlock:
        """Return consecutive rows, without a copy of tokens or planes."""
        planes = self.planes
        return RowBlock(
            self.tokens[rows], tuple([plane[rows] for plane in planes]) if planes else planes
        )
