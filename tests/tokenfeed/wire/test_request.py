"""Requests as values and as messages: the same both ways, and nothing taken that is not meant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support import reference
from tests.support.stages import AskedStage, asked_stages, stages_of, streams
from tokenfeed.errors import (
    InvalidRequest,
    LimitExceeded,
    NotFound,
    RequestError,
    SamplesExhausted,
    StreamMismatch,
)
from tokenfeed.sampling import orders
from tokenfeed.stream.planes import KINDS, REDACTED
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, Position
from tokenfeed.stream.stage import Corpus, Redaction, Share, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import (
    CLIENT_NAME_MAX,
    CONTRACT_REVISION,
    ROWS_MAX,
    Expected,
    Hints,
    Request,
    RowsRequest,
    SampleList,
    from_message,
    require_size,
    require_understood,
    require_within,
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
def asked_for(draw: st.DrawFn) -> tuple[Stream, tuple[int, ...], tuple[int, ...], int]:
    """A stream as one request has it, its planes and declined planes, and its least sample."""
    stream = draw(streams(of_request=True))
    sources = tuple(replace(source, corpus=None) for source in stream.sources)
    stream = replace(stream, sources=sources)
    kinds = set(draw(st.lists(st.sampled_from(sorted(KINDS)), unique=True)))
    if stream.redactions:
        kinds.add(REDACTED)
    declined = draw(st.lists(st.integers(0, 2**32 - 1), max_size=3))
    begins = [stream.stage.first_sample, *(each.first_sample for each in stream.redactions)]
    return stream, tuple(sorted(kinds)), tuple(declined), max(begins)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any request of a stage."""
    stream, planes, declined, begin = draw(asked_for())
    position = draw(positions())
    if position.first_sample < begin:
        position = replace(position, first_sample=draw(st.integers(begin, SAMPLE_END - 1)))
    end_sample = draw(st.none() | st.sampled_from([0, SAMPLE_END]) | st.integers(0, SAMPLE_END))
    if end_sample is None:
        left = position.batches_left
        num_batches = draw(st.none() | st.sampled_from([0, left]) | st.integers(0, left))
        assume(num_batches is not None or left > 0)
    else:
        num_batches = draw(st.none() | UINT64)
    first_row = draw(st.integers(0, position.batch_size - 1))
    return Request(stream, position, planes, declined, first_row, num_batches, end_sample)


@st.composite
def rows_requests(draw: st.DrawFn) -> RowsRequest:
    """Any request of single rows."""
    stream, planes, declined, begin = draw(asked_for())
    samples = draw(st.lists(st.integers(begin, SAMPLE_END - 1), min_size=1, max_size=20))
    listed = SampleList(np.array(samples, dtype=np.int64))
    return RowsRequest(stream, listed, planes, declined)


@st.composite
def expectations(draw: st.DrawFn, request: Request | RowsRequest) -> Expected:
    digests = tuple(draw(HASH) for _ in request.stream.sources)
    return Expected(
        draw(HASH),
        digests if any(digests) else (),
        tuple((kind, draw(HASH)) for kind in request.planes),
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
    request: Request, data: st.DataObject, hints: Hints
) -> None:
    """A field that one side forgets would be a default on the other: other tokens, in silence."""
    expected = data.draw(expectations(request))

    sent = to_message(request, expected, hints).SerializeToString()

    received = pb.GetBatchRequest.FromString(sent)
    assert from_message(received) == (request, expected)
    assert Hints.of(received) == hints


def same(one: RowsRequest, other: RowsRequest) -> bool:
    """Whether two requests of rows are the same; lists of samples are no values."""
    listed = one.position.values.tolist() == other.position.values.tolist()
    return listed and replace(one, position=other.position) == other


@given(request=rows_requests(), data=st.data())
def test_a_request_of_rows_comes_back_from_its_message_as_it_was(
    request: RowsRequest, data: st.DataObject
) -> None:
    """As one of batches."""
    expected = data.draw(expectations(request))

    sent = to_message(request, expected).SerializeToString()

    received, expectation = from_message(pb.GetRowsRequest.FromString(sent))
    assert same(received, request)
    assert expectation == expected


def asked_of(request: Request | RowsRequest, expected: Expected) -> reference.Asked:
    """What the second implementation writes into both requests."""
    stream, stage = request.stream, request.stream.stage
    shares = tuple(tuple(share) for share in stage.shares)
    guards = dict(expected.planes)
    defaults = {"packed-1": "cut", "padded-1": "cut"}
    return reference.Asked(
        stream.seed,
        [
            reference.AskedSource(
                each.number,
                each.dataset,
                each.order.NAME,
                each.seed,
                "" if each.long_documents == defaults.get(each.order.NAME) else each.long_documents,
                digest,
                each.group_blocks or None,
            )
            for each, digest in zip(
                stream.sources, expected.digests or [b""] * len(stream.sources), strict=True
            )
        ],
        reference.AskedStage(
            stage.context_length,
            stage.index,
            stage.first_sample,
            b"" if stage.previous == bytes(32) else stage.previous,
            () if shares == ((0, 1, 0),) else shares,
        ),
        [(each.first_sample, each.source, each.list_hash) for each in stream.redactions],
        [(kind, guards.get(kind, b"")) for kind in request.planes],
        request.declined_planes,
        expected.identity,
    )


@given(request=requests(), data=st.data())
def test_a_request_has_the_bytes_that_the_second_implementation_writes(
    request: Request, data: st.DataObject
) -> None:
    """Both directions here could agree with each other and not with the contract."""
    expected, position = data.draw(expectations(request)), request.position
    batches = reference.AskedBatches(
        position.batch_size,
        position.first_sample,
        request.first_row,
        request.num_batches,
        position.rank,
        position.world_size,
        request.end_sample,
    )

    written = reference.batch_request(asked_of(request, expected), batches)

    assert to_message(request, expected).SerializeToString() == written
    assert from_message(pb.GetBatchRequest.FromString(written)) == (request, expected)


@given(request=rows_requests(), data=st.data())
def test_a_request_of_rows_has_the_bytes_that_the_second_implementation_writes(
    request: RowsRequest, data: st.DataObject
) -> None:
    """Its samples are packed."""
    expected = data.draw(expectations(request))

    written = reference.rows_request(asked_of(request, expected), request.position.values.tolist())

    assert to_message(request, expected).SerializeToString() == written


def test_a_stream_over_one_dataset_is_asked_for_in_few_words() -> None:
    """The simplest client writes a source with an order, a context length, and no share."""
    stream = Stream.of_dataset("web", orders.find("shuffled-1"), 7, 2)

    message = to_message(Request(stream, Position(0, 4)), Expected())

    assert message == pb.GetBatchRequest(
        batch_size=4,
        stream=pb.Stream(
            sources=[pb.Source(dataset="web", order="shuffled-1", seed=7)],
            stage=pb.Stage(context_length=2),
        ),
        world_size=1,
    )


def message_of(**fields: Any) -> pb.GetBatchRequest:
    """A request of one dataset; fields within it begin with "stream_", "source_" or "stage_"."""
    values: dict[str, dict[str, Any]] = {
        "": {"batch_size": 4, "num_batches": 3},
        "stream_": {},
        "source_": {"seed": 7},
        "stage_": {"context_length": 2},
    }
    for name, value in fields.items():
        kind = next((each for each in values if each and name.startswith(each)), "")
        values[kind][name.removeprefix(kind)] = value
    set_ = {
        kind: {name: value for name, value in own.items() if value is not None}
        for kind, own in values.items()
    }
    own = {"sources": [pb.Source(**set_["source_"])], "stage": pb.Stage(**set_["stage_"])}
    return pb.GetBatchRequest(stream=pb.Stream(**(own | set_["stream_"])), **set_[""])


def test_what_is_not_set_has_the_defaults_of_the_contract() -> None:
    """Three values are needed; a client in any language may leave out the others."""
    request, expected = from_message(message_of(num_batches=None))

    assert request == Request(
        replace(Stream.of_dataset("", orders.find("random-1"), 7, 2), seed=0), Position(0, 4, 0, 1)
    )
    assert expected == Expected()
    assert request.is_endless


def test_what_is_written_out_is_the_same_as_what_is_left_out() -> None:
    """A first stage may say that nothing comes before it, and that its only source has all."""
    written = message_of(
        source_order="random-1",
        stage_previous_identity=bytes(32),
        stage_shares=[pb.Share(weight=1)],
        world_size=1,
    )

    assert from_message(written) == from_message(message_of())
    for of_documents in ("packed-1", "padded-1"):
        plain = message_of(source_order=of_documents)
        assert from_message(plain) == from_message(
            message_of(source_order=of_documents, source_long_documents="cut")
        )


def test_planes_are_the_same_request_in_any_order() -> None:
    """The checksum takes them in ascending order, so that two who want the same have the same."""
    kinds = [pb.WantedPlane(kind=kind) for kind in (52, 50, 51)]

    request, _ = from_message(message_of(planes=kinds))

    assert request.planes == (50, 51, 52)
    assert request == from_message(message_of(planes=kinds[::-1]))[0]
    with pytest.raises(InvalidRequest, match="planes: 50 follows 51; kinds must ascend"):
        replace(request, planes=(51, 50))


PLANES = [pb.WantedPlane(kind=51)]
REDACTED_PLANE = [pb.WantedPlane(kind=53)]
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
        ({"stage_context_length": 0}, InvalidRequest, "context_length"),
        ({"stage_context_length": None}, InvalidRequest, "context_length"),
        ({"source_order": "random"}, NotFound, "order"),
        ({"source_order": "mixture-1"}, NotFound, "order"),
        ({"source_number": 1}, InvalidRequest, "stage.shares"),
        ({"source_seed": 2**64 - 1}, None, ""),
        ({"stream_seed": 2**64 - 1}, None, ""),
        ({"stream_sources": []}, InvalidRequest, "stream.sources"),
        ({"stream_sources": [pb.Source()] * 2}, InvalidRequest, "stage.shares"),
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
        ({"expected_identity": bytes(31)}, InvalidRequest, "expected_identity"),
        ({"expected_identity": bytes(33)}, InvalidRequest, "expected_identity"),
        ({"expected_identity": bytes(32)}, None, ""),
        ({"source_expected_digest": bytes(31)}, InvalidRequest, "expected_digest"),
        ({"source_expected_digest": bytes(33)}, InvalidRequest, "expected_digest"),
        ({"source_expected_digest": bytes(32)}, None, ""),
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
        ({"stream_redactions": [redaction(0)]}, StreamMismatch, "redactions"),
        (
            {"stream_redactions": [pb.Redaction(list_hash=bytes(31))]},
            InvalidRequest,
            "list_hash",
        ),
        ({"stream_redactions": [pb.Redaction()]}, InvalidRequest, "list_hash"),
        ({"planes": REDACTED_PLANE, "stream_redactions": [redaction(0)]}, None, ""),
        ({"planes": REDACTED_PLANE}, None, ""),
        (
            {"planes": PLANES, "stream_redactions": [redaction(0)]},
            StreamMismatch,
            "redactions",
        ),
        (
            {"planes": REDACTED_PLANE, "stream_redactions": [redaction(0), redaction(1)]},
            InvalidRequest,
            BEGINS,
        ),
        (
            {"planes": REDACTED_PLANE, "first_row": 1, "stream_redactions": [redaction(1)]},
            None,
            "",
        ),
        (
            {"planes": REDACTED_PLANE, "first_row": 1, "stream_redactions": [redaction(2)]},
            InvalidRequest,
            BEGINS,
        ),
        (
            {"planes": REDACTED_PLANE, "stream_redactions": [redaction(2**63)]},
            SamplesExhausted,
            BEGINS,
        ),
        (
            {"planes": REDACTED_PLANE, "stream_redactions": [redaction(0)] * 2},
            InvalidRequest,
            "redactions",
        ),
        (
            {"planes": REDACTED_PLANE, "stream_redactions": [redaction(0, 1)]},
            InvalidRequest,
            SOURCE,
        ),
        ({"declined_planes": [51, 51, 0, 2**32 - 1]}, None, ""),
        ({"source_long_documents": "cut"}, InvalidRequest, "long_documents"),
        ({"source_long_documents": "else"}, InvalidRequest, "long_documents"),
        (
            {"source_order": "packed-1", "source_long_documents": "drop"},
            InvalidRequest,
            "long_documents",
        ),
        ({"source_order": "padded-1", "source_long_documents": "drop"}, None, ""),
        ({"client_name": "x" * 10_000}, None, ""),
    ],
)
def test_each_field_has_its_range_and_one_outside_of_it_is_named(
    fields: dict[str, Any], kind: type[RequestError] | None, subject: str
) -> None:
    """The last value that is taken, the first that is not, and the status that it travels as."""
    require_status(message_of(**fields), kind, subject)


def require_status(
    message: pb.GetBatchRequest | pb.GetRowsRequest, kind: type[RequestError] | None, subject: str
) -> None:
    def parse() -> object:
        return from_message(message)

    if kind is None:
        parse()
        return
    with pytest.raises(kind) as caught:
        parse()

    assert type(caught.value) is kind
    assert caught.value.subject == subject


def stage_of(**fields: Any) -> pb.GetBatchRequest:
    """A request of a later stage with one source; fields of its share begin with "share_"."""
    share = {"source": fields.get("source_number", 0), "weight": 3, "base": 10}
    share |= {name[6:]: fields.pop(name) for name in list(fields) if name.startswith("share_")}
    values: dict[str, Any] = {
        "first_sample": 10,
        "stage_index": 1,
        "stage_first_sample": 10,
        "stage_previous_identity": bytes(32),
        "stage_shares": [pb.Share(**share)],
    }
    return message_of(**(values | fields))


TWO = [pb.Source(number=number) for number in (0, 1)]
HALVES = [pb.Share(source=number, weight=2**19) for number in (0, 1)]


@pytest.mark.parametrize(
    ("fields", "kind", "subject"),
    [
        ({}, None, ""),
        ({"source_number": 2**32 - 1}, None, ""),
        ({"share_weight": 2**20}, None, ""),
        ({"stream_sources": TWO, "stage_shares": HALVES}, None, ""),
        ({"stream_seed": 2**64 - 1}, None, ""),
        ({"stage_index": 2**32 - 1}, None, ""),
        ({"stage_index": 2**32}, InvalidRequest, "stage.index"),
        ({"stage_first_sample": 11}, InvalidRequest, "stage.first_sample"),
        ({"stage_first_sample": 11, "num_batches": 0}, InvalidRequest, "stage.first_sample"),
        ({"stage_first_sample": 11, "first_row": 1}, None, ""),
        ({"stage_first_sample": 14, "rank": 1, "world_size": 2}, None, ""),
        (
            {"stage_first_sample": 15, "rank": 1, "world_size": 2},
            InvalidRequest,
            "stage.first_sample",
        ),
        ({"stage_first_sample": 2**63}, SamplesExhausted, "stage.first_sample"),
        ({"stage_previous_identity": b""}, InvalidRequest, "previous_identity"),
        ({"stage_previous_identity": b"", "stage_index": 0}, None, ""),
        ({"stage_previous_identity": bytes(31)}, InvalidRequest, "previous_identity"),
        ({"stage_previous_identity": bytes(33)}, InvalidRequest, "previous_identity"),
        ({"stage_shares": []}, None, ""),
        ({"stage_shares": [], "source_number": 1}, InvalidRequest, "stage.shares"),
        ({"stage_shares": HALVES}, InvalidRequest, "stage.shares"),
        ({"stream_sources": TWO}, InvalidRequest, "stage.shares"),
        (
            {"stream_sources": TWO, "stage_shares": HALVES[::-1]},
            InvalidRequest,
            "stage.shares",
        ),
        (
            {"stream_sources": TWO[::-1], "stage_shares": HALVES},
            InvalidRequest,
            "stage.shares",
        ),
        (
            {"stream_sources": TWO[:1] * 2, "stage_shares": HALVES[:1] * 2},
            InvalidRequest,
            "stage.shares",
        ),
        (
            {
                "stream_sources": [*TWO, pb.Source(number=2)],
                "stage_shares": [*HALVES, pb.Share(source=2, weight=1)],
            },
            InvalidRequest,
            "weight",
        ),
        ({"share_weight": 0}, InvalidRequest, "weight"),
        ({"share_weight": 2**20 + 1}, InvalidRequest, "weight"),
        ({"share_weight": 2**64 - 1}, InvalidRequest, "weight"),
        ({"share_base": 11}, None, ""),
        ({"share_base": 2**63 - 1}, None, ""),
        ({"share_base": 2**63}, SamplesExhausted, "base"),
        (
            {"planes": REDACTED_PLANE, "stream_redactions": [redaction(0, 4)], "source_number": 4},
            None,
            "",
        ),
        (
            {"planes": REDACTED_PLANE, "stream_redactions": [redaction(0)], "source_number": 4},
            InvalidRequest,
            SOURCE,
        ),
        (
            {
                "stream_sources": TWO,
                "stage_shares": HALVES,
                "planes": REDACTED_PLANE,
                "stream_redactions": [redaction(9, 0), redaction(9, 1)],
            },
            None,
            "",
        ),
        (
            {
                "stream_sources": TWO,
                "stage_shares": HALVES,
                "planes": REDACTED_PLANE,
                "stream_redactions": [redaction(9, 1), redaction(9, 0)],
            },
            InvalidRequest,
            "redactions",
        ),
    ],
)
def test_each_field_of_a_stage_has_its_range_too(
    fields: dict[str, Any], kind: type[RequestError] | None, subject: str
) -> None:
    """A base may be above the first sample: it is counted in rows of this stage."""
    require_status(stage_of(**fields), kind, subject)


def rows_of(samples: list[int], **fields: Any) -> pb.GetRowsRequest:
    """A request of single rows of one dataset; fields as of `message_of`."""
    names = ("planes", "declined_planes", "expected_identity")
    own = {name: fields.pop(name) for name in names if name in fields}
    return pb.GetRowsRequest(stream=message_of(**fields).stream, samples=samples, **own)


AT_10 = {"stage_index": 1, "stage_first_sample": 10, "stage_previous_identity": bytes(32)}


@pytest.mark.parametrize(
    ("message", "kind", "subject"),
    [
        (rows_of([0]), None, ""),
        (rows_of([5, 0, 5, 2**63 - 1]), None, ""),
        (rows_of([]), InvalidRequest, "samples"),
        (rows_of([0] * ROWS_MAX), None, ""),
        (rows_of([0] * (ROWS_MAX + 1)), InvalidRequest, "samples"),
        (rows_of([0, 2**63]), SamplesExhausted, "samples"),
        (rows_of([2**64 - 1, 0]), SamplesExhausted, "samples"),
        (rows_of([11, 10], **AT_10), None, ""),
        (rows_of([11, 9], **AT_10), InvalidRequest, "stage.first_sample"),
        (rows_of([11, 9], planes=REDACTED_PLANE, stream_redactions=[redaction(9)]), None, ""),
        (
            rows_of([11, 8], planes=REDACTED_PLANE, stream_redactions=[redaction(9)]),
            InvalidRequest,
            BEGINS,
        ),
        (rows_of([11, 9], stream_redactions=[redaction(9)]), StreamMismatch, "redactions"),
        (rows_of([0], planes=PLANES * 2), InvalidRequest, "planes"),
        (rows_of([0], planes=[pb.WantedPlane(kind=54)]), InvalidRequest, "planes"),
        (rows_of([0], expected_identity=bytes(31)), InvalidRequest, "expected_identity"),
        (rows_of([0], source_order="random"), NotFound, "order"),
        (rows_of([0], stage_context_length=0), InvalidRequest, "context_length"),
    ],
)
def test_each_field_of_a_request_of_rows_has_its_range(
    message: pb.GetRowsRequest, kind: type[RequestError] | None, subject: str
) -> None:
    """Every sample has to be in the stage, and every redaction in force at all of them."""
    require_status(message, kind, subject)


def test_a_request_of_rows_has_the_rows_of_its_list() -> None:
    """In their order, also a sample twice; what serves batches serves them too."""
    samples = [5, 0, 5, 2**63 - 1]

    request, _ = from_message(rows_of(samples))

    assert (request.first_row, request.end_row, request.row_count) == (0, 4, 4)
    assert not request.is_endless
    assert request.position.samples(1, 2).tolist() == samples[1:3]
    assert [request.position.sample_of(row) for row in range(4)] == samples
    assert (request.position.batch_size, request.position.world_size) == (4, 1)
    listed = b"".join(sample.to_bytes(8, "little") for sample in samples)
    assert request.position.digest == hashlib.sha256(listed).digest()


def test_the_stream_of_a_call_is_the_same_value_as_that_of_the_call_before() -> None:
    """A run asks a thousand times for the same stream: it is parsed, checked and hashed once."""
    one, _ = from_message(message_of(first_sample=0))
    other, _ = from_message(message_of(first_sample=400))

    assert one.stream is other.stream


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


def in_stream(*numbers: int) -> Callable[[bytes], bytes]:
    """How a field gets into a message within the stream of a request."""

    def within(extra: bytes) -> bytes:
        for number in reversed((2, *numbers)):
            extra = delimited(number, extra)
        return extra

    return within


LEVELS: dict[str, tuple[type[Message], Callable[[bytes], bytes]]] = {
    "request": (pb.GetBatchRequest, lambda extra: extra),
    "plane": (pb.WantedPlane, lambda extra: delimited(9, b"\x08\x33" + extra)),
    "stream": (pb.Stream, in_stream()),
    "source": (pb.Source, in_stream(2)),
    "stage": (pb.Stage, in_stream(3)),
    "share": (pb.Share, in_stream(3, 5)),
    "redaction": (pb.Redaction, in_stream(4)),
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
        valid |= {2} if number == 10 and level == "request" else set()
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
    sent = rows_of([1]).SerializeToString()
    for extra, number, name in (
        (field_of(6, 0), 6, "GetRowsRequest"),
        (delimited(1, delimited(3, field_of(6, 0))), 6, "Stage"),
        (delimited(3, field_of(3, 0)), 3, "WantedPlane"),
    ):
        with pytest.raises(InvalidRequest, match=rf"\b{number} of {name} .* revision 3 of"):
            from_message(pb.GetRowsRequest.FromString(sent + extra))
    assert CONTRACT_REVISION == 3

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
    stream = Stream.of_dataset("", orders.find("random-1"), 0, 2)
    position = Position(first_sample, batch_size, *ranks)

    request = Request(
        stream, position, (), (), first_row, num_batches=num_batches, end_sample=end_sample
    )

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
    stream = Stream.of_dataset("", orders.find("random-1"), 0, 2)
    position = Position(first_sample, batch_size, *ranks)
    whole = Request(stream, position, num_batches=num_batches, end_sample=end_sample)
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
    redacted=st.sets(st.tuples(st.integers(0, 150), st.integers(0, 4)), max_size=4),
    steps=st.lists(st.integers(1, 30), min_size=1),
)
def test_the_parts_of_a_request_are_each_within_one_stage_and_the_same_redactions(
    first_sample: int,
    batch_size: int,
    ranks: tuple[int, int],
    asked: list[AskedStage],
    redacted: set[tuple[int, int]],
    steps: list[int],
) -> None:
    """And together they have each row once; each is a request that a server takes."""
    stages = stages_of(asked, 2)
    numbers = range(len(asked[0].weights))
    sources = tuple(Source(f"s{n}", orders.find("random-1"), 7, n) for n in numbers)
    redactions = tuple(
        Redaction(begin, source, bytes(32))
        for begin, source in sorted(redacted)
        if source in numbers
    )
    corpora = {number: Corpus(bytes([number]) * 32) for number in numbers}
    stream = Stream(9, sources, stages, redactions).known(corpora)
    position = Position(first_sample, batch_size, *ranks)
    whole = Request(stream, position, (REDACTED,), num_batches=12)
    received, found = 0, []
    while received < whole.end_row:
        end = min(received + steps[len(found) % len(steps)], whole.end_row)
        part = whole.part(received, end)
        samples = part.position.samples(part.first_row, part.row_count)
        stage = part.stream.stage
        assert stage.previous == stream.stages[stage.index].previous
        assert stage.first_sample <= samples[0]
        if stage.index + 1 < len(stages):
            assert samples[-1] < stages[stage.index + 1].first_sample
        for sample in samples.tolist():
            assert stream.at(sample)[0] == part.stream
            assert stream.identity(sample) == part.stream.identity(sample)
        asked_part = replace(
            part,
            stream=replace(
                part.stream,
                sources=tuple(replace(each, corpus=None) for each in part.stream.sources),
            ),
        )
        assert from_message(to_message(part, Expected()))[0] == asked_part
        found += samples.tolist()
        received += part.row_count

    assert found[: whole.end_row] == position.samples(0, len(found)).tolist()[: whole.end_row]


@pytest.mark.parametrize("end_sample", [None, 5])
@pytest.mark.parametrize("num_batches", [None, 5])
def test_only_a_request_without_any_end_is_endless(
    num_batches: int | None, end_sample: int | None
) -> None:
    """At sample 2^63 it ends with a status of its own."""
    stream = Stream.of_dataset("", orders.find("random-1"), 0, 2)

    request = Request(stream, Position(0, 4), num_batches=num_batches, end_sample=end_sample)

    assert request.is_endless == (num_batches is None and end_sample is None)


def request_of(batch_size: int = 4, context_length: int = 2, world_size: int = 2) -> Request:
    stream = Stream.of_dataset("", orders.find("random-1"), 0, context_length)
    return Request(stream, Position(0, batch_size, 0, world_size))


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
    require_within(request_of(), pb.Limits(**{limit: value}), token_bytes=2)
    require_within(request_of(), pb.Limits(), token_bytes=2)

    with pytest.raises(LimitExceeded, match=rf" {value - 1}$") as caught:
        require_within(request_of(), pb.Limits(**{limit: value - 1}), token_bytes=2)

    assert caught.value.subject == subject


@pytest.mark.parametrize("limit", ["batch_bytes_max", "batch_size_max"])
def test_single_rows_above_a_limit_are_too_many_samples(limit: str) -> None:
    """A client of GetRows has sent no batch size."""
    request, _ = from_message(rows_of([0] * 9))
    value = {"batch_bytes_max": 9 * 3 * 4, "batch_size_max": 9}[limit]
    require_within(request, pb.Limits(**{limit: value}), token_bytes=4)

    with pytest.raises(LimitExceeded, match=rf"^samples: a batch of .* {value - 1}$"):
        require_within(request, pb.Limits(**{limit: value - 1}), token_bytes=4)


def full_expectations(request: Request) -> Expected:
    planes = tuple((kind, bytes(32)) for kind in request.planes)
    return Expected(bytes(32), (bytes(32),) * len(request.stream.sources), planes)


@given(request=requests(), data=st.data(), client_name=st.text(max_size=20))
def test_a_stream_whose_first_request_passes_has_no_later_one_that_is_too_long(
    request: Request, data: st.DataObject, client_name: str
) -> None:
    """A run that stops after a week for a message one byte too long is worse than one that never
    began.
    """
    assume(request.end_row > request.first_row)
    later = request.part(
        data.draw(st.integers(request.first_row, request.end_row - 1)), request.end_row
    )
    size_bytes = to_message(later, full_expectations(later), largest(client_name)).ByteSize()

    with pytest.raises(LimitExceeded, match=r"^request: "):
        require_size(request, pb.Limits(request_bytes_max=size_bytes - 1), client_name)


@given(stream=streams(), sample=st.integers(0, SAMPLE_END - 2), client_name=st.text(max_size=9))
def test_no_stage_of_a_stream_whose_first_request_passes_has_a_longer_one(
    stream: Stream, sample: int, client_name: str
) -> None:
    """Also one of other sources, and with redactions that come into force later."""
    sample = max(sample, stream.stages[0].first_sample)
    whole = Request(stream, Position(sample, 1), (REDACTED,), num_batches=1)
    later = whole.part(0, 1)
    size_bytes = to_message(later, full_expectations(later), largest(client_name)).ByteSize()

    with pytest.raises(LimitExceeded, match=r"^request: "):
        require_size(whole, pb.Limits(request_bytes_max=size_bytes - 1), client_name)


def test_redactions_count_when_the_longest_request_of_a_stream_is_looked_for() -> None:
    """A stage of fewer sources may have the longer request."""
    sources = tuple(Source("", orders.find(""), 0, number) for number in range(3))
    stages = (
        Stage(0, 0, 2, (Share(0, 1, 0), Share(1, 1, 0)), bytes(32)),
        Stage(1, 10, 2, (Share(0, 0, 5), Share(1, 0, 5), Share(2, 1, 0)), bytes(32)),
    )
    redactions = tuple(Redaction(begin, 2, bytes(32)) for begin in range(20))
    whole = Request(Stream(0, sources, stages, redactions), Position(0, 1), (REDACTED,))
    later = whole.part(30, 31)
    size_bytes = to_message(later, full_expectations(later), largest("")).ByteSize()

    assert len(later.stream.redactions) == 20
    with pytest.raises(LimitExceeded, match=r"^request: "):
        require_size(whole, pb.Limits(request_bytes_max=size_bytes - 1), "")


def test_the_longest_request_of_a_stream_counts_when_its_first_one_is_measured() -> None:
    """All numbers that were 0 and not on the wire at first, near sample 2^63."""
    stream = Stream.of_dataset("", orders.find("random-1"), 0, 2)
    first = Request(stream, Position(0, BATCH_SIZE_MAX), tuple(sorted(KINDS)))
    later = first.part((2**42 + 1) * BATCH_SIZE_MAX - 1, first.end_row)
    size_bytes = to_message(later, full_expectations(later), largest("somebody")).ByteSize()

    with pytest.raises(LimitExceeded, match=r"^request: "):
        require_size(first, pb.Limits(request_bytes_max=size_bytes - 1), "somebody")


def test_a_request_as_people_make_it_passes_the_limit_of_any_server() -> None:
    """A limit that is not known passes too."""
    require_size(request_of(), pb.Limits(request_bytes_max=1024), "run-17 rank 3")
    require_size(request_of(), pb.Limits(), "x" * 100_000)
