"""The file of entries: kept, found again, and never believed if anything about it is wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
from tests.server.storage.borders.naive import (
    Corpus,
    borders,
    naive_fingerprint,
    naive_rows,
    opened,
    random_windows,
    require_agreement,
    rows_of,
    starts_by,
    write_datatrove,
    write_megatron,
    write_olmo,
)
from tests.support.full_disk import FullDisk
from tests.support.waiting import let_time_pass
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.storage.borders import Delimiters, opening, writing
from tokenfeed.server.storage.borders.reading import FOOTER, MappedEntries, MemoryEntries
from tokenfeed.stream import identity
from tokenfeed.stream.planes import DOCUMENT_STARTS

END = 3


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In these tests, a kibibyte of entries is much."""
    monkeypatch.setattr(writing, "MEMORY_BYTES_MAX", 1 << 10)


@pytest.fixture(autouse=True)
def logs_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Three files with 1,500 documents."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    random = np.random.default_rng(6)
    return write_datatrove(folder, [random.integers(1, 9, 500).tolist() for _ in range(3)])


@pytest.fixture
def delimited(write_tokens: WriteTokens) -> Corpus:
    """Two files in which a tenth of all tokens ends a document."""
    random = np.random.default_rng(7)
    files = [random.integers(0, 10, 9000) for _ in range(2)]
    paths = [str(write_tokens(file, f"corpus/{at}.bin")) for at, file in enumerate(files)]
    starts = [starts_by(file.tolist(), END, None) for file in files]
    return Corpus(paths, starts, [9000, 9000])


def kept(folder: Path) -> list[Path]:
    """All that lies hidden in a folder."""
    return sorted(folder.glob(".*"))


def folder_of(corpus: Corpus) -> Path:
    return Path(corpus.paths[0]).parent


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, which is forgotten then."""
    found = list(caplog.messages)
    caplog.clear()
    return found


def require_made(caplog: pytest.LogCaptureFixture, *beginnings: str) -> None:
    """Require that borders were made, with these warnings before."""
    messages = said(caplog)
    made = messages[-1].startswith("document borders made dataset=train documents=")
    assert made
    assert len(messages) == len(beginnings) + 1, messages
    for message, beginning in zip(messages, beginnings, strict=False):
        assert beginning in message


def require_found(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = said(caplog)
    assert message.startswith("document borders found dataset=train documents=")


def test_borders_are_made_once_and_found_again(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """A large index takes minutes to read."""
    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_made(caplog)
    (path,) = kept(folder_of(corpus))
    assert path.name.startswith(".00000.ds.")
    assert path.name.endswith(".tokenfeed-documents")
    assert path.stat().st_mode & 0o777 == 0o644

    with borders(corpus) as found:
        assert isinstance(found._entries, MappedEntries)
        require_agreement(found, corpus)
    require_found(caplog)
    assert kept(folder_of(corpus)) == [path]


def test_a_search_is_made_once_and_found_again(
    delimited: Corpus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens would be read again."""
    with borders(delimited, Delimiters(end=END)) as found:
        require_agreement(found, delimited)
    require_made(caplog)
    monkeypatch.setattr(opening, "delimited_parts", lambda *_: pytest.fail("searched again"))

    with borders(delimited, Delimiters(end=END)) as found:
        require_agreement(found, delimited)
    require_found(caplog)


def test_few_borders_stay_in_memory_and_are_not_kept(tmp_path: Path) -> None:
    """They are read from the index sooner than from a file."""
    few = write_datatrove(tmp_path, [[3, 4, 5]])
    with borders(few) as found:
        assert isinstance(found._entries, MemoryEntries)
        require_agreement(found, few)
    assert kept(tmp_path) == []


def test_the_cache_folder_is_used_where_it_is_given(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two corpora whose files have the same names are told apart in it."""
    cache = tmp_path / "cache" / "inner"
    (tmp_path / "other").mkdir()
    other = write_datatrove(tmp_path / "other", [[1] * 500, [2] * 500, [1] * 500])
    for each in (corpus, other):
        with borders(each, cache_dir=cache) as found:
            require_agreement(found, each)
        require_made(caplog)
    for each in (corpus, other):
        with borders(each, cache_dir=cache) as found:
            require_agreement(found, each)
        require_found(caplog)
        assert kept(folder_of(each)) == []
    assert len(kept(cache)) == 2


def test_borders_beside_the_tokens_are_found_by_a_server_with_a_cache(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with borders(corpus):
        require_made(caplog)
    with borders(corpus, cache_dir=tmp_path / "cache") as found:
        require_agreement(found, corpus)
    require_found(caplog)


def test_a_folder_of_tokens_may_be_moved(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other machines mount it elsewhere."""
    with borders(corpus):
        require_made(caplog)
    folder_of(corpus).rename(tmp_path / "moved")
    paths = [str(tmp_path / "moved" / Path(path).name) for path in corpus.paths]

    with borders(Corpus(paths, corpus.starts, corpus.counts, None)) as found:
        require_agreement(found, corpus)
    require_found(caplog)


def overwrite(first_byte: int, content: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        place = first_byte % len(data)
        data[place : place + len(content)] = content
        path.write_bytes(data)

    return change


def describe_otherwise(**changes: Any) -> Callable[[Path], None]:
    """Replace a part of the description, and seal it again."""

    def change(path: Path) -> None:
        data = path.read_bytes()
        size_bytes = int.from_bytes(data[-48:-40], "little")
        text = json.loads(data[-48 - size_bytes : -48])
        new = json.dumps({**text, **changes}).encode()
        seal = len(new).to_bytes(8, "little") + hashlib.sha256(new).digest() + FOOTER
        path.write_bytes(data[: -48 - size_bytes] + new + seal)

    return change


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(b"TKFDOCS1"),
    "without its end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "without its half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "with a byte more": lambda path: path.write_bytes(path.read_bytes() + b"1"),
    "without an entry": lambda path: path.write_bytes(path.read_bytes()[8:]),
    "with an entry more": lambda path: path.write_bytes(bytes(8) + path.read_bytes()),
    "another entry": overwrite(8 * 5, b"\1"),
    "another last entry": overwrite(8 * 1499, b"\xff\xff"),
    "another entry in memory": overwrite(8 * 1503, b"\xff"),
    "another description": overwrite(-100, b"x"),
    "a giant description": overwrite(-48, b"\xff" * 8),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "noise": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "a pipe": become_a_pipe,
    "a link": become_a_link,
    "of another version": describe_otherwise(version=2),
    "of another type": describe_otherwise(dtype="uint32"),
    "with other counts": describe_otherwise(entries=[499, 501, 500]),
    "with a count of 0": describe_otherwise(entries=[0, 1000, 500]),
    "with huge counts": describe_otherwise(entries=[1 << 70, 500, 500]),
    "with too few counts": describe_otherwise(entries=[1500]),
    "with words as counts": describe_otherwise(entries=["x", "y", "z"]),
    "with another fingerprint": describe_otherwise(fingerprint="00" * 32),
    "with no fingerprint": describe_otherwise(fingerprint="none"),
    "with another hash": describe_otherwise(sparse_sha256="00" * 32),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_a_warning_and_made_again(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object]
) -> None:
    """Wrong borders would be learned; an error would stop a server that needs none."""
    with borders(corpus):
        require_made(caplog)
    (path,) = kept(folder_of(corpus))
    damage(path)

    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_made(caplog, f"document borders ignored file={path.name}: it ")
    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_found(caplog)


def test_the_first_entry_of_each_file_has_to_be_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the hashes are those of the entries: another program may have made it."""
    corpus = write_datatrove(tmp_path, [[5] * 500] * 3)
    with borders(corpus):
        require_made(caplog)
    (path,) = kept(tmp_path)
    overwrite(8 * 500, b"\1")(path)
    wrong = naive_fingerprint([corpus.starts[0], [1, *corpus.starts[1][1:]], corpus.starts[2]])
    describe_otherwise(fingerprint=wrong.hex())(path)

    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_made(caplog, "it has entries that do not ascend")


@pytest.fixture
def sampled_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint covers a sample of the entries, as it does above 2^30 bytes."""
    monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 12)
    monkeypatch.setattr(identity, "SPREAD_BLOCKS", 9)
    monkeypatch.setattr(identity, "SPREAD_BLOCK_BYTES", 100)


@pytest.mark.usefixtures("sampled_blocks")
@pytest.mark.parametrize("entry", [0, 3, 1499])
def test_of_many_entries_a_sample_is_checked(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, entry: int
) -> None:
    """Its blocks begin within entries. Not all of a terabyte is read at each start."""
    content = b"".join(np.array(one, "<i8").tobytes() for one in corpus.starts)
    blocks = [hashlib.sha256(content[a:b]).digest() for a, b in identity.content_blocks(12_000)]
    assert len(blocks) == 9
    expected = identity.plane_fingerprint(DOCUMENT_STARTS, [500] * 3, blocks)
    for require in (require_made, require_found):
        with borders(corpus) as found:
            assert found.fingerprint == expected
            spans = random_windows(corpus.counts, 100)
            assert rows_of(found.read(spans)) == naive_rows(corpus.starts, spans)
        require(caplog)

    overwrite(8 * entry, b"\xfe")(kept(folder_of(corpus))[0])
    with borders(corpus) as found:
        assert found.fingerprint == expected
    require_made(caplog, "document borders ignored")


def test_a_folder_in_its_place_is_a_warning_and_a_temporary_file(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """A rename cannot replace it."""
    with borders(corpus):
        require_made(caplog)
    become_a_folder(kept(folder_of(corpus))[0])

    with borders(corpus) as found:
        require_agreement(found, corpus)
    ignored, not_kept, temporary, _ = said(caplog)
    assert "it is not a regular file" in ignored
    assert "not kept" in not_kept
    assert "pass --cache-dir" in temporary


CHANGES: dict[str, Callable[[Path], object]] = {
    "touched tokens": lambda path: os.utime(path),
    "other tokens": lambda path: path.write_bytes(b"\2" * path.stat().st_size),
    "touched index": lambda path: os.utime(f"{path}.index"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_borders_of_files_that_have_changed_are_made_again(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object]
) -> None:
    with borders(corpus):
        require_made(caplog)
    let_time_pass(Path(corpus.paths[1]))
    change(Path(corpus.paths[1]))

    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_made(caplog, "it was made from other files, or with another delimiter")


@pytest.mark.parametrize("write", [write_megatron, write_olmo])
def test_another_index_of_the_same_tokens_is_not_mistaken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Callable[..., Corpus]
) -> None:
    """The tokens are those of before, and their documents are others."""
    with borders(write(tmp_path, [[2] * 500])):
        require_made(caplog)
    other = write(tmp_path, [[1, 3] * 250])
    os.utime(other.paths[0], ns=(0, 0))

    with borders(other) as found:
        require_agreement(found, other)
    require_made(caplog, "it was made from other files")


def test_borders_by_another_delimiter_are_made_again(
    delimited: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    with borders(delimited, Delimiters(end=END + 1)):
        require_made(caplog)
    with borders(delimited, Delimiters(end=END)) as found:
        require_agreement(found, delimited)
    require_made(caplog, "with another delimiter")
    with borders(delimited, Delimiters(start=END)):
        require_made(caplog, "with another delimiter")


def test_a_file_that_cannot_be_opened_is_a_warning(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user made it."""
    with borders(corpus):
        require_made(caplog)
    right = os.open

    def refuse(path: Any, flags: int, *rest: Any, **others: Any) -> int:
        if str(path).endswith(".tokenfeed-documents"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return right(path, flags, *rest, **others)

    monkeypatch.setattr(os, "open", refuse)

    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_made(caplog, "it cannot be read: Permission denied")


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


def test_a_process_that_is_killed_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    """What it wrote is of no use to the next one, which writes all of it again."""
    path = tmp_path / ".00000.ds.0123.tokenfeed-documents"
    code = (
        "import os, signal\n"
        "from tokenfeed.server.storage.kept.spool import Spool\n"
        f"spool = Spool('document borders', 'train', [{str(path)!r}])\n"
        "spool.append(bytes(1 << 20))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False)

    assert done.returncode == -signal.SIGKILL
    assert kept(tmp_path) == []


def test_a_file_system_without_files_without_names_is_no_obstacle(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NFS has none. The file then has a name of its own until it is complete."""
    open_as_ever = os.open

    def open_named(path: object, flags: int, *more: object, **names: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return open_as_ever(path, flags, *more, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_named)
    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_made(caplog)
    assert len(kept(folder_of(corpus))) == 1
    with borders(corpus) as found:
        require_agreement(found, corpus)
    require_found(caplog)


@pytest.mark.parametrize("room_bytes", [0, 1, 1500, 8 * 1500, 8 * 1500 + 100])
def test_a_disk_that_gets_full_leaves_nothing_and_the_next_folder_is_used(
    corpus: Corpus,
    tmp_path: Path,
    full_disk: FullDisk,
    caplog: pytest.LogCaptureFixture,
    room_bytes: int,
) -> None:
    """In the middle of the entries, or behind them; what was written is not made again."""
    cache = tmp_path / "cache"
    full_disk.room_bytes[str(cache)] = room_bytes

    with borders(corpus, cache_dir=cache) as found:
        require_agreement(found, corpus)
    require_made(caplog, "document borders not kept dataset=train file=.")
    assert kept(cache) == []
    assert len(kept(folder_of(corpus))) == 1


@pytest.mark.parametrize("room_bytes", [0, 5000])
def test_where_no_folder_can_be_written_a_temporary_file_is_used(
    corpus: Corpus,
    tmp_path: Path,
    temporary: Path,
    full_disk: FullDisk,
    caplog: pytest.LogCaptureFixture,
    room_bytes: int,
) -> None:
    """A server works without a place of its own, and says what it would need."""
    cache = tmp_path / "cache"
    full_disk.room_bytes |= {str(cache): room_bytes, str(folder_of(corpus)): room_bytes}

    with borders(corpus, cache_dir=cache) as found:
        assert list(temporary.iterdir()) == []
        require_agreement(found, corpus)
    assert "pass --cache-dir" in caplog.messages[2]
    require_made(caplog, "No space left", "No space left", "lie in a temporary file")
    assert kept(cache) + kept(folder_of(corpus)) == []


def test_where_nothing_can_be_written_the_error_says_what_helps(
    corpus: Corpus, temporary: Path, full_disk: FullDisk
) -> None:
    full_disk.room_bytes |= {str(temporary): 3000, str(folder_of(corpus)): 6000}
    problem = "can be written nowhere: No space left on device; pass --cache-dir"

    with pytest.raises(InvalidCorpus, match=rf"00000\.ds: its document borders {problem}"):
        with borders(corpus):
            pass
    assert kept(folder_of(corpus)) + list(temporary.iterdir()) == []


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

    with borders(corpus, cache_dir=tmp_path / "cache") as found:
        require_agreement(found, corpus)
    require_made(caplog, "Disk quota exceeded")
    assert kept(tmp_path / "cache") == []
    assert len(kept(folder_of(corpus))) == 1


def test_a_start_that_fails_leaves_no_file(corpus: Corpus) -> None:
    """Nor a descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    with opened(corpus) as store:
        content = np.fromfile(f"{corpus.paths[2]}.index", "<u8")
        content[-2] = 0
        content.tofile(f"{corpus.paths[2]}.index")
        with pytest.raises(InvalidCorpus, match=r"00002\.ds\.index: document ends have to ascend"):
            opening.borders_of(store)

    assert kept(folder_of(corpus)) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_borders_leave_no_descriptor_and_no_map_open(corpus: Corpus) -> None:
    """Made or found."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with borders(corpus) as found:
            require_agreement(found, corpus)
        assert ".tokenfeed-documents" not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) == before
