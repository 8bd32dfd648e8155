"""What a stream does: whether it reads, who waits for whom, whether it keeps up with its run.

Numbers only. What a server cannot see, it cannot judge: a trainer that has the rows it asked for
makes no call.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from enum import Enum, IntEnum
from statistics import median_high

from ...v1 import status_pb2 as pb
from .runs import Run

_STALL_SECONDS = 5.0
"""A stream with a call was sent no frame for this long. Even on slow lines there is one in a second
or so."""
_STARVED_SHARE = 0.9
"""Of the time, for which a client waits for the server."""
_SETTLED_SECONDS = 10.0
"""A younger stream fills its buffer; and shares are averages over this time."""
HELD_TOKENS = 1 << 24
"""Tokens that our client requests ahead by default: 32 MiB, at 2 bytes each."""
_BEHIND_TOKENS = HELD_TOKENS * 5 // 4
"""Ranks that take the same steps are not further apart than what they hold."""


class Level(IntEnum):
    """How bad something is."""

    NOTICE = 0
    WARNING = 1
    PROBLEM = 2


class State(Enum):
    """What a stream does.  label: in a few words.  level: how bad it is."""

    STALLED = ("does not read", Level.PROBLEM)
    UNSERVED = ("gets nothing", Level.PROBLEM)
    DATASET_LOST = ("its dataset is lost", Level.PROBLEM)
    BEHIND = ("is behind", Level.PROBLEM)
    SILENT = ("asks for nothing", Level.WARNING)
    STARVED = ("waits for us", Level.WARNING)
    READING = ("reads", Level.NOTICE)
    SATISFIED = ("has enough", Level.NOTICE)
    REPLACED = ("reconnected", Level.NOTICE)
    ENDED = ("has ended", Level.NOTICE)

    def __init__(self, label: str, level: Level) -> None:
        """Keep both."""
        self.label = label
        self.level = level


def states_of(streams: Sequence[pb.StreamStatus], run: Run, lost: Set[str]) -> dict[int, State]:
    """Return the states of the members of a run.  lost: names of datasets that are lost."""
    usual = usual_sample([streams[place] for place in run.members])  # of one: its own
    return {
        place: _state(streams[place], lost, usual - streams[place].next_sample)
        for place in run.members
    }


def usual_sample(streams: Sequence[pb.StreamStatus]) -> int:
    """Return the sample where most of the ranks of a run are, or are past it."""
    return median_high(stream.next_sample for stream in streams)


def _state(stream: pb.StreamStatus, lost: Set[str], samples_behind: int) -> State:
    if stream.has_ended:
        return State.ENDED
    if not lost.isdisjoint(stream.datasets):
        return State.DATASET_LOST
    if stream.calls and stream.idle_seconds > _STALL_SECONDS:
        if stream.waits_for_client >= stream.waits_for_server:
            return State.STALLED
        return State.UNSERVED
    if samples_behind * stream.context_length > _BEHIND_TOKENS * stream.world_size:
        return State.BEHIND
    waits = stream.waits_for_server >= _STARVED_SHARE
    if not stream.calls and stream.tokens_per_second <= 0:
        if waits:
            return State.STARVED  # its calls ended without a row; it comes again
        return State.SILENT if _is_silent(stream) else State.SATISFIED
    if waits and stream.age_seconds >= _SETTLED_SECONDS:
        return State.STARVED
    return State.READING


def _is_silent(stream: pb.StreamStatus) -> bool:
    """Return whether a client without a call would have needed more by now, at its mean rate."""
    seconds = stream.age_seconds - stream.idle_seconds
    consumed = stream.tokens - HELD_TOKENS
    if consumed <= 0 or seconds <= 0:
        return False
    return stream.idle_seconds > _SETTLED_SECONDS + 2 * HELD_TOKENS * seconds / consumed
