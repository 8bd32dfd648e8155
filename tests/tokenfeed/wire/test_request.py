"""Requests as values and as messages: the same both ways, and nothing taken that is not meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support import reference
from tests.tokenfeed.sampling.test_mixture import asked_stages
from tokenfeed.errors import (
    InvalidRequest,
    LimitExceeded,
    NotFound,
    RequestError,
    SamplesExhausted,
    StreamMismatch,
)
from tokenfeed.sampling import orders
from tokenfeed.stream.identity import Corpus
from tokenfeed.stream.planes import KINDS
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, Position
from tokenfeed.stream.spec import Mixture, Source, StreamSpec
from tokenfeed.stream.stages import AskedStage, Stage, scheduled
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import (
    CLIENT_NAME_MAX,
    Expected,
    Hints,
    StreamRequest,
    from_message,
    require_size,
    require_understood,
    to_message,
)

HASH = st.sampled_from([b"", bytes(32), bytes(range(32))])
UINT64 = st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    world_size = draw(st.sampled_from([1, 2, WORLD_SIZE_MAX]) | st.integers(1, 1000))
    return Position(
        draw(st.sampled_from([0, 2**62, SAMPLE_END - 1]) | st.integers(0, SAMPLE_END - 1)),
        draw(st.sampled_from([1, 2, BATCH_SIZE_MAX]) | st.integers(1, 1000)),
        draw(st.sampled_from([0, world_size - 1]) | st.integers(0, world_size - 1)),
        world_size,
    )


@st.composite
def requests(draw: st.DrawFn) -> StreamRequest:
    """Any request of one dataset, or of a stage of a mixture."""
    position = draw(positions())
    end_sample = draw(st.none() | st.sampled_from([0, SAMPLE_END]) | st.integers(0, SAMPLE_END))
    if end_sample is None:
        left = position.batches_left
        num_batches = draw(st.none() | st.sampled_from([0, left]) | st.integers(0, left))
        assume(num_batches is not None or left > 0)
    else:
        num_batches = draw(st.none() | UINT64)
    first_row = draw(st.integers(0, position.batch_size - 1))
    first_sample = position.first_sample + position.rank * position.batch_size + first_row
    context_length = draw(st.sampled_from([1, 2048, 2**63 - 1]) | st.integers(1, 2**63 - 1))
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(KINDS)), unique=True).map(sorted)))
    mixture, count = None, 1
    if draw(st.booleans()):
        weights = tuple(draw(st.lists(st.integers(1, 2**17), min_size=1, max_size=8)))
        begin = draw(st.sampled_from([0, first_sample]) | st.integers(0, first_sample))
        begin = min(begin, SAMPLE_END - 1)
        base, count = draw(st.sampled_from([0, begin // len(weights)])), len(weights)
        index = draw(st.sampled_from([0, 1, 2**32 - 1]))
        stage = Stage(index, begin, weights, (base,) * count, bytes(range(32)))
        mixture = Mixture(draw(UINT64), (stage,))
    sources = tuple(
        Source(
            draw(st.text(max_size=10)),
            orders.find(draw(st.sampled_from(list(orders.ORDERS)))),
            draw(UINT64),
            0 if mixture is None else 1000 * number,
        )
        for number in range(count)
    )
    return StreamRequest(
        StreamSpec(context_length, sources, mixture, kinds),
        position,
        num_batches,
        first_row,
        end_sample,
        tuple(draw(st.lists(st.integers(0, 2**32 - 1), max_size=3))),
    )


@st.composite
def expectations(draw: st.DrawFn, request: StreamRequest) -> Expected:
    identity, version = draw(HASH), request.spec.identity_version
    digests = tuple(draw(HASH) for _ in request.spec.sources)
    return Expected(
        identity,
        version if identity else draw(st.sampled_from([0, version])),
        digests if any(digests) else (),
        tuple((kind, draw(HASH)) for kind in request.spec.planes),
    )


HINTS = st.builds(
    Hints,
    st.text(max_size=5),
    st.none() | st.integers(0, SAMPLE_END),
    is_last=st.booleans(),
    is_tool=st.booleans(),
)


def largest(client_name: str) -> Hints:
    """The hints of the longest request of a client."""
    return Hints(client_name, SAMPLE_END, is_last=True, is_tool=True)


@given(request=requests(), data=st.data(), hints=HINTS)
def test_a_request_comes_back_from_its_message_as_it_was(
    request: StreamRequest, data: st.DataObject, hints: Hints
) -> None:
    """A field that one side forgets would be a default on the other: other tokens, in silence."""
    expected = data.draw(expectations(request))

    sent = to_message(request, expected, hints).SerializeToString()

    received = pb.GetBatchRequest.FromString(sent)
    assert from_message(received) == (request, expected)
    assert Hints.of(received) == hints


@given(request=requests())
def test_every_field_is_on_the_wire_as_it_was_asked_for(request: StreamRequest) -> None:
    """Both directions could agree with each other and not with the contract."""
    message = to_message(request, Expected(), Hints("somebody"))

    position, spec = request.position, request.spec
    assert (message.batch_size, message.context_length) == (
        position.batch_size,
        spec.context_length,
    )
    assert (message.first_sample, message.first_row) == (position.first_sample, request.first_row)
    assert (message.rank, message.world_size) == (position.rank, position.world_size)
    assert (message.seed, message.order) == (spec.seed, spec.order_name)
    assert message.client_name == "somebody"
    assert message.HasField("num_batches") == (request.num_batches is not None)
    assert message.num_batches == (request.num_batches or 0)
    assert message.HasField("end_sample") == (request.end_sample is not None)
    assert message.end_sample == (request.end_sample or 0)
    assert [plane.kind for plane in message.planes] == list(spec.planes)
    assert tuple(message.declined_planes) == request.declined_planes
    if spec.mixture is None:
        assert message.dataset == spec.source.dataset
        assert not message.HasField("stage")
    else:
        (stage,) = spec.mixture.stages
        assert message.dataset == ""
        assert (message.stage.index, message.stage.first_sample) == (
            stage.index,
            stage.first_sample,
        )
        assert message.stage.previous_identity == stage.previous
        assert message.stage.mixture_identity == reference.mixture_start(
            spec.seed, spec.context_length
        )
        assert [
            (each.number, each.dataset, each.order, each.seed, each.base, each.weight)
            for each in message.stage.sources
        ] == [
            (source.number, source.dataset, source.order.NAME, source.seed, base, weight)
            for source, base, weight in zip(spec.sources, stage.bases, stage.weights, strict=True)
        ]
    assert not message.redactions
    assert not message.long_documents


def message_of(**fields: Any) -> pb.GetBatchRequest:
    values = {"batch_size": 4, "context_length": 2, "seed": 7, "num_batches": 3} | fields
    return pb.GetBatchRequest(
        **{name: value for name, value in values.items() if value is not None}
    )


def test_what_is_not_set_has_the_defaults_of_the_contract() -> None:
    """Three fields are needed; a client in any language may leave out the others."""
    request, expected = from_message(message_of(num_batches=None))

    assert request == StreamRequest(
        StreamSpec.of_dataset("", orders.find("random-1"), 7, 2), Position(0, 4, 0, 1)
    )
    assert expected == Expected()
    assert request.is_endless


PLANES = [pb.WantedPlane(kind=51)]
REDACTED = [pb.WantedPlane(kind=53)]
BEGINS, SOURCE = "redactions.first_sample", "redactions.source"


def redaction(first_sample: int, source: int = 0) -> pb.Redaction:
    return pb.Redaction(first_sample=first_sample, source=source, list_hash=bytes(32))


@pytest.mark.parametrize(
    ("fields", "kind", "subject"),
    [
        ({"batch_size": 0}, InvalidRequest, "batch_size"),
        ({"batch_size": None}, InvalidRequest, "batch_size"),
        ({"batch_size": 2**20 + 1}, InvalidRequest, "batch_size"),
        ({"batch_size": 2**64 - 1}, InvalidRequest, "batch_size"),
        ({"context_length": 0}, InvalidRequest, "context_length"),
        ({"context_length": None}, InvalidRequest, "context_length"),
        ({"order": "random"}, NotFound, "order"),
        ({"order": "mixture-2"}, NotFound, "order"),
        ({"order": "mixture-1"}, InvalidRequest, "stage"),
        ({"first_sample": 2**63}, SamplesExhausted, "first_sample"),
        ({"first_sample": 2**64 - 1}, SamplesExhausted, "first_sample"),
        ({"first_sample": 2**63, "end_sample": 1}, SamplesExhausted, "first_sample"),
        ({"first_sample": 2**63 - 1, "num_batches": None}, SamplesExhausted, "first_sample"),
        ({"first_sample": 2**63 - 12}, None, ""),
        ({"first_sample": 2**63 - 11}, SamplesExhausted, "num_batches"),
        ({"first_sample": 2**63 - 24, "rank": 0, "world_size": 2}, None, ""),
        ({"first_sample": 2**63 - 24, "rank": 1, "world_size": 2}, None, ""),
        ({"first_sample": 2**63 - 23, "rank": 0, "world_size": 2}, None, ""),
        (
            {"first_sample": 2**63 - 23, "rank": 1, "world_size": 2},
            SamplesExhausted,
            "num_batches",
        ),
        ({"first_row": 3}, None, ""),
        ({"first_row": 4}, InvalidRequest, "first_row"),
        ({"first_row": 2**64 - 1}, InvalidRequest, "first_row"),
        ({"num_batches": 0}, None, ""),
        ({"num_batches": 2**61}, None, ""),
        ({"num_batches": 2**61 + 1}, SamplesExhausted, "num_batches"),
        ({"num_batches": 2**64 - 1}, SamplesExhausted, "num_batches"),
        ({"num_batches": 2**64 - 1, "end_sample": 5}, None, ""),
        ({"rank": 1}, InvalidRequest, "rank"),
        ({"rank": 2, "world_size": 2}, InvalidRequest, "rank"),
        ({"world_size": 0}, InvalidRequest, "world_size"),
        ({"world_size": 2**32 + 1}, InvalidRequest, "world_size"),
        ({"world_size": 2**32, "rank": 2**32 - 1}, None, ""),
        (
            {"expected_identity": bytes(31), "identity_version": 1},
            InvalidRequest,
            "expected_identity",
        ),
        (
            {"expected_identity": bytes(33), "identity_version": 1},
            InvalidRequest,
            "expected_identity",
        ),
        ({"expected_identity": bytes(32)}, InvalidRequest, "identity_version"),
        (
            {"expected_identity": bytes(32), "identity_version": 4},
            InvalidRequest,
            "identity_version",
        ),
        ({"expected_identity": bytes(32), "identity_version": 1}, None, ""),
        ({"expected_digest": bytes(31)}, InvalidRequest, "expected_digest"),
        ({"expected_digest": bytes(33)}, InvalidRequest, "expected_digest"),
        ({"expected_digest": bytes(32)}, None, ""),
        ({"planes": PLANES}, None, ""),
        ({"planes": PLANES * 2}, InvalidRequest, "planes"),
        ({"planes": [pb.WantedPlane()]}, InvalidRequest, "planes"),
        ({"planes": [pb.WantedPlane(kind=54)]}, InvalidRequest, "planes"),
        ({"planes": [pb.WantedPlane(kind=100)]}, InvalidRequest, "planes"),
        (
            {"planes": [pb.WantedPlane(kind=51, expected_fingerprint=bytes(31))]},
            InvalidRequest,
            "expected_fingerprint",
        ),
        ({"planes": [pb.WantedPlane(kind=51, expected_fingerprint=bytes(32))]}, None, ""),
        ({"end_sample": 0}, None, ""),
        ({"end_sample": 2**63}, None, ""),
        ({"end_sample": 2**63 + 1}, SamplesExhausted, "end_sample"),
        ({"end_sample": 2**63, "num_batches": None, "first_sample": 2**63 - 1}, None, ""),
        ({"stage": pb.Stage()}, InvalidRequest, "stage"),
        ({"stage": pb.Stage(index=1)}, InvalidRequest, "stage"),
        ({"redactions": [pb.Redaction(list_hash=bytes(32))]}, StreamMismatch, "redactions"),
        ({"redactions": [pb.Redaction(list_hash=bytes(31))]}, InvalidRequest, "list_hash"),
        ({"redactions": [pb.Redaction()]}, InvalidRequest, "list_hash"),
        ({"planes": REDACTED, "redactions": [redaction(0)]}, None, ""),
        ({"planes": REDACTED}, None, ""),
        ({"planes": PLANES, "redactions": [redaction(0)]}, StreamMismatch, "redactions"),
        ({"planes": REDACTED, "redactions": [redaction(0), redaction(1)]}, InvalidRequest, BEGINS),
        ({"planes": REDACTED, "first_row": 1, "redactions": [redaction(1)]}, None, ""),
        (
            {"planes": REDACTED, "first_row": 1, "redactions": [redaction(2)]},
            InvalidRequest,
            BEGINS,
        ),
        ({"planes": REDACTED, "redactions": [redaction(2**63)]}, SamplesExhausted, BEGINS),
        ({"planes": REDACTED, "redactions": [redaction(0)] * 2}, InvalidRequest, "redactions"),
        ({"planes": REDACTED, "redactions": [redaction(0, 1)]}, InvalidRequest, SOURCE),
        ({"declined_planes": [51, 51, 0, 2**32 - 1]}, None, ""),
        ({"long_documents": "cut"}, InvalidRequest, "long_documents"),
        ({"long_documents": "else"}, InvalidRequest, "long_documents"),
        ({"client_name": "x" * 10_000}, None, ""),
    ],
)
def test_each_field_has_its_range_and_one_outside_of_it_is_named(
    fields: dict[str, Any], kind: type[RequestError] | None, subject: str
) -> None:
    """The last value that is taken, the first that is not, and the status that it travels as."""
    message = message_of(**fields)
    if kind is None:
        from_message(message)
        return
    with pytest.raises(kind) as caught:
        from_message(message)

    assert type(caught.value) is kind
    assert caught.value.subject == subject


def mixture_of(stage: dict[str, Any] | None = None, **fields: Any) -> pb.GetBatchRequest:
    """A request of a stage with one source; fields of it begin with "source_"."""
    values: dict[str, Any] = {"index": 1, "first_sample": 10, "previous_identity": bytes(32)}
    values |= stage or {}
    if "sources" not in values:
        source = {"dataset": "web", "order": "shuffled-1", "base": 10, "weight": 3}
        source |= {key[7:]: fields.pop(key) for key in list(fields) if key.startswith("source_")}
        values["sources"] = [pb.StageSource(**source)]
    fields = {"order": "mixture-1", "first_sample": 10, "stage": pb.Stage(**values)} | fields
    return message_of(**fields)


START = reference.mixture_start(7, 2)
TWO = [pb.StageSource(number=number, weight=2**19) for number in (0, 1)]


@pytest.mark.parametrize(
    ("message", "kind", "subject"),
    [
        (mixture_of(), None, ""),
        (mixture_of(source_order="", source_seed=2**64 - 1, source_number=2**32 - 1), None, ""),
        (mixture_of(source_expected_digest=bytes(32)), None, ""),
        (mixture_of(source_weight=2**20), None, ""),
        (mixture_of({"sources": TWO}), None, ""),
        (mixture_of(expected_identity=bytes(32), identity_version=2), None, ""),
        (mixture_of(seed=2**64 - 1), None, ""),
        (mixture_of({"index": 2**32 - 1}), None, ""),
        (mixture_of(dataset="web"), InvalidRequest, "dataset"),
        (mixture_of(expected_digest=bytes(32)), InvalidRequest, "expected_digest"),
        (mixture_of(long_documents="cut"), InvalidRequest, "long_documents"),
        (mixture_of(order="shuffled-1"), InvalidRequest, "stage"),
        (mixture_of({"index": 2**32}), InvalidRequest, "stage.index"),
        (mixture_of({"first_sample": 11}), InvalidRequest, "stage.first_sample"),
        (mixture_of({"first_sample": 11}, first_row=1), None, ""),
        (mixture_of({"first_sample": 14}, rank=1, world_size=2), None, ""),
        (
            mixture_of({"first_sample": 15}, rank=1, world_size=2),
            InvalidRequest,
            "stage.first_sample",
        ),
        (mixture_of({"first_sample": 2**63}), SamplesExhausted, "stage.first_sample"),
        (mixture_of({"mixture_identity": START}), None, ""),
        (mixture_of({"mixture_identity": START}, seed=8), StreamMismatch, "mixture_identity"),
        (
            mixture_of({"mixture_identity": START}, context_length=3),
            StreamMismatch,
            "mixture_identity",
        ),
        (mixture_of({"mixture_identity": bytes(31)}), InvalidRequest, "mixture_identity"),
        (mixture_of({"previous_identity": b""}), InvalidRequest, "previous_identity"),
        (mixture_of({"previous_identity": bytes(31)}), InvalidRequest, "previous_identity"),
        (mixture_of({"sources": []}), InvalidRequest, "stage.sources"),
        (mixture_of({"sources": TWO[::-1]}), InvalidRequest, "stage.sources"),
        (mixture_of({"sources": TWO[:1] * 2}), InvalidRequest, "stage.sources"),
        (
            mixture_of({"sources": [*TWO, pb.StageSource(number=2, weight=1)]}),
            InvalidRequest,
            "weight",
        ),
        (mixture_of(source_weight=0), InvalidRequest, "weight"),
        (mixture_of(source_weight=2**20 + 1), InvalidRequest, "weight"),
        (mixture_of(source_order="shuffled"), NotFound, "order"),
        (mixture_of(source_order="mixture-1"), NotFound, "order"),
        (mixture_of(source_base=11), InvalidRequest, "base"),
        (mixture_of(source_base=2**63), SamplesExhausted, "base"),
        (mixture_of(source_expected_digest=bytes(31)), InvalidRequest, "expected_digest"),
        (mixture_of(source_long_documents="cut"), InvalidRequest, "long_documents"),
        (mixture_of(planes=REDACTED, redactions=[redaction(0)], source_number=0), None, ""),
        (mixture_of(planes=REDACTED, redactions=[redaction(0, 4)], source_number=4), None, ""),
        (
            mixture_of(planes=REDACTED, redactions=[redaction(0)], source_number=4),
            InvalidRequest,
            SOURCE,
        ),
        (
            mixture_of(
                {"sources": TWO}, planes=REDACTED, redactions=[redaction(9, 0), redaction(9, 1)]
            ),
            None,
            "",
        ),
        (
            mixture_of(
                {"sources": TWO}, planes=REDACTED, redactions=[redaction(9, 1), redaction(9, 0)]
            ),
            InvalidRequest,
            "redactions",
        ),
    ],
)
def test_each_field_of_a_stage_has_its_range_too(
    message: pb.GetBatchRequest, kind: type[RequestError] | None, subject: str
) -> None:
    """As those of the request."""
    if kind is None:
        from_message(message)
        return
    with pytest.raises(kind) as caught:
        from_message(message)

    assert type(caught.value) is kind
    assert caught.value.subject == subject


def test_a_client_from_before_revision_2_is_told_that_it_is_too_old() -> None:
    """It expects an identity, and has never heard of versions of it."""
    with pytest.raises(InvalidRequest, match=r"Upgrade a client older than revision 2"):
        from_message(message_of(expected_identity=bytes(32)))


def varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def field_of(number: int, wire_type: int) -> bytes:
    """Any field of that number, as a parser skips it: varint, 8 bytes, bytes, a group, 4 bytes."""
    contents = {0: b"\x01", 1: bytes(8), 2: b"\x01x", 3: varint(number << 3 | 4), 5: bytes(4)}
    return varint(number << 3 | wire_type) + contents[wire_type]


def in_a_source(extra: bytes) -> bytes:
    return delimited(16, delimited(4, b"\x08\x01" + extra))


LEVELS: dict[str, tuple[type[Message], Callable[[bytes], bytes]]] = {
    "request": (pb.GetBatchRequest, lambda extra: extra),
    "plane": (pb.WantedPlane, lambda extra: delimited(12, b"\x08\x33" + extra)),
    "stage": (pb.Stage, lambda extra: delimited(16, b"\x08\x01" + extra)),
    "source": (pb.StageSource, in_a_source),
    "redaction": (pb.Redaction, lambda extra: delimited(17, b"\x08\x01" + extra)),
}
"""Every message that a request may hold, and how a field gets into one."""
WIRE_TYPES = (0, 1, 2, 3, 5)


def test_the_levels_are_all_messages_within_a_request() -> None:
    """One that is added to the contract has to be added here."""

    def within(descriptor: Any) -> Iterator[str]:
        yield descriptor.name
        for field in descriptor.fields:
            if field.message_type is not None:
                yield from within(field.message_type)

    found = set(within(pb.GetBatchRequest.DESCRIPTOR))

    assert found == {kind.DESCRIPTOR.name for kind, _ in LEVELS.values()}


@pytest.mark.parametrize("level", LEVELS)
@given(number=st.integers(1, 99), wire_type=st.sampled_from(WIRE_TYPES), data=st.data())
def test_a_field_below_100_that_is_not_known_is_refused_by_its_number(
    level: str, number: int, wire_type: int, data: st.DataObject
) -> None:
    """It changes the request in an unknown way."""
    kind, within = LEVELS[level]
    assume(number not in kind.DESCRIPTOR.fields_by_number)
    hint = within(field_of(data.draw(st.integers(101, 2**29 - 1)), wire_type))
    sent = message_of().SerializeToString() + hint + within(field_of(number, wire_type))

    with pytest.raises(InvalidRequest, match=rf"\b{number} of {kind.DESCRIPTOR.name} ") as caught:
        from_message(pb.GetBatchRequest.FromString(sent))

    assert caught.value.subject == "request"


@pytest.mark.parametrize("level", LEVELS)
def test_a_field_of_another_type_than_in_the_contract_is_refused_by_its_number(level: str) -> None:
    """A parser puts it aside as if it were unknown, and the field keeps its default."""
    kind, within = LEVELS[level]
    for number, field in kind.DESCRIPTOR.fields_by_number.items():
        is_number = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
        # A list of numbers has two valid encodings, one by one and packed.
        valid = {0} if is_number else {2}
        valid |= {2} if number == 18 and level == "request" else set()
        for wire_type in set(WIRE_TYPES) - valid:
            sent = message_of().SerializeToString() + within(field_of(number, wire_type))
            message = pb.GetBatchRequest.FromString(sent)
            if number >= 100:
                assert from_message(message) == from_message(message_of())
                continue
            with pytest.raises(InvalidRequest, match=rf"\b{number} of {kind.DESCRIPTOR.name} "):
                from_message(message)


@pytest.mark.parametrize("level", LEVELS)
@given(number=st.integers(101, 2**29 - 1), wire_type=st.sampled_from(WIRE_TYPES))
def test_a_field_above_100_is_a_hint_and_changes_nothing(
    level: str, number: int, wire_type: int
) -> None:
    """A newer client may tell more about itself to an older server."""
    _, within = LEVELS[level]
    extra = within(field_of(number, wire_type))
    message = pb.GetBatchRequest.FromString(message_of().SerializeToString() + extra)

    require_understood(message)

    if level in ("request", "plane"):
        plain = message_of() if level == "request" else message_of(planes=PLANES)
        assert from_message(message) == from_message(plain)


def test_what_describe_does_not_know_is_refused_as_well() -> None:
    """Both requests are read by one rule."""
    for sent, number in ((field_of(4, 0), 4), (field_of(1, 0), 1), (field_of(99, 2), 99)):
        with pytest.raises(InvalidRequest, match=rf"\b{number} of DescribeRequest "):
            require_understood(pb.DescribeRequest.FromString(sent))

    require_understood(pb.DescribeRequest.FromString(field_of(100, 2)))


def test_the_client_s_name_is_no_part_of_what_is_asked_for() -> None:
    """A client gets the same rows with and without."""
    named = from_message(message_of(client_name="run-17 rank 3"))

    assert named == from_message(message_of())
    assert CLIENT_NAME_MAX == 128


SMALL = {
    "first_sample": st.integers(0, 50),
    "batch_size": st.integers(1, 5),
    "num_batches": st.none() | st.integers(0, 8),
    "end_sample": st.none() | st.integers(0, 120),
}


@given(
    **SMALL,
    ranks=st.integers(1, 4).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))),
    first_row=st.integers(0, 4),
)
def test_a_request_ends_behind_the_last_row_that_satisfies_both_ends(
    first_sample: int,
    batch_size: int,
    num_batches: int | None,
    end_sample: int | None,
    ranks: tuple[int, int],
    first_row: int,
) -> None:
    """num_batches counts whole batches, end_sample cuts within one; against one row at a time."""
    assume(first_row < batch_size and (num_batches is not None or end_sample is not None))
    spec = StreamSpec.of_dataset("", orders.find("random-1"), 0, 2)
    position = Position(first_sample, batch_size, *ranks)

    request = StreamRequest(spec, position, num_batches, first_row, end_sample)

    wanted = []
    for row in range(first_row, 8 * 5 + 120):
        sample = reference.sample_of(first_sample, batch_size, *ranks, row)
        in_batches = num_batches is None or row < num_batches * batch_size
        if in_batches and (end_sample is None or sample < end_sample):
            wanted.append(row)
    assert list(range(first_row, request.end_row)) == wanted
    assert not request.is_endless


@given(
    **SMALL,
    ranks=st.integers(1, 4).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))),
    data=st.data(),
)
def test_a_part_of_a_request_has_the_samples_of_the_whole(
    first_sample: int,
    batch_size: int,
    num_batches: int | None,
    end_sample: int | None,
    ranks: tuple[int, int],
    data: st.DataObject,
) -> None:
    """After a break the rest is asked for, on this server or another."""
    spec = StreamSpec.of_dataset("", orders.find("random-1"), 0, 2)
    position = Position(first_sample, batch_size, *ranks)
    whole = StreamRequest(spec, position, num_batches, end_sample=end_sample)
    received = data.draw(st.integers(0, min(whole.end_row, 60)))
    end_batch = min(whole.end_batch, 10)
    assume(received < min(whole.end_row, end_batch * batch_size))

    part = whole.part(received, end_batch * batch_size)

    k, r = divmod(received, batch_size)
    assert part.position.first_sample == first_sample + k * ranks[1] * batch_size
    assert (part.first_row, part.num_batches) == (r, end_batch - k)
    rows = min(whole.end_row, end_batch * batch_size) - received
    assert part.row_count == rows
    assert (
        part.position.samples(part.first_row, rows).tolist()
        == position.samples(received, rows).tolist()
    )


@given(
    first_sample=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    ranks=st.integers(1, 4).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))),
    asked=asked_stages(),
    steps=st.lists(st.integers(1, 30), min_size=1),
)
def test_the_parts_of_a_mixture_s_request_are_each_within_one_stage(
    first_sample: int,
    batch_size: int,
    ranks: tuple[int, int],
    asked: list[AskedStage],
    steps: list[int],
) -> None:
    """And together they have each row once; each is a request that a server takes."""
    stages = scheduled(asked, len(asked[0].weights))
    sources = tuple(
        Source(f"s{number}", orders.find("random-1"), 7, number)
        for number in range(len(asked[0].weights))
    )
    spec = StreamSpec(2, sources, Mixture(7, stages))
    chain = spec.chain([Corpus(bytes([number]) * 32) for number in range(len(sources))])
    position = Position(first_sample, batch_size, *ranks)
    whole = StreamRequest(spec, position, 12)
    received, found = 0, []
    while received < whole.end_row:
        part = whole.part(
            received,
            min(received + steps[len(found) % len(steps)], whole.end_row),
            lambda place: spec.of_stage(place, chain[place]),
        )
        samples = part.position.samples(part.first_row, part.row_count)
        (stage,) = part.spec.mixture.stages  # type: ignore[union-attr]
        own = stages[stage.index]
        assert stage.previous == chain[stage.index]
        assert own.first_sample == stage.first_sample <= samples[0]
        if stage.index + 1 < len(stages):
            assert samples[-1] < stages[stage.index + 1].first_sample
        assert from_message(to_message(part, Expected()))[0] == part
        found += samples.tolist()
        received += part.row_count

    assert found[: whole.end_row] == position.samples(0, len(found)).tolist()[: whole.end_row]


@pytest.mark.parametrize("end_sample", [None, 5])
@pytest.mark.parametrize("num_batches", [None, 5])
def test_only_a_request_without_any_end_is_endless(
    num_batches: int | None, end_sample: int | None
) -> None:
    """At sample 2^63 it ends with a status of its own."""
    spec = StreamSpec.of_dataset("", orders.find("random-1"), 0, 2)

    request = StreamRequest(spec, Position(0, 4), num_batches, end_sample=end_sample)

    assert request.is_endless == (num_batches is None and end_sample is None)


def request_of(batch_size: int = 4, context_length: int = 2, world_size: int = 2) -> StreamRequest:
    spec = StreamSpec.of_dataset("", orders.find("random-1"), 0, context_length)
    return StreamRequest(spec, Position(0, batch_size, 0, world_size))


@pytest.mark.parametrize(
    ("limit", "value", "subject"),
    [
        ("row_bytes_max", 3 * 2, "context_length"),
        ("batch_bytes_max", 4 * 3 * 2, "batch_size"),
        ("batch_size_max", 4, "batch_size"),
        ("world_size_max", 2, "world_size"),
    ],
)
def test_a_request_above_a_limit_of_the_server_is_named_with_it(
    limit: str, value: int, subject: str
) -> None:
    """Exactly at the limit it is served; 0 is a limit that is not known."""
    request_of().require_within(pb.Limits(**{limit: value}), token_bytes=2)
    request_of().require_within(pb.Limits(), token_bytes=2)

    with pytest.raises(LimitExceeded, match=rf" {value - 1}$") as caught:
        request_of().require_within(pb.Limits(**{limit: value - 1}), token_bytes=2)

    assert caught.value.subject == subject


@given(request=requests(), data=st.data(), client_name=st.text(max_size=20))
def test_a_stream_whose_first_request_passes_has_no_later_one_that_is_too_long(
    request: StreamRequest, data: st.DataObject, client_name: str
) -> None:
    """A run that stops after a week for a message one byte too long is worse than one that never
    began.
    """
    assume(request.end_row > request.first_row)
    later = request.part(
        data.draw(st.integers(request.first_row, request.end_row - 1)), request.end_row
    )
    planes = tuple((kind, bytes(32)) for kind in request.spec.planes)
    expected = Expected(bytes(32), 1, (bytes(32),) * len(request.spec.sources), planes)
    size_bytes = to_message(later, expected, largest(client_name)).ByteSize()

    with pytest.raises(LimitExceeded, match=r"^request: "):
        require_size(request, pb.Limits(request_bytes_max=size_bytes - 1), client_name)


def test_the_longest_request_of_a_stream_counts_when_its_first_one_is_measured() -> None:
    """All numbers that were 0 and not on the wire at first, near sample 2^63."""
    spec = StreamSpec.of_dataset("", orders.find("random-1"), 0, 2, sorted(KINDS))
    first = StreamRequest(spec, Position(0, BATCH_SIZE_MAX))
    later = first.part((2**42 + 1) * BATCH_SIZE_MAX - 1, first.end_row)
    expected = Expected(
        bytes(32), 1, (bytes(32),), tuple((kind, bytes(32)) for kind in spec.planes)
    )
    size_bytes = to_message(later, expected, largest("somebody")).ByteSize()

    with pytest.raises(LimitExceeded, match=r"^request: "):
        require_size(first, pb.Limits(request_bytes_max=size_bytes - 1), "somebody")


def test_a_request_as_people_make_it_passes_the_limit_of_any_server() -> None:
    """A limit that is not known passes too."""
    require_size(request_of(), pb.Limits(request_bytes_max=1024), "run-17 rank 3")
    require_size(request_of(), pb.Limits(), "x" * 100_000)
