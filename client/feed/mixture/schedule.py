"""The stages of a feed's mixture, as they were asked for: by its definition, and by later changes.

Pure and immutable. A feed replaces its schedule as a whole, and the stream follows from it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.spec import Mixture as MixtureSpec
from tokenfeed.stream.spec import Source, StreamParts, StreamSpec
from tokenfeed.stream.stages import (
    CHANGED,
    DEFINED,
    RESUMED,
    AskedStage,
    Stage,
    scheduled,
)

_LOG = logging.getLogger("tokenfeed.client")

Weights = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Weights from a sample on.

    asked: the sample that they were asked for at.  weights: samples of each source in a block, by
    the names of their datasets, without those of 0.  origin: who asked for it (stages.py).
    """

    asked: int
    weights: Weights
    origin: int = DEFINED


@dataclass(frozen=True, slots=True)
class Schedule:
    """The mixture of a feed.

    seed: of the mixture, and of sources that come later; order: of those.  sources: in the order of
    their numbers.  stages: by ascending `asked`, the first one at 0.  max_epochs: after which
    sources end, by the names of their datasets.  block: maximum number of samples in a block of
    later weights; None is that of `block_weights`.
    """

    context_length: int
    seed: int
    order: str
    sources: tuple[Source, ...]
    stages: tuple[PlannedStage, ...]
    max_epochs: Mapping[str, int] = field(default_factory=dict)
    block: int | None = None

    def spec(self) -> StreamSpec:
        """Return the stream.  Raises: InvalidRequest if a stage begins before the one before it has
        a whole block, or a source has max_epochs, but an order without epochs.
        """
        for source in self.sources:
            epochs = self.max_epochs.get(source.dataset)
            if epochs is not None and not source.order.HAS_EPOCHS:
                problem = f"is {epochs}, but {source.order.NAME} is endless and has no epochs"
                raise InvalidRequest(f"sources.{source.dataset}.max_epochs", problem)
        return StreamSpec(
            self.context_length, self.sources, MixtureSpec(self.seed, self.effective())
        )

    def effective(self) -> tuple[Stage, ...]:
        """Return the stages as they really begin.  Raises: like `spec`."""
        names = [source.dataset for source in self.sources]
        asked = [
            AskedStage(stage.asked, tuple(stage.weights.get(name, 0) for name in names))
            for stage in self.stages
        ]
        return tuple(
            replace(begun, origin=stage.origin)
            for begun, stage in zip(scheduled(asked, len(names)), self.stages, strict=True)
        )

    def changed(
        self, weights: Weights, at_sample: int, *, or_later: bool = False
    ) -> tuple[Schedule, int]:
        """Return the schedule with other weights from a sample on, up to the next stage of the
        definition, and the sample at which they take effect. The same change twice is one.

        or_later: a sample later if a stage begins just there, since it has at least one block.
        Raises: InvalidRequest, as `spec`.
        """
        begun = self.effective()
        asked = at_sample
        if or_later and any(stage.first_sample == at_sample for stage in begun):
            asked += 1
        for index, known in enumerate(self.stages):
            # Of a stage of a loaded state only the end of a block is known at which it begins.
            begin = begun[index].first_sample
            earliest = begin - begun[index - 1].block_size if index else begin
            is_there = earliest < asked <= begin or known.asked in (at_sample, asked)
            is_there |= begin == at_sample
            if known.origin and is_there and known.weights == above_0(weights):
                return self, begin
        stage = PlannedStage(asked, above_0(weights), CHANGED)
        stages = sorted([*self.stages, stage], key=lambda each: each.asked)
        found = replace(self.with_sources(stage.weights), stages=tuple(stages))
        try:
            return found, found.effective()[stages.index(stage)].first_sample
        except InvalidRequest as error:
            problem = f"{asked} leaves no block to the stage before or behind it: {error}"
            raise InvalidRequest("at_sample", problem) from None

    def with_sources(self, names: Iterable[str]) -> Schedule:
        """Return the schedule with more sources, behind the others."""
        known = {source.dataset for source in self.sources}
        new = [name for name in names if name not in known]
        order = orders.latest(self.order)
        added = (
            Source(name, order, self.seed, number)
            for number, name in enumerate(new, len(self.sources))
        )
        return replace(self, sources=(*self.sources, *added))

    def continued(
        self,
        saved: StreamParts,
        sample: int,
        *,
        allow: bool,
        fingerprints: Mapping[str, str] | None = None,
    ) -> Schedule:
        """Return the schedule of a feed of this definition that loads a state.

        It begins with the stages of the state before the saved sample. They have to be those of
        this definition with the changes that the state has, or of another one that this definition
        was appended to. Of a definition of one stage it is enough that its weights were in force.
        saved: the mixture of the state.  sample: of the state.  allow: whether to append this
        definition at the saved sample otherwise, in place of changes behind it.  fingerprints: of
        this definition's sources, by the names of their datasets; they tell renamed ones.
        Raises: StreamMismatch, naming what differs; InvalidRequest if a later stage of this
        definition has no room behind an appended one.
        """
        saved = self._renamed(saved, fingerprints or {})
        stages = planned_stages(saved)
        past = [stage for stage in stages if stage.asked < sample]
        merged = self._with(saved, self._merged(stages, len(past)))
        if merged._has_past(past, sample):
            return merged
        if not past:
            return self._with(saved, self.stages)
        if len(self.stages) == 1 and past[-1].weights == self.stages[0].weights:
            changes = [stage for stage in stages[len(past) :] if stage.origin == CHANGED]
            return self._with(saved, [*past, *changes])
        if allow:
            appended = self._appended(past, sample)
            new = appended[len(past)]
            before, now = _shown(past[-1].weights), _shown(new.weights)
            message = "resumed with other weights sample=%d saved=%s now=%s"
            _LOG.warning(message, new.asked, before, now)
            return self._with(saved, appended)
        raise StreamMismatch("mixture", _difference(past, merged, sample))

    def _merged(self, stages: Sequence[PlannedStage], past_count: int) -> list[PlannedStage]:
        """Return this definition with the changes of a state, from where it was appended on."""
        appended = [
            index
            for index, stage in enumerate(stages)
            if index
            and stage.origin == RESUMED
            and (index < past_count or stage.weights == self._in_force(stage.asked))
        ]
        own, first = list(self.stages), 0
        if appended:
            first = appended[-1]
            own = self._appended(stages[:first], stages[first].asked)
        changes = [stage for stage in stages[first:] if stage.origin == CHANGED]
        return sorted([*own, *changes], key=lambda stage: stage.asked)

    def _appended(self, past: Sequence[PlannedStage], sample: int) -> list[PlannedStage]:
        """Return stages, and behind them this definition from a sample on."""
        last = self._with(None, past).effective()[-1]
        begin = last.first_sample + last.blocks_before(sample) * last.block_size
        later = [
            replace(stage, asked=max(stage.asked, begin + 1))
            for stage, begun in zip(self.stages, self.effective(), strict=True)
            if begun.first_sample > begin
        ]
        return [*past, PlannedStage(begin, self._in_force(begin), RESUMED), *later]

    def _in_force(self, sample: int) -> Weights:
        """Return the weights of a sample."""
        begins = [stage.first_sample for stage in self.effective()]
        return self.stages[bisect_right(begins, sample) - 1].weights

    def _has_past(self, past: Sequence[PlannedStage], sample: int) -> bool:
        """Return whether exactly these stages begin before a sample."""
        try:
            begins = self.effective()
        except InvalidRequest:
            return False
        found = [
            (begin.first_sample, stage.weights)
            for begin, stage in zip(begins, self.stages, strict=True)
        ]
        before = [stage for stage in found if stage[0] < sample]
        return before == [(stage.asked, stage.weights) for stage in past]

    def _with(self, saved: StreamParts | None, stages: Sequence[PlannedStage]) -> Schedule:
        """Return a schedule of other stages. Their sources have the numbers that they have in a
        state; the others are behind them.
        """
        used = dict.fromkeys(name for stage in stages for name in stage.weights)
        known = saved.sources if saved else ()
        needed = [n for n, source in enumerate(known) if source.dataset in used]
        own = {source.dataset: source for source in self.sources}
        sources = []
        for values in known[: max(needed, default=-1) + 1]:
            source = own.pop(values.dataset, None)
            sources.append(source or Source(values.dataset, orders.find(values.order), values.seed))
        sources += own.values()
        numbered = tuple(replace(source, number=n) for n, source in enumerate(sources))
        return replace(self, sources=numbered, stages=tuple(stages)).with_sources(used)

    def _renamed(self, saved: StreamParts, fingerprints: Mapping[str, str]) -> StreamParts:
        """Return the mixture of a state with this definition's names of renamed datasets."""
        known = {source.dataset for source in saved.sources}
        new_names = {
            fingerprint: name for name, fingerprint in fingerprints.items() if name not in known
        }
        own = {source.dataset for source in self.sources}
        sources = tuple(
            source
            if source.dataset in own
            else source._replace(dataset=new_names.get(source.fingerprint, source.dataset))
            for source in saved.sources
        )
        return replace(saved, sources=sources)


def planned_stages(saved: StreamParts) -> list[PlannedStage]:
    """Return the stages of a state."""
    names = [source.dataset for source in saved.sources]
    return [
        PlannedStage(
            stage.first_sample,
            above_0(dict(zip(names, stage.weights, strict=True))),
            stage.origin,
        )
        for stage in saved.stages
    ]


def above_0(weights: Weights) -> Weights:
    """Return the weights without those of 0."""
    return {name: weight for name, weight in weights.items() if weight}


def log_begin(stage: Stage, asked: int) -> None:
    """Log where a stage really begins."""
    _LOG.info(
        "stage begins at the end of a block stage=%d asked=%d sample=%d",
        stage.index,
        asked,
        stage.first_sample,
    )


def _difference(past: Sequence[PlannedStage], own: Schedule, sample: int) -> str:
    """Return in which stage a state differs from a definition with its changes."""
    try:
        begins = [stage.first_sample for stage in own.effective()]
    except InvalidRequest as error:
        return f"the changes that the state has do not fit this mixture: {error}"
    for index, before in enumerate(past):
        if index == len(begins) or begins[index] >= sample:
            return f"the state has a stage from sample {before.asked} on, and this mixture has not"
        if begins[index] != before.asked:
            where = f"begins at sample {before.asked}, but here at {begins[index]}"
            return f"stage {index} of the state {where}"
        here = own.stages[index].weights
        if here != before.weights:
            return (
                f"stage {index} of the state, from sample {before.asked} on, has the weights "
                f"{_shown(before.weights)}, but here {_shown(here)}"
            )
    where = f"from sample {begins[len(past)]} on, before the saved sample {sample}"
    return f"this mixture has a stage {where}, and the state has not"


def _shown(weights: Weights) -> str:
    return ", ".join(f"{name} {weight}" for name, weight in weights.items())
