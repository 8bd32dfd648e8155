"""A store that fails loses no row, repeats none and delivers no other one: behind a server, and
without.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client import NumpyBatches, Timeouts
from tests.conftest import Serve
from tests.server.ingest.corpus import documents, write_jsonl, write_parquet
from tests.server.storage.objects.test_object_bytes import PASSING
from tests.support.object_server import ObjectServer
from tokenfeed.errors import CorpusChanged, InvalidRequest
from tokenfeed.server.ingest.__main__ import main as ingest
from tokenfeed.server.storage.objects import door, object_bytes
from tokenfeed.tools.redact.__main__ import build_parser, redact
from tokenfeed.tools.redact.redacting import ListSummary

pytestmark = pytest.mark.usefixtures("own_cache")
B, T = 2, 8192
TOKENS = np.random.default_rng(1).integers(0, 50_000, 6_000_000).astype("<u2")
TARGET = "s3://bucket/a.bin"
WORDS = ("--data", f"train={TARGET}", "--format", "raw", "--dtype", "uint16")
UNCACHED = ("--object-cache", "none")
"""Each row is a GET, which may fail."""
OPTIONS = {"seed": 1, "order": "shuffled", "rank": 0, "world_size": 1}


@pytest.fixture
def store(store: ObjectServer) -> ObjectServer:
    """With a corpus."""
    store.put("bucket/a.bin", TOKENS.tobytes())
    return store


@pytest.fixture
def expected(tmp_path: Path) -> Iterator[NumpyBatches]:
    TOKENS.tofile(tmp_path / "a.bin")
    with NumpyBatches(f"file:{tmp_path}/a.bin?dtype=uint16", B, T, **OPTIONS) as feed:
        yield feed


def require_rows(feed: NumpyBatches, expected: NumpyBatches, batches: int) -> None:
    for _ in range(batches):
        for found, right in zip(next(feed), next(expected), strict=True):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    "faults_each", [1, pytest.param(100, marks=pytest.mark.proof, id="each 100 times")]
)
@pytest.mark.parametrize("way", ["server", "files"])
def test_every_fault_in_turn_changes_no_row(
    store: ObjectServer, serve: Serve, expected: NumpyBatches, way: str, faults_each: int
) -> None:
    """A run of weeks meets all of them."""
    target = serve(*WORDS, *UNCACHED).address if way == "server" else f"{TARGET}?dtype=uint16"
    with NumpyBatches(target, B, T, **OPTIONS, prefetch_bytes=2 << 20) as feed:
        require_rows(feed, expected, 1)
        for number in range(faults_each):
            store.faults.extend(fault for fault in PASSING for _ in range(1 + number % 2))
            require_rows(feed, expected, 30)
        # What is fetched ahead meets the last of them.
        for _ in range(600):
            require_rows(feed, expected, 1)
            if not store.faults:
                break
    assert not store.faults


@pytest.mark.parametrize(
    "seconds", [1.5, pytest.param(300, marks=[pytest.mark.proof, pytest.mark.timeout(500)])]
)
def test_a_store_that_is_away_for_a_while_is_no_lost_dataset(
    store: ObjectServer, serve: Serve, expected: NumpyBatches, seconds: float
) -> None:
    """Clients hear UNAVAILABLE, wait, and go on; no other server could help."""
    server = serve(*WORDS, *UNCACHED)
    options = OPTIONS | {"prefetch_bytes": 2 << 20, "timeouts": Timeouts(reconnect_seconds=400)}
    with NumpyBatches(server.address, B, T, **options) as feed:  # type: ignore[arg-type]
        require_rows(feed, expected, 2)
        store.always_fault = "503"
        back = threading.Timer(seconds, lambda: setattr(store, "always_fault", ""))
        back.start()
        began = time.monotonic()
        require_rows(feed, expected, 150)
        assert time.monotonic() - began > seconds / 2
        back.join()
    assert "read failed, retrying dataset=train file=a.bin reason=Server" in server.stderr
    assert "dataset failed" not in server.stderr


def test_a_server_goes_on_where_another_one_reads(
    store: ObjectServer, serve: Serve, expected: NumpyBatches
) -> None:
    """Replicas of one store need nothing of each other, and open it with few GETs once one has."""
    addresses = [serve(*WORDS, *UNCACHED).address, serve(*WORDS, *UNCACHED).address]
    with NumpyBatches(addresses, B, T, **OPTIONS, timeouts=Timeouts(reconnect_seconds=20)) as feed:
        require_rows(feed, expected, 20)


def test_a_replaced_object_is_data_loss_for_all_clients(store: ObjectServer, serve: Serve) -> None:
    """No stream that begins later gets rows of either content."""
    timers = {"tokenfeed.server.storage.objects.object_bytes.CHANGED_SECONDS": 0.5}
    server = serve(*WORDS, *UNCACHED, timers=timers)
    with NumpyBatches(server.address, B, T, **OPTIONS) as feed:
        next(feed)
        store.put("bucket/a.bin", TOKENS[::-1].tobytes())
        with pytest.raises(CorpusChanged, match="'train' changed while it was served"):
            list(feed)
    with (
        NumpyBatches(server.address, B, T, **OPTIONS) as feed,
        pytest.raises(CorpusChanged),
    ):
        next(feed)
    assert "a.bin: has been replaced" in server.stderr


def test_a_second_start_does_not_read_the_corpus_again(store: ObjectServer, serve: Serve) -> None:
    """The fingerprint of 1 GiB is a download of 1 GiB; a restart is to take a second."""
    timers = {"tokenfeed.server.datasets.shared_scan._BYTES_MIN": 1}
    counts = []
    for _ in range(2):
        before = len(store.gets)
        server = serve(*WORDS, *UNCACHED, timers=timers)
        counts.append(len(store.gets) - before)
        server.stop()
        assert "objects opened dataset=train objects=1 requests=" in server.stderr
    assert counts[0] > 10
    assert counts[1] < 4


def test_tokens_are_taken_out_of_a_corpus_in_a_store(
    store: ObjectServer, serve: Serve, tmp_path: Path
) -> None:
    """By a list on this machine, or beside the corpus, where all servers find it."""
    path = tmp_path / "list.jsonl"
    words = [TARGET, "--format", "raw", "--dtype", "uint16", "--fill", "60000"]
    words += [f"--range=0:0:{TOKENS.size // 2}"]

    def redacted(*more: str) -> ListSummary:
        return redact(build_parser().parse_args([*words, *more]))

    list_hash = redacted("--list", str(path)).facts()["list"]
    store.put("bucket/list.jsonl", path.read_bytes())
    for refused in (["--list", "s3://bucket/list.jsonl"], ["--list", str(path), "--erase"]):
        with pytest.raises(InvalidRequest, match="this machine"):
            redacted(*refused)
    rows = []
    for listed in (str(path), "s3://bucket/list.jsonl"):
        server = serve(*WORDS, *UNCACHED, "--redactions", f"train={listed}")
        with NumpyBatches(server.address, B, T, **OPTIONS) as feed:
            feed.redact(list_hash, at_sample=0)
            rows.append([next(feed)[0].copy() for _ in range(20)])
    assert np.array_equal(*rows)
    filled = (np.array(rows[0]) == 60_000).mean()
    assert 0.2 < filled < 0.8


@pytest.mark.parametrize("fault", ["503", "other etag"])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_an_ingest_ends_where_its_source_fails_and_leaves_no_text_out(
    store: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    fault: str,
) -> None:
    """Text that cannot be read is counted and left out only if it is damaged itself."""
    monkeypatch.setattr(object_bytes, "OPENING_SECONDS", 0.1)
    monkeypatch.setattr(door, "_AHEAD_BYTES", 1 << 20)
    texts = [" ".join(documents(40, seed=seed)) for seed in range(400)]
    write = write_parquet if name == "a.parquet" else write_jsonl
    rows = {"text": texts} if name == "a.parquet" else ({"text": text} for text in texts)
    store.put(f"bucket/{name}", write(tmp_path / name, rows).read_bytes())
    words = [f"s3://bucket/{name}", "--tokenizer", "bytes", "--workers", "1"]
    assert ingest([*words, "--out", str(tmp_path / "calm")]) == 0
    count = len(store.gets)
    assert count > 3

    for left in (2, count - 1):
        store.faults.extend([*(left * [""]), *(40 * [fault])])
        assert ingest([*words, "--out", str(tmp_path / "out")]) == 1
        store.faults.clear()
        assert f"s3://bucket/{name}" in capsys.readouterr().err
        assert not (tmp_path / "out" / "manifest.json").exists()
    assert ingest([*words, "--out", str(tmp_path / "out")]) == 0
    made, calm = (tmp_path / folder / "train/000000.ds" for folder in ("out", "calm"))
    assert made.read_bytes() == calm.read_bytes()
