"""tokenfeed pack: rows are made before a server needs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
from tests.server.storage.documents.rows_corpora import (
    indices_of,
    packed,
    random_lengths,
    rows_by_reference,
    write_documents,
)
from tests.server.storage.documents.rows_corpora import kept as kept_files
from tests.server.storage.documents.starts_corpora import Corpus, starts_by
from tests.support.commands import run
from tests.support.full_disk import FullDisk
from tests.support.ray_cluster import ray_cluster
from tests.support.waiting import eventually
from tokenfeed.server.storage.documents import document_search, index_file, rows_builder
from tokenfeed.tools import pack
from tokenfeed.tools.pack import main

LENGTHS = random_lengths(13)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_documents(tmp_path / "corpus", LENGTHS)


def folder_of(corpus: Corpus) -> Path:
    return Path(corpus.paths[0]).parent


def test_it_stores_the_rows_and_says_what_they_are(
    corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line to keep in a log."""
    assert main([*corpus.paths, "--context-length", "50", "--workers", "1"]) == 0

    (path,) = kept_files(folder_of(corpus))
    rows = rows_by_reference(LENGTHS, packed(50))
    targets = sum(n - 1 for row in rows for _, _, n in row)
    documents = sum(map(len, LENGTHS))
    single = sum(one.count(1) for one in LENGTHS)
    said = capsys.readouterr()
    (line,) = said.out.splitlines()
    assert f": packed-1 for context length 50: {documents} documents, {len(rows):,} rows" in line
    assert f" {sum(map(len, rows)):,} pieces, fill {100 * targets / len(rows) / 50:.2f} %" in line
    assert f" {single} of one token, 0 dropped, 0 truncated, 0 tokens cropped" in line
    assert line.endswith(f" {path.stat().st_size:,} bytes in {path}")
    assert said.err.startswith(
        f"rows of packed-1 for context length 50, in one process: {documents} documents of "
        f"{sum(map(sum, LENGTHS)):,} tokens: about 1 s and 0.1 MB\n"
    )


@pytest.mark.parametrize("kind", ["packed cut", "padded cut", "padded drop", "padded truncate"])
def test_several_processes_store_the_same_bytes(
    corpus: Corpus, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They work on several files at once, and their results keep the order."""
    order, long_documents = kind.split()
    words = [*corpus.paths, "--context-length", "50", "--order", order, "--long", long_documents]
    contents, lines = [], []
    for workers in ("1", "3"):
        assert main([*words, "--workers", workers]) == 0
        (path,) = kept_files(folder_of(corpus))
        contents.append(path.read_bytes())
        lines.append(capsys.readouterr().out)
        path.unlink()

    assert contents[0] == contents[1]
    assert lines[0] == lines[1]


@pytest.mark.slow
@pytest.mark.timeout(1000)  # a test of test_executors.py may have the cluster for 700
def test_a_ray_cluster_stores_the_same_bytes(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes need neither our code nor the files."""
    words = ["-m", "tokenfeed.tools.pack", *corpus.paths, "--context-length", "50"]
    local = run(*words)
    (path,) = kept_files(folder_of(corpus))
    content = path.read_bytes()
    path.unlink()
    with ray_cluster() as cluster:
        cluster.add()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        assert run(*words, "--executor", "ray", seconds=150) == local

    assert path.read_bytes() == content


def test_it_does_nothing_if_the_rows_are_there(
    corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job may begin with it each time."""
    lines = []
    for _ in range(2):
        assert main([*corpus.paths, "--context-length", "50", "--workers", "1"]) == 0
        lines.append(capsys.readouterr())
    (path,) = kept_files(folder_of(corpus))
    before = path.stat()
    assert main([*corpus.paths, "--context-length", "50"]) == 0

    assert path.stat() == before
    assert lines[0].out == lines[1].out
    assert "about" not in lines[1].err


def test_a_server_finds_what_was_stored(corpus: Corpus) -> None:
    """By the fingerprints of the tokens and the documents, as this one opened them."""
    assert main([*corpus.paths, "--context-length", "50", "--workers", "1"]) == 0
    fingerprint = fingerprint_of(corpus)
    with indices_of(corpus, fingerprint=fingerprint) as indices:
        index = indices.builder(packed(50)).find()

        assert index is not None
        assert index.row_count == len(rows_by_reference(LENGTHS, packed(50)))
        index.close()


def fingerprint_of(corpus: Corpus) -> bytes:
    from tests.server.conftest import options
    from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
    from tokenfeed.server.datasets.sources import DatasetSource

    dataset = open_dataset(DatasetSource("x", tuple(corpus.paths)), options(), TokenChecks())
    dataset.close()
    return dataset.fingerprint


def test_documents_by_a_delimiter_and_the_cache_folder(
    write_tokens: WriteTokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raw files know nothing of documents."""
    tokens = np.random.default_rng(4).integers(0, 10, 20_000)
    path = str(write_tokens(tokens, "raw/train.bin"))
    words = [path, "--dtype", "uint16", "--context-length", "64", "--workers", "1"]
    assert main(words) == 1
    assert "pass --document-end-token" in capsys.readouterr().err

    cache = tmp_path / "cache"
    assert main([*words, "--document-end-token", "3", "--cache-dir", str(cache)]) == 0
    documents = len(starts_by(tokens.tolist(), 3, None))
    assert f"{documents:,} documents" in capsys.readouterr().out
    assert len(kept_files(cache)) == 1
    assert kept_files(tmp_path / "raw") == []


def test_a_large_corpus_is_estimated_before_its_documents_are_searched(
    write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search may take much longer than all that follows."""
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 0)
    path = str(write_tokens(np.arange(20_000) % 50, "raw/train.bin"))
    words = [path, "--dtype", "uint16", "--document-end-token", "3", "--order", "padded"]

    assert main([*words, "--context-length", "20", "--long", "drop", "--workers", "2"]) == 0

    assert capsys.readouterr().err.startswith(
        "rows of padded-1, long documents drop, for context length 20, in 2 processes: 20,000 "
        "tokens, whose documents are searched first; if these have 1,000 tokens each: about 1 s "
    )


def test_packed_rows_crop_nothing(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*corpus.paths, "--context-length", "50", "--long", "drop"]) == 1

    assert capsys.readouterr().err == "error: --long: packed-1 takes only cut\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--context-length", "0"], "context_length: 0 is not in [1, 16777215)"),
        (["--context-length", "16777215"], "context_length: 16777215 is not in [1, 16777215)"),
        (["--context-length", "9", "--workers", "0"], "--workers: 0 is not in [1, 4095]"),
    ],
)
def test_an_impossible_value_is_an_error_in_one_line(
    corpus: Corpus, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert main([*corpus.paths, *words]) == 1

    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {problem}")
    assert kept_files(folder_of(corpus)) == []


def test_a_cache_in_a_store_is_refused(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows would be in a folder "s3:" of the current one, where no server looks."""
    words = [*corpus.paths, "--context-length", "50", "--cache-dir", "s3://bucket/cache"]
    assert main(words) == 1
    assert "--cache-dir: is 's3://bucket/cache', but is written" in capsys.readouterr().err


def test_rows_that_no_folder_takes_are_an_error(
    corpus: Corpus, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in a temporary file would be gone at once."""
    disk = FullDisk(monkeypatch)
    disk.room_bytes[str(folder_of(corpus))] = 100
    for memory_bytes in (0, 1 << 20):
        monkeypatch.setattr(index_file, "MEMORY_BYTES_MAX", memory_bytes)
        assert main([*corpus.paths, "--context-length", "50", "--workers", "1"]) == 1
        problem = "no folder takes its rows, so a server would make them again; pass --cache-dir"
        assert problem in capsys.readouterr().err
    assert kept_files(folder_of(corpus)) == []


@pytest.mark.parametrize(("workers", "files"), [(1, 1), (2, 2), (5, 3)])
def test_rows_that_do_not_fit_into_memory_are_not_begun(
    corpus: Corpus,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    files: int,
) -> None:
    """The kernel would kill it after minutes. Each worker has a file in memory."""
    sent = 8 if workers > 1 else 0  # by another process, which has its numbers in memory
    of_files = [(48 + sent) * len(one) + (18 + 2 * sent) * (sum(one) // 50) for one in LENGTHS]
    need = sum(sorted(of_files)[-files:])
    words = [*corpus.paths, "--context-length", "50", "--workers", str(workers)]
    monkeypatch.setattr(rows_builder, "available_bytes", lambda: need - 1)
    assert main(words) == 1

    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    fewer = "pass fewer --workers than " if workers > 1 else "use smaller files, or a machine with"
    assert "making them takes 0.0 GB of memory, of which 0.0 GB are for that here; " in error
    assert fewer in error
    assert kept_files(folder_of(corpus)) == []

    monkeypatch.setattr(rows_builder, "available_bytes", lambda: need)
    assert main(words) == 0


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_can_be_stopped_at_any_moment(tmp_path: Path, signal_number: int) -> None:
    """Nothing is left, or all rows, and no process: the next run begins again, or finds them."""
    folder = tmp_path / "corpus"
    random = np.random.default_rng(1)
    corpus = write_documents(folder, [random.integers(1, 300, 100_000).tolist() for _ in range(8)])
    before = sorted(folder.iterdir())
    words = [*corpus.paths, "--context-length", "4000"]
    for delay_seconds in (0.0, 0.1, 0.3, 0.6):
        code, workers = stopped_after(delay_seconds, [*words, "--workers", "2"], signal_number)

        # Not by a handler while Python ends.
        assert code in (130, 0, -signal_number)
        assert eventually(lambda pids=workers: not any(map(os.path.exists, pids)))
        found = kept_files(folder)
        assert found or code in (130, -signal.SIGKILL)
        if found:  # complete: the signal came between the file and the exit, or too late
            content = found[0].read_bytes()
            found[0].unlink()
            assert main(words) == 0
            (path,) = kept_files(folder)
            assert path.read_bytes() == content
            path.unlink()
        assert [one for one in sorted(folder.iterdir()) if "documents" not in one.name] == before


def stopped_after(
    delay_seconds: float, words: list[str], signal_number: int
) -> tuple[int, list[str]]:
    """Send a signal this long after the estimate, unless it is done.  Returns: its exit code, and
    the paths of its workers in /proc.
    """
    command = [sys.executable, "-m", "tokenfeed.tools.pack", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert any("about" in line for line in running.stderr)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert len(children) == 2 or running.wait(10) == 0  # it was done meanwhile
        workers = [f"/proc/{pid}" for pid in children]
        with suppress(subprocess.TimeoutExpired):
            running.wait(delay_seconds)
        running.send_signal(signal_number)
        return running.wait(10), workers


@pytest.mark.parametrize(
    ("order", "context_length", "seconds", "megabytes"),
    [
        ("packed", 512, 6.0, 353),
        ("packed", 2048, 2.4, 133),
        ("packed", 8192, 5.6, 90),
        ("packed", 65536, 7.6, 81),
        ("padded", 2048, 1.3, 94),
    ],
)
def test_the_estimate_is_near_to_what_was_measured(
    order: str, context_length: int, seconds: float, megabytes: float
) -> None:
    """The figures of docs/documents-and-packing.md: 10^7 documents of 1,000 tokens, in 16 files."""
    key = pack.key_of(order, context_length, "cut")

    found = pack.estimate(key, token_count=10**10, document_count=10**7, file_count=16)

    assert found[0] == pytest.approx(seconds, rel=0.35)
    assert found[1] == pytest.approx(megabytes, rel=0.05)


def test_its_constants_are_those_of_the_orders() -> None:
    """What can be typed is what the orders take."""
    assert pack.key_of("padded", 7, "truncate") == ("padded-1", 7, "truncate")
    assert pack.key_of("packed", 7, "cut") == packed(7)
