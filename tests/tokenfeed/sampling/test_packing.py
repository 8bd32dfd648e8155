"""packed-1: nothing is cropped, and every token but the first of a document is a target once."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.sampling.packing import histogram, pack, places

CONTEXT_LENGTHS = st.integers(1, 24)
LENGTHS = st.lists(st.integers(0, 80), max_size=60)


def pieces_of(lengths: list[int], context_length: int) -> list[tuple[int, int]]:
    """First token and length of each piece, longest first, by the definition."""
    found: list[tuple[int, int]] = []
    first = 0
    for length in lengths:
        begins = range(0, length - 1, context_length)
        found += [(first + k, min(k + context_length + 1, length) - k) for k in begins]
        first += length
    return sorted(found, key=lambda piece: -piece[1])


def rows_by_the_rule(lengths: list[int], context_length: int) -> list[list[tuple[int, int]]]:
    """Piece by piece into the row with the least room, of these the one that has it for longest."""
    rows: list[list[tuple[int, int]]] = []
    rooms: list[tuple[int, int]] = []  # room, and when the row got it
    for moment, piece in enumerate(pieces_of(lengths, context_length)):
        fitting = [(*rooms[row], row) for row in range(len(rows)) if rooms[row][0] >= piece[1]]
        if fitting:
            room, _, row = min(fitting)
        else:
            room, row = context_length + 1, len(rows)
            rows.append([])
            rooms.append((room, moment))
        rows[row].append(piece)
        rooms[row] = room - piece[1], moment
    return rows


def packed(lengths: list[int], context_length: int) -> list[list[tuple[int, int]]]:
    """First token and length of each piece of each row."""
    numbers = np.array(lengths, np.int64)
    packing = pack(histogram(numbers, context_length))
    firsts, ranks, sizes = packing.pieces(np.arange(packing.row_count))
    begins = places(np.cumsum(numbers) - numbers, numbers, context_length)[ranks]
    pieces = list(zip(begins.tolist(), sizes.tolist(), strict=True))
    return [
        pieces[first:end]
        for first, end in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True)
    ]


@given(lengths=LENGTHS, context_length=CONTEXT_LENGTHS)
def test_rows_are_those_of_the_rule(lengths: list[int], context_length: int) -> None:
    """Which places one piece after the other."""
    assert packed(lengths, context_length) == rows_by_the_rule(lengths, context_length)


@given(lengths=LENGTHS, context_length=CONTEXT_LENGTHS)
def test_every_token_but_the_first_of_a_document_is_a_target_once(
    lengths: list[int], context_length: int
) -> None:
    """And no row is longer than T + 1."""
    rows = packed(lengths, context_length)

    targets = sorted(
        token for row in rows for first, size in row for token in range(first + 1, first + size)
    )
    firsts = np.cumsum([0, *lengths])[:-1].tolist()
    assert targets == sorted(set(range(sum(lengths))) - set(firsts))
    assert all(sum(size for _, size in row) <= context_length + 1 for row in rows)


@given(lengths=LENGTHS, context_length=CONTEXT_LENGTHS)
def test_no_row_has_two_pieces_of_one_document(lengths: list[int], context_length: int) -> None:
    """All but the last piece of a document fill a row."""
    document_of = np.repeat(np.arange(len(lengths)), lengths)
    for row in packed(lengths, context_length):
        documents = [int(document_of[first]) for first, _ in row]
        assert len(set(documents)) == len(documents)


def test_pieces_of_any_row_are_found_alone() -> None:
    """A server looks up the rows of a batch, in any order."""
    lengths = np.random.default_rng(1).integers(1, 300, 5000)
    packing = pack(histogram(lengths, 128))
    firsts, ranks, sizes = packing.pieces(np.arange(packing.row_count))

    rows = np.random.default_rng(2).integers(0, packing.row_count, 500)
    own_firsts, own_ranks, own_sizes = packing.pieces(rows)
    for place, row in enumerate(rows.tolist()):
        own = slice(own_firsts[place], own_firsts[place + 1])
        expected = slice(firsts[row], firsts[row + 1])
        assert own_ranks[own].tolist() == ranks[expected].tolist()
        assert own_sizes[own].tolist() == sizes[expected].tolist()


@given(lengths=LENGTHS, context_length=CONTEXT_LENGTHS, pieces_max=st.integers(1, 30))
def test_rows_are_listed_in_parts_of_few_pieces(
    lengths: list[int], context_length: int, pieces_max: int
) -> None:
    """A row of a long context may have thousands: a number of rows would bound no memory."""
    packing = pack(histogram(np.array(lengths, np.int64), context_length))
    parts = list(packing.parts(pieces_max))

    rows = [row for part in parts for row in part.tolist()]
    assert rows == list(range(packing.row_count))
    counts = np.diff(packing.pieces(np.arange(packing.row_count))[0])
    for part, after in itertools.zip_longest(parts, parts[1:]):
        own = int(counts[part].sum())
        assert own <= pieces_max or part.size == 1
        assert after is None or own + counts[after[0]] > pieces_max


def test_a_corpus_without_a_piece_has_no_row() -> None:
    assert packed([1, 0, 1], 4) == []
    assert pack(histogram(np.array([], np.int64), 4)).row_count == 0
