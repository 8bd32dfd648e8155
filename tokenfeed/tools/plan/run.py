"""The command `tokenfeed plan`."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from functools import partial

from tokenfeed.client.feed.changes import require_same_corpus, with_declared, with_length
from tokenfeed.client.feed.mixture.recipe import Definition
from tokenfeed.client.feed.resume import resumed_mixture
from tokenfeed.client.feed.stats import source_stats
from tokenfeed.client.source.check import corpora_of, counted_rows, no_rows, target_share
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.schedule import placed
from tokenfeed.stream.stage import Source
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request

from .. import WAIT_SECONDS
from .forecast import forecast
from .input import PlanInput, read_asked, read_end_sample, read_tokens
from .report import Report

_OBJECTS = re.compile(r"\b(s3|gs|az|https)://")


def run_plan(arguments: argparse.Namespace) -> None:
    """Print what a mixture will do."""
    path, target = _words(arguments)
    tokens = read_tokens(arguments.tokens)
    if arguments.global_batch_size is not None:
        require_range("global_batch_size", arguments.global_batch_size, 1, SAMPLE_END)
    asked = read_asked(arguments, path)
    saved = asked.saved
    if saved is None:  # else it depends on the stages of the state too
        read_end_sample(arguments.tokens, tokens, asked.stream, asked.first_sample)
    stream, counts = _known(target, asked)
    described = counts.described(stream.context_length)
    planned = forecast(
        stream,
        counts(stream.context_length),
        first_sample=asked.first_sample,
        end_sample=read_end_sample(arguments.tokens, tokens, stream, asked.first_sample),
        max_epochs=asked.definition.max_epochs if asked.definition else {},
        proportions=asked.proportions(stream),
        rows_at=counts,
    )
    report = Report(
        planned=planned,
        max_epochs=asked.definition.max_epochs if asked.definition else {},
        tokens=tokens,
        global_batch_size=arguments.global_batch_size,
        seen=None if saved is None else source_stats(stream, saved.history, planned.rows),
        first_batch=0 if saved is None else saved.history.first_batch,
        target_shares={
            number: target_share(stream.sources[number], dataset, stream.context_length)
            for number, dataset in described.items()
        },
        token_bytes={number: dataset.token_bytes for number, dataset in described.items()},
        prices=arguments.object_prices if _OBJECTS.search(target) else None,
    )
    print(json.dumps(report.plain()) if arguments.json else report.text())


def _words(arguments: argparse.Namespace) -> tuple[str | None, str]:
    """Return the file of the mixture, if there is one, and the target behind it."""
    words: list[str] = arguments.words
    if len(words) > 2:
        arguments.parser.error(f"unrecognized arguments: {' '.join(words[2:])}")
    if len(words) == 2:
        return words[0], words[1]
    if not words or arguments.state is None:
        arguments.parser.error("pass the file of a mixture, or --state, and the target behind it")
    return None, words[0]


def _known(target: str, asked: PlanInput) -> tuple[Stream, Counts]:
    """Return the stream to be planned, and the counts of the sources that are still read.

    Raises: TokenfeedError; StreamMismatch if a mixture does not go on from the state, or datasets
    are not those of the state.
    """
    stream, saved, definition = asked.stream, asked.saved, asked.definition
    if definition is not None:
        counts = Counts(target, stream)
        if saved is not None:
            corpora = corpora_of(stream, list(counts.described(stream.context_length).values()))
            stream = resumed_mixture(stream.known(corpora), saved, asked.allow, counts.of)
        stream = _grown(stream, asked, definition, counts)
        if saved is None:
            return stream, counts
    rest = stream.rest(asked.first_sample)
    counts = Counts(target, rest)
    described = counts.described(rest.context_length)
    corpora = corpora_of(rest, list(described.values()))
    for source in rest.sources:
        if source.corpus is not None:
            require_same_corpus(source, corpora[source.number], rest.context_length)
    # A feed over the only dataset of a server does not name it.
    sources = (
        replace(each, dataset=each.dataset or described[each.number].name)
        if each.number in described
        else each
        for each in stream.sources
    )
    return replace(stream, sources=tuple(sources)), counts


def _grown(stream: Stream, asked: PlanInput, definition: Definition, counts: Counts) -> Stream:
    """Return a stream with the context lengths of the definition, where they begin.  Raises:
    TokenfeedError.
    """
    ahead = 0 if asked.saved is None else asked.saved.history.end_sample
    place = partial(placed, stream.sources, counts.of)

    def changed(stream: Stream, length: int, at_sample: int) -> Stream:
        found, _ = with_length(stream, length, at_sample, ahead, place, definition, or_later=True)
        counts(length)
        return found

    return with_declared(stream, definition.lengths, ahead, changed)


class Counts:
    """The rows of the sources of a stream at context lengths, which are counted once."""

    def __init__(self, target: str, stream: Stream) -> None:
        """Remember both; does no I/O."""
        self._target, self._stream = target, stream
        self._described: dict[int, dict[int, pb.Dataset]] = {}

    def described(self, context_length: int) -> dict[int, pb.Dataset]:
        """Return the descriptions of the sources, by their numbers.  Raises: TokenfeedError."""
        if context_length not in self._described:
            stage = replace(self._stream.stages[-1], context_length=context_length)
            stream = self._stream.with_stages([stage])
            self._described[context_length] = _described(self._target, stream)
        return self._described[context_length]

    def __call__(self, context_length: int) -> dict[int, int]:
        """Return the rows of each source, by its number.  Raises: TokenfeedError."""
        described = self.described(context_length)
        return {
            source.number: counted_rows(described[source.number], source.order.NAME)
            for source in self._stream.sources
        }

    def of(self, source: Source, context_length: int) -> int:
        """Return the rows of a source, by the name of its dataset, at least 1.

        Raises: InvalidRequest if it has none, or is not one of the stream; TokenfeedError.
        """
        for each in self._stream.sources:
            if each.dataset == source.dataset:
                dataset = self.described(context_length)[each.number]
                if rows := counted_rows(dataset, source.order.NAME):
                    return rows
                raise no_rows(dataset, source.order, context_length)
        problem = f"cannot change: {source.dataset!r} is not in the mixture, which has read it"
        raise InvalidRequest("context_length", f"{problem}; name it, with weight 0")


def _described(target: str, stream: Stream) -> dict[int, pb.Dataset]:
    """Return the descriptions of the sources, by their numbers.  Raises: TokenfeedError."""
    dataset = open_to_look(target, Request(stream, Position(0, 1)), WAIT_SECONDS)
    try:
        return dict(zip(stream.numbers, dataset.await_described(), strict=True))
    finally:
        dataset.close()
