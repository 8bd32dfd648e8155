"""Which servers a feed reads from: those that speak its contract, take its requests and have its
corpus.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest

from client import RemoteBatches
from tests.client.conftest import FINGERPRINT, ScriptedServer, StartScripted, wanted
from tokenfeed.client.source.plane_selection import PlaneSelection
from tokenfeed.client.source.server_check import require_server
from tokenfeed.errors import (
    ContractMismatch,
    InvalidRequest,
    LimitExceeded,
    ListMissing,
    StreamMismatch,
    Unreachable,
)
from tokenfeed.stream.stage import Redaction
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import CONTRACT_REVISION, Request

B, T = 3, 4
MASKS = PlaneSelection()
LANDED = bytes.fromhex("28 01")
"""What a server from before revision 2 says of versions: field 5, the number 1."""


def answer(**fields: object) -> pb.DescribeResponse:
    """What a server says that is usable, but for the fields given."""
    dataset = pb.Dataset(name="train", token_bytes=2, fingerprint=FINGERPRINT)
    usable = {"datasets": [dataset], "contract_revisions": [CONTRACT_REVISION], **fields}
    return pb.DescribeResponse(**usable)


def feed_from(*addresses: str) -> RemoteBatches:
    return RemoteBatches(list(addresses), B, T, rank=0, world_size=1, num_batches=10)


@pytest.mark.parametrize(
    ("revisions", "problem"),
    [
        ([], "older than revision 2, but this client speaks revision 3; upgrade the server"),
        ([1], "revision 1, but this client speaks revision 3; upgrade the server"),
        ([1, 2], "revision 1, 2, but this client speaks revision 3; upgrade the server"),
        ([4, 5], "revision 4, 5, but this client speaks revision 3; upgrade the client"),
    ],
)
def test_a_server_of_another_contract_is_named_with_who_has_to_be_upgraded(
    revisions: list[int], problem: str
) -> None:
    """The message has to say what to do."""
    described = answer(contract_revisions=revisions)

    with pytest.raises(ContractMismatch, match=problem) as caught:
        require_server("a:1", described, wanted(T, B), "", None, MASKS)

    assert caught.value.subject == "a:1"


def test_a_server_may_speak_older_contracts_as_well() -> None:
    """Servers are upgraded before their clients."""
    described = answer(contract_revisions=[CONTRACT_REVISION, CONTRACT_REVISION + 1])

    require_server("a:1", described, wanted(T, B), "", None, MASKS)


def test_what_a_server_before_revision_2_says_is_read_as_no_revision() -> None:
    """It says one number where there is a list now."""
    described = pb.DescribeResponse.FromString(LANDED)

    assert list(described.contract_revisions) == []


@pytest.mark.parametrize(
    ("limits", "subject", "problem"),
    [
        (pb.Limits(row_bytes_max=9), "context_length", "a row of 10 bytes is above the limit"),
        (pb.Limits(batch_bytes_max=29), "batch_size", "a batch of 30 bytes is above the limit"),
        (pb.Limits(batch_size_max=2), "batch_size", "a batch of 3 rows is above the limit"),
        (pb.Limits(request_bytes_max=100), "request", "but this server accepts 100"),
    ],
)
def test_what_is_above_a_limit_that_a_server_has_described_is_not_sent(
    limits: pb.Limits, subject: str, problem: str
) -> None:
    """gRPC answers a request that is too large with the status of a busy server: for ever."""
    with pytest.raises(LimitExceeded, match=problem) as caught:
        require_server("a:1", answer(limits=limits), wanted(T, B), "", None, MASKS)

    assert caught.value.subject == subject
    assert "a:1" in caught.value.problem


def test_a_limit_that_is_not_said_is_not_checked() -> None:
    """Another server's may leave out what it does not limit."""
    require_server("a:1", answer(limits=pb.Limits()), wanted(1 << 40, B), "x" * 128, None, MASKS)


def with_planes(fingerprints: dict[int, bytes], name: str = "train") -> pb.Dataset:
    """A description with these planes."""
    planes = [pb.DatasetPlane(kind=kind, fingerprint=one) for kind, one in fingerprints.items()]
    return pb.Dataset(name=name, token_bytes=2, fingerprint=FINGERPRINT, planes=planes)


NEITHER, BORDERS = PlaneSelection(loss_mask=False), PlaneSelection(document_starts=True)
ONE, OTHER = bytes([1] * 32), bytes([2] * 32)


@pytest.mark.parametrize(
    ("ours", "theirs", "problem"),
    [
        ({51: ONE}, {51: OTHER}, "has another loss mask of dataset 'train': fingerprint 0202"),
        ({51: ONE}, {}, "lacks the loss mask of dataset 'train', with which this stream began"),
        ({}, {51: ONE}, "has the loss mask of dataset 'train', without which this stream began"),
    ],
)
def test_a_server_with_another_loss_mask_is_refused_and_its_plane_is_named(
    ours: dict[int, bytes], theirs: dict[int, bytes], problem: str
) -> None:
    """Replicas with other masks train other targets, with the same tokens."""
    known, described = (with_planes(ours),), answer(datasets=[with_planes(theirs)])

    with pytest.raises(StreamMismatch, match=problem) as caught:
        require_server("a:1", described, wanted(T, B), "", known, MASKS)

    assert caught.value.subject == "a:1"
    require_server("a:1", answer(datasets=[with_planes(ours)]), wanted(T, B), "", known, MASKS)
    require_server("a:1", described, wanted(T, B), "", known, NEITHER)


@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        ({50: OTHER}, "has other document starts of dataset 'train': fingerprint 0202"),
        ({}, "lacks the document starts of dataset 'train', with which this stream began"),
    ],
)
def test_a_server_with_other_documents_is_refused_if_their_borders_are_wanted(
    theirs: dict[int, bytes], problem: str
) -> None:
    """And only then: without borders the rows are the same."""
    known, described = (with_planes({50: ONE}),), answer(datasets=[with_planes(theirs)])

    with pytest.raises(StreamMismatch, match=problem):
        require_server("a:1", described, wanted(T, B), "", known, BORDERS)
    require_server("a:1", described, wanted(T, B), "", known, MASKS)


def test_borders_of_a_corpus_without_known_documents_are_refused_with_the_cure() -> None:
    """Silence would mean a model that learns across documents."""
    described = answer(datasets=[with_planes({51: ONE})])

    with pytest.raises(
        InvalidRequest, match=r"'train' are not known.*--document-end-token"
    ) as found:
        require_server("a:1", described, wanted(T, B), "", None, BORDERS)

    assert found.value.subject == "mask_borders"


@pytest.mark.parametrize("known", [None, (with_planes({50: ONE}),)], ids=["first", "replica"])
def test_a_server_that_still_searches_for_its_documents_is_tried_again(
    known: tuple[pb.Dataset, ...] | None,
) -> None:
    """It has the plane, without a fingerprint so far; to others it is an ordinary server."""
    described = answer(datasets=[with_planes({50: b""})])

    with pytest.raises(Unreachable, match="not ready: it has not determined the document starts"):
        require_server("a:1", described, wanted(T, B), "", known, BORDERS)
    require_server("a:1", described, wanted(T, B), "", known, MASKS)


def test_a_fingerprint_that_the_caller_gave_says_nothing_of_planes() -> None:
    """fingerprint= is that of the tokens."""
    given = (pb.Dataset(fingerprint=FINGERPRINT),)

    for planes in ({}, {51: ONE}):
        described = answer(datasets=[with_planes(planes)])
        require_server("a:1", described, wanted(T, B), "", given, MASKS)


def test_a_server_needs_all_lists_of_a_stream_with_redactions() -> None:
    """Which one it lacks is said."""
    known, unknown = bytes([1] * 32), bytes([2] * 32)
    plain = wanted(T, B)

    def redacted(*hashes: bytes) -> Request:
        redactions = tuple(Redaction(5, 0, each) for each in hashes)
        return replace(plain, stream=replace(plain.stream, redactions=redactions))

    dataset = pb.Dataset(
        name="train", token_bytes=2, fingerprint=FINGERPRINT, redaction_lists=[known]
    )
    described = answer(datasets=[dataset])

    require_server("a:1", described, redacted(known), "", None, MASKS)
    with pytest.raises(ListMissing, match=f"lacks redaction list {unknown.hex()} of .*'train'"):
        require_server("a:1", described, redacted(known, unknown), "", None, MASKS)
    require_server("a:1", answer(), plain, "", None, MASKS)


def test_a_replica_of_another_contract_is_left_out_and_named(
    start_scripted: StartScripted, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of an upgrade some servers are older: the others serve on."""
    older, newer = start_scripted(), start_scripted()
    older.contract_revisions = ()

    with (
        caplog.at_level(logging.ERROR, "tokenfeed.client"),
        feed_from(older.address, newer.address) as feed,
    ):
        assert len(list(feed)) == 10

    assert older.requests == []
    assert (
        caplog.text.count(f"server rejected address={older.address} reason=speaks another contract")
        == 1
    )


def test_it_is_an_error_only_if_no_replica_is_left(start_scripted: StartScripted) -> None:
    """And says so at once, not after the reconnect timeout."""
    servers = [start_scripted(), start_scripted()]
    for server in servers:
        server.contract_revisions = (1,)

    feed = feed_from(*(server.address for server in servers))
    with feed, pytest.raises(ContractMismatch, match="upgrade the server"):
        next(feed)

    assert [server.requests for server in servers] == [[], []]


def test_a_server_that_is_upgraded_to_another_contract_is_left_in_mid_stream(
    start_scripted: StartScripted,
) -> None:
    """The connection breaks, and what comes back is asked before it serves."""
    first, second = start_scripted(), start_scripted()

    def breaks(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        first.contract_revisions = (CONTRACT_REVISION + 1,)
        yield from ()
        context.abort(grpc.StatusCode.UNAVAILABLE, "server: is being stopped")

    first.scripts = [breaks] * 2
    with feed_from(first.address, second.address) as feed:
        assert len(list(feed)) == 10

    assert second.requests != []


def test_requests_carry_the_name_of_their_client(scripted: ScriptedServer) -> None:
    """The server's log says whose stream it is."""
    with RemoteBatches(
        scripted.address, B, T, rank=0, world_size=1, num_batches=2, client_name="run-17 rank 3"
    ) as feed:
        assert len(list(feed)) == 2

    assert {request.client_name for request in scripted.requests} == {"run-17 rank 3"}
