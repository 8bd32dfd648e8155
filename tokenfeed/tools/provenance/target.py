"""What a command asks a target, a server or local files: which datasets it has, whether they are
those of the run, where rows come from, and where tokens went.

Every answer of the service Provenance comes in pages, which are asked for one after the other, as
they are consumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from tokenfeed.client.source.file_target import is_local_target, parse_local_target
from tokenfeed.client.source.files import Files
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.client.source.server_check import Descriptions, corpora_of, no_rows, order_rows
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.channel import describe
from tokenfeed.client.transport.credentials import with_environment
from tokenfeed.errors import (
    BadFrame,
    NotATokenfeedServer,
    RequestError,
    ServerUnavailable,
    StreamMismatch,
    TokenfeedError,
)
from tokenfeed.sampling import orders
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.stream.schedule import left_out
from tokenfeed.stream.stage import FIRST_PREVIOUS, Share, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.wire.request import Expected, Request, stream_message, to_message

from ..one_server import OneServer
from .runs import Segment, segments

QUESTION_SECONDS = 15.0
"""How long a question is asked again while files cannot be read, or no server answers."""
SPANS_MAX = 2048
"""Ranges of samples in a CoverageRequest: at most 48 KiB, and servers take 64 KiB by default."""
_ANSWERS: dict[str, type[Message]] = {
    "locate": pb.LocateResponse,
    "find": pb.FindResponse,
    "coverage": pb.CoverageResponse,
}
"""By the method of the service that gives them."""
_CALL_SECONDS = 60.0
"""How long one answer may take: that of a cold index on a slow disk takes seconds."""
_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX = 0.1, 2.0

Ranges = npt.NDArray[np.int64]
_Key = tuple[tuple[Source, ...], int]
"""The sources of a stream, without their corpora, and its context length."""


class Target:
    """A server, or files of this machine, which are opened when a stream of them is asked for."""

    def __init__(self, target: str) -> None:
        """Remember the target; does no I/O. Credentials come from the environment.

        Raises: InvalidRequest if the target is malformed.
        """
        self.target = target
        self.dataset = ""
        """The name that the target has for the only dataset of a run; "" is that of the state, or
        where the target has another dataset of this name, or none, the name of one with the same
        fingerprint."""
        self._server: OneServer | None = None
        if is_local_target(target):
            parse_local_target(target)
        else:
            self._server = OneServer(
                target,
                with_environment(),
                thread_name="tokenfeed-provenance",
                explain=lambda error: _explained(error, target),
            )
        self._names: dict[bytes, list[str]] | None = None
        self._described: dict[_Key, Descriptions] = {}
        self._files: dict[_Key, Files] = {}

    def close(self) -> None:
        """Close connections and files."""
        if self._server is not None:
            self._server.close()
        for files in self._files.values():
            files.close()

    # --- its datasets ---

    def described(self, stream: Stream) -> Descriptions:
        """Return the description of each source; rows of orders over documents are waited for.

        Raises: TokenfeedError.
        """
        key = _key(stream)
        if key not in self._described:
            with closing(self._opened_to_look(stream)) as dataset:
                self._described[key] = dataset.await_described()
        return self._described[key]

    def known(self, stream: Stream) -> Stream:
        """Return a stream with the corpora of the target.  Raises: TokenfeedError."""
        return stream.known(corpora_of(stream, self.described(stream)))

    def segments(self, stream: Stream, first_sample: int, end_sample: int) -> list[Segment]:
        """Return the samples [first_sample, end_sample) of a known stream, in parts that the target
        can be asked for.

        Raises: as `checked`; InvalidRequest for samples whose stage is not known any more.
        """
        return [
            each._replace(stream=self.checked(each.stream))
            for each in segments(stream, first_sample, end_sample)
        ]

    def alone(self, source: Source, context_length: int) -> Stream:
        """Return a known source as a stream of its own.  Raises: as `checked`."""
        stage = Stage(0, 0, context_length, (Share(0, 1, 0),), FIRST_PREVIOUS)
        return self.checked(Stream(source.seed, (replace(source, number=0),), (stage,)))

    def checked(self, stream: Stream) -> Stream:
        """Return a known stream of one stage with the names that the target has for its datasets.

        Raises: StreamMismatch, naming what differs, if they are not those that the run read;
        TokenfeedError.
        """
        sources = tuple(replace(each, dataset=self.name_of(each)) for each in stream.sources)
        stream, length = replace(stream, sources=sources), stream.context_length
        described = self.described(stream)
        now = corpora_of(stream, described)
        for source, dataset in zip(sources, described, strict=True):
            before, after = source.corpus, now[source.number]
            assert before is not None
            what, cure = "the fingerprint", "ask a server with that corpus, or pass --dataset"
            old, new = before.fingerprint, after.fingerprint
            if old == new:
                what = "pieces of documents with the hash"
                cure = "serve it with the same document borders"
                old, new = before.pieces_at(length), after.pieces_at(length)
            if old != new:
                problem = f"{dataset.name!r} at {self.target} has {what} {new.hex()}, but the run"
                raise StreamMismatch("dataset", f"{problem} read {old.hex()}; {cure}")
        return stream

    def name_of(self, source: Source) -> str:
        """Return the name that the target has for the dataset of a known source.

        Raises: TokenfeedError.
        """
        if self.dataset:
            return self.dataset
        if self._names is None:
            self._names = {}
            for dataset in self._served():
                self._names.setdefault(dataset.fingerprint, []).append(dataset.name)
        assert source.corpus is not None
        names = self._names.get(source.corpus.fingerprint, [])
        return source.dataset if source.dataset in names or not names else names[0]

    def rows_per_epoch(self, stream: Stream) -> int | None:
        """Return the rows of an epoch of a stream over one dataset, at least 1; None for an order
        without epochs.

        Raises: TokenfeedError; InvalidRequest if there is no row.
        """
        order = stream.source.order
        if not order.HAS_EPOCHS:
            return None
        (dataset,) = self.described(stream)
        rows = order_rows(dataset, order.NAME).rows
        if not rows:
            raise no_rows(dataset, order, stream.context_length)
        return rows

    def left_out_tokens(self, stream: Stream, place: int) -> dict[str, int | None]:
        """Return the tokens of x that sources of a known stream leave out where a stage begins, as
        of `left_out`, by the names of their datasets; None of a source that pauses there, and that
        the target does not have.

        place: of the stage, in stream.stages.  Raises: as `checked`.
        """

        last, stage = stream.stages[max(0, place - 1)], stream.stages[place]
        left: dict[str, int | None] = {}
        for each in stream.sources:
            # Two sources may be of one dataset.
            tokens, before = self._left_out(last, stage, each), left.get(each.dataset, 0)
            left[each.dataset] = None if tokens is None or before is None else before + tokens
        return {name: tokens for name, tokens in left.items() if tokens != 0}

    def _left_out(self, last: Stage, stage: Stage, source: Source) -> int | None:
        def rows(source: Source, length: int) -> int:
            (dataset,) = self.described(self.alone(source, length))
            return order_rows(dataset, source.order.NAME).rows

        try:
            found = left_out(last, stage, [source], rows)
        except RequestError:
            if source.number in stage.weights:
                raise
            return None
        return found.get(source.number, 0) * last.context_length

    def _opened_to_look(self, stream: Stream) -> Servers | Files:
        request = Request(replace(stream, redactions=()), Position(0, 1))
        return open_to_look(self.target, request, QUESTION_SECONDS)

    def _served(self) -> Descriptions:
        """Return the descriptions of all datasets; none if the target is files of several ones."""
        if self._server is not None:
            answer = describe(
                self.target, timeout_seconds=QUESTION_SECONDS, credentials=with_environment()
            )
            return tuple(answer.datasets)
        if len(parse_local_target(self.target).words) > 1:
            return ()
        try:
            return self.described(Stream.of_dataset("", orders.latest("sequential"), 0, 1))
        except RequestError:
            return ()  # a folder with several ones

    # --- where rows come from ---

    def locate_pages(self, segment: Segment) -> Iterator[pb.LocateResponse]:
        """Yield where the samples of a segment come from, in order, in pages.

        Raises: TokenfeedError; BadFrame if the answer has other rows.
        """
        expected = Expected(segment.stream.identity(segment.first_sample))
        first_sample = segment.first_sample
        while first_sample < segment.end_sample:
            rest = request_of(segment._replace(first_sample=first_sample))
            request = pb.LocateRequest(rows=to_message(rest, expected))
            page: pb.LocateResponse = self._ask(segment.stream, "locate", request)
            found = [row.sample for row in page.rows]
            if not found or found != list(range(first_sample, first_sample + len(found))):
                raise BadFrame("Locate", f"the answer is not of the rows from {first_sample} on")
            yield page
            first_sample += len(found)

    def find_pages(
        self, segment: Segment, source: int, what: pb.FindRequest
    ) -> Iterator[pb.FindResponse]:
        """Yield which rows of a segment hold some tokens, in pages.

        source: is the number of the source that is looked through.  what: names the tokens; its
        other fields are not used.
        Raises: TokenfeedError.
        """
        request = pb.FindRequest()
        request.CopyFrom(what)
        request.stream.CopyFrom(stream_message(segment.stream))
        request.first_sample, request.end_sample = segment.first_sample, segment.end_sample
        request.expected_identity = segment.stream.identity(segment.first_sample)
        request.source = source
        yield from self._pages(segment.stream, "find", request, "candidate")

    def coverage_pages(self, stream: Stream, samples: Ranges) -> Iterator[pb.CoverageResponse]:
        """Yield which tokens samples hold, in pages.

        stream: is over one dataset, without redactions.  samples: int64[n, 2], are of one epoch;
        ascending, they neither overlap nor touch. More than SPANS_MAX of them are asked for one
        part after the other.
        Raises: TokenfeedError; BadFrame if the answer is made of another number of rows.
        """
        for begin in range(0, len(samples), SPANS_MAX):
            part = samples[begin : begin + SPANS_MAX]
            request = pb.CoverageRequest(
                stream=stream_message(stream),
                expected_identity=stream.identity(0),
                samples=[
                    pb.SampleSpan(first_sample=first, end_sample=end)
                    for first, end in part.tolist()
                ],
            )
            missing = int((part[:, 1] - part[:, 0]).sum())
            for page in self._pages(stream, "coverage", request, "place"):
                yield page
                missing -= page.row_count
            if missing:
                problem = f"the answer has {-missing:+,} rows beside those that were asked for"
                raise BadFrame("Coverage", problem)

    def _pages(self, stream: Stream, method: str, request: Any, counter: str) -> Iterator[Any]:
        """Yield the pages of an answer.  counter: names what the fields first_ and next_ count."""
        while True:
            page = self._ask(stream, method, request)
            yield page
            if not page.HasField(f"next_{counter}"):
                return
            following = getattr(page, f"next_{counter}")
            if following <= getattr(request, f"first_{counter}"):
                problem = f"the answer goes back to {counter} {following}"
                raise BadFrame(method.capitalize(), problem)
            setattr(request, f"first_{counter}", following)

    def _ask(self, stream: Stream, method: str, request: Message) -> Any:
        """Return the answer to a request about a stream. Asks again for as long as there is
        progress, and a while longer.

        method: is that of the service, in small letters.  Raises: TokenfeedError.
        """
        problem, end, pause_seconds = "", 0.0, 0.0
        while True:
            try:
                return self._ask_once(stream, method, request)
            except ServerUnavailable as error:
                now = time.monotonic()
                # A server that searches ids says how far it is.
                if error.problem != problem:
                    problem, end = error.problem, now + QUESTION_SECONDS
                    pause_seconds = _PAUSE_SECONDS_FIRST
                if now + pause_seconds > end:
                    raise
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)

    def _ask_once(self, stream: Stream, method: str, request: Message) -> Any:
        if self._server is not None:
            return self._server.ask(
                lambda channel: channel.ask(request, _ANSWERS[method], _CALL_SECONDS)
            ).wait()
        files = self._files.get(_key(stream))
        if files is None:
            opened = self._opened_to_look(stream)
            assert isinstance(opened, Files)
            files = self._files[_key(stream)] = opened
        return getattr(files.await_provenance(), method)(request)


def _key(stream: Stream) -> _Key:
    return tuple(replace(source, corpus=None) for source in stream.sources), stream.context_length


def request_of(segment: Segment) -> Request:
    """Return the request for the samples of a segment of all ranks, in batches of one row."""
    return Request(
        segment.stream,
        Position(segment.first_sample, 1),
        declined_planes=(LOSS_MASK,),
        num_batches=segment.end_sample - segment.first_sample,
        end_sample=segment.end_sample,
    )


def _explained(error: TokenfeedError, target: str) -> TokenfeedError:
    """Return an error with the cure that is one here."""
    if isinstance(error, NotATokenfeedServer):
        problem = "does not tell where rows come from: it was started with --no-locate, or it is an"
        return NotATokenfeedServer(target, f"{problem} older tokenfeed server")
    return error
