"""Requests of rows, as values and as messages of the contract: both conversions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ..errors import InvalidRequest, LimitExceeded, SamplesExhausted, StreamMismatch
from ..sampling import orders
from ..stream.planes import REDACTED, require_known
from ..stream.position import SAMPLE_END, Position, require_range
from ..stream.stage import FACTS, FIRST_PREVIOUS, HASH_BYTES, Redaction, Share, Source, Stage
from ..stream.stream import Stream
from ..v1 import tokenfeed_pb2 as pb

CONTRACT_REVISION = 3
"""Revision of the contract in this code. Revisions 1 and 2 were not released."""
CLIENT_NAME_MAX = 128
ROWS_MAX = 4096
"""Samples of a GetRows call."""
_HINTS_BEGIN = 100
_SOURCE_BYTES = 100
"""About the size of a source in a request, without its name."""
_REDACTION_BYTES = 50
"""About that of a redaction."""
_NUMBERS_BYTES = 30
"""Maximum growth of a later request, since its numbers have more digits."""


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's rows of a stream. Always valid once constructed.

    planes, declined_planes: kinds of planes to send, ascending; and kinds that affect learning and
    are deliberately not requested.  first_row: rows of the first batch to leave out, in [0, batch
    size).  num_batches: at least 0; None is endless.  end_sample: rows from this sample on are left
    out, in [0, 2^63]; None leaves out none.
    Raises: InvalidRequest or SamplesExhausted, naming the field and its limit.
    """

    stream: Stream
    position: Position
    planes: tuple[int, ...] = ()
    declined_planes: tuple[int, ...] = ()
    first_row: int = 0
    num_batches: int | None = None
    end_sample: int | None = None

    def __post_init__(self) -> None:
        """Check every range."""
        require_known(self.planes)
        require_range("first_row", self.first_row, 0, self.position.batch_size)
        if self.num_batches is not None:
            require_range("num_batches", self.num_batches, 0, 1 << 64)
        if self.end_sample is not None:
            if not 0 <= self.end_sample <= SAMPLE_END:
                raise SamplesExhausted("end_sample", f"{self.end_sample} is not in [0, 2^63]")
            return
        left = self.position.batches_left
        if left < (1 if self.num_batches is None else self.num_batches):
            raise SamplesExhausted(
                "first_sample" if self.num_batches is None else "num_batches",
                f"only {left} batches from first_sample on stay below sample 2^63",
            )

    @property
    def end_batch(self) -> int:
        """Number of batches: the requested ones, or all below sample 2^63."""
        return self.position.batches_left if self.num_batches is None else self.num_batches

    @property
    def end_row(self) -> int:
        """The row of the rank after the last requested one: row r of batch k is k * B + r."""
        batch_size = self.position.batch_size
        if self.end_sample is None:
            rows = self.end_batch * batch_size
        else:
            rows = self.position.rows_before(self.end_sample)
            if self.num_batches is not None:
                rows = min(rows, self.num_batches * batch_size)
        return max(rows, self.first_row)

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return self.end_row - self.first_row

    @property
    def is_endless(self) -> bool:
        """Whether only 2^63 ends it."""
        return self.num_batches is None and self.end_sample is None

    def part(self, first_row: int, end_row: int) -> Request:
        """Return the request for the rows from first_row on, up to the end of the batch of row
        end_row - 1; for fewer if the stage or the redactions in force change before.

        first_row, end_row: counted like self.end_row, at most that. Rows of the result are counted
        from the batch of first_row on.
        """
        end_sample, batch_size = self.end_sample, self.position.batch_size
        stream, end = self.stream.at(self.position.sample_of(first_row))
        if end is not None:
            end_sample = end if end_sample is None else min(end, end_sample)
            end_row = min(end_row, self.position.rows_before(end))
        batch, row = divmod(first_row, batch_size)
        return replace(
            self,
            stream=stream,
            position=replace(self.position, first_sample=self.position.batch_first_sample(batch)),
            first_row=row,
            num_batches=-(-end_row // batch_size) - batch,
            end_sample=end_sample,
        )


class SampleList:
    """The samples of a GetRows call, in place of a position: row r of the call is sample r of it.

    values: int64[n], n in [1, 4096], each in [0, 2^63).
    """

    def __init__(self, values: npt.NDArray[np.int64]) -> None:
        """Raises: InvalidRequest, naming the limit."""
        if not 1 <= values.size <= ROWS_MAX:
            raise InvalidRequest("samples", f"are {values.size}, not 1 to {ROWS_MAX}")
        self.values = values
        self.batch_size = int(values.size)
        self.world_size = 1

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the samples, 8 bytes each, little-endian."""
        return hashlib.sha256(self.values.astype("<u8").tobytes()).digest()

    def samples(self, first_row: int, row_count: int) -> npt.NDArray[np.int64]:
        """Return the samples of rows [first_row, first_row + row_count)."""
        return self.values[first_row : first_row + row_count]

    def sample_of(self, row: int) -> int:
        """Return the sample of a row."""
        return int(self.values[row])


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Some rows of a stream, by their samples, in the order in which they are listed; of one stage.

    planes, declined_planes: as of Request.  Raises: InvalidRequest, naming the field.
    """

    stream: Stream
    position: SampleList
    planes: tuple[int, ...] = ()
    declined_planes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the kinds."""
        require_known(self.planes)

    @property
    def first_row(self) -> int:
        """The first row."""
        return 0

    @property
    def end_row(self) -> int:
        """The row behind the last one."""
        return self.position.batch_size

    row_count = end_row
    end_batch = 1
    """All rows are one batch."""

    @property
    def is_endless(self) -> bool:
        """Whether only 2^63 ends it."""
        return False

    def part(self, first_row: int, end_row: int) -> RowsRequest:
        """Return the request for the rows [first_row, end_row), which have the stage and redactions
        of the first one. Rows of the result are counted from first_row on.
        """
        stream, _ = self.stream.at(self.position.sample_of(first_row))
        samples = SampleList(self.position.samples(first_row, end_row - first_row))
        return replace(self, stream=stream, position=samples)


AnyRequest: TypeAlias = Request | RowsRequest
AnyMessage: TypeAlias = pb.GetBatchRequest | pb.GetRowsRequest


def require_within(request: AnyRequest, limits: pb.Limits, token_bytes: int) -> None:
    """Raise LimitExceeded if a request exceeds the limits of a server.

    limits: of that server; 0 is unknown.  token_bytes: width of its served tokens.
    """
    batch_size = request.position.batch_size
    row_bytes = request.stream.row_tokens * token_bytes
    rows = "batch_size" if isinstance(request, Request) else "samples"
    for field, what, found, most in (
        ("context_length", "a row of {} bytes", row_bytes, limits.row_bytes_max),
        (rows, "a batch of {} bytes", batch_size * row_bytes, limits.batch_bytes_max),
        (rows, "a batch of {} rows", batch_size, limits.batch_size_max),
        ("world_size", "{} ranks", request.position.world_size, limits.world_size_max),
    ):
        if 0 < most < found:
            raise LimitExceeded(
                field, f"{what.format(found)} is above the limit of this server, {most}"
            )


@dataclass(frozen=True, slots=True)
class Expected:
    """What the server compares with its own values; b"" is not compared.

    identity: of the rows.  digests: of the corpus of each source; none is compared if there are
    none.  planes: fingerprint of each requested plane, by its kind.
    Raises: InvalidRequest.
    """

    identity: bytes = b""
    digests: tuple[bytes, ...] = ()
    planes: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths."""
        _require_hash("expected_identity", self.identity)
        for digest in self.digests:
            _require_hash("expected_digest", digest)
        for kind, fingerprint in self.planes:
            _require_hash("expected_fingerprint", fingerprint, f" for plane {kind}")


class Hints(NamedTuple):
    """What a client tells the operators of a server; no row depends on it.

    client_name: the name that the client gives itself.  trainer_sample: that of the row which its
    trainer gets next; None if it does not say.  is_last: whether no call of the stream follows.
    is_tool: whether it is a tool, and no trainer.
    """

    client_name: str = ""
    trainer_sample: int | None = None
    is_last: bool = False
    is_tool: bool = False

    @classmethod
    def of(cls, message: AnyMessage) -> Hints:
        """Return the hints that a request has. Single rows are of no trainer's stream."""
        if isinstance(message, pb.GetRowsRequest):
            return cls(message.client_name, is_tool=True)
        has_sample = message.HasField("trainer_sample")
        sample = message.trainer_sample if has_sample else None
        return cls(message.client_name, sample, message.is_last, message.is_tool)


NO_HINTS = Hints()


@overload
def to_message(
    request: Request, expected: Expected, hints: Hints = NO_HINTS
) -> pb.GetBatchRequest: ...


@overload
def to_message(
    request: RowsRequest, expected: Expected, hints: Hints = NO_HINTS
) -> pb.GetRowsRequest: ...


def to_message(request: AnyRequest, expected: Expected, hints: Hints = NO_HINTS) -> AnyMessage:
    """Return a request of one stage as a message of the contract. Of single rows it has only the
    name of the client as a hint.
    """
    fingerprints = dict(expected.planes)
    shared: dict[str, Any] = {
        "stream": stream_message(request.stream, expected.digests),
        "planes": [
            pb.WantedPlane(kind=kind, expected_fingerprint=fingerprints.get(kind, b""))
            for kind in request.planes
        ],
        "declined_planes": request.declined_planes,
        "expected_identity": expected.identity,
    }
    if isinstance(request, RowsRequest):
        samples = request.position.values.tolist()
        return pb.GetRowsRequest(samples=samples, client_name=hints.client_name, **shared)
    position = request.position
    return pb.GetBatchRequest(
        batch_size=position.batch_size,
        first_sample=position.first_sample,
        first_row=request.first_row,
        num_batches=request.num_batches,
        end_sample=request.end_sample,
        rank=position.rank,
        world_size=position.world_size,
        **shared,
        **hints._asdict(),
    )


@lru_cache(8)
def stream_message(stream: Stream, digests: tuple[bytes, ...] = ()) -> pb.Stream:
    """Return a stream of one stage as a message. The calls of a stream share one: do not change it.

    digests: that are expected of the corpus of each source; none or all of them.
    """
    stage = stream.stage
    is_first = stage.shares == (Share(0, 1, 0),)
    return pb.Stream(
        seed=0 if stage.is_plain else stream.seed,
        sources=[
            pb.Source(
                number=source.number,
                dataset=source.dataset,
                **source.facts,
                long_documents=_sent(source),
                expected_digest=digest,
            )
            for source, digest in zip(
                stream.sources, digests or (b"",) * len(stream.sources), strict=True
            )
        ],
        stage=pb.Stage(
            context_length=stage.context_length,
            index=stage.index,
            first_sample=stage.first_sample,
            previous_identity=stage.previous if stage.index else b"",
            shares=[] if is_first else [pb.Share(**share._asdict()) for share in stage.shares],
        ),
        redactions=[
            pb.Redaction(
                first_sample=each.first_sample, source=each.source, list_hash=each.list_hash
            )
            for each in stream.redactions
        ],
    )


def _sent(source: Source) -> str:
    """Return what a request says of long documents: nothing but what differs from the default."""
    is_default = source.long_documents in ("", *source.order.LONG_DOCUMENTS[:1])
    return "" if is_default else source.long_documents


def require_size(request: Request, limits: pb.Limits, client_name: str) -> None:
    """Raise LimitExceeded if requests of a stream may be larger than a server accepts: gRPC itself
    would refuse them with the status that otherwise means "retry later".

    limits: of that server; 0 is unknown.
    """
    sizes = {s.number: _SOURCE_BYTES + len(s.dataset.encode()) for s in request.stream.sources}
    for redaction in request.stream.redactions:
        sizes[redaction.source] += _REDACTION_BYTES
    largest = max(request.stream.stages, key=lambda stage: sum(sizes[n] for n in stage.weights))
    stream, _ = request.stream.with_stages([largest]).at(largest.first_sample)
    own = tuple(each for each in request.stream.redactions if each.source in largest.weights)
    stream = replace(stream, redactions=own)
    sources = len(stream.sources)
    hashes = Expected(bytes(HASH_BYTES), (bytes(HASH_BYTES),) * sources)
    hints = Hints(client_name, SAMPLE_END, is_last=True, is_tool=True)
    size_bytes = to_message(replace(request, stream=stream), hashes, hints).ByteSize()
    size_bytes += _NUMBERS_BYTES * sources + HASH_BYTES * (2 + len(request.planes))
    if 0 < limits.request_bytes_max < size_bytes:
        raise LimitExceeded(
            "request",
            f"has up to {size_bytes} bytes, but this server accepts {limits.request_bytes_max}; "
            "check the names of datasets",
        )


def from_message(message: AnyMessage) -> tuple[AnyRequest, Expected]:
    """Return the request in a message of the contract.

    Raises: RequestError, naming the field and its limit, if something is out of range or not
    understood.
    """
    # The stream is checked where it is parsed, which is not for every call.
    require_understood(message, without="stream")
    stream, digests = parse_stream(message.stream)
    planes = tuple(sorted(plane.kind for plane in message.planes))
    declined_planes = tuple(message.declined_planes)
    if isinstance(message, pb.GetRowsRequest):
        values = np.array(message.samples, dtype=np.uint64)
        if values.size and int(values.max()) >= SAMPLE_END:
            raise SamplesExhausted("samples", f"{int(values.max())} is not in [0, 2^63)")
        samples = SampleList(values.view(np.int64))
        request: AnyRequest = RowsRequest(stream, samples, planes, declined_planes)
        lowest = int(values.min())
    else:
        position = Position(
            message.first_sample,
            message.batch_size,
            message.rank,
            message.world_size if message.HasField("world_size") else 1,
        )
        request = Request(
            stream,
            position,
            planes,
            declined_planes,
            message.first_row,
            message.num_batches if message.HasField("num_batches") else None,
            message.end_sample if message.HasField("end_sample") else None,
        )
        lowest = position.sample_of(request.first_row)
    _require_in_force(stream, lowest, planes)
    return request, Expected(
        message.expected_identity,
        digests if any(digests) else (),
        tuple((plane.kind, plane.expected_fingerprint) for plane in message.planes),
    )


def _require_in_force(stream: Stream, first_sample: int, planes: Sequence[int]) -> None:
    """Raise RequestError unless stage and redactions of a request are in force at its first row,
    and its planes say what is redacted.
    """
    begins = [("stage.first_sample", stream.stage.first_sample)]
    begins += [("redactions.first_sample", each.first_sample) for each in stream.redactions[-1:]]
    for field, begin in begins:
        if begin > first_sample:
            problem = f"{begin} is above {first_sample}, the lowest sample of the request"
            raise InvalidRequest(field, problem)
    if stream.redactions and REDACTED not in planes:
        problem = f"are set, but plane {REDACTED}, which says where they are, is not requested"
        raise StreamMismatch("redactions", problem)


def _source(message: pb.Source) -> Source:
    facts = {name: getattr(message, name) for name in FACTS}
    facts["order"] = orders.find(message.order)
    return Source(
        message.dataset,
        number=message.number,
        long_documents=message.long_documents,
        group_blocks=message.group_blocks,
        **facts,
    )


def parse_stream(message: pb.Stream) -> tuple[Stream, tuple[bytes, ...]]:
    """Return the stream of one stage in a message, and the digests that are expected of its
    corpora.  Raises: RequestError, naming the field and its limit.
    """
    return _parsed(message.SerializeToString())


@lru_cache(64)
def _parsed(encoded: bytes) -> tuple[Stream, tuple[bytes, ...]]:
    """Return the stream in a message; the calls of a stream have the same one."""
    message = pb.Stream.FromString(encoded)
    require_understood(message)
    sources = tuple(map(_source, message.sources))
    if not sources:
        raise InvalidRequest("stream.sources", "are missing; a stream has at least one")
    sent = message.stage
    shares = tuple(Share(each.source, each.weight, each.base) for each in sent.shares)
    for share in shares:
        if not share.weight:
            raise InvalidRequest("weight", f"of source {share.source} is 0; omit its share")
    shares = shares or (Share(0, 1, 0),)
    if [share.source for share in shares] != [source.number for source in sources]:
        problem = "are not one for each source, by ascending number"
        raise InvalidRequest("stage.shares", problem)
    if sent.index and not sent.previous_identity:
        problem = f"is missing; behind stage 0 it has to have {HASH_BYTES} bytes"
        raise InvalidRequest("previous_identity", problem)
    stage = Stage(
        sent.index,
        sent.first_sample,
        sent.context_length,
        shares,
        sent.previous_identity or FIRST_PREVIOUS,
    )
    if not stage.index and stage.previous != FIRST_PREVIOUS:
        problem = "is not 32 zeros, or unset; no stage is before stage 0"
        raise InvalidRequest("previous_identity", problem)
    redactions = tuple(
        Redaction(each.first_sample, each.source, each.list_hash) for each in message.redactions
    )
    stream = Stream(message.seed, sources, (stage,), redactions)
    return stream, tuple(each.expected_digest for each in message.sources)


def require_understood(message: Message, without: str = "") -> None:
    """Raise InvalidRequest if a message, or one within it, has an unknown field below 100, or a
    field of another type.

    without: a field whose messages are not looked at.
    """
    unknown = UnknownFieldSet(message)
    for number in (unknown[index].field_number for index in range(len(unknown))):
        if number < _HINTS_BEGIN:
            known = message.DESCRIPTOR.fields_by_number.get(number)
            problem = f"({known.name}) has another wire type" if known else "is unknown"
            raise InvalidRequest(
                "request",
                f"field {number} of {message.DESCRIPTOR.name} {problem}; "
                f"this server speaks revision {CONTRACT_REVISION} of the contract",
            )
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None and descriptor.name != without:
            for part in (value,) if isinstance(value, Message) else value:
                require_understood(part)


def _require_hash(name: str, value: bytes, what_for: str = "") -> None:
    """Raise InvalidRequest unless a hash is unset or has 32 bytes."""
    if value and len(value) != HASH_BYTES:
        raise InvalidRequest(name, f"has {len(value)} bytes{what_for}; it has to have {HASH_BYTES}")
