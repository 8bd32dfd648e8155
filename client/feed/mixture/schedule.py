"""The stages of a feed's mixture, as they were asked for: by its definition, and by later changes.

Pure and immutable. A feed replaces its schedule as a whole, and the stream follows from it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, SamplesExhausted, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.stream.parts import SourceValues, StreamParts
from tokenfeed.stream.spec import Mixture as MixtureSpec
from tokenfeed.stream.spec import Source, StreamSpec
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


class SavedStage(NamedTuple):
    """A stage of a state, and the sample where it begins."""

    stage: PlannedStage
    begin: int


class Continued(NamedTuple):
    """A schedule that continues a state, and what to log of it."""

    schedule: Schedule
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The mixture of a feed.

    seed: of the mixture, and of sources that come later; order, long_documents: of those.  sources:
    in the order of their numbers.  stages: by ascending `asked`, the first one at 0.  max_epochs:
    after which sources end, by the names of their datasets.  block: maximum number of samples in a
    block of later weights; None is that of `block_weights`.
    """

    context_length: int
    seed: int
    order: str
    sources: tuple[Source, ...]
    stages: tuple[PlannedStage, ...]
    max_epochs: Mapping[str, int] = field(default_factory=dict)
    block: int | None = None
    long_documents: str = ""

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
        return scheduled(self.asked(), len(self.sources))

    def asked(self) -> list[AskedStage]:
        """Return the stages, with the weights of all sources."""
        names = [source.dataset for source in self.sources]
        return [
            AskedStage(
                stage.asked, tuple(stage.weights.get(name, 0) for name in names), stage.origin
            )
            for stage in self.stages
        ]

    def changed(
        self, weights: Weights, at_sample: int, sample: int, *, or_later: bool = False
    ) -> tuple[Schedule, int]:
        """Return the schedule with other weights from a sample on, up to the next stage, and the
        sample from which on they are in force. The same change twice is one. An earlier change that
        would begin at the same sample is replaced. Where a stage of the definition begins just at
        the sample, the change begins a block later.

        sample: the current position.  or_later: also behind a stage that leaves no room.
        Raises: InvalidRequest, as `spec`.
        """
        weights = above_0(weights)
        begun = self.effective()
        while True:
            # What is in force just before, and where its blocks end.
            before = max(bisect_left([stage.first_sample for stage in begun], at_sample) - 1, 0)
            blocks = max(begun[before].blocks_before(at_sample), 0)
            begin = begun[before].first_sample + blocks * begun[before].block_size
            clash = next((n for n, stage in enumerate(begun) if stage.first_sample == begin), None)
            if clash is None:
                break
            if self.stages[clash].weights == weights:
                return self, begin
            if self.stages[clash].origin == CHANGED and begin >= sample:
                break
            if not or_later and at_sample < begin:
                problem = f"{at_sample} leaves no block: the next stage begins at {begin}"
                raise InvalidRequest("at_sample", problem)
            at_sample = begin + 1
        if at_sample < sample:
            problem = f"{at_sample} is before the current position, {sample}"
            raise InvalidRequest("at_sample", problem)
        stages = [stage for n, stage in enumerate(self.stages) if n != clash]
        if self.stages[before].weights == weights:
            return (
                self if clash is None else replace(self, stages=tuple(stages)),
                begun[before].first_sample,
            )
        stages.insert(before + 1, PlannedStage(at_sample, weights, CHANGED))
        found = replace(self.with_sources(weights), stages=tuple(stages))
        try:
            return found, found.effective()[before + 1].first_sample
        except (InvalidRequest, SamplesExhausted) as error:
            problem = f"from sample {at_sample} on leave no block to a later stage: {error}"
            raise InvalidRequest("weights", problem) from None

    def with_sources(self, names: Iterable[str]) -> Schedule:
        """Return the schedule with more sources, behind the others."""
        known = {source.dataset for source in self.sources}
        new = [name for name in names if name not in known]
        order = orders.latest(self.order)
        added = (
            Source(name, order, self.seed, number, self.long_documents)
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
    ) -> Continued:
        """Return the schedule of a feed of this definition that loads a state.

        It begins with the stages of the state before the saved sample. They have to be those of
        this definition with the changes that the state has, or of another one that this definition
        has continued. Of a definition of one stage it is enough that its weights were in force.
        saved: the mixture of the state.  sample: of the state.  allow: whether to append this
        definition at the saved sample otherwise, in place of changes behind it.  fingerprints: of
        this definition's sources, by the names of their datasets; they tell renamed ones.
        Raises: StreamMismatch, naming what differs; InvalidRequest if this definition has no room
        behind an appended stage.
        """
        saved = self.renamed(saved, fingerprints or {})
        stages = planned_stages(saved)
        past = [one for one in stages if one.begin < sample]
        ahead = stages[len(past) :]
        # Where this definition has continued another one.
        joins = [
            n
            for n, one in enumerate(stages)
            if n and one.stage.origin & RESUMED and one.stage.weights == self._in_force(one.begin)
        ]
        found = self._merged(saved, self.stages, stages, sample)
        if joins:
            join = joins[-1]
            own = self._appended(stages[:join], stages[join].stage, stages[join].begin)
            if self._with(saved, own)._is_valid():
                continued = self._merged(saved, own, stages[join:], sample)
                found = continued if continued.schedule._has_past(past, sample) else found
        if found.schedule._has_past(past, sample):
            return found
        in_force = past[-1].stage
        if len(self.stages) == 1 and in_force.weights == self.stages[0].weights:
            # Marked, so that later states are known too.
            join_here = replace(in_force, origin=in_force.origin | RESUMED)
            own = [*(one.stage for one in past[:-1]), join_here]
            return self._merged(saved, own, ahead, sample)
        if not allow:
            raise StreamMismatch("mixture", _difference(past, found.schedule, sample))
        last = self._with(None, [one.stage for one in past]).effective()[-1]
        begin = last.first_sample + last.blocks_before(sample) * last.block_size
        new = PlannedStage(sample, self._in_force(begin), RESUMED)
        appended = self._with(saved, self._appended(past, new, begin))
        try:
            appended.effective()
        except (InvalidRequest, SamplesExhausted) as error:
            problem = f"cannot begin at sample {begin}, since a later stage has no block then"
            raise InvalidRequest("mixture", f"{problem}: {error}") from None
        before, now = _shown(in_force.weights), _shown(new.weights)
        message = f"resumed with other weights sample={begin} saved={before} now={now}"
        if in_force.weights == new.weights:
            message = f"resumed with a mixture of other earlier stages sample={begin}"
        return Continued(appended, (message, *_dropped(ahead)))

    def _merged(
        self,
        saved: StreamParts,
        stages: Sequence[PlannedStage],
        changes: Sequence[SavedStage],
        sample: int,
    ) -> Continued:
        """Return stages with the changes of a state. Of changes before the sample that do not fit
        `_has_past` tells; those behind it are dropped.
        """
        changes = [change for change in changes if change.stage.origin & CHANGED]
        with_all = _in_order([*stages, *(change.stage for change in changes)])
        found, dropped = self._with(saved, with_all), []
        if found._is_valid():
            return Continued(found, ())
        found = self._with(saved, stages)
        for change in changes:
            if found._has(change):
                continue
            changed = self._with(saved, _in_order([*found.stages, change.stage]))
            if changed._is_valid():
                found = changed
            elif change.begin >= sample:
                dropped.append(change)
        return Continued(found, _dropped(dropped))

    def _is_valid(self) -> bool:
        """Return whether each stage has a block."""
        try:
            self.effective()
        except (InvalidRequest, SamplesExhausted):
            return False
        return True

    def _has(self, change: SavedStage) -> bool:
        """Return whether a stage of the same weights begins where a change does."""
        return any(
            begun.first_sample == change.begin and stage.weights == change.stage.weights
            for begun, stage in zip(self.effective(), self.stages, strict=True)
        )

    def _appended(
        self, past: Sequence[SavedStage], join: PlannedStage, begin: int
    ) -> list[PlannedStage]:
        """Return stages, and behind them this definition from a stage on.  begin: of that stage."""
        later = [
            replace(stage, asked=max(stage.asked, begin + 1))
            for stage, begun in zip(self.stages, self.effective(), strict=True)
            if begun.first_sample > begin
        ]
        return [*(one.stage for one in past), join, *later]

    def _in_force(self, sample: int) -> Weights:
        """Return the weights of a sample."""
        begins = [stage.first_sample for stage in self.effective()]
        return self.stages[bisect_right(begins, sample) - 1].weights

    def _has_past(self, past: Sequence[SavedStage], sample: int) -> bool:
        """Return whether exactly these stages begin before a sample."""
        begun = zip(self.effective(), self.stages, strict=True)
        found = [
            (each.first_sample, stage.weights)
            for each, stage in begun
            if each.first_sample < sample
        ]
        return found == [(one.begin, one.stage.weights) for one in past]

    def _with(self, saved: StreamParts | None, stages: Sequence[PlannedStage]) -> Schedule:
        """Return a schedule of other stages. Their sources have the numbers that they have in a
        state; the others are behind them.
        """
        used = dict.fromkeys(name for stage in stages for name in stage.weights)
        known = sources_of(saved) if saved else ()
        needed = [source.number for source in known if source.dataset in used]
        own = {source.dataset: source for source in self.sources}
        sources = [
            own.pop(source.dataset, source) for source in known[: max(needed, default=-1) + 1]
        ]
        sources += own.values()
        numbered = tuple(replace(source, number=n) for n, source in enumerate(sources))
        return replace(self, sources=numbered, stages=tuple(stages)).with_sources(used)

    def renamed(self, saved: StreamParts, fingerprints: Mapping[str, str]) -> StreamParts:
        """Return the mixture of a state with this definition's names of renamed datasets: those of
        the same corpus, order and seed, in the order of their numbers.
        """
        known = {source.dataset for source in saved.sources}
        own = {source.dataset for source in self.sources}
        new = [source for source in self.sources if source.dataset not in known]
        sources = []
        for before in saved.sources:
            now = next((each for each in new if _is_renamed(before, each, fingerprints)), None)
            if before.dataset in own or now is None:
                sources.append(before)
            else:
                new.remove(now)
                sources.append(before._replace(dataset=now.dataset))
        return replace(saved, sources=tuple(sources))


def _is_renamed(before: SourceValues, now: Source, fingerprints: Mapping[str, str]) -> bool:
    values = fingerprints.get(now.dataset), now.order.NAME, now.seed_used, now.long_documents
    return values == (before.fingerprint, before.order, before.seed, before.long_documents)


def sources_of(saved: StreamParts) -> tuple[Source, ...]:
    """Return the sources of a state.  Raises: NotFound for an order of a later release."""
    return tuple(
        Source(
            source.dataset,
            orders.find(source.order),
            source.seed,
            number,
            source.long_documents,
        )
        for number, source in enumerate(saved.sources)
    )


def planned_stages(saved: StreamParts) -> list[SavedStage]:
    """Return the stages of a state.  Raises: InvalidRequest if it has orders of a later release."""
    names = [source.dataset for source in saved.sources]
    for index, source in enumerate(saved.sources):
        if source.order not in orders.ORDERS:
            problem = f"{source.order} is unknown to this release; upgrade tokenfeed"
            raise InvalidRequest(f"state.sources[{index}].order", problem)
    return [
        SavedStage(
            PlannedStage(
                stage.asked, above_0(dict(zip(names, stage.weights, strict=True))), stage.origin
            ),
            stage.first_sample,
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


def _difference(past: Sequence[SavedStage], own: Schedule, sample: int) -> str:
    """Return in which stage a state differs from a definition with its changes."""
    cure = 'allow=("mixture",) continues with the weights of this mixture'
    begins = [stage.first_sample for stage in own.effective()]
    for index, (before, begin) in enumerate(past):
        if index == len(begins) or begins[index] >= sample:
            which = f"the state has a stage from sample {begin} on, and this mixture has not"
            return f"{which}; {cure}"
        if begins[index] != begin:
            where = f"begins at sample {begin}, but here at {begins[index]}"
            return f"stage {index} of the state {where}; {cure}"
        here = own.stages[index].weights
        if here != before.weights:
            return (
                f"stage {index} of the state, from sample {begin} on, has the weights "
                f"{_shown(before.weights)}, but here {_shown(here)}; {cure}"
            )
    where = f"from sample {begins[len(past)]} on, before the saved sample {sample}"
    return f"this mixture has a stage {where}, and the state has not; {cure}"


def _in_order(stages: Iterable[PlannedStage]) -> list[PlannedStage]:
    return sorted(stages, key=lambda stage: stage.asked)


def _dropped(changes: Sequence[SavedStage]) -> tuple[str, ...]:
    """Return messages of changes that are dropped."""
    return tuple(
        f"change of the mixture is dropped asked={change.asked} weights={_shown(change.weights)}"
        for change, _ in changes
        if change.origin & CHANGED
    )


def _shown(weights: Weights) -> str:
    return ", ".join(f"{name} {weight}" for name, weight in weights.items())
