"""The service tokenfeed.v1.Provenance: where rows come from, and where documents went.

Separate threads answer it, so that it does not queue behind streams, nor they behind it. They share
the interpreter lock and the cores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from tokenfeed.errors import listed
from tokenfeed.v1 import provenance_pb2 as pb
from tokenfeed.wire.request import Expected, StreamRequest

from ..datasets.dataset import Dataset
from ..datasets.provenance.answers import Answers, Asked
from ..storage.store import RowStore
from .admission import (
    ActiveCall,
    AdmissionControl,
    CallCounts,
    StreamLimits,
    abort_on_error,
    add_service,
    parse_message,
)
from .service import TokenFeed, printable

SERVICE = pb.DESCRIPTOR.services_by_name["Provenance"].full_name
_LIMITS = StreamLimits(streams=4, peer_streams=2, send_timeout_seconds=10.0, by_option=False)
_LOG = logging.getLogger("tokenfeed.server")

Request = TypeVar("Request", bound=Message)
Answer = Callable[[Request, Callable[[Asked], None]], Message]


class Provenance:
    """The provenance service of a server."""

    def __init__(self, feed: TokenFeed, counts: CallCounts) -> None:
        """feed: checks requests as for GetBatch.  counts: of calls."""

        def check(request: StreamRequest, expected: Expected) -> tuple[Sequence[Dataset], RowStore]:
            checked = feed.checked(request, expected)
            return checked.datasets, checked.store

        self._calls = AdmissionControl(_LIMITS, counts)
        answers = Answers(check, feed.redactor)
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

    def _answer(
        self,
        method: str,
        kind: Callable[[], Request],
        answer: Answer[Request],
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> bytes:
        """Return an encoded answer."""
        with abort_on_error(context, self._calls.counts), self._calls.admit(context) as call:
            request = parse_message(kind, self._calls.request(call, messages))
            stream = getattr(request, "rows" if method == "Locate" else "stream")
            call.client_name = printable(stream.client_name)
            found = answer(request, partial(_log, method, call))
            return bytes(found.SerializeToString())
        return b""


def _log(method: str, call: ActiveCall, asked: Asked) -> None:
    """Log who asks what, for an audit."""
    names = sorted({dataset.name for dataset in asked.sources.datasets})
    _LOG.info(
        "provenance asked peer=%s client=%r method=%s dataset=%s",
        call.context.peer(),
        call.client_name,
        method,
        listed(names),
    )
