"""The contract's refusals, one by one, and the content of streams."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from tests.server.conftest import options
from tests.server.requests import Weighted, batches, mixed
from tests.support import reference
from tests.support.waiting import eventually
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling import orders
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.rpc import listener
from tokenfeed.server.rpc.activity.tracker import Activity
from tokenfeed.server.rpc.admission import AdmissionControl, StreamLimits
from tokenfeed.server.rpc.fair_scheduler import FairScheduler
from tokenfeed.server.rpc.frame_producer import FrameProducer, Schedulers
from tokenfeed.server.rpc.service import TokenFeed
from tokenfeed.server.storage.documents import Delimiters, document_search
from tokenfeed.server.storage.store import TokenStore
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import CONTRACT_REVISION, AnyRequest, Expected
from tokenfeed.wire.request import Request as BatchRequest

CALL_SECONDS = 10.0
BATCH_BYTES_MAX = 32 << 20
REQUEST_BYTES_MAX = 1 << 16
LIMITS = StreamLimits()
SECRET = "/secret/place/tokens.bin"

Status = grpc.StatusCode
RowRequest = pb.GetBatchRequest | pb.GetRowsRequest
Request = RowRequest | pb.DescribeRequest


Ending = tuple[grpc.StatusCode, str]
"""Status and sentence that a call ends with."""


class Peer:
    """A client with gRPC's own limits, and nothing between it and the wire."""

    def __init__(self, address: str, activity: Activity) -> None:
        """activity: that of the server."""
        self.address = address
        self.activity = activity
        self.channel = grpc.insecure_channel(address)

    def ask(self, request: Request | bytes, method: str = "") -> tuple[list[bytes], Ending]:
        """All that is answered, and how the call ends.  method: by default that of the request."""
        if not method and not isinstance(request, bytes):
            method = request.DESCRIPTOR.name.removesuffix("Request")
        message = request if isinstance(request, bytes) else request.SerializeToString()
        ask = self.channel.unary_stream(f"/tokenfeed.v1.TokenFeed/{method or 'GetBatch'}")
        call = ask(message, timeout=CALL_SECONDS)
        answers: list[bytes] = []
        try:
            answers.extend(call)  # keeps what comes before a call breaks
        except grpc.RpcError:
            pass
        return answers, (call.code(), call.details())

    def frames(self, request: RowRequest) -> list[frame.Frame]:
        """All frames of a call that is granted."""
        messages, ending = self.ask(request)
        assert ending[0] is Status.OK, ending
        return [frame.decode(message) for message in messages]

    def rows(self, request: RowRequest) -> npt.NDArray[np.uint8]:
        """The rows of a call that is granted, uint8[n, row_bytes]."""
        return rows_of(self.frames(request), request.stream.stage.context_length)

    def refusal(self, request: Request | bytes, method: str = "") -> Ending:
        """How a call ends that has no answer."""
        answers, ending = self.ask(request, method)
        assert answers == []
        return ending

    def describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        (answer,), ending = self.ask(request, "Describe")
        assert ending[0] is Status.OK, ending
        return pb.DescribeResponse.FromString(answer)


class FewSlots(TokenFeed):
    """A service whose schedulers have one slot each."""

    def __init__(self, *arguments: Any, **limits: Any) -> None:
        super().__init__(*arguments, **limits)
        for name in self._schedulers:
            self._schedulers[name] = Schedulers(FairScheduler(1), FairScheduler(1))


def rows_of(frames: list[frame.Frame], context_length: int) -> npt.NDArray[np.uint8]:
    width = (context_length + 1) * 2
    return np.concatenate(
        [np.empty((0, width), np.uint8), *(f.tokens.reshape(-1, width) for f in frames)]
    )


@contextmanager
def serving(
    datasets: Mapping[str, Dataset],
    batch_bytes_max: int = BATCH_BYTES_MAX,
    limits: StreamLimits = LIMITS,
    kind: type[TokenFeed] = TokenFeed,
    request_bytes_max: int = REQUEST_BYTES_MAX,
) -> Iterator[Peer]:
    """Serve on a free port, in this process."""
    calls, activity = AdmissionControl(limits), Activity()
    service = kind(
        datasets,
        calls,
        calls,
        activity,
        batch_bytes_max=batch_bytes_max,
        request_bytes_max=request_bytes_max,
    )
    server = listener.create_server(
        service.handler(), calls_max=64, request_bytes_max=request_bytes_max
    )
    address = listener.bind(server, "127.0.0.1", 0)
    server.start()
    peer = Peer(address, activity)
    try:
        yield peer
    finally:
        peer.channel.close()
        calls.drain()
        server.stop(None).wait()


@contextmanager
def opened(*sources: DatasetSource) -> Iterator[dict[str, Dataset]]:
    datasets = {
        source.name: open_dataset(source, options("<u2"), TokenChecks()) for source in sources
    }
    try:
        yield datasets
    finally:
        for dataset in datasets.values():
            dataset.close()


def write(path: Path, token_count: int, seed: int = 0) -> str:
    tokens = np.random.default_rng(seed).integers(1, 1 << 16, token_count, dtype="<u2")
    tokens.tofile(path)
    return str(path)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Dataset]]:
    """ "long" has 20,000 tokens in one file, "short" has 300 and 100 in two."""
    folder = tmp_path_factory.mktemp("service")
    short = (write(folder / "short-0.bin", 300, seed=1), write(folder / "short-1.bin", 100, seed=2))
    with opened(
        DatasetSource("long", (write(folder / "long.bin", 20_000),)), DatasetSource("short", short)
    ) as both:
        yield both


@pytest.fixture(scope="module")
def peer(datasets: dict[str, Dataset]) -> Iterator[Peer]:
    """A client of a server of both datasets."""
    with serving(datasets) as found:
        yield found


@pytest.fixture(scope="module")
def lone_peer(datasets: dict[str, Dataset]) -> Iterator[Peer]:
    """A client of a server of "short" alone."""
    with serving({"short": datasets["short"]}) as found:
        yield found


def asking(**fields: object) -> pb.GetBatchRequest:
    """A request that would be granted, but for the fields given; a field of None is left out."""
    chosen = {"batch_size": 4, "context_length": 16, "dataset": "short", "num_batches": 2, **fields}
    return batches(**chosen)


def require_refusal(found: Ending, status: Status, field: str, *mentions: object) -> None:
    """Check the status, the field at the beginning of the sentence, and its text."""
    assert found[0] is status, found
    assert found[1].startswith(f"{field}: "), found
    for mention in mentions:
        assert str(mention) in found[1], f"{mention} is not in {found[1]!r}"


# INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["GetBatch", "Describe"])
@pytest.mark.parametrize(
    "message", [b"\x0a\xff", b"\x22\x02\xc3\x28\x0a\x02\xc3\x28", b"\xff" * 100]
)
def test_what_cannot_be_parsed_is_the_caller_s_error(
    peer: Peer, method: str, message: bytes
) -> None:
    """gRPC alone would return INTERNAL, which clients retry forever."""
    found = peer.refusal(message, method)
    require_refusal(found, Status.INVALID_ARGUMENT, "request", f"{method}Request")


@pytest.mark.parametrize("batch_size", [None, 0, (1 << 20) + 1, (1 << 64) - 1])
def test_a_batch_has_between_one_and_a_million_rows(peer: Peer, batch_size: int | None) -> None:
    """Unset is zero on the wire, so a client that forgets it needs an error."""
    found = peer.refusal(asking(batch_size=batch_size))
    require_refusal(found, Status.INVALID_ARGUMENT, "batch_size", batch_size or 0, 1, 1 << 20)


@pytest.mark.parametrize("context_length", [None, 0])
def test_a_row_has_at_least_one_input(peer: Peer, context_length: int | None) -> None:
    """Unset is zero on the wire, so a client that forgets it needs an error."""
    found = peer.refusal(asking(context_length=context_length))
    require_refusal(found, Status.INVALID_ARGUMENT, "context_length", 0, 1)


@pytest.mark.parametrize("context_length", [300, 301, 1 << 63, (1 << 64) - 1])
def test_a_row_has_to_fit_into_the_longest_file(peer: Peer, context_length: int) -> None:
    """A window never crosses files, so their length together does not count: 300 and 100 here."""
    found = peer.refusal(asking(context_length=context_length))
    require_refusal(found, Status.INVALID_ARGUMENT, "context_length", context_length, 300)


def test_the_longest_row_that_fits_is_served(peer: Peer) -> None:
    """The limit is exact: its T + 1 tokens are the whole file."""
    assert peer.rows(asking(context_length=299, batch_size=1, num_batches=1)).shape == (1, 600)


@pytest.mark.parametrize("world_size", [0, (1 << 32) + 1])
def test_there_is_at_least_one_rank_and_at_most_2_to_the_32(peer: Peer, world_size: int) -> None:
    """Zero is not the same as unset here: it is a launcher's mistake."""
    found = peer.refusal(asking(world_size=world_size))
    require_refusal(found, Status.INVALID_ARGUMENT, "world_size", world_size, 1, 1 << 32)


@pytest.mark.parametrize(("rank", "world_size"), [(1, None), (1, 1), (8, 8), ((1 << 64) - 1, 8)])
def test_a_rank_is_below_the_world_size(peer: Peer, rank: int, world_size: int | None) -> None:
    """Ranks counted from 1 would train on each other's data."""
    found = peer.refusal(asking(rank=rank, world_size=world_size))
    require_refusal(found, Status.INVALID_ARGUMENT, "rank", rank, "world_size", world_size or 1)


@pytest.mark.parametrize("first_row", [4, 5, (1 << 64) - 1])
def test_a_first_row_is_within_the_batch(peer: Peer, first_row: int) -> None:
    """Later rows need a later first_sample: each position has one name."""
    found = peer.refusal(asking(first_row=first_row))
    require_refusal(found, Status.INVALID_ARGUMENT, "first_row", first_row, 3)


@pytest.mark.parametrize("field", ["expected_identity", "expected_digest"])
@pytest.mark.parametrize("size", [1, 31, 33, 64])
def test_an_identity_and_a_digest_have_32_bytes(peer: Peer, field: str, size: int) -> None:
    """A hexadecimal or truncated one is a bug of the caller, and no other corpus."""
    found = peer.refusal(asking(**{field: b"x" * size}))
    require_refusal(found, Status.INVALID_ARGUMENT, field, size, 32)


@pytest.mark.parametrize("plane", [0, 50, 51, 52, 54, 99, 100, 101, (1 << 32) - 1])
def test_a_plane_that_does_not_exist_is_not_silently_left_out(peer: Peer, plane: int) -> None:
    """A trainer that requests a loss mask and gets none would train on everything."""
    found = peer.refusal(asking(planes=[pb.WantedPlane(kind=plane)]))
    require_refusal(found, Status.INVALID_ARGUMENT, "planes", plane)


def first_token(path: str) -> int:
    return int(np.fromfile(path, "<u2", 1)[0])


def test_documents_that_are_searched_for_are_promised_and_then_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client retries, and its user learns how long that may take."""
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 100)
    source = DatasetSource("a", (write(tmp_path / "a.bin", 300),))
    planes = PlaneOptions(delimiters=Delimiters(end=first_token(source.paths[0])))
    request = asking(dataset="a", planes=[pb.WantedPlane(kind=50)], num_batches=1)
    with closing(open_dataset(source, options("<u2"), TokenChecks(), planes=planes)) as dataset:
        with serving({"a": dataset}) as peer:
            code, message = peer.refusal(request)
            dataset.search_now()
            (found,) = peer.frames(request)

    assert code is Status.UNAVAILABLE
    assert "'a' is still being searched for document borders; 0.0 % are done" in message
    assert [plane.kind for plane in found.planes] == [50]


def test_a_search_for_documents_that_has_failed_is_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has to act: to wait does not help."""
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 100)

    def fail(*_: object) -> None:
        raise InvalidCorpus("a.bin", "its document borders can be written nowhere")

    monkeypatch.setattr(document_search.StartsBuilder, "make", fail)
    source = DatasetSource("a", (write(tmp_path / "a.bin", 300),))
    planes = PlaneOptions(delimiters=Delimiters(end=first_token(source.paths[0])))
    request = asking(dataset="a", planes=[pb.WantedPlane(kind=50)], num_batches=1)
    with closing(open_dataset(source, options("<u2"), TokenChecks(), planes=planes)) as dataset:
        dataset.start_search()
        with serving({"a": dataset}) as peer:
            assert eventually(lambda: "failed" in peer.refusal(request)[1])
            code, message = peer.refusal(request)

    assert code is Status.UNAVAILABLE
    assert "the search for them failed; the log of its server says why" in message


def test_the_dataset_has_to_be_named_where_several_are_served(peer: Peer) -> None:
    """A second dataset must not change what an old client gets: it has to choose."""
    found = peer.refusal(asking(dataset=None))
    require_refusal(found, Status.INVALID_ARGUMENT, "dataset", "long", "short")


def test_the_dataset_may_be_omitted_if_only_one_is_served(lone_peer: Peer) -> None:
    """The common case is one corpus and a client that knows no names."""
    unnamed, named = lone_peer.rows(asking(dataset=None)), lone_peer.rows(asking())
    np.testing.assert_array_equal(unnamed, named)


@pytest.mark.parametrize("context_length", [0, 1 << 63, (1 << 64) - 1])
def test_describe_counts_windows_of_a_length_from_1_to_2_to_the_63(
    peer: Peer, context_length: int
) -> None:
    """Zero would be a division by zero, and int64 ends below 2^63."""
    found = peer.refusal(pb.DescribeRequest(context_length=context_length), "Describe")
    require_refusal(
        found, Status.INVALID_ARGUMENT, "context_length", context_length, 1, (1 << 63) - 1
    )


# NOT_FOUND


@pytest.mark.parametrize("name", ["nobody", "Short", "short ", "long,short", "nö", "x" * 50_000])
def test_a_dataset_that_is_not_served_is_not_found(peer: Peer, name: str) -> None:
    """The sentence lists the datasets, so a misspelling is easy to fix; and it fits a header."""
    found = peer.refusal(asking(dataset=name))
    require_refusal(found, Status.NOT_FOUND, "dataset", name[:64], "long", "short")
    assert len(found[1]) < 1000


@pytest.mark.parametrize("sign", ["a", "%", "ö", "語", "😀"])
def test_a_refusal_that_lists_names_fits_a_header_whatever_they_are_made_of(
    datasets: dict[str, Dataset], sign: str
) -> None:
    """gRPC writes a byte that is not ASCII as three; what is too long may arrive as "busy"."""
    named = {f"{index:02}{sign * 70}": datasets["short"] for index in range(17)}
    with serving(named) as peer:
        for name, status in ((None, Status.INVALID_ARGUMENT), (sign * 70, Status.NOT_FOUND)):
            found = peer.refusal(asking(dataset=name))
            require_refusal(found, status, "dataset", f"00{sign}", f"15{sign}", "and 1 more")
            assert 3 * len(found[1].encode()) < 4096


def test_describe_does_not_find_a_dataset_that_is_not_served(peer: Peer) -> None:
    """An empty list instead would mean a server that serves nothing."""
    found = peer.refusal(pb.DescribeRequest(dataset="nobody"), "Describe")
    require_refusal(found, Status.NOT_FOUND, "dataset", "nobody", "long", "short")


@pytest.mark.parametrize("name", ["random", "random-2", "Random-1", "latest", "y" * 50_000])
def test_an_order_goes_by_its_name_with_its_version(peer: Peer, name: str) -> None:
    """ "random" alone would mean another stream once there is a random-2."""
    found = peer.refusal(asking(order=name))
    require_refusal(
        found, Status.NOT_FOUND, "order", name[:64], "random-1", "shuffled-1", "sequential-1"
    )
    assert len(found[1]) < 1000


# Above a limit


def test_a_batch_above_the_server_s_limit_is_refused(peer: Peer) -> None:
    """A retry does not help: a client that took it for a busy server would retry forever."""
    most = BATCH_BYTES_MAX // (2 * 10_000)
    found = peer.refusal(
        asking(dataset="long", context_length=9_999, batch_size=most + 1, num_batches=0)
    )
    require_refusal(
        found, Status.INVALID_ARGUMENT, "batch_size", (most + 1) * 20_000, BATCH_BYTES_MAX
    )
    assert (
        peer.frames(asking(dataset="long", context_length=9_999, batch_size=most, num_batches=0))
        == []
    )


def test_a_row_above_the_limit_is_refused(tmp_path: Path) -> None:
    """A row is never cut, and a protobuf message cannot exceed 2 GiB."""
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 4096)  # a hole: it takes no room on the disk
    with (
        opened(DatasetSource("huge", (str(path),))) as datasets,
        serving(datasets, 1 << 40) as peer,
    ):
        found = peer.refusal(
            asking(dataset="huge", batch_size=1, context_length=1 << 29, num_batches=0)
        )
        limit = peer.describe(pb.DescribeRequest()).limits.row_bytes_max
        fits = asking(dataset="huge", batch_size=1, context_length=limit // 2 - 1, num_batches=0)
        assert peer.frames(fits) == []
    require_refusal(found, Status.INVALID_ARGUMENT, "context_length", (1 << 30) + 2, limit)


def test_a_request_above_the_described_size_is_refused(peer: Peer) -> None:
    """Reading it would let any client fill the server's memory."""
    limit = peer.describe(pb.DescribeRequest()).limits.request_bytes_max
    assert peer.refusal(asking(dataset="x" * limit))[0] is Status.RESOURCE_EXHAUSTED
    assert peer.refusal(asking(dataset="x" * (limit - 100)))[0] is Status.NOT_FOUND


# OUT_OF_RANGE


@pytest.mark.parametrize("first_sample", [1 << 63, (1 << 64) - 1])
def test_a_stream_begins_below_sample_2_to_the_63(peer: Peer, first_sample: int) -> None:
    """Samples are int64 in the plan: above, they would be negative."""
    found = peer.refusal(asking(first_sample=first_sample))
    require_refusal(found, Status.OUT_OF_RANGE, "first_sample", first_sample, "2^63")


def test_samples_beyond_2_to_the_63_are_refused_at_once_where_batches_are_counted(
    peer: Peer,
) -> None:
    """A client with a fixed number of batches gets the error before the first frame."""
    ends_exactly = asking(first_sample=(1 << 63) - 12, num_batches=3)
    one_more = asking(first_sample=(1 << 63) - 12, num_batches=4)
    assert len(peer.rows(ends_exactly)) == 12
    require_refusal(peer.refusal(one_more), Status.OUT_OF_RANGE, "num_batches", 3, "2^63")
    endless = asking(num_batches=(1 << 64) - 1)
    require_refusal(peer.refusal(endless), Status.OUT_OF_RANGE, "num_batches", "2^63")


@pytest.mark.parametrize("order", ["random-1", "shuffled-1", "sequential-1"])
def test_an_endless_stream_ends_at_2_to_the_63_after_the_batches_that_fit(
    peer: Peer, order: str
) -> None:
    """The last batches exist, so they are delivered; only then is there nothing more to give."""
    request = asking(order=order, first_sample=(1 << 63) - 14, num_batches=None)
    messages, ending = peer.ask(request)
    counted = peer.rows(asking(order=order, first_sample=(1 << 63) - 14, num_batches=3))
    np.testing.assert_array_equal(rows_of([frame.decode(m) for m in messages], 16), counted)
    require_refusal(ending, Status.OUT_OF_RANGE, "first_sample", "2^63")


def test_each_rank_goes_as_far_as_its_own_samples(peer: Peer) -> None:
    """The limit is exact for every rank, whichever rows of a batch the others have."""
    near = {"first_sample": (1 << 63) - 12, "world_size": 3, "batch_size": 4, "num_batches": 1}
    for rank in range(3):
        assert len(peer.rows(asking(rank=rank, **near))) == 4
    later = {**near, "first_sample": (1 << 63) - 11}
    assert len(peer.rows(asking(rank=1, **later))) == 4
    require_refusal(peer.refusal(asking(rank=2, **later)), Status.OUT_OF_RANGE, "num_batches")


# FAILED_PRECONDITION


def test_another_identity_is_refused_before_the_first_frame(
    peer: Peer, datasets: dict[str, Dataset]
) -> None:
    """Resuming on another corpus, seed, order or T would otherwise go on, silently wrong."""
    expected = reference.identity("random-1", 7, 16, datasets["short"].fingerprint)
    right = asking(seed=7, expected_identity=expected)
    assert len(peer.rows(right)) == 8
    for wrong in (
        asking(seed=8, expected_identity=expected),
        asking(seed=7, context_length=17, expected_identity=expected),
        asking(seed=7, order="shuffled-1", expected_identity=expected),
        asking(seed=7, dataset="long", expected_identity=expected),
    ):
        require_refusal(
            peer.refusal(wrong), Status.FAILED_PRECONDITION, "expected_identity", expected.hex()
        )


def test_another_digest_is_refused_where_the_server_knows_its_own(
    peer: Peer, datasets: dict[str, Dataset]
) -> None:
    """A connection may silently lead to another server than the one that was compared."""
    known = datasets["short"].digest
    assert len(peer.rows(asking(expected_digest=known))) == 8
    require_refusal(
        peer.refusal(asking(expected_digest=bytes(32))),
        Status.FAILED_PRECONDITION,
        "expected_digest",
        known.hex(),
    )


def test_a_digest_that_becomes_known_is_reported_and_compared_from_then_on(
    datasets: dict[str, Dataset],
) -> None:
    """The digest of a large corpus is not known at the start."""
    late = dataclasses.replace(datasets["short"], digest=b"")
    other = asking(expected_digest=bytes(32))
    with serving({"short": late}) as peer:
        assert peer.describe(pb.DescribeRequest()).datasets[0].digest == b""
        assert len(peer.rows(other)) == 8

        late.digest = datasets["short"].digest

        assert peer.describe(pb.DescribeRequest()).datasets[0].digest == late.digest
        found = peer.refusal(other)
    require_refusal(found, Status.FAILED_PRECONDITION, "expected_digest", late.digest.hex())


def test_the_seed_of_an_order_that_ignores_it_is_not_part_of_the_identity(peer: Peer) -> None:
    """Two runs over the same tokens in the same order are the same stream."""
    (found,) = peer.frames(asking(order="sequential-1", seed=1, num_batches=1))
    again = asking(order="sequential-1", seed=2, expected_identity=found.identity)
    assert len(peer.rows(again)) == 8


def test_batch_size_rank_and_position_are_not_part_of_the_identity(peer: Peer) -> None:
    """A saved state has to be good for another number of GPUs."""
    (found,) = peer.frames(asking(num_batches=1))
    other = asking(
        batch_size=3, rank=5, world_size=6, first_sample=1 << 40, first_row=2,
        expected_identity=found.identity,
    )  # fmt: skip
    assert len(peer.rows(other)) == 4


# What a server does not know, or does not serve yet


@pytest.mark.parametrize("number", [20, 49, 99])
@pytest.mark.parametrize("wire_type", [0, 1, 2, 5])
def test_a_field_that_has_to_be_understood_is_refused_by_its_number(
    peer: Peer, number: int, wire_type: int
) -> None:
    """A later client requests something that this server would silently omit."""
    payload = {0: b"\x01", 1: bytes(8), 2: b"\x01x", 5: bytes(4)}[wire_type]
    tag = number << 3 | wire_type
    field = bytes([tag & 0x7F | 0x80, tag >> 7]) + payload

    for method, request in (
        ("GetBatch", asking().SerializeToString()),
        ("Describe", b""),
    ):
        found = peer.refusal(request + field, method)
        require_refusal(found, Status.INVALID_ARGUMENT, "request", number, f"{method}Request")


def test_a_field_within_a_message_has_to_be_understood_too(peer: Peer) -> None:
    """Sources, stages and planes will have more fields one day."""
    plane = b"\x08\x33\xc8\x01\x01"  # kind 51, field 25
    found = peer.refusal(asking().SerializeToString() + b"\x4a" + bytes([len(plane)]) + plane)
    require_refusal(found, Status.INVALID_ARGUMENT, "request", 25, "WantedPlane")


def test_a_known_field_of_another_type_is_not_taken_for_unset(peer: Peer) -> None:
    """protobuf leaves it out: rank 1 as eight bytes would be rank 0."""
    rank = b"\x31" + (1).to_bytes(8, "little")
    found = peer.refusal(asking(world_size=2).SerializeToString() + rank)
    require_refusal(found, Status.INVALID_ARGUMENT, "request", 6, "GetBatchRequest")


def test_hints_change_nothing(peer: Peer) -> None:
    """A client with hints that this server does not know gets the same rows."""
    plain = peer.rows(asking())
    later_hint = b"\xfa\x07\x03abc"  # field 127
    for request in (
        asking(client_name="run-17 rank 3"),
        asking(client_name="\n" * 500),
        asking(declined_planes=[50, 51, 52, 7]),
    ):
        np.testing.assert_array_equal(peer.rows(request), plain)
    messages, ending = peer.ask(asking().SerializeToString() + later_hint)
    assert ending[0] is Status.OK
    np.testing.assert_array_equal(rows_of(list(map(frame.decode, messages)), 16), plain)


@pytest.mark.parametrize(
    ("order", "long_documents", "field", "mention"),
    [
        ("", "cut", "long_documents", "random-1 does not read documents; omit it"),
        ("packed-1", "", "order", "packed-1 needs to know where documents begin"),
        ("padded-1", "truncate", "order", "padded-1 needs to know where documents begin"),
        ("packed-1", "drop", "long_documents", "'drop' is not one of cut (packed-1)"),
        ("padded-1", "none", "long_documents", "'none' is not one of cut, drop, truncate"),
    ],
)
def test_what_is_wrong_with_an_order_over_documents_is_named(
    peer: Peer, order: str, long_documents: str, field: str, mention: str
) -> None:
    """In a request for rows, in one of a mixture, and in one that only counts them."""
    of_dataset = asking(order=order, long_documents=long_documents)
    source = pb.Source(dataset="short", order=order, long_documents=long_documents)
    both = (source, 1), (pb.Source(number=1, dataset="long"), 1)
    counted = pb.DescribeRequest(
        dataset="short", context_length=16, order=order, long_documents=long_documents
    )

    for found in (peer.refusal(of_dataset), peer.refusal(mixing(*both))):
        require_refusal(found, Status.INVALID_ARGUMENT, field, mention)
    require_refusal(peer.refusal(counted, "Describe"), Status.INVALID_ARGUMENT, field)


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"order": "shuffled-1", "context_length": 16}, Status.INVALID_ARGUMENT, "order"),
        ({"order": "packed-2", "context_length": 16}, Status.NOT_FOUND, "order"),
        ({"order": "packed-1"}, Status.INVALID_ARGUMENT, "context_length"),
        (
            {"order": "packed-1", "context_length": 16, "dataset": ""},
            Status.INVALID_ARGUMENT,
            "dataset",
        ),
    ],
)
def test_rows_that_cannot_be_counted_are_refused(
    peer: Peer, fields: dict[str, Any], status: Status, field: str
) -> None:
    """Of windows they are counted anyway, and documents are of one dataset and one length."""
    request = pb.DescribeRequest(**({"dataset": "short"} | fields))

    require_refusal(peer.refusal(request, "Describe"), status, field)


def mixing(*sources: Weighted, context_length: int = 16, **fields: Any) -> pb.GetBatchRequest:
    """A request of a mixture that would be granted, but for what is given."""
    given = sources or (
        (pb.Source(number=0, dataset="long", order="shuffled-1"), 2),
        (pb.Source(number=1, dataset="short", order="random-1"), 1),
    )
    stream = mixed(*given, seed=3, context_length=context_length)
    return pb.GetBatchRequest(**{"batch_size": 4, "num_batches": 2, "stream": stream} | fields)


@pytest.mark.parametrize(
    ("request_of_mixture", "status", "field", "mention"),
    [
        (
            mixing((pb.Source(dataset="none"), 1)),
            Status.NOT_FOUND,
            "dataset",
            "'none' is not served here, only long, short",
        ),
        (mixing((pb.Source(), 1)), Status.INVALID_ARGUMENT, "dataset", "has several"),
        (
            mixing(context_length=300),
            Status.INVALID_ARGUMENT,
            "context_length",
            "300 is not in [1, 300): the longest file of short has 300 tokens",
        ),
        (
            mixing(expected_identity=bytes(32)),
            Status.FAILED_PRECONDITION,
            "expected_identity",
            "stages differ",
        ),
        (
            mixing(
                (pb.Source(dataset="short"), 1),
                (pb.Source(dataset="long", number=1, expected_digest=bytes(range(32))), 1),
            ),
            Status.FAILED_PRECONDITION,
            "expected_digest",
            bytes(range(32)).hex(),
        ),
        (mixing(batch_size=1 << 20), Status.INVALID_ARGUMENT, "batch_size", "above the limit"),
        (
            mixing(planes=[pb.WantedPlane(kind=51)]),
            Status.INVALID_ARGUMENT,
            "planes",
            "51 (loss_mask) is no plane of long, short",
        ),
        (
            mixing(planes=[pb.WantedPlane(kind=52)]),
            Status.INVALID_ARGUMENT,
            "planes",
            "52 (token_counts) is of orders over documents only",
        ),
    ],
)
def test_what_is_wrong_with_a_mixture_is_named(
    peer: Peer, request_of_mixture: pb.GetBatchRequest, status: Status, field: str, mention: str
) -> None:
    """And with which of its sources."""
    require_refusal(peer.refusal(request_of_mixture), status, field, mention)


@pytest.mark.parametrize(
    ("long_request", "status", "field"),
    [
        (asking(planes=[pb.WantedPlane(kind=51)] * 10_000), Status.INVALID_ARGUMENT, "planes"),
        (
            mixing(*((pb.Source(number=n), 1) for n in range(2000, 0, -1))),
            Status.INVALID_ARGUMENT,
            "stage.shares",
        ),
        (
            mixing((pb.Source(order="x" * 30_000, long_documents="cut"), 1)),
            Status.NOT_FOUND,
            "order",
        ),
    ],
    ids=["planes", "numbers", "order"],
)
def test_the_refusal_of_a_long_request_is_short(
    peer: Peer, long_request: pb.GetBatchRequest, status: Status, field: str
) -> None:
    """gRPC turns one above 16 KiB into RESOURCE_EXHAUSTED, after which clients would retry."""
    found = peer.refusal(long_request)
    require_refusal(found, status, field)
    assert len(found[1]) < 200


def test_the_frames_of_a_mixture_have_the_identity_of_its_stage(
    peer: Peer, datasets: dict[str, Dataset]
) -> None:
    """By which a client knows what it reads, and that a replica has the same."""
    parts = [
        reference.Source(0, datasets["long"].fingerprint, "shuffled-1", 0, 0, 2),
        reference.Source(1, datasets["short"].fingerprint, "random-1", 0, 0, 1),
    ]
    identity = reference.stage_identity(bytes(32), 0, 0, 16, 3, parts)

    frames = peer.frames(mixing(expected_identity=identity))

    assert {found.identity for found in frames} == {identity}
    assert len(rows_of(frames, 16)) == 8


def test_a_source_that_has_failed_fails_the_mixtures_with_it(tmp_path: Path) -> None:
    """And no others: a stage without it is another stream."""
    sources = [
        DatasetSource(name, (write(tmp_path / f"{name}.bin", 20_000, seed),))
        for seed, name in enumerate(("long", "short", "third"))
    ]
    with opened(*sources) as datasets, serving(datasets) as peer:
        assert len(peer.rows(mixing())) == 8
        os.truncate(tmp_path / "short.bin", 100)
        request = mixing(num_batches=100)
        _, ending = peer.ask(request)
        assert ending[0] is Status.DATA_LOSS
        assert "'short' changed while it was served" in ending[1]
        require_refusal(peer.refusal(request), Status.DATA_LOSS, "dataset", "'short' changed")
        request.stream.sources[1].dataset = "third"
        assert len(peer.rows(request)) == 400


# What is granted


def test_no_batches_are_an_empty_stream(peer: Peer) -> None:
    """It is how a client checks a request without paying for an answer."""
    assert peer.frames(asking(num_batches=0)) == []
    assert peer.frames(asking(num_batches=0, first_row=3)) == []


def test_a_request_for_no_batches_is_checked_all_the_same(peer: Peer) -> None:
    """Otherwise the check would accept what is refused later."""
    for field, bad, status in (
        ("batch_size", 0, Status.INVALID_ARGUMENT),
        ("context_length", 300, Status.INVALID_ARGUMENT),
        ("rank", 1, Status.INVALID_ARGUMENT),
        ("first_row", 4, Status.INVALID_ARGUMENT),
        ("planes", [pb.WantedPlane(kind=51)], Status.INVALID_ARGUMENT),
        ("dataset", "nobody", Status.NOT_FOUND),
        ("order", "random", Status.NOT_FOUND),
        ("first_sample", 1 << 63, Status.OUT_OF_RANGE),
        ("expected_identity", b"x" * 32, Status.FAILED_PRECONDITION),
    ):
        found = peer.refusal(asking(**{"num_batches": 0, field: bad}))
        require_refusal(found, status, field)


def test_an_unset_order_means_random_1(peer: Peer, datasets: dict[str, Dataset]) -> None:
    """Forever: a default that changes would change existing streams."""
    unset, named = (
        peer.frames(asking(order=None, seed=3)),
        peer.frames(asking(order="random-1", seed=3)),
    )
    random_1 = reference.identity("random-1", 3, 16, datasets["short"].fingerprint)
    np.testing.assert_array_equal(rows_of(unset, 16), rows_of(named, 16))
    assert {f.identity for f in unset} == {f.identity for f in named} == {random_1}


@pytest.mark.parametrize("first_row", [1, 2, 3])
def test_first_row_leaves_out_exactly_the_rows_before_it(peer: Peer, first_row: int) -> None:
    """After a lost connection a client requests the rest of a batch, and gets each row once."""
    whole = peer.rows(asking(num_batches=3))
    frames = peer.frames(asking(num_batches=3, first_row=first_row))
    np.testing.assert_array_equal(rows_of(frames, 16), whole[first_row:])
    assert (frames[0].first_sample, frames[0].first_row) == (0, first_row)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("end_sample", [0, 1, 5, 6, 7, 17, 18, 22, 23, 24, 25, 1 << 40])
def test_end_sample_leaves_out_exactly_the_rows_from_it_on(
    peer: Peer, rank: int, end_sample: int
) -> None:
    """A stage of a mixture may begin within a batch: the call before ends there, on each rank."""
    place = {"batch_size": 4, "world_size": 3, "rank": rank, "first_sample": 2, "num_batches": 2}
    samples = Position(2, 4, rank, 3).samples(0, 8)
    whole = peer.rows(asking(**place))

    found = peer.rows(asking(end_sample=end_sample, **place))

    np.testing.assert_array_equal(found, whole[samples < end_sample])


def test_end_sample_alone_ends_a_call(peer: Peer) -> None:
    """Who knows the sample need not count batches; and at 2^63 nothing is left to refuse."""
    ended = asking(num_batches=None, end_sample=11)
    assert len(peer.rows(ended)) == 11
    last = asking(num_batches=None, first_sample=(1 << 63) - 5, end_sample=1 << 63)
    assert len(peer.rows(last)) == 5
    counted = asking(num_batches=9, first_sample=(1 << 63) - 5, end_sample=1 << 63)
    assert len(peer.rows(counted)) == 5


@pytest.mark.parametrize("order", ["random-1", "shuffled-1", "sequential-1"])
def test_a_call_whose_rows_are_all_left_out_ends_without_any(peer: Peer, order: str) -> None:
    """On the last ranks of a batch that a stage ends in; also where their samples are none."""
    request = asking(
        order=order, first_sample=(1 << 63) - 1, rank=1, world_size=2, end_sample=1 << 63
    )
    assert peer.frames(request) == []


def test_end_sample_is_at_most_2_to_the_63(peer: Peer) -> None:
    """There is no sample beyond."""
    found = peer.refusal(asking(end_sample=(1 << 63) + 1))
    require_refusal(found, Status.OUT_OF_RANGE, "end_sample", (1 << 63) + 1, "2^63")


def test_a_frame_says_where_a_request_would_have_to_begin(peer: Peer) -> None:
    """Its first_sample and first_row, sent as a request, give the same rows: a break heals."""
    request = {
        "dataset": "long",
        "context_length": 4999,
        "batch_size": 7,
        "rank": 1,
        "world_size": 3,
        "seed": 5,
    }
    whole = peer.frames(asking(num_batches=40, **request))
    assert len(whole) > 3
    for found in whole[:4]:
        place = {"first_sample": found.first_sample, "first_row": found.first_row}
        again = peer.rows(asking(num_batches=2, **request, **place))
        count = min(len(again), found.row_count)
        np.testing.assert_array_equal(again[:count], rows_of([found], 4999)[:count])


@pytest.mark.parametrize(
    ("batch_size", "context_length"), [(1024, 8192), (16, 19_999), (1 << 20, 1)]
)
def test_frames_stay_below_what_a_client_with_default_limits_takes(
    peer: Peer, batch_size: int, context_length: int
) -> None:
    """By default gRPC refuses messages above 4 MiB, whatever the size of a batch."""
    request = asking(
        dataset="long", batch_size=batch_size, context_length=context_length, num_batches=1
    )
    row_bytes, row_count = 2 * (context_length + 1), 0
    for number, message in enumerate(peer.ask(request)[0]):
        found = frame.decode(message)
        if number == 0:
            assert found.tokens.size <= 1 << 18, "the first batch would be late"
        assert found.tokens.size <= max(1 << 20, row_bytes)
        assert len(message) - found.tokens.size < 128
        row_count += found.row_count
    assert row_count == batch_size


def test_frames_grow_once_a_stream_is_taken_quickly(peer: Peer) -> None:
    """Small frames forever would cost most of the speed."""
    request = asking(dataset="long", batch_size=64, context_length=2047, num_batches=200)
    sizes = [found.tokens.size for found in peer.frames(request)]
    assert max(sizes) == 1 << 20


def test_describe_says_what_is_served(peer: Peer, datasets: dict[str, Dataset]) -> None:
    """Clients derive the identity from the fingerprint, and batches per epoch from the windows."""
    described = peer.describe(pb.DescribeRequest(context_length=150))
    assert [data.name for data in described.datasets] == ["long", "short"]
    short = described.datasets[1]
    assert (short.dtype, short.token_bytes) == ("uint16", 2)
    assert (short.token_count, short.file_count, short.longest_file_tokens) == (400, 2, 300)
    assert short.fingerprint == datasets["short"].fingerprint
    windows = 299 // 150 + 99 // 150
    assert {(rows.order, rows.rows) for rows in short.rows} == {
        ("random-1", 150),
        ("shuffled-1", windows),
        ("sequential-1", windows),
        ("blocks-1", 0),  # 150 does not divide a block
    }
    assert list(short.planes) == []
    assert not short.HasField("documents")
    of_windows = ["random-1", "shuffled-1", "sequential-1"]
    assert list(described.orders) == [*of_windows, "packed-1", "padded-1", "blocks-1"]
    assert described.limits.batch_bytes_max == BATCH_BYTES_MAX
    assert described.contract_revisions == [CONTRACT_REVISION]
    assert abs(described.server_time_ms / 1000 - time.time()) < 15


def test_describe_counts_no_rows_unless_it_is_given_a_length(peer: Peer) -> None:
    """No row and "not counted" are two things."""
    (bare,) = peer.describe(pb.DescribeRequest(dataset="short")).datasets
    (none,) = peer.describe(
        pb.DescribeRequest(dataset="short", context_length=(1 << 63) - 1)
    ).datasets
    assert list(bare.rows) == []
    assert [rows.rows for rows in none.rows] == [0, 0, 0, 0]


# Unexpected errors


class Unlucky(TokenFeed):
    """A service whose disk fails at each read."""

    def _open(self, *_: object) -> NoReturn:
        raise OSError(5, "Input/output error", SECRET)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.datasets.describe = self._open  # type: ignore[method-assign]


class FailingStore:
    """A store that fails after some frames; otherwise like any other."""

    def __init__(self, whole: TokenStore) -> None:
        self._whole = whole
        self._frames_left = 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def gather(
        self, spans: Spans, tokens: npt.NDArray[np.unsignedinteger], patient: bool = True
    ) -> None:
        self._frames_left -= 1
        if self._frames_left < 0:
            raise OSError(12, "Cannot allocate memory", SECRET)
        self._whole.gather(spans, tokens, patient)


def require_discreet(found: Ending, log: str) -> None:
    """Check that the caller is only told to retry elsewhere, and the operator where it
    was; neither sees a path or a token of its text.
    """
    require_refusal(found, Status.UNAVAILABLE, "server")
    for inside in ("secret", "/", "Error", "memory", "Traceback", ".py"):
        assert inside not in found[1]
    assert re.search(
        r"call failed peer=\S+: OSError E(IO|NOMEM) at tokenfeed/server/(rpc|rows)/\w+\.py:\d+$",
        log,
        re.M,
    )
    assert SECRET not in log
    assert "Traceback" not in log


@pytest.mark.parametrize("method", ["GetBatch", "Describe"])
def test_an_unforeseen_failure_is_for_the_log_and_not_for_the_caller(
    datasets: dict[str, Dataset], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Exceptions carry paths, and UNAVAILABLE is what sends a client elsewhere."""
    with serving(datasets, kind=Unlucky) as peer:
        found = peer.refusal(asking() if method == "GetBatch" else pb.DescribeRequest(), method)
    require_discreet(found, caplog.text)


@pytest.mark.parametrize("method", ["GetBatch", "Describe"])
def test_the_traceback_of_an_unforeseen_failure_is_in_the_log_at_level_debug(
    datasets: dict[str, Dataset], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A developer needs all of it; the line at level error contains no more than before."""
    with (
        caplog.at_level(logging.DEBUG, "tokenfeed.server"),
        serving(datasets, kind=Unlucky) as peer,
    ):
        peer.refusal(asking() if method == "GetBatch" else pb.DescribeRequest(), method)
    line, traceback = [r for r in caplog.records if r.name == "tokenfeed.server"][-2:]
    assert (line.levelname, traceback.levelname) == ("ERROR", "DEBUG")
    assert SECRET not in line.getMessage()
    assert traceback.exc_text is not None
    assert traceback.exc_text.startswith("Traceback")
    assert f"OSError: [Errno 5] Input/output error: '{SECRET}'" in traceback.exc_text


def test_a_failure_in_mid_stream_leaves_whole_frames_and_a_discreet_end(
    datasets: dict[str, Dataset], caplog: pytest.LogCaptureFixture
) -> None:
    """The client continues elsewhere after the last row, so all rows before have to be right."""
    whole = datasets["long"]
    broken = dataclasses.replace(whole, store=FailingStore(whole.store))
    request = asking(dataset="long", batch_size=64, context_length=2047, num_batches=8)
    with serving({"long": broken}) as peer:
        messages, ending = peer.ask(request)
    require_discreet(ending, caplog.text)
    received = rows_of([frame.decode(message) for message in messages], 2047)
    assert len(messages) == 3
    with serving({"long": whole}) as peer:
        np.testing.assert_array_equal(received, peer.rows(request)[: len(received)])


def test_a_file_cut_short_is_data_loss_for_its_dataset_alone(tmp_path: Path) -> None:
    """The caller learns that no retry helps here, and no path; the other dataset is served on."""
    sources = [
        DatasetSource(name, (write(tmp_path / f"{name}.bin", 9000),)) for name in ("cut", "whole")
    ]
    with opened(*sources) as datasets, serving(datasets) as peer:
        request = {"context_length": 8999, "batch_size": 1, "num_batches": 1}
        assert len(peer.rows(asking(dataset="cut", **request))) == 1
        Path(sources[0].paths[0]).write_bytes(b"")
        for _ in range(2):
            found = peer.refusal(asking(dataset="cut", **request))
            require_refusal(found, Status.DATA_LOSS, "dataset", "cut")
            assert "/" not in found[1]
        assert len(peer.rows(asking(dataset="whole", **request))) == 1


def test_a_call_above_the_limit_is_told_to_retry(datasets: dict[str, Dataset]) -> None:
    """The limit will pass: a training that ended over it would have ended for nothing."""
    endless = asking(dataset="long", num_batches=1 << 30).SerializeToString()
    with serving(datasets, limits=StreamLimits(streams=1, peer_streams=1)) as peer:
        ask = peer.channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
        first, second = ask(endless), ask(endless)
        next(first), next(second)
        with pytest.raises(grpc.RpcError) as caught:
            next(ask(endless))
        assert caught.value.code() is Status.RESOURCE_EXHAUSTED
        assert caught.value.details().startswith("streams: the server is at its limit of 1")
        (hint,) = caught.value.trailing_metadata()
        assert hint.key == "grpc-retry-pushback-ms"
        assert 500 <= int(hint.value) <= 1500
        first.cancel()
        second.cancel()
        stream = Stream.of_dataset("long", orders.find("random-1"), 0, 16)
        options = BatchRequest(stream, Position(0, 2), num_batches=1)
        remote = Servers(peer.address, options, timeouts=Timeouts(reconnect_seconds=10))
        waiting = remote.open_rows(options, prefetch_bytes=1 << 20, counters=Counters())
        waiting.start()
        assert [len(part) for part in waiting.peek(2) or ()] == [2]
        waiting.close()


def test_a_call_that_is_late_and_cancelled_does_not_revive_its_stream(
    datasets: dict[str, Dataset],
) -> None:
    """A busy server may open the stream of a cancelled call behind the goodbye of its client."""
    has_come, may_open, ends = threading.Event(), threading.Event(), threading.Semaphore(0)

    class Late(TokenFeed):
        """Opens the stream of a call with rows when it may, and tells the end of each call."""

        def _send_rows(self, *arguments: Any) -> Iterator[bytes]:
            try:
                yield from super()._send_rows(*arguments)
            finally:
                ends.release()

        def _open(self, request: AnyRequest, expected: Expected) -> FrameProducer:
            if request.row_count:
                has_come.set()
                assert may_open.wait(CALL_SECONDS)
            return super()._open(request, expected)

    with serving(datasets, kind=Late) as peer:
        ask = peer.channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
        late = ask(asking().SerializeToString())
        assert has_come.wait(CALL_SECONDS)
        late.cancel()
        assert peer.frames(asking(num_batches=0, is_last=True)) == []
        may_open.set()
        assert all(ends.acquire(timeout=CALL_SECONDS) for _ in range(2))
        (stream,), _ = peer.activity.streams(9)
    assert stream.has_ended


def test_calls_without_a_client_leave_room_for_other_datasets(
    datasets: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each retry of a client whose dataset hangs is one more call, until all of the limit are."""
    is_over, files = threading.Event(), datasets["long"].store.files
    gather = files.gather

    def hang(*arguments: Any) -> None:
        assert is_over.wait(60)
        gather(*arguments)

    monkeypatch.setattr(files, "gather", hang)
    with serving(datasets, limits=StreamLimits(streams=3), kind=FewSlots) as peer:
        ask = peer.channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
        hanging = [ask(asking(dataset="long").SerializeToString()) for _ in range(6)]
        streams = peer.activity._streams
        try:
            assert eventually(lambda: sum(each.calls for each in streams.values()) == 6)
            assert peer.refusal(asking())[0] is Status.RESOURCE_EXHAUSTED
            for call in hanging:
                call.cancel()
            assert eventually(lambda: peer.ask(asking())[1][0] is Status.OK)
        finally:
            is_over.set()
    assert "call failed" not in caplog.text
