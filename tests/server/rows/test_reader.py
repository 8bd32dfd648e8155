"""Rows are read into the memory of the caller, and those before deleted tokens are never lost."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.memory_store import ErasedStore, MemoryStore
from tokenfeed.errors import Deleted
from tokenfeed.sampling import orders
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.rows import reader as reader_module
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


def reader_of(first_row: int = 0, store: MemoryStore | None = None) -> RowReader:
    store = store or MemoryStore("train", [TOKENS], loss_masks=[TOKENS % 2])
    stream = Stream.of_dataset("train", orders.find("sequential-1"), 0, T)
    position = Position(30, batch_size=4, rank=1, world_size=2)
    request = Request(stream, position, (LOSS_MASK,), num_batches=5, first_row=first_row)
    return RowReader(request, store, lambda: store)


def tokens_of(reader: RowReader, spans: Spans) -> list[list[int]]:
    """The rows of spans, as they are filled."""
    everything = slice(0, len(spans))
    memory = Memory(everything, np.empty((len(spans), T + 1), "<u2"))
    (filled,) = reader.fill(spans, lambda planes: [memory])
    return filled.tokens.tolist()


def test_rows_that_are_at_hand_are_taken_before_others_are_waited_for() -> None:
    """Of a frame whose last row is far away, the trainer has the first ones at once."""
    store = MemoryStore("train", [TOKENS], loss_masks=[TOKENS % 2], delay_seconds=0.05)
    reader, found = reader_of(store=store), []
    taken = [reader.take(5, may_be_fewer=True)]
    assert (len(taken[0]), reader.waits) == (5, True), "none is here: all of them are waited for"
    found += tokens_of(reader, taken[0])
    store.files.delay_seconds = 60.0
    store.files._ready.clear()
    store.files.arrive(store.extents(reader_of().take(8)))

    spans = reader.take(10, may_be_fewer=True)

    assert (len(spans), reader.waits) == (3, False)
    found += tokens_of(reader, spans)
    rest = reader.take(100, may_be_fewer=False)
    assert (len(rest), reader.waits) == (12, True)
    store.files.delay_seconds = 0.0
    plain = reader_of()
    assert [*found, *tokens_of(reader, rest)] == tokens_of(plain, plain.take(20))


def test_storage_hears_when_rows_are_needed() -> None:
    """A stream that has just begun needs them now; one that takes its time, later."""
    store = MemoryStore("train", [TOKENS], loss_masks=[TOKENS % 2], delay_seconds=0.001)
    reader = reader_of(store=store)
    reader._rows_ahead = 4
    for _ in range(4):
        tokens_of(reader, reader.take(2))
        time.sleep(0.05)

    first, *others = store.files.due_seconds
    assert first == 0.0
    # Four rows ahead, at two rows in 0.05 s or somewhat more.
    assert len(others) == 3
    assert all(0.1 <= due <= 5.0 for due in others)


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


def test_rows_that_were_erased_after_they_were_taken_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream may wait for minutes before its rows are filled, for a slot or for the disk."""
    monkeypatch.setattr(reader_module, "_CURRENT_SECONDS", 0.0)
    stores = [MemoryStore("train", [TOKENS]), ErasedStore("train", [TOKENS])]
    request = Request(
        Stream.of_dataset("train", orders.find("sequential-1"), 0, T), Position(0, 4), num_batches=5
    )
    reader = RowReader(request, stores[0], lambda: stores[0])
    filled = tokens_of(reader, reader.take(4))
    spans = reader.take(4)
    del stores[0]

    with pytest.raises(Deleted):
        tokens_of(reader, spans)
    assert filled[0] == TOKENS[: T + 1].tolist()
