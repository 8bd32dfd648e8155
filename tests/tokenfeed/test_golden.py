"""The product against golden vectors from a second implementation, which shares no code with it.

tests/support/reference.py was written from docs/protocol.md with plain integers and loops;
`python -m tests.support.reference` prints tests/golden.json. These tests run on the lowest versions
allowed, too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf.message import Message

from tests.support import reference
from tokenfeed.sampling import orders
from tokenfeed.sampling.document_rows import FilePieces, RowPieces, RowsKey
from tokenfeed.sampling.mixture_v1 import locate
from tokenfeed.sampling.packing import histogram, pack, places
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream import identity
from tokenfeed.stream.position import Position
from tokenfeed.stream.schedule import (
    first_stage,
    left_out,
    next_stage,
    placed,
    planned_stage,
    resized_stage,
)
from tokenfeed.stream.stage import DEFINED, LENGTH, Corpus, Redaction, Share, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.frame import Frames, checksum
from tokenfeed.wire.piece_planes import OF_PIECES
from tokenfeed.wire.request import (
    SampleList,
    from_message,
    to_message,
)
from tokenfeed.wire.row_block import Plane, RowBlock

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "golden.json").read_text()
)


def named(case: dict[str, Any]) -> str:
    return "-".join(
        str(case[key]) for key in ("order", "seed", "place_count", "group_blocks") if key in case
    )


def test_the_golden_vectors_are_what_the_second_implementation_computes() -> None:
    """A vector that cannot be recomputed proves nothing."""
    assert json.loads(json.dumps(reference.golden())) == GOLDEN


@pytest.mark.parametrize("case", GOLDEN["places"], ids=named)
def test_every_sample_has_its_published_place(case: dict[str, Any]) -> None:
    """A changed place is another stream: saved states would silently resume on other tokens."""
    samples = np.array(case["samples"], dtype=np.int64)

    places = orders.find(case["order"]).places(samples, case["seed"], case["place_count"])

    assert places.dtype == np.int64
    assert places.tolist() == case["places"]


@pytest.mark.parametrize("case", GOLDEN["packed_rows"], ids=lambda case: case["context_length"])
def test_every_packed_row_has_its_published_pieces(case: dict[str, Any]) -> None:
    """Each file by itself, and its rows behind those of the files before it."""
    found = []
    for file, documents in enumerate(case["lengths"]):
        lengths = np.array(documents, dtype=np.int64)
        packing = pack(histogram(lengths, case["context_length"]))
        firsts, ranks, sizes = packing.pieces(np.arange(packing.row_count))
        begins = places(np.cumsum(lengths) - lengths, lengths, case["context_length"])[ranks]
        pieces = [[file, *piece] for piece in zip(begins.tolist(), sizes.tolist(), strict=True)]
        found += [pieces[first:end] for first, end in itertools.pairwise(firsts.tolist())]

    assert found == case["rows"]


@dataclass
class Rows:
    """The rows of documents of a corpus of some files, in memory; DocumentRows."""

    key: RowsKey
    lengths: list[list[int]]
    pieces_hash: bytes = b""

    def __post_init__(self) -> None:
        """Cut the documents, and list all rows."""
        files = []
        for documents in self.lengths:
            sizes = np.array([size for size in documents if size], dtype=np.int64)
            files.append(FilePieces.of(np.cumsum(sizes) - sizes, int(sizes.sum()), self.key))
        self.rows = [
            [[file, *piece] for piece in zip(offsets, sizes, strict=True)]
            for file, pieces in enumerate(files)
            for part in pieces.rows()
            for offsets, sizes in zip(
                np.split(part.token_offset, part.first_piece[1:-1]),
                np.split(part.token_count, part.first_piece[1:-1]),
                strict=True,
            )
            if part.first_piece.size > 1
        ]
        self.pieces_hash = identity.pieces_hash(
            self.key.context_length,
            self.key.long_documents,
            None,
            *documents_of([file.lengths.tolist() for file in files]),
        )

    @property
    def row_count(self) -> int:
        return len(self.rows)

    def pieces(self, rows: npt.NDArray[np.int64]) -> RowPieces:
        found = [self.rows[row] for row in rows.tolist()]
        ends = np.cumsum([0, *map(len, found)])
        return RowPieces(ends, *np.array([piece for row in found for piece in row]).T)


@pytest.mark.parametrize(
    "case", GOLDEN["padded_rows"], ids=lambda case: f"{case['context_length']}-{case['long']}"
)
def test_every_padded_row_has_its_published_piece(case: dict[str, Any]) -> None:
    """In the order of the corpus, and without what is dropped."""
    rows = Rows(RowsKey("padded-1", case["context_length"], case["long"]), case["lengths"])

    assert rows.rows == case["rows"]


@pytest.mark.parametrize(
    "case",
    GOLDEN["row_samples"],
    ids=lambda case: f"{case['order']}-{case['long']}-{case['seed']}",
)
def test_every_sample_over_documents_has_its_published_pieces(case: dict[str, Any]) -> None:
    """The row, its planes, and the identity that covers how documents are cut."""
    order, context_length = orders.find(case["order"]), case["context_length"]
    rows = Rows(RowsKey(order.NAME, context_length, case["long"]), case["lengths"])
    shape = Shape(np.array([sum(file) for file in case["lengths"]], dtype=np.int64))
    shape.document_rows = lambda key: {rows.key: rows}[key]
    stream = Stream.of_dataset("", order, case["seed"], context_length, case["long"])

    spans = plan(stream, [shape], np.array(case["samples"], dtype=np.int64))

    pieces = np.stack([spans.shard, spans.token_offset, spans.token_count], axis=1).tolist()
    ends = spans.first_span.tolist()
    assert [pieces[first:end] for first, end in itertools.pairwise(ends)] == case["rows"]
    assert rows.row_count == case["row_count"]
    for kind, name in ((50, "document_starts"), (52, "token_counts")):
        plane = OF_PIECES[kind](spans)
        ends = np.cumsum([0, *plane.row_lengths]).tolist()
        content = [plane.content[first:end] for first, end in itertools.pairwise(ends)]
        assert [row.tobytes().hex() for row in content] == case[name]
    assert rows.pieces_hash.hex() == case["pieces_hash"]
    fingerprint = reference.fingerprint("uint16", [bytes.fromhex("010002000300")], 2)
    corpus = Corpus(fingerprint, ((context_length, rows.pieces_hash),))
    assert stream.known({0: corpus}).identity(0).hex() == case["identity"]


@pytest.mark.parametrize("case", GOLDEN["windows"], ids=named)
def test_every_sample_has_its_published_window(case: dict[str, Any]) -> None:
    """Places become windows by arithmetic of their own, over files of unequal length."""
    shape = Shape(np.array(case["token_counts"], dtype=np.int64))
    order, context_length = orders.find(case["order"]), case["context_length"]
    blocks = case.get("group_blocks", 0)
    stream = Stream.of_dataset("", order, case["seed"], context_length, group_blocks=blocks)

    spans = plan(stream, [shape], np.array(case["samples"], dtype=np.int64))

    assert np.stack([spans.shard, spans.token_offset], axis=1).tolist() == case["windows"]
    assert spans.first_span.tolist() == list(range(len(case["samples"]) + 1))
    assert set(spans.token_count.tolist()) == {context_length + 1}
    places = shape.places(context_length, has_epochs=order.HAS_EPOCHS)
    assert (places.ends - places.firsts).tolist() == case["place_counts"]
    assert places.place_count == sum(case["place_counts"])


@pytest.mark.parametrize("case", GOLDEN["fingerprints"])
def test_a_corpus_has_its_published_fingerprint(case: dict[str, Any]) -> None:
    """Replicas compare each other by it, also those of other implementations."""
    contents = [bytes.fromhex(content) for content in case["contents"]]
    joined = b"".join(contents)
    blocks = identity.content_blocks(len(joined))
    digests = [hashlib.sha256(joined[first:end]).digest() for first, end in blocks]
    counts = [len(content) // case["token_bytes"] for content in contents]

    found = identity.fingerprint(case["dtype"], counts, digests)

    assert found.hex() == case["fingerprint"]


def stream_of(case: dict[str, Any]) -> Stream:
    """The stream of a stage alone, known as far as a request knows it."""
    context_length = case["context_length"]
    sources = sorted(case["sources"], key=lambda source: int(source["source"]))
    return Stream(
        case["seed"],
        tuple(
            Source(
                "",
                orders.find(each["order"]),
                each["seed"],
                each["source"],
                corpus=Corpus(
                    bytes.fromhex(each["fingerprint"]),
                    ((context_length, bytes.fromhex(each.get("pieces", ""))),),
                ),
                group_blocks=each.get("group_blocks", 0),
            )
            for each in sources
        ),
        (
            Stage(
                case["stage"],
                case["first_sample"],
                context_length,
                tuple(Share(each["source"], each["weight"], each["base"]) for each in sources),
                bytes.fromhex(case["previous"]),
            ),
        ),
        tuple(
            Redaction(each["first_sample"], each["source"], bytes.fromhex(each["list"]))
            for each in case["redactions"]
        ),
    )


def named_stage(case: dict[str, Any]) -> str:
    orders_of = "+".join(source["order"] for source in case["sources"])
    return f"{orders_of}-{case['seed']}-{case['context_length']}-stage{case['stage']}"


@pytest.mark.parametrize("case", GOLDEN["identities"], ids=named_stage)
def test_a_stage_has_its_published_identity(case: dict[str, Any]) -> None:
    """A client derives it for itself, and refuses a server that comes to another one."""
    stream = stream_of(case)

    assert replace(stream, redactions=()).identity(2**63 - 1).hex() == case["stage_identity"]
    assert stream.identity(2**63 - 1).hex() == case["identity"]
    alone, end = stream.at(2**63 - 1)
    assert (alone.identity(2**63 - 1).hex(), end) == (case["identity"], None)


def test_the_chain_of_stages_goes_on_as_published() -> None:
    """Each stage names the one before it, so that a later one changes nothing that was read."""
    before = ""
    for case in GOLDEN["identities"]:
        assert case["previous"] == (before if case["stage"] else bytes(32).hex())
        before = case["stage_identity"]


@pytest.mark.parametrize("case", GOLDEN["pieces"], ids=lambda case: case["long"])
def test_documents_in_pieces_have_their_published_hash_and_identity(case: dict[str, Any]) -> None:
    """Documents cut otherwise are other rows, although no token differs."""
    delimiter = None if case["delimiter"] == "none" else case["delimiter"]

    found = identity.pieces_hash(
        case["context_length"], case["long"], delimiter, *documents_of(case["lengths"])
    )

    assert found.hex() == case["pieces_hash"]
    stream = Stream.of_dataset(
        "", orders.find(case["order"]), case["seed"], case["context_length"], case["long"]
    )
    corpus = Corpus(bytes.fromhex(case["fingerprint"]), ((case["context_length"], found),))
    assert stream.known({0: corpus}).identity(0).hex() == case["identity"]


def documents_of(lengths: list[list[int]]) -> tuple[list[int], str]:
    """Documents of each file, and the SHA-256 of their lengths."""
    joined = np.concatenate([np.array(file, dtype="<u8") for file in lengths])
    return list(map(len, lengths)), hashlib.sha256(joined.tobytes()).hexdigest()


@pytest.mark.parametrize("case", GOLDEN["redactions"])
def test_redacted_rows_have_their_published_identity(case: dict[str, Any]) -> None:
    """Rows with and without what was taken out must never stand in for each other."""
    in_force = []
    for redaction in case["redactions"]:
        ranges = [tuple(found) for found in redaction["ranges"]]
        list_hash = identity.redaction_list_hash(redaction["fill"], ranges)
        assert list_hash.hex() == redaction["list"]
        in_force.append((redaction["first_sample"], redaction["source"], list_hash))

    found = identity.redacted_identity(bytes.fromhex(case["identity"]), in_force)

    assert found.hex() == case["redacted_identity"]


@pytest.mark.parametrize("case", [case for case in GOLDEN["planes"] if "entries" in case])
def test_a_plane_has_its_published_fingerprint(case: dict[str, Any]) -> None:
    """Two servers of one corpus with different masks are told apart by it."""
    entries = [bytes.fromhex(file) for file in case["entries"]]
    joined = b"".join(entries)
    blocks = identity.content_blocks(len(joined))
    digests = [hashlib.sha256(joined[first:end]).digest() for first, end in blocks]
    entry_bytes = {50: 8, 51: 1}[case["plane"]]

    found = identity.plane_fingerprint(
        case["plane"], [len(file) // entry_bytes for file in entries], digests
    )

    assert found.hex() == case["fingerprint"]


@pytest.mark.parametrize("case", [case for case in GOLDEN["planes"] if "sources" in case])
def test_a_plane_of_a_stage_has_its_published_fingerprint(case: dict[str, Any]) -> None:
    """It says which source has which plane, not only that some have one."""
    sources = [
        (source["source"], bytes.fromhex(source["fingerprint"])) for source in case["sources"]
    ]

    found = identity.stage_plane_fingerprint(case["plane"], sources)

    assert found.hex() == case["fingerprint"]


@pytest.mark.parametrize("case", GOLDEN["blocks"], ids=lambda case: str(case["content_bytes"]))
def test_the_blocks_that_are_hashed_are_the_published_ones(case: dict[str, Any]) -> None:
    """Exactly 2^30 bytes are still hashed in full; one more and only blocks are."""
    blocks = list(identity.content_blocks(case["content_bytes"]))

    assert len(blocks) == case["count"]
    assert [list(block) for block in blocks[:3]] == case["first_three"]
    assert [list(block) for block in blocks[-2:]] == case["last_two"]


@pytest.mark.parametrize("case", GOLDEN["crc32c"])
def test_the_checksum_library_computes_crc_32c(case: dict[str, Any]) -> None:
    """Every language has it, if it is the same one."""
    assert google_crc32c.value(bytes.fromhex(case["data"])) == case["crc32c"]


@pytest.mark.parametrize("case", GOLDEN["checksums"])
def test_a_frame_has_its_published_checksum(case: dict[str, Any]) -> None:
    """It covers what was asked for as well as the tokens."""
    assert checksum_of(case) == case["checksum"]


@pytest.mark.parametrize("case", GOLDEN["plane_checksums"])
def test_a_frame_with_planes_has_its_published_checksum(case: dict[str, Any]) -> None:
    """A mask of other rows, or of another corpus, must not pass for the right one."""
    assert checksum_of(case) == case["checksum"]


@pytest.mark.parametrize("case", GOLDEN["rows_checksums"])
def test_a_frame_of_single_rows_has_its_published_checksum(case: dict[str, Any]) -> None:
    """It covers the whole list of samples, so that a flipped bit in one of them is found."""
    assert checksum_of(case) == case["checksum"]


def checksum_of(case: dict[str, Any]) -> int:
    tokens = np.frombuffer(bytes.fromhex(case["tokens"]), dtype="<u2")
    tokens = tokens.reshape(case["row_count"], -1)
    cases = case.get("planes", [])
    planes = tuple(
        Plane(
            plane["kind"],
            np.array(plane["row_bytes"], dtype=np.uint32),
            np.frombuffer(bytes.fromhex(plane["content"]), dtype=np.uint8),
        )
        for plane in cases
    )
    position: Position | SampleList
    if "samples" in case:
        position = SampleList(np.array(case["samples"], dtype=np.int64))
    else:
        place = (case[name] for name in ("first_sample", "batch_size", "rank", "world_size"))
        position = Position(*place)
    frames = Frames(
        tokens.shape[1],
        position,
        bytes.fromhex(case["identity"]),
        {plane["kind"]: bytes.fromhex(plane["fingerprint"]) for plane in cases},
    )
    return checksum(frames, case["first_row"], RowBlock(tokens, planes))


@pytest.mark.parametrize("case", GOLDEN["requests"], ids=lambda case: case["message"][:16])
def test_a_request_has_its_published_bytes(case: dict[str, Any]) -> None:
    """A client in another language writes them by its own stub, and this server reads them."""
    content = bytes.fromhex(case["message"])
    message = (pb.GetRowsRequest if "samples" in case else pb.GetBatchRequest).FromString(content)

    assert plain(message) == {name: value for name, value in case.items() if name != "message"}
    # What is sent again says more, but means the same.
    again = sent_again(message)
    assert sent_again(again) == again
    assert len(again.SerializeToString()) - len(content) in (
        0,
        len(b"\x38\x01"),  # world_size
        len(b"\x38\x01" + b"\x38\x80\x08"),  # and the default of group_blocks
    )


def sent_again(message: Message) -> Message:
    assert isinstance(message, (pb.GetBatchRequest, pb.GetRowsRequest))
    return to_message(*from_message(message))


def plain(message: Message) -> dict[str, Any]:
    """The fields of a message as the vectors have them: bytes in hexadecimal, and no hints."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.number >= 100 or (field.has_presence and not message.HasField(field.name)):
            continue
        value = getattr(message, field.name)
        if field.name == "group_blocks" and not value:
            continue  # the vectors of other orders are older than this field
        if isinstance(value, Message):
            found[field.name] = plain(value)
        elif isinstance(value, bytes):
            found[field.name] = value.hex()
        elif isinstance(value, int | str):
            found[field.name] = value
        else:
            found[field.name] = [plain(v) if isinstance(v, Message) else v for v in value]
    return found


@pytest.mark.parametrize("case", GOLDEN["length_changes"])
def test_a_context_length_begins_at_its_published_sample(case: dict[str, Any]) -> None:
    """Behind a group of blocks, at once, or with an epoch; also beyond 2^53."""
    order, blocks = orders.find(case["order"]), case.get("group_blocks", 0)
    source = Source("", order, 0, group_blocks=blocks)
    shape = Shape(np.array(case["token_counts"], dtype=np.int64))

    def rows(_: Source, length: int) -> int:
        return shape.places(length, has_epochs=order.HAS_EPOCHS).place_count

    stages = [first_stage(case["context_lengths"][0], {0: 1})]
    for asked, length in zip(case["asked"][1:], case["context_lengths"][1:], strict=True):
        stages.append(resized_stage(stages[-1], asked, length, [source], rows))

    assert [stage.first_sample for stage in stages] == case["first_samples"]
    assert [stage.shares[0].base for stage in stages] == case["bases"]


@pytest.mark.parametrize("case", GOLDEN["mixture_length_changes"])
def test_a_mixture_goes_on_at_its_published_samples(case: dict[str, Any]) -> None:
    """Each source with its own group, and with the rows left out that the page says."""
    counts = [np.array(each, dtype=np.int64) for each in case["token_counts"]]
    sources = [
        Source("", orders.find(order), 0, number, group_blocks=blocks)
        for number, (order, blocks) in enumerate(
            zip(case["orders"], case["group_blocks"], strict=True)
        )
    ]

    def rows(source: Source, length: int) -> int:
        has_epochs = source.order.HAS_EPOCHS
        return Shape(counts[source.number]).places(length, has_epochs=has_epochs).place_count

    weights = [dict(enumerate(each)) for each in case["weights"]]
    stages = [first_stage(case["context_lengths"][0], weights[0])]
    for asked, own, length in zip(
        case["asked"][1:], weights[1:], case["context_lengths"][1:], strict=True
    ):
        last = stages[-1]
        kind = LENGTH if length != last.context_length else DEFINED
        stages.append(placed(sources, rows, last, planned_stage(length, asked, own, kind)))

    assert [stage.first_sample for stage in stages] == case["first_samples"]
    assert [[share.base for share in stage.shares] for stage in stages] == case["bases"]
    for (last, stage), expected in zip(pairwise(stages), case["left_out"][1:], strict=True):
        found = left_out(last, stage, sources, rows)
        assert [found.get(source.number, 0) for source in sources] == expected


@pytest.mark.parametrize("case", GOLDEN["mixture_samples"])
def test_every_sample_of_a_mixture_has_its_published_source(case: dict[str, Any]) -> None:
    """Also beyond 2^53, where a float would lose it, and at both sides of the borders of stages."""
    weights = [dict(enumerate(each)) for each in case["weights"]]
    stages = [first_stage(2, weights[0])]
    for asked, own in zip(case["asked"][1:], weights[1:], strict=True):
        stages.append(next_stage(stages[-1], asked, own))
    sources = tuple(Source("", orders.find(""), 0, number) for number in weights[0])
    stream = Stream(case["seed"], sources, tuple(stages))

    assert [stage.first_sample for stage in stages] == case["first_samples"]
    assert [[share.base for share in stage.shares] for stage in stages] == case["bases"]
    for sample, *expected in zip(
        case["samples"], case["sources"], case["source_samples"], strict=True
    ):
        stage = stream.at(sample)[0].stage
        source, own = locate(stage, case["seed"], np.array([sample], dtype=np.int64))
        assert (source.dtype, own.dtype) == (np.int64, np.int64)
        assert [stage.shares[source.item()].source, own.item()] == expected
