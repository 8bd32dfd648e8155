"""The file of an index: kept, found again, and never believed if anything about it is wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
from tests.server.storage.borders.naive import Corpus, starts_by
from tests.server.storage.rows.corpora import (
    indices_of,
    packed,
    padded,
    random_lengths,
    rows_by_reference,
    rows_of,
    write_documents,
)
from tests.server.storage.rows.corpora import kept as kept_files
from tests.support.full_disk import FullDisk
from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.server.storage.rows import RowIndices, kept
from tokenfeed.server.storage.rows.reading import FOOTER
from tokenfeed.stream import identity

LENGTHS = random_lengths(9)
KEY = packed(50)
WHAT = "rows of packed-1 for context length 50"


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In these tests, a kibibyte of rows is much."""
    monkeypatch.setattr(kept, "MEMORY_BYTES_MAX", 1 << 10)


@pytest.fixture(autouse=True)
def logs_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_documents(tmp_path / "corpus", LENGTHS)


def folder_of(corpus: Corpus) -> Path:
    return Path(corpus.paths[0]).parent


def require_agreement(
    indices: RowIndices, key: RowsKey = KEY, lengths: list[list[int]] = LENGTHS
) -> None:
    """Require that an index has the rows of the reference."""
    index = indices.make_now(key)
    assert rows_of(index.pieces(np.arange(index.row_count))) == rows_by_reference(lengths, key)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of rows, which is forgotten then."""
    found = [message for message in caplog.messages if "document borders" not in message]
    caplog.clear()
    return found


def require_made(caplog: pytest.LogCaptureFixture, *beginnings: str) -> None:
    """Require that rows were made, with these warnings before."""
    messages = said(caplog)
    assert " made dataset=train rows=" in messages[-1]
    assert len(messages) == len(beginnings) + 1, messages
    for message, beginning in zip(messages, beginnings, strict=False):
        assert beginning in message


def require_found(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = said(caplog)
    assert " found dataset=train rows=" in message


@pytest.mark.parametrize("key", [KEY, packed(3000), padded(50), padded(50, "drop")], ids=str)
def test_rows_are_made_once_and_found_again(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, key: RowsKey
) -> None:
    """Those of a large corpus take minutes; and they have the same bytes wherever they are made."""
    with indices_of(corpus) as indices:
        require_agreement(indices, key)
    require_made(caplog)
    (path,) = kept_files(folder_of(corpus))
    what = f"{key.order}-{key.long_documents}-{key.context_length}"
    assert re.search(rf"\.tokenfeed-{what}-[0-9a-f]{{8}}$", path.name)
    assert path.stat().st_mode & 0o777 == 0o644
    before, content = path.stat(), path.read_bytes()

    with indices_of(corpus) as indices:
        require_agreement(indices, key)
    require_found(caplog)
    assert path.stat() == before
    path.unlink()
    with indices_of(corpus) as indices:
        require_agreement(indices, key)
    assert path.read_bytes() == content


def test_few_rows_are_kept_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also if they are read into memory."""
    corpus = write_documents(tmp_path / "few", [[9, 3, 1, 4, 2]])
    for require in (require_made, require_found):
        with indices_of(corpus) as indices:
            require_agreement(indices, packed(4), [[9, 3, 1, 4, 2]])
        require(caplog)


def test_a_corpus_without_a_row_has_an_index_of_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Documents of one token have no target."""
    corpus = write_documents(tmp_path / "single", [[1, 1], [1]])
    for require in (require_made, require_found):
        with indices_of(corpus) as indices:
            index = indices.make_now(KEY)
            assert (index.row_count, index.row_pieces_max, index.stats.single) == (0, 0, 3)
            assert list(index.rows_of(0, np.array([0]), np.array([2]), 9)) == []
        require(caplog)


def test_the_cache_folder_is_used_where_it_is_given(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    for require in (require_made, require_found):
        with indices_of(corpus, cache) as indices:
            require_agreement(indices)
        require(caplog)
    assert len(kept_files(cache)) == 1
    assert kept_files(folder_of(corpus)) == []


def truncate(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size % path.stat().st_size)


def flip(place: Callable[[int, int], int]) -> Callable[[Path], None]:
    """Flip a bit at a place that depends on the sizes of the file and its description."""

    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        text_bytes = int.from_bytes(data[-48:-40], "little")
        data[place(len(data), text_bytes)] ^= 4
        path.write_bytes(data)

    return change


def describe_otherwise(
    figures: Mapping[str, Any] = MappingProxyType({}), **changes: Any
) -> Callable[[Path], None]:
    """Replace a part of the description, or some of its figures, and seal it again."""

    def change(path: Path) -> None:
        data = path.read_bytes()
        size_bytes = int.from_bytes(data[-48:-40], "little")
        text = json.loads(data[-48 - size_bytes : -48])
        stats = {**text["stats"], **figures}
        new = json.dumps({**text, "stats": stats, **changes}).encode()
        seal = len(new).to_bytes(8, "little") + hashlib.sha256(new).digest() + FOOTER
        path.write_bytes(data[: -48 - size_bytes] + new + seal)

    return change


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(FOOTER),
    "without its end": truncate(-1),
    "without its half": truncate(2000),
    "half-written": lambda path: path.write_bytes(path.read_bytes()[:4096] + bytes(5000)),
    "with a number more": lambda path: path.write_bytes(bytes(8) + path.read_bytes()),
    "without a number": lambda path: path.write_bytes(path.read_bytes()[8:]),
    "a bit of the first piece": flip(lambda size, text: 0),
    "a bit of the last row start": flip(lambda size, text: size - 48 - text - 8),
    "a bit of the description": flip(lambda size, text: size - 48 - text // 2),
    "a bit of its length": flip(lambda size, text: size - 48),
    "a high bit of its length": flip(lambda size, text: size - 41),
    "a bit of its hash": flip(lambda size, text: size - 20),
    "a bit of the footer": flip(lambda size, text: size - 1),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "noise": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "a pipe": become_a_pipe,
    "a link": become_a_link,
    "of another version": describe_otherwise(version=1),
    "of another order": describe_otherwise(order="padded-1"),
    "with too few files": describe_otherwise(pieces=[5], rows=[5]),
    "with words as counts": describe_otherwise(pieces=["x", "y", "z"]),
    "with huge counts": describe_otherwise(rows=[1 << 70, 1, 1]),
    "with a count below 0": describe_otherwise(rows=[-1, 1, 1]),
    "with other figures": describe_otherwise(stats={"pieces": 5, "rows": 5}),
    "with unknown figures": describe_otherwise(stats={"unknown": 5}),
    "with words as figures": describe_otherwise({"targets": "x"}),
    "with fractions as figures": describe_otherwise({"documents": 1e3}),
    "with a figure below 0": describe_otherwise({"cropped": -1}),
    "with more documents than tokens": describe_otherwise({"documents": 1 << 40}),
    "with more dropped than documents": describe_otherwise({"dropped": 1 << 20}),
    "with more cropped than tokens": describe_otherwise({"cropped": 1 << 40}),
    "with more targets than positions": describe_otherwise({"targets": 1 << 70}),
    "with pieces without targets": describe_otherwise({"targets": 1}),
    "with huge rows": describe_otherwise({"row_pieces_max": 26}),
    "with empty rows": describe_otherwise({"row_pieces_max": 0}),
    "with no hash of pieces": describe_otherwise(pieces_hash=""),
    "with another hash": describe_otherwise(content="00" * 32),
    "a list": lambda path: path.write_bytes(
        b"[]" + (2).to_bytes(8, "little") + hashlib.sha256(b"[]").digest() + FOOTER
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_a_warning_and_made_again(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object]
) -> None:
    """Wrong rows would be learned."""
    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_made(caplog)
    (path,) = kept_files(folder_of(corpus))
    damage(path)

    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_made(caplog, f"{WHAT} ignored file={path.name}: it ")
    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_found(caplog)


def test_every_bit_of_the_file_counts(corpus: Corpus, caplog: pytest.LogCaptureFixture) -> None:
    """In the numbers, in what describes them, and in what ends them."""
    with indices_of(corpus) as indices:
        require_agreement(indices)
        (path,) = kept_files(folder_of(corpus))
        right = path.read_bytes()
        random = np.random.default_rng(3)
        for place in random.integers(0, len(right), 300).tolist():
            wrong = bytearray(right)
            wrong[place] ^= 1 << int(random.integers(8))
            path.write_bytes(wrong)
            assert indices.job(KEY).found() is None, place
        path.write_bytes(right)
        found = indices.job(KEY).found()
        assert found is not None
        found.close()


@pytest.fixture
def sampled_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash covers a sample of the rows, as it does above 2^30 bytes."""
    monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 12)
    monkeypatch.setattr(identity, "SPREAD_BLOCKS", 9)
    monkeypatch.setattr(identity, "SPREAD_BLOCK_BYTES", 100)


@pytest.mark.usefixtures("sampled_blocks")
def test_of_many_rows_a_sample_is_checked(corpus: Corpus, caplog: pytest.LogCaptureFixture) -> None:
    """Not all of a terabyte is read at each start."""
    for require in (require_made, require_found):
        with indices_of(corpus) as indices:
            require_agreement(indices)
        require(caplog)
    (path,) = kept_files(folder_of(corpus))
    flip(lambda size, text: 0)(path)
    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_made(caplog, "it is damaged")


def test_rows_of_other_tokens_are_made_again(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Files of the same sizes may have another content."""
    with indices_of(corpus):
        pass
    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_made(caplog)
    with indices_of(corpus, fingerprint=bytes(32)) as indices:
        require_agreement(indices)
    require_made(caplog, "it was made from other documents, or for other rows")


def test_rows_of_other_documents_of_the_same_tokens_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The index of the documents was replaced."""
    for lengths in ([[20] * 500], [[10, 30] * 250]):
        with indices_of(write_documents(tmp_path / "corpus", lengths)) as indices:
            caplog.clear()
            require_agreement(indices, KEY, lengths)
    require_made(caplog)


@pytest.mark.parametrize(
    ("key", "lengths"),
    [
        (packed(50), ([[1, 5] * 99], [[5, 1] * 99])),
        (padded(10, "drop"), ([[50, 5] * 99], [[5, 50] * 99])),
    ],
    ids=["single", "dropped"],
)
def test_the_same_pieces_at_other_places_are_another_stream(
    tmp_path: Path, key: RowsKey, lengths: tuple[list[list[int]], ...]
) -> None:
    """Documents without a piece move those of the others, so a row has other tokens."""
    hashes, pieces = set(), []
    for number, of_files in enumerate(lengths):
        with indices_of(write_documents(tmp_path / f"corpus{number}", of_files)) as indices:
            index = indices.make_now(key)
            hashes.add(index.pieces_hash)
            pieces.append(index.pieces(np.arange(index.row_count)))

    assert pieces[0].token_count.tolist() == pieces[1].token_count.tolist()
    assert pieces[0].token_offset.tolist() != pieces[1].token_offset.tolist()
    assert len(hashes) == 2


def test_rows_for_another_context_length_are_not_mistaken(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the file was given their name."""
    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_made(caplog)
    (path,) = kept_files(folder_of(corpus))
    path.rename(path.with_name(path.name.replace("-50-", "-60-")))

    with indices_of(corpus) as indices:
        require_agreement(indices, packed(60))
    require_made(caplog, "it was made from other documents, or for other rows")


def test_rows_by_another_delimiter_are_another_file(
    write_tokens: WriteTokens, caplog: pytest.LogCaptureFixture
) -> None:
    """Two servers of one folder may have different ones, and would make theirs at each start."""
    tokens = np.random.default_rng(4).integers(0, 10, 20_000)
    path = str(write_tokens(tokens, "corpus/train.bin"))
    for require in (require_made, require_found):
        for delimiter in (3, 4):
            starts = [starts_by(tokens.tolist(), delimiter, None)]
            lengths = [np.diff([*starts[0], tokens.size]).tolist()]
            corpus = Corpus([path], starts, [tokens.size])
            with indices_of(corpus, delimiter=delimiter) as indices:
                caplog.clear()
                require_agreement(indices, KEY, lengths)
            require(caplog)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("room_bytes", [0, 1, 3000, 12_000])
def test_a_disk_that_gets_full_leaves_nothing_and_the_next_folder_is_used(
    corpus: Corpus,
    tmp_path: Path,
    full_disk: FullDisk,
    caplog: pytest.LogCaptureFixture,
    room_bytes: int,
) -> None:
    """In the middle of the rows; what was written is not made again."""
    cache = tmp_path / "cache"
    full_disk.room_bytes[str(cache)] = room_bytes

    with indices_of(corpus, cache) as indices:
        require_agreement(indices)
    require_made(caplog, f"{WHAT} not kept dataset=train file=.")
    assert kept_files(cache) == []
    assert len(kept_files(folder_of(corpus))) == 1


def test_where_no_folder_can_be_written_a_temporary_file_is_used(
    corpus: Corpus, temporary: Path, full_disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """A server works without a place of its own, and says what it would need."""
    full_disk.room_bytes[str(folder_of(corpus))] = 0

    with indices_of(corpus) as indices:
        require_agreement(indices)
        assert list(temporary.iterdir()) == []
    require_made(caplog, "No space left", "pass --cache-dir with a folder that can be written")
    assert kept_files(folder_of(corpus)) == []


def test_where_nothing_can_be_written_the_error_says_what_helps(
    corpus: Corpus, temporary: Path, full_disk: FullDisk
) -> None:
    full_disk.room_bytes |= {str(temporary): 3000, str(folder_of(corpus)): 6000}
    problem = f"its {WHAT} can be written nowhere: No space left on device; pass --cache-dir"

    with indices_of(corpus) as indices, pytest.raises(InvalidCorpus, match=problem):
        indices.make_now(KEY)
    assert kept_files(folder_of(corpus)) + list(temporary.iterdir()) == []


def test_few_rows_need_no_place(
    corpus: Corpus,
    temporary: Path,
    full_disk: FullDisk,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They fit in memory, and are made again at the next start."""
    monkeypatch.setattr(kept, "MEMORY_BYTES_MAX", 1 << 20)
    full_disk.room_bytes |= {str(temporary): 0, str(folder_of(corpus)): 0}

    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_made(caplog, "No space left")
    assert kept_files(folder_of(corpus)) + list(temporary.iterdir()) == []


def test_a_sync_that_fails_is_a_full_disk_too(
    corpus: Corpus,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Network file systems report it only then."""
    right = os.fsync

    def fail(descriptor: int) -> None:
        if "/cache/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        right(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with indices_of(corpus, tmp_path / "cache") as indices:
        require_agreement(indices)
    require_made(caplog, "Disk quota exceeded")
    assert kept_files(tmp_path / "cache") == []
    assert len(kept_files(folder_of(corpus))) == 1


MAKE = """
import os, signal, sys
from pathlib import Path
from tokenfeed.server.storage.rows import kept
from tests.server.storage.borders.naive import Corpus
from tests.server.storage.rows.corpora import indices_of, packed

kept.MEMORY_BYTES_MAX = 1 << 10

def on_progress(share):
    if share > float(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

with indices_of(Corpus(sys.argv[2:], [], [], None)) as indices:
    print("ready", flush=True)
    sys.stdin.readline()
    job = indices.job(packed(50))
    (job.found() or job.made(on_progress=on_progress)).close()
"""


def making(corpus: Corpus, killed_at: float) -> subprocess.Popen[str]:
    """A process that makes rows once it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(killed_at), *corpus.paths],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("killed_at", [0.0, 0.5, 0.99])
def test_a_process_that_is_killed_while_it_makes_rows_leaves_nothing(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, killed_at: float
) -> None:
    """The next one makes all of them, and warns of nothing."""
    process = making(corpus, killed_at)
    process.communicate("\n", timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert kept_files(folder_of(corpus)) == []
    assert sorted(folder_of(corpus).iterdir()) == sorted(
        Path(path + end) for path in corpus.paths for end in ("", ".index")
    )

    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_made(caplog)


def test_two_processes_that_make_rows_at_once_end_with_one_good_file(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Both rename a complete file into its place."""
    both = [making(corpus, 2.0) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=30)
        assert process.returncode == 0

    assert len(kept_files(folder_of(corpus))) == 1
    with indices_of(corpus) as indices:
        require_agreement(indices)
    require_found(caplog)


def test_an_index_leaves_no_descriptor_and_no_map_open(corpus: Corpus) -> None:
    """Made, found, or of no use."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with indices_of(corpus) as indices:
            require_agreement(indices)
        assert "-packed-1-" not in Path("/proc/self/maps").read_text()
    flip(lambda size, text: 0)(kept_files(folder_of(corpus))[0])
    with indices_of(corpus) as indices:
        require_agreement(indices)
    assert len(os.listdir("/proc/self/fd")) == before
