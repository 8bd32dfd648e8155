"""Rows are read into the memory of the caller, and those before deleted tokens are never lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.memory_store import MemoryStore
from tokenfeed.errors import Deleted
from tokenfeed.sampling import orders
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.rows.reader import RowReader
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import Plane

T = 8
TOKENS = np.arange(1000, dtype="<u2")


class Memory(NamedTuple):
    rows: slice
    tokens: npt.NDArray[np.uint16]


def reader_of(first_row: int = 0) -> RowReader:
    store = MemoryStore("train", [TOKENS], loss_masks=[TOKENS % 2])
    stream = Stream.of_dataset("train", orders.find("sequential-1"), 0, T)
    position = Position(30, batch_size=4, rank=1, world_size=2)
    request = Request(stream, position, (LOSS_MASK,), num_batches=5, first_row=first_row)
    return RowReader(request, store, lambda: store)


@pytest.mark.parametrize("part_rows", [1, 3, 8])
def test_rows_go_where_the_caller_wants_them(part_rows: int) -> None:
    """A frame is a part of a message, and a block may be several frames."""
    reader, found, marks = reader_of(), list[list[int]](), 0

    def targets(planes: tuple[Plane, ...]) -> list[Memory]:
        nonlocal marks
        marks += sum(int(plane.content.size) for plane in planes)
        begins = range(0, len(spans), part_rows)
        parts = [slice(begin, min(begin + part_rows, len(spans))) for begin in begins]
        return [Memory(part, np.empty((part.stop - part.start, T + 1), "<u2")) for part in parts]

    while reader.row < reader.end_row:
        spans = reader.take(7)
        for memory in reader.fill(spans, targets):
            found += memory.tokens.tolist()

    samples = [30 + 8 * batch + 4 + row for batch in range(5) for row in range(4)]
    assert found == [TOKENS[T * sample : T * sample + T + 1].tolist() for sample in samples]
    assert marks > 0


def test_rows_before_the_first_deleted_one_are_read_though_more_is_deleted_meanwhile() -> None:
    """An operator may erase a longer list between the two reads."""
    reader = reader_of()
    spans = reader.take(4)
    spans = reader.take(4)
    deleted, reads = [3, 1], []

    def read(part: Spans) -> int:
        reads.append(len(part))
        if deleted:
            raise Deleted.of("train", "a.bin", 0, 5, part.whole.first_row + deleted.pop(0))
        return len(part)

    found, error = reader.before_deleted(spans, reader.row - len(spans), read)

    assert (found, reads) == (1, [4, 3, 1])
    assert error is not None
    # The second row of the second batch of rank 1.
    assert "that sample 43 needs" in error.problem


def test_nothing_is_read_if_the_first_row_is_deleted() -> None:
    """The error says which sample it is."""
    reader = reader_of()
    spans = reader.take(4)

    def read(part: Spans) -> int:
        raise Deleted.of("train", "a.bin", 0, 5, part.whole.first_row)

    found, error = reader.before_deleted(spans, 0, read)

    assert found is None
    assert error is not None
    assert "that sample 34 needs" in error.problem
