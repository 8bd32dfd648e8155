"""Turns places of a source into samples: the inverse of a plan. Pure.

A row over documents or a window is known by its place (docs/protocol.md, Places); each epoch of its
source visits it once, and the mixture has each own sample of the source once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InvalidRequest
from ..stream.position import SAMPLE_END
from ..stream.stage import Source, Stage
from ..stream.stream import Stream
from .mixture_v1 import samples_of
from .orders.splitmix import Words
from .plan import Shape, over_files, own_sample_of, place_count

Numbers = npt.NDArray[np.int64]


class SampleMatches(NamedTuple):
    """Samples of a stream.

    at: int64[m], which of the places, or own samples, they are of; ascending.  samples: int64[m].
    own_samples: int64[m], in the order of the source.
    """

    at: Numbers
    samples: Numbers
    own_samples: Numbers


@dataclass(frozen=True, slots=True)
class SampleRange:
    """Samples of one source within [first_sample, end_sample) of a stream.

    source: of the stream, as of `over_files`.  stage: that of the samples.  number: the place of
    the source in it.  seed: of the stream.  place_count: places of the source.  first_own, end_own:
    the own samples of the source that may be among them.
    """

    source: Source
    stage: Stage
    number: int
    seed: int
    place_count: int
    first_sample: int
    end_sample: int
    first_own: int
    end_own: int

    @classmethod
    def of(
        cls, stream: Stream, number: int, shape: Shape, first_sample: int, end_sample: int
    ) -> SampleRange:
        """Take the samples of one stage.

        stream: as of `Stream.at`.  number: the place of the source in stream.sources.  shape: of
        its dataset.  first_sample: at least that of the stage.  end_sample: at most 2^63.
        Raises: InvalidRequest if there is no such sample in the stage; what `place_count` does.
        """
        source, stage = stream.sources[number], stream.stage
        if first_sample < stage.first_sample:
            problem = f"{first_sample} is below {stage.first_sample}, where the stage begins"
            raise InvalidRequest("first_sample", problem)
        first = first_sample - stage.first_sample
        end = max(first_sample, end_sample) - stage.first_sample
        _, weight, base = stage.shares[number]
        first_own = base + first // stage.block_size * weight
        end_own = min(base + -(-end // stage.block_size) * weight, SAMPLE_END)
        places = place_count(stream, source, shape)
        source = over_files(stream, source, shape)
        samples = (first_sample, end_sample, first_own, end_own)
        return cls(source, stage, number, stream.seed, places, *samples)

    @property
    def epochs(self) -> range:
        """The epochs of the source that may have such samples."""
        if self.first_own >= self.end_own:
            return range(0)
        return range(self.first_own // self.place_count, (self.end_own - 1) // self.place_count + 1)

    def of_places(self, places: Numbers, epochs: Numbers) -> SampleMatches:
        """Return the samples of places in epochs.

        places: int64[n], each in [0, place_count).  epochs: int64[n], each in `epochs`.
        Raises: InvalidRequest if the order of the source has no epochs.
        """
        return self._within(own_sample_of(self.source, places, epochs, self.place_count))

    def of_own(self, own_samples: Numbers) -> SampleMatches:
        """Return the samples of samples of the source.  own_samples: int64[n]."""
        return self._within(own_samples.view(np.uint64))

    def _within(self, own: Words) -> SampleMatches:
        at = np.flatnonzero((own >= np.uint64(self.first_own)) & (own < np.uint64(self.end_own)))
        own_samples = own[at].view(np.int64)
        samples = samples_of(self.stage, self.seed, self.number, own_samples)
        first, end = np.uint64(self.first_sample), np.uint64(self.end_sample)
        inside = np.flatnonzero((samples >= first) & (samples < end))
        return SampleMatches(at[inside], samples[inside].view(np.int64), own_samples[inside])
