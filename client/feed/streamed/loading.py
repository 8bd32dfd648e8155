"""The stream of a feed that loads a state: it is checked first, and nothing changes until then."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tokenfeed.stream.parts import StreamParts

from ..history import History
from ..mixture.past import require_same_length_and_seed, require_same_sources
from ..mixture.schedule import Schedule
from ..ranks.agreement import RankAgreement
from ..redactions import continued, of_state
from ..saved.comparing import (
    MIXTURE,
    REDACTIONS,
    differences,
    require_known_permissions,
    require_same_stream,
)
from ..saved.rescale import is_rescaled, rescaled
from ..saved.state import Planes, read_history, read_planes, read_state
from .feed_stream import FeedStream


class Loaded(NamedTuple):
    """What a feed goes on with.

    stream: to be read from now on.  moves_to: where its cursor is to be moved, and its history;
    None if it has a cursor of its own.  messages: to be logged.
    """

    stream: FeedStream
    moves_to: tuple[int, History] | None
    messages: Sequence[str]


class _State(NamedTuple):
    """A state that was read, and what may differ."""

    sample: int
    saved: StreamParts
    history: History
    planes: Planes
    allow: Collection[str]


def loaded(
    stream: FeedStream,
    definition: Schedule | None,
    state: dict[str, Any],
    allow: Collection[str],
    *,
    agreement: RankAgreement | None,
    loads: Iterator[int],
    owner: object,
) -> Loaded:
    """Return what a feed goes on with that loads a state. The feed does not change.

    stream: of the feed.  definition: of its mixture, None without one.  state, allow: as a user
    passed them.  agreement: of the ranks, if they compare.  loads: numbers of the states of
    mixtures that were loaded.  owner: a new dataset is closed with it.
    Raises: as for `Feed.load_state_dict`.
    """
    sample, saved = read_state(state)
    found = _State(sample, saved, read_history(state), read_planes(state), allow)
    if definition is None or not saved.stages:
        return _of_dataset(stream, definition, found, owner)
    return _of_mixture(stream, definition, found, agreement, next(loads), owner)


def _of_mixture(
    stream: FeedStream,
    definition: Schedule,
    state: _State,
    agreement: RankAgreement | None,
    number: int,
    owner: object,
) -> Loaded:
    """Continue the mixture of a state.  number: of this load.  Raises: StreamMismatch;
    TokenfeedError if sources cannot be read.
    """
    found, messages = _continued(stream, definition, state, owner)
    try:
        found.require_same_planes(state.saved, state.planes, state.sample, state.allow)
        if agreement is not None:
            agreement.require_same_state(number, state.sample, found.identity())
    except BaseException:
        found.close_unless(stream)
        raise
    return Loaded(found, None, messages)


def _continued(
    stream: FeedStream, definition: Schedule, state: _State, owner: object
) -> tuple[FeedStream, Sequence[str]]:
    """Return the stream that continues a mixture, and what to log of it."""
    sample, saved, history, _, allow = state
    require_known_permissions(allow)
    require_same_length_and_seed(saved, stream.spec)
    fingerprints = {each.dataset: each.fingerprint for each in stream.parts().sources}
    schedule, messages = definition.continued(
        saved, sample, allow=MIXTURE in allow, fingerprints=fingerprints
    )
    names = [{each.dataset} for each in definition.renamed(saved, fingerprints).sources]
    before, _ = of_state(saved, names, allow=REDACTIONS in allow)
    redactions, differing = continued(
        before, stream.own_redactions, sample, allow=REDACTIONS in allow
    )
    found = replace(stream, redactions=redactions).with_schedule(
        schedule, sample, history, before=lambda: saved, owner=owner
    )
    try:
        require_same_sources(saved, found.parts(), sample)
    except BaseException:
        found.close_unless(stream)
        raise
    return found, (*messages, *differing)


def _of_dataset(
    stream: FeedStream, definition: Schedule | None, state: _State, owner: object
) -> Loaded:
    """Resume from the state of one dataset: a mixture without its changes, else the same stream at
    another position.  Raises: StreamMismatch; TokenfeedError.
    """
    own = stream.parts()
    require_same_stream(state.saved, own, state.allow)
    stream.require_same_planes(state.saved, state.planes, state.sample, state.allow)
    of_other_length = is_rescaled(state.sample, state.saved, own)
    if of_other_length:
        state = state._replace(sample=_rescaled_sample(stream, own, state))
    sample, saved, history, _, allow = state
    same = [stream.spec.sources[0].dataset] if own.fingerprint == saved.fingerprint else []
    if own.sources:
        same = [each.dataset for each in own.sources if each.fingerprint == saved.fingerprint]
    before, dropped = of_state(saved, [same], allow=REDACTIONS in allow)
    redactions, differing = continued(
        before,
        stream.own_redactions,
        sample,
        allow=REDACTIONS in allow,
        is_rescaled=of_other_length,
    )
    messages = (*differences(saved, own), *dropped, *differing)
    if definition is None:
        found = stream.with_redactions(redactions)
        return Loaded(found, (sample, _renamed(history, found, saved, sample)), messages)
    found = replace(stream, redactions=redactions).with_schedule(
        definition, sample, history, before=stream.parts, owner=owner
    )
    return Loaded(found, None, messages)


def _rescaled_sample(stream: FeedStream, own: StreamParts, state: _State) -> int:
    """Return where a feed of another context length resumes."""
    windows_before = None
    if state.saved.fingerprint == own.fingerprint:
        windows_before = stream.dataset.rows_of(stream.spec.order.NAME, state.saved.context_length)
    return rescaled(
        state.sample,
        state.saved,
        own,
        windows_before,
        stream.require_windows(),
        stream.dataset.await_described()[0].file_count,
        state.allow,
    )


def _renamed(history: History, stream: FeedStream, saved: StreamParts, sample: int) -> History:
    """Return the history of a state whose runs continue in a stream, if that differs only by more
    redactions: so it does not depend on whether they were taken up before or after the load.
    """
    parts = stream.parts()
    if replace(parts, redactions=saved.redactions) != saved:
        return history
    return history.continued_by(parts, before=saved, sample=sample)
