"""Streams with redactions on the wire: which rows change, their identity, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.server.requests import mixed
from tests.server.rpc.test_service import (
    FewSlots,
    Peer,
    Status,
    asking,
    opened,
    require_refusal,
    serving,
    write,
)
from tests.support import reference
from tests.support.redacted_corpora import Ranges, begin_erasure, write_lists
from tests.support.waiting import eventually
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.redactions import list_file
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.rows import reader
from tokenfeed.v1 import tokenfeed_pb2 as pb

T = 16
FILES = (300, 100)
FILL = 0
FIRST: Ranges = [(0, 0, 3), (0, 100, 140), (0, 297, 300)]
LATER: Ranges = [(0, 138, 142), (1, 0, 1), (1, 99, 100)]
MIXED = [("web", "shuffled-1", 5, 2), ("web", "random-1", 6, 1), ("plain", "shuffled-1", 7, 1)]
"""Dataset, order, seed and weight of each source."""
Sample = tuple[list[int], bytes]
"""The tokens of a row, and the content of its plane 53."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Dataset]]:
    """ "web" has two lists, "plain" none; both have two files."""
    folder = tmp_path_factory.mktemp("redactions")
    sources = [
        DatasetSource(
            name,
            tuple(
                write(folder / f"{name}-{index}.bin", size, seed)
                for index, size in enumerate(FILES)
            ),
        )
        for seed, name in enumerate(("web", "plain"))
    ]
    with opened(*sources) as both:
        yield both


@pytest.fixture(scope="module")
def lists(datasets: dict[str, Dataset]) -> list[bytes]:
    """The hashes of the lists of "web": of FIRST, and of FIRST with LATER."""
    return write_lists(datasets["web"], FILL, FIRST, LATER)


@pytest.fixture(scope="module")
def peer(datasets: dict[str, Dataset], lists: list[bytes]) -> Iterator[Peer]:
    """A client of a server of both datasets."""
    with serving(datasets) as found:
        yield found


def redaction(first_sample: int, list_hash: bytes, source: int = 0) -> pb.Redaction:
    return pb.Redaction(first_sample=first_sample, source=source, list_hash=list_hash)


def wanting(*redactions: pb.Redaction, **fields: object) -> pb.GetBatchRequest:
    """A request for 5 batches of shuffled windows, with plane 53."""
    planes = [pb.WantedPlane(kind=53)]
    chosen = {"dataset": "web", "order": "shuffled-1", "seed": 7, "num_batches": 5, **fields}
    return asking(**({"planes": planes, "redactions": redactions} | chosen))


def received(peer: Peer, request: pb.GetBatchRequest) -> tuple[list[Sample], set[bytes]]:
    """The rows of a call, and the identities of its frames, whose checksums are right."""
    messages, ending = peer.ask(request)
    assert ending[0] is Status.OK, ending
    rows: list[Sample] = []
    identities = set()
    for found in map(pb.Frame.FromString, messages):
        plane = reference.Plane(
            53, bytes(32), list(found.redacted.row_bytes), found.redacted.content
        )
        assert found.redacted.fingerprint == bytes(32)
        assert found.checksum == reference.frame_checksum(
            found.identity,
            found.first_sample,
            found.first_row,
            found.row_count,
            request.batch_size,
            request.rank,
            1,
            found.tokens,
            [plane],
        )
        tokens = np.frombuffer(found.tokens, "<u2").reshape(found.row_count, T + 1).tolist()
        ends = np.cumsum([0, *plane.row_bytes]).tolist()
        contents = [plane.content[a:b] for a, b in pairwise(ends)]
        rows += zip(tokens, contents, strict=True)
        identities.add(found.identity)
    return rows, identities


def offline(
    datasets: dict[str, Dataset],
    order: str,
    seed: int,
    samples: range | list[int],
    ranges: list[Ranges],
    dataset: str = "web",
) -> list[Sample]:
    """The rows of samples by the second implementation, with lists of these ranges in force."""
    files = [Path(shard.path).read_bytes() for shard in datasets[dataset].store.shards]
    found = []
    for sample, row in zip(samples, reference.rows(files, 2, order, seed, T, samples), strict=True):
        file, first = reference.window(order, seed, list(FILES), T, sample)
        tokens = np.frombuffer(row, "<u2").tolist()
        in_force = [reference.RedactionList(FILL, list(each)) for each in ranges]
        found.append(reference.redacted_row(tokens, [[file, first, T + 1]], in_force))
    return found


def identity_of(dataset: Dataset, *redactions: tuple[int, int, bytes]) -> bytes:
    plain = reference.identity("shuffled-1", 7, T, dataset.fingerprint)
    return reference.redacted_identity(plain, redactions)


def test_redacted_tokens_do_not_arrive_and_every_other_one_does(
    peer: Peer, datasets: dict[str, Dataset], lists: list[bytes]
) -> None:
    """All windows of an epoch, up to both ends of both files."""
    plain, _ = received(peer, wanting(num_batches=6))
    assert plain == offline(datasets, "shuffled-1", 7, range(24), [])
    assert lists[0] == reference.list_hash(FILL, list(FIRST))

    found, identities = received(peer, wanting(redaction(0, lists[0]), num_batches=6))

    assert found == offline(datasets, "shuffled-1", 7, range(24), [FIRST])
    assert identities == {identity_of(datasets["web"], (0, 0, lists[0]))}
    assert 0 < sum(bool(runs) for _, runs in found) < 24
    assert [new for new, runs in found if not runs] == [
        old for (old, _), (_, runs) in zip(plain, found, strict=True) if not runs
    ]


def test_a_redaction_begins_at_its_sample(
    peer: Peer, datasets: dict[str, Dataset], lists: list[bytes]
) -> None:
    """In the middle of a batch, too: the call before it ends there, and has the old identity."""
    before, plain = received(peer, wanting(end_sample=6, num_batches=None))
    after, redacted = received(
        peer, wanting(redaction(6, lists[1]), first_sample=4, first_row=2, num_batches=5)
    )

    both: Ranges = [*FIRST, *LATER]
    assert before == offline(datasets, "shuffled-1", 7, range(6), [])
    assert after == offline(datasets, "shuffled-1", 7, range(6, 24), [both])
    assert plain == {identity_of(datasets["web"])}
    assert redacted == {identity_of(datasets["web"], (6, 0, lists[1]))}


def test_lists_in_force_add_up(
    peer: Peer, datasets: dict[str, Dataset], lists: list[bytes]
) -> None:
    """A later redaction takes out more, and leaves out nothing of an earlier one."""
    request = wanting(redaction(3, lists[1]), redaction(8, lists[0]), first_sample=8)

    found, identities = received(peer, request)

    assert found == offline(datasets, "shuffled-1", 7, range(8, 28), [[*FIRST, *LATER], FIRST])
    in_force = (3, 0, lists[1]), (8, 0, lists[0])
    assert identities == {identity_of(datasets["web"], *in_force)}


def test_an_expected_identity_covers_the_redactions(
    peer: Peer, datasets: dict[str, Dataset], lists: list[bytes]
) -> None:
    """Rows with and without what was taken out must never stand in for each other."""
    right = identity_of(datasets["web"], (2, 0, lists[0]))
    plain = identity_of(datasets["web"])
    one = redaction(2, lists[0])

    assert len(received(peer, wanting(one, expected_identity=right, first_sample=4))[0]) == 20
    for other in (plain, identity_of(datasets["web"], (3, 0, lists[0]))):
        found = peer.refusal(wanting(one, expected_identity=other, first_sample=4))
        require_refusal(found, Status.FAILED_PRECONDITION, "expected_identity", right.hex())


def mixture(*redactions: pb.Redaction) -> pb.GetBatchRequest:
    """A request for 40 rows of MIXED."""
    sources = [
        (pb.Source(number=number, dataset=name, order=order, seed=seed), weight)
        for number, (name, order, seed, weight) in enumerate(MIXED)
    ]
    stream = mixed(*sources, seed=7, redactions=list(redactions), context_length=T)
    request = wanting(num_batches=10)
    request.stream.CopyFrom(stream)
    return request


def test_of_a_mixture_only_the_rows_of_the_source_are_redacted(
    peer: Peer, datasets: dict[str, Dataset], lists: list[bytes]
) -> None:
    """Also of two sources with the same dataset; the rows of others have no bytes of plane 53."""
    found, identities = received(peer, mixture(redaction(0, lists[1], 1)))

    expected = []
    for sample in range(40):
        source, own = reference.mixture_place(7, [(0, [each[3] for each in MIXED])], sample)
        name, order, seed, _ = MIXED[source]
        ranges: list[Ranges] = [[*FIRST, *LATER]] if source == 1 else []
        expected += offline(datasets, order, seed, [own], ranges, name)
    assert found == expected
    assert any(runs for _, runs in found)
    parts = [
        reference.Source(number, datasets[name].fingerprint, order, seed, 0, weight)
        for number, (name, order, seed, weight) in enumerate(MIXED)
    ]
    stage = reference.stage_identity(bytes(32), 0, 0, T, 7, parts)
    assert identities == {reference.redacted_identity(stage, [(0, 1, lists[1])])}


def test_plane_53_may_be_requested_of_a_stream_without_redactions(
    peer: Peer, datasets: dict[str, Dataset]
) -> None:
    """A client that expects redactions later asks for the same planes from the start."""
    for request in (wanting(dataset="plain"), mixture()):
        rows, _ = received(peer, request)
        assert [runs for _, runs in rows] == [b""] * len(rows)
    assert received(peer, wanting())[1] == {identity_of(datasets["web"])}


def test_a_list_that_the_dataset_lacks_is_named(peer: Peer, lists: list[bytes]) -> None:
    """Another server may have it: the client tries that one."""
    for name, hashed in (("web", bytes(32)), ("plain", lists[0])):
        found = peer.refusal(wanting(redaction(0, hashed), dataset=name))
        require_refusal(found, Status.FAILED_PRECONDITION, "redactions", repr(name), hashed.hex())
    found = peer.refusal(mixture(redaction(0, lists[0], 1), redaction(0, lists[0], 2)))
    require_refusal(found, Status.FAILED_PRECONDITION, "redactions", "'plain'", lists[0].hex())


def test_redactions_need_the_plane_that_says_where_they_are(peer: Peer, lists: list[bytes]) -> None:
    """A client without it would learn the fill token."""
    found = peer.refusal(wanting(redaction(0, lists[0]), planes=[]))
    require_refusal(found, Status.FAILED_PRECONDITION, "redactions", 53)


def test_describe_has_the_lists_with_the_latest_one_last(peer: Peer, lists: list[bytes]) -> None:
    """A client takes the latest, and finds out which servers have the one that it needs."""
    plain, web = peer.describe(pb.DescribeRequest()).datasets

    assert (list(web.redaction_lists), web.erased_list) == (lists, b"")
    assert (list(plain.redaction_lists), plain.erased_list) == ([], b"")


def test_a_list_that_is_made_while_a_server_runs_is_served(tmp_path: Path) -> None:
    """A deletion request does not wait for a restart."""
    source = DatasetSource("web", (write(tmp_path / "web.bin", 300),))
    with opened(source) as datasets, serving(datasets) as peer:
        received(peer, wanting())
        (added,) = write_lists(datasets["web"], FILL, [(0, 0, 300)])

        rows, _ = received(peer, wanting(redaction(0, added)))

        assert {tuple(tokens) for tokens, _ in rows} == {(FILL,) * (T + 1)}
        assert eventually(
            lambda: [added] == list(peer.describe(pb.DescribeRequest()).datasets[0].redaction_lists)
        )


def test_rows_with_deleted_tokens_are_refused_and_no_others(tmp_path: Path) -> None:
    """Also of a call that began before. With the redaction in force, all rows are served."""
    path = write(tmp_path / "web.bin", 20_000)
    with opened(DatasetSource("web", (path,))) as datasets, serving(datasets) as peer:
        (hashed,) = write_lists(datasets["web"], FILL, [(0, 10_001, 10_008)])
        sent = wanting(order="sequential-1", num_batches=None, batch_size=64).SerializeToString()
        call = peer.channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")(sent, timeout=15)
        next(call)
        begin_erasure(datasets["web"])

        with pytest.raises(grpc.RpcError):
            for _ in call:
                pass

        assert call.code() is Status.DATA_LOSS
        assert "'web': tokens were deleted" in call.details()
        assert "web.bin, tokens [10001, 10008)" in call.details()
        assert str(tmp_path) not in call.details()
        hit = 10_001 // T
        for first, end in ((0, hit), (hit + 1, 1240)):
            call_of = wanting(
                order="sequential-1", first_sample=first, end_sample=end, num_batches=None
            )
            assert len(received(peer, call_of)[0]) == end - first
        at = wanting(order="sequential-1", first_sample=hit, num_batches=1)
        require_refusal(peer.refusal(at), Status.DATA_LOSS, "dataset", "tokens were deleted")
        at.stream.redactions.append(redaction(0, hashed))
        assert received(peer, at)[0][0][1] == b"\1\0\0\0\x08\0\0\0"
        # The files still have the tokens.
        assert peer.describe(pb.DescribeRequest()).datasets[0].erased_list == b""


def test_a_list_whose_file_system_hangs_stops_no_other_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list may lie on a file server, and the tokens on a local disk."""
    monkeypatch.setattr(list_file, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(reader, "_CURRENT_SECONDS", 0.0)
    hangs, is_back, state_now = threading.Event(), threading.Event(), list_file._state_now

    def state(path: str) -> tuple[object, ...]:
        if not hangs.is_set():  # the first look only: the others see that it is not over
            hangs.set()
            assert is_back.wait(60)
        return state_now(path)

    def read(call: grpc.Call) -> None:
        with pytest.raises(grpc.RpcError):
            for _ in call:
                pass

    source = DatasetSource("web", (write(tmp_path / "web.bin", 20_000),))
    with opened(source) as datasets, serving(datasets, kind=FewSlots) as peer:
        write_lists(datasets["web"], FILL, [(0, 0, 1)])
        sent = wanting(num_batches=1 << 30).SerializeToString()
        call = peer.channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")(sent)
        next(call)
        reading = threading.Thread(target=read, args=(call,))
        monkeypatch.setattr(list_file, "_state_now", state)
        reading.start()
        try:
            assert hangs.wait(60)
            for _ in range(3):
                assert len(received(peer, wanting())[0]) == 20
        finally:
            is_back.set()
            call.cancel()
            reading.join()
