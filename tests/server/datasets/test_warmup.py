"""A corpus that fits is brought into memory; whatever happens meanwhile, the server lives on."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Serve
from tests.server.conftest import look, options
from tests.support.stores import map_store
from tokenfeed.server.datasets import warmup
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.planes.loss_masks import LossMask
from tokenfeed.server.datasets.warmup import WarmUp, fitting, warm
from tokenfeed.server.runtime.process import memory_limit
from tokenfeed.server.storage.bytes import PIECE_BYTES
from tokenfeed.server.storage.local import syscalls
from tokenfeed.server.storage.store import TokenStore

PAGE_BYTES = syscalls.PAGE_BYTES
MakeCorpus = Callable[..., TokenStore]


@pytest.fixture
def make_corpus(tmp_path: Path) -> Iterator[MakeCorpus]:
    """Open a corpus of files of some sizes, none of it in memory: make_corpus(bytes, ...,
    name="train").
    """
    opened: list[TokenStore] = []

    def make(*sizes: int, name: str = "train") -> TokenStore:
        paths = [tmp_path / f"{name}-{index}.bin" for index in range(len(sizes))]
        for path, size in zip(paths, sizes, strict=True):
            np.full(size // 2, 7, dtype="<u2").tofile(path)
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        opened.append(map_store(name, [str(path) for path in paths], options("<u2")))
        return opened[-1]

    yield make
    for corpus in opened:
        corpus.close()


def with_mask(dataset: Dataset, mask: TokenStore) -> Dataset:
    """It with a loss mask."""
    dataset.add_plane_files(LossMask(mask, dataset.store, bytes(32)))
    return dataset


def dataset_of(corpus: TokenStore, digest: bytes = bytes(32)) -> Dataset:
    """What is served of a corpus; a digest of b"" is not known."""
    return Dataset(corpus.name, corpus, bytes(32), digest)


@pytest.fixture(params=["populated", "touched"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With MADV_POPULATE_READ, and as on a kernel that does not know it."""
    if request.param == "touched":
        monkeypatch.setattr(syscalls, "populate", lambda *_: False)
    return str(request.param)


def never() -> bool:
    return False


def resident_bytes(corpus: TokenStore) -> int:
    return int(syscalls.residency(*corpus.files.span).sum()) * PAGE_BYTES


def mapped_bytes(corpus: TokenStore) -> int:
    """How much of the corpus is in this process' page table."""
    first, size = corpus.files.span
    counted = 0
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if area := re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line):
            within = first <= int(area[1], 16) < first + size
        elif within and line.startswith("Rss:"):
            counted += int(line.split()[1]) * 1024
    return counted


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.usefixtures("way")
def test_a_cold_corpus_is_read_in_and_mapped(make_corpus: MakeCorpus) -> None:
    """Then a gather waits neither for the disk nor for a page fault."""
    corpus = make_corpus(3 * PIECE_BYTES + 5000, 2 * PAGE_BYTES, 100, PIECE_BYTES)
    assert resident_bytes(corpus) < corpus.files.span[1] // 2
    assert mapped_bytes(corpus) == 0

    assert warm(corpus, never) == corpus.files.span[1]

    assert resident_bytes(corpus) == corpus.files.span[1]
    assert mapped_bytes(corpus) == corpus.files.span[1]


def test_pages_are_mapped_where_they_are_resident_already(make_corpus: MakeCorpus) -> None:
    """The fingerprint has read a small corpus, around the map: every page of it is a fault yet."""
    corpus = make_corpus(2 * PIECE_BYTES)
    Path(corpus.shards[0].path).read_bytes()
    assert mapped_bytes(corpus) == 0

    warm(corpus, never)

    assert mapped_bytes(corpus) == corpus.files.span[1]


def test_the_log_says_what_was_preloaded_and_how_long_it_took(
    make_corpus: MakeCorpus, caplog: pytest.LogCaptureFixture
) -> None:
    """The log explains the load of the disk."""
    corpus = make_corpus(PIECE_BYTES)
    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        warm(corpus, never)

    begun, ended = lines(caplog)
    size = corpus.files.span[1]
    assert begun == f"warm-up started dataset=train bytes={size}"
    assert re.fullmatch(
        rf"warm-up ended dataset=train bytes={size} of={size} seconds=\d+\.\d reason=complete",
        ended,
    )


@pytest.mark.usefixtures("way")
def test_a_file_cut_short_meanwhile_ends_the_warm_up_and_nothing_else(
    make_corpus: MakeCorpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Touching the map in user space would be SIGBUS for every dataset of the process."""
    corpus = make_corpus(4 * PIECE_BYTES, name="cut")
    intact = make_corpus(2 * PIECE_BYTES, name="intact")

    def cut() -> bool:
        os.truncate(corpus.shards[0].path, PIECE_BYTES + 100)
        return False

    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        assert warm(corpus, cut) == PIECE_BYTES
        assert warm(intact, never) == intact.files.span[1]

    assert f"bytes={PIECE_BYTES} of={4 * PIECE_BYTES}" in lines(caplog)[1]
    assert lines(caplog)[1].endswith("reason=[Errno 14] Bad address")


def test_a_dataset_that_has_failed_is_not_preloaded_any_further(
    make_corpus: MakeCorpus, caplog: pytest.LogCaptureFixture
) -> None:
    """It will not be served."""
    corpus = make_corpus(4 * PIECE_BYTES)

    def overwrite() -> bool:
        with open(corpus.shards[0].path, "r+b") as file:
            file.write(b"other")
        os.utime(corpus.shards[0].path, ns=(1, 1))
        look(corpus)
        return False

    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        assert warm(corpus, overwrite) == PIECE_BYTES

    assert "changed while it was served" in lines(caplog)[-1]


def test_a_corpus_that_was_closed_is_not_preloaded(make_corpus: MakeCorpus) -> None:
    """What was its range may hold something else by now."""
    corpus = make_corpus(2 * PIECE_BYTES)
    corpus.close()

    assert warm(corpus, never) == 0


def test_it_stops_between_two_pieces(make_corpus: MakeCorpus) -> None:
    """A server has two seconds to end, whatever the size of its corpora."""
    corpus = make_corpus(8 * PIECE_BYTES)

    assert warm(corpus, lambda: True) == PIECE_BYTES

    assert resident_bytes(corpus) < corpus.files.span[1]


def test_corpora_are_chosen_by_what_fits_together_the_smallest_first(
    make_corpus: MakeCorpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Two that fit one by one would throw each other out; a small one is worth most per byte."""
    large, small, middle = (
        make_corpus(pages * PAGE_BYTES, name=name)
        for name, pages in (("large", 6), ("small", 1), ("middle", 3))
    )
    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        assert fitting([large, small, middle], 7 * PAGE_BYTES) == [small, middle]
        assert fitting([large, small, middle], 10 * PAGE_BYTES) == [small, middle, large]
        assert fitting([large, small, middle], PAGE_BYTES - 1) == []

    assert lines(caplog)[0] == (
        f"warm-up skipped dataset=large bytes={6 * PAGE_BYTES} available={3 * PAGE_BYTES}"
    )


def test_tokens_are_preloaded_before_loss_masks(make_corpus: MakeCorpus) -> None:
    """A mask is smaller than its tokens. It must not take their room, and with it the digest."""
    tokens = make_corpus(4 * PAGE_BYTES)
    mask = make_corpus(2 * PAGE_BYTES, name="mask")
    dataset = with_mask(dataset_of(tokens), mask)
    for room, is_warm in ((5, (True, False)), (6, (True, True))):
        warm_up = WarmUp([dataset], room * PAGE_BYTES)
        warm_up.start()
        warm_up._thread.join(10)
        warm_up.close()
        assert (mapped_bytes(tokens) > 0, mapped_bytes(mask) > 0) == is_warm


def test_a_corpus_that_does_not_fit_into_memory_is_left_alone(
    make_corpus: MakeCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would throw itself out of the page cache, and everybody else's files with it."""
    fits, does_not = make_corpus(PIECE_BYTES, name="a"), make_corpus(8 * PIECE_BYTES, name="b")
    monkeypatch.setattr(memory_limit, "available_bytes", lambda: 8 * PIECE_BYTES)

    warm_up = WarmUp(map(dataset_of, [does_not, fits]))
    warm_up.start()
    warm_up._thread.join(10)
    warm_up.close()

    assert mapped_bytes(fits) == fits.files.span[1]
    assert mapped_bytes(does_not) == 0
    assert resident_bytes(does_not) < does_not.files.span[1] // 2


def test_the_operator_s_limit_goes_before_what_memory_has_room_for(
    make_corpus: MakeCorpus,
) -> None:
    """A neighbor that starts later needs its memory, and 0 brings in nothing."""
    corpus = make_corpus(PIECE_BYTES)
    for limit, expected in (
        (0, 0),
        (corpus.files.span[1] - 1, 0),
        (corpus.files.span[1], corpus.files.span[1]),
    ):
        warm_up = WarmUp([dataset_of(corpus)], limit)
        warm_up.start()
        warm_up._thread.join(10)
        warm_up.close()

        assert mapped_bytes(corpus) == expected


def test_a_failure_of_the_warm_up_is_a_line_in_the_log(
    make_corpus: MakeCorpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without /proc it is unknown what fits; the server must serve all the same."""

    def unknown() -> int:
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    monkeypatch.setattr(memory_limit, "available_bytes", unknown)
    warm_up = WarmUp([dataset_of(make_corpus(PIECE_BYTES))])
    warm_up.start()
    warm_up._thread.join(10)
    warm_up.close()
    warm_up.close()

    (line,) = lines(caplog)
    assert line.startswith(
        "warm-up failed: FileNotFoundError ENOENT at tokenfeed/server/datasets/warmup.py:"
    )


def test_only_the_thread_that_warms_up_is_nice(
    make_corpus: MakeCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams come first; a nice server would come last."""
    seen: list[int] = []

    def warm(store: TokenStore, *_: object) -> int:
        seen.append(os.getpriority(os.PRIO_PROCESS, 0))
        return store.files.memory_bytes

    monkeypatch.setattr(warmup, "warm", warm)
    monkeypatch.setattr(
        warmup, "take_digest", lambda *_: seen.append(os.getpriority(os.PRIO_PROCESS, 0)) or ""
    )
    before = os.getpriority(os.PRIO_PROCESS, 0)
    warm_up = WarmUp([dataset_of(make_corpus(PIECE_BYTES), digest=b"")])
    warm_up.start()
    warm_up._thread.join(10)

    assert len(seen) == 2
    assert min(seen) > before or before == 19
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_a_server_warms_up_by_default_unless_it_is_disabled(tmp_path: Path, serve: Serve) -> None:
    """Who starts a server without a word about memory gets the fast one."""
    path = tmp_path / "train.bin"
    np.arange(PIECE_BYTES, dtype="<u2").tofile(path)
    by_default, told = serve("--data", path), serve("--data", path, "--warm-up-bytes", 0)
    deadline = time.monotonic() + 10
    while "warm-up ended" not in by_default.stderr:
        assert time.monotonic() < deadline, by_default.stderr
        os.sched_yield()

    assert f"warm-up ended dataset=train bytes={2 * PIECE_BYTES}" in by_default.stderr
    assert "reason=complete" in by_default.stderr
    told.stop()
    assert "warm-up started dataset=train" not in told.stderr


@pytest.mark.alone
def test_a_server_that_is_warming_up_stops_at_once(tmp_path: Path, serve: Serve) -> None:
    """A restart must not wait until 16 GiB are read."""
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(16 << 30)  # a hole: it takes no room on the disk
    server = serve("--data", path, "--warm-up-bytes", 1 << 40)
    deadline = time.monotonic() + 10
    while "warm-up started" not in server.stderr:
        assert time.monotonic() < deadline, server.stderr
        os.sched_yield()

    began = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0

    assert time.monotonic() - began < 2.0
    assert "of=17179869184" in server.stderr
    assert "reason=stopped" in server.stderr
