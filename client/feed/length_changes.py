"""Changes of the context length of a stream: asked for by a call, or declared with a feed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.schedule import Place, TooEarly, planned_stage
from tokenfeed.stream.stage import CHANGED, LENGTH, Stage
from tokenfeed.stream.stream import Stream

from .change_placement import require_ahead, with_change
from .history import History
from .lengths import Length
from .mixture.recipe import Definition

_CURES_MAX = 64
"""Samples that are tried for one at which no source refuses a change."""


def with_length(
    stream: Stream,
    context_length: int,
    at_sample: int,
    ahead: int,
    place: Place,
    definition: Definition,
    *,
    or_later: bool,
) -> tuple[Stream, int]:
    """Return a stream with another context length from a sample on, and where it begins.

    definition: what the stream was made from.  The other arguments, and Raises: as for
    `with_change`; InvalidRequest if samples behind that one were counted at the present length.
    """
    if 0 < definition.tokens_end >= at_sample:
        problem = f"cannot change at sample {at_sample}: the mixture has first_tokens up to sample "
        problem += f"{definition.tokens_end}, counted at {definition.stream.context_length}"
        raise InvalidRequest("context_length", f"{problem}; write first_sample there")
    weights = stream.stages[stream.place_of(at_sample)].weights
    new = planned_stage(context_length, at_sample, weights, CHANGED | LENGTH)

    def changed(asked: int) -> tuple[tuple[Stage, ...], int]:
        own = replace(new, asked=asked)
        return with_change(stream.stages, own, ahead, "context_length", place, or_later=or_later)

    try:
        stages, begin = changed(at_sample)
    except InvalidRequest as error:
        require_ahead(at_sample, ahead)
        if not isinstance(error, TooEarly):
            raise
        raise _with_cure(error, stream.stages, changed) from None
    return stream.with_stages(stages), begin


def _with_cure(
    error: TooEarly, stages: Sequence[Stage], changed: Callable[[int], object]
) -> InvalidRequest:
    """Return the error with the first sample that no source refuses.  changed: asks for
    the change at a sample.
    """
    sample, found = error.sample, f"none of the next {_CURES_MAX} samples that may be right is"
    for _ in range(_CURES_MAX):
        try:
            changed(sample)
        except TooEarly as later:  # noqa: PERF203 - the loop ends at the first that is accepted
            sample = max(later.sample, sample + 1)
        except (InvalidRequest, SamplesExhausted):
            # Not before the next stage begins, or behind that.
            begins = (each.first_sample + more for each in stages for more in (0, 1))
            if (sample := next((begin for begin in begins if begin > sample), -1)) < 0:
                found = "no later sample is right"
                break
        else:
            if sample == error.sample:
                return InvalidRequest(error.subject, error.problem)
            cure = f"pass {sample}, from which on no source would"
            return InvalidRequest(error.subject, f"{error.refusal}; {cure}")
    cure = f"{found}: give the source the order 'random' from the beginning"
    return InvalidRequest(error.subject, f"{error.refusal}; {cure}")


def ahead_of_lengths(stream: Stream, definition: Definition, sample: int, history: History) -> int:
    """Return the first sample at which a declared context length may begin: behind all that was
    delivered; and for a feed of a length that a state changed to, not before its position.

    sample: the position.  history: that before it.
    """
    began = stream.stages[0].context_length == definition.stream.context_length
    return history.end_sample if began else history.ahead_of(sample)


def with_declared(
    stream: Stream,
    lengths: Sequence[Length],
    ahead: int,
    changed: Callable[[Stream, int, int], Stream],
) -> Stream:
    """Return a stream with the context lengths that a user has declared, where they begin. Of those
    that are asked for before all that was delivered, the last one begins as soon as possible,
    unless it is in force, or the stream has had it since.

    ahead: the first sample that may change.  changed: takes a stream, a context length and the
    sample that it is asked for at, and returns the stream with that change.
    Raises: InvalidRequest if one cannot begin there; what changed raises.
    """
    before = 0
    for n, each in enumerate(lengths):
        asked, length = each.begin.sample(stream.sample_at), each.context_length
        if asked < before and before > ahead:  # one is by tokens, which are samples only now
            problem = f"{length} is asked for at sample {asked}, behind one at {before}"
            raise InvalidRequest("context_length", f"{problem}; declare them in this order")
        before = asked
        same = [stage for stage in stream.stages if stage.context_length == length]
        # What was in its way may have moved it, so that it was asked for at a later sample.
        is_known = any(
            stage.asked == asked or (stage.asked > asked and stage.first_sample < ahead)
            for stage in same
        ) or (asked < ahead and stream.stages[stream.place_of(ahead)] in same)
        later = lengths[n + 1 : n + 2]
        if is_known or any(one.begin.is_before(stream, ahead) for one in later):
            continue
        try:
            stream = changed(stream, length, max(asked, ahead))
        except InvalidRequest as error:
            problem = f"{length} from sample {asked} on: {error}"
            raise InvalidRequest("context_length", problem) from None
    return stream
