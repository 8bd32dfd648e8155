"""A search for delimiters in the background."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.server.storage.documents.starts_corpora import (
    Corpus,
    opened,
    require_agreement,
    starts_by,
    write_datatrove,
)
from tests.support.waiting import eventually, let_time_pass
from tokenfeed.errors import InvalidCorpus, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.documents import (
    Delimiters,
    DocumentStarts,
    document_search,
    document_starts_of,
    index_builder,
    index_file,
)
from tokenfeed.server.storage.documents.document_starts import StartIndex
from tokenfeed.server.storage.store import TokenStore
from tokenfeed.stream.planes import DOCUMENT_STARTS

END = 3
TOKENS = 1_400_000


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In these tests, a MiB of tokens is searched in the background."""
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 1 << 20)


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Corpus:
    """Two files, each of more than one block, with documents of 100 tokens."""
    random = np.random.default_rng(8)
    files = [random.integers(0, 100, TOKENS // 2) for _ in range(2)]
    paths = [str(write_tokens(file, f"{at}.bin")) for at, file in enumerate(files)]
    return Corpus(paths, [starts_by(file.tolist(), END, None) for file in files], [TOKENS // 2] * 2)


@pytest.fixture
def store(corpus: Corpus) -> Iterator[TokenStore]:
    with opened(corpus) as found:
        yield found


class Gate:
    """Holds the reads of a store back until it is opened."""

    def __init__(self, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = store.files.read_served
        self.reads = 0
        self.opened = threading.Event()
        monkeypatch.setattr(store.files, "read_served", self.read)

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        self.reads += 1
        assert self.reads == 1 or self.opened.wait(10)
        return self._read(shard, first_byte, size_bytes)


def started(store: TokenStore, **options: Any) -> DocumentStarts:
    found = document_starts_of(store, Delimiters(end=END), **options)
    assert found is not None
    assert not found.is_known
    found.start()
    return found


def row() -> Spans:
    return Spans.of_windows(500, np.array([1]), np.array([7]))


def kept(corpus: Corpus) -> list[Path]:
    return list(Path(corpus.paths[0]).parent.glob(".*"))


def test_a_search_tells_its_progress_and_then_has_all_starts(
    store: TokenStore, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are served meanwhile, and the plane has no fingerprint yet."""
    gate = Gate(store, monkeypatch)
    with closing(started(store)) as found:
        assert eventually(lambda: gate.reads == 2)
        assert 0 < found.progress < 1
        assert (found.kind, found.fingerprint, found.count) == (DOCUMENT_STARTS, b"", 0)
        problem = r"'train' is still being searched for document borders; 37\.4 % are done"
        with pytest.raises(Unreadable, match=problem):
            found.read(row())

        gate.opened.set()
        assert eventually(lambda: found.progress == 1.0)
        require_agreement(found, corpus)


@pytest.mark.parametrize("memory_bytes", [1 << 10, 1 << 20], ids=["many", "few"])
def test_what_a_search_found_is_kept_however_few_they_are(
    store: TokenStore, corpus: Corpus, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    """A terabyte is not read again for a few documents."""
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", memory_bytes)
    with closing(started(store)) as found:
        assert eventually(lambda: found.progress == 1.0)
        require_agreement(found, corpus)
    assert len(kept(corpus)) == 1

    again = document_starts_of(store, Delimiters(end=END))
    assert again is not None
    assert again.is_known
    with closing(again):
        assert again.require_known().is_held == (memory_bytes == 1 << 20)
        require_agreement(again, corpus)


def test_a_search_in_this_thread_has_the_same_starts(store: TokenStore, corpus: Corpus) -> None:
    """A command that only describes a corpus has no other work meanwhile."""
    found = document_starts_of(store, Delimiters(end=END))
    assert found is not None
    assert not found.is_known
    with closing(found):
        found.search_now()
        require_agreement(found, corpus)


def test_a_search_in_this_thread_ends_when_its_caller_is_stopped(
    store: TokenStore, corpus: Corpus
) -> None:
    """A feed of local files that is closed does not read a terabyte first."""
    found = document_starts_of(store, Delimiters(end=END))
    assert found is not None
    assert not found.is_known
    answers = chain([False], repeat(True))
    with closing(found), pytest.raises(InvalidCorpus, match="was closed while its documents were"):
        found.search_now(lambda: next(answers))

    assert kept(corpus) == []


def test_a_search_that_was_closed_ends_and_keeps_nothing(
    store: TokenStore,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that is stopped does not wait for an hour."""
    gate = Gate(store, monkeypatch)
    found = started(store)
    assert eventually(lambda: gate.reads == 2)
    threading.Timer(0.4, gate.opened.set).start()
    found.close()
    found.close()

    assert eventually(lambda: not found._thread.is_alive())
    assert gate.reads == 2
    assert kept(corpus) == []
    assert caplog.messages == []


def test_a_search_that_was_never_started_can_be_closed(store: TokenStore) -> None:
    found = document_starts_of(store, Delimiters(end=END))
    assert found is not None
    assert not found.is_known
    found.close()


def test_starts_found_after_the_end_are_closed(tmp_path: Path) -> None:
    """Otherwise their map would stay."""
    many = write_datatrove(tmp_path, [[1] * 200_000])
    searching, ended = threading.Event(), threading.Event()

    def search(*_: object) -> StartIndex:
        searching.set()
        assert ended.wait(10)
        with opened(many) as store:
            made = document_starts_of(store)
        assert made is not None
        assert mapped_count(tmp_path) == 1
        return made.require_known()

    found = DocumentStarts("failed", "train", search)
    found.start()
    assert searching.wait(10)
    found.close()
    assert found._thread.is_alive()
    ended.set()

    assert eventually(lambda: not found._thread.is_alive())
    assert mapped_count(tmp_path) == 0
    with pytest.raises(Unreadable):
        found.read(row())


def mapped_count(folder: Path) -> int:
    """A file that got its name last is listed without it."""
    return Path("/proc/self/maps").read_text().count(f" {folder}/#")


def test_files_that_change_during_a_search_leave_nothing_behind(
    store: TokenStore, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened is still served, but the next server finds other files."""
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 1 << 10)
    gate = Gate(store, monkeypatch)
    with closing(started(store)) as found:
        assert eventually(lambda: gate.reads == 2)
        let_time_pass(Path(corpus.paths[1]))
        other = Path(corpus.paths[1]).with_name("other")
        np.zeros(TOKENS // 2, "<u2").tofile(other)
        other.replace(corpus.paths[1])
        gate.opened.set()

        assert eventually(lambda: found.progress == 1.0)
        require_agreement(found, corpus)
        assert kept(corpus) == []


def test_a_dataset_that_fails_ends_its_search(
    store: TokenStore,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Half a corpus is another corpus."""
    gate = Gate(store, monkeypatch)
    with closing(started(store)) as found:
        assert eventually(lambda: gate.reads == 2)
        let_time_pass(Path(corpus.paths[0]))
        os.truncate(corpus.paths[0], 4096)
        os.truncate(corpus.paths[1], 4096)
        gate.opened.set()

        assert eventually(lambda: any("document search failed" in m for m in caplog.messages))
        with pytest.raises(Unreadable, match="the search for them failed; the log of its server"):
            found.read(row())
        assert found.progress < 1
    assert kept(corpus) == []


def test_a_file_system_that_fails_for_long_is_waited_for(
    store: TokenStore, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of an hour does not begin again."""
    monkeypatch.setattr(document_search, "_RETRY_SECONDS", 0.01)
    right, failures = store.files.read_served, iter(range(3))

    def fail_thrice(*place: int) -> bytes:
        if next(failures, None) is not None:
            raise Unreadable("dataset", "has a file that cannot be read at the moment")
        return right(*place)

    monkeypatch.setattr(store.files, "read_served", fail_thrice)
    with closing(started(store)) as found:
        assert eventually(lambda: found.progress == 1.0)
        require_agreement(found, corpus)


def test_a_place_that_cannot_be_written_costs_nothing_but_a_warning(
    store: TokenStore,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Few starts fit in memory."""

    def refuse(*_: object, **__: object) -> tuple[int, str]:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(index_file, "_new_file", refuse)
    with closing(started(store, cache_dir=str(tmp_path / "cache"))) as found:
        assert eventually(lambda: found.progress == 1.0)
        require_agreement(found, corpus)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [message.rpartition(": ")[2] for message in warnings] == ["Read-only file system"] * 2


def test_a_search_logs_how_far_it_is(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator wants to know whether it takes minutes or hours."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(index_builder, "_PROGRESS_SECONDS", 0.0)
    with closing(started(store)) as found:
        assert eventually(lambda: found.progress == 1.0)

    shares = [m.rpartition("=")[2] for m in caplog.messages if m.startswith("finding documents")]
    assert shares == ["37.4%", "50.0%", "87.4%", "100.0%"]
    assert any(m.startswith("document search ended dataset=train") for m in caplog.messages)


def test_a_search_of_two_processes_at_once_is_harmless(corpus: Corpus) -> None:
    """Both rename a complete file into its place."""
    with opened(corpus) as one, opened(corpus) as two:
        both = [started(one), started(two)]
        for found in both:
            assert eventually(lambda found=found: found.progress == 1.0)
            require_agreement(found, corpus)
            found.close()
        assert len(kept(corpus)) == 1
        again = document_starts_of(one, Delimiters(end=END))
        assert again is not None
        assert again.is_known
        require_agreement(again, corpus)


def test_a_stopped_wait_for_a_file_system_ends_at_once(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between retries is ten seconds."""

    def fail(*_: int) -> bytes:
        raise Unreadable("dataset", "has a file that cannot be read at the moment")

    monkeypatch.setattr(store.files, "read_served", fail)
    found = started(store)
    found.close()

    assert eventually(lambda: not found._thread.is_alive(), 5.0)


def test_an_impossible_delimiter_is_found_before_anything_is_searched(store: TokenStore) -> None:
    with pytest.raises(InvalidCorpus, match="is not below --vocab-size"):
        document_starts_of(store, Delimiters(end=END), vocab_size=2)
