"""gRPC server reflection: lists the services and their messages for tools.

The library's implementation alone would wait forever for the next request of a tool, in a thread
that no limit counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from .admission import AdmissionControl, StreamLimits, add_service, parse_message
from .error_status import abort_on_error

_LIMITS = StreamLimits(streams=8, peer_streams=4, send_timeout_seconds=10.0, by_option=False)


class Reflection:
    """The reflection service of some services."""

    def __init__(self, names: Sequence[str]) -> None:
        """Describe the services with these names, and reflection itself."""
        self._servicer = reflection.ReflectionServicer((*names, reflection.SERVICE_NAME))
        self._calls = AdmissionControl(_LIMITS)

    def add_to(self, server: grpc.Server) -> None:
        """Register with a server."""
        methods = {"ServerReflectionInfo": (grpc.stream_stream_rpc_method_handler, self.answer)}
        add_service(server, reflection.SERVICE_NAME, methods, self._calls.calls_max)

    def answer(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer ServerReflectionInfo: yield an encoded response to each message."""
        with abort_on_error(context, self._calls.counts), self._calls.admit(context) as call:
            requests = (
                parse_message(reflection_pb2.ServerReflectionRequest, message)
                for message in self._calls.requests(call, messages)
            )
            for response in self._servicer.ServerReflectionInfo(requests, context):
                yield from self._calls.send_frame(call, response.SerializeToString())

    def drain(self) -> None:
        """End every call after its next answer, and admit no more. May be called twice."""
        self._calls.drain()
