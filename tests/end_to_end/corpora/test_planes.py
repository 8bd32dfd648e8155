"""Planes travel with their rows, and a change on the way never becomes other rows.

They come from memory, through the real service and client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor

from tests.server.requests import batches
from tests.server.rpc.test_service import Peer, serving
from tests.support.frames import encode
from tests.support.gathering import gather_block
from tests.support.memory_store import MemoryStore
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.errors import BadFrame
from tokenfeed.sampling import orders
from tokenfeed.sampling.plan import plan
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Corpus, Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import Expected, Hints, Request, to_message
from tokenfeed.wire.row_block import RowBlock

B, T = 3, 7
SEPARATOR = "__"
KINDS = (DOCUMENT_STARTS, LOSS_MASK)
FINGERPRINT = bytes(range(32))
STREAM = Stream.of_dataset("train", orders.find("shuffled-1"), 11, T).known(
    {0: Corpus(FINGERPRINT)}
)
IDENTITY = STREAM.identity(0)
POSITION = Position(first_sample=30, batch_size=B, rank=1, world_size=2)


def make_store() -> MemoryStore:
    numbers = np.random.default_rng(5)
    shards = [numbers.integers(0, 50_000, count, dtype="<u2") for count in (400, 300)]
    masks = [numbers.integers(0, 2, shard.size) for shard in shards]
    starts = [np.flatnonzero(numbers.random(shard.size) < 0.2) for shard in shards]
    return MemoryStore("train", shards, masks, starts)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return make_store()


@pytest.fixture(scope="module")
def peer(store: MemoryStore) -> Iterator[Peer]:
    other = MemoryStore("other", [np.arange(700, dtype="<u2")], [np.ones(700)])
    datasets = {
        "train": Dataset("train", store, FINGERPRINT, bytes(32)),
        "other": Dataset("other", other, bytes(32), bytes([1] * 32)),
    }
    with serving(datasets) as found:
        yield found


def rows_of(store: MemoryStore, first_row: int, row_count: int) -> RowBlock:
    """The rows that have to come, from the plan and the arrays themselves."""
    spans = plan(STREAM, [store.shape], POSITION.samples(first_row, row_count))
    return gather_block(store, spans, KINDS)


def same(one: RowBlock, other: RowBlock) -> bool:
    return (
        np.array_equal(one.tokens, other.tokens)
        and [plane.kind for plane in one.planes] == [plane.kind for plane in other.planes]
        and all(
            np.array_equal(ours.row_lengths, theirs.row_lengths)
            and np.array_equal(ours.content, theirs.content)
            for ours, theirs in zip(one.planes, other.planes, strict=True)
        )
    )


def request_of(store: MemoryStore, **fields: object) -> pb.GetBatchRequest:
    """A request that uses every field that is served, with some fields changed.

    fields: by their paths, such as stream__stage__index; of the first source.
    """
    request = Request(STREAM, POSITION, KINDS, first_row=1, num_batches=4, end_sample=50)
    fingerprints = tuple((kind, store.planes[kind]) for kind in KINDS)
    expected = Expected(IDENTITY, (bytes(32),), fingerprints)
    message = to_message(request, expected, Hints("run-17 rank 1"))
    for path, value in fields.items():
        *above, name = path.split(SEPARATOR)
        part: Any = message
        for each in above:
            part = part.sources[0] if each == "sources" else getattr(part, each)
        if isinstance(value, (int, str, bytes)):
            setattr(part, name, value)
        else:
            part.MergeFrom(type(part)(**{name: value}))
    return message


def frames_of(store: MemoryStore) -> frame.Frames:
    """What the client knows by itself."""
    fingerprints = {kind: store.planes[kind] for kind in KINDS}
    return frame.Frames(STREAM.row_tokens, POSITION, IDENTITY, fingerprints)


def accepted(store: MemoryStore, messages: list[bytes]) -> int:
    """Accept frames like a client that requested rows from row 1 on, and return how many rows it
    accepted before the first wrong frame; all of them have to be right.
    """
    row = 1
    for message in messages:
        try:
            block = frame.decode(message).rows(frames_of(store), row)
        except BadFrame:
            break
        assert same(block, rows_of(store, row, len(block)))
        row += len(block)
    return row - 1


def test_the_client_delivers_the_planes_that_it_requested(store: MemoryStore, peer: Peer) -> None:
    """Tokens and planes are one value from the gather to the consumer of the rows."""
    request = Request(STREAM, POSITION, num_batches=40)
    remote = Servers(
        peer.address,
        request,
        timeouts=Timeouts(reconnect_seconds=5),
        planes=PlaneSelection(document_starts=True),
    )
    rows = remote.open_rows(request, prefetch_bytes=1 << 12, counters=Counters())
    rows.start()
    try:
        taken = 0
        while (parts := rows.peek(B)) is not None:
            for part in parts:
                assert same(part, rows_of(store, taken, len(part)))
                taken += len(part)
            rows.consume(B)
    finally:
        rows.close()
        remote.close()
    assert taken == 40 * B


def test_describe_lists_planes_with_their_fingerprints(store: MemoryStore, peer: Peer) -> None:
    """A client takes them from here, not from the frames."""
    described = peer.describe(pb.DescribeRequest(dataset="train")).datasets[0]

    assert {plane.kind: plane.fingerprint for plane in described.planes} == store.planes


def test_another_fingerprint_of_a_plane_is_refused(store: MemoryStore, peer: Peer) -> None:
    """Replicas with the same tokens and other masks never stand in for each other."""
    request = request_of(store)
    request.planes[1].expected_fingerprint = bytes(32)

    status, details = peer.refusal(request)

    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert details.startswith("expected_fingerprint: ")
    assert "loss_mask" in details


def test_a_dataset_with_a_loss_mask_is_not_served_to_a_client_that_ignores_it(peer: Peer) -> None:
    """Its model would learn prompts like responses."""
    plain = {"batch_size": 1, "context_length": T, "dataset": "other", "num_batches": 1}

    status, details = peer.refusal(batches(**plain))
    declined = batches(**plain, declined_planes=[LOSS_MASK])

    assert status is grpc.StatusCode.FAILED_PRECONDITION
    assert details.startswith("declined_planes: ")
    assert len(peer.frames(declined)) == 1


def test_a_correct_request_is_served(store: MemoryStore, peer: Peer) -> None:
    """Otherwise the tests below would prove nothing."""
    messages, ending = peer.ask(request_of(store))

    assert ending[0] is grpc.StatusCode.OK
    samples = POSITION.samples(1, 4 * B - 1)
    assert accepted(store, messages) == int((samples < 50).sum()) > 0


OTHER_VALUES: dict[str, object] = {
    "batch_size": 4,
    "first_sample": 31,
    "first_row": 2,
    "num_batches": 2,
    "rank": 0,
    "world_size": 3,
    "expected_identity": bytes(32),
    "planes": [pb.WantedPlane(kind=52)],
    "end_sample": 46,
    "declined_planes": [52],
    "client_name": "another client",
    "trainer_sample": 7,
    "is_last": True,
    "is_tool": True,
    "stream__seed": 10,
    "stream__redactions": [pb.Redaction(list_hash=bytes(32))],
    "stream__sources__number": 1,
    "stream__sources__dataset": "other",
    "stream__sources__order": "sequential-1",
    "stream__sources__seed": 10,
    "stream__sources__long_documents": "cut",
    "stream__sources__expected_digest": bytes([7] * 32),
    "stream__sources__group_blocks": 16,
    "stream__stage__context_length": T + 1,
    "stream__stage__index": 1,
    "stream__stage__first_sample": 1,
    "stream__stage__previous_identity": bytes([7] * 32),
    "stream__stage__shares": [pb.Share(source=0, weight=2)],
}
HINTS = {"client_name", "trainer_sample", "is_last", "is_tool", "declined_planes", "stream__seed"}
"""Without effect on rows: a plane that is not there can be declined, and blocks of one sample leave
nothing to permute.
"""
LENGTHS = {"num_batches", "end_sample"}
"""They limit the number of rows, which a client counts."""


def paths_of(message: Descriptor, prefix: str = "") -> list[str]:
    """The fields of a message, and in their place those of the parts of a stream."""
    parts = {"stream", "sources", "stage"}
    return [
        path
        for field in message.fields
        for path in (
            paths_of(field.message_type, f"{prefix}{field.name}{SEPARATOR}")
            if field.name in parts
            else [f"{prefix}{field.name}"]
        )
    ]


@pytest.mark.parametrize("field", paths_of(pb.GetBatchRequest.DESCRIPTOR))
def test_no_field_of_a_request_that_was_changed_on_the_way_gives_other_rows(
    store: MemoryStore, peer: Peer, field: str
) -> None:
    """It is refused, or its frames are, or it is a hint."""
    whole = accepted(store, peer.ask(request_of(store))[0])

    messages, ending = peer.ask(request_of(store, **{field: OTHER_VALUES[field]}))

    taken = accepted(store, messages)
    if field in HINTS:
        assert (taken, ending[0]) == (whole, grpc.StatusCode.OK)
    elif field in LENGTHS:
        assert taken != whole
    else:
        assert taken == 0
        assert messages or ending[0] is not grpc.StatusCode.OK


def test_no_bit_of_a_request_that_was_flipped_on_the_way_gives_other_rows(
    store: MemoryStore, peer: Peer
) -> None:
    """Whatever bytes make of it: other fields, other types, other lengths."""
    message = request_of(store).SerializeToString()
    whole = accepted(store, peer.ask(message)[0])
    refused = 0
    for place in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[place // 8] ^= 1 << place % 8
        messages, ending = peer.ask(bytes(flipped))
        accepted(store, messages)
        refused += ending[0] is not grpc.StatusCode.OK

    assert whole > 0
    assert refused > 4 * len(message)


def test_no_bit_of_a_frame_that_was_flipped_on_the_way_gives_other_rows(
    store: MemoryStore,
) -> None:
    """Tokens, planes, their lengths and kinds, the place, the identity, the checksum itself."""
    block = rows_of(store, 1, 2)
    (message,) = encode(frames_of(store), 1, block)
    assert same(frame.decode(message).rows(frames_of(store), 1), block)
    refused = 0
    for place in range(8 * len(message)):
        flipped = bytearray(message)
        flipped[place // 8] ^= 1 << place % 8
        try:
            found = frame.decode(bytes(flipped)).rows(frames_of(store), 1)
        except BadFrame:
            refused += 1
        else:
            assert same(found, block)

    # What is left is the fingerprints of planes, which a client takes from elsewhere.
    assert refused >= 8 * (len(message) - 2 * 36)


@pytest.mark.parametrize("change", ["without", "twice", "swapped", "moved", "renamed"])
def test_planes_that_were_exchanged_are_found(store: MemoryStore, change: str) -> None:
    """Joined without number, kind or length, two planes could give each other's bytes."""
    frames, block = frames_of(store), rows_of(store, 1, 2)
    (message,) = encode(frames, 1, block)
    sent = pb.Frame.FromString(message)
    starts, mask = sent.document_starts, sent.loss_mask
    if change == "without":
        sent.ClearField("loss_mask")
    elif change == "twice":
        sent.document_starts.MergeFrom(starts)
    elif change == "swapped":
        kept = mask.content
        mask.content, starts.content = starts.content, kept
    elif change == "moved":
        mask.row_bytes[:] = [mask.row_bytes[0] + 1, mask.row_bytes[1] - 1]
    else:
        sent.token_counts.CopyFrom(mask)
        sent.ClearField("loss_mask")

    with pytest.raises(BadFrame):
        frame.decode(sent.SerializeToString()).rows(frames, 1)
