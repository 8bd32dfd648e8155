"""What one rank wants of a stream, as a value and as a message of the contract: both directions in
one place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ..errors import InvalidRequest, LimitExceeded, SamplesExhausted, StreamMismatch
from ..sampling import orders
from ..stream.identity import VERSIONS_SERVED
from ..stream.position import SAMPLE_END, Position, require_range
from ..stream.spec import StreamSpec
from ..v1 import tokenfeed_pb2 as pb

CONTRACT_REVISION = 2
"""Of the contract that this code speaks. Revision 1 was never released, and did not say so."""
CLIENT_NAME_MAX = 128
_HASH_BYTES = 32
_HINTS_BEGIN = 100
_NUMBERS_BYTES = 30
"""By how much the numbers that move on may make a later request longer."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One rank's rows of a stream. What exists is valid.

    num_batches: at least 0; None is without end.  first_row: rows of the first batch that are left
    out, in [0, B).  end_sample: rows from this sample on are left out, in [0, 2^63]; None leaves
    out none.  declined_planes: kinds that say what is to be learned, and are not wanted on purpose.
    Raises: InvalidRequest or SamplesExhausted, naming the field and its limit.
    """

    spec: StreamSpec
    position: Position
    num_batches: int | None = None
    first_row: int = 0
    end_sample: int | None = None
    declined_planes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every range."""
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
        """Batches of the stream: those asked for, or all that there are below sample 2^63."""
        return self.position.batches_left if self.num_batches is None else self.num_batches

    @property
    def end_row(self) -> int:
        """The row of the stream behind the last one wanted: row r of batch k is k * B + r."""
        batch_size = self.position.batch_size
        if self.end_sample is None:
            rows = self.end_batch * batch_size
        else:
            rows = self.position.rows_before(self.end_sample)
            if self.num_batches is not None:
                rows = min(rows, self.num_batches * batch_size)
        return max(rows, self.first_row)

    @property
    def is_endless(self) -> bool:
        """Whether nothing but 2^63 ends it."""
        return self.num_batches is None and self.end_sample is None

    def require_within(self, limits: pb.Limits, token_bytes: int) -> None:
        """Raise LimitExceeded if a server does not take this.

        limits: of that server; 0 is not known.  token_bytes: that it serves a token in.
        """
        batch_size = self.position.batch_size
        row_bytes = self.spec.row_tokens * token_bytes
        for field, what, found, most in (
            ("context_length", "a row of {} bytes", row_bytes, limits.row_bytes_max),
            ("batch_size", "a batch of {} bytes", batch_size * row_bytes, limits.batch_bytes_max),
            ("batch_size", "a batch of {} rows", batch_size, limits.batch_size_max),
            ("world_size", "{} ranks", self.position.world_size, limits.world_size_max),
        ):
            if 0 < most < found:
                raise LimitExceeded(
                    field, f"{what.format(found)} is above the limit of this server, {most}"
                )

    def part(self, first_row: int, end_batch: int) -> StreamRequest:
        """Return the request for rows of this stream from first_row on, up to batch end_batch.

        first_row: of this request's rows, as end_row counts them.
        """
        batch, row = divmod(first_row, self.position.batch_size)
        position = replace(self.position, first_sample=self.position.batch_first_sample(batch))
        return replace(self, position=position, first_row=row, num_batches=end_batch - batch)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the server has to have; b"" is not compared.

    identity: of the stream, and identity_version, of the form that it is the hash of.  digest: of
    the corpus.  planes: fingerprint of each plane that is wanted, by its kind.
    """

    identity: bytes = b""
    identity_version: int = 0
    digest: bytes = b""
    planes: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths and the version.  Raises: InvalidRequest."""
        _require_hash("expected_identity", self.identity)
        _require_hash("expected_digest", self.digest)
        for kind, fingerprint in self.planes:
            _require_hash("expected_fingerprint", fingerprint, f" for plane {kind}")
        known = ", ".join(map(str, VERSIONS_SERVED))
        if self.identity and not self.identity_version:
            raise InvalidRequest(
                "identity_version",
                f"is missing beside expected_identity; there are {known}. A client from before "
                f"revision {CONTRACT_REVISION} of the contract has to be upgraded",
            )
        if self.identity_version and self.identity_version not in VERSIONS_SERVED:
            raise InvalidRequest(
                "identity_version", f"{self.identity_version} is not served here, only {known}"
            )


def to_message(
    request: StreamRequest, expected: Expected, client_name: str = ""
) -> pb.GetBatchRequest:
    """Return a request as a message of the contract."""
    spec, position = request.spec, request.position
    fingerprints = dict(expected.planes)
    return pb.GetBatchRequest(
        batch_size=position.batch_size,
        context_length=spec.context_length,
        seed=spec.source.seed,
        dataset=spec.source.dataset,
        order=spec.order.NAME,
        first_sample=position.first_sample,
        first_row=request.first_row,
        num_batches=request.num_batches,
        rank=position.rank,
        world_size=position.world_size,
        expected_identity=expected.identity,
        planes=[
            pb.WantedPlane(kind=kind, expected_fingerprint=fingerprints.get(kind, b""))
            for kind in spec.planes
        ],
        expected_digest=expected.digest,
        identity_version=expected.identity_version,
        end_sample=request.end_sample,
        declined_planes=request.declined_planes,
        client_name=client_name,
    )


def require_size(request: StreamRequest, limits: pb.Limits, client_name: str) -> None:
    """Raise LimitExceeded if requests of a stream may be longer than a server reads: gRPC itself
    would refuse them with the status that else means "come again".

    limits: of that server; 0 is not known.
    """
    hashes = Expected(bytes(_HASH_BYTES), VERSIONS_SERVED[-1], bytes(_HASH_BYTES))
    size_bytes = to_message(request, hashes, client_name).ByteSize()
    size_bytes += _NUMBERS_BYTES + _HASH_BYTES * len(request.spec.planes)
    if 0 < limits.request_bytes_max < size_bytes:
        raise LimitExceeded(
            "request",
            f"has up to {size_bytes} bytes, and this server reads {limits.request_bytes_max}; is "
            "the name of the dataset right?",
        )


def from_message(message: pb.GetBatchRequest) -> tuple[StreamRequest, Expected]:
    """Return what a message of the contract asks for.

    Raises: RequestError, naming the field and its limit: for all that is out of range, not
    understood, or not served yet.
    """
    require_understood(message)
    order = orders.find(message.order)
    if message.HasField("stage"):
        raise InvalidRequest("stage", f"is set, and {order.NAME} is no mixture")
    if message.long_documents:
        raise InvalidRequest("long_documents", f"is set, and {order.NAME} is not over documents")
    for redaction in message.redactions:
        if not redaction.list_hash:
            raise InvalidRequest("list_hash", f"is missing; it has {_HASH_BYTES} bytes")
        _require_hash("list_hash", redaction.list_hash)
        raise StreamMismatch("redactions", "this server has none to take anything out by")
    kinds = [plane.kind for plane in message.planes]
    spec = StreamSpec.of_dataset(
        message.dataset, order, message.seed, message.context_length, kinds
    )
    request = StreamRequest(
        spec,
        Position(
            message.first_sample,
            message.batch_size,
            message.rank,
            message.world_size if message.HasField("world_size") else 1,
        ),
        message.num_batches if message.HasField("num_batches") else None,
        message.first_row,
        message.end_sample if message.HasField("end_sample") else None,
        tuple(message.declined_planes),
    )
    expected = Expected(
        message.expected_identity,
        message.identity_version,
        message.expected_digest,
        tuple((plane.kind, plane.expected_fingerprint) for plane in message.planes),
    )
    return request, expected


def require_understood(message: Message) -> None:
    """Raise InvalidRequest if a message, or one within it, has a field below 100 that is not known
    here, or of another type than here.
    """
    unknown = UnknownFieldSet(message)
    for number in (unknown[index].field_number for index in range(len(unknown))):
        if number < _HINTS_BEGIN:
            known = message.DESCRIPTOR.fields_by_number.get(number)
            problem = f"({known.name}) has another wire type" if known else "is not known here"
            raise InvalidRequest(
                "request",
                f"field {number} of {message.DESCRIPTOR.name} {problem}; "
                f"this server speaks revision {CONTRACT_REVISION} of the contract",
            )
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for part in (value,) if isinstance(value, Message) else value:
                require_understood(part)


def _require_hash(name: str, value: bytes, what_for: str = "") -> None:
    """Raise InvalidRequest unless a hash is unset or has 32 bytes."""
    if value and len(value) != _HASH_BYTES:
        raise InvalidRequest(name, f"has {len(value)} bytes{what_for}, not {_HASH_BYTES}")
