"""Rows of local files by a thread or without one: retries, ends and waits, with scripted blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from tests.client.conftest import wanted
from tests.support.waiting import eventually
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source import background_rows, file_rows
from tokenfeed.client.source.datasets import Datasets
from tokenfeed.client.source.file_rows import FileRows
from tokenfeed.errors import CorpusChanged, InvalidRequest, Unreadable
from tokenfeed.wire.row_block import RowBlock


class Files(Datasets):
    """What rows come from: open until it is closed."""

    def __init__(self) -> None:
        super().__init__(wanted(1, 1))
        self.abandoned: list[object] = []
        self._supervise(lambda: None)

    def abandon(self, task: object) -> None:
        self.abandoned.append(task)

    await_described = _describe_again = open_rows = abandon  # of no use here


class Scripted:
    """Blocks of given sizes, whose rows are numbered; an exception among them is raised once, and a
    function is called.
    """

    def __init__(
        self,
        script: Sequence[int | Exception | Callable[[], object]],
        open_files: Callable[[Callable[[], bool]], object] = lambda _: None,
    ) -> None:
        self.steps = list(script)
        self.open_files = open_files
        self.reads = 0


class ScriptedRows(FileRows):
    """Rows of scripted blocks."""

    def __init__(
        self,
        files: Files,
        script: Scripted,
        kind: str,
        *,
        seconds: float = 60.0,
        rows_ahead: int = 10,
    ) -> None:
        calls = SimpleNamespace(request=SimpleNamespace(first_row=0))
        super().__init__(
            files,
            lambda is_over: (script.open_files(is_over), calls),
            Counters(),
            reconnect_seconds=seconds,
            rows_ahead=rows_ahead if kind == "ahead" else 0,
        )
        self._script = script

    def _read(self, *_: object) -> RowBlock | None:
        self._script.reads += 1
        while self._script.steps:
            step = self._script.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            if isinstance(step, int):
                rows = np.arange(self._row, self._row + step, dtype="<u2")
                self._row += step
                return RowBlock(rows.reshape(-1, 1))
            step()
        return None


@pytest.fixture
def files() -> Iterator[Files]:
    made = Files()
    yield made
    made.close()


KINDS = ["ahead", "on demand"]


def rows_of(files: Files, script: Scripted, kind: str, **options: float) -> FileRows:
    made = ScriptedRows(files, script, kind, **options)
    made.start()
    return made


def take(rows: FileRows, count: int) -> list[int] | None:
    parts = rows.peek(count)
    if parts is None:
        return None
    found = [row for part in parts for row in part.tokens[:, 0].tolist()]
    rows.consume(count)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rows, "_RETRY_SECONDS", 0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 7], [3, 1, 8]])
def test_rows_come_in_order_whatever_the_blocks(files: Files, kind: str, sizes: list[int]) -> None:
    """Batches and blocks have nothing to do with each other."""
    rows = rows_of(files, Scripted(sizes), kind)

    assert [take(rows, 4) for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], None]


def test_rows_wake_who_waits_for_them(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each wait would last until its next look, a tenth of a second instead of a moment."""
    monkeypatch.setattr(background_rows, "RECHECK_SECONDS", 600.0)
    taken, seen = threading.Event(), list[bool]()
    steps = [
        lambda: eventually(lambda: rows._rows_awaited),
        1,
        lambda: seen.append(eventually(taken.is_set)),
    ]
    rows = rows_of(files, Scripted(steps), "ahead")

    assert take(rows, 1) == [0]
    taken.set()
    assert take(rows, 1) is None
    assert seen == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_opened_before_the_start(files: Files, kind: str) -> None:
    """A feed that is only made reads nothing."""
    opened = []

    blocks = Scripted([4], opened.append)
    rows = ScriptedRows(files, blocks, kind)

    assert not rows.ready(1)
    assert opened == []
    rows.start()
    assert take(rows, 4) == [0, 1, 2, 3]
    assert len(opened) == 1


def test_a_thread_gathers_ahead_as_far_as_there_is_room(files: Files) -> None:
    """A trainer that pauses must not have its whole corpus in memory."""
    blocks = Scripted([4] * 100)
    rows = rows_of(files, blocks, "ahead", rows_ahead=10)

    assert eventually(lambda: rows.ready(12))
    assert take(rows, 4) == [0, 1, 2, 3]
    assert eventually(lambda: blocks.reads == 4)
    assert not rows.ready(13)


def test_without_a_thread_only_what_is_needed_is_gathered(files: Files) -> None:
    before = threading.active_count()
    blocks = Scripted([4] * 100)
    rows = rows_of(files, blocks, "on demand")

    assert take(rows, 6) == [0, 1, 2, 3, 4, 5]
    assert blocks.reads == 2
    assert take(rows, 2) == [6, 7]
    assert blocks.reads == 2
    assert threading.active_count() <= before


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_that_fails_is_tried_again_and_loses_no_row(
    files: Files, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system fails over in the night."""
    sick = Unreadable("dataset", "cannot be read")
    rows = rows_of(files, Scripted([3, sick, sick, 3, sick, 2]), kind)

    assert [take(rows, 4), take(rows, 4), take(rows, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], None]
    assert caplog.text.count("files cannot be read, retrying") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_cannot_be_read_for_long_are_an_error(files: Files, kind: str) -> None:
    """After timeouts.reconnect_seconds; the rows before it still come."""
    sick = Unreadable("dataset", "cannot be read")
    rows = rows_of(files, Scripted([4, *[sick] * 100]), kind, seconds=0.2)

    assert take(rows, 4) == [0, 1, 2, 3]
    with pytest.raises(Unreadable, match="dataset: cannot be read"):
        take(rows, 4)


def test_an_outage_that_nobody_waits_for_is_no_error(files: Files) -> None:
    """A disk may be away for the whole of a long evaluation."""
    sick, over = Unreadable("dataset", "cannot be read"), threading.Event()
    script = Scripted([4, *[sick] * 8, over.set, 4])
    rows = rows_of(files, script, "ahead", seconds=0.2)

    assert take(rows, 4) == [0, 1, 2, 3]
    assert over.wait(10), "the thread reads ahead, for 0.4 s"
    assert take(rows, 4) == [4, 5, 6, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_not_tried_again(files: Files, kind: str) -> None:
    """It stays changed."""
    blocks = Scripted([4, CorpusChanged("dataset", "changed"), 4])
    rows = rows_of(files, blocks, kind)

    assert take(rows, 4) == [0, 1, 2, 3]
    with pytest.raises(CorpusChanged):
        take(rows, 4)
    assert blocks.reads == 2


@pytest.mark.alone
@pytest.mark.parametrize("close", ["rows", "files"])
@pytest.mark.parametrize("kind", KINDS)
def test_closing_ends_a_wait_for_a_retry_at_once(files: Files, kind: str, close: str) -> None:
    """From another thread, as at the end of a job."""
    rows = rows_of(files, Scripted([Unreadable("dataset", "cannot be read")] * 10_000), kind)
    closing = threading.Timer(0.2, rows.close if close == "rows" else files.close)
    closing.start()
    began = time.monotonic()

    assert take(rows, 4) is None
    assert time.monotonic() - began < 2.0
    closing.join()
    assert files.abandoned == []


def test_a_read_that_does_not_end_is_left_behind_in_silence(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends by itself, or never: trying to cancel it would start ten threads a second."""
    monkeypatch.setattr(background_rows, "END_SECONDS", 0.1)
    cancelled = []
    monkeypatch.setattr(FileRows, "cancel", lambda self: cancelled.append(self))
    may_end = threading.Event()
    rows = rows_of(files, Scripted([4, lambda: may_end.wait(30)]), "ahead")
    assert take(rows, 4) == [0, 1, 2, 3]

    rows.close()
    time.sleep(0.3)
    may_end.set()

    assert files.abandoned == [rows]
    assert cancelled == []
    assert eventually(lambda: rows.ended)


@pytest.mark.parametrize(
    "error", [CorpusChanged("dataset", "closed"), InvalidRequest("feed", "is closed")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_closed_file_says_is_the_end_and_no_error(
    files: Files, kind: str, error: Exception
) -> None:
    """The files are closed under a read that is in progress."""
    rows = rows_of(files, Scripted([files._supervisor.begin_to_close, error]), kind)

    assert take(rows, 4) is None


def test_files_that_are_opened_for_long_do_not_hang(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terabyte is hashed, or another process is waited for."""
    monkeypatch.setattr(file_rows, "_HANG_SECONDS", 0.1)
    blocks = Scripted([4], lambda _: time.sleep(0.5))
    rows = rows_of(files, blocks, "ahead", seconds=0.1)

    assert take(rows, 4) == [0, 1, 2, 3]


def test_a_read_that_never_ends_is_an_error(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead NFS server: the thread hangs, the trainer does not."""
    monkeypatch.setattr(file_rows, "_HANG_SECONDS", 0.2)
    may_end = threading.Event()
    rows = rows_of(files, Scripted([4, lambda: may_end.wait(30), 4]), "ahead", seconds=0.1)

    assert take(rows, 4) == [0, 1, 2, 3]
    with pytest.raises(Unreadable, match="target: a file was not read for 0 s: its disk may hang"):
        take(rows, 4)
    may_end.set()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_opened_and_closed_meanwhile_end(files: Files, kind: str) -> None:
    """What opens the files is told that nobody waits for them."""

    def open_files(is_over: Callable[[], bool]) -> None:
        assert eventually(is_over)
        raise InvalidRequest("feed", "has ended these rows")

    rows = rows_of(files, Scripted([], open_files), kind)
    closing = threading.Timer(0.1, rows.close)
    closing.start()

    assert take(rows, 4) is None
    closing.join()


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_of_a_wait_is_counted(files: Files, kind: str) -> None:
    """`stats().wait_seconds` says whether the trainer waits for its data."""
    rows = rows_of(files, Scripted([lambda: time.sleep(0.1), 4]), kind)
    take(rows, 4)

    assert 0.05 < rows._counters.wait_seconds < 5.0
