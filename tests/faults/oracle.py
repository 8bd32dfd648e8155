"""What a request deserves by the contract: a refusal of some field, or the right rows.

The refusals are written from the comments of tokenfeed.proto. Rows, identities and hashes follow
from the files themselves by tests/support/reference.py, which shares no code with the server.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """A server, and what it serves.  files: the tokens of each file of each dataset."""

    server: Server
    files: Mapping[str, Sequence[Tokens]]
    fingerprints: dict[str, bytes] = field(init=False)
    digests: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        """Compute fingerprints and digests."""
        contents = {
            name: (files[0].dtype.name, [tokens.tobytes() for tokens in files], files[0].itemsize)
            for name, files in self.files.items()
        }
        self.fingerprints = {name: reference.fingerprint(*of) for name, of in contents.items()}
        self.digests = {name: reference.digest(*of) for name, of in contents.items()}

    def identity(self, request: pb.GetBatchRequest) -> bytes:
        """Return the identity of the rows of a valid request."""
        if request.order != MIXTURE:
            order, fingerprint = request.order or DEFAULT_ORDER, self.fingerprints[request.dataset]
            return reference.identity(order, request.seed, request.context_length, fingerprint)
        stage = request.stage
        sources = [
            reference.Source(
                source.number,
                self.fingerprints[source.dataset],
                source.order or DEFAULT_ORDER,
                source.seed,
                source.base,
                source.weight,
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

    def rows(self, request: pb.GetBatchRequest, stream_rows: Iterable[int]) -> Tokens:
        """Return rows of a valid request, from the files themselves.

        stream_rows: their numbers; row r of batch k is k * batch_size + r.
        """
        place = position(request)
        position_values = place.first_sample, place.batch_size, place.rank, place.world_size
        return np.stack(
            [self._row(request, reference.sample_of(*position_values, row)) for row in stream_rows]
        )

    def _row(self, request: pb.GetBatchRequest, sample: int) -> Tokens:
        source: Source = request
        if request.order == MIXTURE:
            stage = request.stage
            weights = [source.weight for source in stage.sources]
            bases = [source.base for source in stage.sources]
            number, sample = reference.stage_place(
                request.seed,
                stage.index,
                reference.Stage(stage.first_sample, weights, bases),
                sample,
            )
            source = stage.sources[number]
        files, length = self.files[source.dataset], request.context_length
        file, first = reference.window(
            source.order or DEFAULT_ORDER, source.seed, list(map(len, files)), length, sample
        )
        return files[file][first : first + length + 1]


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
    # No dataset has planes. In a mixture they may be asked for: rows have no bytes of them.
    are_known = set(kinds) <= {50, 51, 52} and kinds == sorted(set(kinds))
    has_kinds = request.order == MIXTURE and are_known
    require(has_kinds or not kinds, "planes")
    for plane in request.planes:
        given = plane.expected_fingerprint
        require(len(given) in (0, 32), "expected_fingerprint")
        if has_kinds and len(given) == 32:
            known = given == reference.stage_plane_fingerprint(plane.kind, [])
            require(known, "expected_fingerprint", "FAILED_PRECONDITION")
    version = 2 if request.HasField("stage") else 1
    require(len(request.expected_identity) in (0, 32), "expected_identity")
    require(request.identity_version > 0 or not request.expected_identity, "identity_version")
    require(request.identity_version in (0, 1, 2), "identity_version")
    if request.expected_identity and request.identity_version in (1, 2):
        require(request.identity_version == version, "identity_version", "FAILED_PRECONDITION")
    for redaction in request.redactions:
        require(len(redaction.list_hash) == 32, "list_hash")
        require(False, "redactions", "FAILED_PRECONDITION")
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


def require_source(found: Complaints, feed: Feed, source: Source, context_length: int) -> None:
    """Check a source of a mixture, or what a request of one dataset has in its place."""
    found.require(source.dataset != "", "dataset")
    found.require(source.dataset in ("", *feed.files), "dataset", "NOT_FOUND")
    found.require(len(source.expected_digest) in (0, 32), "expected_digest")
    require_order(found, source)
    if source.dataset in feed.files and source.order not in reference.DOCUMENT_ORDERS:
        longest = max(len(tokens) for tokens in feed.files[source.dataset])
        found.require(context_length < longest, "context_length")


def require_order(found: Complaints, named: Source | pb.DescribeRequest) -> None:
    """Check an order, and what it does with long documents. The documents of no dataset are
    known.
    """
    of_documents = reference.DOCUMENT_ORDERS
    found.require(named.order in ("", *reference.ORDERS, *of_documents), "order", "NOT_FOUND")
    found.require(named.order not in of_documents, "order")
    long_of = {"packed-1": ("cut",), "padded-1": ("cut", "drop", "truncate")}
    found.require(named.long_documents in ("", *long_of.get(named.order, ())), "long_documents")


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
    require_order(found, request)
    if request.order:
        # An order over documents is of one dataset and one length; others are not named here.
        found.require(False, "order")
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
