"""The command `tokenfeed plan`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping

from tokenfeed.errors import InvalidRequest, RequestError, WriteFailed
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.stages import scheduled
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import StreamRequest

from ...feed.mixture.counts import source_stats
from ...feed.mixture.exhaustion import definition_of
from ...feed.mixture.forecast import Forecast, forecast
from ...feed.mixture.past import require_same_sources
from ...feed.mixture.recipe import Mixture
from ...feed.mixture.toml_text import mixture_toml
from ...feed.stats import SourceStats
from ...local.choice import open_to_look
from ...stream.usable import corpora_of, counted_rows, target_share
from .. import WAIT_SECONDS
from .input import Asked, read_asked, read_end_sample, read_tokens
from .picture import draw, require_png
from .report import Report


def run_plan(arguments: argparse.Namespace) -> None:
    """Print what a mixture will do; write the mixture that goes on, and draw a picture."""
    path, target = _words(arguments)
    tokens = read_tokens(arguments.tokens)
    if arguments.global_batch_size is not None:
        require_range("global_batch_size", arguments.global_batch_size, 1, SAMPLE_END)
    if arguments.write is not None and os.path.lexists(arguments.write):
        raise InvalidRequest("--write", f"{arguments.write} exists already; pass another name")
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
    text = _going_on(asked, planned) if arguments.write is not None else None
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
        written=arguments.write if text is not None else None,
        asked_to_write=arguments.write is not None,
        target_shares=shares,
    )
    if arguments.plot is not None:
        draw(planned, arguments.plot)
    if text is not None:
        _write(arguments.write, text)
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


def _going_on(asked: Asked, planned: Forecast) -> str | None:
    """Return the text of the mixture that goes on; None if no source is exhausted.  Raises:
    InvalidRequest if there is no such mixture.
    """
    if not planned.exhausted:
        return None
    first = planned.exhausted[0]
    name = asked.spec.sources[first.source].dataset
    if planned.going_on_end == first.sample:
        problem = f"{name} is exhausted at sample {first.sample}, and no other source is left"
        raise InvalidRequest("--write", problem)
    if first.sample < asked.first_sample:
        at = f"sample {first.sample}, before sample {asked.first_sample} of the state"
        problem = f"{name} was exhausted at {at}"
        raise InvalidRequest("--write", problem)
    definition = definition_of(planned.asked, planned.going_on)
    text = ""
    if definition is not None:
        text = mixture_toml(
            asked.schedule.seed,
            asked.schedule.order,
            asked.spec.sources,
            definition,
            context_length=asked.spec.context_length,
            max_epochs=asked.schedule.max_epochs,
            block=asked.schedule.block,
            redactions=asked.spec.redactions,
        )
    if definition is None or not _is_the_same(text, asked, planned):
        problem = "a change of the running feed, which is in the state, has an exhausted source"
        raise InvalidRequest("--write", f"{problem}; change it there, with change_mixture")
    return text


def _is_the_same(text: str, asked: Asked, planned: Forecast) -> bool:
    """Return whether a text is read as the mixture that goes on."""
    length = asked.spec.context_length
    try:
        schedule = Mixture.parse(text.encode(), "").schedule(length, orders.DEFAULT_OF_FEEDS, 0)
        if asked.saved is not None:
            schedule, _ = schedule.continued(
                asked.saved.parts, asked.saved.sample, allow=asked.allow
            )
        found = [(stage.first_sample, stage.weights) for stage in schedule.effective()]
    except RequestError:
        return False
    wanted = scheduled(planned.going_on, len(schedule.sources))
    names = [[source.dataset for source in each.sources] for each in (schedule, asked.schedule)]
    return names[0] == names[1] and found == [
        (stage.first_sample, stage.weights) for stage in wanted
    ]


def _write(path: str, text: str) -> None:
    """Write a new file.  Raises: WriteFailed."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise WriteFailed(path, f"cannot be written: {error.strerror}") from None
