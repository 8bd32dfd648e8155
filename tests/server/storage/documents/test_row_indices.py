"""Indices that are made while a server runs."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
from tests.server.conftest import options
from tests.server.storage.documents.rows_corpora import (
    FINGERPRINT,
    indices_of,
    known_starts,
    packed,
    padded,
    random_lengths,
    rows_by_reference,
    rows_of,
    write_documents,
)
from tests.server.storage.documents.rows_corpora import kept as kept_files
from tests.server.storage.documents.starts_corpora import Corpus, opened, starts_by, write_datatrove
from tests.support.waiting import eventually
from tokenfeed.errors import (
    CorpusChanged,
    InvalidCorpus,
    InvalidRequest,
    LimitExceeded,
    Unreadable,
)
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.orders import packed_v1
from tokenfeed.sampling.plan import plan
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.documents import (
    Delimiters,
    DocumentStarts,
    RowIndex,
    RowIndices,
    background_build,
    document_search,
    document_starts_of,
    index_file,
    row_indices,
    rows_builder,
)
from tokenfeed.server.storage.documents.background_build import Build
from tokenfeed.server.storage.documents.document_starts import StartIndex
from tokenfeed.server.storage.documents.rows_builder import RowsBuilder
from tokenfeed.server.storage.store import TokenStore
from tokenfeed.stream.stream import Stream

LENGTHS = random_lengths(11)
KEY = packed(40)


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """In these tests, no request waits for rows."""
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 0.0)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_documents(tmp_path / "corpus", LENGTHS)


@pytest.fixture
def store(corpus: Corpus) -> Iterator[TokenStore]:
    with opened(corpus) as found:
        yield found


@pytest.fixture
def starts(store: TokenStore) -> Iterator[DocumentStarts]:
    with closing(known_starts(store)) as found:
        yield found


@pytest.fixture
def found(store: TokenStore, starts: DocumentStarts) -> Iterator[RowIndices]:
    with closing(RowIndices(store, starts, None, None, FINGERPRINT)) as made:
        yield made


class Gate:
    """Holds the making back before its last file, until it is opened."""

    def __init__(self, starts: DocumentStarts, monkeypatch: pytest.MonkeyPatch) -> None:
        self._starts_of = starts.starts_of
        self.opened = threading.Event()
        self.reached = threading.Event()
        monkeypatch.setattr(starts, "starts_of", self.starts_of)

    def starts_of(self, file: int) -> np.ndarray:
        if file == len(LENGTHS) - 1:
            self.reached.set()
            assert self.opened.wait(10)
        return self._starts_of(file)


@pytest.fixture
def gate(starts: DocumentStarts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(starts, monkeypatch)
    yield made
    made.opened.set()


def folder_of(corpus: Corpus) -> Path:
    return Path(corpus.paths[0]).parent


def is_making() -> bool:
    """Whether a thread makes rows, of any dataset."""
    return any(thread.name == "tokenfeed-index" for thread in threading.enumerate())


def is_made(found: RowIndices, key: RowsKey = KEY) -> bool:
    return isinstance(found.find(key), RowIndex)


def advance(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of the indices forward."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)
    monkeypatch.setattr(row_indices, "time", clock)


def require_agreement(index: RowIndex, key: RowsKey = KEY) -> None:
    """Require that an index has the rows of the reference."""
    rows = index.pieces(np.arange(index.row_count))
    assert rows_of(rows) == rows_by_reference(LENGTHS, key)


def test_rows_are_made_in_the_background_with_their_progress(
    found: RowIndices, gate: Gate, corpus: Corpus
) -> None:
    """A client retries meanwhile, and others are served."""
    assert found.find(KEY) == 0.0
    problem = r"'train' has rows of packed-1 for context length 40 that are still being made; "
    with pytest.raises(Unreadable, match=problem + r"\d+\.\d % are done; retry later"):
        found.get(KEY)
    assert gate.reached.wait(10)
    assert found.find(KEY) == pytest.approx(2 / 3)
    with pytest.raises(Unreadable, match=problem + r"66\.7 % are done; retry later, or on another"):
        found.get(KEY)
    assert kept_files(folder_of(corpus)) == []

    gate.opened.set()
    assert eventually(lambda: is_made(found))
    require_agreement(found.get(KEY))
    assert found.get(KEY) is found.find(KEY)


def test_a_small_corpus_is_waited_for(found: RowIndices, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first request that fails after milliseconds of work would be a nuisance."""
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 10.0)

    require_agreement(found.get(KEY))


def test_requests_at_once_are_one_making(
    found: RowIndices, starts: DocumentStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty ranks connect in the same second."""
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 10.0)
    right, calls = starts.starts_of, []

    def starts_of(file: int) -> np.ndarray:
        calls.append(file)
        return right(file)

    monkeypatch.setattr(starts, "starts_of", starts_of)
    got: list[RowIndex] = []
    threads = [threading.Thread(target=lambda: got.append(found.get(KEY))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(got) == 8
    assert len(set(map(id, got))) == 1
    assert calls == [0, 1, 2]


def test_one_index_is_made_at_a_time(found: RowIndices, gate: Gate) -> None:
    """Others wait; a client retries."""
    with pytest.raises(Unreadable):
        found.get(KEY)
    assert gate.reached.wait(10)
    problem = r"no rows of padded-1 for context length 40 yet: they wait for rows of packed-1 for "
    with pytest.raises(Unreadable, match=problem + r"context length 40, of which 66\.7 % are done"):
        found.get(padded(40))
    assert found.find(padded(40)) == found.find(KEY) == pytest.approx(2 / 3)

    gate.opened.set()
    assert eventually(lambda: is_made(found))
    with pytest.raises(Unreadable, match="still being made"):
        found.get(padded(40))
    assert eventually(lambda: is_made(found, padded(40)))
    require_agreement(found.get(padded(40)), padded(40))


def test_rows_that_could_not_be_made_say_so(
    found: RowIndices,
    starts: DocumentStarts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are not tried again by each request, but after some minutes: a disk was full, say."""

    def fail(file: int) -> np.ndarray:
        raise CorpusChanged("dataset", "'train' has document borders that changed")

    monkeypatch.setattr(starts, "starts_of", fail)
    with pytest.raises(Unreadable):
        found.get(KEY)
    assert eventually(lambda: found.find(KEY) is None)
    monkeypatch.undo()

    problem = r"'train' has no rows of packed-1 for context length 40: making them failed; the log "
    with pytest.raises(Unreadable, match=problem + "of its server says why; it tries again after"):
        found.get(KEY)
    assert "rows of packed-1 for context length 40 not made dataset=train" in caplog.text

    advance(monkeypatch, row_indices._FAILED_SECONDS)
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 10.0)
    require_agreement(found.get(KEY))


def test_a_file_system_that_fails_for_a_while_is_tried_again(
    found: RowIndices, starts: DocumentStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next request."""
    right, failures = starts.starts_of, iter(range(2))

    def fail_twice(file: int) -> np.ndarray:
        if next(failures, None) is not None:
            raise Unreadable("dataset", "'train' has document borders that cannot be read")
        return right(file)

    monkeypatch.setattr(starts, "starts_of", fail_twice)

    def is_usable() -> bool:
        try:
            found.get(KEY)
        except Unreadable:
            return False
        return True

    assert eventually(is_usable)
    require_agreement(found.get(KEY))


def test_a_thread_that_cannot_start_is_tried_again(
    found: RowIndices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may have no room for one more, for a while."""
    with monkeypatch.context() as patched:

        def no_room(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", no_room)
        with pytest.raises(Unreadable):
            found.get(KEY)

    assert found.making is None
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 10.0)
    require_agreement(found.get(KEY))


def test_an_unexpected_failure_is_logged(
    found: RowIndices,
    starts: DocumentStarts,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And ends neither the server nor the other orders."""
    monkeypatch.setattr(starts, "starts_of", lambda file: 1 / 0)
    with pytest.raises(Unreadable):
        found.get(KEY)

    assert eventually(lambda: found.find(KEY) is None)
    assert "ZeroDivisionError" in caplog.text


def test_many_documents_are_packed_by_a_command(
    store: TokenStore, starts: DocumentStarts, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server would be busy for minutes; what the command made is used."""
    count = sum(map(len, LENGTHS))
    monkeypatch.setattr(row_indices, "DOCUMENTS_MAX", count)
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 10.0)
    words = ("--format raw", "--document-end-token 3")
    problem = (
        f"'train' has {count} documents, and no rows of padded-1, long documents drop, for context "
        "length 40 yet; run: tokenfeed pack DATA --context-length 40 --order padded --long drop "
        "--format raw --document-end-token 3"
    )
    key = padded(40, "drop")
    with closing(RowIndices(store, starts, None, None, FINGERPRINT, words)) as found:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=problem):
                found.get(key)
        assert found.find(key) is None
        assert kept_files(folder_of(corpus)) == []

        with indices_of(corpus) as other:
            other.make_now(key)
        advance(monkeypatch, row_indices._REFUSED_SECONDS)
        require_agreement(found.get(key), key)


def test_rows_that_do_not_fit_into_memory_are_not_begun(
    found: RowIndices, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would kill the server, and again at the same request after its restart."""
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 10.0)
    need = found.builder(KEY).memory_bytes
    monkeypatch.setattr(rows_builder, "available_bytes", lambda: 2 * need - 2)
    problem = "takes 0.0 GB of memory, of which 0.0 GB are for that here; use smaller files, or a "
    for get in (found.get, found.make_now):
        with pytest.raises(InvalidRequest, match=problem + "machine .* and: tokenfeed pack DATA"):
            get(KEY)
    assert kept_files(folder_of(corpus)) == []

    monkeypatch.setattr(rows_builder, "available_bytes", lambda: 2 * need)
    require_agreement(found.make_now(KEY))


def test_a_kept_file_is_checked_while_requests_are_answered(
    found: RowIndices, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a GiB of it is read, maybe from a slow disk; other rows have to be found meanwhile."""
    with indices_of(corpus) as other:
        other.make_now(KEY)
    require_agreement(found.make_now(packed(41)), packed(41))
    right, reached, opened = RowsBuilder.find, threading.Event(), threading.Event()

    def find_slowly(job: RowsBuilder) -> RowIndex | None:
        reached.set()
        assert opened.wait(10)
        return right(job)

    monkeypatch.setattr(RowsBuilder, "find", find_slowly)
    monkeypatch.setattr(RowsBuilder, "make", None)
    with pytest.raises(Unreadable, match=r"still being made; 0\.0 % are done"):
        found.get(KEY)
    assert reached.wait(10)
    assert found.get(packed(41)) is found.find(packed(41))
    assert found.find(KEY) == 0.0
    opened.set()
    assert eventually(lambda: is_made(found))
    require_agreement(found.get(KEY))


def test_an_order_over_documents_needs_documents(store: TokenStore) -> None:
    with closing(RowIndices(store, None, None, None, FINGERPRINT)) as found:
        with pytest.raises(InvalidRequest, match="where documents begin, which is unknown for 't"):
            found.get(KEY)
        assert found.find(KEY) is None
        with pytest.raises(InvalidRequest, match="pass --document-end-token"):
            found.make_now(KEY)


def test_a_lost_index_is_named_and_to_be_restored(corpus: Corpus) -> None:
    """A delimiter would be refused, since other files know their documents."""
    lost = Path(f"{corpus.paths[1]}.index")
    lost.unlink()

    with opened(corpus) as store, closing(RowIndices(store, None, None, None, b"")) as found:
        with pytest.raises(InvalidRequest) as caught:
            found.get(KEY)

    name = Path(corpus.paths[1]).name
    assert f"first {name}; restore their indices of documents" in caught.value.problem


@pytest.mark.parametrize("context_length", [0, (1 << 24) - 1, 1 << 40])
def test_a_row_has_to_fit_into_the_index(found: RowIndices, context_length: int) -> None:
    with pytest.raises(InvalidRequest, match=r"context_length: .* is not in \[1, 16777215\)"):
        found.get(packed(context_length))
    assert found.find(packed(context_length)) is None


def test_the_longest_row_fits(found: RowIndices) -> None:
    require_agreement(found.make_now(packed((1 << 24) - 2)), packed((1 << 24) - 2))


def test_the_number_of_opened_indices_is_limited(
    found: RowIndices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks for every context length does not fill the disk."""
    monkeypatch.setattr(row_indices, "INDICES_MAX", 2)
    for context_length in (40, 41):
        found.make_now(packed(context_length))
    problem = "'train' has rows for 2 context lengths and orders, the most at once; use one of"
    with pytest.raises(LimitExceeded, match=problem):
        found.get(packed(42))

    assert found.find(packed(42)) is None
    require_agreement(found.get(packed(41)), packed(41))


def test_an_index_that_is_idle_makes_room_for_another_one(
    found: RowIndices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey of all context lengths ends neither the use of others for good, nor a run that has
    prefetched rows for minutes.
    """
    monkeypatch.setattr(row_indices, "INDICES_MAX", 2)
    monkeypatch.setattr(row_indices, "_DESCRIBED_SECONDS", -1.0)
    for context_length in (40, 41):
        found.make_now(packed(context_length))
    found.get(packed(41), is_read=False)
    found.get(packed(40))

    require_agreement(found.make_now(packed(42)), packed(42))

    assert not isinstance(found.find(packed(41)), RowIndex)
    assert isinstance(found.find(packed(40)), RowIndex)
    require_agreement(found.get(packed(40)), packed(40))


def test_an_index_that_makes_room_while_it_is_asked_for_is_opened_again(
    found: RowIndices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was looked up is closed by then."""
    monkeypatch.setattr(row_indices, "INDICES_MAX", 1)
    monkeypatch.setattr(row_indices, "_DESCRIBED_SECONDS", -1.0)
    monkeypatch.setattr(row_indices, "_WAIT_SECONDS", 10.0)
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 0)
    found.make_now(KEY)

    others = [packed(41)]

    class Builds(dict[RowsKey, Build[RowIndex]]):
        """Another thread makes rows after the first look at it."""

        def get(self, key: RowsKey, default: Any = None) -> Any:
            build = super().get(key, default)
            if others:
                found.make_now(others.pop())
            return build

    found._builds = Builds(found._builds)
    index = found.get(KEY)

    require_agreement(index)


@pytest.mark.alone
@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_making_that_is_ended_leaves_nothing(
    found: RowIndices,
    gate: Gate,
    corpus: Corpus,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that is stopped does not wait for minutes."""
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 0)
    with pytest.raises(Unreadable):
        found.get(KEY)
    assert gate.reached.wait(10)
    threading.Timer(0.4, gate.opened.set).start()
    began = time.monotonic()
    getattr(found, end)()
    getattr(found, end)()

    assert time.monotonic() - began < 2
    assert eventually(lambda: not is_making())
    with pytest.raises(Unreadable, match="has no rows of packed-1 for context length 40"):
        found.get(KEY)
    assert kept_files(folder_of(corpus)) == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


STOP = """
import sys, time
import numpy as np
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.documents import row_indices
from tests.server.storage.documents.rows_corpora import packed
from tokenfeed.errors import Unreadable

row_indices._WAIT_SECONDS = 0.0
formats = FormatOptions.parse(None, None, None)
source = DatasetSource("train", (sys.argv[1],))
dataset = open_dataset(source, formats, TokenChecks(vocab_size=9))
try:
    dataset.rows.get(packed(65536))
except Unreadable:
    time.sleep(0.2)
print(dataset.rows.find(packed(65536)), flush=True)
dataset.stop_search()
dataset.close()
"""


@pytest.mark.alone
def test_a_process_ends_soon_in_the_middle_of_a_large_file(tmp_path: Path) -> None:
    """A server has two seconds; a step of the making of millions of documents is not waited for."""
    lengths = np.random.default_rng(1).geometric(0.003, 4_000_000)
    path = tmp_path / "large.ds"
    with path.open("wb") as file:
        file.truncate(2 * int(lengths.sum()))
    np.cumsum(lengths, dtype="<u8").tofile(f"{path}.index")
    command = [sys.executable, "-c", STOP, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        progress = running.stdout.readline()
        began = time.monotonic()
        code = running.wait(20)
        seconds = time.monotonic() - began

    assert (code, 0 <= float(progress) < 1) == (0, True)
    assert seconds < 2
    assert kept_files(tmp_path) == []


def test_a_making_that_ends_after_its_dataset_leaves_no_map(
    found: RowIndices, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a disk when its dataset was closed."""
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 0)
    monkeypatch.setattr(background_build, "_CLOSE_SECONDS", 0.0)
    with pytest.raises(Unreadable):
        found.get(KEY)
    assert gate.reached.wait(10)
    found.close()
    assert is_making()
    gate.opened.set()

    assert eventually(lambda: not is_making())
    assert "-packed-1-" not in Path("/proc/self/maps").read_text()


def test_what_is_closed_is_not_read(found: RowIndices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 0)
    index = found.make_now(KEY)
    found.close()
    with pytest.raises(CorpusChanged):
        index.pieces(np.array([0]))


def test_what_was_made_can_be_read_after_a_stop(found: RowIndices) -> None:
    """Streams are drained."""
    index = found.make_now(KEY)
    found.stop()

    assert found.get(KEY) is index
    require_agreement(index)


def test_a_place_that_cannot_be_written_costs_nothing_but_a_warning(
    found: RowIndices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows fit in memory."""

    def refuse(*_: object, **__: object) -> tuple[int, str]:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(index_file, "_new_file", refuse)
    require_agreement(found.make_now(KEY))


END = 3


@pytest.fixture
def searched(write_tokens: WriteTokens) -> Corpus:
    """A file in which a tenth of all tokens ends a document."""
    tokens = np.random.default_rng(7).integers(0, 10, 700_000)
    path = str(write_tokens(tokens, "searched/train.bin"))
    return Corpus([path], [starts_by(tokens.tolist(), END, None)], [tokens.size])


def test_rows_wait_for_a_search_for_documents(
    searched: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first half of the work, and says itself how far it is."""
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 1 << 20)
    with opened(searched) as store:
        search = document_starts_of(store, Delimiters(end=END))
        assert search is not None
        assert not search.is_known
        found = RowIndices(store, search, END, None, FINGERPRINT)
        with closing(search), closing(found):
            assert found.find(KEY) == 0.0
            with pytest.raises(Unreadable, match="is still being searched for document borders"):
                found.get(KEY)
            search.search_now()
            assert found.find(KEY) == 0.5
            index = found.make_now(KEY)
            assert found.find(KEY) is index
            assert index.stats.documents == len(searched.starts[0])
            assert index.stats.targets == 700_000 - len(searched.starts[0])


def test_a_search_for_documents_that_failed_is_no_progress(searched: Corpus) -> None:
    """A client would wait for it until its timeout, and not learn why."""

    def fail(*_: object) -> StartIndex:
        raise InvalidCorpus("train.bin", "its document borders can be written nowhere")

    with opened(searched) as store:
        search = DocumentStarts("search failed", "train", fail)
        search.is_search = True
        found = RowIndices(store, search, END, None, FINGERPRINT)
        with closing(search), closing(found):
            search.start()
            assert eventually(lambda: found.find(KEY) is None)
            with pytest.raises(Unreadable, match="the search for them failed; the log"):
                found.get(KEY)


def test_the_plan_of_a_dataset_has_its_rows(tmp_path: Path) -> None:
    """The dataset opens what its requests need, and closes it."""
    corpus = write_datatrove(tmp_path, LENGTHS)
    source = DatasetSource("train", tuple(corpus.paths))
    dataset = open_dataset(source, options(), TokenChecks(), planes=PlaneOptions())
    with closing(dataset):
        stream = Stream.of_dataset("train", packed_v1, 3, 40)
        assert dataset.rows is not None
        index = dataset.rows.make_now(KEY)
        expected = rows_by_reference(LENGTHS, KEY)
        samples = np.arange(50)
        spans = plan(stream, [dataset.store.shape], samples)
        places = packed_v1.places(samples, 3, index.row_count)
        assert spans.pieces is not None
        pieces = np.stack([spans.shard, spans.token_offset, spans.pieces.token_count], axis=1)
        rows = [one.tolist() for one in np.split(pieces, spans.pieces.first_span[1:-1])]
        assert rows == [expected[place] for place in places.tolist()]
        dataset.stop_search()
