"""Servers with a cache of objects: rows are those of the objects, and a second epoch is local."""

from __future__ import annotations

import random
import signal
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from client import NumpyBatches, Timeouts
from tests.conftest import Serve, Server
from tests.support.object_server import ObjectServer
from tests.support.waiting import eventually
from tokenfeed.errors import InvalidRequest
from tokenfeed.server.storage.objects.counts import REASONS
from tokenfeed.server.storage.objects.slab import BLOCK_BYTES, FILE, FOLDER, open_slab, size_of
from tokenfeed.tools import verify
from tokenfeed.tools.__main__ import main as tools

pytestmark = pytest.mark.usefixtures("own_cache")
B, T = 4, 2048
TOKENS = np.random.default_rng(1).integers(0, 50_000, 12_000_000).astype("<u2")
BLOCKS = -(-TOKENS.nbytes // BLOCK_BYTES)
WORDS = ("--data", "train=s3://bucket/a.bin", "--format", "raw", "--dtype", "uint16")
OPTIONS = {"seed": 1, "rank": 0, "world_size": 1, "prefetch_bytes": 1 << 17}
_MODULE = "tokenfeed.server.storage.objects.object_cache"
TIMERS = {
    f"{_MODULE}._PAUSE_SECONDS": 0.01,
    f"{_MODULE}._COMMIT_SECONDS": 0.1,
    f"{_MODULE}._FIRST_ROWS_SECONDS": 0.0,
}


@pytest.fixture
def store(store: ObjectServer) -> ObjectServer:
    """With a corpus."""
    store.put("bucket/a.bin", TOKENS.tobytes())
    return store


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
    assert (
        "as whole blocks is 23 GETs, 0.00 dollars; as rows of 2,048 tokens 5,859" in server.stderr
    )
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


@pytest.mark.parametrize(
    ("order", "blocks", "slots", "most"),
    [
        ("shuffled", 64, 80, 1.1),
        # The first group of the following epoch, of 16 blocks, is fetched ahead.
        ("blocks", 96, 36, 1.05 + 16 / 96),
        pytest.param(
            "blocks", 720, 36, 1.05 + 16 / 720, marks=[pytest.mark.proof, pytest.mark.slow]
        ),
    ],
)
def test_an_epoch_fetches_little_more_than_the_corpus(
    store: ObjectServer,
    serve: Serve,
    tmp_path: Path,
    order: str,
    blocks: int,
    slots: int,
    most: float,
) -> None:
    """At full speed: a store bills each byte. Of a corpus that fits, and of one that is up to 20
    times the cache; then the disk has never more than it may.
    """
    tokens = np.random.default_rng(1).integers(0, 50_000, (8 << 19) + 1).astype("<u2")
    for number in range(blocks // 8):
        store.put(f"bucket/c/{number:03}.bin", tokens.tobytes())
    words = ["--data", "train=s3://bucket/c/", *caching(tmp_path, slots)[2:]]
    server = serve(*words, "--metrics-port", "0", timers=TIMERS)
    groups = {"group_tokens": 16 << 19} if order == "blocks" else {}
    options = {"seed": 1, "rank": 0, "world_size": 1, "order": order, **groups}
    steps, parts = blocks * (1 << 19) // T // 64, []
    for epoch in range(2):
        before = metrics(server)
        given = options | {"start_step": epoch * steps, "num_batches": steps}
        with NumpyBatches(server.address, 64, T, **given) as feed:  # type: ignore[arg-type]
            for x, _ in feed:
                assert x[0, 0] in tokens[::T]
        after = metrics(server)
        names = [f'tokenfeed_object_bytes_total{{reason="{reason}"}}' for reason in REASONS]
        parts.append(
            [(after.get(name, 0) - before.get(name, 0)) / (blocks << 20) for name in names]
        )
    (rows, whole, _), second = parts
    assert 0 < rows < 0.1
    assert 1 <= rows + whole <= most
    assert sum(second) == 0 if order == "shuffled" else 0.5 < sum(second) <= most
    status = (tmp_path / FOLDER / FILE).stat()
    assert max(status.st_size, status.st_blocks * 512) <= size_of(slots) + 4096


def test_groups_that_the_cache_has_no_room_for_are_refused(
    store: ObjectServer, serve: Serve, tmp_path: Path
) -> None:
    """Their blocks would be fetched again and again; the error has the ways out."""
    server = serve(*caching(tmp_path, 16), timers=TIMERS)
    options = OPTIONS | {"order": "blocks"}
    with (
        NumpyBatches(server.address, B, T, **options) as feed,  # type: ignore[arg-type]
        pytest.raises(InvalidRequest, match=r"reads 22 blocks .* has 16, .* smaller group_tokens"),
    ):
        next(feed)
    require_right = options | {"group_tokens": 16 << 19}
    with NumpyBatches(server.address, B, T, **require_right) as feed:  # type: ignore[arg-type]
        next(feed)


def test_a_plan_tells_what_the_store_bills(
    store: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before it is on the bill: an epoch and a half of 5,859 windows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mixture = tmp_path / "mixture.toml"
    mixture.write_text("[weights]\ntrain = 1\n")
    words = [
        "plan",
        str(mixture),
        "file:train=s3://bucket/a.bin?dtype=uint16",
        "--tokens=18_000_000",
    ]
    words += ["--context-length", "2048", "--object-prices", "400000,1e6"]
    assert tools(words) == 0
    printed = capsys.readouterr().out
    assert "row by row, without a cache: 8,790 GETs, 36,003,840 bytes, 39,519.84 dollars" in printed
    assert "in whole blocks, by order blocks: 35 GETs, 36,003,840 bytes" in printed
    assert "in whole blocks, once: 23 GETs, 23,998,464 bytes" in printed

    # What is on a disk here is on no bill.
    np.arange(60_000, dtype=np.uint16).tofile(tmp_path / "local.bin")
    mixture.write_text("[weights]\nlocal = 1\ntrain = 1\n")
    both = f"file:local={tmp_path / 'local.bin'},train=s3://bucket/a.bin?dtype=uint16"
    words = ["plan", str(mixture), both, "--tokens=1_000_000", "--context-length", "2048"]
    assert tools(words) == 0
    assert "row by row, without a cache: 245 GETs, 1,003,520 bytes" in capsys.readouterr().out

    # A mask is another object, and a packed row has several pieces.
    store.put("bucket/b.bin", np.arange(60_000, dtype="<u2").tobytes())
    store.put("bucket/b.mask", bytes([1]) * 60_000)
    mixture.write_text('order = "packed"\n[weights]\ntrain = 1\n')
    masked = "file:train=s3://bucket/b.bin?dtype=uint16&document-end-token=9"
    words = ["plan", str(mixture), f"{masked}&loss-mask=s3://bucket/b.mask", "--tokens=40_960"]
    assert tools([*words, "--context-length", "2048"]) == 0
    printed = capsys.readouterr().out
    assert "row by row, without a cache: 40 GETs, 122,880 bytes" in printed
    assert "a packed row needs a GET for each of its pieces" in printed


def metrics(server: Server) -> dict[str, float]:
    address = server.stderr.partition("metrics address=")[2].split()[0]
    with urllib.request.urlopen(address) as page:
        lines = page.read().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.parametrize(
    "kills",
    [3, pytest.param(50, marks=[pytest.mark.proof, pytest.mark.slow, pytest.mark.timeout(1200)])],
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
    other, most = serve(*words, timers=timers), 0
    for number in range(kills):
        server = serve(*words, timers=timers)
        options = {"start_step": 733 * number, "order": "blocks", "group_tokens": 1 << 23}
        require_rows(server.address, local, 3, **options)
        server.process.send_signal(signal.SIGSTOP)  # where it is
        time.sleep(chance.uniform(0, 0.02))
        server.process.send_signal(signal.SIGCONT)
        require_rows(other.address, local, 3, **options)
        server.stop(signal.SIGKILL)
        require_rows(other.address, local, 10, **options)
        most = max(most, cached_blocks(tmp_path))
    assert most > 4
    other.stop()
    slab = open_slab(str(tmp_path), None)
    used = np.flatnonzero(slab.entries["stamp"]).tolist()
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
