"""Answers requests: request -> plan -> store -> frames.

Messages are bytes for gRPC. Requests are parsed here, so that a malformed one is the caller's error
and not an internal one, and frames are encoded without the protobuf runtime. Unexpected exceptions
go only to the log, never to a client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import grpc

from tokenfeed import __version__
from tokenfeed.errors import InvalidRequest, NotFound, StreamMismatch, listed, shortened
from tokenfeed.sampling import orders
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.plan import require_windows
from tokenfeed.stream.identity import VERSIONS_SERVED, stage_plane_fingerprint
from tokenfeed.stream.planes import KINDS, LOSS_MASK, NO_FINGERPRINT, REDACTED, TOKEN_COUNTS
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, require_range
from tokenfeed.stream.spec import Source, StreamSpec
from tokenfeed.stream.stages import MIXTURE
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import (
    CLIENT_NAME_MAX,
    CONTRACT_REVISION,
    Expected,
    Hints,
    StreamRequest,
    from_message,
    require_understood,
)

from ..datasets.dataset import Dataset
from ..datasets.provenance.expected import require_expected, require_stream
from ..datasets.redactions.redacted_rows import CurrentRows, Redactor
from ..storage.mixed_store import MixedStore
from ..storage.store import RowStore
from .activity import Activity, Caller
from .admission import AdmissionControl, abort_on_error, parse_message
from .fair_scheduler import FairScheduler
from .frame_producer import FrameProducer

_LOG = logging.getLogger("tokenfeed.server")

_MIXTURES_KEPT = 64
"""Combinations of datasets that are kept ready."""


class Checked(NamedTuple):
    """What a request is for.  datasets: of each source.  store: their rows.  identity: of the
    stream, 32 bytes.
    """

    datasets: Sequence[Dataset]
    store: RowStore
    scheduler: FairScheduler
    identity: bytes


class TokenFeed:
    """The service tokenfeed.v1.TokenFeed of some datasets."""

    name = pb.DESCRIPTOR.services_by_name["TokenFeed"].full_name

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        calls: AdmissionControl,
        describe_calls: AdmissionControl,
        activity: Activity,
        *,
        batch_bytes_max: int,
        request_bytes_max: int,
    ) -> None:
        """calls, describe_calls: admit GetBatch and Describe.  activity: counts frames.
        batch_bytes_max: larger batches are
        refused.  request_bytes_max: the limit of the listener.
        """
        self._datasets = datasets
        self._schedulers = {name: FairScheduler() for name in datasets}
        self._mixture_scheduler = FairScheduler()
        self._mixed = lru_cache(_MIXTURES_KEPT)(self._mix)
        self.redactor = Redactor()
        self._calls = calls
        self._describe_calls = describe_calls
        self._activity = activity
        self._limits = pb.Limits(
            batch_size_max=BATCH_SIZE_MAX,
            batch_bytes_max=batch_bytes_max,
            world_size_max=WORLD_SIZE_MAX,
            request_bytes_max=request_bytes_max,
            row_bytes_max=frame.ROW_BYTES_MAX,
        )

    @property
    def is_streaming(self) -> bool:
        """Whether a stream waits for rows, or receives them: it has a call then."""
        return self._calls.has_calls

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a grpc.Server needs to route calls here.

        Requests are handled as streams of one message, which is the same on the wire. For a unary
        request gRPC would wait forever, in a thread that no limit counts yet.
        """
        return grpc.method_handlers_generic_handler(
            self.name,
            {
                "GetBatch": grpc.stream_stream_rpc_method_handler(self.get_batch),
                "Describe": grpc.stream_unary_rpc_method_handler(self.describe),
            },
        )

    def get_batch(
        self, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Answer GetBatch: yield encoded frames."""
        with abort_on_error(context, self._calls.counts), self._calls.admit(context) as call:
            message = parse_message(pb.GetBatchRequest, self._calls.request(call, messages))
            began_at = time.monotonic()
            call.client_name = printable(message.client_name)
            producer = self._open(message)
            caller = Caller(str(context.peer()), call.client_name)
            _LOG.debug("call opened peer=%s client=%r", *caller)
            hints = Hints.of(message)
            with self._activity.call(producer, caller, began_at, hints) as activity:
                for made in producer.frames(call.connection):
                    activity.made()
                    sent = partial(activity.sent, made)
                    yield from self._calls.send_frame(call, made.message, sent)
                    del made, sent  # before the next one is made

    def describe(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answer Describe: return an encoded DescribeResponse."""
        calls = self._describe_calls
        with abort_on_error(context, calls.counts), calls.admit(context) as call:
            message = calls.request(call, messages)
            return self._describe(parse_message(pb.DescribeRequest, message)).SerializeToString()
        return b""

    def _open(self, message: pb.GetBatchRequest) -> FrameProducer:
        """Check a request field by field and return the producer of its frames."""
        request, expected = from_message(message)
        spec = request.spec
        checked = self.checked(request, expected)
        datasets, store = checked.datasets, checked.store
        planes = _planes(datasets, request, expected)
        gathered = CurrentRows(partial(self.redactor.wrap, store, datasets, spec))
        stream = frame.Stream(spec, request.position, checked.identity, planes)
        names = [dataset.name for dataset in datasets]
        return FrameProducer(names, store, gathered, request, stream, checked.scheduler)

    def checked(self, request: StreamRequest, expected: Expected) -> Checked:
        """Check a request, but for its planes and redactions.  Raises: TokenfeedError."""
        spec = request.spec
        datasets = [self._dataset(source.dataset) for source in spec.sources]
        store, scheduler = self._rows_of(datasets, spec)
        store.require_intact()
        require_windows(spec, store.shapes)
        request.require_within(self._limits, store.dtype.itemsize)
        return Checked(datasets, store, scheduler, require_stream(spec, expected, datasets))

    def _rows_of(
        self, datasets: Sequence[Dataset], spec: StreamSpec
    ) -> tuple[RowStore, FairScheduler]:
        """Return the store of one dataset, or of the sources of a mixture, and its scheduler."""
        names = tuple(dataset.name for dataset in datasets)
        have_pieces = tuple(source.reads_documents for source in spec.sources)
        if len(names) > 1:
            return self._mixed(names, have_pieces), self._mixture_scheduler
        store, scheduler = datasets[0].store, self._schedulers[names[0]]
        # Another stage of the mixture may have planes that this only source lacks.
        is_alone = spec.mixture is None or {*spec.planes} <= {*store.planes, REDACTED}
        return store if is_alone else self._mixed(names, have_pieces), scheduler

    def _mix(self, names: tuple[str, ...], have_pieces: tuple[bool, ...]) -> MixedStore:
        return MixedStore([self._datasets[name].store for name in names], have_pieces)

    def _describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        require_understood(request)
        names = (
            [self._dataset(request.dataset).name]
            if request.dataset
            else sorted(self._datasets, key=str.encode)
        )
        context_length = request.context_length if request.HasField("context_length") else None
        if context_length is not None:
            require_range("context_length", context_length, 1, SAMPLE_END)
        described = [self._datasets[name].described(context_length) for name in names]
        if request.order or request.long_documents:
            described[0].rows.append(self._document_rows(request, names))
        return pb.DescribeResponse(
            datasets=described,
            orders=[*orders.ORDERS, MIXTURE],
            limits=self._limits,
            server_version=__version__,
            identity_versions=VERSIONS_SERVED,
            contract_revisions=[CONTRACT_REVISION],
            server_time_ms=time.time_ns() // 1_000_000,
        )

    def _document_rows(self, request: pb.DescribeRequest, names: Sequence[str]) -> pb.OrderRows:
        """Return the rows of the order over documents that a request names."""
        if not request.order:
            raise InvalidRequest("long_documents", "is set, but no order over documents is named")
        order = orders.find(request.order)
        source = Source(names[0], order, 0, long_documents=request.long_documents)
        if not source.reads_documents:
            raise InvalidRequest("order", f"{order.NAME} is not over documents; omit it")
        if len(names) > 1:
            raise InvalidRequest("dataset", "is missing; an order over documents is of one dataset")
        if not request.HasField("context_length"):
            raise InvalidRequest("context_length", f"is missing; {order.NAME} depends on it")
        return self._datasets[names[0]].document_rows(
            RowsKey(order.NAME, request.context_length, source.long_documents)
        )

    def _dataset(self, name: str) -> Dataset:
        if not name and len(self._datasets) > 1:
            served = listed(sorted(self._datasets))
            raise InvalidRequest("dataset", f"is missing; this server has several: {served}")
        dataset = self._datasets.get(name) if name else next(iter(self._datasets.values()))
        if dataset is None:
            served = listed(sorted(self._datasets))
            raise NotFound("dataset", f"{shortened(name)!r} is not served here, only {served}")
        return dataset


def _planes(
    datasets: Sequence[Dataset], request: StreamRequest, expected: Expected
) -> dict[int, bytes]:
    """Return the fingerprint of each requested plane, by its kind.

    datasets: of each source.
    Raises: InvalidRequest if the only dataset has no such plane; StreamMismatch if a fingerprint is
    not the expected one, or if a loss mask is neither requested nor declined; Unreadable if a plane
    is still being made.
    """
    requested = request.spec.planes
    for dataset in datasets:
        if LOSS_MASK not in (*requested, *request.declined_planes) and (
            LOSS_MASK in dataset.store.planes
        ):
            problem = f"dataset {dataset.name!r} has a loss mask"
            cure = f"request plane {LOSS_MASK}, or decline it"
            raise StreamMismatch("declined_planes", f"{problem}: {cure}")
    found = {kind: _plane_fingerprint(kind, datasets, request.spec) for kind in requested}
    for kind, fingerprint in expected.planes:
        require_expected(
            "expected_fingerprint",
            fingerprint,
            found[kind],
            f"the fingerprint of plane {kind} ({KINDS[kind]}), {{}}: the content differs",
        )
    return found


def _plane_fingerprint(kind: int, datasets: Sequence[Dataset], spec: StreamSpec) -> bytes:
    """Return the fingerprint of a plane of a dataset, or of the only stage of a mixture."""
    had = []
    if kind == TOKEN_COUNTS and spec.mixture is None and not spec.reads_documents:
        problem = f"{kind} ({KINDS[kind]}) is of orders over documents only"
        raise InvalidRequest("planes", problem)
    if kind in (TOKEN_COUNTS, REDACTED):
        return NO_FINGERPRINT
    for source, dataset in zip(spec.sources, datasets, strict=True):
        planes = dataset.store.planes
        if kind in planes:
            if not planes[kind]:
                dataset.require_searched()
                planes = dataset.store.planes
            had.append((source.number, planes[kind]))
        elif spec.mixture is None:
            problem = f"dataset {dataset.name!r} has no plane {kind} ({KINDS[kind]})"
            raise InvalidRequest("planes", problem)
    if spec.mixture is None:
        return had[0][1]
    return stage_plane_fingerprint(kind, had)


def printable(name: str) -> str:
    """Return a client's name for itself, made safe for a log line."""
    return "".join(sign for sign in name[:CLIENT_NAME_MAX] if sign.isprintable())
