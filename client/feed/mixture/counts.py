"""What a history has of each source of its mixtures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tokenfeed.sampling.mixture import locate
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.stages import AskedStage, Stage, scheduled

from ..history import History
from ..stats import SourceStats


def source_stats(history: History, rows: Mapping[str, int]) -> dict[str, SourceStats]:
    """Return what the batches of a history have of each source, by the names of their datasets.

    rows: of each dataset in an epoch; of one that is missing, no epochs are counted.
    """
    found: dict[str, tuple[int, int]] = {}
    for run in history.runs:
        counts = zip(
            samples_before(run.spec, run.first_sample),
            samples_before(run.spec, run.end_sample),
            strict=True,
        )
        for source, (before, after) in zip(run.spec.sources, counts, strict=True):
            samples, tokens = found.get(source.dataset, (0, 0))
            count = after - before
            found[source.dataset] = samples + count, tokens + count * run.spec.context_length
    return {
        name: SourceStats(samples, tokens, samples / rows[name] if rows.get(name) else None)
        for name, (samples, tokens) in found.items()
    }


@lru_cache(4096)
def samples_before(parts: StreamParts, sample: int) -> tuple[int, ...]:
    """Return how many samples of each source of a mixture there are before a sample; nothing for a
    stream of one dataset.
    """
    if not parts.stages:
        return ()
    stage = next(each for each in reversed(stages_of(parts)) if each.first_sample <= sample)
    return counts_at(stage, parts.seed, sample)


def counts_at(stage: Stage, seed: int, sample: int) -> tuple[int, ...]:
    """Return how many samples of each source of a mixture there are before a sample of a stage.

    seed: of the mixture.  sample: at least stage.first_sample.
    """
    blocks, rest = divmod(sample - stage.first_sample, stage.block_size)
    begun = [0] * len(stage.weights)
    if rest:
        own, _ = locate(stage, seed, np.arange(rest, dtype=np.int64) + (sample - rest))
        begun = np.bincount(own, minlength=len(stage.weights)).tolist()
    return tuple(
        base + blocks * weight + count
        for base, weight, count in zip(stage.bases, stage.weights, begun, strict=True)
    )


@lru_cache(8)
def stages_of(parts: StreamParts) -> tuple[Stage, ...]:
    """Return the stages of a mixture, where they really begin."""
    asked = [AskedStage(stage.first_sample, stage.weights) for stage in parts.stages]
    return scheduled(asked, len(parts.sources))
