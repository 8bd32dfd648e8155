"""The plane of rows, out of a mapped file that others may change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.server.storage.documents.starts_corpora import (
    Corpus,
    found_starts,
    naive_rows,
    random_windows,
    require_agreement,
    rows_of,
    write_datatrove,
)
from tests.support import seccomp
from tests.support.waiting import let_time_pass
from tokenfeed.errors import CorpusChanged, Unreadable
from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.documents import DocumentStarts, document_starts, document_starts_of
from tokenfeed.server.storage.documents.document_starts import SPARSE, Places
from tokenfeed.server.storage.documents.numbers import FOOTER, MappedNumbers
from tokenfeed.server.storage.formats import STORED, Documents, Layout
from tokenfeed.server.storage.local.safe_copy import DirectCopier
from tokenfeed.server.storage.local.shard import FileStat

ENTRIES = 150_000


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Two files with so many documents that their starts are mapped."""
    random = np.random.default_rng(4)
    return write_datatrove(
        tmp_path, [random.integers(1, 9, ENTRIES // 2).tolist() for _ in range(2)]
    )


@pytest.fixture
def found(corpus: Corpus) -> Iterator[DocumentStarts]:
    with found_starts(corpus) as made:
        yield made


def kept(corpus: Corpus) -> Path:
    (path,) = Path(corpus.paths[0]).parent.glob(".*.tokenfeed-documents")
    return path


def a_window(corpus: Corpus, file: int, first: int, row_tokens: int = 50) -> Spans:
    return Spans.of_windows(row_tokens, np.array([file]), np.array([first]))


@pytest.mark.parametrize("row_tokens", [2, 65, 2049, 100_000])
def test_starts_in_rows_of_any_length_are_all_there(
    found: DocumentStarts, corpus: Corpus, row_tokens: int
) -> None:
    """More than one system call copies, and more than one part in memory."""
    spans = random_windows(corpus.counts, row_tokens, 1500 if row_tokens < 3000 else 5)

    assert rows_of(found.read(spans)) == naive_rows(corpus.starts, spans)


@pytest.mark.parametrize("left_bytes", [0, 1, 4096, 8 * 1000 + 3, 8 * ENTRIES])
def test_a_file_that_is_truncated_is_an_error_and_no_signal(
    found: DocumentStarts, corpus: Corpus, left_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading it through the map in user space would end the process with SIGBUS."""
    os.truncate(kept(corpus), left_bytes)

    for _ in range(2):
        with pytest.raises(CorpusChanged, match="'train' has document borders that changed"):
            found.read(a_window(corpus, 1, 100_000))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "document borders failed dataset=train reason=truncated or written to, found by a read"
    ]


@pytest.mark.parametrize("cut_bytes", [1, 7, 8, 9, 1000])
def test_a_cut_within_the_last_page_is_noticed_although_it_reads_as_zeros(
    tmp_path: Path, corpus: Corpus, cut_bytes: int
) -> None:
    """The kernel clears the rest of that page instead of reporting anything."""
    with found_starts(corpus) as found:
        found.read(a_window(corpus, 0, 0))
        path = kept(corpus)
        os.truncate(path, path.stat().st_size - cut_bytes)

        with pytest.raises(CorpusChanged):
            found.read(a_window(corpus, 0, 0))


def test_a_file_cut_and_grown_again_is_noticed(found: DocumentStarts, corpus: Corpus) -> None:
    """Its size is what it was, and its end is zeros."""
    size_bytes = kept(corpus).stat().st_size
    os.truncate(kept(corpus), 5000)
    os.truncate(kept(corpus), size_bytes)

    with pytest.raises(CorpusChanged):
        found.read(a_window(corpus, 1, 100_000))


@pytest.mark.parametrize("value", [0, 1, 1 << 40, -1])
def test_an_entry_that_was_overwritten_is_noticed(
    found: DocumentStarts, corpus: Corpus, value: int
) -> None:
    """The entries of a file ascend, and only the first one of a file is 0."""
    with kept(corpus).open("r+b") as file:
        file.seek(8 * 1000)
        file.write(np.array([value], "<i8").tobytes())

    with pytest.raises(CorpusChanged):
        found.read(a_window(corpus, 0, corpus.starts[0][1000] - 5))


def test_an_entry_held_in_memory_is_compared(found: DocumentStarts, corpus: Corpus) -> None:
    """It ascends, and is another one."""
    starts = corpus.starts[0]
    entry = next(at for at in range(6400, 9999, SPARSE) if starts[at] > starts[at - 1] + 1)
    with kept(corpus).open("r+b") as file:
        file.seek(8 * entry)
        file.write(np.array([starts[entry] - 1], "<i8").tobytes())

    with pytest.raises(CorpusChanged):
        found.read(a_window(corpus, 0, starts[entry] + 1))


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_file_that_was_removed_or_replaced_is_still_read(
    found: DocumentStarts, corpus: Corpus, change: str
) -> None:
    """Another server may have made it again."""
    if change == "removed":
        kept(corpus).unlink()
    else:
        other = kept(corpus).with_name("other")
        other.write_bytes(b"none")
        other.replace(kept(corpus))

    require_agreement(found, corpus)


def test_all_starts_of_a_file_are_read_at_once(
    found: DocumentStarts, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of documents are made from them; parts of a read are no ends of files."""
    monkeypatch.setattr(document_starts, "_STARTS_AT_ONCE", 1000)
    for file, starts in enumerate(corpus.starts):
        assert found.starts_of(file).tolist() == starts


def test_starts_that_are_damaged_while_they_are_served_are_found(
    found: DocumentStarts, corpus: Corpus
) -> None:
    """Rows of other documents would be other rows."""
    with kept(corpus).open("r+b") as file:
        file.seek(8 * 5)
        file.write(bytes(8))

    with pytest.raises(CorpusChanged):
        found.starts_of(0)


class Failing:
    """A copier whose first copies fail, as those from a disk do."""

    def __init__(self, failures: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.failures = failures
        self._meanwhile = meanwhile

    def copy(self, ranges: np.ndarray, target: np.ndarray) -> int | None:
        self.failures -= 1
        if self.failures >= 0:
            self._meanwhile()
            return 0
        return DirectCopier().copy(ranges, target)

    def close(self) -> None:
        """Nothing is kept."""


def mapped(found: DocumentStarts) -> MappedNumbers:
    numbers = found.require_known()._numbers
    assert isinstance(numbers, MappedNumbers)
    return numbers


def test_a_disk_that_fails_for_a_moment_is_read_again(
    found: DocumentStarts, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system fails over within a second."""
    monkeypatch.setattr(mapped(found), "_copier", Failing(2))

    assert rows_of(found.read(a_window(corpus, 0, 0)))[0][:1] == corpus.starts[0][1:2]


@pytest.mark.parametrize(("patient", "copies"), [(True, 5), (False, 1)])
def test_a_disk_that_keeps_failing_ends_the_call_alone(
    found: DocumentStarts,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    patient: bool,
    copies: int,
) -> None:
    """Nothing says that the starts have changed."""
    monkeypatch.setattr(mapped(found), "_copier", Failing(copies))
    with pytest.raises(Unreadable, match="'train' has document borders that cannot be read"):
        found.read(a_window(corpus, 0, 0), patient)

    require_agreement(found, corpus)


def test_a_file_without_a_name_that_cannot_be_read_fails_for_good(
    found: DocumentStarts, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was truncated cannot be found out."""
    kept(corpus).unlink()
    monkeypatch.setattr(mapped(found), "_copier", Failing(5))
    for _ in range(2):
        with pytest.raises(CorpusChanged):
            found.read(a_window(corpus, 0, 0))


def test_a_read_of_closed_starts_is_an_error(corpus: Corpus) -> None:
    """Its addresses may be those of other data."""
    with found_starts(corpus) as found:
        found.close()
        found.close()
        with pytest.raises(CorpusChanged):
            found.read(a_window(corpus, 0, 0))


def test_starts_that_are_closed_in_the_middle_of_a_read_deliver_nothing(
    found: DocumentStarts, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped(found), "_copier", Failing(1, found.close))
    with pytest.raises(CorpusChanged):
        found.read(a_window(corpus, 0, 0))


def test_a_profile_that_forbids_direct_copies_changes_nothing(tmp_path: Path) -> None:
    """Old container engines have one; entries are then copied through a file in memory."""
    options = ["-q", "-k", "length or truncated", "-p", "no:cacheprovider"]
    command = [*seccomp.PREFIX, sys.executable, "-m", "pytest", *options, __file__]
    command.append(f"--basetemp={tmp_path / 'inner'}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout


@dataclass
class ManyShards:
    """As much of a store as starts need: files that exist only by name."""

    shards: list[ManyShards.Shard]
    shape: Shape
    name: str = "train"
    stored: np.dtype = STORED["uint16"]

    @dataclass
    class Shard:
        path: str
        layout: Layout

    @property
    def files(self) -> ManyShards:
        return self

    @property
    def facts(self) -> list[FileStat]:
        return [FileStat(1, 2, 12, 3, 4)] * len(self.shards)


@pytest.mark.parametrize("files", [3000, pytest.param(60_000, marks=pytest.mark.proof)])
def test_starts_of_sixty_thousand_files_are_one_map(tmp_path: Path, files: int) -> None:
    """The kernel allows 65,530 maps, and the tokens need one for each file already."""
    index = tmp_path / "shared.index"
    index.write_bytes(b"")
    # All of them together are too many to hold in memory.
    starts = np.arange(180_000 // files)
    ends = np.append(starts[1:], tokens := len(starts) + 2)
    documents = Documents(len(ends), str(index), lambda: iter([ends]))
    layout = Layout("datatrove", STORED["uint16"], 0, tokens, "a test", documents=documents)
    store = ManyShards(
        [ManyShards.Shard(str(tmp_path / f"{number:05}.ds"), layout) for number in range(files)],
        Shape(np.full(files, tokens)),
    )
    before = map_count()
    made = document_starts_of(store)  # type: ignore[arg-type]
    assert made is not None
    assert made.is_known

    # Threads look at the indices, and some of their memory stays mapped.
    assert map_count() <= before + 100
    assert sum(str(tmp_path) in line for line in maps()) == 1
    corpus = Corpus([], [starts.tolist()] * files, [tokens] * files)
    spans = random_windows(corpus.counts, 4, 500)
    assert rows_of(made.read(spans)) == naive_rows(corpus.starts, spans)
    made.close()
    assert sum(str(tmp_path) in line for line in maps()) == 0

    again = document_starts_of(store)  # type: ignore[arg-type]
    assert again is not None
    assert again.is_known
    assert again.fingerprint == made.fingerprint
    again.close()


def maps() -> list[str]:
    return Path("/proc/self/maps").read_text().splitlines()


def map_count() -> int:
    return len(maps())


def test_a_file_whose_name_leads_to_one_that_was_touched_is_told_from_a_cut(
    corpus: Corpus, found: DocumentStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time says that it was written to, and a failed copy then fails the starts at once."""
    let_time_pass(kept(corpus))
    os.utime(kept(corpus))
    monkeypatch.setattr(mapped(found), "_copier", Failing(1))
    with pytest.raises(CorpusChanged):
        found.read(a_window(corpus, 0, 0))


def test_the_footer_has_no_byte_that_is_0() -> None:
    """Otherwise a cut of that byte would not be noticed."""
    assert len(FOOTER) == 8
    assert 0 not in FOOTER


def test_starts_are_counted_over_all_files() -> None:
    """A search for a window is then one search."""
    places = Places.of(np.array([10, 3, 7]), np.array([3, 1, 2]))
    found = places.counted_over_all(np.array([0, 4, 9, 0, 0, 6]))
    assert found.tolist() == [0, 4, 9, 10, 13, 19]
