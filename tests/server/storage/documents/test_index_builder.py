"""The file of an index, of document starts and of rows: kept, found again, and never believed if
anything about it is wrong.
"""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
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
from tests.server.storage.documents.starts_corpora import (
    Corpus,
    found_starts,
    opened,
    require_agreement,
    starts_by,
    write_datatrove,
    write_megatron,
    write_olmo,
)
from tests.support.full_disk import FullDisk
from tests.support.waiting import let_time_pass
from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.server.storage.documents import (
    Delimiters,
    RowIndices,
    document_search,
    document_starts_of,
    index_file,
)
from tokenfeed.server.storage.documents.numbers import FOOTER
from tokenfeed.stream import identity

LENGTHS = random_lengths(9)
KEY = packed(50)
END = 3


class Use(Protocol):
    """Opens an index, and requires that it says what the reference says."""

    def __call__(
        self,
        corpus: Corpus,
        cache_dir: Path | None = None,
        *,
        delimiter: int | None = None,
        fingerprint: bytes = FINGERPRINT,
    ) -> None: ...


@dataclass(frozen=True)
class Kind:
    """A kind of index.  what: it holds.  pattern: of its files.  use: opens one."""

    what: str
    pattern: str
    use: Use

    def kept(self, folder: Path) -> list[Path]:
        """Its files in a folder."""
        return sorted(folder.glob(self.pattern))


def use_starts(
    corpus: Corpus,
    cache_dir: Path | None = None,
    *,
    delimiter: int | None = None,
    fingerprint: bytes = FINGERPRINT,
) -> None:
    cache = None if cache_dir is None else str(cache_dir)
    with opened(corpus) as store:
        starts = document_starts_of(
            store, Delimiters(end=delimiter), cache, fingerprint=fingerprint
        )
        assert starts is not None
        with closing(starts):
            assert not starts.require_known().is_held
            require_agreement(starts, corpus)


def use_rows(
    corpus: Corpus,
    cache_dir: Path | None = None,
    *,
    delimiter: int | None = None,
    fingerprint: bytes = FINGERPRINT,
    key: RowsKey = KEY,
) -> None:
    with rows(corpus, cache_dir, delimiter, fingerprint) as indices:
        index = indices.make_now(key)
        bounds = zip(corpus.starts, corpus.counts, strict=True)
        lengths = [np.diff([*starts, count]).tolist() for starts, count in bounds]
        expected = rows_by_reference(lengths, key)
        assert rows_of(index.pieces(np.arange(index.row_count))) == expected


@contextmanager
def rows(
    corpus: Corpus, cache_dir: Path | None, delimiter: int | None, fingerprint: bytes
) -> Iterator[RowIndices]:
    """The rows of a corpus, whose starts are in memory."""
    with opened(corpus) as store:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_file, "MEMORY_BYTES_MAX", 1 << 20)
            starts = known_starts(store, Delimiters(end=delimiter))
        cache = None if cache_dir is None else str(cache_dir)
        indices = RowIndices(store, starts, delimiter, cache, fingerprint)
        with closing(starts), closing(indices):
            yield indices


STARTS = Kind("document borders", ".*.tokenfeed-documents*", use_starts)
ROWS = Kind("rows of packed-1 for context length 50", ".*.tokenfeed-p*", use_rows)


@pytest.fixture(params=[STARTS, ROWS], ids=["starts", "rows"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In these tests, a kibibyte of numbers is much."""
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 1 << 10)


@pytest.fixture(autouse=True)
def logs_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Three files with 900 documents."""
    return write_documents(tmp_path / "corpus", LENGTHS)


def folder_of(corpus: Corpus) -> Path:
    return Path(corpus.paths[0]).parent


class Said:
    """What is logged of one kind, which is forgotten once it was looked at."""

    def __init__(self, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
        self._what = kind.what.partition(" ")[0]
        self._caplog = caplog

    def all(self) -> list[str]:
        found = [message for message in self._caplog.messages if message.startswith(self._what)]
        self._caplog.clear()
        return found

    def require_made(self, *warnings: str) -> None:
        """Require that the index was made, with these warnings before."""
        messages = self.all()
        assert " made dataset=train " in messages[-1]
        assert len(messages) == len(warnings) + 1, messages
        for message, warning in zip(messages, warnings, strict=False):
            assert warning in message

    def require_found(self) -> None:
        (message,) = self.all()
        assert " found dataset=train " in message


@pytest.fixture
def said(kind: Kind, caplog: pytest.LogCaptureFixture) -> Said:
    return Said(kind, caplog)


def test_an_index_is_made_once_and_found_again(kind: Kind, corpus: Corpus, said: Said) -> None:
    """That of a large corpus takes minutes; and it has the same bytes wherever it is made."""
    kind.use(corpus)
    said.require_made()
    (path,) = kind.kept(folder_of(corpus))
    assert path.name.startswith(".00000.ds.")
    assert path.stat().st_mode & 0o777 == 0o644
    before, content = path.stat(), path.read_bytes()

    kind.use(corpus)
    said.require_found()
    assert path.stat() == before
    assert kind.kept(folder_of(corpus)) == [path]
    path.unlink()
    kind.use(corpus)
    assert path.read_bytes() == content


@pytest.mark.parametrize("key", [KEY, packed(3000), padded(50), padded(50, "drop")], ids=str)
def test_rows_of_each_order_and_length_have_a_file(corpus: Corpus, key: RowsKey) -> None:
    """A server may deliver several."""
    for _ in range(2):
        use_rows(corpus, key=key)
    (path,) = ROWS.kept(folder_of(corpus))
    what = f"{key.order}-{key.long_documents}-{key.context_length}"
    assert re.search(rf"\.tokenfeed-{what}-[0-9a-f]{{8}}$", path.name)


@pytest.fixture
def delimited(write_tokens: WriteTokens) -> Corpus:
    """Two files in which a tenth of all tokens ends a document."""
    random = np.random.default_rng(7)
    files = [random.integers(0, 10, 9000) for _ in range(2)]
    paths = [str(write_tokens(file, f"corpus/{at}.bin")) for at, file in enumerate(files)]
    return by(END, Corpus(paths, [], [9000, 9000]))


def by(end: int, corpus: Corpus) -> Corpus:
    """The same files, with another delimiter."""
    files = [np.fromfile(path, "<u2").tolist() for path in corpus.paths]
    return Corpus(corpus.paths, [starts_by(file, end, None) for file in files], corpus.counts)


def test_a_search_is_made_once_and_found_again(
    delimited: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens would be read again."""
    use_starts(delimited, delimiter=END)
    monkeypatch.setattr(
        document_search, "delimited_parts", lambda *_: pytest.fail("searched again")
    )
    use_starts(delimited, delimiter=END)


def test_servers_with_different_delimiters_find_their_own_file_again(
    kind: Kind, delimited: Corpus, said: Said
) -> None:
    """On the same folder, each would make its own at each start."""
    for require in (said.require_made, said.require_found):
        for delimiter in (END, END + 1):
            kind.use(by(delimiter, delimited), delimiter=delimiter)
            require()
    assert len(kind.kept(folder_of(delimited))) == 2


def test_few_starts_of_an_index_stay_in_memory_and_are_not_kept(tmp_path: Path) -> None:
    """They are read from the index sooner than from a file."""
    few = write_datatrove(tmp_path, [[3, 4, 5]])
    with found_starts(few) as found:
        assert found.require_known().is_held
        require_agreement(found, few)
    assert list(tmp_path.glob(".*")) == []


def test_few_rows_are_kept_too(tmp_path: Path) -> None:
    """Also if they are read into memory."""
    corpus = write_documents(tmp_path / "few", [[9, 3, 1, 4, 2]])
    for _ in range(2):
        use_rows(corpus)
        assert len(ROWS.kept(folder_of(corpus))) == 1


def test_a_corpus_without_a_row_has_an_index_of_none(tmp_path: Path) -> None:
    """Documents of one token have no target."""
    corpus = write_documents(tmp_path / "single", [[1, 1], [1]])
    for _ in range(2):
        with indices_of(corpus) as indices:
            index = indices.make_now(KEY)
            assert (index.row_count, index.row_pieces_max, index.stats.single) == (0, 0, 3)
            assert list(index.rows_of(0, np.array([0]), np.array([2]), 9)) == []


def test_the_cache_folder_is_used_where_it_is_given(
    kind: Kind, corpus: Corpus, tmp_path: Path, said: Said
) -> None:
    """Two corpora whose files have the same names are told apart in it."""
    cache = tmp_path / "cache" / "inner"
    both = (corpus, write_documents(tmp_path / "other", [[1] * 500, [2] * 500, [1] * 500]))
    for require in (said.require_made, said.require_found):
        for each in both:
            kind.use(each, cache)
            require()
            assert kind.kept(folder_of(each)) == []
    assert len(kind.kept(cache)) == 2


def test_a_file_beside_the_tokens_is_found_by_a_server_with_a_cache(
    kind: Kind, corpus: Corpus, tmp_path: Path, said: Said
) -> None:
    kind.use(corpus)
    said.require_made()
    kind.use(corpus, tmp_path / "cache")
    said.require_found()


def test_a_folder_of_tokens_may_be_moved(
    kind: Kind, corpus: Corpus, tmp_path: Path, said: Said
) -> None:
    """Other machines mount it elsewhere."""
    kind.use(corpus)
    said.require_made()
    folder_of(corpus).rename(tmp_path / "moved")
    paths = [str(tmp_path / "moved" / Path(path).name) for path in corpus.paths]

    kind.use(Corpus(paths, corpus.starts, corpus.counts, None))
    said.require_found()


Change = Callable[[Path], object]


def overwrite(first_byte: int, content: bytes) -> Change:
    """Write at a byte, counted from the end if it is below 0."""

    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        place = first_byte % len(data)
        data[place : place + len(content)] = content
        path.write_bytes(data)

    return change


def flip(place: Callable[[int, int], int]) -> Change:
    """Flip a bit at a place that depends on the sizes of the file and its description."""

    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        text_bytes = int.from_bytes(data[-48:-40], "little")
        data[place(len(data), text_bytes)] ^= 4
        path.write_bytes(data)

    return change


def seal_of(numbers: bytes, table: bytes, text: bytes) -> bytes:
    """What the file says of its content, written from its description alone."""
    blocks = [numbers[first:end] for first, end in identity.content_blocks(len(numbers))]
    hashes = b"".join(hashlib.sha256(block).digest() for block in blocks)
    return hashlib.sha256(hashes + table + text).digest()


def describe_otherwise(
    own: Mapping[str, Any] = MappingProxyType({}),
    stats: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> Change:
    """Replace a part of the description, and seal it again.

    own: of the facts of this kind.  stats: of the figures of rows.
    """

    def change(path: Path) -> None:
        data = path.read_bytes()
        text = data[-48 - int.from_bytes(data[-48:-40], "little") : -48]
        description = json.loads(text)
        numbers_bytes = 8 * description["counts"][0]
        numbers, table = data[:numbers_bytes], data[numbers_bytes : -48 - len(text)]
        assert data[-40:-8] == seal_of(numbers, table, text)
        new = {**description["facts"], **own}
        if stats:
            new["stats"] = {**new["stats"], **stats}
        text = json.dumps({**description, "facts": new, **changes}).encode()
        end = len(text).to_bytes(8, "little") + seal_of(numbers, table, text) + FOOTER
        path.write_bytes(numbers + table + text + end)

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


DAMAGE: dict[str, Change] = {
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(FOOTER),
    "without its end": lambda path: os.truncate(path, path.stat().st_size - 1),
    "without its half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "half-written": lambda path: path.write_bytes(path.read_bytes()[:4096] + bytes(5000)),
    "with a byte more": lambda path: path.write_bytes(path.read_bytes() + b"1"),
    "without a number": lambda path: path.write_bytes(path.read_bytes()[8:]),
    "with a number more": lambda path: path.write_bytes(bytes(8) + path.read_bytes()),
    "another number": overwrite(8 * 5, b"\1"),
    "a bit of the first number": flip(lambda size, text: 0),
    "a bit before the description": flip(lambda size, text: size - 48 - text - 8),
    "a bit of the description": flip(lambda size, text: size - 48 - text // 2),
    "a bit of its length": flip(lambda size, text: size - 48),
    "a high bit of its length": flip(lambda size, text: size - 41),
    "a giant description": overwrite(-48, b"\xff" * 8),
    "a bit of the hash": flip(lambda size, text: size - 20),
    "a bit of the footer": flip(lambda size, text: size - 1),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "noise": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "a pipe": become_a_pipe,
    "a link": become_a_link,
    "a list": lambda path: path.write_bytes(
        b"[]" + (2).to_bytes(8, "little") + seal_of(b"", b"", b"[]") + FOOTER
    ),
    "of another version": describe_otherwise(version=0),
    "of other tokens": describe_otherwise(tokens="00" * 32),
    "with no facts": describe_otherwise(facts=None),
    "with counts below 0": describe_otherwise(counts=[-1, 5]),
    "with words as counts": describe_otherwise(counts=["x", "y"]),
}
DAMAGE_OF_STARTS = {
    "with a count of 0": describe_otherwise({"counts": [0, 600, 300]}),
    "with huge counts": describe_otherwise({"counts": [1 << 70, 300, 300]}),
    "with more counts": describe_otherwise({"counts": [300, 300, 301]}),
    "with too few counts": describe_otherwise({"counts": [900]}),
    "with words as counts": describe_otherwise({"counts": ["x", "y", "z"]}),
}
DAMAGE_OF_ROWS = {
    "with too few files": describe_otherwise({"pieces": [5], "rows": [5]}),
    "with words as counts": describe_otherwise({"pieces": ["x", "y", "z"]}),
    "with huge counts": describe_otherwise({"rows": [1 << 70, 1, 1]}),
    "with a count below 0": describe_otherwise({"rows": [-1, 1, 1]}),
    "with other figures": describe_otherwise({"stats": {"pieces": 5, "rows": 5}}),
    "with unknown figures": describe_otherwise({"stats": {"unknown": 5}}),
    "with words as figures": describe_otherwise(stats={"targets": "x"}),
    "with fractions as figures": describe_otherwise(stats={"documents": 1e3}),
    "with a figure below 0": describe_otherwise(stats={"cropped": -1}),
    "with more documents than tokens": describe_otherwise(stats={"documents": 1 << 40}),
    "with more dropped than documents": describe_otherwise(stats={"dropped": 1 << 20}),
    "with more cropped than tokens": describe_otherwise(stats={"cropped": 1 << 40}),
    "with more targets than positions": describe_otherwise(stats={"targets": 1 << 70}),
    "with pieces without targets": describe_otherwise(stats={"targets": 1}),
    "with huge rows": describe_otherwise(stats={"row_pieces_max": 26}),
    "with empty rows": describe_otherwise(stats={"row_pieces_max": 0}),
    "with no hash of pieces": describe_otherwise({"pieces_hash": ""}),
}


def require_ignored(kind: Kind, corpus: Corpus, said: Said, damage: Change, *text: str) -> None:
    """Require that a damaged file is a warning, and made again."""
    kind.use(corpus)
    said.require_made()
    (path,) = kind.kept(folder_of(corpus))
    damage(path)

    kind.use(corpus)
    said.require_made(f"{kind.what} ignored file={path.name}: it ")
    kind.use(corpus)
    said.require_found()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_a_warning_and_made_again(
    kind: Kind, corpus: Corpus, said: Said, damage: Change
) -> None:
    """Wrong documents would be learned; an error would stop a server that needs none."""
    require_ignored(kind, corpus, said, damage)


@pytest.mark.parametrize("damage", DAMAGE_OF_STARTS.values(), ids=DAMAGE_OF_STARTS)
def test_facts_that_starts_cannot_have_are_damage(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, damage: Change
) -> None:
    """They lead to other numbers, or behind the end of the map."""
    require_ignored(STARTS, corpus, Said(STARTS, caplog), damage)


@pytest.mark.parametrize("damage", DAMAGE_OF_ROWS.values(), ids=DAMAGE_OF_ROWS)
def test_facts_that_rows_cannot_have_are_damage(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, damage: Change
) -> None:
    """They are told to clients, and lead to other numbers."""
    require_ignored(ROWS, corpus, Said(ROWS, caplog), damage)


def test_every_bit_of_the_file_counts(kind: Kind, corpus: Corpus, said: Said) -> None:
    """In the numbers, in what describes them, and in what ends them."""
    kind.use(corpus)
    (path,) = kind.kept(folder_of(corpus))
    right = path.read_bytes()
    said.all()
    random = np.random.default_rng(3)
    for place in random.integers(0, len(right), 40).tolist():
        wrong = bytearray(right)
        wrong[place] ^= 1 << int(random.integers(8))
        path.write_bytes(wrong)
        kind.use(corpus)
        said.require_made(f"{kind.what} ignored file={path.name}: it ")
        assert path.read_bytes() == right, place


@pytest.fixture
def sampled_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash covers a sample of the numbers, as it does above 2^30 bytes."""
    monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 12)
    monkeypatch.setattr(identity, "SPREAD_BLOCKS", 9)
    monkeypatch.setattr(identity, "SPREAD_BLOCK_BYTES", 100)


@pytest.mark.usefixtures("sampled_blocks")
@pytest.mark.parametrize("number", [0, 3])
def test_of_many_numbers_a_sample_is_checked(
    corpus: Corpus, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its blocks begin within numbers. Not all of a terabyte is read at each start."""
    said = Said(ROWS, caplog)
    for require in (said.require_made, said.require_found):
        use_rows(corpus)
        require()
    overwrite(8 * number, b"\xfe")(ROWS.kept(folder_of(corpus))[0])
    use_rows(corpus)
    said.require_made("it is damaged")


def test_a_folder_in_its_place_is_a_warning_and_a_temporary_file(
    kind: Kind, corpus: Corpus, said: Said
) -> None:
    """A rename cannot replace it."""
    kind.use(corpus)
    become_a_folder(kind.kept(folder_of(corpus))[0])
    said.all()

    kind.use(corpus)
    said.require_made("it is not a regular file", "not kept", "pass --cache-dir")


CHANGES: dict[str, Change] = {
    "touched tokens": lambda path: os.utime(path),
    "other tokens": lambda path: path.write_bytes(b"\2" * path.stat().st_size),
    "touched index": lambda path: os.utime(f"{path}.index"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_starts_of_files_that_have_changed_are_made_again(
    corpus: Corpus, caplog: pytest.LogCaptureFixture, change: Change
) -> None:
    said = Said(STARTS, caplog)
    use_starts(corpus)
    said.require_made()
    let_time_pass(Path(corpus.paths[1]))
    change(Path(corpus.paths[1]))

    use_starts(corpus)
    said.require_made("it was made from other files, or with another delimiter")


@pytest.mark.parametrize("write", [write_megatron, write_olmo])
def test_another_index_of_the_same_tokens_is_not_mistaken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Callable[..., Corpus]
) -> None:
    """The tokens are those of before, and their documents are others."""
    said = Said(STARTS, caplog)
    use_starts(write(tmp_path, [[2] * 500]))
    said.require_made()
    other = write(tmp_path, [[1, 3] * 250])
    os.utime(other.paths[0], ns=(0, 0))

    use_starts(other)
    said.require_made("it was made from other files")


def test_an_index_of_other_tokens_is_made_again(kind: Kind, corpus: Corpus, said: Said) -> None:
    """Files of the same sizes may have another content."""
    kind.use(corpus)
    said.require_made()
    kind.use(corpus, fingerprint=bytes(32))
    said.require_made("it was made from other ")


def test_rows_of_other_documents_of_the_same_tokens_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The index of the documents was replaced."""
    for lengths in ([[20] * 500], [[10, 30] * 250]):
        use_rows(write_documents(tmp_path / "corpus", lengths))
        Said(ROWS, caplog).require_made()


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
    said = Said(ROWS, caplog)
    use_rows(corpus)
    said.require_made()
    (path,) = ROWS.kept(folder_of(corpus))
    path.rename(path.with_name(path.name.replace("-50-", "-60-")))

    use_rows(corpus, key=packed(60))
    said.require_made("it was made from other documents, or for other rows")


def test_starts_by_another_delimiter_are_not_mistaken(
    delimited: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the file was given their name."""
    said, files = Said(STARTS, caplog), set[Path]()
    for delimiter in (END, END + 1):
        use_starts(by(delimiter, delimited), delimiter=delimiter)
        said.require_made()
        (path,) = set(STARTS.kept(folder_of(delimited))) - files
        files.add(path)
    (other,) = files - {path}
    other.replace(path)

    use_starts(by(END + 1, delimited), delimiter=END + 1)
    said.require_made("it was made from other files, or with another delimiter")


def test_a_file_that_cannot_be_opened_is_a_warning(
    kind: Kind, corpus: Corpus, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user made it."""
    kind.use(corpus)
    said.require_made()
    right, path = os.open, kind.kept(folder_of(corpus))[0]

    def refuse(opened: Any, flags: int, *rest: Any, **others: Any) -> int:
        if opened == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return right(opened, flags, *rest, **others)

    monkeypatch.setattr(os, "open", refuse)

    kind.use(corpus)
    said.require_made("it cannot be read: Permission denied")


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


def test_a_file_system_without_files_without_names_is_no_obstacle(
    kind: Kind, corpus: Corpus, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS has none. The file then has a name of its own until it is complete."""
    open_as_ever = os.open

    def open_named(path: object, flags: int, *more: object, **names: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return open_as_ever(path, flags, *more, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", open_named)
    for require in (said.require_made, said.require_found):
        kind.use(corpus)
        require()
        assert len(kind.kept(folder_of(corpus))) == 1


@pytest.mark.parametrize("room_bytes", [0, 1, 1500, 8 * 900, 8 * 900 + 100, 12_000])
def test_a_disk_that_gets_full_leaves_nothing_and_the_next_folder_is_used(
    kind: Kind,
    corpus: Corpus,
    tmp_path: Path,
    full_disk: FullDisk,
    said: Said,
    room_bytes: int,
) -> None:
    """In the middle of the numbers, or behind them; what was written is not made again."""
    if kind is STARTS and room_bytes > 8 * 900 + 100:
        room_bytes = 8 * 900 + 8 * 15 + 100  # within the description
    cache = tmp_path / "cache"
    full_disk.room_bytes[str(cache)] = room_bytes

    kind.use(corpus, cache)
    said.require_made(f"{kind.what} not kept dataset=train file=.")
    assert kind.kept(cache) == []
    assert len(kind.kept(folder_of(corpus))) == 1


@pytest.mark.parametrize("room_bytes", [0, 5000])
def test_where_no_folder_can_be_written_a_temporary_file_is_used(
    kind: Kind,
    corpus: Corpus,
    tmp_path: Path,
    temporary: Path,
    full_disk: FullDisk,
    said: Said,
    room_bytes: int,
) -> None:
    """A server works without a place of its own, and says what it would need."""
    cache = tmp_path / "cache"
    full_disk.room_bytes |= {str(cache): room_bytes, str(folder_of(corpus)): room_bytes}

    kind.use(corpus, cache)
    said.require_made("No space left", "No space left", "pass --cache-dir with a folder that can")
    assert kind.kept(cache) + kind.kept(folder_of(corpus)) + list(temporary.iterdir()) == []


def test_where_nothing_can_be_written_the_error_says_what_helps(
    kind: Kind, corpus: Corpus, temporary: Path, full_disk: FullDisk
) -> None:
    full_disk.room_bytes |= {str(temporary): 3000, str(folder_of(corpus)): 6000}
    problem = "can be written nowhere: No space left on device; pass --cache-dir"

    with pytest.raises(InvalidCorpus, match=rf"00000\.ds: its {kind.what} {problem}"):
        kind.use(corpus)
    assert kind.kept(folder_of(corpus)) + list(temporary.iterdir()) == []


def test_few_rows_need_no_place(
    corpus: Corpus,
    temporary: Path,
    full_disk: FullDisk,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They fit in memory, and are made again at the next start."""
    monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", 1 << 20)
    full_disk.room_bytes |= {str(temporary): 0, str(folder_of(corpus)): 0}

    use_rows(corpus)
    Said(ROWS, caplog).require_made("No space left")
    assert ROWS.kept(folder_of(corpus)) + list(temporary.iterdir()) == []


def test_a_sync_that_fails_is_a_full_disk_too(
    kind: Kind, corpus: Corpus, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems report it only then."""
    right = os.fsync

    def fail(descriptor: int) -> None:
        if "/cache/" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        right(descriptor)

    monkeypatch.setattr(os, "fsync", fail)

    kind.use(corpus, tmp_path / "cache")
    said.require_made("Disk quota exceeded")
    assert kind.kept(tmp_path / "cache") == []
    assert len(kind.kept(folder_of(corpus))) == 1


def test_a_start_that_fails_leaves_no_file(corpus: Corpus) -> None:
    """Nor a descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    with opened(corpus) as store:
        content = np.fromfile(f"{corpus.paths[2]}.index", "<u8")
        content[-2] = 0
        content.tofile(f"{corpus.paths[2]}.index")
        with pytest.raises(InvalidCorpus, match=r"00002\.ds\.index: document ends have to ascend"):
            document_starts_of(store)

    assert list(folder_of(corpus).glob(".*")) == []
    assert len(os.listdir("/proc/self/fd")) == before


# Makes an index once it is told to, and may kill itself on the way.
MAKE = """
import os, signal, sys
from tokenfeed.server.storage.documents import index_builder, index_file
from tests.server.storage.documents.starts_corpora import Corpus, found_starts
from tests.server.storage.documents.rows_corpora import indices_of, packed

index_file.MEMORY_BYTES_MAX = 1 << 10
what, killed_at, *paths = sys.argv[1:]
corpus = Corpus(paths, [], [], None)

def kill(progress, share):
    if share > float(killed_at):
        os.kill(os.getpid(), signal.SIGKILL)

print("ready", flush=True)
sys.stdin.readline()
index_builder.Progress.take = kill
if what == "starts":
    with found_starts(corpus):
        pass
else:
    with indices_of(corpus) as indices:
        indices.make_now(packed(50))
"""


def making(kind: Kind, corpus: Corpus, killed_at: float) -> subprocess.Popen[str]:
    """A process that makes an index once it is told to."""
    what = "starts" if kind is STARTS else "rows"
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, what, str(killed_at), *corpus.paths],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("killed_at", [0.0, 0.5, 0.99])
def test_a_process_that_is_killed_while_it_makes_an_index_leaves_nothing(
    kind: Kind, corpus: Corpus, said: Said, killed_at: float
) -> None:
    """The next one makes all of it, and warns of nothing."""
    if kind is ROWS:  # which need the starts
        use_starts(corpus, fingerprint=b"")
    before = sorted(folder_of(corpus).iterdir())
    process = making(kind, corpus, killed_at)
    process.communicate("\n", timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert sorted(folder_of(corpus).iterdir()) == before
    said.all()

    kind.use(corpus)
    said.require_made()


def test_two_processes_that_make_an_index_at_once_end_with_one_good_file(
    kind: Kind, corpus: Corpus, said: Said
) -> None:
    """Both rename a complete file into its place."""
    both = [making(kind, corpus, 2.0) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=30)
        assert process.returncode == 0

    assert len(kind.kept(folder_of(corpus))) == 1
    kind.use(corpus, fingerprint=b"" if kind is STARTS else FINGERPRINT)
    said.require_found()


def test_an_index_leaves_no_descriptor_and_no_map_open(kind: Kind, corpus: Corpus) -> None:
    """Made, found, or of no use."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        kind.use(corpus)
        assert ".tokenfeed-" not in Path("/proc/self/maps").read_text()
    flip(lambda size, text: 0)(kind.kept(folder_of(corpus))[0])
    kind.use(corpus)
    assert ".tokenfeed-" not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) == before
