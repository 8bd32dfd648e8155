"""Read-ahead while the corpus is cold, and none while it is warm."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.server.conftest import options
from tests.support.stores import map_store
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.bytes import Extents
from tokenfeed.server.storage.local import syscalls
from tokenfeed.server.storage.local.mapped_bytes import ranges_of
from tokenfeed.server.storage.local.readahead import ReadAhead
from tokenfeed.server.storage.store import TokenStore

TOKENS = 4 << 20
ROW_TOKENS = 2049


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[TokenStore]:
    path = tmp_path / "train.bin"
    np.arange(TOKENS, dtype="<u2").tofile(path)
    opened = map_store("train", [str(path)], options("<u2"))
    yield opened
    opened.close()


def drop_from_memory(corpus: TokenStore) -> None:
    for shard in corpus.shards:
        descriptor = os.open(shard.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def some_windows() -> Spans:
    offsets = np.random.default_rng(1).integers(0, TOKENS - 3000, 64, dtype=np.int64)
    return Spans.of_windows(ROW_TOKENS, np.zeros_like(offsets), offsets)


def resident_share(corpus: TokenStore, windows: Spans) -> float:
    first = ranges_of(corpus.extents(windows))[:, 0] // 4096 * 4096
    return float(np.mean([syscalls.residency(address, 4096).all() for address in first.tolist()]))


@pytest.mark.parametrize("batched", [True, False])
def test_advised_windows_are_read_before_they_are_gathered(
    corpus: TokenStore, batched: bool
) -> None:
    """Cold random windows are read many at a time instead of one by one."""
    windows = some_windows()
    drop_from_memory(corpus)
    assert resident_share(corpus, windows) < 0.5
    readahead, extents = ReadAhead(corpus.files), corpus.extents(windows)
    corpus.files._batched = batched

    readahead.advise(extents)

    end = time.monotonic() + 10
    while resident_share(corpus, windows) < 1.0:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_warm_corpus_gets_no_advice(corpus: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice costs more than the gather of a row that is in memory."""
    given: list[int] = []
    monkeypatch.setattr(syscalls, "read_ahead", lambda ranges: given.append(len(ranges)) or True)
    readahead = ReadAhead(corpus.files)

    for _ in range(10):
        readahead.advise(corpus.extents(some_windows()))
    assert given == []

    drop_from_memory(corpus)
    readahead.observe(waits=3)
    readahead.advise(corpus.extents(some_windows()))
    assert given == [64]


def test_faults_outweigh_what_the_kernel_says_is_resident(
    corpus: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For files that this process may not write it reports all pages: only faults tell."""
    given: list[int] = []
    monkeypatch.setattr(syscalls, "residency", lambda *_: np.ones(1, dtype=bool))
    monkeypatch.setattr(syscalls, "read_ahead", lambda ranges: given.append(len(ranges)) or True)
    readahead = ReadAhead(corpus.files)
    readahead.advise(corpus.extents(some_windows()))
    assert given == []

    advised = []
    for _ in range(4):
        readahead.observe(waits=5)
        given.clear()
        while readahead.cold:
            readahead.advise(corpus.extents(some_windows()))
        advised.append(len(given))

    assert advised == [4, 8, 16, 32]


def test_what_is_counted_never_falls_and_is_exact_with_many_threads() -> None:
    """A counter that falls looks like a restart, after which all of it counts as new."""

    class Cold:
        def seem_resident(self, extents: Extents) -> bool:
            return False

        def read_ahead(self, extents: Extents) -> None:
            pass

    numbers = np.arange(1, 65)
    readahead, extents = ReadAhead(Cold()), Extents(numbers, numbers, numbers)

    def work() -> None:
        for _ in range(500):
            readahead.advise(extents)
            readahead.observe(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert readahead.advised_bytes == 8 * 500 * extents.total_bytes
    assert readahead.cold_reads == 8 * 500
