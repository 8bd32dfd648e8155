"""What is wrong with a server and with the runs that read from it, in plain sentences.

Pure: a status goes in, a judgement comes out. The server makes a page of it, `tokenfeed top` lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import NamedTuple

from ...v1 import status_pb2 as pb
from . import words
from .runs import Run, find_runs
from .states import Level, State, states_of, usual_sample
from .words import absent, count_of, spans_of

POINTS_SHOWN = 20
_MEMORY_SHARE = 0.9
_STREAMS_SHARE = 0.9
_STARTED_SECONDS = 30.0
"""By then all ranks of a run have connected."""
_MOVING_SECONDS = 60.0


class Point(NamedTuple):
    """Something that needs attention.  text: a few sentences, printable."""

    level: Level
    text: str


class StreamJudgement(NamedTuple):
    """A stream, judged.  run: the name of its run."""

    status: pb.StreamStatus
    state: State
    run: str


class Judgement(NamedTuple):
    """points: at most POINTS_SHOWN, the worst ones first.  streams: those of each run together, the
    worst ones first.
    """

    points: list[Point]
    points_omitted: int
    streams: list[StreamJudgement]


def judge(status: pb.GetStatusResponse) -> Judgement:
    """Return what needs attention, and the state of each stream."""
    found = find_runs(status.streams)
    cold = {dataset.name for dataset in status.datasets if words.is_cold(dataset)}
    lost = {dataset.name for dataset in status.datasets if dataset.lost}
    points = [*_of_server(status), *_of_datasets(status)]
    seen = [StreamJudgement(status.streams[at], State.REPLACED, "") for at in found.replaced]
    for run in found.runs:
        states = states_of(status.streams, run, lost)
        members = [StreamJudgement(status.streams[at], states[at], run.name) for at in run.members]
        points += _of_run(run, members, cold)
        if not status.streams_omitted:
            points += _missing(run, members)
        seen += members
    points.sort(key=lambda point: -point.level)
    omitted = max(0, len(points) - POINTS_SHOWN)
    return Judgement(points[:POINTS_SHOWN], omitted, sorted(seen, key=_order))


def health(status: pb.GetStatusResponse) -> tuple[Level, str]:
    """Return whether the server serves, in a few words."""
    lost = sum(bool(dataset.lost) for dataset in status.datasets)
    if status.draining:
        return Level.WARNING, "shutting down"
    if lost and lost == len(status.datasets):
        return Level.PROBLEM, "serves nothing"
    if lost:
        kept = len(status.datasets) - lost
        return Level.PROBLEM, f"serves {kept:,} of {len(status.datasets):,} datasets"
    return Level.NOTICE, "serving"


def _order(seen: StreamJudgement) -> tuple[object, ...]:
    stream = seen.status
    is_replaced = seen.state is State.REPLACED
    return (
        -seen.state.level,
        is_replaced,
        seen.run,
        stream.world_size,
        stream.order,
        list(stream.datasets),
        stream.rank,
    )


def _of_server(status: pb.GetStatusResponse) -> Iterator[Point]:
    if status.draining:
        yield Point(Level.WARNING, "The server is shutting down. Its clients go on elsewhere.")
    limit = status.memory_limit_bytes
    if limit and status.anonymous_bytes >= _MEMORY_SHARE * limit:
        use = f"{words.size(status.anonymous_bytes)} of {words.size(limit)}"
        what = f"The server's own memory is near its limit: {use}, not counting files."
        yield Point(Level.PROBLEM, f"{what} Beyond it, the kernel ends the server.")
    most = status.streams_max
    if most and status.streams_open >= _STREAMS_SHARE * most:
        # Calls are limited, to two for each of these streams, and a stream may have one.
        level = Level.PROBLEM if status.streams_open > most else Level.WARNING
        what = f"{status.streams_open:,} streams are open, of about {most:,}."
        yield Point(level, f"{what} Beyond that, clients have to wait (--max-streams).")


def _of_datasets(status: pb.GetStatusResponse) -> Iterator[Point]:
    for dataset in status.datasets:
        name = words.printable(dataset.name)
        if dataset.lost:
            problem = words.printable(dataset.lost, 300).rstrip(".")
            cure = "It is not served any more; the log of this server says why."
            yield Point(Level.PROBLEM, f"Dataset {name} is lost: {problem}. {cure}")
        for work in dataset.making:
            what = f"{words.printable(work.what, 100)}: {words.share(work.share)} are done"
            cure = "Streams that need them wait."
            yield Point(Level.WARNING, f"Dataset {name} is making {what}. {cure}")


def _of_run(run: Run, members: Iterable[StreamJudgement], cold: set[str]) -> Iterator[Point]:
    """Yield a point for each thing that is wrong with streams of a run."""
    by_state: defaultdict[State, list[pb.StreamStatus]] = defaultdict(list)
    for member in members:
        by_state[member.state].append(member.status)
    usual = usual_sample([stream for streams in by_state.values() for stream in streams])
    for state, streams in by_state.items():
        if state not in _SENTENCES:
            continue
        one, several, text = _SENTENCES[state]
        last = min(streams, key=lambda stream: stream.next_sample)
        longest = last if state is State.BEHIND else max(streams, key=lambda one: one.idle_seconds)
        text = text.format(
            idle=words.duration(longest.idle_seconds),
            waits=words.share(min(stream.waits_for_server for stream in streams)),
            sample=last.next_sample,
            batches=(usual - last.next_sample) // max(1, last.batch_size * last.world_size),
        )
        if state in (State.UNSERVED, State.STARVED):
            text = f"{text} {_why(streams, cold)}"
        verb = one if len(streams) == 1 else several
        yield Point(state.level, f"{_who(run, streams)} {verb} {text}")


def _who(run: Run, streams: Sequence[pb.StreamStatus]) -> str:
    who = run.name or "A client without a name"
    if run.world_size > 1:
        who += f", {words.ranks(spans_of(stream.rank for stream in streams), run.world_size)}"
    if len(streams) == 1:
        who += f" ({words.address(streams[0].address)})"
    return who if len(streams) == 1 else f"{who},"


def _why(streams: Iterable[pb.StreamStatus], cold: set[str]) -> str:
    names = {
        words.printable(name) for stream in streams for name in stream.datasets if name in cold
    }
    if names:
        return f"Reads of {words.listing(sorted(names)[:3])} wait for storage."
    return "The server makes frames no faster: it is busy, or its storage is slow."


_SENTENCES = {
    State.STALLED: (
        *("does", "do"),
        "not read: a frame has been ready for {idle}. The trainer hangs, or its network.",
    ),
    State.UNSERVED: ("has", "have", "waited {idle} for a frame."),
    State.STARVED: ("waits", "wait", "for the server {waits} of the time."),
    State.SILENT: (
        *("has", "have"),
        "asked for nothing for {idle}, longer than the rows last that it was sent. The trainer was "
        "killed, or hangs.",
    ),
    State.BEHIND: (
        *("has", "have"),
        "rows up to sample {sample:,}, {batches:,} batches behind most of this run, and got some "
        "{idle} ago. The trainer is slow, hangs, or began elsewhere.",
    ),
}
"""What is said of streams in a state: the verb of one, that of several, and the rest."""


def _missing(run: Run, members: Sequence[StreamJudgement]) -> Iterator[Point]:
    """Yield a point if some ranks are elsewhere, but not as clients spread over servers: of n, rank
    r begins at number r modulo n.
    """
    streams = [member.status for member in members]
    here = {stream.rank for stream in streams}
    is_spread = gcd(*(rank - streams[0].rank for rank in here)) != 1
    has_started = max(stream.age_seconds for stream in streams) >= _STARTED_SECONDS
    is_moving = min(stream.idle_seconds for stream in streams) < _MOVING_SECONDS
    away = absent(spans_of(here), run.world_size)
    if is_spread or not has_started or not is_moving or not away:
        return
    is_one = count_of(away) == 1
    verb, cure = ("is", "It uses") if is_one else ("are", "They use")
    end = "does not run" if is_one else "do not run"
    text = f"{run.name or 'A run without a name'}: {words.ranks(away, run.world_size)} {verb}"
    yield Point(
        Level.WARNING, f"{text} not here, unlike the others. {cure} another server, or {end}."
    )
