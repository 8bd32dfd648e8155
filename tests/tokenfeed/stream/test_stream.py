"""A stream as a value: what exists is valid, and identity, parts and lookups follow from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference
from tests.support.stages import of_reference, streams
from tokenfeed.errors import InvalidRequest, RequestError, SamplesExhausted
from tokenfeed.sampling import orders
from tokenfeed.stream import stream as stream_module
from tokenfeed.stream.stage import (
    CHANGED,
    FIRST_PREVIOUS,
    MIXTURE,
    Corpus,
    Redaction,
    Share,
    Source,
    Stage,
)
from tokenfeed.stream.stream import Stream

RANDOM, SHUFFLED, SEQUENTIAL, PACKED, PADDED = (
    orders.find(f"{name}-1") for name in ("random", "shuffled", "sequential", "packed", "padded")
)
LIST = bytes(range(32))
ONE, OTHER = Source("a", RANDOM, 3), Source("b", SEQUENTIAL, 3, number=1)
HALVES = Stage(0, 0, 2, (Share(0, 1, 0), Share(1, 1, 0)), FIRST_PREVIOUS)
LATER = Stage(1, 10, 2, (Share(0, 0, 5), Share(1, 3, 5)))
BOTH = Stream(7, (ONE, OTHER), (HALVES, LATER))
CORPORA = dict(enumerate([Corpus(bytes([1] * 32)), Corpus(bytes([2] * 32))]))


def of_dataset(**fields: Any) -> Stream:
    values: dict[str, Any] = {"dataset": "", "order": RANDOM, "seed": 7, "context_length": 2}
    return Stream.of_dataset(**(values | fields))


# What exists is valid.


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: of_dataset(context_length=0), "context_length: 0 is not in [1, tokens of"),
        (lambda: of_dataset(context_length=-1), "context_length: -1 is not in [1, tokens of"),
        (lambda: of_dataset(context_length=2**64), "context_length: 18446744073709551616 is"),
        (lambda: of_dataset(seed=-1), "seed: -1 is not in [0, 18446744073709551615]"),
        (lambda: of_dataset(seed=2**64), "seed: 18446744073709551616 is not in [0, "),
        (lambda: Stream(2**64, (ONE,), (HALVES,)), "seed: 18446744073709551616 is not in [0, "),
        (lambda: Source("", RANDOM, 0, -1), "number: -1 is not in [0, 4294967295]"),
        (lambda: Source("", RANDOM, 0, 2**32), "number: 4294967296 is not in [0, 4294967295]"),
        (
            lambda: of_dataset(long_documents="cut"),
            "long_documents: is set, but random-1 does not read documents; omit it",
        ),
        (
            lambda: of_dataset(order=PACKED, long_documents="drop"),
            "long_documents: 'drop' is not one of cut (packed-1)",
        ),
    ],
)
def test_a_field_out_of_range_is_named_with_its_limit(
    make: Callable[[], object], problem: str
) -> None:
    """The user reads the name of the argument and what it may be."""
    with pytest.raises(InvalidRequest, match=re.escape(problem)) as caught:
        make()

    assert problem.startswith(f"{caught.value.subject}: ")


STAGE: dict[str, Any] = {
    "index": 1,
    "first_sample": 10,
    "context_length": 2,
    "shares": (Share(0, 2, 5), Share(1, 3, 5)),
    "previous": bytes(32),
}


@pytest.mark.parametrize(
    ("fields", "kind", "problem"),
    [
        ({"index": 2**32}, InvalidRequest, "stage.index: 4294967296 is not in [0, 4294967295]"),
        ({"index": -1}, InvalidRequest, "stage.index: -1 is not in [0, 4294967295]"),
        ({"first_sample": -1}, SamplesExhausted, "stage.first_sample: -1 is not in [0, 2^63)"),
        (
            {"first_sample": 2**63},
            SamplesExhausted,
            "stage.first_sample: 9223372036854775808 is not in [0, 2^63)",
        ),
        ({"context_length": 0}, InvalidRequest, "context_length: 0 is not in [1, tokens of the"),
        (
            {"previous": b"short"},
            InvalidRequest,
            "previous_identity: has 5 bytes; it has to have 32",
        ),
        (
            {"shares": (Share(2**32, 1, 0),)},
            InvalidRequest,
            "number: 4294967296 is not in [0, 4294967295]",
        ),
        ({"shares": (Share(0, -1, 0),)}, InvalidRequest, "weight: -1 is not in [0, 1048576]"),
        (
            {"shares": (Share(0, 2**20 + 1, 0),)},
            InvalidRequest,
            "weight: 1048577 is not in [0, 1048576]",
        ),
        (
            {"shares": (Share(0, 2**20, 0), Share(1, 1, 0))},
            InvalidRequest,
            "weight: the sum of all sources, 1048577, is not in [1, 1048576]",
        ),
        (
            {"shares": (Share(0, 0, 0),)},
            InvalidRequest,
            "weight: the sum of all sources, 0, is not in [1, 1048576]",
        ),
        ({"shares": ()}, InvalidRequest, "weight: the sum of all sources, 0, is not in"),
        ({"shares": (Share(0, 1, -1),)}, SamplesExhausted, "base: -1 is not in [0, 2^63)"),
        (
            {"shares": (Share(0, 1, 2**63),)},
            SamplesExhausted,
            "base: 9223372036854775808 is not in [0, 2^63)",
        ),
        (
            {"shares": (Share(1, 1, 0), Share(0, 1, 0))},
            InvalidRequest,
            "stage.shares: number 0 follows 1; numbers must ascend",
        ),
        (
            {"shares": (Share(1, 1, 0), Share(1, 1, 0))},
            InvalidRequest,
            "stage.shares: number 1 follows 1; numbers must ascend",
        ),
    ],
)
def test_a_field_of_a_stage_out_of_range_is_named_with_its_limit(
    fields: dict[str, Any], kind: type[RequestError], problem: str
) -> None:
    """Requests of other clients are checked by it too."""
    with pytest.raises(RequestError, match=re.escape(problem)) as caught:
        Stage(**(STAGE | fields))

    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "fields",
    [
        {"index": 2**32 - 1},
        {"first_sample": 2**63 - 1},
        {"context_length": 1},
        {"context_length": 2**64 - 1},
        {"shares": (Share(2**32 - 1, 2**20, 2**63 - 1),)},
        {"shares": (Share(0, 0, 0), Share(1, 1, 0))},
        {"previous": b""},
    ],
)
def test_the_ends_of_each_range_of_a_stage_are_in_it(fields: dict[str, Any]) -> None:
    """A base is counted in rows of its own stage: it may be above the sample where that begins."""
    stage = Stage(**(STAGE | fields))

    assert all(getattr(stage, name) == value for name, value in fields.items())


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Redaction(-1, 0, LIST), "redactions.first_sample: -1 is not in [0, 2^63)"),
        (lambda: Redaction(2**63, 0, LIST), "redactions.first_sample: 9223372036854775808 is"),
        (lambda: Redaction(0, 2**32, LIST), "redactions.source: 4294967296 is not in [0, "),
        (lambda: Redaction(0, 0, b""), "list_hash: is missing; it has to have 32 bytes"),
        (lambda: Redaction(0, 0, b"x"), "list_hash: has 1 bytes; it has to have 32 bytes"),
    ],
)
def test_a_redaction_out_of_range_is_named(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(RequestError, match=re.escape(problem)):
        make()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sources": ()}, "stream: has to have a source and a stage"),
        ({"stages": ()}, "stream: has to have a source and a stage"),
        ({"sources": (OTHER, ONE)}, "sources: number 0 follows 1; numbers must ascend"),
        ({"sources": (ONE, ONE)}, "sources: number 0 follows 0; numbers must ascend"),
        ({"sources": (ONE,)}, "share.source: 1 is not the number of a source of this stream"),
        (
            {"redactions": (Redaction(0, 2, LIST),)},
            "redactions.source: 2 is not the number of a source of this stream",
        ),
        (
            {"redactions": (Redaction(5, 0, LIST), Redaction(4, 1, LIST))},
            "redactions: list " + LIST.hex() + " of source 1 from sample 4 on follows list ",
        ),
        ({"redactions": (Redaction(5, 0, LIST),) * 2}, "they must ascend, each once"),
    ],
)
def test_parts_that_do_not_fit_together_are_no_stream(fields: dict[str, Any], problem: str) -> None:
    """Its first source alone would be another stream under the same name."""
    with pytest.raises(InvalidRequest, match=re.escape(problem)):
        replace(BOTH, **fields)


def test_two_lists_of_a_source_may_come_into_force_together() -> None:
    """By ascending hash, so that there is one order of them."""
    both = (Redaction(5, 0, bytes(32)), Redaction(5, 0, LIST))

    assert replace(BOTH, redactions=both).redactions == both


def test_a_stream_is_a_value() -> None:
    """It is compared, used as a key, and never changed."""
    stream = of_dataset()

    assert stream == of_dataset()
    assert len({stream, of_dataset(), of_dataset(seed=8)}) == 2
    with pytest.raises(FrozenInstanceError):
        stream.seed = 3  # type: ignore[misc]


def test_who_asked_for_a_stage_and_when_makes_no_other_stream() -> None:
    """No row depends on it."""
    asked = replace(LATER, asked=8, origin=CHANGED)

    assert asked == LATER
    assert replace(BOTH, stages=(HALVES, asked)) == BOTH


def test_a_dataset_is_a_source_of_weight_1() -> None:
    """So there is one kind of stream, and one rule for its rows."""
    stream = of_dataset(dataset="web", order=PADDED, long_documents="drop")

    assert stream.source == Source("web", PADDED, 7, 0, "drop")
    assert stream.stage == Stage(0, 0, 2, (Share(0, 1, 0),), bytes(32))
    assert (stream.context_length, stream.row_tokens, stream.numbers) == (2, 3, (0,))
    assert (stream.is_plain, stream.reads_documents) == (True, True)
    assert (stream.order_name, BOTH.order_name) == ("padded-1", MIXTURE)
    alternate = Stream(7, (ONE, OTHER), (Stage(0, 0, 2, (Share(1, 1, 0),)),))
    assert alternate.is_plain
    assert alternate.order_name == MIXTURE
    assert not BOTH.is_plain
    assert not BOTH.reads_documents


def test_a_seed_that_is_not_used_counts_as_0_and_documents_are_cut_by_default() -> None:
    """Two sequential runs would else refuse each other for nothing."""
    assert Source("", RANDOM, 7).seed == 7
    assert Source("", SEQUENTIAL, 7).seed == 0
    assert Source("", PACKED, 7).long_documents == Source("", PADDED, 7).long_documents == "cut"
    assert Source("", RANDOM, 7).long_documents == ""


# Where a sample is.


def test_a_sample_belongs_to_the_last_stage_that_begins_at_or_before_it() -> None:
    """And one before the first stage that is kept to that one."""
    assert [BOTH.place_of(sample) for sample in (0, 9, 10, 2**63 - 1)] == [0, 0, 1, 1]
    assert [BOTH.end_of(place) for place in (0, 1)] == [10, None]
    folded = replace(BOTH, stages=(replace(LATER, previous=bytes(32)),))
    assert folded.place_of(3) == 0


def test_one_request_has_the_stage_and_the_redactions_that_are_in_force() -> None:
    """It ends at the next stage, or where another redaction of one of its sources begins: the
    server knows of neither.
    """
    redactions = (Redaction(4, 0, LIST), Redaction(12, 1, LIST), Redaction(20, 0, LIST))
    stream = replace(BOTH, redactions=redactions)

    found = {sample: stream.at(sample) for sample in (0, 3, 4, 9, 10, 12, 20)}

    assert [end for _, end in found.values()] == [4, 4, 10, 10, 12, None, None]
    in_force = [part.redactions for part, _ in found.values()]
    of_source_0, of_source_1 = redactions[:1], redactions[1:2]
    assert in_force == [(), (), of_source_0, of_source_0, (), of_source_1, of_source_1]
    assert [part.sources for part, _ in found.values()] == [(ONE, OTHER)] * 4 + [(OTHER,)] * 3
    assert [part.stage.index for part, _ in found.values()] == [0] * 4 + [1] * 3
    assert found[10][0].stage.shares == (Share(1, 3, 5),)


def test_a_part_of_a_part_is_the_same_part() -> None:
    """The calls of a stream ask for the same value, and the server parses it once."""
    stream = replace(BOTH.known(CORPORA), redactions=(Redaction(4, 0, LIST),))

    for sample in (0, 5, 10):
        part, _ = stream.at(sample)
        assert part.at(sample) == (part, None)
        assert stream.at(sample)[0] is part


def test_the_seed_of_a_stream_is_sent_only_where_something_is_permuted() -> None:
    """Else two requests of the same rows would differ."""
    plain = Stage(2, 40, 2, (Share(0, 0, 9), Share(1, 1, 9)))
    stream = replace(BOTH, stages=(*BOTH.stages, plain))

    assert [stream.at(sample)[0].seed for sample in (0, 10, 40)] == [7, 7, 0]


def test_the_rest_of_a_stream_has_what_later_rows_depend_on() -> None:
    """What was before a resumed sample need not be served any more."""
    redactions = (Redaction(4, 0, LIST), Redaction(12, 1, LIST))
    plain = Stage(2, 40, 4, (Share(0, 0, 9), Share(1, 1, 9)))
    stream = replace(BOTH, redactions=redactions).known(CORPORA)
    stream = stream.with_stages([*stream.stages, plain]).known({})

    for sample in (10, 39, 40, 50):
        rest = stream.rest(sample)
        assert rest.numbers == (1,)
        assert rest.redactions == redactions[1:]
        assert rest.stages[0].shares == stream.at(sample)[0].stage.shares
        for later in (sample, 41, 2**62):
            assert rest.at(later) == stream.at(later)
            assert rest.identity(later) == stream.identity(later)
    assert stream.rest(0) == stream


# Identity.


@given(streams(), st.data())
def test_the_identity_of_any_stream_is_that_of_the_second_implementation(
    stream: Stream, data: st.DataObject
) -> None:
    """Of each stage, with the redactions in force, of the whole and of what a request has of it."""
    previous = bytes(32)
    in_all = [(each.first_sample, each.source, each.list_hash) for each in stream.redactions]
    for place, stage in enumerate(stream.stages):
        end = stream.end_of(place) or 2**63
        sample = data.draw(st.integers(stage.first_sample, end - 1))
        sources = of_reference(stream, stage)
        found = reference.stage_identity(
            previous, stage.index, stage.first_sample, stage.context_length, stream.seed, sources
        )
        in_force = reference.in_force(in_all, sources, sample)
        expected = reference.redacted_identity(found, in_force)
        assert stage.previous == previous
        assert stream.identity(sample) == expected
        assert stream.at(sample)[0].identity(sample) == expected
        previous = found


SOURCE = Source("a", SHUFFLED, 3, 0, corpus=Corpus(bytes([1] * 32)))
ANOTHER = Source("b", PADDED, 4, 1, corpus=Corpus(bytes([2] * 32), ((2, LIST), (3, LIST))))
PAUSED = Source("c", RANDOM, 5, 2, corpus=Corpus(bytes([3] * 32)))
SHARES = (Share(0, 70, 5), Share(1, 30, 6), Share(2, 0, 7))
BASE = Stream(
    9,
    (SOURCE, ANOTHER, PAUSED),
    (Stage(1, 100, 2, SHARES, bytes([9] * 32)),),
    (Redaction(50, 0, LIST), Redaction(60, 2, LIST), Redaction(200, 1, LIST)),
)


def with_source(number: int, **fields: Any) -> Stream:
    sources = list(BASE.sources)
    sources[number] = replace(sources[number], **fields)
    return replace(BASE, sources=tuple(sources))


def with_stage(**fields: Any) -> Stream:
    return replace(BASE, stages=(replace(BASE.stage, **fields),))


def with_share(number: int, **fields: int) -> Stream:
    shares = list(SHARES)
    shares[number] = shares[number]._replace(**fields)
    return with_stage(shares=tuple(shares))


OTHER_STREAMS = {
    "seed of the stream": replace(BASE, seed=10),
    "previous": with_stage(previous=bytes([8] * 32)),
    "index": with_stage(index=2),
    "first sample of the stage": with_stage(first_sample=99),
    "context length": with_stage(context_length=3),
    "fingerprint": with_source(0, corpus=Corpus(bytes([4] * 32))),
    "order": with_source(0, order=RANDOM),
    "seed of a source": with_source(0, seed=4),
    "pieces": with_source(1, corpus=Corpus(bytes([2] * 32), ((2, bytes(32)),))),
    "base": with_share(0, base=4),
    "weight": with_share(0, weight=71),
    "a tenth of the weights": with_stage(shares=(Share(0, 7, 5), Share(1, 3, 6))),
    "weight 1 for a paused source": with_share(2, weight=1),
    "another source paused": with_share(0, weight=0),
    "number of a source": Stream(
        9,
        (SOURCE, replace(ANOTHER, number=3)),
        (replace(BASE.stage, shares=(SHARES[0], SHARES[1]._replace(source=3))),),
        BASE.redactions[:1],
    ),
    "no redaction": replace(BASE, redactions=()),
    "another list": replace(BASE, redactions=(Redaction(50, 0, bytes(32)),)),
    "first sample of a redaction": replace(BASE, redactions=(Redaction(51, 0, LIST),)),
    "source of a redaction": replace(BASE, redactions=(Redaction(50, 1, LIST),)),
    "one more redaction": replace(
        BASE, redactions=(Redaction(50, 0, LIST), Redaction(50, 1, LIST))
    ),
}
SAME_STREAMS = {
    "name of a dataset": with_source(0, dataset="renamed"),
    "fingerprint of a paused source": with_source(2, corpus=Corpus(bytes(32))),
    "order of a paused source": with_source(2, order=SHUFFLED),
    "base of a paused source": with_share(2, base=8),
    "no paused source": replace(
        BASE,
        sources=BASE.sources[:2],
        stages=(replace(BASE.stage, shares=SHARES[:2]),),
        redactions=(BASE.redactions[0], BASE.redactions[2]),
    ),
    "redaction of a paused source": replace(BASE, redactions=BASE.redactions[:1]),
    "redaction that is not in force yet": replace(
        BASE, redactions=(*BASE.redactions[:2], Redaction(151, 0, LIST))
    ),
    "pieces of another context length": with_source(
        1, corpus=Corpus(bytes([2] * 32), ((2, LIST), (3, bytes(32))))
    ),
    # It is in the hash of the pieces.
    "long documents": with_source(1, long_documents="drop"),
    "who asked": with_stage(origin=CHANGED, asked=77),
    "a later stage": replace(BASE, stages=(*BASE.stages, Stage(2, 300, 1, SHARES, LIST))),
}


@pytest.mark.parametrize("field", OTHER_STREAMS)
def test_whatever_changes_the_rows_changes_the_identity(field: str) -> None:
    """A saved state of one stream must not resume on another, be it ever so similar."""
    assert OTHER_STREAMS[field].identity(150) != BASE.identity(150)


def test_each_change_makes_a_stream_of_its_own() -> None:
    identities = {field: stream.identity(150) for field, stream in OTHER_STREAMS.items()}

    assert len(set(identities.values())) == len(identities)


@pytest.mark.parametrize("field", SAME_STREAMS)
def test_what_changes_no_row_of_the_stage_leaves_the_identity_as_it_is(field: str) -> None:
    """Else a run would be refused for nothing."""
    assert SAME_STREAMS[field].identity(150) == BASE.identity(150)


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        ((Share(0, 1, 5),), False),
        ((Share(0, 1, 5), Share(1, 0, 6)), False),
        ((Share(0, 2, 5),), True),
        ((Share(0, 1, 5), Share(1, 1, 6)), True),
    ],
)
def test_the_seed_of_the_stream_counts_only_if_a_block_has_more_than_one_sample(
    shares: tuple[Share, ...], counts: bool
) -> None:
    """A block of one has nothing to permute, whatever the number of sources that pause."""
    one, two = (
        replace(with_stage(shares=shares), seed=seed, redactions=()).identity(150)
        for seed in (1, 2)
    )

    assert (one != two) == counts


def test_an_order_that_ignores_its_seed_makes_one_stream_of_all_seeds() -> None:
    """Also as the only source, where the stream has the same seed."""
    corpus = {0: Corpus(bytes(32))}
    found = {of_dataset(order=SEQUENTIAL, seed=seed).known(corpus).identity(0) for seed in (1, 2)}

    assert found == {reference.identity("sequential-1", 0, 2, bytes(32))}


@pytest.mark.parametrize("order", [RANDOM, SHUFFLED])
def test_the_identity_of_a_dataset_is_the_published_one(order: orders.Order) -> None:
    """Saved states and requests carry it."""
    found = of_dataset(order=order).known({0: Corpus(LIST)}).identity(2**63 - 1)

    assert found == reference.identity(order.NAME, 7, 2, LIST)


def test_a_later_stage_changes_no_identity_before_it() -> None:
    """What was trained on stays what it was."""
    before = Stream(7, (ONE, OTHER), (HALVES,)).known(CORPORA)
    after = BOTH.known(CORPORA)

    assert before.identity(9) == after.identity(9)
    assert before.identity(10) != after.identity(10)
    # From the identity before a stage on, nothing earlier has to be known.
    folded = replace(after, stages=after.stages[1:])
    assert folded.identity(10) == after.identity(10)


# Known streams.


def test_a_stream_is_known_once_its_corpora_are() -> None:
    """Each stage then has the identity of the one before it."""
    known = BOTH.known(CORPORA)

    assert [source.corpus for source in known.sources] == [*CORPORA.values()]
    assert [stage.previous for stage in known.stages] == [FIRST_PREVIOUS, known.identity(0)]
    assert known.known(CORPORA) == known.known({}) == known


def test_a_corpus_that_is_not_described_again_stays_as_it_was() -> None:
    """A change names one new source, and only that one is asked about."""
    new = Source("c", RANDOM, 3, number=2)
    last = Stage(2, 40, 2, (Share(0, 0, 5), Share(1, 0, 35), Share(2, 1, 0)))
    before = BOTH.known(CORPORA)
    longer = replace(before, sources=(*before.sources, new), stages=(*before.stages, last))

    found = longer.known({2: Corpus(LIST)})

    assert [source.corpus for source in found.sources] == [*CORPORA.values(), Corpus(LIST)]
    assert found.stages[2].previous == before.identity(10)


def test_only_new_stages_are_hashed_when_a_stream_becomes_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A state of 1,000 stages of 100 sources would else take half a second, at each change."""
    sources = tuple(Source(f"s{number}", SHUFFLED, number, number) for number in range(3))
    corpora = {number: Corpus(bytes([number] * 32)) for number in range(3)}

    def stage(index: int) -> Stage:
        shares = tuple(Share(number, 1, index) for number in range(3))
        return Stage(index, 3 * index, 4, shares, FIRST_PREVIOUS if index == 0 else b"")

    known = Stream(5, sources, tuple(map(stage, range(100)))).known(corpora)
    hashed: list[int] = []
    of_stage = stream_module.stage_identity

    def counted(seed: int, stage: Stage, own: Any) -> bytes:
        hashed.append(stage.index)
        return of_stage(seed, stage, own)

    monkeypatch.setattr(stream_module, "stage_identity", counted)
    stream_module._hash_of.cache_clear()

    longer = known.with_stages([*known.stages, stage(100), stage(101)]).known(corpora)

    assert hashed == [99, 100]
    assert longer.stages[:100] == known.stages
    assert longer.stages[101].previous == longer.identity(300)


def test_pieces_are_known_by_context_length() -> None:
    """One dataset may be read at several."""
    corpus = Corpus(bytes(32), ((2, LIST), (4, bytes([7] * 32))))

    assert corpus.pieces_at(4) == bytes([7] * 32)
    assert corpus.pieces_at(3) == b""
