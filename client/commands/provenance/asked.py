"""The run that a command is asked about: known by a checkpoint, or assumed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, require_range
from tokenfeed.stream.spec import StreamSpec

from ...feed.history import History
from ...feed.mixture.recipe import long_argument
from ...feed.saved.state import read_history, read_state
from ...provenance.checkpoint import chosen, read_states
from ...provenance.corpora import Corpora
from ...provenance.runs import assumed
from ...runtime.arguments import text
from .words import escaped


@dataclass(frozen=True, slots=True)
class AskedRun:
    """A run.

    corpora: what the target serves.  parts: the stream of the next sample.  sample: the next one.
    history: what was delivered; of an assumed run, all that it would deliver, or nothing if its
    steps are unknown.  is_complete: whether the history has all that was delivered.  is_assumed:
    whether there is no state.  words: where the history is from and what it lacks, or what was
    assumed.
    """

    corpora: Corpora
    parts: StreamParts
    sample: int
    history: History
    is_complete: bool
    is_assumed: bool
    words: str

    @property
    def steps(self) -> int:
        """Number of steps that were delivered."""
        runs = self.history.runs
        return runs[-1].end_batch if runs else 0

    @property
    def plain(self) -> dict[str, Any]:
        """What is known of the run, as an answer has it."""
        return {
            "known": self.words,
            "first_step": self.history.first_batch,
            "is_complete": self.is_complete,
        }


def read_run(arguments: argparse.Namespace) -> AskedRun:
    """Return the run that is asked about.  Raises: TokenfeedError."""
    for name, end in (("batch_size", BATCH_SIZE_MAX + 1), ("world_size", WORLD_SIZE_MAX + 1)):
        value = getattr(arguments, name, None)
        if value is not None:
            require_range(name, value, 1, end)
    corpora = Corpora(arguments.target, text("dataset", arguments.dataset))
    if arguments.state is not None:
        return _saved(arguments, corpora)
    if arguments.feed is not None:
        raise InvalidRequest(
            "feed", "is a state within the checkpoint of --state, which is missing"
        )
    return _assumed(arguments, corpora)


def _saved(arguments: argparse.Namespace, corpora: Corpora) -> AskedRun:
    for name in ("context_length", "seed", "order", "long"):
        if getattr(arguments, name, None) is not None:
            raise InvalidRequest(name, "is part of --state; omit it")
    found = chosen(read_states(arguments.state), arguments.feed)
    sample, parts = read_state(found.state)
    history = read_history(found.state)
    of = f", {found.where}" if found.where else ""
    words = f"by the history in {escaped(arguments.state)}{of}"
    lacks = _lacks(found.state, sample, history)
    return AskedRun(corpora, parts, sample, history, not lacks, False, words + lacks)


def _lacks(state: dict[str, Any], sample: int, history: History) -> str:
    """Return what a history does not have, in words; "" if nothing."""
    if first_batch := history.first_batch:
        begin = f"the history begins with step {first_batch:,}"
        return f"; {begin}, and what was read before is unknown"
    if state["version"] == 1 and sample:
        return "; a state of version 1 has no history, and what was read before it is unknown"
    return ""


def _assumed(arguments: argparse.Namespace, corpora: Corpora) -> AskedRun:
    if arguments.context_length is None:
        raise InvalidRequest("context_length", "is missing; pass it, or --state")
    require_range("context_length", arguments.context_length, 1, SAMPLE_END)
    order = arguments.order or orders.DEFAULT_OF_FEEDS
    spec = StreamSpec.of_dataset(
        text("dataset", arguments.dataset),
        orders.latest(order),
        arguments.seed or 0,
        arguments.context_length,
        long_documents=long_argument(order, arguments.long),
    )
    parts = corpora.parts(spec)
    name = corpora.described(spec)[0].name
    stream = f"{escaped(name)}, {spec.order.NAME}, seed {spec.seed}, T={spec.context_length:,}"
    history, words = History(), f"assumed: the stream of {stream}"
    if arguments.batch_size is not None or arguments.world_size is not None:
        run = assumed(parts, arguments.batch_size or 1, arguments.world_size or 1)
        history, words = run.history, f"{words}; {run.words}"
    return AskedRun(corpora, parts, 0, history, True, True, words)
