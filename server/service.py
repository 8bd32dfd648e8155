"""Answers requests: request -> plan -> store -> frames.

Messages come and go as bytes: a request is parsed here, so that garbage is the caller's error and
not an internal one, and a frame is encoded without the protobuf runtime. Nothing of the inside
leaves: an unforeseen exception goes to the log alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import grpc
import numpy as np

from tokenfeed import __version__, frame, orders
from tokenfeed.errors import (
    InvalidRequest,
    NotServed,
    OverLimit,
    SamplesExhausted,
    StreamMismatch,
)
from tokenfeed.identity import IDENTITY_VERSION, stream_identity
from tokenfeed.plan import PLAN_ROWS, Plan, Windows, window_places
from tokenfeed.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, Position, require_range
from tokenfeed.spans import Spans
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .calls import Calls, answering, parsed
from .dataset import Dataset
from .planned import PlannedRows
from .readahead import READ_AHEAD_BYTES

_HASH_BYTES = 32
_NAME_SHOWN = 64
_NAMES_SHOWN = 16  # a refusal has to fit into a header


class TokenFeed:
    """The service tokenfeed.v1.TokenFeed over some datasets."""

    name = pb.DESCRIPTOR.services_by_name["TokenFeed"].full_name

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        calls: Calls,
        describe_calls: Calls,
        *,
        batch_bytes_max: int,
        request_bytes_max: int,
    ) -> None:
        """Serve datasets by name, to as many as the two kinds of calls admit.

        A batch above batch_bytes_max is refused. request_bytes_max: what the listener lets through.
        """
        self._datasets = datasets
        self._calls = calls
        self._describe_calls = describe_calls
        self._batch_bytes_max = batch_bytes_max
        self._request_bytes_max = request_bytes_max

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a grpc.Server needs in order to route calls here.

        Requests are taken as streams of one message, which is the same on the wire: of a single
        message gRPC would wait for ever, in a thread that nobody has counted yet.
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
        with answering(context), self._calls.admit(context) as call:
            message = self._calls.request(call, messages)
            stream = self._open(parsed(pb.GetBatchRequest, message))
            for frame_message in stream.frames(call.peer):
                yield from self._calls.hand_over(call, frame_message)

    def describe(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Answer Describe: return an encoded DescribeResponse."""
        with answering(context), self._describe_calls.admit(context) as call:
            message = self._describe_calls.request(call, messages)
            return self._describe(parsed(pb.DescribeRequest, message)).SerializeToString()
        return b""

    def _open(self, request: pb.GetBatchRequest) -> _Stream:
        """Check a request field by field and return the stream that it asks for."""
        dataset = self._dataset(request.dataset)
        dataset.store.require_intact()
        order = orders.find(request.order)
        position = Position(
            request.first_sample,
            request.batch_size,
            request.rank,
            request.world_size if request.HasField("world_size") else 1,
        )
        require_range("first_row", request.first_row, 0, request.batch_size)
        if request.planes:
            raise InvalidRequest(
                "planes", f"this server has no plane {request.planes[0]}, only the tokens"
            )
        plan = Plan(dataset.store.token_counts, request.context_length, order, request.seed)
        row_bytes = (request.context_length + 1) * dataset.store.dtype.itemsize
        self._require_within_limits(request.batch_size, row_bytes)
        batch_count = request.num_batches if request.HasField("num_batches") else None
        if position.batches_left < (1 if batch_count is None else batch_count):
            raise SamplesExhausted(
                "first_sample" if batch_count is None else "num_batches",
                f"only {position.batches_left} batches from first_sample on stay below sample 2^63",
            )
        identity = stream_identity(order, request.seed, request.context_length, dataset.fingerprint)
        _require_expected(
            "expected_identity",
            request.expected_identity,
            identity,
            "this stream's identity, {}: another corpus, order, seed or context length",
        )
        _require_expected(
            "expected_digest",
            request.expected_digest,
            dataset.digest,
            "this corpus' digest, {}: other content",
        )
        return _Stream(dataset, plan, position, identity, row_bytes, request.first_row, batch_count)

    def _describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        names = (
            [self._dataset(request.dataset).name]
            if request.dataset
            else sorted(self._datasets, key=str.encode)
        )
        context_length = request.context_length if request.HasField("context_length") else None
        if context_length is not None:
            require_range("context_length", context_length, 1, SAMPLE_END)
        return pb.DescribeResponse(
            datasets=[_describe_dataset(self._datasets[name], context_length) for name in names],
            orders=list(orders.ORDERS),
            limits=pb.Limits(
                batch_size_max=BATCH_SIZE_MAX,
                batch_bytes_max=self._batch_bytes_max,
                world_size_max=WORLD_SIZE_MAX,
                request_bytes_max=self._request_bytes_max,
                row_bytes_max=frame.ROW_BYTES_MAX,
            ),
            server_version=__version__,
            identity_version=IDENTITY_VERSION,
        )

    def _dataset(self, name: str) -> Dataset:
        names = [served[:_NAME_SHOWN] for served in sorted(self._datasets)]
        served = ", ".join(names[:_NAMES_SHOWN]) + (
            f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        )
        if not name and len(self._datasets) > 1:
            raise InvalidRequest("dataset", f"has to be named, since several are served: {served}")
        dataset = self._datasets.get(name) if name else next(iter(self._datasets.values()))
        if dataset is None:
            raise NotServed(
                "dataset", f"{name[:_NAME_SHOWN]!r} is not served here; there is {served}"
            )
        return dataset

    def _require_within_limits(self, batch_size: int, row_bytes: int) -> None:
        if row_bytes > frame.ROW_BYTES_MAX:
            raise OverLimit(
                "context_length",
                f"a row of {row_bytes} bytes is above the limit of {frame.ROW_BYTES_MAX} bytes",
            )
        if batch_size * row_bytes > self._batch_bytes_max:
            raise OverLimit(
                "batch_size",
                f"a batch of {batch_size * row_bytes} bytes is above this server's limit "
                f"of {self._batch_bytes_max} bytes",
            )


@dataclass(frozen=True, slots=True)
class _Stream:
    """One call of GetBatch, checked: what is left is to do it.  batch_count: None is without
    end.
    """

    dataset: Dataset
    plan: Plan
    position: Position
    identity: bytes
    row_bytes: int
    first_row: int
    batch_count: int | None

    def frames(self, peer: str) -> Iterator[bytes]:
        """Yield the frames in order, made in turn with those of other peers.

        Raises: CorpusChanged; SamplesExhausted at sample 2^63.
        """
        batches = self.position.batches_left if self.batch_count is None else self.batch_count
        end_row = batches * self.position.batch_size
        rows = PlannedRows(self.plan, self.position, self.first_row, end_row)
        # Of the shortest rows not all, or the first frame waits for their plan.
        rows_ahead = min(PLAN_ROWS, frame.rows_per_frame(READ_AHEAD_BYTES, self.row_bytes))
        frame_bytes = frame.FRAME_BYTES_FIRST
        first = advised_end = self.first_row
        while first < end_row:
            end = min(first + frame.rows_per_frame(frame_bytes, self.row_bytes), end_row)
            ahead = rows.between(advised_end, end + rows_ahead)
            self.dataset.store.advise(self._spans(ahead))
            advised_end = min(end + rows_ahead, end_row)
            message = self._frame(rows.between(first, end), first, peer)
            handed_over = time.monotonic()
            yield message
            rows.forget(end)
            frame_bytes = frame.next_frame_bytes(frame_bytes, time.monotonic() - handed_over)
            first = end
            had_bytes = (end - self.first_row) * self.row_bytes
            frame_bytes = self.dataset.turns.modest(frame_bytes, had_bytes)
        if self.batch_count is None:
            raise SamplesExhausted("first_sample", "the next batch would reach sample 2^63")

    def _frame(self, windows: Windows, stream_row: int, peer: str) -> bytes:
        """Return windows as an encoded frame.  stream_row: where in the stream they begin."""
        store = self.dataset.store
        # Whoever waits for the disk must not keep others from waiting for it too.
        turn = nullcontext() if store.cold else self.dataset.turns.take(peer)
        with turn, store.gather(self._spans(windows)) as block:
            return frame.encode(
                self.identity,
                self.position,
                stream_row,
                len(block),
                store.dtype.itemsize,
                block.tokens.reshape(-1).view(np.uint8),
            )

    def _spans(self, windows: Windows) -> Spans:
        row_tokens = self.row_bytes // self.dataset.store.dtype.itemsize
        return Spans.of_windows(row_tokens, windows.shard, windows.token_offset)


def _describe_dataset(dataset: Dataset, context_length: int | None) -> pb.Dataset:
    store = dataset.store
    described = pb.Dataset(
        name=dataset.name,
        dtype=store.stored.name,
        token_bytes=store.dtype.itemsize,
        token_count=int(store.token_counts.sum()),
        file_count=len(store.shards),
        longest_file_tokens=int(store.token_counts.max()),
        fingerprint=dataset.fingerprint,
        digest=dataset.digest,
    )
    if context_length is not None:
        described.windows_per_epoch = int(
            window_places(store.token_counts, context_length, has_epochs=True).sum()
        )
        described.window_starts = int(
            window_places(store.token_counts, context_length, has_epochs=False).sum()
        )
    return described


def _require_expected(field: str, expected: bytes, actual: bytes, what: str) -> None:
    """Compare a hash of 32 bytes with ours, where both are known."""
    if expected and len(expected) != _HASH_BYTES:
        raise InvalidRequest(field, f"has {len(expected)} bytes, not {_HASH_BYTES}")
    if expected and actual and expected != actual:
        raise StreamMismatch(field, f"{expected.hex()} is not {what.format(actual.hex())}")
