"""The digest of a corpus above 1 GiB: computed from what was preloaded, and stored."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conftest import Serve, Server, WriteTokens
from tests.server.conftest import look_at_all, options
from tests.server.requests import batches
from tests.support import reference
from tests.support.waiting import eventually
from tokenfeed.client.transport.channel import describe
from tokenfeed.server.datasets import warmup
from tokenfeed.server.datasets.content import Block, Content
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.datasets.sources.manifest import ManifestSplit
from tokenfeed.server.datasets.warmup import WarmUp, take_digest
from tokenfeed.server.storage.digest_file import read_digest
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.stream import identity

TOKENS = 1_300_000
"""Three blocks of the digest: two files, of which the first ends within a block."""
LARGE_BYTES = (1 << 30) + (4 << 20)


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process a corpus is large from 1 MiB on: a server of its own has the true limit."""
    monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(identity, "SPREAD_BLOCKS", 8)


@pytest.fixture
def paths(write_tokens: WriteTokens) -> list[Path]:
    tokens = np.random.default_rng(5).integers(1, 1 << 16, TOKENS)
    return [write_tokens(tokens[:700_001], "a.bin"), write_tokens(tokens[700_001:], "b.bin")]


Open = Callable[..., Dataset]


@pytest.fixture
def opened(storage: StorageOptions) -> Open:
    """Open a dataset: opened(paths, made)."""

    def start(paths: list[Path], made: ManifestSplit | None = None) -> Dataset:
        source = DatasetSource("train", tuple(map(str, paths)), split=made)
        return open_dataset(source, options("<u2"), TokenChecks(), storage)

    return start


@pytest.fixture
def dataset(paths: list[Path], opened: Open) -> Iterator[Dataset]:
    """A dataset whose digest is not known yet."""
    found = opened(paths)
    assert found.digest == b""
    yield found
    found.close()


def expected_digest(paths: list[Path]) -> bytes:
    return reference.digest("uint16", [path.read_bytes() for path in paths], 2)


def kept_digest(dataset: Dataset) -> bytes:
    return read_digest(dataset.store)


def never() -> bool:
    return False


def warmed_up(*datasets: Dataset, bytes_max: int | None = None) -> None:
    warm_up = WarmUp(datasets, bytes_max)
    warm_up.start()
    warm_up._thread.join(10)
    assert not warm_up._thread.is_alive()


def test_a_warm_up_leaves_the_digest_of_the_protocol(dataset: Dataset, paths: list[Path]) -> None:
    """The same as tokenfeed verify: servers are compared by it, whichever computed it."""
    warmed_up(dataset)

    assert dataset.digest == expected_digest(paths)
    assert kept_digest(dataset) == dataset.digest


def test_a_digest_that_a_server_found_is_known_to_the_next_one(
    dataset: Dataset, paths: list[Path], opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed twice."""
    warmed_up(dataset)
    monkeypatch.setattr(warmup, "take_digest", lambda *_: pytest.fail("it was computed again"))

    later = opened(paths)
    assert later.digest == expected_digest(paths)
    warmed_up(later)
    later.close()


def test_a_digest_is_not_taken_for_that_of_a_file_of_the_same_name_in_another_folder(
    write_tokens: WriteTokens, opened: Open
) -> None:
    """Two corpora may begin with the same file, and an image sets all times to one."""
    random, found = np.random.default_rng(5), []
    for name in ("en/0.bin", "de/0.bin", "fr/0.bin"):
        found.append(write_tokens(random.integers(1, 1 << 16, TOKENS // 2), name))
        os.utime(found[-1], (1, 1))
    en, de, fr = found
    first = opened([en, de])
    warmed_up(first)
    assert kept_digest(first) == expected_digest([en, de])

    other = opened([en, fr])
    assert other.digest == kept_digest(other) == b""
    for each in (first, other):
        each.close()


def test_a_digest_is_not_taken_for_that_of_other_content(
    dataset: Dataset, paths: list[Path], opened: Open
) -> None:
    """Of the same names, sizes and times. Who verifies the content gets it: the corpus may be
    damaged.
    """
    for path in paths:
        os.utime(path, (1, 1))
    first = opened(paths)
    warmed_up(first)
    for path in paths:
        path.write_bytes(path.read_bytes()[::-1])
        os.utime(path, (1, 1))

    other = opened(paths)
    assert other.digest == b""
    assert kept_digest(other) == first.digest != b""
    warmed_up(other)
    later = opened(paths)
    assert later.digest == expected_digest(paths)
    for each in (first, other, later):
        each.close()


def test_a_digest_from_a_manifest_or_of_a_small_corpus_is_not_computed(
    dataset: Dataset, paths: list[Path], opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading all of it once more would cost everybody a core for nothing."""
    monkeypatch.setattr(warmup, "take_digest", lambda *_: pytest.fail("it was computed"))
    names = tuple(map(str, paths))
    ingested = opened(paths, ManifestSplit("train", names, dataset.fingerprint, b"m" * 32))
    monkeypatch.setattr(identity, "COMPLETE_BYTES_MAX", 1 << 30)
    small = opened(paths)

    warmed_up(ingested, small)

    assert ingested.digest == b"m" * 32
    assert small.digest == expected_digest(paths)
    for one in (ingested, small):
        one.close()


def test_one_thread_alone_reads_and_it_is_that_of_the_warm_up(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the low priority; sixteen readers would leave streams no core."""
    before = set(threading.enumerate())
    readers = set()
    hash_block = Content._hash_block

    def watched(*arguments: Any) -> Block:
        readers.add(threading.current_thread())
        return hash_block(*arguments)

    monkeypatch.setattr(Content, "_hash_block", watched)
    warmed_up(dataset)

    assert [thread.name for thread in readers - before] == ["tokenfeed-warmup"]
    assert readers.isdisjoint(before)


def test_where_the_sidecar_cannot_be_written_memory_has_the_digest(
    dataset: Dataset,
    paths: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Read-only volumes are how containers get their data."""

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tokenfeed.server.runtime.small_files.os.replace", read_only)
    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        warmed_up(dataset)

    assert dataset.digest == expected_digest(paths)
    assert sorted(os.listdir(paths[0].parent)) == ["a.bin", "b.bin"]
    assert re.fullmatch(
        rf"digest dataset=train sha256={dataset.digest.hex()} seconds=\d+\.\d "
        r"kept=in memory only: \.a\.bin\.\w+\.tokenfeed-digest\.json "
        r"cannot be written: Read-only file system",
        caplog.messages[-1],
    )


def cut(path: Path) -> None:
    os.truncate(path, 1000)


def overwrite(path: Path) -> None:
    """Write to what was read before, and put the time of last write back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(bytes(path.stat().st_size))
    path.with_name("new").rename(path)


@pytest.mark.parametrize("change", [cut, overwrite, replace, os.unlink])
@pytest.mark.parametrize("index", [0, 1])
def test_of_a_corpus_that_changes_meanwhile_nothing_is_kept(
    dataset: Dataset, paths: list[Path], change: Callable[[Path], None], index: int
) -> None:
    """A digest of the first half of one content and the second of another is that of none."""
    asked_times = 0

    def change_once() -> bool:
        nonlocal asked_times
        asked_times += 1
        if asked_times == 2:
            change(paths[index])
        return False

    assert "changed" in take_digest(dataset, change_once)

    assert dataset.digest == b""
    assert [name for name in os.listdir(paths[0].parent) if "digest" in name] == []


def test_no_digest_of_a_failed_corpus_is_stored(dataset: Dataset, paths: list[Path]) -> None:
    """It is not served any more."""
    os.utime(paths[0], ns=(1, 1))
    look_at_all(dataset)
    assert dataset.store.files.failed

    assert take_digest(dataset, never) == "its files changed, or cannot be read"

    assert dataset.digest == b""


def test_it_stops_between_two_blocks(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has two seconds to end, whatever the size of its corpora."""
    stopped = iter([False, True])

    assert take_digest(dataset, lambda: next(stopped)) == "the server was stopped"

    assert dataset.digest == b""
    assert kept_digest(dataset) == b""
    assert not list(stopped)


def test_who_failed_unforeseen_leaves_the_next_dataset_its_digest(
    dataset: Dataset,
    paths: list[Path],
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A thread that died would report neither."""
    unlucky = opened(paths[1:])

    def fail(*arguments: Dataset) -> str:
        if arguments[0] is unlucky:
            raise MemoryError
        return take_digest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(warmup, "take_digest", fail)
    with caplog.at_level(logging.INFO, "tokenfeed.server"):
        warmed_up(unlucky, dataset)
    unlucky.close()

    assert dataset.digest == expected_digest(paths)
    assert "digest failed dataset=train: MemoryError" in caplog.text
    assert "digest unknown dataset=train: its computation failed" in caplog.text


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A corpus above 1 GiB, nearly all of it a hole."""
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(LARGE_BYTES)
        file.seek(LARGE_BYTES - 2)
        file.write(b"\1\1")
    return path


def wait_for(server: Server, line: str, seconds: float = 60) -> None:
    """Wait until a server has logged something."""
    assert eventually(lambda: line in server.stderr, seconds), server.stderr


UNKNOWN = "digest unknown dataset=train: not all of it was preloaded; tokenfeed verify computes it"


@pytest.mark.parametrize("room", [0, 1 << 30])
def test_if_a_corpus_is_not_preloaded_the_log_says_once_how_to_get_its_digest(
    serve: Serve, large: Path, write_tokens: WriteTokens, room: int
) -> None:
    """Otherwise no operator learns that its servers are compared by a sample alone."""
    small = write_tokens(range(1, 3000), "small.bin")
    server = serve("--data", large, "--data", small, "--warm-up-bytes", room)
    wait_for(server, UNKNOWN)
    server.stop()

    assert [line for line in server.stderr.splitlines() if "digest" in line] == [
        line for line in server.stderr.splitlines() if f"INFO tokenfeed.server {UNKNOWN}" in line
    ]
    assert server.stderr.count("digest unknown") == 1


@pytest.mark.slow
def test_a_server_tells_and_compares_the_digest_as_soon_as_it_has_warmed_up(
    serve: Serve, large: Path
) -> None:
    """A replica with other content between the sampled blocks is then detected."""
    server = serve("--data", large)
    wait_for(server, "digest dataset=train sha256=")

    (described,) = describe(server.address).datasets
    assert f"sha256={described.digest.hex()}" in server.stderr
    (sidecar,) = large.parent.glob(".train.bin.*.tokenfeed-digest.json")
    assert json.loads(sidecar.read_text())["digest"] == described.digest.hex()
    assert answer(server, described.digest) == "1 frame(s)"
    assert answer(server, b"x" * 32) == "FAILED_PRECONDITION expected_digest"
    again = serve("--data", large)
    assert describe(again.address).datasets[0].digest == described.digest
    wait_for(again, "warm-up ended")
    again.stop()
    assert "digest dataset=" not in again.stderr
    assert "digest unknown" not in again.stderr


def answer(server: Server, digest: bytes) -> str:
    """Request a batch of a corpus with some digest; return its frame count or the refusal."""
    request = batches(batch_size=1, context_length=16, num_batches=1, expected_digest=digest)
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
        try:
            return f"{len(list(call(request.SerializeToString(), timeout=10)))} frame(s)"
        except grpc.RpcError as error:
            return f"{error.code().name} {error.details().partition(':')[0]}"


@pytest.mark.alone
@pytest.mark.slow
def test_a_server_that_computes_a_digest_stops_at_once(serve: Serve, large: Path) -> None:
    """A restart must not wait for this read."""
    with large.open("r+b") as file:
        file.truncate(2 << 30)
    server = serve("--data", large, "--warm-up-bytes", 1 << 40)
    wait_for(server, "warm-up ended")

    began = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0

    assert time.monotonic() - began < 2.0
    assert "digest unknown dataset=train: the server was stopped" in server.stderr
    assert list(large.parent.glob(".train.bin.*")) == []
