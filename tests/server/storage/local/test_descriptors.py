"""More files than descriptors: opened as they are read, by any thread, and never another file."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.conftest import options
from tests.support.gathering import gather_block
from tests.support.stores import pread_store
from tests.support.waiting import eventually, let_time_pass
from tokenfeed.errors import CorpusChanged
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.local import descriptors as descriptors_module
from tokenfeed.server.storage.local import watched_bytes
from tokenfeed.server.storage.local.descriptors import (
    Descriptors,
    descriptors_for,
)
from tokenfeed.server.storage.local.shard import FileStat
from tokenfeed.server.storage.store import TokenStore

FILES, TOKENS, ROW = 60, 900, 40
Open = Callable[..., TokenStore]


@pytest.fixture
def paths(write_tokens: WriteTokens) -> list[Path]:
    """Files in which each token tells the file and the place."""
    return [
        write_tokens(np.arange(1, TOKENS + 1) + TOKENS * index, f"{index:02}.bin")
        for index in range(FILES)
    ]


@pytest.fixture
def open_store(paths: list[Path]) -> Iterator[Open]:
    opened: list[TokenStore] = []

    def start(open_max: int | None = 3) -> TokenStore:
        names = [str(path) for path in paths]
        opened.append(pread_store("train", names, options("<u2"), open_max=open_max))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_bytes, "_PAUSES_SECONDS", (0.001,) * 4)


def descriptor_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def some_spans(seed: int, rows: int = 200) -> Spans:
    random = np.random.default_rng(seed)
    return Spans.of_windows(
        ROW, random.integers(0, FILES, rows), random.integers(0, TOKENS - ROW, rows)
    )


def rows_of(spans: Spans) -> np.ndarray:
    """What the files hold there."""
    firsts = 1 + TOKENS * spans.shard + spans.token_offset
    found: np.ndarray = firsts[:, None] + np.arange(ROW)
    return found


def window(file: int, token_offset: int = 7) -> Spans:
    return Spans.of_windows(ROW, np.array([file]), np.array([token_offset]))


@pytest.mark.parametrize("is_cold", [True, False])
def test_rows_are_the_same_with_hardly_any_files_open(open_store: Open, is_cold: bool) -> None:
    """Opened by the calling thread, or by many threads while reads seem to wait."""
    before = descriptor_count()
    store = open_store()
    assert descriptor_count() == before + 3
    for seed in range(5):
        store.files.readahead.cold = is_cold
        spans = some_spans(seed)

        assert (gather_block(store, spans).tokens == rows_of(spans)).all()

        assert descriptor_count() <= before + 3
    assert list(store.files.bring_in())[-1] == store.files.memory_bytes
    assert descriptor_count() <= before + 3


@pytest.mark.parametrize("open_max", [1, 4])
def test_threads_that_close_the_files_of_each_other_read_the_right_ones(
    open_store: Open, open_max: int
) -> None:
    """A descriptor that is closed during a read may belong to another file at once."""
    before = descriptor_count()
    store = open_store(open_max)
    threads = 8

    def gather(thread: int) -> int:
        most = 0
        for round_ in range(12):
            store.files.readahead.cold = bool((thread + round_) % 2)
            spans = some_spans(100 * thread + round_)
            store.advise(spans)
            assert (gather_block(store, spans).tokens == rows_of(spans)).all()
            most = max(most, descriptor_count())
        return most

    with ThreadPoolExecutor(threads) as pool:
        most = max(pool.map(gather, range(threads)))

    # One more for each thread that reads, its own 8 and the store's 32, and for each /proc/self/fd.
    assert most <= before + open_max + 2 * threads + 32
    assert eventually(lambda: descriptor_count() == before + open_max)


def test_a_file_in_use_is_closed_after_its_use() -> None:
    """Even if the others were used more recently."""
    may_end = threading.Event()
    files = Descriptors(1, lambda file: os.open("/dev/null", os.O_RDONLY))
    used: list[int] = []

    def use(descriptor: int) -> None:
        used.append(descriptor)
        assert may_end.wait(10)

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(files.call, use, 0)
        assert eventually(lambda: bool(used))
        for file in (1, 2, 3):
            assert files.call(os.fstat, file).st_rdev == os.stat("/dev/null").st_rdev
        files.close()
        assert os.fstat(used[0])
        may_end.set()
        call.result()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(used[0])


def test_the_files_used_last_stay_open() -> None:
    """Those of a stream that reads few of them."""
    opened: list[int] = []

    def open_again(file: int) -> int:
        opened.append(file)
        return os.open("/dev/null", os.O_RDONLY)

    files = Descriptors(2, open_again)
    for file in (0, 1, 0, 2, 0, 1, 0):
        files.call(os.fstat, file)
    files.close()

    assert opened == [0, 1, 2, 1]


def closed_file(store: TokenStore, paths: Sequence[Path]) -> Path:
    """The path of a file that is not open."""
    gather_block(store, window(5))
    gather_block(store, window(6))
    gather_block(store, window(7))
    names = {os.readlink(f"/proc/self/fd/{number}") for number in numbers()}
    assert str(paths[9]) not in names
    return paths[9]


def numbers() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            os.readlink(f"/proc/self/fd/{number}")
            yield number


@pytest.mark.parametrize("change", ["replaced", "removed", "rewritten", "cut"])
def test_a_file_that_is_another_one_when_it_is_opened_again_fails_the_dataset(
    open_store: Open,
    write_tokens: WriteTokens,
    paths: list[Path],
    caplog: pytest.LogCaptureFixture,
    change: str,
) -> None:
    """With the sentence of a change that is found by polling; the log names the file."""
    store = open_store()
    path = closed_file(store, paths)
    let_time_pass(path)
    if change == "replaced":
        write_tokens(np.arange(1, TOKENS + 1), "new").replace(path)
    elif change == "removed":
        path.unlink()
    elif change == "rewritten":
        write_tokens(np.arange(1, TOKENS + 1), path.name)
    else:
        os.truncate(path, 100)

    assert (gather_block(store, window(7)).tokens == rows_of(window(7))).all()
    with pytest.raises(CorpusChanged, match="'train' changed while it was served; restart"):
        gather_block(store, window(9))

    assert store.files.failed
    assert "dataset failed dataset=train reason=09.bin: " in caplog.text
    with pytest.raises(CorpusChanged):
        gather_block(store, window(7))


@pytest.mark.parametrize("change", ["grown", "another mode", "another device"])
def test_a_file_that_is_still_the_same_is_served(
    open_store: Open, paths: list[Path], change: str
) -> None:
    """As by a store whose files are all open; a failover may change the number of the device."""
    store = open_store()
    path = closed_file(store, paths)
    known = store.shards[9].facts
    if change == "grown":
        with path.open("ab") as file:
            file.write(b"\1\0" * 50)
    elif change == "another mode":
        path.chmod(0o600)
    else:
        before = known._replace(device=known.device + 1)
        store.shards[9] = store.shards[9].with_stat(before)

    assert (gather_block(store, window(9)).tokens == rows_of(window(9))).all()

    assert not store.files.failed
    assert (
        store.files.facts[9]
        == known
        == FileStat.of(path.stat())._replace(
            size_bytes=known.size_bytes, mtime_ns=known.mtime_ns, ctime_ns=known.ctime_ns
        )
    )


def test_a_closed_store_stays_closed(open_store: Open) -> None:
    """Threads may be about to open files meanwhile."""
    before = descriptor_count()
    store = open_store()
    opening, may_open = threading.Event(), threading.Event()
    right = store.files._files._open_again  # type: ignore[union-attr]

    def slow(file: int) -> int:
        opening.set()
        assert may_open.wait(10)
        return right(file)

    store.files._files._open_again = slow  # type: ignore[union-attr]
    with ThreadPoolExecutor(1) as pool:
        gather = pool.submit(gather_block, store, window(9))
        assert opening.wait(10)
        store.close()
        store.close()
        may_open.set()
        with pytest.raises(CorpusChanged):
            gather.result()

    store.files.read_ahead(store.extents(some_spans(1)))
    with pytest.raises(CorpusChanged):
        gather_block(store, window(5))
    with pytest.raises(CorpusChanged):
        store.files.read_served(5, 0, 4)
    assert eventually(lambda: descriptor_count() == before)


def test_advice_waits_for_no_file_to_be_opened(open_store: Open) -> None:
    """A file server may take long; the rows of other files are read meanwhile."""
    store = open_store()
    may_open = threading.Event()
    opened: list[int] = []
    right = store.files._files._open_again  # type: ignore[union-attr]

    def slow(file: int) -> int:
        assert may_open.wait(10)
        opened.append(file)
        return right(file)

    store.files._files._open_again = slow  # type: ignore[union-attr]

    store.advise(Spans.of_windows(ROW, np.array([9, 10, 11]), np.array([1, 2, 3])))

    assert not opened
    may_open.set()
    assert eventually(lambda: set(opened) == {9, 10, 11})


def test_files_are_opened_even_if_connections_take_all_descriptors(open_store: Open) -> None:
    """The store then closes other files of its own, down to the last."""
    store = open_store(20)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_count() + 8, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        store.files.readahead.cold = False
        for seed in range(3):
            spans = some_spans(seed)
            assert (gather_block(store, spans).tokens == rows_of(spans)).all()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)
    assert taken


def test_an_error_of_opening_is_the_error_of_the_read() -> None:
    """Without a descriptor of its own to close, a store can only report it."""

    def refuse(file: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(OSError, match="Too many open files"):
        Descriptors(3, refuse).call(os.fstat, 0)


def test_all_files_stay_open_where_the_hard_limit_has_room_for_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To open a file for each row costs several times as much. Otherwise half of the room is left
    for connections, and the log says the cure.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = descriptor_count()
    monkeypatch.setattr(descriptors_module, "_SPARE", hard - open_now - 100)

    def found(file_count: int) -> Descriptors:
        return descriptors_for("train", ["x"] * file_count, lambda file: file)

    assert found(90).all_open
    assert not caplog.messages
    few = found(110)

    assert few.open_max is not None
    assert abs(few.open_max - 50) <= 2
    (message,) = caplog.messages
    assert message.startswith("files are opened as they are read dataset=train files=110 open=")
    assert "ulimit -Hn" in message
