"""Document starts in every form, against loops over rows and documents."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.rows_with_documents import rows_with_documents
from tests.support.targets import counts_plane
from tokenfeed.client.device.documents import BatchDocuments, least_size
from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.wire.row_block import Plane, RowBlock


@dataclass(frozen=True)
class Batch:
    """Rows of T + 1 tokens: where documents begin, and how many tokens are no padding."""

    context_length: int
    starts: list[list[int]]
    token_counts: list[int] | None = None

    @property
    def documents(self) -> BatchDocuments:
        """The value under test."""
        return BatchDocuments(
            len(self.starts),
            self.context_length,
            np.array([len(row) for row in self.starts]),
            np.array([start for row in self.starts for start in row], np.int64),
            None if self.token_counts is None else np.array(self.token_counts),
        )

    def whole_rows(self) -> list[list[int]]:
        """For each token of each row the number of its document, from 1; 0 is padding."""
        rows = []
        for index, starts in enumerate(self.starts):
            count = self.context_length + 1
            if self.token_counts is not None:
                count = self.token_counts[index]
            row, number = [], 1
            for token in range(self.context_length + 1):
                number += token in starts
                row.append(number if token < count else 0)
            rows.append(row)
        return rows

    def documents_of_rows(self) -> list[list[int]]:
        """For each row the lengths of the documents in its x, padding being one."""
        rows = []
        for numbers in self.whole_rows():
            lengths: list[int] = []
            for position in range(self.context_length):
                if position and numbers[position] == numbers[position - 1]:
                    lengths[-1] += 1
                else:
                    lengths.append(1)
            rows.append(lengths)
        return rows

    def all_lengths(self) -> list[int]:
        return [length for row in self.documents_of_rows() for length in row]


@st.composite
def batches(draw: st.DrawFn, padding: bool | None = None) -> Batch:
    """Batches up to 5 x 12, with starts anywhere, and padding in some of them."""
    context_length = draw(st.integers(1, 12))
    row = st.sets(st.integers(1, context_length)).map(sorted)
    starts = draw(st.lists(row, min_size=1, max_size=5))
    if not (draw(st.booleans()) if padding is None else padding):
        return Batch(context_length, starts)
    counts = st.integers(0, context_length + 1)
    size = len(starts)
    return Batch(context_length, starts, draw(st.lists(counts, min_size=size, max_size=size)))


EDGES = [
    Batch(1, [[]]),
    Batch(1, [[1]]),
    Batch(8, [[], []]),
    Batch(8, [[1], [7], [8]]),
    Batch(8, [[1, 2, 3, 4, 5, 6, 7, 8]]),
    Batch(8, [[], [3, 8], []]),
    Batch(8, [[2, 5], [2, 5], [2, 5], [5]], [9, 8, 4, 0]),
    Batch(8, [[], [1]], [1, 1]),
]


def edges(test: object) -> object:
    """Try these batches first."""
    for batch in EDGES:
        test = example(batch=batch)(test)
    return test


def edges_with(**arguments: object) -> object:
    """As above, for a test of more arguments."""

    def with_examples(test: object) -> object:
        for batch in EDGES:
            test = example(batch=batch, **arguments)(test)
        return test

    return with_examples


@edges
@given(batch=batches())
def test_positions_begin_again_with_each_row_and_document(batch: Batch) -> None:
    """A position that goes on would tell the model where it is in its row."""
    positions = batch.documents.positions()

    expected = [
        [position for length in row for position in range(length)]
        for row in batch.documents_of_rows()
    ]
    assert positions.tolist() == expected
    assert positions.dtype == np.int64
    assert batch.documents.positions(np.int32).tolist() == expected
    assert batch.documents.positions(np.int32).dtype == np.int32


@edges
@given(batch=batches())
def test_segments_count_documents_from_one_in_each_row_and_padding_is_zero(batch: Batch) -> None:
    """MaxText's attention and loss both read them."""
    segment_ids = batch.documents.segment_ids()

    assert segment_ids.tolist() == [row[:-1] for row in batch.whole_rows()]
    assert segment_ids.dtype == np.int32


@edges
@given(batch=batches())
def test_cu_seqlens_lists_each_document_of_the_batch_once(batch: Batch) -> None:
    """Attention over the flattened batch covers each of its tokens."""
    documents = batch.documents
    lengths = batch.all_lengths()
    cu_seqlens = documents.cu_seqlens()

    assert cu_seqlens.tolist() == [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    assert cu_seqlens.dtype == np.int32
    assert documents.max_seqlen == max(lengths)
    assert type(documents.max_seqlen) is int


@edges
@given(batch=batches())
def test_cu_seqlens_of_rows_begin_with_0_and_are_filled_up_with_t(batch: Batch) -> None:
    """Megatron strips what repeats T."""
    found = batch.documents.cu_seqlens_rows()

    rows = batch.documents_of_rows()
    size = max(map(len, rows)) + 1
    ends = [[sum(row[:index]) for index in range(len(row) + 1)] for row in rows]
    assert found.tolist() == [row + [batch.context_length] * (size - len(row)) for row in ends]
    assert found.dtype == np.int32


@edges
@given(batch=batches())
def test_lengths_of_documents_are_filled_up_with_0_and_fill_their_row(batch: Batch) -> None:
    """OLMo-core drops zeros, and takes the maxima as Python ints."""
    lengths, longest = batch.documents.doc_lens()

    rows = batch.documents_of_rows()
    size = max(map(len, rows))
    assert lengths.tolist() == [row + [0] * (size - len(row)) for row in rows]
    assert lengths.dtype == np.int32
    assert longest == [max(row) for row in rows]
    assert {type(one) for one in longest} == {int}


@edges_with(max_seqlen=3, spare=2)
@given(batch=batches(), max_seqlen=st.integers(1, 14), spare=st.integers(0, 5))
def test_fixed_cu_seqlens_cut_long_documents_and_are_filled_up_with_the_end(
    batch: Batch, max_seqlen: int, spare: int
) -> None:
    """A compiled step sees one shape, and no sequence is longer than it was told."""
    pieces = [
        length
        for whole in batch.all_lengths()
        for length in [max_seqlen] * (whole // max_seqlen) + [whole % max_seqlen]
        if length
    ]
    ends = [sum(pieces[:index]) for index in range(len(pieces) + 1)]

    found = batch.documents.cu_seqlens_fixed(len(ends) + spare, max_seqlen)

    assert found.tolist() == ends + ends[-1:] * spare
    assert found.dtype == np.int32
    with pytest.raises(InvalidRequest, match=r"size: .* too small"):
        batch.documents.cu_seqlens_fixed(len(ends) - 1, max_seqlen)


@edges
@given(batch=batches())
def test_fixed_cu_seqlens_have_the_same_size_for_all_batches_of_a_shape(batch: Batch) -> None:
    """By default no document is cut, and no batch is too much."""
    found = batch.documents.cu_seqlens_fixed()

    assert found.size == len(batch.starts) * batch.context_length + 1
    assert np.unique(found).tolist() == batch.documents.cu_seqlens().tolist()


@given(
    batch_size=st.integers(1, 3),
    context_length=st.integers(1, 8),
    row_documents_max=st.none() | st.integers(1, 9),
    max_seqlen=st.none() | st.integers(1, 9),
)
@example(batch_size=1, context_length=1, row_documents_max=None, max_seqlen=None)
@example(batch_size=3, context_length=7, row_documents_max=5, max_seqlen=3)
@example(batch_size=3, context_length=7, row_documents_max=None, max_seqlen=7)
@example(batch_size=3, context_length=7, row_documents_max=9, max_seqlen=8)
@example(batch_size=3, context_length=2, row_documents_max=1, max_seqlen=1)
def test_the_least_size_is_what_the_worst_batch_takes(
    batch_size: int, context_length: int, row_documents_max: int | None, max_seqlen: int | None
) -> None:
    """One less would fail at step 41,000; more would be slower."""
    limits = {"max_seqlen": max_seqlen, "row_documents_max": row_documents_max}
    limit = max_seqlen or context_length
    worst, fullest = 0, list[int]()
    # All ways to cut a row into documents: a bit for each place where one may begin.
    for bits in range(1 << context_length - 1):
        starts = [place + 1 for place in range(context_length - 1) if bits >> place & 1]
        if row_documents_max is None or len(starts) < row_documents_max:
            (row,) = Batch(context_length, [starts]).documents_of_rows()
            worst, fullest = max((worst, fullest), (sum(-(-n // limit) for n in row), starts))
    least = least_size(batch_size, context_length, **limits)

    assert least == batch_size * worst + 1
    batch = Batch(context_length, [fullest] * batch_size)
    documents = replace(batch.documents, row_documents_max=row_documents_max)
    assert documents.cu_seqlens_fixed(max_seqlen=max_seqlen).size == least
    assert documents.cu_seqlens_fixed(least, max_seqlen)[-2] < batch_size * context_length
    with pytest.raises(InvalidRequest, match=f"size: .* at least {least}, "):
        documents.cu_seqlens_fixed(least - 1, max_seqlen)


def test_a_known_limit_of_documents_makes_the_default_size_small() -> None:
    """Attention kernels go through all sequences, also empty ones."""
    some = BatchDocuments(2, 100, np.array([1, 0]), np.array([40]), row_documents_max=4)
    more = BatchDocuments(2, 100, np.array([4, 4]), np.tile([5, 9, 30, 40], 2), row_documents_max=4)

    assert some.cu_seqlens_fixed().tolist() == [0, 40, 100] + [200] * 6
    assert some.cu_seqlens_fixed(max_seqlen=30).size == 2 * (4 + 3) + 1
    with pytest.raises(InvalidRequest, match=r"size: 9 is too small for the 10 sequences .* 201"):
        more.cu_seqlens_fixed()


@pytest.mark.parametrize("limits", [{"max_seqlen": 0}, {"row_documents_max": 0}])
def test_limits_of_a_fixed_size_are_checked(limits: dict[str, int]) -> None:
    """0 would divide by zero, or be the size of a batch without documents."""
    with pytest.raises(InvalidRequest, match=f"^{next(iter(limits))}: 0 is not in"):
        least_size(2, 8, **limits)
    with pytest.raises(InvalidRequest, match=r"^max_seqlen: 0 is not in"):
        BatchDocuments(1, 8, np.array([0]), np.array([])).cu_seqlens_fixed(max_seqlen=0)


def test_a_batch_whose_ends_do_not_fit_int32_has_no_cu_seqlens() -> None:
    """Attention would read from a negative place."""
    documents = BatchDocuments(2, 1 << 30, np.array([0, 0]), np.array([], np.int64))

    with pytest.raises(InvalidRequest, match=r"batch_size \* context_length: 2147483648"):
        documents.cu_seqlens()
    with pytest.raises(InvalidRequest, match=r"batch_size \* context_length: 2147483648"):
        documents.cu_seqlens_fixed(8)


@edges_with(split=1)
@given(batch=batches(padding=False), split=st.integers(0, 4))
def test_starts_of_a_batch_are_those_of_its_frames(batch: Batch, split: int) -> None:
    """A batch may begin in one frame and end in the next."""
    tokens = np.zeros((len(batch.starts), batch.context_length + 1))
    split = min(split, len(batch.starts) - 1)

    documents = BatchDocuments.of_parts(rows_with_documents(tokens, batch.starts, split))

    assert documents is not None
    assert (documents.batch_size, documents.context_length) == (
        len(batch.starts),
        batch.context_length,
    )
    assert documents.row_counts.tolist() == [len(row) for row in batch.starts]
    assert documents.starts.tolist() == [start for row in batch.starts for start in row]
    assert documents.token_counts is None


@st.composite
def rows_of_pieces(draw: st.DrawFn) -> tuple[Batch, list[int | None]]:
    """Rows of pieces, and of windows among them: the batch, and the counts that its rows say."""
    context_length = draw(st.integers(1, 12))
    edges = st.sampled_from(sorted({2, max(2, context_length), context_length + 1}))
    count = st.none() | edges | st.integers(2, context_length + 1)
    said = draw(st.lists(count, min_size=1, max_size=5))
    counts = [context_length + 1 if each is None else each for each in said]
    starts = [draw(st.sets(st.integers(1, count - 1)).map(sorted)) for count in counts]
    return Batch(context_length, starts, counts), said


@given(rows=rows_of_pieces(), split=st.integers(0, 4))
def test_padding_of_a_batch_is_what_the_counts_of_its_frames_leave(
    rows: tuple[Batch, list[int | None]], split: int
) -> None:
    """A row of a window has none, and says nothing; a frame may have rows of windows alone."""
    batch, said = rows
    tokens = np.zeros((len(said), batch.context_length + 1))
    parts = rows_with_documents(tokens, batch.starts, min(split, len(said) - 1), said)

    documents = BatchDocuments.of_parts(parts)

    assert documents is not None
    if said == [None] * len(said):
        assert documents.token_counts is None
    else:
        assert documents.token_counts is not None
        assert documents.token_counts.tolist() == batch.token_counts
        assert documents.token_counts.dtype == np.int64
    lengths = batch.all_lengths()
    assert documents.segment_ids().tolist() == [row[:-1] for row in batch.whole_rows()]
    assert documents.cu_seqlens().tolist() == np.cumsum([0, *lengths]).tolist()
    assert documents.max_seqlen == max(lengths)
    assert documents.doc_lens()[0].tolist() == batch.documents.doc_lens()[0].tolist()
    assert documents.positions().tolist() == batch.documents.positions().tolist()


@given(rows=rows_of_pieces(), spare=st.integers(0, 3))
def test_fixed_cu_seqlens_of_pieces_have_the_size_that_the_fullest_row_takes(
    rows: tuple[Batch, list[int | None]], spare: int
) -> None:
    """The server says how many pieces a row has at most, and padding may be one more."""
    batch, said = rows
    limit = max(map(len, batch.documents_of_rows())) + spare
    parts = rows_with_documents(np.zeros((len(said), batch.context_length + 1)), batch.starts)
    parts = [RowBlock(parts[0].tokens, (*parts[0].planes, counts_plane(said)))]

    documents = BatchDocuments.of_parts(parts, row_documents_max=limit)

    assert documents is not None
    size = len(said) * min(limit, batch.context_length) + 1
    found = documents.cu_seqlens_fixed()
    assert found.size == size == least_size(*documents._shape, row_documents_max=limit)
    assert found.tolist() == (
        documents.cu_seqlens().tolist() + [found[-1]] * (size - documents.cu_seqlens().size)
    )


def test_padding_that_begins_behind_x_is_no_document() -> None:
    """A sequence of no tokens would be one more than the limit of documents in a row."""
    starts = [[3], [3], [3, 7], [3]]
    parts = rows_with_documents(np.zeros((4, 9)), starts, counts=[9, 8, 8, 7])

    documents = BatchDocuments.of_parts(parts, row_documents_max=3)

    assert documents is not None
    assert documents.cu_seqlens().tolist() == [0, 3, 8, 11, 16, 19, 23, 24, 27, 31, 32]
    assert documents.cu_seqlens_rows().tolist() == [
        [0, 3, 8, 8],
        [0, 3, 8, 8],
        [0, 3, 7, 8],
        [0, 3, 7, 8],
    ]
    assert documents.segment_ids()[:, 6:].tolist() == [[2, 2], [2, 2], [2, 3], [2, 0]]
    assert documents.cu_seqlens_fixed().size == 4 * 3 + 1


def test_a_value_does_not_keep_the_memory_of_frames() -> None:
    """A batch that is kept would keep a mebibyte for a few offsets."""
    (part,) = rows_with_documents(np.zeros((2, 9)), [[3], [5, 6]], counts=[7, 9])
    planes = [
        Plane(plane.kind, plane.row_lengths.copy(), plane.content.copy()) for plane in part.planes
    ]
    documents = BatchDocuments.of_parts([RowBlock(part.tokens, tuple(planes))])
    assert documents is not None
    assert documents.token_counts is not None

    for plane in planes:
        plane.content[:] = 0
        plane.row_lengths[:] = 0

    assert documents.starts.tolist() == [3, 5, 6]
    assert documents.row_counts.tolist() == [1, 2]
    assert documents.token_counts.tolist() == [7, 9]


def test_rows_without_the_plane_have_no_documents() -> None:
    """Unknown is not the same as none."""
    mask = Plane(LOSS_MASK, np.array([2, 2], np.uint32), np.zeros(4, np.uint8))

    assert BatchDocuments.of_parts([RowBlock(np.zeros((2, 9), "<u2"))]) is None
    assert BatchDocuments.of_parts([RowBlock(np.zeros((2, 9), "<u2"), (mask,))]) is None


@given(batch=batches())
def test_a_form_is_the_callers_own(batch: Batch) -> None:
    """Writing into one must not change the next."""
    documents, forms = batch.documents, ("positions", "segment_ids", "cu_seqlens")
    before = [getattr(documents, form)() for form in (*forms, "cu_seqlens_rows")]
    expected = [form.tolist() for form in before]

    for form in before:
        form[:] = 1

    assert [getattr(documents, form)().tolist() for form in (*forms, "cu_seqlens_rows")] == expected
