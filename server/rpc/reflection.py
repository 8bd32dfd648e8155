"""gRPC's reflection: tells tools which services there are, and what their messages look like.

By itself it waits for ever for a tool that asks nothing more, in a thread of the service that
nobody has counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from .admission import (
    CALLS_SPARE,
    AdmissionControl,
    StreamLimits,
    abort_on_error,
    parse_message,
    run_in_pool,
)

_LIMITS = StreamLimits(streams=8, peer_streams=4, send_timeout_seconds=10.0, by_option=False)


class Reflection:
    """What tools are told of some services."""

    def __init__(self, names: Sequence[str]) -> None:
        """Tell of services by name, and of reflection itself."""
        self._servicer = reflection.ReflectionServicer((*names, reflection.SERVICE_NAME))
        self._calls = AdmissionControl(_LIMITS)

    def add_to(self, server: grpc.Server) -> None:
        """Have a server answer in threads of its own."""
        pool = ThreadPoolExecutor(self._calls.calls_max + CALLS_SPARE, "tokenfeed-reflection")
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                run_in_pool(pool, self.answer)
            )
        }
        handler = grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, methods)
        server.add_generic_rpc_handlers((handler,))

    def answer(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer ServerReflectionInfo: yield an encoded response to each message."""
        with abort_on_error(context), self._calls.admit(context) as call:
            requests = (
                parse_message(reflection_pb2.ServerReflectionRequest, message)
                for message in self._calls.requests(call, messages)
            )
            for response in self._servicer.ServerReflectionInfo(requests, context):
                yield from self._calls.send_frame(call, response.SerializeToString())

    def drain(self) -> None:
        """Let every call end with its next answer, and admit no other. May be called twice."""
        self._calls.drain()
