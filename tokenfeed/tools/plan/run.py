"""The command `tokenfeed plan`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tokenfeed.client.feed.feed_stream import rows_of_unread
from tokenfeed.client.feed.history import History
from tokenfeed.client.feed.length_changes import (
    ahead_of_lengths,
    with_declared,
    with_length,
)
from tokenfeed.client.feed.lengths import read_lengths
from tokenfeed.client.feed.mixture.recipe import Definition, Mixture, group_tokens_argument
from tokenfeed.client.feed.resume import require_counted, resumed_mixture
from tokenfeed.client.feed.state import State, read_state
from tokenfeed.client.feed.state_differences import require_saved_corpus
from tokenfeed.client.feed.stats import source_stats
from tokenfeed.client.runtime.arguments import amount, shown
from tokenfeed.client.source.datasets import Datasets
from tokenfeed.client.source.file_target import is_local_target, parse_local_target
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.client.source.server_check import (
    Descriptions,
    corpora_of,
    no_rows,
    place_of_dataset,
    target_share,
)
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.schedule import placed
from tokenfeed.stream.stage import LENGTH, SEED_END, Source
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Request

from .. import WAIT_SECONDS
from .forecast import forecast
from .report import Report


def run_plan(arguments: argparse.Namespace) -> None:
    """Print what a mixture will do."""
    path, target = _words(arguments)
    tokens = amount("tokens", arguments.tokens, "tokens")
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
    """Return what is printed.  opened: closes opened datasets.  Raises: TokenfeedError."""
    saved, (stream, counts) = asked.saved, _known(target, asked, opened)
    files = parse_local_target(target) if is_local_target(target) else None
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
        object_bytes={
            number: _object_bytes(described[number])
            for number in numbers
            if files is not None and files.is_remote(stream.sources[number].dataset)
        },
        prices=arguments.object_prices,
    )


def _object_bytes(dataset: pb.Dataset) -> Sequence[int]:
    """Return the bytes per token of each object that a row is read from: tokens, and a mask."""
    has_mask = any(each.kind == LOSS_MASK for each in dataset.planes)
    return (dataset.token_bytes, 1) if has_mask else (dataset.token_bytes,)


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
    """Return the stream to be planned, and the counts of its sources.

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
        require_counted(definition, saved)
        counts = Counts(target, _counted(stream, asked), opened)
        stream = _grown(stream, asked, definition, counts)
    rest = _counted(stream, asked)
    counts = Counts(target, rest, opened)
    corpora = corpora_of(rest, counts.described)
    for source in rest.sources:
        if source.corpus is not None:
            require_saved_corpus(source, corpora[source.number], rest.context_length)
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


@dataclass(frozen=True, slots=True)
class PlanInput:
    """What is to be planned: a mixture, what goes on from a state, or a mixture that does.

    mixture, definition: of a file; None without one.  saved: the state; None without one.  allow:
    permissions of a mixture that goes on.
    """

    mixture: Mixture | None
    definition: Definition | None
    saved: State | None
    allow: tuple[str, ...]

    @property
    def stream(self) -> Stream:
        """The stream of the file, or else that of the state."""
        if self.definition is not None:
            return self.definition.stream
        assert self.saved is not None
        return self.saved.stream

    @property
    def first_sample(self) -> int:
        """From which sample on to plan."""
        return self.saved.sample if self.saved else 0

    def proportions(self, stream: Stream) -> dict[int, dict[int, int]]:
        """Return what the weights of each stage were made from, by its index, as far as the file
        has them.

        stream: that goes on.
        """
        if self.mixture is None or self.definition is None:
            return {}
        own = {source.number: source.dataset for source in self.definition.stream.sources}
        pairs = zip(self.definition.stream.stages, self.mixture.stages, strict=True)
        known = {
            (stage.asked, frozenset((own[n], weight) for n, weight in stage.weights.items())): asked
            for stage, asked in ((stage, given.asked) for stage, given in pairs)
        }
        names = {source.number: source.dataset for source in stream.sources}
        found = dict[int, dict[int, int]]()
        for stage in stream.stages:
            weights = frozenset((names[n], weight) for n, weight in stage.weights.items())
            asked = known.get((stage.asked, weights))
            if stage.origin & LENGTH and stage.index - 1 in found:
                found[stage.index] = found[stage.index - 1]
            elif asked is not None:
                found[stage.index] = {n: asked.get(name, 0) for n, name in names.items()}
        return found


def read_end_sample(written: str, tokens: int, stream: Stream, first_sample: int) -> int:
    """Return the sample up to which to plan: tokens rounded up to whole samples.  Raises:
    InvalidRequest.
    """
    end_sample = stream.sample_at(tokens)
    if end_sample > SAMPLE_END:
        problem = f"{written} are {end_sample} samples; there are 2^63 at most"
        raise InvalidRequest("tokens", problem)
    if end_sample <= first_sample:
        problem = f"{written} are {end_sample} samples of a run that is at {first_sample}"
        raise InvalidRequest("tokens", f"{problem}; pass the tokens of the whole run")
    return end_sample


def read_asked(arguments: argparse.Namespace, path: str | None) -> PlanInput:
    """Return the mixture of a file, a state, or both."""
    saved = None if arguments.state is None else _read_state(arguments.state)
    length, order, seed = arguments.context_length, arguments.order, arguments.seed
    if length is None:
        if saved is None:
            raise InvalidRequest("context_length", "is missing; only a state has one")
        here = saved.stream.place_of(saved.sample)
        length = saved.stream.stages[here].context_length if path else saved.stream.context_length
    require_range("context_length", length, 1, SAMPLE_END)
    if seed is not None:
        require_range("seed", seed, 0, SEED_END)
    if arguments.allow_mixture and (saved is None or path is None):
        raise InvalidRequest("--allow-mixture", "is for --state together with a mixture")
    if path is not None:
        if seed is None:
            seed = saved.stream.seed if saved else 0
        mixture = Mixture.load(path)
        definition = mixture.definition(
            length,
            order or orders.DEFAULT_OF_FEEDS,
            seed,
            group_tokens=group_tokens_argument("group_tokens", arguments.group_tokens),
        )
        changes = arguments.change_context_length
        _, lengths = read_lengths({0: length, **_by_begin(changes)} if changes else length)
        definition = replace(definition, lengths=lengths)
        allow = ("mixture",) if arguments.allow_mixture else ()
        return PlanInput(mixture, definition, saved, allow)
    assert saved is not None
    changes = arguments.change_context_length
    for name, given in (("order", order), ("seed", seed), ("change_context_length", changes)):
        if given is not None:
            raise InvalidRequest(name, "is part of the state; omit it, or pass a mixture too")
    if length != saved.stream.context_length:
        problem = f"{length} is not {saved.stream.context_length}, that of the state"
        raise InvalidRequest("context_length", problem)
    return PlanInput(None, None, saved, ())


_NUMBER = re.compile("[0-9]{1,19}")


def _by_begin(changes: Sequence[str]) -> dict[int | str, int]:
    """Return context lengths by where they begin, for `read_lengths`.

    changes: "2e11 tokens=32768" or "40000=32768" (a sample) each.  Raises: InvalidRequest.
    """
    found: dict[int | str, int] = {}
    for each in changes:
        begin, _, length = each.partition("=")
        if not _NUMBER.fullmatch(length.strip()):
            problem = f'{shown(each)} is not written as "2e11 tokens=32768" or "40000=32768"'
            raise InvalidRequest("change_context_length", problem)
        found[int(begin) if _NUMBER.fullmatch(begin.strip()) else begin] = int(length)
    return found


def _read_state(path: str) -> State:
    """Return a state from a file of JSON.  Raises: InvalidRequest."""
    try:
        values = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidRequest("state", f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("state", f"{path} is not JSON: {error}") from None
    return read_state(values)
