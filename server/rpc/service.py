"""Answers requests: request -> datasets and the reader of its rows (rows/) -> frames.

Messages are bytes for gRPC. It parses no request, so that a malformed one is the caller's error and
not an internal one (`AdmissionControl.request`), and encodes no frame, which needs no protobuf
runtime. Unexpected exceptions go only to the log, never to a client (error_status.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import grpc

from tokenfeed.errors import InvalidRequest, StreamMismatch, listed
from tokenfeed.stream.identity import stage_plane_fingerprint
from tokenfeed.stream.planes import KINDS, LOSS_MASK, NO_FINGERPRINT, REDACTED, TOKEN_COUNTS
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import (
    CLIENT_NAME_MAX,
    AnyMessage,
    AnyRequest,
    Expected,
    Hints,
    from_message,
)

from ..datasets.dataset import Dataset
from ..rows.expected_stream import require_expected
from ..rows.served_datasets import ServedDatasets
from .activity.streams import Caller
from .activity.tracker import Activity
from .admission import AdmissionControl
from .error_status import abort_on_error
from .frame_producer import FrameProducer, Schedulers

_LOG = logging.getLogger("tokenfeed.server")


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
        """calls, describe_calls: admit calls of rows, and Describe.  activity: counts frames.
        batch_bytes_max, request_bytes_max: as for ServedDatasets.
        """
        # Of each dataset, and of mixtures: one whose storage hangs keeps no other one waiting.
        self._schedulers = {name: Schedulers.of_dataset() for name in (*datasets, "")}
        self._calls = calls
        self._describe_calls = describe_calls
        self._activity = activity
        self.datasets = ServedDatasets(
            datasets, batch_bytes_max=batch_bytes_max, request_bytes_max=request_bytes_max
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
                "GetRows": grpc.stream_stream_rpc_method_handler(self.get_rows),
                "Describe": grpc.stream_unary_rpc_method_handler(self.describe),
            },
        )

    def get_batch(
        self, messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Answer GetBatch: yield encoded frames."""
        return self._send_rows(pb.GetBatchRequest, messages, context)

    def get_rows(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer GetRows: yield encoded frames."""
        return self._send_rows(pb.GetRowsRequest, messages, context)

    def describe(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answer Describe: return an encoded DescribeResponse."""
        calls = self._describe_calls
        with abort_on_error(context, calls.counts), calls.admit(context) as call:
            request = calls.request(call, messages, pb.DescribeRequest)
            return self.datasets.describe(request).SerializeToString()
        return b""

    def _send_rows(
        self,
        kind: Callable[[], AnyMessage],
        messages: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        """Yield the frames of a call.  kind: of its message."""
        with abort_on_error(context, self._calls.counts), self._calls.admit(context) as call:
            message = self._calls.request(call, messages, kind)
            began_at = time.monotonic()
            call.client_name = printable(message.client_name)
            producer = self._open(*from_message(message))
            if not context.is_active():
                return  # its client may have said meanwhile that its stream has ended
            caller = Caller(str(context.peer()), call.client_name)
            _LOG.debug("call opened peer=%s client=%r", *caller)
            with self._activity.call(producer, caller, began_at, Hints.of(message)) as activity:
                for made in producer.frames(call.connection, context.is_active):
                    activity.made()
                    sent = partial(activity.sent, made)
                    yield from self._calls.send_frame(call, made.message, sent)
                    del made, sent  # before the next one is made

    def _open(self, request: AnyRequest, expected: Expected) -> FrameProducer:
        """Check a request and return the producer of its frames.  Raises: TokenfeedError."""
        datasets, store, identity = self.datasets.check(request, expected)
        planes = _planes(datasets, request, expected)
        frames = frame.Frames(request.stream.row_tokens, request.position, identity, planes)
        names = [dataset.name for dataset in datasets]
        schedulers = self._schedulers[names[0] if len(names) == 1 else ""]
        reader = self.datasets.reader(request, datasets, store)
        return FrameProducer(names, reader, frames, schedulers)


def _planes(
    datasets: Sequence[Dataset], request: AnyRequest, expected: Expected
) -> dict[int, bytes]:
    """Return the fingerprint of each requested plane, by its kind.

    datasets: of each source.
    Raises: InvalidRequest if no source has such a plane; StreamMismatch if a fingerprint is not the
    expected one, or if a loss mask is neither requested nor declined; Unreadable if a plane is
    still being made.
    """
    for dataset in datasets:
        if LOSS_MASK not in (*request.planes, *request.declined_planes) and (
            LOSS_MASK in dataset.store.planes
        ):
            problem = f"dataset {dataset.name!r} has a loss mask"
            cure = f"request plane {LOSS_MASK}, or decline it"
            raise StreamMismatch("declined_planes", f"{problem}: {cure}")
    found = {kind: _plane_fingerprint(kind, datasets, request.stream) for kind in request.planes}
    for kind, fingerprint in expected.planes:
        require_expected(
            "expected_fingerprint",
            fingerprint,
            found[kind],
            f"the fingerprint of plane {kind} ({KINDS[kind]}), {{}}: the content differs",
        )
    return found


def _plane_fingerprint(kind: int, datasets: Sequence[Dataset], stream: Stream) -> bytes:
    """Return the fingerprint of a plane of a stage."""
    if kind == REDACTED:
        return NO_FINGERPRINT
    if kind == TOKEN_COUNTS:
        if stream.reads_documents:
            return NO_FINGERPRINT
        problem = f"{kind} ({KINDS[kind]}) is of orders over documents only"
        raise InvalidRequest("planes", problem)
    had = []
    for number, dataset in zip(stream.numbers, datasets, strict=True):
        if kind in dataset.store.planes:
            if not dataset.store.planes[kind]:
                dataset.require_searched()
            had.append((number, dataset.store.planes[kind]))
    if not had:
        names = listed(sorted({dataset.name for dataset in datasets}))
        raise InvalidRequest("planes", f"{kind} ({KINDS[kind]}) is no plane of {names}")
    return had[0][1] if len(datasets) == 1 else stage_plane_fingerprint(kind, had)


def printable(name: str) -> str:
    """Return a client's name for itself, made safe for a log line."""
    return "".join(sign for sign in name[:CLIENT_NAME_MAX] if sign.isprintable())
