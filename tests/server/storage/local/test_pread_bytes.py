"""Files that are read by pread: descriptors, threads, stale handles."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Serve, WriteTokens
from tests.server.conftest import options
from tests.support.gathering import gather_block
from tests.support.stores import pread_store
from tests.support.waiting import eventually
from tokenfeed.errors import CorpusChanged, InvalidCorpus, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.bytes import run_inline
from tokenfeed.server.storage.local import pread_bytes, watched_bytes
from tokenfeed.server.storage.local.shard import FileStat
from tokenfeed.server.storage.store import TokenStore

Open = Callable[..., TokenStore]


@pytest.fixture
def open_store() -> Iterator[Open]:
    opened: list[TokenStore] = []

    def start(*paths: Path) -> TokenStore:
        opened.append(pread_store("train", [str(path) for path in paths], options("<u2")))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


def gathered(store: TokenStore, row_tokens: int, offsets: Sequence[int]) -> list[list[int]]:
    places = np.array(offsets, dtype=np.int64)
    spans = Spans.of_windows(row_tokens, np.zeros_like(places), places)
    rows: list[list[int]] = gather_block(store, spans).tokens.tolist()
    return rows


def failing(right: Callable[..., int], code: int, times: int) -> Callable[..., int]:
    """A preadv that fails some times before it reads."""
    left = times

    def read(*arguments: Any) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(code, os.strerror(code))
        return right(*arguments)

    return read


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_bytes, "_PAUSES_SECONDS", (0.001,) * 4)


def drop_from_memory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.mark.parametrize("tells", [True, False])
def test_rows_that_are_not_in_memory_are_read_too(
    open_store: Open, write_tokens: WriteTokens, tells: bool
) -> None:
    """By many threads, whether or not the file system reports what is in memory."""
    path = write_tokens(np.arange(60_000))
    store = open_store(path)
    store.files._has_nowait = tells
    for _ in range(3):
        drop_from_memory(path)
        offsets = list(range(0, 50_000, 700))

        rows = gathered(store, 1000, offsets)

        assert rows == [list(range(first, first + 1000)) for first in offsets]


def test_rows_are_read_even_if_no_thread_can_be_started(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the buffer would still hold the rows of an earlier gather."""
    store = open_store(write_tokens(np.arange(60_000)))
    store.files._has_nowait = False  # then all rows are left to threads
    monkeypatch.setattr("_thread.start_new_thread", raising(RuntimeError("can't start new thread")))
    for start in (0, 7):
        offsets = list(range(start, 50_000, 700))

        rows = gathered(store, 1000, offsets)

        assert rows == [list(range(first, first + 1000)) for first in offsets]


def test_a_late_thread_does_not_write_into_a_buffer_that_is_in_use_again(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that no thread has taken may still be in the queue."""
    store = open_store(write_tokens(np.arange(60_000)))
    store.files._has_nowait = False
    late: list[Callable[[], object]] = []

    def refuse(read: Callable[..., object], *arguments: object) -> None:
        late.append(lambda: read(*arguments))

    monkeypatch.setattr(store.files._readers, "submit", refuse)
    gathered(store, 1000, range(0, 50_000, 700))
    assert len(late) > 3
    places = np.arange(7, 50_000, 700)
    tokens = gather_block(store, Spans.of_windows(1000, np.zeros_like(places), places)).tokens
    for read in late:
        read()
    assert (tokens[:, 0] == places).all()
    assert (np.diff(tokens.astype(int)) == 1).all()


def test_reads_that_wait_in_the_queue_hold_no_memory_once_they_are_done(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads hang in reads of other rows; the calling thread has read these."""
    store = open_store(write_tokens(np.arange(60_000)))
    store.files._has_nowait = False
    may_end = threading.Event()
    for _ in range(32):
        store.files._readers.submit(lambda: may_end.wait(30))
    right = store.files._read
    targets: list[weakref.ref[np.ndarray]] = []

    def read(spans: Spans, target: np.ndarray) -> None:
        targets.append(weakref.ref(target))
        right(spans, target)

    monkeypatch.setattr(store.files, "_read", read)
    offsets = list(range(0, 50_000, 700))

    assert gathered(store, 1000, offsets) == [list(range(at, at + 1000)) for at in offsets]

    assert store.files._readers._work.qsize() > 0
    gc.collect()
    assert [target() for target in targets] == [None]
    may_end.set()


def test_a_store_closed_while_rows_are_read_ends_the_gather(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads that no thread has begun are cancelled."""
    store = open_store(write_tokens(np.arange(60_000)))
    store.files._has_nowait = False
    right = os.preadv
    may_end = threading.Event()
    calls = []

    def close() -> None:
        # One of the 64 shares is read by the caller, 32 by threads; the others are in the queue.
        assert eventually(lambda: (len(calls), store.files._readers._work.qsize()) == (33, 31))
        store.close()
        may_end.set()

    def slow(*arguments: Any) -> int:
        calls.append(arguments)
        assert may_end.wait(10)
        return right(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    monkeypatch.setattr(pread_bytes, "_READERS", 64)  # more than there are threads

    closing = threading.Thread(target=close)
    closing.start()

    with pytest.raises(CorpusChanged):
        gathered(store, 100, range(0, 50_000, 700))

    closing.join()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_a_file_system_that_does_not_report_what_is_in_memory_is_judged_by_time(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """NFS has no RWF_NOWAIT, nor have old kernels; and a sandbox may forbid it."""
    store = open_store(write_tokens(np.arange(60_000)))
    right = os.preadv

    def untold(*arguments: Any) -> int:
        if arguments[3:] and arguments[3]:
            raise OSError(code, os.strerror(code))
        return right(*arguments[:3])

    monkeypatch.setattr(os, "preadv", untold)
    spans = Spans.of_windows(100, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    monkeypatch.setattr(pread_bytes, "_ROW_SECONDS_WARM", 10.0)
    gathered(store, 100, [0, 500])
    store.advise(spans)
    assert not store.cold
    monkeypatch.setattr(pread_bytes, "_ROW_SECONDS_WARM", 0.0)
    monkeypatch.setattr(pread_bytes, "_BYTES_PER_SECOND_WARM", 1e30)

    assert gathered(store, 3, [7]) == [[7, 8, 9]]

    assert store.cold


def test_the_opened_file_is_served_whatever_its_name_leads_to(
    open_store: Open, write_tokens: WriteTokens
) -> None:
    path = write_tokens(np.arange(5000))
    store = open_store(path)
    write_tokens(np.zeros(10), "new.bin").replace(path)

    assert gathered(store, 3, [4000]) == [[4000, 4001, 4002]]
    assert store.files.read_served(0, 0, 4) == b"\0\0\1\0"
    assert list(store.files.bring_in())[-1] == 10_000


def test_descriptors_are_closed_with_the_store_and_after_a_failed_start(
    open_store: Open, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    paths = [write_tokens(range(1, 9), f"{index}.bin") for index in range(5)]
    before = len(os.listdir("/proc/self/fd"))

    store = open_store(*paths)
    assert len(os.listdir("/proc/self/fd")) == before + 5
    store.close()
    store.close()
    with pytest.raises(InvalidCorpus, match=r"missing\.bin"):
        open_store(*paths, tmp_path / "missing.bin")

    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(CorpusChanged):
        gathered(store, 2, [0])


def test_hardly_any_descriptors_are_an_error_that_says_the_cure(
    serve: Serve, tmp_path: Path
) -> None:
    """Otherwise the server would fail while opening them, with an unhelpful error."""
    for index in range(900):
        (tmp_path / f"{index:03}.bin").write_bytes(b"\1\0\2\0\3\0")
    few = ("bash", "-c", 'ulimit -n 280; exec "$@"', "-")

    with pytest.raises(AssertionError, match="900 files need descriptors") as caught:
        serve("--data", tmp_path, "--read", "pread", wrapper=few)

    told = str(caught.value)
    assert "the hard limit is 280" in told
    assert "ulimit -Hn" in told
    assert "--read map" in told


def test_the_soft_limit_of_descriptors_is_raised_as_far_as_it_takes(
    open_store: Open, write_tokens: WriteTokens
) -> None:
    """Most systems begin with 1,024, and allow many more."""
    paths = [write_tokens(range(1, 9), f"{index}.bin") for index in range(20)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 10, limits[1]))
    try:
        open_store(*paths)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= open_now + 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO])
def test_an_error_that_goes_away_is_retried(
    open_store: Open,
    write_tokens: WriteTokens,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    """A failover takes a moment; it is logged once."""
    store = open_store(write_tokens(np.arange(5000)))
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(os, "preadv", failing(os.preadv, code, 2))
            assert gathered(store, 3, [4000]) == [[4000, 4001, 4002]]

    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("read failed, retrying dataset=train file=train.bin ")


def test_an_error_that_lasts_is_unreadable_until_it_goes_away(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset is still served: later calls get their rows."""
    store = open_store(write_tokens(np.arange(5000)))
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", failing(os.preadv, errno.EIO, 1 << 30))
        with pytest.raises(Unreadable, match="dataset: 'train' has a file that cannot be read"):
            gathered(store, 3, [0])
        with pytest.raises(Unreadable):
            store.files.read_served(0, 0, 4)
        with pytest.raises(Unreadable):
            list(store.files.bring_in())
    assert not store.files.failed

    assert gathered(store, 3, [0]) == [[0, 1, 2]]


def test_a_stale_handle_is_reopened_if_it_is_the_same_file(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover a file server may have lost its handles: waiting does not help."""
    path = write_tokens(np.arange(5000))
    store = open_store(path)
    (descriptor,) = store.files._files.for_preadv()[0]
    elsewhere = os.open("/dev/null", os.O_RDONLY)
    right = os.preadv

    def stale(*arguments: Any) -> int:
        if os.fstat(arguments[0]).st_ino != path.stat().st_ino:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return right(*arguments)

    monkeypatch.setattr(os, "preadv", stale)
    monkeypatch.setattr(store.files, "_status", lambda shard: os.stat(path))
    os.dup2(elsewhere, descriptor)
    os.close(elsewhere)

    assert gathered(store, 3, [7]) == [[7, 8, 9]]
    assert store.files._files.for_preadv()[0] == [descriptor]
    assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_NONBLOCK


def test_a_file_that_a_failover_moved_to_another_device_is_still_checked(
    open_store: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would always be another file, and a truncation would not be found."""
    path = write_tokens(np.arange(5000))
    store = open_store(path)
    before = FileStat.of(path.stat())
    store.shards[0] = store.shards[0].with_stat(before._replace(device=before.device + 1))
    monkeypatch.setattr(os, "preadv", failing(os.preadv, errno.ESTALE, 1))

    assert gathered(store, 3, [7]) == [[7, 8, 9]]
    assert store.files.facts == [before]
    os.truncate(path, 100)
    store.files.poll_file(0, lambda: True, run_inline)

    assert store.files.failed
