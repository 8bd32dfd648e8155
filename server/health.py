"""grpc.health.v1: whether this server serves, and each of its datasets by name.

Answered by threads of its own, so that no number of streams hides it; a Watch takes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from .dataset import Dataset

_POOL = ThreadPoolExecutor(4, "tokenfeed-health")
_STATUS = health_pb2.HealthCheckResponse

SERVICE = health.SERVICE_NAME


class _Servicer(health.HealthServicer):  # type: ignore[misc]
    """The library's, with threads of its own for Check too."""

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answer for one name."""
        return super().Check(request, context)

    # gRPC looks for this attribute of a method: the pool that calls of it run in.
    Check.experimental_thread_pool = _POOL  # type: ignore[attr-defined]


class Health:
    """What is said of the health of some datasets."""

    def __init__(self, datasets: Mapping[str, Dataset]) -> None:
        """Say what is true now."""
        self._datasets = datasets
        self._servicer = _Servicer(experimental_non_blocking=True, experimental_thread_pool=_POOL)
        self.look()

    def add_to(self, server: grpc.Server) -> None:
        """Have a server answer Check and Watch."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def look(self) -> None:
        """Say what has changed. The server itself is "", and is well as long as it has a dataset
        to serve.
        """
        intact = {name: not dataset.corpus.lost for name, dataset in self._datasets.items()}
        for name, well in {**intact, "": any(intact.values())}.items():
            self._servicer.set(name, _STATUS.SERVING if well else _STATUS.NOT_SERVING)

    def drain(self) -> None:
        """Say for good that nothing is served any more. May be called twice."""
        self._servicer.enter_graceful_shutdown()
