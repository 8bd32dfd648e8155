"""The command `tokenfeed plan`."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace

from tokenfeed.client.feed.changes import require_same_corpus
from tokenfeed.client.feed.resume import resumed_mixture
from tokenfeed.client.feed.stats import source_stats
from tokenfeed.client.source.check import corpora_of, counted_rows, target_share
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
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
    stream, described = _known(target, asked)
    planned = forecast(
        stream,
        {
            number: counted_rows(dataset, stream.sources[number].order.NAME)
            for number, dataset in described.items()
        },
        first_sample=asked.first_sample,
        end_sample=read_end_sample(arguments.tokens, tokens, stream, asked.first_sample),
        max_epochs=asked.definition.max_epochs if asked.definition else {},
        proportions=asked.proportions(stream),
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


def _known(target: str, asked: PlanInput) -> tuple[Stream, dict[int, pb.Dataset]]:
    """Return the stream to be planned, and the descriptions of the sources that are still read, by
    their numbers.

    Raises: TokenfeedError; StreamMismatch if a mixture does not go on from the state, or datasets
    are not those of the state.
    """
    if asked.saved is None:
        return asked.stream, _described(target, asked.stream)
    stream = asked.saved.stream
    if asked.definition is not None:
        own = asked.definition.stream
        corpora = corpora_of(own, list(_described(target, own).values()))
        stream = resumed_mixture(own.known(corpora), asked.saved, asked.allow)
    rest = stream.rest(asked.first_sample)
    described = _described(target, rest)
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
    return replace(stream, sources=tuple(sources)), described


def _described(target: str, stream: Stream) -> dict[int, pb.Dataset]:
    """Return the descriptions of the sources, by their numbers.  Raises: TokenfeedError."""
    dataset = open_to_look(target, Request(stream, Position(0, 1)), WAIT_SECONDS)
    try:
        return dict(zip(stream.numbers, dataset.await_described(), strict=True))
    finally:
        dataset.close()
