"""Servers with a cache of objects: rows are those of the objects, and a second epoch is local."""

from __future__ import annotations

import random
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client import NumpyBatches, Timeouts
from tests.conftest import Serve, Server, serving
from tests.support.object_server import ObjectServer, object_server
from tests.support.waiting import eventually
from tokenfeed.server.storage.objects.slab import BLOCK_BYTES, FILE, FOLDER, open_slab, size_of
from tokenfeed.tools import verify

B, T = 4, 2048
TOKENS = np.random.default_rng(1).integers(0, 50_000, 12_000_000).astype("<u2")
BLOCKS = -(-TOKENS.nbytes // BLOCK_BYTES)
WORDS = ("--data", "train=s3://bucket/a.bin", "--format", "raw", "--dtype", "uint16")
OPTIONS = {"seed": 1, "rank": 0, "world_size": 1, "prefetch_bytes": 1 << 17}
_MODULE = "tokenfeed.server.storage.objects.object_cache"
TIMERS = {f"{_MODULE}._PAUSE_SECONDS": 0.01, f"{_MODULE}._COMMIT_SECONDS": 0.1}


@pytest.fixture
def store() -> Iterator[ObjectServer]:
    with object_server() as found:
        found.put("bucket/a.bin", TOKENS.tobytes())
        yield found


@pytest.fixture
def serve(store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(tmp_path) as start:
        yield start


@pytest.fixture
def local(tmp_path: Path) -> str:
    TOKENS.tofile(tmp_path / "a.bin")
    return f"file:{tmp_path}/a.bin?dtype=uint16"


def caching(folder: Path, slots: int = 32) -> list[str]:
    """The options of a server."""
    return [*WORDS, "--object-cache", str(folder), "--object-cache-bytes", str(size_of(slots))]


def require_rows(target: object, local: str, batches: int, **options: object) -> None:
    given = OPTIONS | {"order": "shuffled"} | options
    with NumpyBatches(target, B, T, **given) as feed, NumpyBatches(local, B, T, **given) as right:  # type: ignore[arg-type]
        for _ in range(batches):
            for found, expected in zip(next(feed), next(right), strict=True):
                np.testing.assert_array_equal(found, expected)


def cached_blocks(folder: Path) -> int:
    try:
        return int(np.count_nonzero(open_slab(str(folder), None).entries["stamp"]))
    except Exception:  # noqa: BLE001 - it is being made
        return 0


def test_an_epoch_out_of_the_cache_makes_no_get(
    store: ObjectServer, serve: Serve, local: str, tmp_path: Path
) -> None:
    """Who trains for more than one pays once. Metrics and the log tell how far it is."""
    server = serve(*caching(tmp_path), "--metrics-port", "0", timers=TIMERS)
    assert f"object cache folder={tmp_path} bytes={size_of(32)} blocks=32 cached=0" in server.stderr
    epoch = TOKENS.size // T // B
    require_rows(server.address, local, 2)
    assert eventually(lambda: f"filled blocks={BLOCKS} of={BLOCKS}" in server.stderr, 20)
    assert cached_blocks(tmp_path) == BLOCKS
    row_gets = [each for each in store.gets if "range" in each.headers]
    for order in ("shuffled", "blocks", "sequential"):
        require_rows(server.address, local, epoch // 8, order=order)
    assert len([each for each in store.gets if "range" in each.headers]) == len(row_gets)

    values = metrics(server)
    assert values["tokenfeed_object_cache_blocks"] == BLOCKS
    assert values["tokenfeed_object_cache_cached_blocks"] == BLOCKS
    assert values["tokenfeed_object_cache_size_bytes"] == size_of(32)
    assert values['tokenfeed_object_cache_rows_total{result="hit"}'] >= 3 * B * (epoch // 8)
    assert values["tokenfeed_object_cache_damaged_blocks_total"] == 0


def metrics(server: Server) -> dict[str, float]:
    address = server.stderr.partition("metrics address=")[2].split()[0]
    with urllib.request.urlopen(address) as page:
        lines = page.read().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.parametrize(
    "kills", [3, pytest.param(50, marks=[pytest.mark.proof, pytest.mark.slow])]
)
def test_a_kill_while_the_cache_fills_changes_no_row(
    store: ObjectServer, serve: Serve, local: str, tmp_path: Path, kills: int
) -> None:
    """Whatever was on its way to the disk: what is not in the table is fetched again, and what is
    there is right. Two servers use the folder; the other one goes on to fill it.
    """
    chance = random.Random(4)
    timers = TIMERS | {f"{_MODULE}._COMMIT_BLOCKS": 2}
    # Not all fits, so that slots get other blocks all the time.
    words = caching(tmp_path, 16)
    timers |= {f"{_MODULE}.TOUCHES": 1, f"{_MODULE[:-12]}cached_blocks.TOUCHES": 1}
    other, most = serve(*words, timers=timers), 0
    for number in range(kills):
        server = serve(*words, timers=timers)
        options = {"start_step": 40 * number}
        require_rows(server.address, local, 3, **options)
        server.process.send_signal(signal.SIGSTOP)  # where it is
        time.sleep(chance.uniform(0, 0.02))
        server.process.send_signal(signal.SIGCONT)
        require_rows(other.address, local, 3, **options)
        server.stop(signal.SIGKILL)
        require_rows(other.address, local, 10, **options)
        slab = open_slab(str(tmp_path), None)
        used = np.flatnonzero(slab.entries["stamp"]).tolist()
        most = max(most, len(used))
    assert most > 4
    other.stop()
    damaged = [slot for slot in used if not slab.is_intact(slot)]
    assert not damaged
    assert (tmp_path / FOLDER / FILE).stat().st_size == size_of(16)


def test_a_server_that_is_killed_is_replaced_by_another(
    store: ObjectServer, serve: Serve, local: str, tmp_path: Path
) -> None:
    """Replicas of a machine share a folder: what one has fetched, all have."""
    servers = [serve(*caching(tmp_path), timers=TIMERS) for _ in range(2)]
    given = OPTIONS | {"order": "shuffled", "timeouts": Timeouts(reconnect_seconds=20)}
    with (
        NumpyBatches([each.address for each in servers], B, T, **given) as feed,  # type: ignore[arg-type]
        NumpyBatches(local, B, T, **OPTIONS, order="shuffled") as right,  # type: ignore[arg-type]
    ):
        for step in range(300):
            for found, expected in zip(next(feed), next(right), strict=True):
                np.testing.assert_array_equal(found, expected)
            if step == 100:
                servers[0].stop(signal.SIGKILL)
    assert eventually(lambda: cached_blocks(tmp_path) == BLOCKS, 20)


def test_verify_finds_a_changed_byte_of_the_cache(
    store: ObjectServer,
    serve: Serve,
    local: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And the next server fetches its block again. A disk that errs is found before it is used."""
    server = serve(*caching(tmp_path), timers=TIMERS)
    require_rows(server.address, local, 1)
    assert eventually(lambda: cached_blocks(tmp_path) == BLOCKS, 20)
    server.stop()
    words = ["s3://bucket/a.bin", "--format", "raw", "--dtype", "uint16"]
    words += ["--object-cache", str(tmp_path)]
    assert verify.main(words) == 0
    assert f"object cache: {BLOCKS} blocks are as they were written" in capsys.readouterr().out

    path = tmp_path / FOLDER / FILE
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(TOKENS[5_000_000:5_000_100].tobytes()))
        file.write(b"xx")
    assert verify.main(words) == 1
    assert "1 of 23 blocks have changed" in capsys.readouterr().err
    assert cached_blocks(tmp_path) == BLOCKS - 1
    assert verify.main(words) == 0
