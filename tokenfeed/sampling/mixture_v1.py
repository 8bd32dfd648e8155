"""`mixture-1`: the source of each sample of a mixture, and which of its own samples it is.

Computed, never drawn: each block of a stage has exactly `weight` samples of each source, in an
order that is permuted in each block by `shuffled-1`. So sample 10^14 costs the same as sample
0, and a source's own samples come once each, without a gap after every block. Released: what it
returns never changes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..stream.stage import Share, Stage
from ..stream.stream import Stream
from .orders import shuffled_v1
from .orders.splitmix import Words, mix

_STAGE_TAG = 1 << 32
"""Keeps the keys of stages apart from those of rounds, whose counters are below 24."""

Numbers = npt.NDArray[np.int64]


def stage_seed(seed: int, index: int) -> int:
    """Return the seed of the permutation of a stage's blocks: mix(mix(2^32 + index) ^ seed).

    seed: of the stream, in [0, 2^64).  index: of the stage, in [0, 2^32).
    """
    tagged = mix(np.array([_STAGE_TAG + index], dtype=np.uint64))
    return int(mix(tagged ^ np.uint64(seed))[0])


def locate(stage: Stage, seed: int, samples: Numbers) -> tuple[Numbers, Numbers]:
    """Return the source of each sample, and its sample in the source's own order.

    seed: of the stream.  samples: int64[n], each in [stage.first_sample, 2^63).
    Returns: int64[n], indices into stage.shares; int64[n], each at least the source's base.
    """
    weights, first, sources = _tables(stage.shares)
    since = samples - stage.first_sample
    if stage.is_plain:
        only = int(sources[0])
        return np.full_like(samples, only), since + stage.shares[only].base
    slot = shuffled_v1.places(since, stage_seed(seed, stage.index), stage.block_size)
    source = sources.take(slot).astype(np.int64)
    return source, since // stage.block_size * weights[source] + slot + first[source]


def samples_of(stage: Stage, seed: int, source: int, own_samples: Numbers) -> Words:
    """Return the samples of a stage that are given samples of one source: the inverse of `locate`.

    seed: of the stream.  source: index into stage.shares, of one that is not paused.
    own_samples: int64[n], in the source's own order, each at least its base.
    Returns: uint64[n]; those of the block in which a stage reaches 2^63 may be above that, and
    where the next stage begins is not considered.
    """
    first = _tables(stage.shares).first
    _, weight, base = stage.shares[source]
    if stage.is_plain:
        return (own_samples + (stage.first_sample - base)).view(np.uint64)
    block, of_block = np.divmod(own_samples - base, weight)
    slot = of_block + (base - int(first[source]))
    index = shuffled_v1.indices(slot, block, stage_seed(seed, stage.index), stage.block_size)
    since = block.view(np.uint64) * np.uint64(stage.block_size) + index.view(np.uint64)
    return np.uint64(stage.first_sample) + since


class _Tables(NamedTuple):
    """What `locate` looks up.

    weights: int64[sources], samples of each source in a block.  first: int64[sources], what is
    added to a slot of the first block.  sources: the source of each slot, [K], of the smallest
    type: at most 4 MiB.
    """

    weights: Numbers
    first: Numbers
    sources: npt.NDArray[np.unsignedinteger]


@lru_cache(16)
def _tables(shares: tuple[Share, ...]) -> _Tables:
    counts = np.array([share.weight for share in shares], dtype=np.int64)
    numbers = np.arange(counts.size, dtype=np.min_scalar_type(counts.size))
    bases = np.array([share.base for share in shares], dtype=np.int64)
    first = bases - (np.cumsum(counts) - counts)
    tables = _Tables(counts, first, np.repeat(numbers, counts))
    for table in tables:
        table.flags.writeable = False
    return tables


def locate_all(stream: Stream, samples: Numbers) -> tuple[Numbers, Numbers]:
    """Return the number of the source of each sample, and its sample in the source's own order.

    samples: int64[n], each at or above the first sample of the first stage.
    Returns: int64[n], int64[n].
    """
    begins = [stage.first_sample for stage in stream.stages]
    stage_of = np.searchsorted(begins, samples, side="right") - 1
    number, own_samples = np.empty_like(samples), np.empty_like(samples)
    for index in np.unique(stage_of).tolist():
        at, stage = np.flatnonzero(stage_of == index), stream.stages[index]
        place, own_samples[at] = locate(stage, stream.seed, samples[at])
        numbers = np.array([share.source for share in stage.shares], dtype=np.int64)
        number[at] = numbers[place]
    return number, own_samples


def counts_at(stage: Stage, seed: int, sample: int) -> dict[int, int]:
    """Return the own sample with which each source of a stage goes on at a sample, by its number:
    counted from the source's beginning, so with its base.

    seed: of the stream.  sample: at least stage.first_sample.
    """
    blocks, rest = divmod(sample - stage.first_sample, stage.block_size)
    begun = [0] * len(stage.shares)
    if rest:
        place, _ = locate(stage, seed, np.arange(rest, dtype=np.int64) + (sample - rest))
        begun = np.bincount(place, minlength=len(stage.shares)).tolist()
    return {
        source: base + blocks * weight + count
        for (source, weight, base), count in zip(stage.shares, begun, strict=True)
    }
