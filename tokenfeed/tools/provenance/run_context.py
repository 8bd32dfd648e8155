"""The run that a command is asked about: known by a checkpoint, or assumed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from tokenfeed.client.feed.history import History
from tokenfeed.client.feed.mixture.recipe import dataset_stream
from tokenfeed.client.feed.state import State
from tokenfeed.client.runtime.arguments import text
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, require_range
from tokenfeed.stream.stream import Stream

from .checkpoint import chosen, read_states
from .runs import assumed
from .target import Target
from .words import escaped

ROWS_END = 1 << 20
"""Of --rows-max."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run.

    target: what is asked.  stream: known.  sample: the next one.  history: what was
    delivered; of an assumed run, all that it would deliver, or nothing if its steps are unknown.
    is_complete: whether the history has all that was delivered.  is_assumed: whether there is no
    state.  words: where the history is from and what it lacks, or what was assumed.
    """

    target: Target
    stream: Stream
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


def read_run(arguments: argparse.Namespace, target: Target) -> RunContext:
    """Return the run that is asked about.  target: what is asked.  Raises: TokenfeedError."""
    for name, end in (("batch_size", BATCH_SIZE_MAX + 1), ("world_size", WORLD_SIZE_MAX + 1)):
        value = getattr(arguments, name, None)
        if value is not None:
            require_range(name, value, 1, end)
    if arguments.state is not None:
        return _saved(arguments, target)
    if arguments.feed is not None:
        raise InvalidRequest(
            "feed", "is a state within the checkpoint of --state, which is missing"
        )
    return _assumed(arguments, target)


def _saved(arguments: argparse.Namespace, target: Target) -> RunContext:
    for name in ("context_length", "seed", "order", "long", "group_tokens"):
        if getattr(arguments, name, None) is not None:
            raise InvalidRequest(name, "is part of --state; omit it")
    where, state = chosen(read_states(arguments.state), arguments.feed)
    of = f", {where}" if where else ""
    words = f"by the history in {escaped(arguments.state)}{of}"
    lacks = _lacks(state)
    # Of several datasets the option is one of those of the run.
    is_one = len({source.dataset for source in state.stream.sources}) == 1
    target.dataset = text("dataset", arguments.dataset) if is_one else ""
    sample, stream, history, _ = state
    return RunContext(target, stream, sample, history, not lacks, False, words + lacks)


def _lacks(state: State) -> str:
    """Return what a history does not have, in words; "" if nothing."""
    first_stage = state.stream.stages[0]
    if first_batch := state.history.first_batch:
        begin = f"the history begins with step {first_batch:,}"
    elif first_stage.index:
        begin = f"the state begins with sample {first_stage.first_sample:,}"
    else:
        return ""
    return f"; {begin}, and what was read before is unknown"


def _assumed(arguments: argparse.Namespace, target: Target) -> RunContext:
    if arguments.context_length is None:
        raise InvalidRequest("context_length", "is missing; pass it, or --state")
    require_range("context_length", arguments.context_length, 1, SAMPLE_END)
    order, dataset = arguments.order or orders.DEFAULT_OF_FEEDS, text("dataset", arguments.dataset)
    seed, length = arguments.seed or 0, arguments.context_length
    stream = dataset_stream(dataset, order, seed, length, arguments.long, arguments.group_tokens)
    target.dataset = dataset
    stream, source = target.known(stream), stream.source
    name = f"{escaped(target.described(stream)[0].name)}, {source.order.NAME}"
    of = f"the stream of {name}, seed {source.seed}, T={stream.context_length:,}"
    history, words = History(), f"assumed: {of}"
    if arguments.batch_size is not None or arguments.world_size is not None:
        history, how = assumed(arguments.batch_size or 1, arguments.world_size or 1)
        words += f"; {how}"
    return RunContext(target, stream, 0, history, True, True, words)
