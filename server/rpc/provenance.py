"""The service tokenfeed.v1.Provenance: where rows come from, and where documents went.

Separate threads answer it, so that streams cannot block it. They take turns, with pauses between
them for the streams: to make an answer holds the interpreter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from tokenfeed.errors import ServerUnavailable, listed
from tokenfeed.v1 import provenance_pb2 as pb

from ..datasets.provenance.answers import Answers, Query
from .admission import SHUTTING_DOWN, ActiveCall, AdmissionControl, StreamLimits, add_service
from .error_status import CallCounts, abort_on_error
from .service import TokenFeed, printable

SERVICE = pb.DESCRIPTOR.services_by_name["Provenance"].full_name
_LIMITS = StreamLimits(
    streams=4,
    peer_streams=2,
    send_timeout_seconds=10.0,
    by_option=False,
    request_timeout_seconds=3.0,
)
PAUSE = 6.0
"""How long streams have the interpreter to themselves after an answer, as a multiple of the time of
the processor that it took: all callers together take a seventh of a core. A stream then keeps about
80 % of its rate beside four callers (`python -m benchmarks.find`). With no pause and answers of
49,000 ranges, a stream of 8 x 512 tokens kept a quarter beside one, and 2 % beside four. 2026-11.
"""
_LOG = logging.getLogger("tokenfeed.server")

Question = TypeVar("Question", pb.LocateRequest, pb.FindRequest, pb.CoverageRequest)
Answer = Callable[[Question, Callable[[Query], None]], Message]


class Turns:
    """Lets calls compute one at a time, in the order in which they came, with a pause after each
    while streams have calls. The first call after a pause does not wait.
    """

    def __init__(self, is_streaming: Callable[[], bool]) -> None:
        """is_streaming: whether any stream waits for rows, or receives them."""
        self._is_streaming = is_streaming
        self._changed = threading.Condition()  # guards all that follows
        self._calls: deque[object] = deque()
        """The first one computes, or waits for the end of the pause."""
        self._pause_ends_at = 0.0
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """How many calls compute or wait."""
        return len(self._calls)

    @contextmanager
    def take(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Wait for the turn of a call, which lasts for the with block.

        Raises: grpc.RpcError if the call ends meanwhile; ServerUnavailable if the turns are closed.
        """
        call = object()
        with self._changed:
            self._calls.append(call)
        try:
            context.add_callback(self._wake)
            self._wait(call, context)
            began = time.thread_time()
            try:
                yield
            finally:
                seconds = PAUSE * (time.thread_time() - began)
                self._pause_ends_at = time.monotonic() + seconds
        finally:
            with self._changed:
                self._calls.remove(call)
                self._changed.notify_all()

    def close(self) -> None:
        """End all waiting. May be called twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait(self, call: object, context: grpc.ServicerContext) -> None:
        with self._changed:
            while True:
                if self._is_closed:
                    raise ServerUnavailable(*SHUTTING_DOWN)
                if not context.is_active():
                    raise grpc.RpcError("the call ended before its turn")
                seconds = None
                if self._calls[0] is call:
                    seconds = self._pause_ends_at - time.monotonic()
                    if seconds <= 0 or not self._is_streaming():
                        return
                self._changed.wait(seconds)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Provenance:
    """The provenance service of a server."""

    def __init__(self, feed: TokenFeed, counts: CallCounts) -> None:
        """feed: checks requests as for GetBatch.  counts: of calls."""

        self._calls = AdmissionControl(_LIMITS, counts)
        self._turns = Turns(lambda: feed.is_streaming)
        answers = Answers(feed.datasets.check, feed.datasets.redactor)
        self._methods = {
            "Locate": partial(self._answer, "Locate", pb.LocateRequest, answers.locate),
            "Find": partial(self._answer, "Find", pb.FindRequest, answers.find),
            "Coverage": partial(self._answer, "Coverage", pb.CoverageRequest, answers.coverage),
        }

    def add_to(self, server: grpc.Server) -> None:
        """Register with a server."""
        kind = grpc.stream_unary_rpc_method_handler
        methods = {name: (kind, answer) for name, answer in self._methods.items()}
        add_service(server, SERVICE, methods, self._calls.calls_max)

    def drain(self) -> None:
        """Admit no more calls. May be called twice."""
        self._calls.drain()
        self._turns.close()

    def _answer(
        self,
        method: str,
        kind: Callable[[], Question],
        answer: Answer[Question],
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> bytes:
        """Return an encoded answer."""
        with abort_on_error(context, self._calls.counts), self._calls.admit(context) as call:
            request = self._calls.request(call, messages, kind)
            named = request.rows if isinstance(request, pb.LocateRequest) else request
            call.client_name = printable(named.client_name)
            with self._turns.take(context):
                return bytes(answer(request, partial(_log, method, call)).SerializeToString())
        return b""


def _log(method: str, call: ActiveCall, query: Query) -> None:
    """Log who asks what, for an audit."""
    names = sorted({dataset.name for dataset in query.sources.datasets})
    _LOG.info(
        "provenance asked peer=%s client=%r method=%s dataset=%s",
        call.context.peer(),
        call.client_name,
        method,
        listed(names),
    )
