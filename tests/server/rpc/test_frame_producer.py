"""The frames of a call, scheduled against other calls; the cost of an unreadable file."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.requests import batches
from tests.support.memory_store import ErasedStore, MemoryStore
from tests.support.waiting import eventually
from tokenfeed.errors import Deleted, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.rows import reader
from tokenfeed.server.rows.reader import RowReader
from tokenfeed.server.rpc.admission import Connection
from tokenfeed.server.rpc.fair_scheduler import FairScheduler
from tokenfeed.server.rpc.frame_producer import FrameProducer, Schedulers
from tokenfeed.server.storage.bytes import Extents
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.local import watched_bytes
from tokenfeed.server.storage.local.watched_bytes import FailedRead, WatchedBytes
from tokenfeed.wire import frame
from tokenfeed.wire.request import from_message

T = 99
ROWS = 100


def frames(dataset: Dataset, first_sample: int, scheduler: FairScheduler | None = None) -> int:
    """Make the frames of one batch of the order of the files; return how many there are."""
    message = batches(
        batch_size=4,
        context_length=T,
        num_batches=1,
        order="sequential-1",
        first_sample=first_sample,
    )
    request, _ = from_message(message)
    shared = frame.Frames(T + 1, request.position, bytes(32), {})
    return len(
        list(
            FrameProducer(
                ["train"],
                RowReader(request, dataset.store, lambda: dataset.store),
                shared,
                Schedulers(scheduler or FairScheduler(), FairScheduler()),
            ).frames(Connection("peer"))
        )
    )


class Closed(threading.Event):
    """Whether files are closed, which a pause waits for; it notes that one has begun."""

    has_waiter = False

    def wait(self, timeout: float | None = None) -> bool:
        self.has_waiter = True
        return super().wait(timeout)


def test_a_stream_that_retries_a_read_blocks_no_other_one(
    write_tokens: WriteTokens, storage: StorageOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page that cannot be read would cost each of them a second, one after the other."""
    paths: list[Path] = [
        write_tokens(np.arange(1, ROWS * T + 2), name) for name in ("well.bin", "sick.bin")
    ]
    source = DatasetSource("train", tuple(map(str, paths)))
    dataset = open_dataset(source, FormatOptions(), TokenChecks(), storage)
    scheduler = FairScheduler(1)
    store = dataset.store
    assert isinstance(store.files, WatchedBytes)
    right = store.files._read
    tries = []

    def read(extents: Extents, target: Any) -> None:
        if (extents.file > store.files.first_file).any():
            tries.append(store.cold)
            raise FailedRead(1, OSError(errno.EIO, "Input/output error"))
        right(extents, target)

    monkeypatch.setattr(store.files, "_read", read)
    monkeypatch.setattr(store.files, "_closed", closed := Closed())
    monkeypatch.setattr(watched_bytes, "_PAUSES_SECONDS", (600.0,))
    assert frames(dataset, 0, scheduler) == 1
    assert not store.cold

    def wait() -> None:
        with pytest.raises(Unreadable):
            frames(dataset, 120, scheduler)

    pausing = threading.Thread(target=wait)
    other = threading.Thread(target=frames, args=(dataset, 4, scheduler), daemon=True)
    pausing.start()
    try:
        assert eventually(lambda: len(tries) == 2, 60.0)
        assert eventually(lambda: not scheduler._running, 60.0), "the slot is still held"
        assert eventually(lambda: closed.has_waiter, 60.0), "or it would find the store closed"
        assert store.cold, "others wait for turns"
        other.start()
        other.join(60.0)
        assert not other.is_alive()
    finally:
        store.close()
        pausing.join()
    assert tries[:2] == [False, True]


def test_a_failed_read_is_still_retried(
    write_tokens: WriteTokens, storage: StorageOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both with and without a slot."""
    path = write_tokens(np.arange(1, ROWS * T + 2))
    dataset = open_dataset(
        DatasetSource("train", (str(path),)), FormatOptions(), TokenChecks(), storage
    )
    store = dataset.store
    assert isinstance(store.files, WatchedBytes)
    right = store.files._read
    failures = 3

    def read(extents: Extents, target: Any) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise FailedRead(0, OSError(errno.EIO, "Input/output error"))
        right(extents, target)

    monkeypatch.setattr(store.files, "_read", read)
    monkeypatch.setattr(watched_bytes, "_PAUSES_SECONDS", (0.001,) * 4)
    for _ in range(2):
        failures = 3
        assert frames(dataset, 0) == 1
    store.close()


def producer_of(store: MemoryStore, first_sample: int, waits: FairScheduler) -> FrameProducer:
    message = batches(
        batch_size=4, context_length=T, num_batches=1, order="sequential-1",
        first_sample=first_sample,
    )  # fmt: skip
    request, _ = from_message(message)
    shared = frame.Frames(T + 1, request.position, bytes(32), {})
    reader = RowReader(request, store, lambda: store)
    return FrameProducer(["train"], reader, shared, Schedulers(FairScheduler(), waits))


def test_a_bounded_number_of_streams_wait_and_others_go_on() -> None:
    """Streams whose rows are at hand are not among them."""
    tokens = np.arange(1, 60 * T, dtype="<u2")
    store, waits = MemoryStore("train", [tokens], delay_seconds=3600.0), FairScheduler(1, 1)
    may_read, reading = threading.Event(), []
    right = store.files.gather

    def gather(extents: Extents, target: Any, patient: bool = True) -> None:
        if patient:
            reading.append(int(extents.first_byte[0]) // (2 * T))
            assert may_read.wait(20)
        store.files.arrive(extents)
        right(extents, target, patient)

    store.files.gather = gather  # type: ignore[method-assign]
    at_hand = Spans.of_windows(T + 1, np.zeros(4, np.int64), np.arange(20, 24) * T)
    store.files.arrive(store.extents(at_hand))

    def made(first_sample: int) -> int:
        producer = producer_of(store, first_sample, waits)
        return sum(each.row_count for each in producer.frames(Connection(str(first_sample))))

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(made, first) for first in (0, 40)]
        assert eventually(lambda: len(reading) == 1 and len(waits._starting) == 1)
        assert pool.submit(made, 20).result(10) == 4
        assert len(reading) == 1, "another one may only wait when the first has its rows"
        may_read.set()
        assert [each.result(10) for each in waiting] == [4, 4]
    assert sorted(reading) == [0, 40]


def test_no_frame_has_rows_that_were_erased_while_it_was_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is erased is looked at without a slot, and yet not too early."""
    monkeypatch.setattr(reader, "_CURRENT_SECONDS", 0.0)
    tokens = np.arange(1, 60 * T, dtype="<u2")
    stores = [MemoryStore("train", [tokens]), ErasedStore("train", [tokens])]
    producer = producer_of(stores[0], 0, FairScheduler())
    producer.reader._wrap = lambda: stores[0]
    gather = stores[0].gather

    def erased(*arguments: Any) -> None:
        gather(*arguments)
        assert producer.schedulers.running._running
        stores.pop(0)

    monkeypatch.setattr(stores[0], "gather", erased)
    with pytest.raises(Deleted):
        next(producer.frames(Connection("peer")))
