"""Turns sample indices into places in the corpus, and does nothing else.

Pure on purpose: the same call answers "what will sample 288,000 be?" in the server, in a test and
in a notebook. Knows no file, only how many tokens each has, so it can be proved with a corpus of
ten imaginary tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import InvalidRequest
from .orders import Order
from .position import require_range

SEED_END = 1 << 64
PLAN_ROWS = 4096
"""Rows worth planning at once: array arithmetic costs 42 (random) to 177 microseconds (shuffled)
for 32 samples and 82 to 412 for 4,096. 2 shared cores, 2026-11; `python -m benchmarks.plan_rows`
finds it again.
"""


@dataclass(frozen=True, slots=True)
class Windows:
    """Where windows of T + 1 tokens start: in which file, and how many tokens into it.

    shard: int64[n], each in [0, number of files).  token_offset: int64[n], each in [0, tokens of
    that file - T).
    """

    shard: npt.NDArray[np.int64]
    token_offset: npt.NDArray[np.int64]

    def __getitem__(self, rows: slice) -> Windows:
        """Return some of the windows, without copying."""
        return Windows(self.shard[rows], self.token_offset[rows])


class Plan:
    """The windows of one stream: a corpus' shape, a context length, an order and a seed.

    A window never crosses from one file into the next. File i of n_i tokens has n_i - T places
    where a window of an order without epochs may start, and floor((n_i - 1) / T) non-overlapping
    windows for one with epochs; a file shorter than T + 1 has neither.
    """

    def __init__(
        self, token_counts: npt.NDArray[np.int64], context_length: int, order: Order, seed: int
    ) -> None:
        """Prepare the stream; costs a few microseconds per thousand files.

        token_counts: int64[files], tokens of each file.  context_length: T, in [1, longest file).
        seed: in [0, 2^64).  Raises: InvalidRequest naming the field and its limit.
        """
        longest = int(token_counts.max())
        if not 1 <= context_length < longest:
            raise InvalidRequest(
                "context_length",
                f"{context_length} is not in [1, {longest}): the longest file has {longest} tokens",
            )
        require_range("seed", seed, 0, SEED_END)
        place_counts = window_places(token_counts, context_length, order.HAS_EPOCHS)
        self._ends = np.cumsum(place_counts)
        self._first_places = self._ends - place_counts
        self.place_count = int(self._ends[-1])
        self._stride = context_length if order.HAS_EPOCHS else 1
        self._order = order
        self._seed = seed

    def windows(self, samples: npt.NDArray[np.int64]) -> Windows:
        """Return where the window of each sample starts.

        samples: int64[n], each in [0, 2^63).  One pass of array arithmetic, no loop over n.
        """
        places = self._order.places(samples, self._seed, self.place_count)
        if self._ends.size == 1:
            return Windows(np.zeros_like(places), places * self._stride)
        shard = np.searchsorted(self._ends, places, side="right")
        return Windows(shard, (places - self._first_places[shard]) * self._stride)


def window_places(
    token_counts: npt.NDArray[np.int64], context_length: int, has_epochs: bool
) -> npt.NDArray[np.int64]:
    """Return how many windows each file has, int64[files]: non-overlapping ones, or every token
    offset.
    """
    if has_epochs:
        return np.maximum(token_counts - 1, 0) // context_length
    return np.maximum(token_counts - context_length, 0)
