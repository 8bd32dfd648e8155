"""Files by number: a number is used again, and what was closed changes nothing of its successor."""

from __future__ import annotations

import os
import signal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfeed.server.storage.local.file_table import Columns, FileRange, FileTable


def files(count: int, value: int) -> Columns:
    numbers = np.full(count, value, dtype=np.int64)
    return Columns(numbers, numbers, numbers.astype(np.uint8))


def test_a_closed_dataset_changes_no_file_of_another_one() -> None:
    """A thread may look for its last byte when it is closed, and its numbers are given away."""
    table = FileTable()
    closed = table.add(files(3, 1))
    table.remove(closed)
    successor = table.add(files(2, 2))
    assert successor.first == closed.first

    table.set_sentinel(closed, 0, 7, 7)
    table.remove(closed)
    assert table.columns.sentinel_values[:2].tolist() == [2, 2]

    table.set_sentinel(successor, 1, 9, 9)
    assert table.columns.sentinel_values[:2].tolist() == [2, 9]
    assert table.add(files(1, 3)).first == 2, "a number was given twice"


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=40))
def test_every_open_file_has_a_number_of_its_own(steps: list[tuple[bool, int]]) -> None:
    """In any order of opening and closing; and the table is no longer than what was open at once
    needs, but for numbers between those that are open.
    """
    table, opened = FileTable(), list[tuple[FileRange, int]]()
    for value, (opens, size) in enumerate(steps, 1):
        if opens or not opened:
            opened.append((table.add(files(size, value)), value))
        else:
            table.remove(opened.pop(size % len(opened))[0])
        for numbers, known in opened:
            own = table.columns.addresses[numbers.first : numbers.first + numbers.count]
            assert own.tolist() == [known] * numbers.count
    for numbers, _ in opened:
        table.remove(numbers)
    size = table.columns.addresses.size
    if size:
        assert table.add(files(size, 1)).first == 0, "all of it is free, as one range"


def test_datasets_that_are_opened_again_and_again_take_no_more_room() -> None:
    """A trainer may open its validation files for weeks."""
    table = FileTable()
    for size in (60, 100, 80) * 100:
        table.remove(table.add(files(size, 1)))

    assert table.columns.addresses.size == 100


def test_a_fork_can_open_files_while_another_thread_of_its_parent_did() -> None:
    """Its copy of the lock would never be released."""
    table = FileTable()
    os.register_at_fork(after_in_child=table.renew_lock)
    with table._lock:
        process = os.fork()
        if not process:
            signal.alarm(10)
            os._exit(table.add(files(1, 1)).first)
    _, status = os.waitpid(process, 0)

    assert os.waitstatus_to_exitcode(status) == 0
