"""A request of one rank, as a value and as a message of the contract: both conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ..errors import InvalidRequest, LimitExceeded, SamplesExhausted, StreamMismatch
from ..sampling import orders
from ..stream.identity import VERSIONS_SERVED
from ..stream.planes import REDACTED
from ..stream.position import SAMPLE_END, Position, require_range
from ..stream.redactions import Redaction, Redactions
from ..stream.spec import Mixture, Source, StreamSpec
from ..stream.stages import BLOCK_MAX, MIXTURE, Stage
from ..v1 import tokenfeed_pb2 as pb

CONTRACT_REVISION = 2
"""Revision of the contract in this code. Revision 1 was not released and had no such number."""
CLIENT_NAME_MAX = 128
_HASH_BYTES = 32
_HINTS_BEGIN = 100
_SOURCE_BYTES = 100
"""About the size of a source in a request, without its name."""
_NUMBERS_BYTES = 30
"""Maximum growth of a later request, since its numbers have more digits."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One rank's rows of a stream. Always valid once constructed.

    num_batches: at least 0; None is endless.  first_row: rows of the first batch to leave out, in
    [0, B).  end_sample: rows from this sample on are left out, in [0, 2^63]; None leaves out none.
    declined_planes: kinds of planes that affect learning and are deliberately not requested.
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
        """Number of batches: the requested ones, or all below sample 2^63."""
        return self.position.batches_left if self.num_batches is None else self.num_batches

    @property
    def end_row(self) -> int:
        """The stream row after the last requested one: row r of batch k is k * B + r."""
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
        """Whether only 2^63 ends it."""
        return self.num_batches is None and self.end_sample is None

    def require_within(self, limits: pb.Limits, token_bytes: int) -> None:
        """Raise LimitExceeded if this request exceeds the limits of a server.

        limits: of that server; 0 is unknown.  token_bytes: width of its served tokens.
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

    def part(
        self, first_row: int, end_row: int, of_stage: Callable[[int], StreamSpec] | None = None
    ) -> StreamRequest:
        """Return the request for the rows [first_row, end_row) of this stream, which are counted
        like self.end_row. Of a mixture only for those in the stage of the first row, and only for
        those with the same redactions in force.

        of_stage: returns the mixture of one stage alone, by its place; by default without the
        identity before it.
        """
        end_sample, batch_size = self.end_sample, self.position.batch_size
        spec, end = self.spec.part_at(self.position.sample_of(first_row), of_stage)
        if end is not None:
            end_sample = end if end_sample is None else min(end, end_sample)
            end_row = min(end_row, self.position.rows_before(end))
        batch, row = divmod(first_row, batch_size)
        return replace(
            self,
            spec=spec,
            position=replace(self.position, first_sample=self.position.batch_first_sample(batch)),
            first_row=row,
            num_batches=-(-end_row // batch_size) - batch,
            end_sample=end_sample,
        )

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return self.end_row - self.first_row


@dataclass(frozen=True, slots=True)
class Expected:
    """What the server compares with its own values; b"" is not compared.

    identity: of the stream.  identity_version: of its canonical form.  digests: of the corpus of
    each source; none is compared if there are none.  planes: fingerprint of each requested plane,
    by its kind.
    """

    identity: bytes = b""
    identity_version: int = 0
    digests: tuple[bytes, ...] = ()
    planes: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        """Check the lengths and the version.  Raises: InvalidRequest."""
        _require_hash("expected_identity", self.identity)
        for digest in self.digests:
            _require_hash("expected_digest", digest)
        for kind, fingerprint in self.planes:
            _require_hash("expected_fingerprint", fingerprint, f" for plane {kind}")
        known = ", ".join(map(str, VERSIONS_SERVED))
        if self.identity and not self.identity_version:
            raise InvalidRequest(
                "identity_version",
                f"is missing, but expected_identity is given; there are {known}. Upgrade a client "
                f"older than revision {CONTRACT_REVISION} of the contract",
            )
        if self.identity_version and self.identity_version not in VERSIONS_SERVED:
            raise InvalidRequest(
                "identity_version",
                f"{self.identity_version} is not supported by this server, only {known}",
            )


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
    def of(cls, message: pb.GetBatchRequest) -> Hints:
        """Return the hints that a request has."""
        has_sample = message.HasField("trainer_sample")
        sample = message.trainer_sample if has_sample else None
        return cls(message.client_name, sample, message.is_last, message.is_tool)


NO_HINTS = Hints()


def to_message(
    request: StreamRequest, expected: Expected, hints: Hints = NO_HINTS
) -> pb.GetBatchRequest:
    """Return a request as a message of the contract. That of a mixture has one stage."""
    spec, position = request.spec, request.position
    fingerprints = dict(expected.planes)
    digests = expected.digests or (b"",) * len(spec.sources)
    of_dataset = (spec.source.dataset, digests[0]) if spec.mixture is None else ("", b"")
    return pb.GetBatchRequest(
        batch_size=position.batch_size,
        context_length=spec.context_length,
        seed=spec.seed,
        dataset=of_dataset[0],
        order=spec.order_name,
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
        expected_digest=of_dataset[1],
        identity_version=expected.identity_version,
        end_sample=request.end_sample,
        stage=None if spec.mixture is None else _stage_message(spec, digests),
        redactions=[
            pb.Redaction(
                first_sample=each.first_sample, source=each.source, list_hash=each.list_hash
            )
            for each in spec.redactions
        ],
        declined_planes=request.declined_planes,
        long_documents="" if spec.mixture else _sent(spec.source),
        **hints._asdict(),
    )


def _sent(source: Source) -> str:
    """Return what a request says of long documents: nothing but what differs from the default."""
    is_default = source.long_documents in ("", *source.order.LONG_DOCUMENTS[:1])
    return "" if is_default else source.long_documents


@lru_cache(8)
def _stage_message(spec: StreamSpec, digests: tuple[bytes, ...]) -> pb.Stage:
    """Return the only stage of a mixture; the requests of a stream have the same one."""
    assert spec.mixture is not None
    (stage,) = spec.mixture.stages
    return pb.Stage(
        index=stage.index,
        first_sample=stage.first_sample,
        previous_identity=stage.previous,
        mixture_identity=spec.start_identity,
        sources=[
            pb.StageSource(
                number=source.number,
                dataset=source.dataset,
                order=source.order.NAME,
                seed=source.seed,
                base=base,
                weight=weight,
                expected_digest=digest,
                long_documents=_sent(source),
            )
            for source, base, weight, digest in zip(
                spec.sources, stage.bases, stage.weights, digests, strict=True
            )
        ],
    )


def require_size(request: StreamRequest, limits: pb.Limits, client_name: str) -> None:
    """Raise LimitExceeded if requests of a stream may be larger than a server accepts: gRPC itself
    would refuse them with the status that otherwise means "retry later".

    limits: of that server; 0 is unknown.
    """
    if (mixture := request.spec.mixture) is not None:
        names = [_SOURCE_BYTES + len(each.dataset.encode()) for each in request.spec.sources]
        sizes = [
            sum(size for size, weight in zip(names, stage.weights, strict=True) if weight)
            for stage in mixture.stages
        ]
        largest = request.spec.of_stage(sizes.index(max(sizes)), bytes(_HASH_BYTES))
        request = replace(request, spec=largest)
    sources = len(request.spec.sources)
    hashes = Expected(bytes(_HASH_BYTES), VERSIONS_SERVED[-1], (bytes(_HASH_BYTES),) * sources)
    hints = Hints(client_name, SAMPLE_END, is_last=True, is_tool=True)
    size_bytes = to_message(request, hashes, hints).ByteSize()
    size_bytes += _NUMBERS_BYTES * sources + _HASH_BYTES * len(request.spec.planes)
    if 0 < limits.request_bytes_max < size_bytes:
        raise LimitExceeded(
            "request",
            f"has up to {size_bytes} bytes, but this server accepts {limits.request_bytes_max}; "
            "check the names of datasets",
        )


def from_message(message: pb.GetBatchRequest) -> tuple[StreamRequest, Expected]:
    """Return the request in a message of the contract.

    Raises: RequestError, naming the field and its limit, if something is out of range, not
    understood, or not served yet.
    """
    is_mixture = message.order == MIXTURE
    # The stage of a mixture is checked where it is parsed, which is not for every call.
    require_understood(message, without="stage" if is_mixture else "")
    order = None if is_mixture else orders.find(message.order)
    order_name = order.NAME if order else MIXTURE
    if message.HasField("stage") and order:
        raise InvalidRequest("stage", f"is set, but {order_name} is not a mixture; omit it")
    kinds = [plane.kind for plane in message.planes]
    redactions = tuple(
        Redaction(each.first_sample, each.source, each.list_hash) for each in message.redactions
    )
    if order is None:
        spec = _mixture(message, kinds, redactions)
    else:
        spec = StreamSpec.of_dataset(
            message.dataset,
            order,
            message.seed,
            message.context_length,
            kinds,
            message.long_documents,
            redactions,
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
    digests = (
        tuple(source.expected_digest for source in message.stage.sources)
        if is_mixture
        else (message.expected_digest,)
    )
    expected = Expected(
        message.expected_identity,
        message.identity_version,
        digests if any(digests) else (),
        tuple((plane.kind, plane.expected_fingerprint) for plane in message.planes),
    )
    begins = [("redactions.first_sample", each.first_sample) for each in redactions[-1:]]
    if spec.mixture is not None:
        begins.append(("stage.first_sample", spec.mixture.stages[0].first_sample))
    first = request.position.sample_of(request.first_row)
    for field, begin in begins:
        if begin > first:
            raise InvalidRequest(field, f"{begin} is above {first}, the sample of the first row")
    if redactions and REDACTED not in spec.planes:
        problem = f"are set, but plane {REDACTED}, which says where they are, is not requested"
        raise StreamMismatch("redactions", problem)
    return request, expected


def _mixture(
    message: pb.GetBatchRequest, kinds: Sequence[int], redactions: Redactions
) -> StreamSpec:
    """Return the specification of a request of a mixture, with its only stage."""
    for field in "dataset", "expected_digest", "long_documents":
        if getattr(message, field):
            raise InvalidRequest(field, "is set, but each source of the stage has its own; omit it")
    if not message.HasField("stage"):
        raise InvalidRequest("stage", f"is missing; a request of {MIXTURE} has one")
    sources, stage = _parsed_stage(message.stage.SerializeToString())
    mixture = Mixture(message.seed, (stage,))
    spec = StreamSpec(message.context_length, sources, mixture, tuple(sorted(kinds)), redactions)
    given = message.stage.mixture_identity
    _require_hash("mixture_identity", given)
    if given and given != spec.start_identity:
        raise StreamMismatch(
            "mixture_identity",
            f"{given.hex()} is not that of this request, {spec.start_identity.hex()}: seed or "
            "context length differ",
        )
    return spec


@lru_cache(64)
def _parsed_stage(encoded: bytes) -> tuple[tuple[Source, ...], Stage]:
    """Return the sources and the stage in a message; the calls of a stream have the same one."""
    message = pb.Stage.FromString(encoded)
    require_understood(message)
    if not message.sources:
        raise InvalidRequest("stage.sources", "are missing; a stage has at least one")
    if not message.previous_identity:
        problem = f"is missing; it has to have {_HASH_BYTES} bytes"
        raise InvalidRequest("previous_identity", problem)
    sources = tuple(
        Source(each.dataset, orders.find(each.order), each.seed, each.number, each.long_documents)
        for each in message.sources
    )
    for each in message.sources:
        require_range("weight", each.weight, 1, BLOCK_MAX + 1)
    return sources, Stage(
        message.index,
        message.first_sample,
        tuple(source.weight for source in message.sources),
        tuple(source.base for source in message.sources),
        message.previous_identity,
    )


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
    if value and len(value) != _HASH_BYTES:
        raise InvalidRequest(
            name, f"has {len(value)} bytes{what_for}; it has to have {_HASH_BYTES}"
        )
