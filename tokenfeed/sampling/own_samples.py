"""The own samples of each source in a range of samples, as ranges. Pure.

Whole blocks of a mixture are ranges by arithmetic; only a block that is begun or not finished has
scattered ones. So a range of 10^9 samples costs the same as one of two blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..stream.spec import StreamSpec

Numbers = npt.NDArray[np.int64]


def own_samples(spec: StreamSpec, first_sample: int, end_sample: int) -> list[Numbers]:
    """Return the own samples that each source has in [first_sample, end_sample).

    spec: of one dataset, or a mixture, in which samples are not before its first stage.
    Returns: for each source int64[n, 2], first and end of each range; ascending, they neither
    overlap nor touch.
    """
    raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class EpochSamples:
    """Samples of one source in one epoch, or all samples of each of some epochs.

    first_epoch, end_epoch: more than one epoch only if all of their samples are consumed.  times:
    how often each of these samples was.  ranges: int64[n, 2], in the first epoch; ascending, they
    neither overlap nor touch.
    """

    first_epoch: int
    end_epoch: int
    times: int
    ranges: Numbers

    @property
    def count(self) -> int:
        """Samples of all epochs, as often as they were consumed."""
        raise NotImplementedError


def by_times(ranges: Iterable[Numbers]) -> list[tuple[int, Numbers]]:
    """Return ranges that may overlap as ranges that do not, by how often their samples occur.

    ranges: int64[n, 2] each, in any order.
    Returns: (times, int64[n, 2]) by ascending times; each ascending, neither overlapping nor
    touching.
    """
    raise NotImplementedError


def by_epoch(ranges: Iterable[Numbers], rows_per_epoch: int) -> list[EpochSamples]:
    """Return ranges of own samples by epoch, by ascending epoch and times.

    ranges: int64[n, 2] each, as of `own_samples` of several runs; they may overlap.
    rows_per_epoch: at least 1.
    """
    raise NotImplementedError
