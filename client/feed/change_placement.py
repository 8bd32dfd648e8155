"""Where a change of a stream begins: from which sample on it may, and which stage it replaces.
Pure; docs/protocol.md, Streams, has the rules.

Other weights, another context length and a redaction begin at a sample that was not read yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from tokenfeed.errors import InvalidRequest, RequestError, SamplesExhausted
from tokenfeed.stream.schedule import Place, placed_by_weights, scheduled
from tokenfeed.stream.stage import LENGTH, Redaction, Redactions, Stage


def with_change(
    stages: tuple[Stage, ...],
    new: Stage,
    ahead: int,
    what: str,
    place: Place = placed_by_weights,
    *,
    or_later: bool = False,
) -> tuple[tuple[Stage, ...], int]:
    """Return the stages with another one from a sample on, up to the next stage; and the sample
    from which on its content is in force: the first end of a block (of the mixture, or of a group
    of blocks) at or above the one that it is asked for at, or an earlier sample if it is in force
    there already.

    An earlier change of the same kind that would begin at that sample is replaced. If another stage
    begins there, the new stage begins one block later; if one begins before it, within a group of
    blocks, behind the first block of that. A change of the context length that was asked for at or
    before the new stage, and has not begun by then, is asked for right behind it.
    new: as `planned_stage` makes it.  ahead: the first sample that may change; below it only the
    same change may be asked for again.  what: names the content in errors.  place: as for
    `scheduled`.  or_later: if no block is left between the sample and the next stage, whether to
    change behind the first block of that stage instead of refusing.
    Raises: InvalidRequest if the sample is below ahead, or a stage would have no block; what place
    raises.
    """
    at_sample, before, begin = _place_of(stages, new, ahead, what, place, or_later=or_later)
    there = next((stage for stage in stages if stage.first_sample == begin), None)
    if there is not None and _content(there, new) == _content(new, new):
        if there is not stages[0] and not _is_of_kind(there, new):
            require_ahead(new.asked, ahead)
        return stages, begin
    require_ahead(new.asked, ahead)
    begun = stages[: before + 1]
    later = [
        replace(stage, asked=max(stage.asked, begin + 1)) if stage.origin & LENGTH else stage
        for stage in stages[before + 1 :]
        if stage is not there
    ]
    if _content(begun[-1], new) == _content(new, new):
        found = stages if there is None else scheduled(begun, later, place)
        return found, begun[-1].first_sample
    try:
        found = scheduled(begun, [replace(new, asked=at_sample), *later], place)
    except (InvalidRequest, SamplesExhausted) as error:
        raise _without_block(what, at_sample, error) from None
    return found, begin


def _place_of(
    stages: Sequence[Stage], new: Stage, ahead: int, what: str, place: Place, *, or_later: bool
) -> tuple[int, int, int]:
    """Return where a new stage belongs among others: the sample that it has to be asked for at, the
    place of the stage before it, and where it begins. There may be a stage of the same content, or
    one that it replaces.

    The arguments, and Raises: as for `with_change`.
    """
    at_sample = new.asked
    while True:
        # What is in force just before, and where its blocks end.
        before = max(bisect_left([stage.first_sample for stage in stages], at_sample) - 1, 0)
        here = replace(new, asked=max(at_sample, stages[before].first_sample))
        try:
            begin = place(stages[before], here).first_sample
        except SamplesExhausted as error:
            raise _without_block(what, at_sample, error) from None
        following = stages[before + 1 : before + 2]
        if following and following[0].first_sample < begin:
            at_sample = following[0].first_sample + 1
            continue
        clash = next((n for n, stage in enumerate(stages) if stage.first_sample == begin), None)
        if clash is None:
            break
        there = stages[clash]
        may_replace = there.is_change and begin >= ahead and clash > before
        if _content(there, new) == _content(new, new) or (may_replace and _is_of_kind(there, new)):
            break
        if not or_later and at_sample < begin:
            require_ahead(new.asked, ahead)
            problem = f"{at_sample} leaves no block: the next stage begins at {begin}"
            raise InvalidRequest("at_sample", problem)
        at_sample = begin + 1
    return at_sample, before, begin


def _is_of_kind(stage: Stage, new: Stage) -> bool:
    """Return whether both are stages of a context length, or both of weights."""
    return not (stage.origin ^ new.origin) & LENGTH


def _without_block(what: str, at_sample: int, error: RequestError) -> InvalidRequest:
    problem = f"from sample {at_sample} on leave no block to a later stage: {error}"
    if error.subject in ("at_sample", "context_length"):
        problem = f"cannot change at sample {at_sample}, since the context length could not change "
        problem += f"behind it: {error}"
    return InvalidRequest(what, problem)


def _content(stage: Stage, new: Stage) -> object:
    """Return what a new stage changes, as a stage has it."""
    return stage.context_length if new.origin & LENGTH else stage.weights


def require_ahead(at_sample: int, ahead: int) -> None:
    """Raise InvalidRequest if a change comes too late.

    at_sample: at which it was asked for.  ahead: the first sample that may still change.
    """
    if at_sample < ahead:
        problem = f"{at_sample} is before {ahead}, the first sample that may change"
        raise InvalidRequest("at_sample", problem)


def with_redaction(redactions: Redactions, new: Redaction) -> tuple[Redactions, int]:
    """Return the redactions with a new one, and the sample from which on its list is in force. If
    they have the same list of the same source already, only the one that begins first is kept.
    """
    source, listed = new.source, new.list_hash
    same = [each for each in redactions if (each.source, each.list_hash) == (source, listed)]
    first = min([new, *same])
    return tuple(sorted({*redactions} - {*same} | {first})), first.first_sample
