"""grpc.health.v1: the health of this server, and of each of its datasets by name.

Separate threads answer these calls, so that streams cannot block them. The library's servicer sends
to its watchers while it holds the lock that Check needs, so one watcher that does not read would
block all calls. Here each Watch sends in its own thread, and publishing a status never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

import grpc
from grpc_health.v1 import health_pb2

from tokenfeed.errors import NotFound, ServerUnavailable, shortened

from ..datasets.dataset import Dataset
from .admission import AdmissionControl, StreamLimits, add_service
from .error_status import abort_on_error

_STATUS = health_pb2.HealthCheckResponse
_LIMITS = StreamLimits(streams=64, peer_streams=8, send_timeout_seconds=10.0, by_option=False)
"""Limits for Checks, and the same again for Watches, so that neither can block the other."""

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """The health service of some datasets."""

    def __init__(self, datasets: Mapping[str, Dataset]) -> None:
        """Publish the current status."""
        self._datasets = datasets
        self._checks, self._watches = AdmissionControl(_LIMITS), AdmissionControl(_LIMITS)
        # Guards the two below. Nothing is sent while it is held.
        self._changed = threading.Condition()
        self._statuses: dict[str, int] = {}
        self._draining = False
        self.poll()

    def add_to(self, server: grpc.Server) -> None:
        """Register Check and Watch with a server.

        Requests are streams of one message, as in TokenFeed.handler.
        """
        methods = {
            "Check": (grpc.stream_unary_rpc_method_handler, self.check),
            "Watch": (grpc.stream_stream_rpc_method_handler, self.watch),
        }
        add_service(server, SERVICE, methods, self._checks.calls_max + self._watches.calls_max)

    def check(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answer Check: return an encoded HealthCheckResponse."""
        with abort_on_error(context, self._checks.counts), self._checks.admit(context) as call:
            name = self._checks.request(call, messages, health_pb2.HealthCheckRequest).service
            status = self._statuses.get(name)
            if status is None:
                raise NotFound("service", f"{shortened(name)!r} is not served here")
            return _encoded(status)
        return b""

    def watch(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer Watch: yield an encoded HealthCheckResponse now and after each change."""
        with abort_on_error(context, self._watches.counts), self._watches.admit(context) as call:
            name = self._watches.request(call, messages, health_pb2.HealthCheckRequest).service
            context.add_callback(self._wake)
            last_sent = None
            while (status := self._next(name, last_sent, context)) is not None:
                # If a call ends with an error, clients may drop the message before it.
                with suppress(ServerUnavailable):
                    yield from self._watches.send_frame(call, _encoded(status))
                last_sent = status

    def poll(self) -> None:
        """Publish the current status. The name "" stands for the server itself, which is SERVING
        as long as at least one dataset is.
        """
        intact = {name: not dataset.store.files.failed for name, dataset in self._datasets.items()}
        self._publish(
            {
                name: _STATUS.SERVING if healthy else _STATUS.NOT_SERVING
                for name, healthy in {**intact, "": any(intact.values())}.items()
            }
        )

    def drain(self) -> None:
        """Publish NOT_SERVING for all names, permanently, and end each Watch with it. May be called
        twice.
        """
        self._publish(dict.fromkeys(self._statuses, _STATUS.NOT_SERVING), draining=True)
        self._checks.drain()
        self._watches.drain()

    def _publish(self, statuses: dict[str, int], *, draining: bool = False) -> None:
        with self._changed:
            if self._draining:
                return
            self._statuses, self._draining = statuses, draining
            self._changed.notify_all()

    def _wake(self) -> None:
        """Make each Watch check whether its client is still connected."""
        with self._changed:
            self._changed.notify_all()

    def _next(self, name: str, last_sent: int | None, context: grpc.ServicerContext) -> int | None:
        """Wait until the status of a name differs from last_sent, and return it; None if the client
        is gone, or if the status is final.
        """
        with self._changed:
            while context.is_active():
                status = self._statuses.get(name, int(_STATUS.SERVICE_UNKNOWN))
                if status != last_sent:
                    return status
                if self._draining:
                    break
                self._changed.wait()
            return None


def _encoded(status: int) -> bytes:
    return bytes(_STATUS(status=status).SerializeToString())
