"""The states that are recorded: a feed of every kind, and the rows that come behind its state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from client import Mixture, NumpyBatches
from tests.recordings.corpora import LIST, T

WEIGHTS = {"web": 3, "code": 2, "chat": 1}
SOURCES = {"code": {"order": "packed"}, "chat": {"order": "padded", "seed": 6}}
LATER = {"code": 1, "chat": 4}
LONG = 1 << 15
WEB, CODE, CHAT = ({"dataset": name, "seed": 7} for name in ("web", "code", "chat"))
GROUPS = {"dataset": "long", "order": "blocks", "seed": 11, "group_tokens": 1 << 23}
_STEPS = 9
"""Batches of each rank, behind a state."""


class Case(NamedTuple):
    """A feed of which a state is recorded.

    arguments: of the feed, as `opened` takes them.  run: reads before the state is taken.  resumes:
    arguments of the feeds that go on, where they differ.  allow: what may differ.
    """

    arguments: Mapping[str, Any]
    run: Callable[[NumpyBatches], None]
    resumes: Mapping[str, Any] = {}
    allow: tuple[str, ...] = ()


def _reads(feed: NumpyBatches, count: int = 7) -> None:
    for _ in range(count):
        next(feed)


def _skips(feed: NumpyBatches) -> None:
    _reads(feed)
    feed.skip(1001)
    _reads(feed, 3)


def _changes_mixture(feed: NumpyBatches) -> None:
    _reads(feed)
    feed.change_mixture(LATER, at_sample=100)
    _reads(feed, 30)


def _folds(feed: NumpyBatches) -> None:
    """A state keeps the last thousand stages of a stream. Here it keeps two."""
    _changes_mixture(feed)
    for weights in (WEIGHTS, LATER, {"chat": 1}):
        feed.change_mixture(weights, at_sample=feed.position.samples)
        _reads(feed, 12)


def _grows(feed: NumpyBatches) -> None:
    feed.change_context_length(2 * LONG, at_sample=5)
    _reads(feed, 20)


def _reads_an_epoch(feed: NumpyBatches) -> None:
    for _ in zip(range(6), feed.epoch(1, tail="pad"), strict=False):
        pass


def _redacts(feed: NumpyBatches) -> None:
    _reads(feed)
    feed.redact(LIST, at_sample=33)
    _reads(feed, 3)


_MIXTURE = {"mixture": {"weights": WEIGHTS, "sources": SOURCES, "order": "shuffled", "seed": 4}}
_STAGES = {
    "seed": 4,
    "stages": [{"weights": WEIGHTS}, {"first_sample": 50, "weights": LATER}],
    "sources": SOURCES,
    "redactions": [{"dataset": "web", "list": LIST, "first_sample": 20}],
}
CASES = {
    **{order: Case(WEB | {"order": order}, _reads) for order in ("random", "sequential")},
    "shuffled on two ranks": Case(
        WEB | {"rank": 1, "world_size": 2}, _reads, {"world_size": 3, "batch_size": 5}
    ),
    "shuffled with a skip": Case(WEB, _skips),
    "shuffled within an epoch": Case(WEB, _reads_an_epoch),
    "another corpus": Case(WEB, _reads, CODE, ("fingerprint",)),
    "another context length": Case(
        WEB, _reads, {"context_length": 31}, ("context_length", "mid_epoch")
    ),
    "blocks": Case(GROUPS | {"context_length": LONG}, _reads),
    "blocks with a context that grew": Case(GROUPS | {"context_length": LONG}, _grows),
    "blocks with a context that will grow": Case(
        GROUPS | {"context_length": {"0": LONG, "500": 2 * LONG}}, _reads
    ),
    "a mixture of blocks with a context that grew": Case(
        {name: value for name, value in GROUPS.items() if name != "dataset"}
        | {"mixture": {"weights": {"long": 2}}, "context_length": LONG},
        _grows,
    ),
    "packed": Case(CODE | {"order": "packed"}, _reads),
    **{
        f"padded, {long}": Case(CODE | {"order": "padded", "long": long}, _reads)
        for long in ("cut", "drop", "truncate")
    },
    "a loss mask": Case(CHAT, _reads),
    "a loss mask and borders": Case(CHAT | {"mask_borders": True}, _reads),
    "a redaction": Case(WEB, _redacts),
    "a mixture": Case(_MIXTURE, _reads),
    "a mixture that changed": Case(_MIXTURE, _changes_mixture, {"world_size": 2}),
    "a mixture of which stages were left out": Case(_MIXTURE, _folds),
    "a mixture with stages and a redaction": Case({"mixture": _STAGES}, _reads),
}


class Record(NamedTuple):
    """What is recorded of a case.

    arguments: of the feeds that go on.  allow: of load_state_dict.  state: as state_dict returned
    it.  history: of the feed that has loaded it.  sample: behind the rows.  rows: SHA-256 of x and
    y of the next batches of all ranks, int64.
    """

    arguments: dict[str, Any]
    allow: list[str]
    state: dict[str, Any]
    history: list[Any]
    sample: int
    rows: str


def opened(make: Callable[..., Any], target: str, arguments: Mapping[str, Any]) -> Any:
    """Return a feed.  make: its class.  arguments: its keyword arguments as plain values, also
    batch_size and context_length.
    """
    given = {"batch_size": 4, "context_length": T} | dict(arguments)
    if isinstance(given["context_length"], dict):
        given["context_length"] = {int(at): n for at, n in given["context_length"].items()}
    if "mixture" in given:
        given["mixture"] = Mixture(**given["mixture"])
    return make(target, given.pop("batch_size"), given.pop("context_length"), **given)


def recorded(target: str, case: Case) -> Record:
    """Run a feed, take its state, and let feeds go on from there."""
    folding = mock.patch("tokenfeed.client.feed.state.STAGES_MAX", 2)
    with ExitStack() as stack:
        if case.run is _folds:
            stack.enter_context(folding)
        feed = stack.enter_context(opened(NumpyBatches, target, case.arguments))
        case.run(feed)
        state = json.loads(json.dumps(feed.state_dict()))
    arguments = {name: value for name, value in case.arguments.items() if name != "rank"}
    arguments |= case.resumes
    return replayed(NumpyBatches, target, Record(arguments, [*case.allow], state, [], 0, ""))


def replayed(make: Callable[..., Any], target: str, record: Record) -> Record:
    """Load a recorded state into feeds of all ranks, and return the record of what they read.

    make: the class of the feeds.
    """
    digest = hashlib.sha256()
    with ExitStack() as stack:
        feeds = []
        for rank in range(world_size := record.arguments.get("world_size", 1)):
            ranks = {"rank": rank, "world_size": world_size}
            feeds.append(stack.enter_context(opened(make, target, record.arguments | ranks)))
            feeds[-1].load_state_dict(record.state, allow=record.allow)
        history = json.loads(json.dumps(feeds[0].history()))
        for _ in range(_STEPS):
            for feed in feeds:
                for each in next(feed):
                    digest.update(np.asarray(each).astype("<i8").tobytes())
        sample = feeds[0].position.samples
    return record._replace(history=history, sample=sample, rows=digest.hexdigest())
