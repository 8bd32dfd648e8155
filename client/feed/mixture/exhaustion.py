"""Where a mixture ends because a source has used up its epochs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.stream.stages import CHANGED, AskedStage, first_exhausted, without_exhausted

from .toml_text import mixture_toml

_LOG = logging.getLogger("tokenfeed.client")

_LOGGED_LINES_MAX = 100
"""Of a mixture; `tokenfeed plan --write` writes a longer one."""


def exhausted(
    spec: StreamSpec,
    max_epochs: Mapping[str, int],
    rows: Sequence[int],
    *,
    sample: int = 0,
    block: int | None = None,
    rank: int = 0,
) -> int:
    """Return the sample before which a mixture ends: the first of the block that a source cannot
    fill within its epochs; 2^63 if there is none. Logs it, on rank 0 with the mixture that goes on
    without it.  Raises: like `limits_of`.

    max_epochs: by the names of datasets.  rows: of an epoch of each source.  sample: the position;
    stages that end before it do not count.  block: of the mixture.
    """
    assert spec.mixture is not None
    limits = limits_of(spec, max_epochs, rows, sample)
    end = first_exhausted(spec.mixture.stages, limits, sample)
    if end is None:
        return SAMPLE_END
    name = spec.sources[end.source].dataset
    _LOG.warning(
        "mixture ends when a source is exhausted source=%s max_epochs=%d sample=%d tokens=%d%s",
        name,
        max_epochs[name],
        end.sample,
        end.sample * spec.context_length,
        _going_on(spec, max_epochs, limits, sample, block) if rank == 0 else "",
    )
    return end.sample


def limits_of(
    spec: StreamSpec, max_epochs: Mapping[str, int], rows: Sequence[int], sample: int = 0
) -> list[int | None]:
    """Return the samples that each source of a mixture may contribute; None is endless.

    max_epochs: by the names of datasets.  rows: of an epoch of each source.  sample: the position.
    Raises: InvalidRequest at sample 0 if a source has not even enough for the first block.
    """
    assert spec.mixture is not None
    names = [source.dataset for source in spec.sources]
    limits = [
        max_epochs[name] * count if name in max_epochs else None
        for name, count in zip(names, rows, strict=True)
    ]
    first = spec.mixture.stages[0]
    for name, limit, weight in zip(names, limits, first.weights, strict=True):
        if sample == 0 and limit is not None and limit < weight:
            raise InvalidRequest(
                f"sources.{name}.max_epochs",
                f"is {max_epochs[name]}, which are {limit} samples, but the first block of "
                f"{first.block_size} samples needs {weight} of them; pass block= for smaller "
                "blocks, or a smaller weight",
            )
    return limits


def definition_of(
    asked: Sequence[AskedStage], going_on: Sequence[AskedStage]
) -> list[AskedStage] | None:
    """Return the stages of the file by which a mixture becomes one that goes on; None if there is
    none.

    asked, going_on: the stages of both. Those that were asked for by changes stay in the states of
    the feed, which no file can alter.
    """
    changes = [stage for stage in asked if stage.origin & CHANGED]
    if [stage for stage in going_on if stage.origin & CHANGED] != changes:
        return None
    return [stage for stage in going_on if not stage.origin & CHANGED]


def _going_on(
    spec: StreamSpec,
    max_epochs: Mapping[str, int],
    limits: Sequence[int | None],
    sample: int,
    block: int | None,
) -> str:
    """Return the text of the mixture that goes on, with a line of introduction; "" if none does."""
    assert spec.mixture is not None
    stages = spec.mixture.stages
    asked = [AskedStage(stage.first_sample, stage.weights, stage.origin) for stage in stages]
    going_on = without_exhausted(asked, limits, sample=sample)
    definition = definition_of(asked, going_on.asked)
    if definition is None or going_on.end_sample == going_on.exhausted[0].sample:
        return ""
    text = mixture_toml(
        spec.mixture.seed,
        spec.sources[0].order.NAME,
        spec.sources,
        definition,
        context_length=spec.context_length,
        max_epochs=max_epochs,
        block=block,
        redactions=spec.redactions,
    )
    if text.count("\n") > _LOGGED_LINES_MAX:
        return "\ntokenfeed plan --write FILE writes the mixture that goes on without it"
    return f"\nthis mixture goes on without it:\n\n{text}"
