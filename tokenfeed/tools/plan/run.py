"""The command `tokenfeed plan`."""

from __future__ import annotations

import argparse
import json
import re
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from tokenfeed.client.feed.changes import (
    ahead_of_lengths,
    require_same_corpus,
    with_declared,
    with_length,
)
from tokenfeed.client.feed.feed_stream import rows_of_unread
from tokenfeed.client.feed.history import History
from tokenfeed.client.feed.mixture.recipe import Definition
from tokenfeed.client.feed.resume import resumed_mixture
from tokenfeed.client.feed.stats import source_stats
from tokenfeed.client.source.check import (
    Descriptions,
    corpora_of,
    no_rows,
    place_of_dataset,
    target_share,
)
from tokenfeed.client.source.datasets import Datasets
from tokenfeed.client.source.open_source import open_to_look
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
    if asked.saved is None:  # else it depends on the stages of the state too
        read_end_sample(arguments.tokens, tokens, asked.stream, asked.first_sample)
    with ExitStack() as opened:
        report = _report(arguments, tokens, asked, target, opened)
    print(json.dumps(report.plain()) if arguments.json else report.text())


def _report(
    arguments: argparse.Namespace, tokens: int, asked: PlanInput, target: str, opened: ExitStack
) -> Report:
    """Return what is printed.  opened: closes what is.  Raises: TokenfeedError."""
    saved, (stream, counts) = asked.saved, _known(target, asked, opened)
    numbers = asked.stream.numbers if saved is None else stream.rest(asked.first_sample).numbers
    rows, described = counts(stream.context_length), counts.by_number
    max_epochs = asked.definition.max_epochs if asked.definition else {}
    planned = forecast(
        stream,
        {number: rows[number] for number in numbers},
        first_sample=asked.first_sample,
        end_sample=read_end_sample(arguments.tokens, tokens, stream, asked.first_sample),
        max_epochs=max_epochs,
        proportions=asked.proportions(stream),
        rows_at=counts,
    )
    return Report(
        planned=planned,
        max_epochs=max_epochs,
        tokens=tokens,
        global_batch_size=arguments.global_batch_size,
        seen=None if saved is None else source_stats(stream, saved.history, planned.rows),
        first_batch=0 if saved is None else saved.history.first_batch,
        target_shares={
            number: target_share(stream.sources[number], described[number], stream.context_length)
            for number in numbers
        },
        token_bytes={number: described[number].token_bytes for number in numbers},
        prices=arguments.object_prices if _OBJECTS.search(target) else None,
    )


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


def _known(target: str, asked: PlanInput, opened: ExitStack) -> tuple[Stream, Counts]:
    """Return the stream to be planned, and the counts of its sources.  opened: closes what is.

    Raises: TokenfeedError; StreamMismatch if a mixture does not go on from the state, or datasets
    are not those of the state.
    """
    stream, saved, definition = asked.stream, asked.saved, asked.definition
    if definition is not None:
        counts = Counts(target, stream, opened)
        if saved is None:
            return _grown(stream, asked, definition, counts), counts
        corpora = corpora_of(stream, counts.described)
        stream = resumed_mixture(stream.known(corpora), saved, asked.allow, counts.of)
        counts = Counts(target, _counted(stream, asked), opened)
        stream = _grown(stream, asked, definition, counts)
    rest = _counted(stream, asked)
    counts = Counts(target, rest, opened)
    corpora = corpora_of(rest, counts.described)
    for source in rest.sources:
        if source.corpus is not None:
            require_same_corpus(source, corpora[source.number], rest.context_length)
    # A feed over the only dataset of a server does not name it.
    described = counts.by_number
    sources = (
        replace(each, dataset=each.dataset or described[each.number].name)
        if each.number in described
        else each
        for each in stream.sources
    )
    return replace(stream, sources=tuple(sources)), counts


def _counted(stream: Stream, asked: PlanInput) -> Stream:
    """Return the rest of a stream that goes on from a state, with all sources whose rows are
    counted: where the context length changes, those that pause leave out rows too.
    """
    rest = stream.rest(asked.first_sample)
    numbers = set(rest.numbers)
    if asked.definition is not None and asked.definition.lengths:
        names = {each.dataset for each in asked.definition.stream.sources}
        numbers |= {each.number for each in stream.sources if each.dataset in names}
    if len({stage.context_length for stage in rest.stages}) > 1:
        ahead = stream.stages[stream.place_of(asked.first_sample) :]
        numbers |= {share.source for stage in ahead for share in stage.shares if share.base}
    return replace(rest, sources=tuple(each for each in stream.sources if each.number in numbers))


def _grown(stream: Stream, asked: PlanInput, definition: Definition, counts: Counts) -> Stream:
    """Return a stream with the context lengths of the definition, where they begin.  Raises:
    TokenfeedError.
    """
    history = History() if asked.saved is None else asked.saved.history
    ahead = ahead_of_lengths(stream, definition, asked.first_sample, history)
    place = partial(placed, stream.sources, counts.of)

    def changed(stream: Stream, length: int, at_sample: int) -> Stream:
        found, _ = with_length(stream, length, at_sample, ahead, place, definition, or_later=True)
        for source, context_length in found.readings(asked.first_sample):
            counts.require(source, context_length)
        return found

    return with_declared(stream, definition.lengths, ahead, changed)


class Counts:
    """The rows of the sources of a stream, by a target."""

    def __init__(self, target: str, stream: Stream, opened: ExitStack) -> None:
        """Ask for nothing yet.  stream: is described at its last length.  opened: closes it."""
        self._target, self._stream = target, stream.with_stages(stream.stages[-1:])
        self._datasets = self._open(self._stream)
        opened.callback(self._datasets.close)

    def _open(self, stream: Stream) -> Datasets:
        return open_to_look(self._target, Request(stream, Position(0, 1)), WAIT_SECONDS)

    @property
    def described(self) -> Descriptions:
        """The description of each source.  Raises: TokenfeedError."""
        return self._datasets.await_described()

    @property
    def by_number(self) -> dict[int, pb.Dataset]:
        """The same, by the numbers of the sources."""
        return dict(zip(self._stream.numbers, self.described, strict=True))

    def __call__(self, context_length: int) -> dict[int, int]:
        """Return the rows of each source, by its number.  Raises: TokenfeedError."""
        return {each.number: self.of(each, context_length) for each in self._stream.sources}

    def of(self, source: Source, context_length: int) -> int:
        """Return the rows of a source, by the name of its dataset.  Raises: as `rows_of_unread`."""
        if all(each.dataset != source.dataset for each in self._stream.sources):
            return rows_of_unread(source, context_length, self._open)
        place = place_of_dataset(self._stream, source)
        return self._datasets.rows_of(source.order.NAME, context_length, place=place)

    def require(self, source: Source, context_length: int) -> None:
        """Raise InvalidRequest if a source has no row; as `of` does."""
        if not self.of(source, context_length):
            described = self.described[place_of_dataset(self._stream, source)]
            raise no_rows(described, source.order, context_length)
