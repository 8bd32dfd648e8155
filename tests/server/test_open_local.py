"""Datasets of this machine's files for one process: which files they are, and what is refused."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import WriteTokens
from tests.support import reference
from tests.support.full_disk import FullDisk
from tests.support.opened_files import Blocks, calls_of, described, described_sources
from tests.support.redacted_corpora import begin_erasure, write_lists
from tests.support.waiting import eventually, let_time_pass
from tokenfeed.client.source.file_target import parse_local_target
from tokenfeed.errors import (
    CorpusChanged,
    Deleted,
    InvalidCorpus,
    InvalidRequest,
    NotFound,
    StreamMismatch,
    TokenfeedError,
)
from tokenfeed.sampling import orders
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.ingest.__main__ import main as ingest
from tokenfeed.server.open_local import LocalDatasets, open_local
from tokenfeed.server.storage.documents import document_search
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK, REDACTED
from tokenfeed.stream.position import Position
from tokenfeed.stream.schedule import first_stage, next_stage
from tokenfeed.stream.stage import Redaction, Source
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request
from tokenfeed.wire.row_block import RowBlock

T = 8
Open = Callable[..., LocalDatasets]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open what follows file: in a target, from a folder of its own."""
    monkeypatch.chdir(tmp_path)
    datasets = []

    def open_target(target: str, *names: str) -> LocalDatasets:
        parsed = parse_local_target(f"file:{target}")
        datasets.append(open_local(parsed.words, names or [""], parsed.options))
        return datasets[-1]

    yield open_target
    for dataset in datasets:
        dataset.close()


def asked(order: str = "sequential-1", batches: int = 1) -> Request:
    stream = Stream.of_dataset("", orders.find(order), 0, T)
    return Request(stream, Position(0, 4), num_batches=batches)


@pytest.mark.parametrize(
    ("target", "name", "dataset", "tokens"),
    [
        ("a.bin", "", "a", 100),
        ("a.bin,b.bin", "", "a", 300),
        ("both=a.bin,b.bin", "", "both", 300),
        ("?.bin", "", "a", 300),
        ("*.bin?read=pread", "a", "a", 300),
        ("shards/", "", "shards", 30),
        ("x=a.bin,y=shards/", "y", "y", 30),
        ("a.bin#0.bin", "", "a.bin#0", 7),
        ("a.bin?dtype=uint32&format=raw", "", "a", 50),
    ],
)
def test_a_target_names_files_as_a_server_does(
    opened: Open, write_tokens: WriteTokens, target: str, name: str, dataset: str, tokens: int
) -> None:
    """A feed of files becomes one of a server by changing its target alone."""
    write_tokens(range(100), "a.bin")
    write_tokens(range(200), "b.bin")
    write_tokens(range(7), "a.bin#0.bin")
    for index in range(3):
        write_tokens(range(10), f"shards/{index}.bin")
    if target in ("?.bin", "*.bin?read=pread"):
        Path("a.bin#0.bin").unlink()

    (found,) = described(opened(target, name), T)

    assert (found.name, found.token_count) == (dataset, tokens)
    assert {counted.order for counted in found.rows} == set(orders.OF_WINDOWS)


@pytest.mark.parametrize(("options", "token_bytes"), [("", 2), ("&vocab-size=100000", 4)])
def test_signed_tokens_have_the_width_that_the_vocabulary_needs(
    opened: Open, options: str, token_bytes: int
) -> None:
    """As with --vocab-size of a server: then not all of them have to be read."""
    np.arange(100, dtype=np.int64).tofile("a.bin")

    assert described(opened(f"a.bin?dtype=int64{options}", ""), T)[0].token_bytes == token_bytes


@pytest.mark.parametrize(
    ("target", "name", "kind", "subject", "problem"),
    [
        ("none.bin", "", InvalidCorpus, "none.bin", "cannot be read: No such file"),
        ("none*.bin", "", InvalidCorpus, "none*.bin", "matches no file"),
        ("folder", "", InvalidCorpus, "folder", "is a folder without files named *.bin"),
        ("empty.bin", "", InvalidCorpus, "empty.bin", "is empty"),
        (
            "story.txt",
            "",
            InvalidRequest,
            "target",
            "story.txt is text; ingest it first: tokenfeed",
        ),
        ("x=texts", "", InvalidRequest, "target", "is text; ingest it first: tokenfeed ingest"),
        ("a.bin,story.txt", "", InvalidCorpus, "story.txt", "pass them as two datasets"),
        (
            "a.bin?vocab=3",
            "",
            InvalidRequest,
            "target",
            "has no option 'vocab', only format, dtype",
        ),
        ("a.bin?dtype=int3", "", InvalidRequest, "target", "dtype is 'int3'; it takes "),
        ("a.bin?read=mmap", "", InvalidRequest, "target", "read is 'mmap'; it takes map, pread"),
        ("a.bin?format", "", InvalidRequest, "target", "format is ''; it takes "),
        (
            "x=a.bin,y=b.bin?loss-mask=a.bin",
            "x",
            InvalidRequest,
            "target",
            "loss-mask is of one dataset, but the target has 2",
        ),
        ("a.bin?cache-dir", "", InvalidRequest, "target", "cache-dir is ''; it takes a folder"),
        ("a.bin?cache-dir=\0", "", InvalidRequest, "target", "it takes a folder"),
        ("a.bin?cache-dir=\ud800", "", InvalidRequest, "target", "it takes a folder"),
        ("a.bin?vocab-size=0", "", InvalidRequest, "target", "a number from 1 to 4294967295"),
        ("a.bin?vocab-size=5e4", "", InvalidRequest, "target", "vocab-size is '5e4'; it takes a"),
        ("a.bin?vocab-size=1_000", "", InvalidRequest, "target", "is '1_000'; it takes a number"),
        ("a.bin?vocab-size=+5", "", InvalidRequest, "target", "is '+5'; it takes a number"),
        ("a.bin?vocab-size=" + 5000 * "9", "", InvalidRequest, "target", "it takes a number"),
        ("a.bin?vocab-size=99", "", InvalidCorpus, "a.bin", "not below ?vocab-size=99"),
        ("x=a.bin,y=b.bin", "", InvalidRequest, "dataset", "has to name one of the datasets"),
        ("x=a.bin,y=b.bin", "z", NotFound, "dataset", "'z' is not in the target, only x, y"),
        ("a.bin", "z", NotFound, "dataset", "'z' is not in the target, only a"),
        ("x=a.bin,x=b.bin", "x", InvalidRequest, "target", "name one: file:NAME=PATH"),
        ("wide.bin", "", InvalidCorpus, "wide.bin", "Pass ?dtype=uint32, or ?dtype=uint16 if"),
        ("masked.ds", "", InvalidCorpus, "masked.ds.loss", "is a loss mask of 99 bytes"),
        ("masked.ds,a.ds", "", InvalidCorpus, "a.ds", "name all masks: ?loss-mask"),
        ("a.bin?loss-mask=a.bin,b.bin", "", InvalidCorpus, "a.bin,b.bin", "No such file"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_the_cure(
    opened: Open,
    write_tokens: WriteTokens,
    target: str,
    name: str,
    kind: type[TokenfeedError],
    subject: str,
    problem: str,
) -> None:
    """The subject is what the user typed, or the file that is wrong."""
    for file in ("a.bin", "b.bin", "a.ds", "masked.ds"):
        write_tokens(range(100), file)
    write_tokens([], "empty.bin")
    write_tokens(np.arange(70, 1000), "wide.bin", "<u4")
    for text in ("story.txt", "texts/story.txt", "folder/read.me", "masked.ds.loss"):
        Path(text).parent.mkdir(exist_ok=True)
        Path(text).write_bytes(b"\1" * 99)

    with pytest.raises(kind, match=re.escape(problem)) as caught:
        opened(target, name)

    assert type(caught.value) is kind
    assert os.path.basename(caught.value.subject) == subject


@pytest.mark.parametrize(
    ("target", "mask"), [("a.ds", "a.ds.loss"), ("a.ds?loss-mask=masks/*.npy", "masks/0.npy")]
)
def test_a_loss_mask_is_found_beside_its_file_or_by_its_name(
    opened: Open, write_tokens: WriteTokens, target: str, mask: str
) -> None:
    """A feed of files has the planes that a server of them has."""
    write_tokens(range(100), "a.ds")
    Path("masks").mkdir()
    learned = (np.arange(100) % 3 == 0).astype("u1")
    learned.tofile(mask)

    (found,) = described(opened(target), T)

    (plane,) = found.planes
    assert plane.kind == LOSS_MASK
    assert plane.fingerprint == reference.plane_fingerprint(LOSS_MASK, [learned.tobytes()])


def test_an_ingested_folder_is_a_dataset_for_each_split(opened: Open, tmp_path: Path) -> None:
    """As `--data DIR` is, with the same names."""
    pytest.importorskip("pyarrow")
    text = tmp_path / "text.jsonl"
    lines = (json.dumps({"text": f"document {index} " * 20}) for index in range(200))
    text.write_text("\n".join(lines))
    made = ["--tokenizer", "bytes", "--val-fraction", "0.2", "--out", str(tmp_path / "made")]
    assert ingest([str(text), *made]) == 0

    train, val = (described(opened("made/", name), T)[0] for name in ("train", "val"))
    (renamed,) = described(opened("web=made/", "web-val"), T)

    assert train.token_count > val.token_count > 0
    assert renamed.fingerprint == val.fingerprint == described(opened("made/val"), T)[0].fingerprint
    with pytest.raises(InvalidRequest, match=r"dataset: has to name one of .*: train, val"):
        opened("made/")


NAMES = st.sampled_from(
    ("a.bin", "?.bin", "*", "**", "x=", "y=", ",", "#", "?", "=", ".", "?read=map")
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.lists(NAMES, max_size=5), st.sampled_from(("", "a", "x")))
def test_whatever_a_target_is_it_is_opened_or_refused(
    opened: Open, parts: list[str], name: str
) -> None:
    """A typing error never ends in a traceback of ours."""
    np.arange(100, dtype="<u2").tofile("a.bin")
    with suppress(TokenfeedError):
        assert described(opened("".join(parts), name), T)[0].token_count > 0


def test_a_window_that_no_file_has_room_for_is_refused(
    opened: Open, write_tokens: WriteTokens
) -> None:
    """As a server does, about the argument."""
    write_tokens(range(T), "a.bin")

    with pytest.raises(InvalidRequest, match=rf"context_length: {T} is not in \[1, {T}\)"):
        Blocks(opened("a.bin"), asked()).next()


def read_all(dataset: LocalDatasets, batches: int = 1) -> np.ndarray:
    blocks = Blocks(dataset, asked(batches=batches))
    found = []
    while (block := blocks.next()) is not None:
        found.append(block.tokens)
    return np.concatenate(found)


@pytest.mark.parametrize("way", ["map", "pread"])
@pytest.mark.parametrize("shards", [1, 300])
def test_a_file_that_is_written_to_ends_its_rows(
    opened: Open, write_tokens: WriteTokens, way: str, shards: int
) -> None:
    """Also one of many, while the trainer pauses for an evaluation: its first row afterwards would
    be wrong.
    """
    paths = [write_tokens(np.arange(1, 100), f"{index:03}.bin") for index in range(shards)]
    dataset = opened(f"*.bin?read={way}")
    assert read_all(dataset).shape == (4, T + 1)

    let_time_pass(paths[-1])
    with paths[-1].open("r+b") as file:
        file.write(b"zz")
    assert eventually(lambda: dataset._datasets[0].store.files.failed)
    with pytest.raises(CorpusChanged) as caught:
        read_all(dataset)

    assert str(caught.value) == (
        f"dataset: '{paths[0].stem}' changed while it was read; start again with complete files; "
        "the log names the file"
    )


@pytest.mark.parametrize("way", ["map", "pread"])
def test_a_file_that_is_replaced_or_touched_or_longer_is_read_on(
    opened: Open,
    write_tokens: WriteTokens,
    way: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The opened file is what the feed began with."""
    path = write_tokens(np.arange(1, 1000), "a.bin")
    other = write_tokens(np.arange(1000, 2000), "b.bin")
    rereads = []
    same_content = Dataset._same_content

    def observed(dataset: Dataset, stopped: Callable[[], bool]) -> bool | None:
        rereads.append(same_content(dataset, stopped))
        return rereads[-1]

    monkeypatch.setattr(Dataset, "_same_content", observed)
    dataset = opened(f"both=a.bin,b.bin?read={way}")
    before = read_all(dataset, 50)

    let_time_pass(path)
    path.chmod(0o600)
    assert eventually(lambda: rereads == [True])
    assert np.array_equal(read_all(dataset, 50), before)
    with path.open("ab") as file:
        file.write(b"more")
    assert eventually(lambda: "change=grown; still serving the part" in caplog.text)
    assert np.array_equal(read_all(dataset, 50), before)
    os.replace(write_tokens(np.arange(1000), "new"), other)
    assert eventually(lambda: "change=replaced" in caplog.text)
    assert np.array_equal(read_all(dataset, 50), before)
    assert not dataset._datasets[0].store.files.failed


def test_files_that_never_change_are_not_polled(opened: Open, write_tokens: WriteTokens) -> None:
    """Sixty thousand of them on a file system that is asked by a thousand ranks."""
    write_tokens(np.arange(1, 1000), "a.bin")

    def pollers() -> int:
        return [thread.name for thread in threading.enumerate()].count("tokenfeed-poller")

    before = pollers()
    opened("a.bin")
    assert pollers() == before + 1
    opened("a.bin?immutable")
    assert pollers() == before + 1


def test_a_process_without_room_for_a_thread_keeps_no_files_open(
    opened: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of a container; nobody could close them."""
    write_tokens(np.arange(1, 1000), "a.bin")
    closed = []
    close = Dataset.close

    def observed(dataset: Dataset) -> None:
        closed.append(dataset.name)
        close(dataset)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Dataset, "close", observed)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        opened("a.bin")

    assert closed == ["a"]


def test_a_token_beyond_the_vocabulary_that_is_found_late_is_named_as_such(
    opened: Open,
) -> None:
    """With ?vocab-size, only what the fingerprint covers is checked at the start."""
    with open("a.bin", "wb") as file:
        file.truncate((1 << 30) + (1 << 22))
        file.seek(8 * 100_123_456)
        file.write(np.array([70_000], "<i8").tobytes())
    dataset = opened("a.bin?dtype=int64&vocab-size=50257")
    position = Position(100_123_456 // T, 1)

    with pytest.raises(CorpusChanged) as caught:
        Blocks(dataset, replace(asked(), position=position)).next()

    assert str(caught.value) == (
        "dataset: 'a' has a token that cannot be served; omit ?vocab-size to check all tokens at "
        "the start; the log names the file"
    )


def test_a_dataset_that_is_closed_ends_its_rows(opened: Open, write_tokens: WriteTokens) -> None:
    """Its addresses are someone else's by then."""
    write_tokens(range(1, 1000), "a.bin")
    dataset = opened("a.bin")
    blocks = Blocks(dataset, asked())
    dataset.close()
    dataset.close()

    with pytest.raises(CorpusChanged):
        blocks.next()


def test_documents_of_a_large_corpus_are_known_once_it_is_open(
    opened: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server searches in the background. A feed that opens files would find no documents, close
    the files, and with them the search, each time.
    """
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 100)
    write_tokens(np.arange(1000) % 100, "a.bin")

    dataset = opened("a.bin?document-end-token=99")
    (found,) = described(dataset, T)

    assert [(plane.kind, len(plane.fingerprint)) for plane in found.planes] == [
        (DOCUMENT_STARTS, 32)
    ]
    assert found.documents.count == 10


def test_documents_that_were_kept_of_other_tokens_are_not_believed(
    opened: Open, write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an image of a container all files may have one time, and shards have one size."""
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 100)
    path = Path(write_tokens(np.arange(1000) % 100, "a.bin"))
    os.utime(path, ns=(0, 0))

    def count() -> int:
        return described(opened("a.bin?document-end-token=99"), T)[0].documents.count

    assert count() == 10
    (kept,) = Path().glob(".a.bin.*")
    made_at = kept.stat().st_mtime_ns
    assert count() == 10
    assert kept.stat().st_mtime_ns == made_at
    (np.arange(1000, dtype="<u2") % 200).tofile(path)
    os.utime(path, ns=(0, 0))

    assert count() == 5 + 1


def test_a_search_for_documents_that_ends_early_closes_the_files(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else refers to them then."""
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 100)
    path = write_tokens(np.arange(1000) % 100, "a.bin")
    closed = []
    close = Dataset.close

    def observed(dataset: Dataset) -> None:
        closed.append(dataset.name)
        close(dataset)

    def search(dataset: Dataset, stopped: Callable[[], bool]) -> None:
        right(dataset, lambda: True)

    right = Dataset.search_now
    monkeypatch.setattr(Dataset, "close", observed)
    monkeypatch.setattr(Dataset, "search_now", search)
    with pytest.raises(InvalidCorpus, match="was closed while its documents were searched"):
        open_local([[str(path)]], [""], {"document-end-token": "99"})

    assert closed == ["a"]


def test_files_that_are_not_needed_any_more_are_not_read_to_their_end(
    tmp_path: Path, write_tokens: WriteTokens
) -> None:
    """A terabyte of narrowed tokens takes an hour, and the trainer was stopped."""
    path = write_tokens(np.arange(1 << 22) % 60_000)
    looks = []

    def stopped() -> bool:
        looks.append(None)
        return len(looks) > 3

    with pytest.raises(InvalidCorpus, match="was closed while it was being opened"):
        open_local([[str(path)]], [""], {}, stopped)
    assert len(looks) < 8 + 3


@pytest.mark.parametrize("has_room", [True, False])
def test_borders_and_rows_are_kept_in_the_folder_of_the_target(
    opened: Open,
    write_tokens: WriteTokens,
    full_disk: FullDisk,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    has_room: bool,
) -> None:
    """Where the corpus may not be written to; and if nothing may, the cure is an option."""
    monkeypatch.setattr("tokenfeed.server.storage.documents.index_file.MEMORY_BYTES_MAX", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "temporary").mkdir()
    write_tokens([1, 2, 3, 0] * 50, "a.bin")
    dataset = opened("a.bin?document-end-token=0&cache-dir=~/kept")
    stream = Stream.of_dataset("a", orders.find("packed-1"), 0, T)
    if has_room:
        assert described_sources(dataset, stream)[0].rows[-1].rows == 25
        kept = [path.name for path in (tmp_path / "kept").iterdir()]
        assert any(".tokenfeed-packed-1-cut-8-" in name for name in kept)
        assert [path for path in tmp_path.iterdir() if "tokenfeed" in path.name] == []
        return
    full_disk.room_bytes[str(tmp_path)] = 0
    with pytest.raises(InvalidCorpus, match=r"can be written nowhere: .*; pass \?cache-dir with a"):
        described_sources(dataset, stream)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@contextmanager
def dataset_of(path: Path) -> Iterator[Dataset]:
    source = DatasetSource("train", (str(path),))
    with closing(
        open_dataset(source, FormatOptions.parse(None, None, None), TokenChecks())
    ) as made:
        yield made


def test_redactions_come_into_force_at_their_samples(
    opened: Open, write_tokens: WriteTokens
) -> None:
    """As from servers, whose calls end there; here one request has rows before and behind it."""
    path = write_tokens(range(1000, 1100))
    with dataset_of(path) as made:
        lists = write_lists(made, 5, [(0, 0, 12)], [(0, 20, 25)])
    redactions = tuple(
        Redaction(first_sample, 0, found)
        for first_sample, found in zip((1, 13), lists, strict=True)
    )
    request = asked(batches=6)
    stream = replace(request.stream, redactions=redactions)
    request = replace(request, stream=stream, planes=(REDACTED,), first_row=1)
    blocks = Blocks(opened("train.bin"), request)

    found = list(iter(blocks.next, None))

    tokens = np.concatenate([block.tokens for block in found])
    expected = np.arange(1000, 1100)[[8 * (sample % 12) + np.arange(9) for sample in range(24)]]
    expected[1:][(expected[1:] < 1012)] = 5
    late = expected[13:]
    late[(late >= 1020) & (late < 1025)] = 5
    assert tokens.tolist() == expected[1:].tolist()
    runs = b"".join(block.planes[0].content.tobytes() for block in found)
    rows = {1: [0, 4], 12: [0, 9], 13: [0, 4], 14: [4, 9], 15: [0, 1]}
    assert runs == np.array([n for row in rows.values() for n in row], "<u4").tobytes()
    lengths = np.concatenate([block.planes[0].row_lengths for block in found])
    assert np.flatnonzero(lengths).tolist() == [row - 1 for row in rows]


@pytest.mark.parametrize("batch_size", [4, 1000])
def test_stages_follow_each_other_in_one_request(
    opened: Open, write_tokens: WriteTokens, batch_size: int
) -> None:
    """With other weights, and with a source that has been paused; also within a batch."""
    paths = [write_tokens(range(1000 * n, 1000 * n + 300), f"{n}.bin") for n in (1, 2, 3)]
    with dataset_of(paths[1]) as made:
        (listed,) = write_lists(made, 5, [(0, 0, 150)])
    weighted = [(0, [2, 1, 0]), (20, [0, 1, 0]), (50, [1, 1, 2])]
    sources = tuple(Source(str(n + 1), orders.find("shuffled-1"), 7, n) for n in range(len(paths)))
    stages = [first_stage(T, dict(enumerate(weighted[0][1])))]
    for first_sample, weights in weighted[1:]:
        stages.append(next_stage(stages[-1], first_sample, dict(enumerate(weights))))
    stream = Stream(9, sources, tuple(stages), (Redaction(33, 1, listed),))
    request = Request(stream, Position(0, batch_size), (REDACTED,), first_row=3, end_sample=90)
    words = ",".join(f"{n + 1}={path}" for n, path in enumerate(paths))

    def read(part: Request) -> list[RowBlock]:
        datasets = opened(words, "1", "2", "3")
        return list(iter(Blocks(datasets, part).next, None))

    found = read(request)

    expected, runs = [], []
    for sample in range(3, 90):
        number, own = reference.mixture_place(9, weighted, sample)
        row = reference.rows([paths[number].read_bytes()], 2, "shuffled-1", 7, T, [own])[0]
        tokens = np.frombuffer(row, "<u2").tolist()
        lists = []
        if number == 1 and sample >= 33:
            lists = [reference.RedactionList(5, [(0, 0, 150)])]
        at = [0, tokens[0] - 1000 * (number + 1), T + 1]
        tokens, plane = reference.redacted_row(tokens, [at], lists)
        expected.append(tokens)
        runs.append(plane)
    assert np.concatenate([block.tokens for block in found]).tolist() == expected
    assert b"".join(block.planes[0].content.tobytes() for block in found) == b"".join(runs)
    assert any(runs)
    request = calls_of(opened(words, "1", "2", "3"), request).request
    parts, row = [], request.first_row
    while row < request.end_row:
        parts.append(request.part(row, request.end_row))
        row += parts[-1].row_count
    assert len(parts) == 4
    same = [block.tokens for part in parts for block in read(part)]
    assert np.concatenate(same).tolist() == expected


def test_deleted_tokens_and_unknown_lists_are_named(
    opened: Open, write_tokens: WriteTokens
) -> None:
    """A trainer's own files are held to what servers are held to."""
    path = write_tokens(range(1000, 1100))
    with dataset_of(path) as made:
        dataset = opened("train.bin")
        write_lists(made, 5, [(0, 20, 25)])
        begin_erasure(made)
    stream = replace(asked().stream, redactions=(Redaction(0, 0, bytes(32)),))

    with pytest.raises(StreamMismatch, match=f"redactions: dataset 'train' .*{bytes(32).hex()}"):
        Blocks(dataset, replace(asked(), stream=stream, planes=(REDACTED,))).next()
    blocks = Blocks(dataset, asked())
    said = r"'train': tokens were deleted that sample \d+ needs \(train.bin, tokens \[20, 25"
    # The rows before that sample come first.
    with pytest.raises(Deleted, match=said):
        for _ in iter(blocks.next, None):
            pass


def test_deleted_tokens_of_a_later_part_are_named_by_their_sample(
    opened: Open, write_tokens: WriteTokens
) -> None:
    """The samples of a part are counted from its own first one."""
    path = write_tokens(range(1000, 1000 + 20 * T))
    with dataset_of(path) as made:
        dataset = opened("train.bin")
        first, _ = write_lists(made, 5, [(0, 9 * T + 1, 9 * T + 3)], [(0, 7 * T + 1, 7 * T + 3)])
        begin_erasure(made)
    stream = Stream.of_dataset("", orders.find("sequential-1"), 0, T)
    stream = replace(stream, redactions=(Redaction(5, 0, first),))
    blocks = Blocks(dataset, Request(stream, Position(0, 1), (REDACTED,), num_batches=12))

    found: list[RowBlock | None] = []
    with pytest.raises(Deleted, match=rf"sample 7 needs \(train.bin, tokens \[{7 * T + 1}, "):
        found.extend(iter(blocks.next, None))
    assert sum(len(block.tokens) for block in found if block is not None) == 7
