"""The command `tokenfeed plan`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import StreamRequest

from ...feed.mixture.counts import source_stats
from ...feed.mixture.forecast import Forecast, forecast
from ...feed.mixture.past import require_same_sources
from ...feed.stats import SourceStats
from ...local.choice import open_to_look
from ...stream.usable import corpora_of, counted_rows, target_share
from .. import WAIT_SECONDS
from .input import Asked, read_asked, read_end_sample, read_tokens
from .picture import draw, require_png
from .report import Report


def run_plan(arguments: argparse.Namespace) -> None:
    """Print what a mixture will do, and draw a picture."""
    path, target = _words(arguments)
    tokens = read_tokens(arguments.tokens)
    if arguments.global_batch_size is not None:
        require_range("global_batch_size", arguments.global_batch_size, 1, SAMPLE_END)
    if arguments.plot is not None:
        require_png(arguments.plot)
    asked = read_asked(arguments, path)
    end_sample = read_end_sample(arguments.tokens, tokens, asked)
    described = _described(target, asked)
    rows = [
        counted_rows(dataset, source.order.NAME)
        for source, dataset in zip(asked.spec.sources, described, strict=True)
    ]
    planned = forecast(
        asked.spec,
        asked.schedule.asked(),
        rows,
        first_sample=asked.first_sample,
        end_sample=end_sample,
        max_epochs=asked.schedule.max_epochs,
        proportions=asked.proportions(),
    )
    shares = [
        target_share(source, dataset, asked.spec.context_length)
        for source, dataset in zip(asked.spec.sources, described, strict=True)
    ]
    report = Report(
        planned=planned,
        max_epochs=asked.schedule.max_epochs,
        tokens=tokens,
        global_batch_size=arguments.global_batch_size,
        seen=_seen(asked, planned),
        first_batch=asked.saved.history.first_batch if asked.saved else 0,
        target_shares=shares,
    )
    if arguments.plot is not None:
        draw(planned, arguments.plot)
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


def _described(target: str, asked: Asked) -> tuple[pb.Dataset, ...]:
    """Return the descriptions of the sources.  Raises: TokenfeedError; StreamMismatch if they are
    not those of the state.
    """
    request = StreamRequest(asked.spec, Position(0, 1))
    dataset = open_to_look(target, request, WAIT_SECONDS)
    try:
        described = dataset.await_described()
    finally:
        dataset.close()
    if asked.saved is not None:
        own = asked.spec.parts(corpora_of(asked.spec, described))
        require_same_sources(asked.saved.parts, own, asked.saved.sample)
    return described


def _seen(asked: Asked, planned: Forecast) -> Mapping[str, SourceStats] | None:
    """Return what the history of a state has of each source."""
    if asked.saved is None:
        return None
    rows = {
        source.dataset: count
        for source, count in zip(asked.spec.sources, planned.rows, strict=True)
        if count is not None
    }
    return source_stats(asked.saved.history, rows)
