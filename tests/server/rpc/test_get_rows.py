"""GetRows: the rows of GetBatch, one by one, in any order; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.server.requests import Weighted, mixed
from tests.server.rpc.test_service import Peer, Status, opened, require_refusal, serving
from tests.support import reference
from tests.support.packed_corpora import random_lengths, write_corpus
from tests.support.redacted_corpora import begin_erasure, write_lists
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.rpc.activity.counts import Labels
from tokenfeed.stream.planes import KINDS
from tokenfeed.v1 import tokenfeed_pb2 as pb

T = 16
FILL = 60_000
BEGIN = 100
"""First sample of the streams."""
BATCH_BYTES_MAX = 1 << 18
ROWS_MAX = 4096
REQUEST_BYTES_MAX = 1 << 20


class Case(NamedTuple):
    """Sources of a stream with their weights, and kinds of planes that at least one of them has.

    redacted: number of the source that has a redaction.
    """

    sources: tuple[Weighted, ...]
    planes: tuple[int, ...]
    redacted: int | None = None


WEB = pb.Source(number=0, dataset="web", order="shuffled-1", seed=5)
CODE = pb.Source(number=1, dataset="code", order="random-1", seed=6)
PACKED = pb.Source(number=2, dataset="web", order="packed-1", seed=7)
CASES = {
    "windows": Case(((WEB, 1),), (51,)),
    "draws": Case(((CODE, 1),), ()),
    "windows, redacted": Case(((WEB, 1),), (50, 51, 53), 0),
    "packed": Case(((PACKED, 1),), (50, 51, 52, 53), 2),
    "mixture of windows": Case(((WEB, 3), (CODE, 2)), (51, 53), 0),
    "mixture": Case(((WEB, 2), (CODE, 1), (PACKED, 4)), (50, 51, 52, 53), 2),
}
Row = tuple[bytes, dict[int, bytes]]
"""The tokens of a row, and its bytes of each plane."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Dataset]]:
    """ "web" has documents, a loss mask and packed rows, "code" has nothing but tokens."""
    folder = tmp_path_factory.mktemp("rows")
    web = write_corpus(folder / "web", random_lengths(3, T), masked=frozenset(range(7, 900, 3)))
    code = folder / "code.bin"
    np.arange(30_000, 31_000, dtype="<u2").tofile(code)
    paths = tuple(map(str, web.paths))
    with opened(DatasetSource("web", paths), DatasetSource("code", (str(code),))) as both:
        assert both["web"].rows is not None
        both["web"].rows.make_now(RowsKey("packed-1", T, "cut"))
        yield both


@pytest.fixture(scope="module")
def listed(datasets: dict[str, Dataset]) -> bytes:
    """The hash of the list of redactions of "web"."""
    (hashed,) = write_lists(datasets["web"], FILL, [(0, 3, 90), (1, 0, 40)])
    return hashed


@pytest.fixture(scope="module")
def peer(datasets: dict[str, Dataset], listed: bytes) -> Iterator[Peer]:
    """A client of a server of both datasets."""
    with serving(datasets, BATCH_BYTES_MAX, request_bytes_max=REQUEST_BYTES_MAX) as found:
        yield found


def stream_of(case: Case, listed: bytes) -> pb.Stream:
    """A later stage, which begins with other samples of its sources."""
    redactions = []
    if case.redacted is not None:
        redactions = [pb.Redaction(first_sample=3, source=case.redacted, list_hash=listed)]
    stage = {"index": 1, "first_sample": BEGIN, "previous_identity": b"p" * 32}
    stream = mixed(*case.sources, seed=11, redactions=redactions, context_length=T, **stage)
    for number, share in enumerate(stream.stage.shares):
        share.base = 10 * number + 5
    return stream


def asking(samples: list[int], **fields: Any) -> pb.GetRowsRequest:
    """A request for rows of a plain stream from sample 0 on, but for the fields given."""
    stream = mixed((WEB, 1), context_length=T)
    return pb.GetRowsRequest(
        **{"stream": stream, "samples": samples, "declined_planes": [51]} | fields
    )


def received(peer: Peer, request: pb.GetBatchRequest | pb.GetRowsRequest) -> list[pb.Frame]:
    messages, ending = peer.ask(request)
    assert ending[0] is Status.OK, ending
    return [pb.Frame.FromString(message) for message in messages]


def rows_in(found: pb.Frame) -> list[Row]:
    """The rows of a frame."""
    width, tokens = 2 * (T + 1), found.tokens
    rows: list[Row] = [(tokens[at : at + width], {}) for at in range(0, len(tokens), width)]
    for plane in planes_in(found):
        ends = np.cumsum([0, *plane.row_bytes]).tolist()
        assert len(ends) == len(rows) + 1
        for row, (first, end) in zip(rows, pairwise(ends), strict=True):
            row[1][plane.kind] = plane.content[first:end]
    return rows


def planes_in(found: pb.Frame) -> list[reference.Plane]:
    sent = [(kind, getattr(found, name)) for kind, name in KINDS.items() if found.HasField(name)]
    return [
        reference.Plane(kind, plane.fingerprint, list(plane.row_bytes), plane.content)
        for kind, plane in sent
    ]


def wanted(kinds: tuple[int, ...]) -> list[pb.WantedPlane]:
    return [pb.WantedPlane(kind=kind) for kind in kinds]


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_get_batch(peer: Peer, listed: bytes, name: str) -> None:
    """In the order of the list, with all their planes; some of them twice, and far from others."""
    case = CASES[name]
    common = {
        "stream": stream_of(case, listed),
        "planes": wanted(case.planes),
        "declined_planes": [51],
    }
    far = 1 << 50
    whole = {}
    for first, count in ((BEGIN, 120), (far, 3)):
        batch = pb.GetBatchRequest(batch_size=count, first_sample=first, num_batches=1, **common)
        frames = received(peer, batch)
        rows = [row for found in frames for row in rows_in(found)]
        whole |= {first + index: row for index, row in enumerate(rows)}
    samples = np.random.default_rng(1).permutation([*whole, *list(whole)[:40]]).tolist()

    found = received(peer, pb.GetRowsRequest(samples=samples, **common))

    assert [row for each in found for row in rows_in(each)] == [whole[one] for one in samples]
    assert {each.identity for each in found} == {each.identity for each in frames}
    fingerprints = {plane.kind: plane.fingerprint for plane in planes_in(frames[0])}
    assert tuple(fingerprints) == case.planes
    for each in found:
        assert {plane.kind: plane.fingerprint for plane in planes_in(each)} == fingerprints
    if len(case.sources) > 1:
        assert any(not row[1].get(51) for row in whole.values())
    if case.redacted is not None:
        assert any(row[1][53] for row in whole.values())


@pytest.mark.parametrize("name", CASES)
def test_the_fingerprint_of_a_plane_is_that_of_the_sources_that_have_it(
    peer: Peer, datasets: dict[str, Dataset], listed: bytes, name: str
) -> None:
    """Of a single one its own; a client that expects another one is refused."""
    case = CASES[name]
    stream, expected = stream_of(case, listed), {}
    for kind in case.planes:
        had = [
            (source.number, datasets[source.dataset].store.planes[kind])
            for source, _ in case.sources
            if kind in datasets[source.dataset].store.planes
        ]
        if kind in (52, 53):
            expected[kind] = bytes(32)
        elif len(case.sources) == 1:
            expected[kind] = had[0][1]
        else:
            expected[kind] = reference.stage_plane_fingerprint(kind, had)

    def planes(other: int = 0) -> list[pb.WantedPlane]:
        return [
            pb.WantedPlane(kind=kind, expected_fingerprint=b"x" * 32 if kind == other else known)
            for kind, known in expected.items()
        ]

    (found,) = received(peer, asking([BEGIN], stream=stream, planes=planes()))
    assert {plane.kind: plane.fingerprint for plane in planes_in(found)} == expected
    for kind in expected:
        refusal = peer.refusal(asking([BEGIN], stream=stream, planes=planes(kind)))
        require_refusal(
            refusal, Status.FAILED_PRECONDITION, "expected_fingerprint", expected[kind].hex()
        )


def test_frames_say_which_part_of_the_list_they_have(peer: Peer) -> None:
    """And their checksums cover all samples of it: rows of another list are told apart."""
    samples = list(range(2100, 0, -1))
    request = asking(samples)
    request.stream.stage.context_length = 60

    frames = received(peer, request)

    assert len(frames) > 1
    row = 0
    for found in frames:
        assert (found.first_sample, found.first_row) == (0, row)
        assert found.checksum == reference.listed_checksum(
            found.identity, samples, row, found.row_count, found.tokens
        )
        row += found.row_count
    assert row == len(samples)


def test_one_row_has_the_last_sample(peer: Peer) -> None:
    """Of GetBatch no whole batch may begin there."""
    (found,) = received(peer, asking([2**63 - 1]))
    batch = pb.GetBatchRequest(
        stream=asking([]).stream, batch_size=1, num_batches=1, first_sample=2**63 - 1,
        declined_planes=[51],
    )  # fmt: skip
    (same,) = received(peer, batch)
    assert (found.tokens, found.row_count) == (same.tokens, 1)


@pytest.mark.parametrize(
    ("samples", "status", "field", "mention"),
    [
        ([], Status.INVALID_ARGUMENT, "samples", "are 0, not 1 to 4096"),
        ([5] * (ROWS_MAX + 1), Status.INVALID_ARGUMENT, "samples", "are 4097"),
        ([0, 2**63], Status.OUT_OF_RANGE, "samples", "9223372036854775808 is not in [0, 2^63)"),
        ([2**64 - 1], Status.OUT_OF_RANGE, "samples", "2^63"),
    ],
    ids=["none", "too many", "2^63", "2^64 - 1"],
)
def test_the_limits_of_a_list_are_named(
    peer: Peer, samples: list[int], status: Status, field: str, mention: str
) -> None:
    """Before any row is sent."""
    require_refusal(peer.refusal(asking(samples)), status, field, mention)


def test_a_list_up_to_its_limits_is_granted(datasets: dict[str, Dataset]) -> None:
    """They are exact."""
    with serving(datasets, 34 * ROWS_MAX, request_bytes_max=REQUEST_BYTES_MAX) as peer:
        frames = received(peer, asking([5] * ROWS_MAX))
        assert sum(found.row_count for found in frames) == ROWS_MAX
        assert len({row[0] for found in frames for row in rows_in(found)}) == 1
    with serving(datasets, 34 * 1000) as peer:
        assert len(rows_in(received(peer, asking(list(range(1000))))[0])) == 1000
        require_refusal(
            peer.refusal(asking(list(range(1001)))), Status.INVALID_ARGUMENT, "samples", 34 * 1001
        )


@pytest.mark.parametrize(
    ("fields", "status", "field", "mention"),
    [
        ({"planes": wanted((52,))}, Status.INVALID_ARGUMENT, "planes", "52 (token_counts)"),
        ({"planes": wanted((54,))}, Status.INVALID_ARGUMENT, "planes", "54 is not a kind"),
        ({"declined_planes": []}, Status.FAILED_PRECONDITION, "declined_planes", "'web'"),
        ({"expected_identity": bytes(32)}, Status.FAILED_PRECONDITION, "expected_identity", "00"),
        ({"expected_identity": b"x"}, Status.INVALID_ARGUMENT, "expected_identity", "1 bytes"),
        ({"stream": mixed((CODE, 1), context_length=1000)}, Status.INVALID_ARGUMENT,
         "context_length", "[1, 1000)"),
        ({"stream": mixed((pb.Source(dataset="none"), 1), context_length=T)}, Status.NOT_FOUND,
         "dataset", "'none'"),
    ],
)  # fmt: skip
def test_a_list_is_checked_as_by_get_batch(
    peer: Peer, fields: dict[str, Any], status: Status, field: str, mention: str
) -> None:
    """What would be refused of a batch is refused of a row."""
    require_refusal(peer.refusal(asking([0, 7], **fields)), status, field, mention)


@pytest.mark.parametrize("kind", [50, 51])
def test_a_plane_that_no_source_has_is_refused(peer: Peer, kind: int) -> None:
    """A trainer that requests a loss mask and gets none would train on everything."""
    other = pb.Source(number=2, dataset="code", order="sequential-1")
    for sources in (((CODE, 1),), ((CODE, 2), (other, 1))):
        stream = mixed(*sources, context_length=T)
        found = peer.refusal(asking([0], stream=stream, planes=wanted((kind,))))
        require_refusal(found, Status.INVALID_ARGUMENT, "planes", f"{kind} (", "no plane of code")


def test_all_samples_are_of_the_stage_and_behind_its_redactions(peer: Peer, listed: bytes) -> None:
    """The rows before them are of another stream."""
    stream = stream_of(CASES["mixture"], listed)
    fields = {"stream": stream, "planes": wanted((53,))}
    assert received(peer, asking([BEGIN + 1, BEGIN], **fields))
    found = peer.refusal(asking([BEGIN, BEGIN - 1], **fields))
    require_refusal(found, Status.INVALID_ARGUMENT, "stage.first_sample", BEGIN, BEGIN - 1)
    stream.redactions[0].first_sample = BEGIN + 2
    assert received(peer, asking([BEGIN + 2], **fields))
    found = peer.refusal(asking([BEGIN + 9, BEGIN + 1], **fields))
    require_refusal(found, Status.INVALID_ARGUMENT, "redactions.first_sample", BEGIN + 2)
    without = peer.refusal(asking([BEGIN + 2], stream=stream))
    require_refusal(without, Status.FAILED_PRECONDITION, "redactions", 53)


def test_a_call_that_cannot_be_parsed_or_understood_is_refused(peer: Peer) -> None:
    """As one of GetBatch."""
    for message, mention in (
        (b"\x0a\xff", "is not a valid GetRowsRequest"),
        (asking([0]).SerializeToString() + b"\xa0\x01\x01", "field 20 of GetRowsRequest"),
    ):
        found = peer.refusal(message, "GetRows")
        require_refusal(found, Status.INVALID_ARGUMENT, "request", mention)


def test_rows_are_counted_and_no_stream_is_listed(datasets: dict[str, Dataset]) -> None:
    """As those of a tool: nobody trains on them."""
    with serving(datasets) as peer:
        received(peer, asking([3, 1, 3]))
        mixture = mixed((WEB, 1), (CODE, 1), context_length=T)
        received(peer, asking(list(range(10)), stream=mixture))
        blocks_of_three = mixed((CODE, 3), context_length=T)
        received(peer, asking([0], stream=blocks_of_three))
        totals = peer.activity.totals()
        assert peer.activity.streams(9) == ([], 0)
    rows = {labels: (each.rows, each.token_bytes) for labels, each in totals.rows.items()}
    assert rows == {
        Labels("web", "shuffled-1"): (8, 8 * 34),
        Labels("code", "random-1"): (6, 6 * 34),
    }
    frames = {labels: (each.frames, each.opened) for labels, each in totals.frames.items()}
    assert frames == {Labels("web", "shuffled-1"): (1, 0), Labels("", "mixture-1"): (2, 0)}


def test_a_row_with_deleted_tokens_is_named_behind_the_rows_before_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """By its sample: it may be anywhere in the list."""
    path = tmp_path_factory.mktemp("deleted") / "web.bin"
    np.arange(1, 1001, dtype="<u2").tofile(path)
    source = pb.Source(dataset="web", order="sequential-1")
    stream = mixed((source, 1), context_length=T)
    with opened(DatasetSource("web", (str(path),))) as datasets, serving(datasets) as peer:
        write_lists(datasets["web"], FILL, [(0, 5 * T + 1, 5 * T + 4)])
        begin_erasure(datasets["web"])
        assert datasets["web"].redactions is not None
        datasets["web"].redactions.find(bytes(32))  # looks at the file at once
        messages, ending = peer.ask(asking([9, 2, 5, 3], stream=stream))

    assert ending[0] is Status.DATA_LOSS
    assert "tokens were deleted that sample 5 needs" in ending[1]
    tokens = [row[0] for each in messages for row in rows_in(pb.Frame.FromString(each))]
    assert [int.from_bytes(each[:2], "little") for each in tokens] == [9 * T + 1, 2 * T + 1]
