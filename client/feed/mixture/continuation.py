"""With which stages a mixture goes on after a saved state. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, SamplesExhausted, StreamMismatch
from tokenfeed.stream.schedule import next_stage, scheduled
from tokenfeed.stream.stage import CHANGED, LENGTH, RESUMED, Stage
from tokenfeed.stream.stream import Stream

Stages = Sequence[Stage]
Place = Callable[[Stage, Stage], Stage]
"""As of `scheduled`."""
_CURE = 'allow=("mixture",) continues with the weights of this mixture'


class Saved(NamedTuple):
    """Where a mixture goes on.

    stream: that of a state.  renewed: numbers of its sources that were not read, and that are other
    ones now.  sample: the saved one.  names: of all sources, by their numbers.
    place: as for `scheduled`.
    """

    stream: Stream
    renewed: Collection[int]
    sample: int
    names: Sequence[str]
    place: Place

    def placed(self, begun: Stages, later: Stages) -> tuple[Stage, ...] | None:
        """Return stages where they begin; None unless each has a block."""
        try:
            return scheduled(begun, later, self.place)
        except (InvalidRequest, SamplesExhausted):
            return None

    def shown(self, weights: Mapping[int, int]) -> str:
        """Return weights in words."""
        return ", ".join(f"{self.names[number]} {weight}" for number, weight in weights.items())


def continued(
    saved: Saved, own: Stages, *, allow: bool, context_length: int | None = None
) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Return the stages with which a mixture goes on after a state, and messages to be logged.

    The past (the stages of the state that begin before the saved sample) stays as it was. It is
    accepted in these cases:
    - it is what the definition and the changes in the state (`change_mixture`) give;
    - the last stage marked RESUMED has the weights of the definition, and each stage behind it was
      made by the definition or by a change in the state;
    - the definition has a single stage, with the weights in force at the saved sample. The present
      stage is then marked RESUMED.
    Changes behind the saved sample stay if they have a block; else they are dropped, which is
    logged.
    own: stages of the definition, with the source numbers of the state.  allow: whether to accept
    every other past: then a stage with the weights of the definition begins at the first end of a
    block from the saved sample on, and replaces later changes of weights.  context_length: of that
    stage, which then replaces later changes of the context length too; None is that in force.
    Raises: StreamMismatch, naming what differs; InvalidRequest if a later stage of the definition
    has no block behind that stage.
    """
    stages, sample = saved.stream.stages, saved.sample
    present, saved = stages[saved.stream.place_of(sample)], saved._replace(place=_as_stored(saved))
    first, length = stages[0], own[0].context_length
    own = [replace(own[0], context_length=first.context_length), *own[1:]]
    # A change counts from its first row on. But where a feed has resumed, or has the length that
    # begins here, that is decided already, and the first stage that is kept is none.
    is_grown = present.origin & LENGTH and present.context_length == length
    is_past = (
        present.origin & RESUMED
        or (is_grown and first.context_length != length and present.first_sample == sample)
        or (first.index and first.first_sample == sample)
    )
    past = [stage for stage in stages if stage.first_sample < sample + bool(is_past)]
    end, ahead = sample + bool(is_past), stages[len(past) :]
    defined = first.weights if not first.is_change else dict(first.defined)
    # What was before the first stage is folded.
    if first.index and defined == _in_force(own, first.first_sample):
        own = [first, *(stage for stage in own if stage.asked > first.first_sample)]
    found, messages = _with_changes(own[:1], own[1:], stages, saved)
    if (join := _joined(own, saved)) is not None:
        begun, later = join
        again = _with_changes(begun, later, stages[len(begun) :], saved)
        if _has_past(again[0], past, end):
            found, messages = again
    if _has_past(found, past, end):
        return (*past, *found[len(past) :]), messages
    in_force = past[-1]
    if len(own) == 1 and in_force.weights == own[0].weights:
        # Marked, so that later states are known too.
        join_here = replace(in_force, origin=in_force.origin | RESUMED)
        return _with_changes([*past[:-1], join_here], [], ahead, saved)
    if allow:
        return _appended(past, own, ahead, saved, context_length)
    if first.index and own[0] is not first:
        before, now = saved.shown(defined), saved.shown(_in_force(own, first.first_sample))
        problem = f"the state was saved with the weights {before}, but this mixture has {now}"
        raise StreamMismatch("mixture", f"{problem}; {_CURE}")
    raise StreamMismatch("mixture", _difference(past, found, end, saved))


def _as_stored(saved: Saved) -> Place:
    """Return `place` that leaves a stage of another context length as a state has it, while it
    follows the same stage of the same sources: rows of those that were read are not needed then.
    """
    stages = saved.stream.stages
    before = dict(zip(stages[1:], stages, strict=False))

    def placed(last: Stage, planned: Stage) -> Stage:
        one = before.get(planned) if planned.origin & LENGTH else None
        if any(share.source in saved.renewed for share in last.shares):
            one = None
        if one is not None and replace(one, previous=b"") == replace(last, previous=b""):
            return replace(planned, previous=b"")
        return saved.place(last, planned)

    return placed


def _joined(own: Stages, saved: Saved) -> tuple[Stages, Stages] | None:
    """Return the stages up to that where this definition has continued another one last, and those
    of the definition behind it; None if it has not, or one of these has no block there.
    """
    stages = saved.stream.stages
    for n in range(len(stages) - 1, 0, -1):
        stage = stages[n]
        if stage.origin & RESUMED and stage.weights == _in_force(own, stage.first_sample):
            begun, later = stages[: n + 1], _later(own, stage.first_sample)
            return None if saved.placed(begun, later) is None else (begun, later)
    return None


def _appended(
    past: Stages, own: Stages, ahead: Stages, saved: Saved, context_length: int | None
) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Return a past with the weights of a definition from the first end of a block on, and what to
    log.

    ahead: stages of the state behind the past, of which only changes of the context length stay.
    The other arguments, and Raises: as for `continued`.
    """
    in_force = past[-1]
    begin = in_force.first_sample + in_force.blocks_before(saved.sample) * in_force.block_size
    new = next_stage(in_force, saved.sample, _in_force(own, begin), RESUMED)
    new = replace(new, context_length=context_length or in_force.context_length)
    if begin == in_force.first_sample:  # which has no row yet
        new = replace(new, index=in_force.index, previous=in_force.previous)
        past = past[:-1]
    begun, later = [*past, new], _later(own, begin)
    try:
        scheduled(begun, later)
    except (InvalidRequest, SamplesExhausted) as error:
        problem = f"cannot begin at sample {begin}, since a later stage has no block then"
        raise InvalidRequest("mixture", f"{problem}: {error}") from None
    before, now = saved.shown(in_force.weights), saved.shown(new.weights)
    message = f"resumed with other weights sample={begin} saved={before} now={now}"
    if in_force.weights == new.weights:
        message = f"resumed with a mixture of other earlier stages sample={begin}"
    kept = [each for each in ahead if each.origin & LENGTH and context_length is None]
    lengths = [replace(each, asked=max(each.asked, begin + 1)) for each in kept]
    found, messages = _with_changes(begun, later, lengths, saved)
    gone = [each for each in ahead if each not in kept]
    return found, (message, *_dropped(gone, saved), *messages)


def _with_changes(
    begun: Stages, later: Stages, changes: Stages, saved: Saved
) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Return the stages with the changes of a state, and lines to log.

    A change at or behind the sample that fits no stage is dropped, with a line. One before it stays
    out too; the caller finds that by `_has_past`.
    """
    first = begun[-1].first_sample
    changes = [each for each in changes if each.origin & CHANGED and each.asked > first]
    found = saved.placed(begun, _in_order([*later, *changes]))
    if found is not None:
        return found, ()
    kept, dropped = list(later), []
    found = saved.placed(begun, kept) or tuple(begun)
    for change in changes:
        if any(_begin(each) == _begin(change) for each in found):
            continue
        changed = saved.placed(begun, _in_order([*kept, change]))
        if changed is not None:
            kept, found = _in_order([*kept, change]), changed
        elif change.first_sample >= saved.sample:
            dropped.append(change)
    return found, _dropped(dropped, saved)


def _begin(stage: Stage) -> tuple[int, int, dict[int, int]]:
    return stage.first_sample, stage.context_length, stage.weights


def _later(own: Stages, begin: int) -> list[Stage]:
    """Return the stages of a definition behind a sample, asked for behind it."""
    return [
        replace(stage, asked=max(stage.asked, begin + 1), previous=b"")
        for stage in own
        if stage.first_sample > begin
    ]


def _in_force(own: Stages, sample: int) -> dict[int, int]:
    """Return the weights of a sample."""
    begins = [stage.first_sample for stage in own]
    return own[max(bisect_right(begins, sample) - 1, 0)].weights


def _has_past(found: Stages, past: Stages, sample: int) -> bool:
    """Return whether exactly these stages begin before a sample."""
    return [_begin(each) for each in found if each.first_sample < sample] == [
        _begin(each) for each in past
    ]


def _in_order(stages: Sequence[Stage]) -> list[Stage]:
    return sorted(stages, key=lambda stage: stage.asked)


def _difference(past: Stages, own: Stages, sample: int, saved: Saved) -> str:
    """Return in which stage a state differs from a definition with its changes."""
    for index, before in enumerate(past):
        if index == len(own) or own[index].first_sample >= sample:
            which = f"the state has a stage from sample {before.first_sample} on"
            return f"{which}, and this mixture has not; {_CURE}"
        here = own[index]
        if here.first_sample != before.first_sample:
            where = f"begins at sample {before.first_sample}, but here at {here.first_sample}"
            return f"stage {before.index} of the state {where}; {_CURE}"
        if here.weights != before.weights:
            return (
                f"stage {before.index} of the state, from sample {before.first_sample} on, has the "
                f"weights {saved.shown(before.weights)}, but here {saved.shown(here.weights)}; "
                f"{_CURE}"
            )
    where = f"from sample {own[len(past)].first_sample} on, before the saved sample {sample}"
    return f"this mixture has a stage {where}, and the state has not; {_CURE}"


def _dropped(changes: Stages, saved: Saved) -> tuple[str, ...]:
    """Return messages of changes that are dropped."""
    return tuple(
        f"change of the context length is dropped asked={change.asked} "
        f"context_length={change.context_length}"
        if change.origin & LENGTH
        else f"change of the mixture is dropped asked={change.asked} "
        f"weights={saved.shown(change.weights)}"
        for change in changes
        if change.origin & CHANGED
    )
