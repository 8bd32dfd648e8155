"""The order in which documents are written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tokenfeed.server.ingest.output import shuffle
from tokenfeed.server.ingest.output.shuffle import DocumentBatch, shuffled, skip_documents
from tokenfeed.server.ingest.tokenize.encoding import EncodedUnit
from tokenfeed.server.ingest.units import SourceOffset, Unit

PER_UNIT = 7


def part(first: int, count: int, *, begins: bool = True, ends: bool = True) -> EncodedUnit:
    """Documents of 1 to 3 tokens, all of them the document's number."""
    lengths = np.array([number % 3 + 1 for number in range(first, first + count)])
    tokens = np.repeat(np.arange(first, first + count), lengths).astype("<u2")
    return EncodedUnit(tokens, lengths, np.zeros(count, bool), tokens % 2 == 0, (), begins, ends)


def parts(units: int, first: int = 0) -> Iterator[tuple[Unit, EncodedUnit]]:
    for number in range(first, units):
        place, end = SourceOffset(0, number), SourceOffset(0, number + 1)
        yield Unit(place, end, None, 0), part(PER_UNIT * number, PER_UNIT)


def written(batches: Iterator[DocumentBatch]) -> list[int]:
    """Numbers of the documents, in order; each is whole, and so is its mask."""
    order = []
    for batch in batches:
        firsts = np.cumsum(batch.part.lengths) - batch.part.lengths
        numbers = batch.part.tokens[firsts]
        assert batch.part.tokens.tolist() == np.repeat(numbers, numbers % 3 + 1).tolist()
        assert batch.part.mask is not None
        assert batch.part.mask.tolist() == (batch.part.tokens % 2 == 0).tolist()
        order += numbers.tolist()
    return order


def test_each_group_is_shuffled_by_itself() -> None:
    """Nothing is lost, nothing repeated, nothing moves to another group."""
    order = written(shuffled(skip_documents(parts(20), 0), 16, seed=5, documents=0))

    assert sorted(order) == list(range(140))
    for first in range(0, 140, 16):
        group = order[first : first + 16]
        assert sorted(group) == list(range(first, min(140, first + 16)))
    assert order != sorted(order)
    assert order == written(shuffled(skip_documents(parts(20), 0), 16, seed=5, documents=0))
    assert order != written(shuffled(skip_documents(parts(20), 0), 16, seed=6, documents=0))


def test_a_run_can_resume_after_each_group() -> None:
    """After a kill only a place and the number of documents are known."""
    batches = list(shuffled(skip_documents(parts(20), 0), 16, seed=5, documents=0))
    order = written(iter(batches))

    for index, batch in enumerate(batches[:-1]):
        done = 16 * (index + 1)
        left = skip_documents(parts(20, batch.then.offset), batch.then.documents)
        rest = written(shuffled(left, 16, seed=5, documents=done))
        assert order[:done] + rest == order


def test_more_documents_can_be_skipped_than_a_unit_has() -> None:
    left = [(found.lengths.size, dropped) for _, found, dropped in skip_documents(parts(3), 9)]

    assert left == [(0, 7), (5, 2), (7, 0)]


def test_a_document_in_several_parts_stays_where_it_is() -> None:
    """It may be larger than memory."""

    def mixed() -> Iterator[tuple[Unit, EncodedUnit]]:
        yield from parts(1)
        for number, (begins, ends) in enumerate([(True, False), (False, False), (False, True)], 1):
            unit = Unit(SourceOffset(0, number), SourceOffset(0, number + 1), None, 0)
            yield unit, part(100 + number, 1, begins=begins, ends=ends)

    batches = list(shuffled(skip_documents(mixed(), 0), 1000, seed=0, documents=0))

    assert [batch.part.lengths.size for batch in batches] == [7, 1, 1, 1]
    assert [batch.then.offset for batch in batches] == [1, 2, 3, 4]
    assert [(batch.part.begins, batch.part.ends) for batch in batches[1:]] == [
        (True, False), (False, False), (False, True),
    ]  # fmt: skip


def test_long_documents_end_a_group_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a group of books would not fit into memory."""
    monkeypatch.setattr(shuffle, "BUFFER_TOKENS_MAX", 20)

    batches = list(shuffled(skip_documents(parts(20), 0), 1000, seed=5, documents=0))

    assert sorted(written(iter(batches))) == list(range(140))
    assert max(batch.part.tokens.size for batch in batches) <= 20 + 3
    done = 0
    for batch in batches[:-1]:
        done += batch.part.lengths.size
        left = skip_documents(parts(20, batch.then.offset), batch.then.documents)
        rest = written(shuffled(left, 1000, seed=5, documents=done))
        assert sorted(rest) == list(range(done, 140))
