"""The service tokenfeed.v1.Status: what the server is doing, for the people who run it.

Separate threads answer it, so that streams cannot block it. Its messages are the only source of the
status page and of `tokenfeed top`.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator

import grpc

from tokenfeed import __version__
from tokenfeed.errors import CorpusChanged, Forbidden, Unauthenticated
from tokenfeed.stream.position import require_range
from tokenfeed.v1 import status_pb2 as pb
from tokenfeed.wire.request import require_understood

from ...datasets.dataset import Dataset
from ...runtime.process import memory_limit, use
from ...storage.documents import what_of
from ...storage.objects.counts import REQUESTS
from ..admission import AdmissionControl, StreamLimits, add_service
from ..error_status import abort_on_error
from ..security import BearerTokens, has_token
from .residency import Residency
from .server_state import ServerState

SERVICE = pb.DESCRIPTOR.services_by_name["Status"].full_name
STREAMS_LISTED = 1000
_STREAMS_LISTED_MAX = 10_000
_LIMITS = StreamLimits(streams=8, peer_streams=8, send_timeout_seconds=10.0, by_option=False)


class Status:
    """The status service of a server."""

    def __init__(
        self,
        state: ServerState,
        residency: Residency,
        tokens: BearerTokens | None,
        *,
        trusts_loopback: bool,
    ) -> None:
        """tokens: those of operators; None: only this machine may ask, over Unix sockets.
        trusts_loopback: and over loopback addresses, which are those of a proxy too.
        """
        self._state = state
        self._residency = residency
        self._tokens = tokens
        self._trusts_loopback = trusts_loopback
        self._calls = AdmissionControl(_LIMITS, state.calls.counts)

    def add_to(self, server: grpc.Server) -> None:
        """Register with a server."""
        methods = {"GetStatus": (grpc.stream_unary_rpc_method_handler, self.get_status)}
        add_service(server, SERVICE, methods, self._calls.calls_max)

    def get_status(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answer GetStatus: return an encoded GetStatusResponse."""
        with abort_on_error(context, self._calls.counts), self._calls.admit(context) as call:
            self._require_operator(context)
            request = self._calls.request(call, messages, pb.GetStatusRequest)
            require_understood(request)
            most = request.streams_max or STREAMS_LISTED
            require_range("streams_max", most, 1, _STREAMS_LISTED_MAX + 1)
            return bytes(self.snapshot(most).SerializeToString())
        return b""

    def drain(self) -> None:
        """Admit no more calls. May be called twice."""
        self._calls.drain()

    def snapshot(self, streams_max: int = STREAMS_LISTED) -> pb.GetStatusResponse:
        """Return what the server does.  streams_max: how many streams to list."""
        state = self._state
        streams, omitted = state.activity.streams(streams_max)
        totals = state.activity.totals()
        bytes_per_second, second_bytes = state.activity.sent_rates()
        counts = state.calls.counts.copy()
        used = use.process_use()
        return pb.GetStatusResponse(
            server_version=__version__,
            started_ms=int(1000 * use.started()),
            now_ms=int(1000 * time.time()),
            draining=state.calls.is_draining,
            threads=used.threads,
            anonymous_bytes=used.anonymous_bytes,
            resident_bytes=used.resident_bytes,
            memory_limit_bytes=memory_limit.limit_bytes(),
            datasets=[self._dataset(state.datasets[name]) for name in sorted(state.datasets)],
            streams=streams,
            streams_omitted=omitted,
            streams_open=sum(each.open for each in totals.frames.values()),
            streams_max=state.calls.streams_max,
            refusals=[
                pb.Refusals(status=status, reason=reason, count=count)
                for (status, reason), count in sorted(counts.refusals.items())
            ],
            evictions=sum(counts.evictions.values()),
            second_bytes=second_bytes,
            bytes_per_second=bytes_per_second,
            object_requests=[
                pb.ObjectRequests(reason=reason, requests=found.gets, bytes=found.size_bytes)
                for reason, found in REQUESTS.by_reason.items()
                if found.gets
            ],
            object_cache=_object_cache(state),
        )

    def _require_operator(self, context: grpc.ServicerContext) -> None:
        """Raise Unauthenticated or Forbidden unless the caller may ask."""
        if self._tokens is None:
            if not _is_local(str(context.peer()), loopback=self._trusts_loopback):
                cure = "start it with --status-token-file to ask from elsewhere"
                raise Forbidden("peer", f"this server tells its status only to its machine; {cure}")
        elif not has_token(context.invocation_metadata(), self._tokens):
            raise Unauthenticated("authorization", "the status needs a token of operators")

    def _dataset(self, dataset: Dataset) -> pb.DatasetStatus:
        store = dataset.store
        return pb.DatasetStatus(
            name=dataset.name,
            lost=_problem(dataset),
            format=store.shards[0].layout.format,
            dtype=store.stored.name,
            token_count=store.shape.token_count,
            file_count=len(store.shards),
            size_bytes=store.shape.token_count * store.dtype.itemsize,
            fingerprint=dataset.fingerprint,
            resident_share=self._residency.share(dataset.name),
            warm_up_share=self._state.warm_up.share(store),
            cold=store.cold,
            **self._state.activity.sent_of(dataset.name)._asdict(),
            making=_making(dataset),
        )


def _object_cache(state: ServerState) -> pb.ObjectCache | None:
    if state.object_cache is None:
        return None
    counts = state.object_cache.counts._asdict()
    return pb.ObjectCache(
        **{name: counts[name] for name in pb.ObjectCache.DESCRIPTOR.fields_by_name}
    )


def _problem(dataset: Dataset) -> str:
    try:
        dataset.store.require_intact()
    except CorpusChanged as error:
        return error.problem
    return ""


def _making(dataset: Dataset) -> list[pb.Progress]:
    found = []
    if (share := dataset.search_progress) is not None:
        found.append(pb.Progress(what="borders of documents", share=share))
    if dataset.rows is not None and (making := dataset.rows.making) is not None:
        found.append(pb.Progress(what=what_of(making[0]), share=making[1]))
    return found


def _is_local(peer: str, *, loopback: bool) -> bool:
    """Return whether a caller is on this machine, by its gRPC address.  loopback: whether loopback
    addresses are.
    """
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return True
    if not loopback:
        return False
    host = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]").strip("[]")
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
