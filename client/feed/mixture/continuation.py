"""With which stages a mixture goes on after a saved state. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, RequestError, SamplesExhausted, StreamMismatch
from tokenfeed.stream.schedule import Place, next_stage, scheduled
from tokenfeed.stream.stage import CHANGED, LENGTH, RESUMED, Stage
from tokenfeed.stream.stream import Stream

from ..change_placement import with_change

Stages = Sequence[Stage]
Dropped = Sequence[tuple[Stage, RequestError]]
"""Changes that have no block, and why."""
_CURE = 'allow=("mixture",) continues with the weights of this mixture'


class SavedMixture(NamedTuple):
    """A mixture as a state has it, and where it goes on.

    stream: the stream of the state.  renewed: numbers of sources that were not read, and have
    another order, seed or corpus now.  sample: the first one that may change.  names: of all
    sources, by their numbers.  place: finds where a stage begins, as for `scheduled`.
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
    saved: SavedMixture, own: Stages, *, allow: bool, context_length: int | None = None
) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """Return the stages with which a mixture goes on after a state, and messages to be logged.

    The past (the stages of the state that begin before the saved sample) stays as it was. It is
    accepted in these cases:
    - it is what the definition and the changes in the state (`change_mixture`) give;
    - the last stage marked RESUMED has the weights of the definition, and each stage behind it was
      made by the definition or by a change in the state;
    - the definition has a single stage, with the weights in force at the saved sample. The present
      stage is then marked RESUMED.
    Changes behind the saved sample stay. One of the weights that has no block is dropped, which is
    logged; one of the context length begins behind the first block of a stage that is in its way,
    as if it had been asked for now.
    own: stages of the definition, with the source numbers of the state.  allow: whether to accept
    every other past: then a stage with the weights of the definition begins at the first end of a
    block from the saved sample on, and replaces later changes of weights.  context_length: of that
    stage, which then replaces later changes of the context length too; None is that in force.
    Raises: StreamMismatch, naming what differs, or a change of the context length that cannot
    stay; InvalidRequest if a later stage of the definition has no block behind that stage.
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
    if not past and context_length is not None:  # nothing was read, so nothing is continued
        return (replace(own[0], context_length=context_length), *own[1:]), ()
    defined = first.weights if not first.is_change else dict(first.defined)
    # What was before the first stage is folded.
    if first.index and defined == _in_force(own, first.first_sample):
        own = [first, *(stage for stage in own if stage.asked > first.first_sample)]
    for begun, later in (*_joined(own, saved), (own[:1], own[1:])):
        found, dropped = _with_changes(begun, later, stages, saved)
        if context_length is None and _has_past(found, past, end):
            return (*past, *found[len(past) :]), _dropped(dropped, saved)
    if context_length is None and len(own) == 1:
        # Where a stage begins at the saved sample, both are in force.
        in_force = [past[-1], *(each for each in ahead[:1] if each.first_sample == sample)]
        for place, stage in enumerate(in_force, len(past) - 1):
            if stage.weights == own[0].weights:
                # Marked, so that later states are known too.
                begun = [*stages[:place], replace(stage, origin=stage.origin | RESUMED)]
                found, dropped = _with_changes(begun, [], stages[place + 1 :], saved)
                return found, _dropped(dropped, saved)
    if allow:
        return _appended(past, own, ahead, saved, context_length)
    if first.index and own[0] is not first:
        before, now = saved.shown(defined), saved.shown(_in_force(own, first.first_sample))
        problem = f"the state was saved with the weights {before}, but this mixture has {now}"
        raise StreamMismatch("mixture", f"{problem}; {_CURE}")
    raise StreamMismatch("mixture", _difference(past, found, end, saved))


def _as_stored(saved: SavedMixture) -> Place:
    """Return `place` that leaves a stage of another context length as a state has it, while it
    follows the same stage of the same sources: rows of those that were read are not needed then.
    """
    stages = [replace(each, previous=b"") for each in saved.stream.stages]
    known = set(pairwise(stages))

    def placed(last: Stage, planned: Stage) -> Stage:
        one, following = replace(last, previous=b""), replace(planned, previous=b"")
        is_same = not any(share.source in saved.renewed for share in last.shares)
        if planned.origin & LENGTH and is_same and (one, following) in known:
            return following
        return saved.place(last, planned)

    return placed


def _joined(own: Stages, saved: SavedMixture) -> list[tuple[Stages, Stages]]:
    """Return the stages up to that where this definition has continued another one last, and those
    of the definition behind it; none if it has not, or one of these has no block there.
    """
    stages = saved.stream.stages
    for n in range(len(stages) - 1, 0, -1):
        stage = stages[n]
        if stage.origin & RESUMED and stage.weights == _in_force(own, stage.first_sample):
            begun, later = stages[: n + 1], _later(own, stage.first_sample)
            return [] if saved.placed(begun, later) is None else [(begun, later)]
    return []


def _appended(
    past: Stages, own: Stages, ahead: Stages, saved: SavedMixture, context_length: int | None
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
    found, dropped = _with_changes(begun, later, lengths, saved)
    gone = [_said(each, saved) for each in ahead if each not in kept and each.origin & CHANGED]
    return found, (message, *gone, *_dropped(dropped, saved))


def _with_changes(
    begun: Stages, later: Stages, changes: Stages, saved: SavedMixture
) -> tuple[tuple[Stage, ...], Dropped]:
    """Return the stages with the changes of a state, and those that fit no stage at or behind the
    sample. One before it stays out too; the caller finds that by `_has_past`.
    """
    first = begun[-1].first_sample
    changes = [each for each in changes if each.origin & CHANGED and each.asked > first]
    found = saved.placed(begun, _in_order([*later, *changes]))
    if found is not None:
        return found, ()
    found, dropped = saved.placed(begun, later) or tuple(begun), list[tuple[Stage, RequestError]]()
    # Weights first: a change of the length may wait for the end of a group, and they do not.
    for change in sorted(changes, key=lambda each: each.origin & LENGTH):
        if any(_begin(each) == _begin(change) for each in found):
            continue
        try:
            if change.origin & LENGTH:
                what = "context_length"
                found, _ = with_change(found, change, 0, what, saved.place, or_later=True)
            else:
                behind = _in_order([*found[len(begun) :], change])
                found = scheduled(begun, behind, saved.place)
        except (InvalidRequest, SamplesExhausted) as error:
            if change.first_sample >= saved.sample:
                dropped.append((change, error))
    return found, dropped


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


def _difference(past: Stages, own: Stages, sample: int, saved: SavedMixture) -> str:
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


def _dropped(changes: Dropped, saved: SavedMixture) -> tuple[str, ...]:
    """Return messages of changes of the weights that have no block.  Raises: StreamMismatch for one
    of the context length.
    """
    for change, error in changes:
        if change.origin & LENGTH:
            before = saved.stream.stages[change.index - saved.stream.stages[0].index - 1]
            raise StreamMismatch(
                "context_length",
                f"the state changes it to {change.context_length} at sample {change.first_sample}, "
                f"which this mixture does not allow: {error}. Pass a mixture that does; or load "
                "the state with the mixture that it was saved with, and take the change back by "
                f"change_context_length({before.context_length}, at_sample={change.first_sample})",
            )
    return tuple(_said(change, saved) for change, _ in changes)


def length_dropped(change: Stage) -> str:
    """Return the message of a change of the context length that is dropped.  change: is its stage,
    as a state has it.
    """
    dropped, length = "change of the context length is dropped", change.context_length
    return f"{dropped} asked={change.asked} context_length={length}"


def _said(change: Stage, saved: SavedMixture) -> str:
    """Return the message of a change that is dropped."""
    if change.origin & LENGTH:
        return length_dropped(change)
    weights = saved.shown(change.weights)
    return f"change of the mixture is dropped asked={change.asked} weights={weights}"
