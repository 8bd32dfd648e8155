"""The plan: sample -> window, for any shape of corpus."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reference
from tokenfeed.errors import InvalidRequest, NotFound
from tokenfeed.sampling import orders
from tokenfeed.sampling.document_rows import RowPieces
from tokenfeed.sampling.plan import PLAN_ROWS, Shape, plan, row_count, rows_at_once
from tokenfeed.stream.schedule import first_stage
from tokenfeed.stream.stage import Source
from tokenfeed.stream.stream import Stream


def shape_of(*token_counts: int) -> Shape:
    return Shape(np.array(token_counts, dtype=np.int64))


ANY_LENGTH = [name for name, order in orders.OF_WINDOWS.items() if not order.BLOCK_TOKENS]
"""Orders of windows of any context length."""


def stream_of(order: str, seed: int, context_length: int) -> Stream:
    return Stream.of_dataset("", orders.find(order), seed, context_length)


def mixed(weights: tuple[int, ...], names: tuple[str, ...]) -> Stream:
    """A mixture of sources of these orders, of one stage, as a request has it."""
    sources = tuple(
        Source(f"s{number}", orders.find(name), 7, number) for number, name in enumerate(names)
    )
    return Stream(7, sources, (first_stage(4, dict(enumerate(weights))),)).at(0)[0]


def places(stream: Stream, shape: Shape, samples: Iterable[int]) -> list[tuple[int, int]]:
    """(file, first token) of the window of each sample, after a look at what surrounds it."""
    numbers = np.array(samples, dtype=np.int64)
    spans = plan(stream, [shape], numbers)
    assert (len(spans), spans.row_tokens) == (numbers.size, stream.context_length + 1)
    assert spans.are_windows
    assert spans.first_span.tolist() == list(range(numbers.size + 1))
    assert spans.source.tolist() == [0] * numbers.size
    assert spans.token_count.tolist() == [stream.context_length + 1] * numbers.size
    return list(zip(spans.shard.tolist(), spans.token_offset.tolist(), strict=True))


@given(
    token_counts=st.lists(st.integers(1, 60), min_size=1, max_size=8).filter(lambda n: max(n) > 1),
    order=st.sampled_from(ANY_LENGTH),
    seed=st.integers(0, 2**64 - 1),
    first_sample=st.integers(0, 2**62),
    data=st.data(),
)
def test_windows_are_those_of_the_second_implementation(
    token_counts: list[int], order: str, seed: int, first_sample: int, data: st.DataObject
) -> None:
    """Array arithmetic against loops over Python integers."""
    context_length = data.draw(st.integers(1, max(token_counts) - 1))
    samples = range(first_sample, first_sample + 20)

    found = places(stream_of(order, seed, context_length), shape_of(*token_counts), samples)

    assert found == [
        reference.window(order, seed, token_counts, context_length, sample) for sample in samples
    ]


@pytest.mark.parametrize("order", ["shuffled-1", "sequential-1"])
def test_an_epoch_has_every_window_of_every_file_once_and_none_across_two(order: str) -> None:
    """Shards of unequal length, one of them shorter than T + 1."""
    shape = shape_of(21, 4, 9, 41)
    epoch = range(row_count(orders.find(order), shape, 5))

    found = places(stream_of(order, 3, 5), shape, epoch)

    assert sorted(found) == [
        *((0, 5 * i) for i in range(4)),
        (2, 0),
        *((3, 5 * i) for i in range(8)),
    ]


def test_random_reaches_every_start_of_every_file() -> None:
    """The first and the last possible window of each included."""
    found = places(stream_of("random-1", 0, 4), shape_of(9, 5, 3), range(2000))

    assert set(found) == {(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)}


def test_a_corpus_of_2_40_tokens_is_planned_without_loss() -> None:
    """numpy turns uint64 with int64 into float64, which is wrong above 2^53."""
    stream, shape = stream_of("random-1", 0, 2**20), shape_of(2**62, 2**61)

    spans = plan(stream, [shape], np.arange(1000, dtype=np.int64))

    assert spans.token_offset.dtype == np.int64
    assert set(spans.shard.tolist()) == {0, 1}
    assert len(set((spans.token_offset % 1024).tolist())) > 500


@pytest.mark.parametrize("context_length", [0, -1, 10, 11, 2**64])
def test_a_context_length_that_does_not_fit_is_named_with_its_limit(context_length: int) -> None:
    """T + 1 tokens have to fit into the longest file."""
    with pytest.raises(InvalidRequest, match=r"context_length: .* \[1, 10\)"):
        shape_of(10, 4).require_window(context_length)


@pytest.mark.parametrize("context_length", [10, 11, 2**63 - 1])
@pytest.mark.parametrize("order", ANY_LENGTH)
def test_no_sample_is_planned_where_no_file_holds_a_window(order: str, context_length: int) -> None:
    """A place out of none would be a division by zero, or a token of another file."""
    with pytest.raises(InvalidRequest, match=r"context_length: .* \[1, 10\)"):
        places(stream_of(order, 0, context_length), shape_of(10, 4), [0])


def test_a_file_that_is_just_long_enough_has_one_window() -> None:
    """T + 1 tokens are one row of each order; one token less is none."""
    shape = shape_of(9, 10)

    for order in ANY_LENGTH:
        assert set(places(stream_of(order, 1, 9), shape, range(20))) == {(1, 0)}
        assert row_count(orders.find(order), shape, 9) == 1
        assert row_count(orders.find(order), shape, 10) == 0


@given(
    token_counts=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    context_length=st.integers(1, 70),
    order=st.sampled_from(ANY_LENGTH),
)
def test_an_order_has_as_many_rows_as_the_second_implementation_counts(
    token_counts: list[int], context_length: int, order: str
) -> None:
    """Describe tells it before anything is asked for, none at all included."""
    found = row_count(orders.find(order), shape_of(*token_counts), context_length)

    assert found == sum(reference.place_counts(order, token_counts, context_length))


def test_a_corpus_asked_for_at_many_context_lengths_answers_each_for_itself() -> None:
    """Where windows lie is kept from call to call, for some of them."""
    shape = shape_of(300, 5, 200)

    for context_length in [*range(1, 150), *range(1, 150)]:
        for order in ("shuffled-1", "random-1"):
            expected = sum(reference.place_counts(order, [300, 5, 200], context_length))
            assert row_count(orders.find(order), shape, context_length) == expected


def test_a_stream_keeps_its_places_whatever_else_is_asked_for() -> None:
    """Of 60,000 files they are a millisecond and a megabyte; anybody may describe with any T."""
    shape = shape_of(100, 200, 300)
    own = shape.places(9, has_epochs=True)

    for context_length in range(10, 1000):
        shape.places(context_length, has_epochs=False)
        assert shape.places(9, has_epochs=True) is own

    assert shape._kept_places.cache_info().currsize <= 8
    kept = shape.places(250, has_epochs=True)
    for context_length in range(300, 400):
        assert shape.places(context_length, has_epochs=True).place_count == 0
    assert shape.places(250, has_epochs=True) is kept


@pytest.mark.parametrize("name", ["random", "random-2", "RANDOM-1", "../x"])
def test_an_order_without_its_version_is_none(name: str) -> None:
    """The server never resolves "latest": a rolling upgrade must not serve two streams."""
    with pytest.raises(NotFound, match="order"):
        orders.find(name)


def test_no_order_at_all_is_random_1_for_ever() -> None:
    """The default on the wire never moves."""
    assert orders.find("").NAME == "random-1"


class OneDocument:
    """The rows of a file with one document of three tokens; DocumentRows."""

    row_count = 1
    pieces_hash = bytes(32)

    def pieces(self, rows: npt.NDArray[np.int64]) -> RowPieces:
        zeros = np.zeros_like(rows)
        return RowPieces(np.arange(rows.size + 1), zeros, zeros, zeros + 3)


class ManyPieces(OneDocument):
    """The same with a thousand pieces a row, for a limit."""

    row_count, piece_count = 5, 5000


def test_rows_are_planned_at_once_by_the_pieces_that_their_weights_bring() -> None:
    """A rare source of short documents must not cut the plan of all others into small steps."""
    shape = shape_of(9000)
    shape.document_rows = lambda key: ManyPieces()
    found = {}
    for weights in ((1, 0), (999, 1), (1, 1), (0, 1)):
        stream = mixed(weights, ("shuffled-1", "packed-1"))
        found[weights] = rows_at_once(stream, [shape] * len(stream.sources))

    assert found[1, 0] == found[999, 1] == PLAN_ROWS
    assert found[1, 1] == pytest.approx(2 * found[0, 1], abs=1)
    assert found[0, 1] == 65


@pytest.mark.parametrize("others", ["packed-1", "shuffled-1"])
def test_no_sample_of_a_mixture_over_documents_has_no_span(others: str) -> None:
    """A stream is planned before its first row is requested."""
    shape = shape_of(9)
    shape.document_rows = lambda key: OneDocument()
    stream = mixed((1, 1), (others, "packed-1"))

    spans = plan(stream, [shape, shape], np.array([], dtype=np.int64))

    assert len(spans) == 0
    assert spans.first_span.tolist() == [0]
    assert len(plan(stream, [shape, shape], np.arange(4))) == 4
