"""Whether the mixture of a saved state has the same past as a feed's. Pure.

Another future is allowed: stages from the saved sample on may be others. Another past is not: what
the weights have seen would be misreported, and sources would repeat or skip samples.
"""

from __future__ import annotations

from tokenfeed.errors import StreamMismatch
from tokenfeed.stream.spec import SourceValues, StageValues, StreamParts


def require_same_past(saved: StreamParts, own: StreamParts, sample: int) -> None:
    """Compare the stages that begin before a sample, and their sources.

    saved, own: of mixtures.  Raises: StreamMismatch, naming what differs.
    """
    if saved.context_length != own.context_length:
        raise StreamMismatch(
            "context_length",
            f"the state was saved with {saved.context_length}, but this stream has "
            f"{own.context_length}; a mixture cannot change it",
        )
    if saved.seed != own.seed:
        raise StreamMismatch(
            "seed",
            f"the state was saved with {saved.seed}, but this mixture has {own.seed}, so its "
            f"samples differ. Pass seed={saved.seed}",
        )
    before, now = _past(saved, sample), _past(own, sample)
    for index, (old, new) in enumerate(zip(before, now, strict=False)):
        if old.first_sample != new.first_sample:
            raise StreamMismatch(
                "mixture",
                f"stage {index} of the state begins at sample {old.first_sample}, but here at "
                f"{new.first_sample}",
            )
        if _named(old, saved) != _named(new, own):
            raise StreamMismatch(
                "mixture",
                f"stage {index} of the state, from sample {old.first_sample} on, has the weights "
                f"{_shown(old, saved)}, but here {_shown(new, own)}",
            )
    if len(before) != len(now):
        longer, where = (before, "the state") if len(before) > len(now) else (now, "this mixture")
        first = longer[min(len(before), len(now))].first_sample
        raise StreamMismatch(
            "mixture",
            f"{where} has a stage from sample {first} on, before the saved sample {sample}, and "
            "the other one has not",
        )
    for number in range(len(saved.sources)):
        if any(stage.weights[number] for stage in before):
            _require_same_source(number, saved.sources[number], own.sources)


def _require_same_source(number: int, saved: SourceValues, own: tuple[SourceValues, ...]) -> None:
    here = own[number] if number < len(own) else None
    if here is None or here.dataset != saved.dataset:
        name = here.dataset if here else "missing"
        raise StreamMismatch(
            "mixture",
            f"source {number} of the state is {saved.dataset}, but here it is {name}; name the "
            "sources in the same order, and new ones behind them",
        )
    for field in ("order", "seed", "fingerprint"):
        before, now = getattr(saved, field), getattr(here, field)
        if before != now:
            cure = "a grown corpus is a new source" if field == "fingerprint" else f"pass {before}"
            raise StreamMismatch(
                f"mixture.{saved.dataset}",
                f"the state was saved with {field} {before}, but this stream has {now}; {cure}",
            )


def _past(parts: StreamParts, sample: int) -> list[StageValues]:
    """Return the stages that begin before a sample."""
    return [stage for stage in parts.stages if stage.first_sample < sample]


def _named(stage: StageValues, parts: StreamParts) -> dict[str, int]:
    """Return the weights above 0 by the names of their datasets."""
    named = zip(parts.sources, stage.weights, strict=True)
    return {source.dataset: weight for source, weight in named if weight}


def _shown(stage: StageValues, parts: StreamParts) -> str:
    return ", ".join(f"{name} {weight}" for name, weight in _named(stage, parts).items())
