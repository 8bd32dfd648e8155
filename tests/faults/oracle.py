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
from typing import Protocol

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.support import reference
from tokenfeed.stream.position import Position
from tokenfeed.v1 import tokenfeed_pb2 as pb

MIXTURE = "mixture-1"
DEFAULT_ORDER = "random-1"
BATCH_BYTES_MAX = 1 << 30
ROW_BYTES_MAX = 1 << 30
BLOCK_MAX = 1 << 20

Tokens = npt.NDArray[np.unsignedinteger]
Source = pb.GetBatchRequest | pb.StageSource
"""What names a dataset, its order and its digest: a request of one dataset is its only source."""
Pieces = list[list[int]]
"""[file, first token, length] of each piece of a row."""
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


@dataclass
class Feed:
    """A server, and what it serves.

    files: the tokens of each file of each dataset.  documents: the lengths of the documents of each
    file, of datasets that know them.  keys: of rows over documents that the server has opened, as
    many as it opens.
    """

    server: Server
    files: Mapping[str, Sequence[Tokens]]
    documents: Mapping[str, list[list[int]]]
    keys: frozenset[Key]
    fingerprints: dict[str, bytes] = field(init=False)
    digests: dict[str, bytes] = field(init=False)
    starts: dict[str, list[list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        """Compute fingerprints and digests, and where documents begin."""
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

    def identity(self, request: pb.GetBatchRequest) -> bytes:
        """Return the identity of the rows of a valid request."""
        length = request.context_length
        if request.order != MIXTURE:
            order, fingerprint = request.order or DEFAULT_ORDER, self.fingerprints[request.dataset]
            pieces = self._pieces_hash(request, length)
            return reference.identity(order, request.seed, length, fingerprint, pieces)
        stage = request.stage
        sources = [
            reference.Source(
                source.number,
                self.fingerprints[source.dataset],
                source.order or DEFAULT_ORDER,
                source.seed,
                source.base,
                source.weight,
                self._pieces_hash(source, length),
            )
            for source in stage.sources
        ]
        return reference.stage_identity(
            stage.previous_identity, stage.index, stage.first_sample, sources
        )

    def token_bytes(self, request: pb.GetBatchRequest) -> int:
        """Return the width of the tokens of a request: that of its widest source."""
        names = {source.dataset for source in sources_of(request)} & set(self.files)
        return max((self.files[name][0].itemsize for name in names), default=2)

    def plane_fingerprint(self, request: pb.GetBatchRequest, kind: int) -> bytes:
        """Return the fingerprint of a plane that a request may have."""
        if kind == 53:
            return bytes(32)
        entries = {
            name: [reference.document_entries(starts) for starts in files]
            for name, files in self.starts.items()
        }
        if request.order != MIXTURE:
            return reference.plane_fingerprint(kind, entries[request.dataset])
        known = [
            (source.number, reference.plane_fingerprint(50, entries[source.dataset]))
            for source in request.stage.sources
            if kind == 50 and source.dataset in entries
        ]
        return reference.stage_plane_fingerprint(kind, known)

    def rows(self, request: pb.GetBatchRequest, stream_rows: Iterable[int]) -> Tokens:
        """Return rows of a valid request, from the files themselves.

        stream_rows: their numbers; row r of batch k is k * batch_size + r.
        """
        return np.stack([self._row(request, row) for row in stream_rows])

    def plane_row(self, request: pb.GetBatchRequest, kind: int, stream_row: int) -> bytes:
        """Return what a plane has of a row of a valid request."""
        length = request.context_length
        source, sample = self._located(request, stream_row)
        if source.order in reference.DOCUMENT_ORDERS:
            pieces = self._pieces(source, length, sample)
            of_pieces = {50: reference.piece_starts_row, 52: reference.token_counts_row}
            return of_pieces[kind](pieces) if kind in of_pieces else b""
        if kind != 50 or source.dataset not in self.starts:
            return b""
        file, first = self._window(source, length, sample)
        return reference.document_starts_row(self.starts[source.dataset][file], first, length)

    def document_rows(self, source: Source | pb.DescribeRequest, length: int) -> list[Pieces]:
        """Return the rows of an order over documents."""
        files = tuple(map(tuple, self.documents[source.dataset]))
        return _document_rows(source.order, files, length, source.long_documents or "cut")

    def _row(self, request: pb.GetBatchRequest, stream_row: int) -> Tokens:
        length = request.context_length
        source, sample = self._located(request, stream_row)
        files = self.files[source.dataset]
        if source.order in reference.DOCUMENT_ORDERS:
            pieces = self._pieces(source, length, sample)
            tokens = np.concatenate([files[file][first : first + n] for file, first, n in pieces])
            return np.pad(tokens, (0, length + 1 - len(tokens)))
        file, first = self._window(source, length, sample)
        return files[file][first : first + length + 1]

    def _located(self, request: pb.GetBatchRequest, stream_row: int) -> tuple[Source, int]:
        """Return the source of a row, and its sample in the order of that source."""
        place = position(request)
        sample = reference.sample_of(
            place.first_sample, place.batch_size, place.rank, place.world_size, stream_row
        )
        if request.order != MIXTURE:
            return request, sample
        stage = request.stage
        weights = [source.weight for source in stage.sources]
        bases = [source.base for source in stage.sources]
        asked = reference.Stage(stage.first_sample, weights, bases)
        number, sample = reference.stage_place(request.seed, stage.index, asked, sample)
        return stage.sources[number], sample

    def _window(self, source: Source, length: int, sample: int) -> tuple[int, int]:
        token_counts = list(map(len, self.files[source.dataset]))
        order = source.order or DEFAULT_ORDER
        return reference.window(order, source.seed, token_counts, length, sample)

    def _pieces(self, source: Source, length: int, sample: int) -> Pieces:
        rows = self.document_rows(source, length)
        return rows[reference.place(source.order, source.seed, len(rows), sample)]

    def _pieces_hash(self, source: Source, length: int) -> bytes | None:
        if source.order not in reference.DOCUMENT_ORDERS:
            return None
        return self.pieces_hash(source, length)

    def pieces_hash(self, source: Source | pb.DescribeRequest, length: int) -> bytes:
        """Return the hash of the pieces of an order over documents."""
        long = source.long_documents or "cut"
        return reference.pieces_hash(length, long, None, self.documents[source.dataset])


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


def position(request: pb.GetBatchRequest) -> Position:
    world_size = request.world_size if request.HasField("world_size") else 1
    return Position(request.first_sample, request.batch_size, request.rank, world_size)


def sources_of(request: pb.GetBatchRequest) -> Sequence[Source]:
    return request.stage.sources if request.order == MIXTURE else [request]


# Which refusals does a request deserve, by the words of tokenfeed.proto?


class Complaints(set[Complaint]):
    """The valid refusals of a request; empty if it has to be answered."""

    def require(self, condition: bool, field: str, status: str = "INVALID_ARGUMENT") -> None:
        """Add a refusal unless a condition holds."""
        if not condition:
            self.add((field, status))


def complaints(feed: Feed, request: pb.GetBatchRequest) -> Complaints:
    found = Complaints()
    require = found.require
    batch_size, context_length = request.batch_size, request.context_length
    world_size = request.world_size if request.HasField("world_size") else 1
    require(1 <= batch_size <= 1 << 20, "batch_size")
    require(1 <= world_size <= 1 << 32, "world_size")
    require(request.rank < world_size, "rank")
    require(request.first_row < batch_size, "first_row")
    kinds = [plane.kind for plane in request.planes]
    is_known = set(kinds) <= planes_of(feed, request) and len(kinds) == len(set(kinds))
    require(is_known, "planes")
    for plane in request.planes:
        given = plane.expected_fingerprint
        require(len(given) in (0, 32), "expected_fingerprint")
        if is_known and len(given) == 32:
            is_same = given == feed.plane_fingerprint(request, plane.kind)
            require(is_same, "expected_fingerprint", "FAILED_PRECONDITION")
    version = 3 if request.redactions else 2 if request.HasField("stage") else 1
    require(len(request.expected_identity) in (0, 32), "expected_identity")
    require(request.identity_version > 0 or not request.expected_identity, "identity_version")
    require(request.identity_version in (0, 1, 2, 3), "identity_version")
    if request.expected_identity and request.identity_version in (1, 2, 3):
        require(request.identity_version == version, "identity_version", "FAILED_PRECONDITION")
    require_redactions(found, request)
    require(is_understood(request), "request")
    require(context_length >= 1, "context_length")
    if request.order == MIXTURE:
        require_stage(found, request)
    else:
        require(not request.HasField("stage"), "stage")
    for source in sources_of(request):
        require_source(found, feed, source, context_length)
    row_bytes = (context_length + 1) * feed.token_bytes(request)
    require(batch_size * row_bytes <= BATCH_BYTES_MAX, "batch_size")
    require(row_bytes <= ROW_BYTES_MAX, "context_length")

    batches = request.num_batches if request.HasField("num_batches") else 1
    past_last = request.first_sample + ((batches - 1) * world_size + request.rank + 1) * batch_size
    require(request.first_sample < 1 << 63, "first_sample", "OUT_OF_RANGE")
    last = "num_batches" if request.HasField("num_batches") else "first_sample"
    if request.HasField("end_sample"):
        require(request.end_sample <= 1 << 63, "end_sample", "OUT_OF_RANGE")
    else:
        require(batches == 0 or past_last <= 1 << 63, last, "OUT_OF_RANGE")
    # Only an otherwise valid request has an identity and a corpus.
    is_sound = not found
    if given := request.expected_identity:
        is_right = is_sound and given == feed.identity(request)
        require(is_right, "expected_identity", "FAILED_PRECONDITION")
    for source in sources_of(request):
        if given := source.expected_digest:
            is_right = is_sound and given == feed.digests[source.dataset]
            require(is_right, "expected_digest", "FAILED_PRECONDITION")
    return found


def require_redactions(found: Complaints, request: pb.GetBatchRequest) -> None:
    """Check the redactions of a request; no dataset here has a list."""
    keys = [(each.first_sample, each.source, each.list_hash) for each in request.redactions]
    found.require(all(one < following for one, following in pairwise(keys)), "redactions")
    numbers = [each.number for each in request.stage.sources] if request.order == MIXTURE else [0]
    for _, source, list_hash in keys:
        found.require(source in numbers, "redactions.source")
        found.require(len(list_hash) == 32, "list_hash")
        found.require(False, "redactions", "FAILED_PRECONDITION")


def require_source(found: Complaints, feed: Feed, source: Source, context_length: int) -> None:
    """Check a source of a mixture, or what a request of one dataset has in its place."""
    found.require(source.dataset != "", "dataset")
    found.require(source.dataset in ("", *feed.files), "dataset", "NOT_FOUND")
    found.require(len(source.expected_digest) in (0, 32), "expected_digest")
    require_order(found, feed, source, context_length)
    if source.dataset in feed.files and source.order not in reference.DOCUMENT_ORDERS:
        longest = max(len(tokens) for tokens in feed.files[source.dataset])
        found.require(context_length < longest, "context_length")


def require_order(
    found: Complaints, feed: Feed, named: Source | pb.DescribeRequest, context_length: int
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


def planes_of(feed: Feed, request: pb.GetBatchRequest) -> set[int]:
    """Return the kinds of planes that a request may name. In a mixture these are all, as rows
    without one have no bytes of it.
    """
    if request.order == MIXTURE:
        return {50, 51, 52, 53}
    own = {50, 53} if request.dataset in feed.documents else {53}
    return own | ({52} if request.order in reference.DOCUMENT_ORDERS else set())


def require_stage(found: Complaints, request: pb.GetBatchRequest) -> None:
    """Check the stage of a mixture, as far as its sources do not stand for themselves."""
    stage, require = request.stage, found.require
    require(request.HasField("stage"), "stage")
    for name in ("dataset", "expected_digest", "long_documents"):
        require(not getattr(request, name), name)
    if not request.HasField("stage"):
        return
    first = request.first_sample + request.rank * request.batch_size + request.first_row
    require(stage.index < 1 << 32, "stage.index")
    require(stage.first_sample < 1 << 63, "stage.first_sample", "OUT_OF_RANGE")
    require(stage.first_sample <= first, "stage.first_sample")
    require(len(stage.previous_identity) == 32, "previous_identity")
    require(len(stage.mixture_identity) in (0, 32), "mixture_identity")
    if given := stage.mixture_identity:
        own = reference.mixture_start(request.seed, request.context_length)
        require(given == own, "mixture_identity", "FAILED_PRECONDITION")
    numbers = [source.number for source in stage.sources]
    require(len(numbers) > 0, "stage.sources")
    require(numbers == sorted(set(numbers)), "stage.sources")
    for source in stage.sources:
        require(source.base < 1 << 63, "base", "OUT_OF_RANGE")
        require(1 <= source.weight <= BLOCK_MAX, "weight")
    require(sum(source.base for source in stage.sources) <= stage.first_sample, "base")
    require(sum(source.weight for source in stage.sources) <= BLOCK_MAX, "weight")


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
    within: list[Message] = []
    if isinstance(message, pb.GetBatchRequest):
        within = [*message.planes, *message.redactions, message.stage, *message.stage.sources]
    return all(number >= 100 for number in numbers) and all(map(is_understood, within))


# How many rows does a valid one deserve?


def rows_promised(request: pb.GetBatchRequest) -> int:
    """Return the number of rows of a valid request."""
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
