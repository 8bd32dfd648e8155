"""Erased tokens: on disk they are gone, and the dataset is still what it was."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.support.redacted_corpora import ERASE, begin_erasure, redact, tokens_of, write_lists
from tests.support.waiting import eventually
from tests.tokenfeed.tools.redact import kills
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.provenance.documents import DatasetDocuments
from tokenfeed.server.datasets.redactions.erased_files import locked_records
from tokenfeed.server.datasets.sources import parse_datasets
from tokenfeed.server.storage.documents import Delimiters
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.tools.redact import erasing
from tokenfeed.tools.redact.__main__ import main
from tokenfeed.tools.verify import main as verify

Open = Callable[..., Dataset]


def known(dataset: Dataset) -> tuple[bytes, bytes, str]:
    return dataset.fingerprint, dataset.digest, dataset.store.dtype.name


def opened(*paths: Path) -> Dataset:
    return kills.opened([*paths])


def test_an_erased_dataset_is_what_it_was(open_: Open, write_tokens: WriteTokens) -> None:
    """Streams, states and replicas agree, whichever of them was erased."""
    one, other = write_tokens(np.arange(1, 3000), "a.bin"), write_tokens(np.arange(9, 80), "b.bin")
    before = known(open_(one, other))
    redact(one, other, "--range=0:5:9", "--range=b.bin:70:71", *ERASE)

    dataset = open_(one, other)
    assert known(dataset) == before
    assert np.fromfile(one, "<u2").tolist() == [*range(1, 6), 0, 0, 0, 0, *range(10, 3000)]
    assert np.fromfile(other, "<u2").tolist() == [*range(9, 79), 0]
    assert dataset.redactions is not None
    assert dataset.redactions.erased is not None
    assert dataset.redactions.erased.ranges.triples() == [(0, 5, 9), (1, 70, 71)]


def test_a_longer_list_is_erased_later(open_: Open, write_tokens: WriteTokens) -> None:
    """Another request to delete comes next week."""
    path = write_tokens(np.arange(1, 3000))
    before = known(open_(path))
    redact(path, "--range=0:5:9", *ERASE)
    redact(path, "--range=0:8:20")
    assert known(open_(path)) == before
    redact(path, *ERASE)

    dataset = open_(path)
    assert known(dataset) == before
    assert np.fromfile(path, "<u2")[:22].tolist() == [1, 2, 3, 4, 5, *[0] * 15, 21, 22]
    assert dataset.redactions is not None
    assert all(dataset.redactions.find(each) is not None for each in dataset.redactions.hashes)
    assert dataset.redactions.erased is not None
    assert dataset.redactions.erased.ranges.token_count == 15


def test_erasing_again_writes_nothing(write_tokens: WriteTokens) -> None:
    """A file's time says when its content changed last."""
    path = write_tokens(np.arange(1, 3000))
    redact(path, "--range=0:5:9", *ERASE)
    files = {each: each.stat() for each in path.parent.iterdir() if each.suffix != ".lock"}
    redact(path, *ERASE)

    for each, before in files.items():
        now = each.stat()
        assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), each


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("uint8", 200), ("int16", 7), ("uint32", 70_000), ("int32", 9), ("uint64", 3), ("int64", 0)],
)
def test_the_stored_type_is_written(
    open_: Open, write_tokens: WriteTokens, dtype: str, fill: int
) -> None:
    """Served tokens are narrower than many stored ones."""
    tokens = np.arange(1, 120)
    tokens[50] = 80_000 if fill > 65_535 else 101
    path = write_tokens(tokens, dtype=f"<{np.dtype(dtype).str[1:]}")
    before = known(open_(path, dtype=dtype))
    given = ("--dtype", dtype, f"--fill={fill}")
    redact(path, *given, "--range=0:3:6", "--range=0:50:51", *ERASE)

    expected = tokens.copy()
    expected[[3, 4, 5, 50]] = fill
    assert np.fromfile(path, dtype).tolist() == expected.tolist()
    assert known(open_(path, dtype=dtype)) == before


def test_the_served_type_stays_if_the_greatest_token_is_erased(
    open_: Open, write_tokens: WriteTokens
) -> None:
    """A client compares it between replicas."""
    path = write_tokens([1, 2, 70_000, 4], dtype="<i4")
    before = known(open_(path, dtype="int32"))
    redact(path, "--dtype", "int32", "--range=0:2:3", *ERASE)

    assert before[2] == "uint32"
    assert known(open_(path, dtype="int32")) == before


@pytest.mark.parametrize("order", ["<", ">"])
def test_headers_stay(open_: Open, tmp_path: Path, order: str) -> None:
    """Tokens begin behind them; numbers of the other byte order are not served at all."""
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(1, 90).astype(f"{order}u2"))
    if order == ">":
        with pytest.raises(InvalidCorpus):
            open_(path)
        return
    before, head = known(open_(path)), path.read_bytes()[:128]
    redact(path, "--range=tokens.npy:0:4", *ERASE)

    assert path.read_bytes()[:128] == head
    assert np.load(path).tolist() == [0, 0, 0, 0, *range(5, 90)]
    assert known(open_(path)) == before


@pytest.mark.skipif(not find_spec("pyarrow"), reason="ingest needs pyarrow")
def test_a_manifest_still_fits(tmp_path: Path, open_: Open) -> None:
    """Its fingerprint and digest are those of the ingest; ids and masks are not touched."""
    from tests.server.ingest.corpus import make_tokenizer, write_jsonl
    from tests.server.ingest.running import ingest

    pages = write_jsonl(tmp_path / "a.jsonl", ({"text": "a b c", "id": str(n)} for n in range(40)))
    tokenizer = make_tokenizer(tmp_path / "tokenizer.json")
    out = tmp_path / "out"
    ingest(pages, "--tokenizer", tokenizer, "--out", out, "--id-column", "id", "--workers", "1")
    (source,) = parse_datasets([str(out)])
    with closing(open_dataset(source, FormatOptions(), TokenChecks())) as dataset:
        before, documents = known(dataset), DatasetDocuments(dataset).by_id("7")
    redact(out, "--id", "7", "--document", "9", "--erase")

    with closing(open_dataset(source, FormatOptions(), TokenChecks())) as dataset:
        assert known(dataset) == before
        assert DatasetDocuments(dataset).by_id("7") == documents
        (document,) = documents
        assert set(tokens_of(dataset, 0, document.first_token, document.end_token)) == {0}
    assert verify([str(out)]) == 0


def test_documents_begin_where_they_began(open_: Open, write_tokens: WriteTokens) -> None:
    """Rows of whole documents would be other rows, of every document behind it."""
    tokens = np.arange(1, 2000)
    tokens[39::40] = 5
    path = write_tokens(tokens)
    delimiters = Delimiters(end=5)

    def starts() -> list[int]:
        dataset = open_(path, delimiters=delimiters)
        assert dataset.document_starts is not None
        starts: list[int] = dataset.document_starts.starts_of(0).tolist()
        return starts

    before = starts()
    end = ("--document-end-token", "5")
    redact(path, *end, "--document=3", "--range=0:500:900", "--erase")

    assert starts() == before
    assert np.fromfile(path, "<u2")[500:900].tolist() == [
        5 if n % 40 == 39 else 0 for n in range(500, 900)
    ]


def test_delimiters_have_to_be_known(
    write_tokens: WriteTokens,
    capsys: pytest.CaptureFixture[str],
    open_: Open,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once they are erased, no search finds the documents again."""
    path = write_tokens(np.arange(300))
    redact(path, "--range=0:5:9")
    assert main([str(path), "--erase"]) == 1
    assert "pass the --document-end-token of its servers" in capsys.readouterr().err
    assert main([str(path), "--erase", "--document-end-token=0"]) == 1
    assert "token 0 would replace others, but it separates documents" in capsys.readouterr().err
    redact(path, *ERASE)
    redact(path, "--range=0:20:30")
    assert main([str(path), "--erase", "--document-end-token=77"]) == 1
    assert "erased before with no delimiter between documents" in capsys.readouterr().err
    open_(path, delimiters=Delimiters(end=77))
    assert "documents may have changed" in caplog.text


def test_delimiters_of_the_list_are_not_erased(
    write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """An erasure without them could not be corrected."""
    path = write_tokens(np.arange(1, 300) % 40)
    end = "--document-end-token=7"
    redact(path, end, "--document=3")
    redact(path, "--range=0:5:9")
    before = path.read_bytes()
    for wrong in ("--no-delimiter", "--document-end-token=8"):
        assert main([str(path), "--erase", wrong]) == 1
        assert (
            "the list was made with 7 between documents; pass the same" in capsys.readouterr().err
        )
    assert path.read_bytes() == before
    redact(path, end, "--erase")

    assert np.count_nonzero(np.fromfile(path, "<u2") == 7) == 8


@pytest.mark.parametrize("left", ["the first file", "the second file", "both"])
def test_a_dataset_is_opened_whichever_of_its_files_are_replaced(
    open_: Open, write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    """A machine may stop at any moment; the same command goes on."""
    paths = [write_tokens(np.arange(1, 300), name) for name in ("a.bin", "b.bin")]
    originals = [path.read_bytes() for path in paths]
    before = known(open_(*paths))
    redact(*paths, "--range=0:5:11", "--range=1:5:11", *ERASE)
    for path, original, name in zip(paths, originals, ("first", "second"), strict=True):
        if name in left or left == "both":
            path.write_bytes(original)

    dataset = open_(*paths)
    assert known(dataset) == before
    assert dataset.redactions is not None
    assert dataset.redactions.erased is not None
    redact(*paths, *ERASE)
    for path in paths:
        assert np.fromfile(path, "<u2")[:12].tolist() == [1, 2, 3, 4, 5, *[0] * 6, 12]
    assert known(open_(*paths)) == before
    assert not list(paths[0].parent.glob("*.tokenfeed-erasing"))


def test_no_byte_of_other_files_is_changed(
    open_: Open, write_tokens: WriteTokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list that says what was erased may be copied beside other tokens."""
    path = write_tokens(np.arange(1, 300))
    redact(path, "--range=0:5:11")
    dataset = open_(path)
    assert dataset.redactions is not None
    content = dataset.redactions.content_now()
    assert content is not None
    assert erasing.begin(dataset.redactions.path, content, dataset.store, dataset.digest, ())
    write_tokens(np.arange(2, 301))
    changed = path.read_bytes()

    assert main([str(path), *ERASE]) == 1
    assert "a file was modified, or the list is of another dataset" in capsys.readouterr().err
    assert path.read_bytes() == changed


def test_tokens_that_are_neither_the_original_nor_the_erased_ones_are_refused(
    open_: Open, write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are another corpus."""
    path = write_tokens(np.arange(1, 300))
    redact(path, "--range=0:5:11", *ERASE)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"xy")

    with pytest.raises(InvalidCorpus, match="is of another dataset"):
        open_(path)
    assert verify([str(path)]) == 1


def test_a_copy_that_is_not_erased_is_served_and_named(
    open_: Open, write_tokens: WriteTokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list is copied to every replica, and each erases its own files."""
    path = write_tokens(np.arange(1, 300), "one/train.bin")
    original = path.read_bytes()
    before = known(open_(path))
    redact(path, "--range=0:5:11", *ERASE)
    replica = shutil.copytree(path.parent, tmp_path / "other") / path.name
    replica.write_bytes(original)

    assert known(open_(replica)) == before
    capsys.readouterr()
    assert verify([str(replica)]) == 0
    assert "not erased in these files" in capsys.readouterr().out
    redact(replica, *ERASE)
    assert replica.read_bytes() == path.read_bytes()
    assert verify([str(replica)]) == 0
    assert "not erased in these files" not in capsys.readouterr().out


def test_a_digest_that_was_kept_stays(
    open_: Open, write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """verify compares with it: it must not say that the files have changed."""
    path = write_tokens(np.arange(1, 3000))
    assert verify([str(path)]) == 0
    expected = next(line for line in capsys.readouterr().out.splitlines() if "digest:" in line)
    redact(path, "--range=0:5:9", *ERASE)
    capsys.readouterr()

    assert verify([str(path)]) == 0
    shown = capsys.readouterr().out
    assert expected in shown
    assert "erased: 4 tokens" in shown


def test_a_file_with_another_name_is_not_erased(
    open_: Open, write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokens would still be there under that name."""
    path = write_tokens(np.arange(1, 300))
    before = known(open_(path))
    os.link(path, path.parent / "other")
    assert main([str(path), "--range=0:5:9", *ERASE]) == 1
    assert "has 2 names (hard links)" in capsys.readouterr().err

    dataset = open_(path)
    assert known(dataset) == before
    assert dataset.redactions is not None
    assert dataset.redactions.hashes == ()
    os.unlink(path.parent / "other")
    redact(path, "--range=0:5:9", *ERASE)
    assert known(open_(path)) == before


def test_the_file_behind_a_link_is_replaced(open_: Open, write_tokens: WriteTokens) -> None:
    """Caches of model hubs have links to files that are named by their hashes."""
    blob = write_tokens(np.arange(1, 300), "blobs/4fa1")
    link = blob.parent.parent / "train.bin"
    link.symlink_to(blob)
    blob.chmod(0o640)
    before = known(open_(link))
    redact(link, "--range=0:5:9", *ERASE)

    assert link.is_symlink()
    assert np.fromfile(blob, "<u2")[4:10].tolist() == [5, 0, 0, 0, 0, 10]
    assert blob.stat().st_mode & 0o777 == 0o640
    assert known(open_(link)) == before


def test_a_file_that_is_twice_in_a_dataset_is_not_erased(
    open_: Open, write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two shards with the same content are links to one file in such a cache."""
    blob = write_tokens(np.arange(1, 300), f"blobs/{'4' * 250}")
    links = [blob.parent.parent / name for name in ("a.bin", "b.bin")]
    for link in links:
        link.symlink_to(blob)
    before = known(open_(*links))
    assert main([*map(str, links), "--range=0:5:9", *ERASE]) == 1

    assert "is several files of this dataset, by links" in capsys.readouterr().err
    assert known(open_(*links)) == before
    redact(links[0], "--range=0:5:9", *ERASE)
    assert np.fromfile(blob, "<u2")[4:10].tolist() == [5, 0, 0, 0, 0, 10]


def test_a_file_without_hits_is_not_touched(write_tokens: WriteTokens) -> None:
    """Of ten thousand shards a document is in one."""
    paths = [write_tokens(np.arange(1, 300), f"{name}.bin") for name in "ab"]
    before = [path.stat() for path in paths]
    redact(*paths, "--range=1:5:9", *ERASE)
    after = [path.stat() for path in paths]

    assert after[0] == before[0]
    assert after[1].st_ino != before[1].st_ino


def test_a_list_elsewhere_is_used(open_: Open, write_tokens: WriteTokens, tmp_path: Path) -> None:
    """The corpus may lie where nothing else can be written."""
    path, place = write_tokens(np.arange(1, 3000)), tmp_path / "lists" / "train"
    place.parent.mkdir()
    before = known(open_(path))
    redact(path, "--range=0:5:9", "--list", place, *ERASE)

    assert known(open_(path, redactions=str(place))) == before
    with pytest.raises(
        InvalidCorpus, match=r"has erased tokens.*pass another one with --redactions"
    ):
        open_(path)
    assert verify([str(path), "--redactions", str(place)]) == 0


@pytest.mark.parametrize(
    ("call", "number", "state"),
    [("pwrite", 10, "old"), ("replace", 4, "mixed")],
)
def test_a_killed_erasure_is_finished(tmp_path: Path, call: str, number: int, state: str) -> None:
    """In the middle of a write, and between two files."""
    assert kills.check(tmp_path, call, number) == state


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_an_erasure_that_is_killed_at_twenty_moments_is_finished() -> None:
    """The long form of the one before: at each sync and rename, and at some writes."""
    assert kills.main(["--kills", "20"]) == 0


def test_of_two_commands_at_once_one_waits_and_is_refused(
    write_tokens: WriteTokens, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has a list of its own, and neither may undo what the other one erases."""
    path, place = write_tokens(np.arange(1, 300), "s/a.bin"), tmp_path / "list"
    codes: list[int] = []
    words = [str(path), "--range=0:50:60", "--list", str(place), *ERASE]
    other = threading.Thread(target=lambda: codes.append(main(words)))
    with closing(opened(path)) as dataset:
        write_lists(dataset, 0, [(0, 5, 9)])
    with caplog.at_level("INFO", "tokenfeed.server"), locked_records([str(path)]):
        other.start()
        assert eventually(lambda: "waiting for it" in caplog.text)
        with closing(opened(path)) as dataset:
            erasing.replace_files(begin_erasure(dataset), dataset.store)
    other.join()

    assert codes == [1]
    assert not place.exists()
    assert np.flatnonzero(np.fromfile(path, "<u2") == 0).tolist() == [5, 6, 7, 8]


def test_a_copy_of_a_dataset_is_checked_like_the_dataset(
    write_tokens: WriteTokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica may have links to one file where two of equal content were."""
    paths = [write_tokens(np.arange(1, 300), f"s/{name}.bin") for name in "ab"]
    copies = [tmp_path / "copy" / path.name for path in paths]
    copies[0].parent.mkdir()
    before = paths[0].read_bytes()
    (tmp_path / "blob").write_bytes(before)
    for copy in copies:
        copy.symlink_to(tmp_path / "blob")
    redact(*paths, "--range=0:5:9", *ERASE)
    for path in paths[0].parent.glob(".*-redactions.jsonl"):
        shutil.copy(path, copies[0].parent)

    assert main([*map(str, copies), *ERASE]) == 1
    assert "is several files of this dataset, by links" in capsys.readouterr().err
    assert (tmp_path / "blob").read_bytes() == before


def test_who_can_read_the_files_can_read_what_is_said_of_them(write_tokens: WriteTokens) -> None:
    """Root erases, often with a narrow umask, and another user serves."""
    path = write_tokens(np.arange(1, 300))
    path.chmod(0o644)
    before = os.umask(0o077)
    try:
        redact(path, "--range=0:5:9", *ERASE)
    finally:
        os.umask(before)

    said = list(path.parent.glob(".*.jsonl"))
    assert [each.stat().st_mode & 0o777 for each in said] == [0o644, 0o644]


def test_a_file_that_would_look_like_something_else_is_not_erased(
    write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """8224 is two spaces, and 4,096 bytes of them are text, which no server would open again."""
    path = write_tokens(np.arange(40_000, 43_000))
    before = path.read_bytes()

    assert main([str(path), "--range=0:0:3000", "--fill=8224", *ERASE]) == 1
    assert "--fill: " in (said := capsys.readouterr().err)
    assert "another format" in said
    assert path.read_bytes() == before


@pytest.mark.parametrize("fill", [0, 1])
def test_a_file_of_nothing_but_the_fill_is_opened(
    open_: Open, write_tokens: WriteTokens, fill: int
) -> None:
    """Beside files of tokens, one of only 0 and 1 is taken for a mask elsewhere."""
    paths = [write_tokens(np.arange(5, 9000), f"s/{name}.bin") for name in "ab"]
    before = known(open_(*paths))
    redact(*paths, "--range=0:0:8995", f"--fill={fill}", *ERASE)

    assert known(open_(*paths)) == before


def test_delimiters_alone_are_not_taken_for_halves_of_wider_tokens(
    open_: Open, write_tokens: WriteTokens
) -> None:
    """They may all lie at even places, and every other token is 0."""
    tokens = np.random.default_rng(1).integers(8, 60_000, 4000)
    tokens[::20] = 7
    path = write_tokens(tokens)
    before = known(open_(path))
    redact(path, "--range=0:0:4000", "--erase", "--document-end-token=7")
    redact(path, "--erase", "--document-end-token=7")

    assert known(open_(path)) == before
    assert np.array_equal(np.fromfile(path, "<u2"), np.where(tokens == 7, tokens, 0))


def test_many_ranges_are_read_and_written_in_blocks(
    open_: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call for each range would take minutes for a million."""
    path = write_tokens(np.arange(1, 60_001))
    with closing(opened(path)) as dataset:
        write_lists(dataset, 0, [(0, first, first + 1) for first in range(0, 60_000, 3)])
    written: list[int] = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *given: written.append(1) or pwrite(*given))
    redact(path, *ERASE)

    assert len(written) == 1
    expected = np.arange(1, 60_001)
    expected[::3] = 0
    assert np.array_equal(np.fromfile(path, "<u2"), expected)
