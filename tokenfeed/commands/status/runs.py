"""Which streams belong to one training run.

A stream does not say so. Those of one run have the same shape: dataset, order, context length and
world size; each has another rank. Streams of one shape are told apart by the names of their
clients, as far as these tell anything: by default each machine has another name. Pure, and linear
in the number of streams.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...v1 import status_pb2 as pb
from . import words

_RANK = re.compile(r"[\s,_-]*\brank[\s:=_-]*[0-9]+$")
"""How the default name of a client ends."""
_HANDOVER_SECONDS = 5.0
"""A client that lost its connection has a new one within this time."""
_SPLIT_RUNS_MAX = 64
"""Runs of one shape that are looked through for a place for a machine."""
_NAMES_SHOWN = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run, or the part of it that reads from this server.

    name: what its clients are called, printable; "" if they have no name.  members: its streams, by
    their places in the list that `find_runs` was given; each has another rank.
    """

    name: str
    world_size: int
    members: Sequence[int]


@dataclass(slots=True)
class _Part:
    """Streams of one run that are known to belong together.

    names: of their clients.  is_open: whether other names may belong to the same run.  by_rank:
    places of streams.  sample: of the stream that is the furthest.
    """

    names: list[str]
    is_open: bool
    by_rank: dict[int, int]
    sample: int


class RunGroups(NamedTuple):
    """runs.  replaced: places of streams whose client goes on over another connection."""

    runs: list[Run]
    replaced: set[int]


def find_runs(streams: Sequence[pb.StreamStatus]) -> RunGroups:
    """Sort streams into runs."""
    replaced = set(_replaced(streams))
    shapes: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, stream in enumerate(streams):
        if place not in replaced:
            shapes[_shape(stream)].append(place)
    runs = []
    for places in shapes.values():
        for part in _joined(_parts(streams, places)):
            name = words.listing([*part.names[:_NAMES_SHOWN], *_more(part.names)])
            world_size = streams[next(iter(part.by_rank.values()))].world_size
            runs.append(Run(name, world_size, list(part.by_rank.values())))
    return RunGroups(runs, replaced)


def _more(names: Sequence[str]) -> list[str]:
    return [f"{len(names) - _NAMES_SHOWN:,} more"] if len(names) > _NAMES_SHOWN else []


def _shape(stream: pb.StreamStatus) -> tuple[object, ...]:
    # The datasets of a mixture change with its stages.
    names = () if stream.order.startswith("mixture-") else tuple(stream.datasets)
    return stream.world_size, stream.order, stream.context_length, names


def _replaced(streams: Sequence[pb.StreamStatus]) -> Iterable[int]:
    """Yield the places of streams without a call whose client came back just after they ended."""
    alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, stream in enumerate(streams):
        alike[(*_shape(stream), stream.client_name, stream.rank)].append(place)
    for places in alike.values():
        places.sort(key=lambda place: streams[place].age_seconds)
        for newer, older in itertools.pairwise(places):
            ended_ago = streams[older].idle_seconds
            if not (streams[older].calls or streams[older].has_ended) and (
                streams[newer].age_seconds <= ended_ago + _HANDOVER_SECONDS
            ):
                yield older


def _parts(streams: Sequence[pb.StreamStatus], places: Iterable[int]) -> list[_Part]:
    """Return the streams of one shape by the names of their clients. Where a rank occurs twice,
    there are two runs of that name.
    """
    named: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place in places:
        stream = streams[place]
        named[_RANK.sub("", stream.client_name)][stream.rank].append(place)
    parts = []
    for name, by_rank in named.items():
        for found in by_rank.values():
            found.sort(key=lambda place: -streams[place].next_sample)
        for layer in range(max(map(len, by_rank.values()))):
            members = {rank: each[layer] for rank, each in by_rank.items() if len(each) > layer}
            sample = max(streams[place].next_sample for place in members.values())
            is_open = len(members) == 1 or all(
                _RANK.search(streams[place].client_name) for place in members.values()
            )
            parts.append(_Part([words.printable(name)], is_open, members, sample))
    return parts


def _joined(parts: Iterable[_Part]) -> list[_Part]:
    """Join parts whose ranks complete each other: the machines of one run. Of several runs that
    lack these ranks, the one at the nearest sample gets them.
    """
    runs: list[_Part] = []
    for part in sorted(parts, key=lambda part: -len(part.by_rank)):
        fits = [
            run
            for run in runs[:_SPLIT_RUNS_MAX]
            if run.is_open and part.is_open and not run.by_rank.keys() & part.by_rank.keys()
        ]
        if not fits:
            runs.append(part)
            continue
        nearest = min(fits, key=lambda run: abs(run.sample - part.sample))
        nearest.names += part.names
        nearest.by_rank.update(part.by_rank)
    return runs
