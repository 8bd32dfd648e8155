"""Asks a server, or local files, where rows come from and where tokens went.

Every answer comes in pages, which are asked for one after the other, as they are consumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from tokenfeed.client.source.file_target import is_local_target, parse_local_target
from tokenfeed.client.source.files import Files
from tokenfeed.client.transport.credentials import with_environment
from tokenfeed.errors import (
    BadFrame,
    NotATokenfeedServer,
    ServerUnavailable,
    TokenfeedError,
)
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.wire.request import Expected, Request, stream_message, to_message

from ..one_server import OneServer
from .runs import Segment

QUESTION_SECONDS = 15.0
"""How long a question is asked again while files cannot be read, or no server answers."""
SPANS_MAX = 2048
"""Ranges of samples in a CoverageRequest: at most 48 KiB, and servers take 64 KiB by default."""
_CALL_SECONDS = 60.0
"""How long one answer may take: that of a cold index on a slow disk takes seconds."""
_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX = 0.1, 2.0

Question = TypeVar("Question", bound=Message)
Answer = TypeVar("Answer", bound=Message)
Ranges = npt.NDArray[np.int64]


class Answers(Protocol):
    """What answers the three requests, a page each: a server, or what a server has, over files of
    this machine.
    """

    def locate(self, message: pb.LocateRequest, /) -> pb.LocateResponse:
        """Return where rows come from.  Raises: TokenfeedError."""

    def find(self, message: pb.FindRequest, /) -> pb.FindResponse:
        """Return which rows hold some tokens.  Raises: TokenfeedError."""

    def coverage(self, message: pb.CoverageRequest, /) -> pb.CoverageResponse:
        """Return which tokens samples hold.  Raises: TokenfeedError."""


class Provenance:
    """The answers of a target. Asks again for as long as there is progress, and a while longer."""

    def __init__(self, answers_of: Callable[[Stream], Answers], close: Callable[[], None]) -> None:
        """answers_of: returns what answers for a stream, and may wait.  close: as of this class."""
        self._answers_of = answers_of
        self.close = close
        """Closes the connection, or the files."""

    def ask(
        self,
        stream: Stream,
        method: Callable[[Answers], Callable[[Question], Answer]],
        request: Question,
    ) -> Answer:
        """Return the answer to a request about a stream.  method: returns what answers such
        requests.  Raises: TokenfeedError.
        """
        problem, end, pause_seconds = "", 0.0, 0.0
        while True:
            try:
                return method(self._answers_of(stream))(request)
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


def open_provenance(target: str) -> Provenance:
    """Return what answers for a target; does no I/O. Credentials come from the environment.

    Raises: InvalidRequest if the target is malformed.
    """
    if is_local_target(target):
        files = _LocalFiles(target)
        return Provenance(files.answers_of, files.close)
    server = _Server(target)
    return Provenance(lambda _: server, server.close)


class _LocalFiles:
    """Files of this machine, which are opened when a stream of their datasets is asked for."""

    def __init__(self, target: str) -> None:
        parse_local_target(target)
        self._target = target
        self._opened: dict[tuple[str, ...], Files] = {}

    def answers_of(self, stream: Stream) -> Answers:
        names = tuple(source.dataset for source in stream.sources)
        if names not in self._opened:
            plain = replace(stream, redactions=())
            request = Request(plain, Position(stream.stage.first_sample, 1))
            self._opened[names] = Files(self._target, request, reconnect_seconds=QUESTION_SECONDS)
        return self._opened[names].await_provenance()

    def close(self) -> None:
        for files in self._opened.values():
            files.close()


class _Server:
    """One server, asked over one connection."""

    def __init__(self, target: str) -> None:
        self._server = OneServer(
            target,
            with_environment(),
            thread_name="tokenfeed-provenance",
            explain=lambda error: _explained(error, target),
        )
        self.close = self._server.close

    def locate(self, message: pb.LocateRequest) -> pb.LocateResponse:
        return self._answer(message, pb.LocateResponse)

    def find(self, message: pb.FindRequest) -> pb.FindResponse:
        return self._answer(message, pb.FindResponse)

    def coverage(self, message: pb.CoverageRequest) -> pb.CoverageResponse:
        return self._answer(message, pb.CoverageResponse)

    def _answer(self, message: Message, kind: type[Answer]) -> Answer:
        return self._server.ask(lambda channel: channel.ask(message, kind, _CALL_SECONDS)).wait()


def _explained(error: TokenfeedError, target: str) -> TokenfeedError:
    """Return an error with the cure that is one here."""
    if isinstance(error, NotATokenfeedServer):
        problem = "does not tell where rows come from: it was started with --no-locate, or it is an"
        return NotATokenfeedServer(target, f"{problem} older tokenfeed server")
    return error


def request_of(segment: Segment) -> Request:
    """Return the request for the samples of a segment of all ranks, in batches of one row."""
    return Request(
        segment.stream,
        Position(segment.first_sample, 1),
        declined_planes=(LOSS_MASK,),
        num_batches=segment.end_sample - segment.first_sample,
        end_sample=segment.end_sample,
    )


def locate_pages(provenance: Provenance, segment: Segment) -> Iterator[pb.LocateResponse]:
    """Yield where the samples of a segment come from, in order, in pages.

    Raises: TokenfeedError; BadFrame if the answer has other rows.
    """
    expected = Expected(segment.stream.identity(segment.first_sample))
    first_sample = segment.first_sample
    while first_sample < segment.end_sample:
        rest = request_of(segment._replace(first_sample=first_sample))
        request = pb.LocateRequest(rows=to_message(rest, expected))
        page = provenance.ask(segment.stream, lambda answers: answers.locate, request)
        found = [row.sample for row in page.rows]
        if not found or found != list(range(first_sample, first_sample + len(found))):
            raise BadFrame("Locate", f"the answer is not of the rows from {first_sample} on")
        yield page
        first_sample += len(found)


def find_pages(
    provenance: Provenance, segment: Segment, source: int, what: pb.FindRequest
) -> Iterator[pb.FindResponse]:
    """Yield which rows of a segment hold some tokens, in pages.

    source: the number of the source that is looked through.  what: the tokens; its other fields are
    not used.
    Raises: TokenfeedError.
    """
    request = pb.FindRequest()
    request.CopyFrom(what)
    request.stream.CopyFrom(stream_message(segment.stream))
    request.first_sample, request.end_sample = segment.first_sample, segment.end_sample
    request.expected_identity = segment.stream.identity(segment.first_sample)
    request.source = source
    request.first_candidate = 0
    while True:
        page = provenance.ask(segment.stream, lambda answers: answers.find, request)
        yield page
        if not page.HasField("next_candidate"):
            return
        if page.next_candidate <= request.first_candidate:
            raise BadFrame("Find", f"the answer goes back to candidate {page.next_candidate}")
        request.first_candidate = page.next_candidate


def coverage_pages(
    provenance: Provenance, stream: Stream, samples: Ranges
) -> Iterator[pb.CoverageResponse]:
    """Yield which tokens samples hold, in pages.

    stream: over one dataset, without redactions.  samples: int64[n, 2], of one epoch; ascending,
    they neither overlap nor touch. More than SPANS_MAX of them are asked for one part after the
    other.
    Raises: TokenfeedError; BadFrame if the answer is made of another number of rows.
    """
    for begin in range(0, len(samples), SPANS_MAX):
        part = samples[begin : begin + SPANS_MAX]
        request = pb.CoverageRequest(
            stream=stream_message(stream),
            expected_identity=stream.identity(0),
            samples=[
                pb.SampleSpan(first_sample=first, end_sample=end) for first, end in part.tolist()
            ],
        )
        missing = int((part[:, 1] - part[:, 0]).sum())
        while True:
            page = provenance.ask(stream, lambda answers: answers.coverage, request)
            yield page
            missing -= page.row_count
            if not page.HasField("next_place"):
                break
            if page.next_place <= request.first_place:
                raise BadFrame("Coverage", f"the answer goes back to place {page.next_place}")
            request.first_place = page.next_place
        if missing:
            problem = f"the answer has {-missing:+,} rows beside those that were asked for"
            raise BadFrame("Coverage", problem)
