"""The samples of a rank's rows: by first sample, batch size, rank and world size. Pure arithmetic.

Row `row` of batch k of a rank has the sample

    sample = first_sample + k * world_size * batch_size + rank * batch_size + row    (k = 0, 1, ...)

The rows of a rank are numbered through all batches: this one is row k * batch_size + row. Messages
contain samples, never steps: a sample means the same at any batch size and world size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InvalidRequest, SamplesExhausted

BATCH_SIZE_MAX = 1 << 20
BATCH_BYTES_MAX = 1 << 30
"""Of tokens, unless a server says otherwise."""
WORLD_SIZE_MAX = 1 << 32
SAMPLE_END = 1 << 63
"""Samples are below this, so that they fit int64."""


@dataclass(frozen=True, slots=True)
class Position:
    """The rows of one rank from a sample on. Always valid once constructed.

    first_sample: sample of row 0 of rank 0 in batch 0 of this position, in [0, 2^63).  batch_size:
    rows per rank and batch, in [1, 2^20].  rank: data-parallel, in [0, world_size).  world_size:
    number of ranks, in [1, 2^32].
    Raises: SamplesExhausted for a first_sample from 2^63 on; InvalidRequest for any other value out
    of range. Both name the field.
    """

    first_sample: int
    batch_size: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        """Check every range."""
        require_range("batch_size", self.batch_size, 1, BATCH_SIZE_MAX + 1)
        require_range("world_size", self.world_size, 1, WORLD_SIZE_MAX + 1)
        if not 0 <= self.rank < self.world_size:
            raise InvalidRequest(
                "rank",
                f"{self.rank} is not in [0, world_size), and world_size is {self.world_size}",
            )
        if self.first_sample < 0:
            raise InvalidRequest("first_sample", f"{self.first_sample} is negative")
        if self.first_sample >= SAMPLE_END:
            raise SamplesExhausted("first_sample", f"{self.first_sample} is not in [0, 2^63)")

    @property
    def stride(self) -> int:
        """Samples from one batch to the next, of all ranks together."""
        return self.world_size * self.batch_size

    @property
    def batches_left(self) -> int:
        """Number of batches, from batch 0 on, with all rows of this rank below sample 2^63."""
        past_own_rows = (self.rank + 1) * self.batch_size
        return max(0, (SAMPLE_END - self.first_sample - past_own_rows) // self.stride + 1)

    def rows_before(self, end_sample: int) -> int:
        """Return how many rows of this rank, from its row 0 on, have samples below end_sample."""
        samples = max(0, end_sample - self.first_sample - self.rank * self.batch_size)
        batches, rest = divmod(samples, self.stride)
        return batches * self.batch_size + min(rest, self.batch_size)

    def batch_first_sample(self, batch: int) -> int:
        """Return the sample of row 0 of rank 0 in a batch: the first_sample of a position that
        begins with this batch.  batch: counted from 0.
        """
        return self.first_sample + batch * self.stride

    def sample_of(self, row: int) -> int:
        """Return the sample of a row of this rank.  row: its number."""
        batch, row_of_batch = divmod(row, self.batch_size)
        return self.batch_first_sample(batch) + self.rank * self.batch_size + row_of_batch

    def samples(self, first_row: int, row_count: int) -> npt.NDArray[np.int64]:
        """Return the sample indices of this rank's rows [first_row, first_row + row_count).

        Returns: int64[row_count], each in [0, 2^63); rows have to be below `rows_before(2^63)`.
        """
        if row_count == 0:
            # At the end the first sample may be 2^63, which does not fit int64.
            return np.empty(0, dtype=np.int64)
        first_batch, row = divmod(first_row, self.batch_size)
        base = self.batch_first_sample(first_batch) + self.rank * self.batch_size
        rows = np.arange(row, row + row_count, dtype=np.int64)
        if self.world_size > 1:
            # The samples of the other ranks lie between two batches of this one.
            rows += rows // self.batch_size * (self.stride - self.batch_size)
        return rows + base


def require_range(field: str, value: int, first: int, end: int) -> None:
    """Raise InvalidRequest naming the field and its limits unless value is in [first, end)."""
    if not first <= value < end:
        raise InvalidRequest(field, f"{value} is not in [{first}, {end - 1}]")
