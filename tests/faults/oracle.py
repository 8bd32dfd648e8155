"""What a request deserves by the contract: a refusal of some field, or the right rows.

The refusals are written from the comments of tokenfeed.proto. Rows, identities and hashes follow
from the files themselves by tests/support/reference.py, which shares no code with the server.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.support import reference
from tokenfeed.stream.position import Position
from tokenfeed.v1 import tokenfeed_pb2 as pb

DEFAULT_ORDER = "random-1"
BATCH_BYTES_MAX = 1 << 30
ROW_BYTES_MAX = 1 << 30
BLOCK_MAX = 1 << 20
ROWS_MAX = 4096

Tokens = npt.NDArray[np.unsignedinteger]
Request = pb.GetBatchRequest | pb.GetRowsRequest
Pieces = list[list[int]]
"""[file, first token, length] of each piece of a row; a window is one."""
Key = tuple[str, int, str]
"""An order over documents, T, and what it does with long ones."""
Complaint = tuple[str, str]
"""The field that a refusal names, and its status."""


class Server(Protocol):
    """A server process.  address: "HOST:PORT".  stderr: the log so far."""

    process: subprocess.Popen[str]

    @property
    def address(self) -> str: ...

    @property
    def stderr(self) -> str: ...


class Row(NamedTuple):
    """planes: its bytes of each kind."""

    tokens: Tokens
    planes: dict[int, bytes]


@dataclass
class Feed:
    """A server, and what it serves.

    files: the tokens of each file of each dataset.  documents: the lengths of the documents of each
    file, of datasets that know them.  masks: which tokens are targets, of each file, of datasets
    with a loss mask.  redactions: the lists of each dataset.  keys: of rows over documents that the
    server has opened, as many as it opens.
    """

    server: Server
    files: Mapping[str, Sequence[Tokens]]
    documents: Mapping[str, list[list[int]]]
    masks: Mapping[str, list[list[bool]]]
    redactions: Mapping[str, list[reference.RedactionList]]
    keys: frozenset[Key]
    fingerprints: dict[str, bytes] = field(init=False)
    digests: dict[str, bytes] = field(init=False)
    starts: dict[str, list[list[int]]] = field(init=False)
    planes: dict[str, dict[int, bytes]] = field(init=False)
    lists: dict[str, dict[bytes, reference.RedactionList]] = field(init=False)

    def __post_init__(self) -> None:
        """Compute the hashes of each dataset and of its planes, and where documents begin."""
        contents = {
            name: (files[0].dtype.name, [tokens.tobytes() for tokens in files], files[0].itemsize)
            for name, files in self.files.items()
        }
        self.fingerprints = {name: reference.fingerprint(*of) for name, of in contents.items()}
        self.digests = {name: reference.digest(*of) for name, of in contents.items()}
        self.starts = {
            name: [list(_starts(lengths)) for lengths in files]
            for name, files in self.documents.items()
        }
        self.planes = {name: {} for name in self.files}
        for name, starts in self.starts.items():
            entries = list(map(reference.document_entries, starts))
            self.planes[name][50] = reference.plane_fingerprint(50, entries)
        for name, masks in self.masks.items():
            entries = list(map(reference.mask_entries, masks))
            self.planes[name][51] = reference.plane_fingerprint(51, entries)
        self.lists = {
            name: {reference.list_hash(*one): one for one in self.redactions.get(name, ())}
            for name in self.files
        }

    def identity(self, stream: pb.Stream) -> bytes:
        """Return the identity of the rows of a valid stream."""
        stage, sources = stream.stage, {source.number: source for source in stream.sources}
        identity = reference.stage_identity(
            stage.previous_identity or bytes(32),
            stage.index,
            stage.first_sample,
            stage.context_length,
            stream.seed,
            [
                reference.Source(
                    share.source,
                    self.fingerprints[sources[share.source].dataset],
                    sources[share.source].order or DEFAULT_ORDER,
                    sources[share.source].seed,
                    share.base,
                    share.weight,
                    self._pieces_hash(sources[share.source], stage.context_length),
                )
                for share in shares_of(stage)
            ],
        )
        return reference.redacted_identity(identity, redactions_of(stream))

    def token_bytes(self, stream: pb.Stream) -> int:
        """Return the width of the tokens of a stream: that of its widest source."""
        names = {source.dataset for source in stream.sources} & set(self.files)
        return max((self.files[name][0].itemsize for name in names), default=2)

    def kinds(self, stream: pb.Stream) -> set[int]:
        """Return the kinds of planes that may be requested of a stream."""
        kinds = {53}
        for source in stream.sources:
            kinds |= set(self.planes.get(source.dataset, ()))
            kinds |= {52} if source.order in reference.DOCUMENT_ORDERS else set()
        return kinds

    def plane_fingerprint(self, stream: pb.Stream, kind: int) -> bytes:
        """Return the fingerprint of one of its `kinds`."""
        planes = {each.number: self.planes.get(each.dataset, {}) for each in stream.sources}
        had = [(number, own[kind]) for number, own in planes.items() if kind in own]
        if len(planes) == 1 and had:
            return had[0][1]
        return reference.stage_plane_fingerprint(kind, had)

    def is_defined(self, stream: pb.Stream, sample: int) -> bool:
        """Return whether a valid stream has a row: the sample of its source may be too large."""
        return _located(stream, sample)[1] < 1 << 63

    def row(self, stream: pb.Stream, sample: int) -> Row:
        """Return a row of a valid stream, from the files themselves."""
        length = stream.stage.context_length
        source, own_sample = _located(stream, sample)
        files, pieces = self.files[source.dataset], self._pieces(source, length, own_sample)
        tokens = np.concatenate([files[file][first : first + n] for file, first, n in pieces])
        tokens = np.pad(tokens, (0, length + 1 - len(tokens)))
        lists = [
            self.lists[source.dataset][hashed]
            for _, number, hashed in redactions_of(stream)
            if number == source.number
        ]
        planes = dict.fromkeys((50, 51, 52, 53), b"")
        if lists:
            sent, planes[53] = reference.redacted_row(tokens.tolist(), pieces, lists)
            tokens = np.array(sent, tokens.dtype)
        ((file, first, _), *_) = pieces
        if source.order in reference.DOCUMENT_ORDERS:
            planes[50] = reference.piece_starts_row(pieces)
            planes[52] = reference.token_counts_row(pieces)
        elif source.dataset in self.starts:
            starts = self.starts[source.dataset][file]
            planes[50] = reference.document_starts_row(starts, first, length)
        if source.dataset in self.masks:  # no dataset here has both
            mask = self.masks[source.dataset][file]
            planes[51] = reference.loss_mask_row(mask, first, length)
        return Row(tokens, planes)

    def document_rows(self, source: pb.Source | pb.DescribeRequest, length: int) -> list[Pieces]:
        """Return the rows of an order over documents."""
        files = tuple(map(tuple, self.documents[source.dataset]))
        return _document_rows(source.order, files, length, source.long_documents or "cut")

    def pieces_hash(self, source: pb.Source | pb.DescribeRequest, length: int) -> bytes:
        """Return the hash of the pieces of an order over documents."""
        long = source.long_documents or "cut"
        return reference.pieces_hash(length, long, None, self.documents[source.dataset])

    def _pieces_hash(self, source: pb.Source, length: int) -> bytes | None:
        is_cut = source.order in reference.DOCUMENT_ORDERS
        return self.pieces_hash(source, length) if is_cut else None

    def _pieces(self, source: pb.Source, length: int, sample: int) -> Pieces:
        """Return the pieces of a row.  sample: in the order of its source."""
        if source.order in reference.DOCUMENT_ORDERS:
            rows = self.document_rows(source, length)
            return rows[reference.place(source.order, source.seed, len(rows), sample)]
        counts = list(map(len, self.files[source.dataset]))
        order = source.order or DEFAULT_ORDER
        return [[*reference.window(order, source.seed, counts, length, sample), length + 1]]


def _located(stream: pb.Stream, sample: int) -> tuple[pb.Source, int]:
    """Return the source of a row, and its sample in the order of that source."""
    stage, shares = stream.stage, shares_of(stream.stage)
    weights, bases = [share.weight for share in shares], [share.base for share in shares]
    asked = reference.Stage(stage.first_sample, weights, bases)
    place, own_sample = reference.stage_place(stream.seed, stage.index, asked, sample)
    return stream.sources[place], own_sample


def _starts(lengths: Sequence[int]) -> Iterable[int]:
    """Yield where documents begin that have tokens."""
    begin = 0
    for length in lengths:
        if length:
            yield begin
        begin += length


@functools.cache
def _document_rows(
    order: str, files: tuple[tuple[int, ...], ...], length: int, long: str
) -> list[Pieces]:
    return reference.document_rows(order, list(map(list, files)), length, long)


def shares_of(stage: pb.Stage) -> Sequence[pb.Share]:
    return stage.shares or [pb.Share(source=0, weight=1, base=0)]


def redactions_of(stream: pb.Stream) -> list[tuple[int, int, bytes]]:
    return [(each.first_sample, each.source, each.list_hash) for each in stream.redactions]


def position(request: pb.GetBatchRequest) -> Position:
    world_size = request.world_size if request.HasField("world_size") else 1
    return Position(request.first_sample, request.batch_size, request.rank, world_size)


def samples_of(request: Request, rows: Iterable[int]) -> list[int]:
    """Return the samples of rows of a valid request: row r of batch k is row k * batch_size + r."""
    if isinstance(request, pb.GetRowsRequest):
        return [request.samples[row] for row in rows]
    place = position(request)
    first, of_ranks = place.first_sample, (place.batch_size, place.rank, place.world_size)
    return [reference.sample_of(first, *of_ranks, row) for row in rows]


def first_sample_of(request: Request) -> int:
    """Return the sample of the first row: that of a list which comes first in the stream."""
    if isinstance(request, pb.GetRowsRequest):
        return min(request.samples, default=0)
    return request.first_sample + request.rank * request.batch_size + request.first_row


# Which refusals does a request deserve, by the words of tokenfeed.proto?


class Complaints(set[Complaint]):
    """The valid refusals of a request; empty if it has to be answered."""

    def require(self, condition: bool, field: str, status: str = "INVALID_ARGUMENT") -> None:
        """Add a refusal unless a condition holds."""
        if not condition:
            self.add((field, status))


def complaints(feed: Feed, request: Request) -> Complaints:
    found = Complaints()
    require, stream = found.require, request.stream
    if isinstance(request, pb.GetRowsRequest):
        require(1 <= len(request.samples) <= ROWS_MAX, "samples")
        require(max(request.samples, default=0) < 1 << 63, "samples", "OUT_OF_RANGE")
        rows, row_count = "samples", len(request.samples)
    else:
        require_position(found, request)
        rows, row_count = "batch_size", request.batch_size
    first = first_sample_of(request)
    require(is_understood(request), "request")
    require_stage(found, stream, first)
    for source in stream.sources:
        require_source(found, feed, source, stream.stage.context_length)
    row_bytes = (stream.stage.context_length + 1) * feed.token_bytes(stream)
    require(row_count * row_bytes <= BATCH_BYTES_MAX, rows)
    require(row_bytes <= ROW_BYTES_MAX, "context_length")
    require_planes(found, feed, request)
    require_redactions(found, feed, request, first)
    # Only an otherwise valid request has an identity and a corpus.
    is_sound = not found
    own = feed.identity(stream) if is_sound else b""
    require_hash(found, "expected_identity", request.expected_identity, own)
    for source in stream.sources:
        own = feed.digests[source.dataset] if is_sound else b""
        require_hash(found, "expected_digest", source.expected_digest, own)
    return found


def require_hash(found: Complaints, field: str, given: bytes, own: bytes) -> None:
    """Check an expected hash, which may be unset.  own: b"" if there is none to be right."""
    found.require(len(given) in (0, 32), field)
    found.require(len(given) != 32 or given == own, field, "FAILED_PRECONDITION")


def require_position(found: Complaints, request: pb.GetBatchRequest) -> None:
    """Check which rows of a stream a request is for."""
    require, batch_size = found.require, request.batch_size
    world_size = request.world_size if request.HasField("world_size") else 1
    require(1 <= batch_size <= 1 << 20, "batch_size")
    require(1 <= world_size <= 1 << 32, "world_size")
    require(request.rank < world_size, "rank")
    require(request.first_row < batch_size, "first_row")
    require(request.first_sample < 1 << 63, "first_sample", "OUT_OF_RANGE")
    if request.HasField("end_sample"):
        require(request.end_sample <= 1 << 63, "end_sample", "OUT_OF_RANGE")
        return
    batches = request.num_batches if request.HasField("num_batches") else 1
    past_last = request.first_sample + ((batches - 1) * world_size + request.rank + 1) * batch_size
    last = "num_batches" if request.HasField("num_batches") else "first_sample"
    require(batches == 0 or past_last <= 1 << 63, last, "OUT_OF_RANGE")


def require_stage(found: Complaints, stream: pb.Stream, first: int) -> None:
    """Check the stage, and that it has the sources.  first: sample of the first row."""
    stage, shares, require = stream.stage, shares_of(stream.stage), found.require
    require(1 <= stage.context_length, "context_length")
    require(stage.index < 1 << 32, "stage.index")
    require(stage.first_sample < 1 << 63, "stage.first_sample", "OUT_OF_RANGE")
    require(stage.first_sample <= first, "stage.first_sample")
    before = stage.previous_identity
    is_first = stage.index == 0 and before in (b"", bytes(32))
    require(is_first or (stage.index > 0 and len(before) == 32), "previous_identity")
    numbers = [source.number for source in stream.sources]
    require(len(numbers) > 0, "stream.sources")
    require(numbers == sorted(set(numbers)), "stream.sources")
    shared = [share.source for share in shares]
    require(numbers == shared == sorted(set(shared)), "stage.shares")
    for share in shares:
        require(1 <= share.weight <= BLOCK_MAX, "weight")
        require(share.base < 1 << 63, "base", "OUT_OF_RANGE")
    require(sum(share.weight for share in shares) <= BLOCK_MAX, "weight")


def require_source(found: Complaints, feed: Feed, source: pb.Source, context_length: int) -> None:
    found.require(source.dataset != "", "dataset")
    found.require(source.dataset in ("", *feed.files), "dataset", "NOT_FOUND")
    require_order(found, feed, source, context_length)
    # Of the orders of the mutants, none has groups of blocks.
    found.require(source.group_blocks == 0, "group_blocks")
    if source.dataset in feed.files and source.order not in reference.DOCUMENT_ORDERS:
        longest = max(len(tokens) for tokens in feed.files[source.dataset])
        found.require(context_length < longest, "context_length")


def require_order(
    found: Complaints, feed: Feed, named: pb.Source | pb.DescribeRequest, context_length: int
) -> None:
    """Check an order, what it does with long documents, and whether it has rows of this length."""
    of_documents = reference.DOCUMENT_ORDERS
    found.require(named.order in ("", *reference.ORDERS, *of_documents), "order", "NOT_FOUND")
    long_of = {"packed-1": ("cut",), "padded-1": ("cut", "drop", "truncate")}
    found.require(named.long_documents in ("", *long_of.get(named.order, ())), "long_documents")
    if named.order not in of_documents:
        return
    found.require(named.dataset in feed.documents, "order")
    # No more are opened, so this includes lengths that cannot be.
    key = named.order, context_length, named.long_documents or "cut"
    found.require(key in feed.keys, "context_length")


def require_planes(found: Complaints, feed: Feed, request: Request) -> None:
    """Check the planes, and that a mask of targets is not left out by mistake."""
    stream, kinds = request.stream, [plane.kind for plane in request.planes]
    is_known = set(kinds) <= feed.kinds(stream) and len(kinds) == len(set(kinds))
    found.require(is_known, "planes")
    for plane in request.planes:
        own = feed.plane_fingerprint(stream, plane.kind) if is_known else b""
        require_hash(found, "expected_fingerprint", plane.expected_fingerprint, own)
    is_masked = any(source.dataset in feed.masks for source in stream.sources)
    is_decided = 51 in (*kinds, *request.declined_planes)
    found.require(not is_masked or is_decided, "declined_planes", "FAILED_PRECONDITION")


def require_redactions(found: Complaints, feed: Feed, request: Request, first: int) -> None:
    """Check the redactions.  first: sample of the first row."""
    require, redactions = found.require, redactions_of(request.stream)
    require(all(one < following for one, following in pairwise(redactions)), "redactions")
    names = {source.number: source.dataset for source in request.stream.sources}
    for first_sample, source, hashed in redactions:
        require(first_sample < 1 << 63, "redactions.first_sample", "OUT_OF_RANGE")
        require(first_sample <= first, "redactions.first_sample")
        require(source in names, "redactions.source")
        require(len(hashed) == 32, "list_hash")
        known = feed.lists.get(names.get(source, ""), {})
        require(len(hashed) != 32 or hashed in known, "redactions", "FAILED_PRECONDITION")
    is_told = 53 in [plane.kind for plane in request.planes]
    require(not redactions or is_told, "redactions", "FAILED_PRECONDITION")


def describe_complaints(feed: Feed, request: pb.DescribeRequest) -> Complaints:
    found = Complaints()
    found.require(request.dataset in ("", *feed.files), "dataset", "NOT_FOUND")
    if request.HasField("context_length"):
        found.require(1 <= request.context_length < 1 << 63, "context_length")
    length = request.context_length
    require_order(found, feed, request, length if request.HasField("context_length") else 1)
    if request.order:
        found.require(request.order in reference.DOCUMENT_ORDERS, "order")
        found.require(request.dataset != "", "dataset")
        found.require(request.HasField("context_length"), "context_length")
    found.require(is_understood(request), "request")
    return found


def is_understood(message: Message) -> bool:
    """Return whether neither it nor a nested message has an unknown field below 100."""
    unknown = UnknownFieldSet(message)
    numbers = [unknown[index].field_number for index in range(len(unknown))]
    return all(number >= 100 for number in numbers) and all(map(is_understood, parts_of(message)))


def parts_of(message: Message) -> Iterable[Message]:
    """Yield the messages directly within a message."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            yield from (value,) if isinstance(value, Message) else value


# How many rows does a valid one deserve?


def rows_promised(request: Request) -> int:
    """Return the number of rows of a valid request."""
    if isinstance(request, pb.GetRowsRequest):
        return len(request.samples)
    place = position(request)
    if not request.HasField("end_sample"):
        batches = request.num_batches if request.HasField("num_batches") else place.batches_left
        return max(0, batches * request.batch_size - request.first_row)
    batches = request.num_batches if request.HasField("num_batches") else 1 << 64
    first = request.first_sample + request.rank * request.batch_size
    whole, rest = divmod(max(0, request.end_sample - first), place.stride)
    rows = min(
        whole * request.batch_size + min(rest, request.batch_size), batches * request.batch_size
    )
    return max(0, rows - request.first_row)
