"""Real servers on a file system that fails, recovers and is slow: which calls that affects.

Network file systems fail over and lose their caches. That must not end a training run; a truncated
file must.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import Serve, Server, WriteTokens
from tests.server import requests
from tests.support.failing_disk import FailingDisk, compiled
from tests.support.waiting import eventually
from tokenfeed.v1 import tokenfeed_pb2 as pb

SHARDS = 10_000
STATS_PER_SECOND = 500
WAYS = ("map", "pread")
CALL_SECONDS = 10.0
T = 1023
UNREADABLE = (
    "dataset: 'sick' has a file that cannot be read at the moment; "
    "retry on this or another server; the log of this server names the file"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("failing-disk"))


@pytest.fixture
def disk(library: Path, tmp_path: Path) -> FailingDisk:
    """Files that are called "sick" fail and are slow when the test says so."""
    return FailingDisk(library, tmp_path / "control", "sick")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of small shards, of which some are nothing but zeros."""
    folder = tmp_path_factory.mktemp("many") / "sick-shards"
    folder.mkdir()
    tokens = np.arange(1000, dtype="<u2")
    for index in range(SHARDS):
        (folder / f"{index:05}.bin").write_bytes((tokens * (index % 10 > 0)).tobytes())
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def sick(write_tokens: WriteTokens) -> Path:
    """A file in which each token is one more than the one before; after 65,535 comes 1."""
    return write_tokens(np.arange(1 << 20) % 65_535 + 1, "sick.bin")


def asking(dataset: str, batches: int = 1, seed: int = 0) -> pb.GetBatchRequest:
    return requests.batches(
        dataset=dataset, batch_size=32, context_length=T, seed=seed, num_batches=batches
    )


def answer(server: Server, request: pb.GetBatchRequest) -> tuple[int, grpc.StatusCode, str]:
    """Ask, and return how many rows come, and how the call ends; each row has to be right."""
    rows = 0
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
        call = ask(request.SerializeToString(), timeout=CALL_SECONDS)
        try:
            for message in call:
                tokens = np.frombuffer(pb.Frame.FromString(message).tokens, "<u2").astype(int)
                found = tokens.reshape(-1, request.stream.stage.context_length + 1)
                if request.stream.sources[0].dataset != "many":
                    assert (np.diff(found) % 65_535 == 1).all()
                rows += len(found)
        except grpc.RpcError:
            pass
        return rows, call.code(), call.details() or ""


def most_in_a_second(seconds: np.ndarray) -> int:
    """Return how many fall into any second that begins with one of them."""
    return int((np.searchsorted(seconds, seconds + 1.0) - np.arange(seconds.size)).max(initial=0))


@pytest.mark.parametrize("way", WAYS)
def test_ten_thousand_shards_cost_at_most_500_stats_in_any_second(
    serve: Serve, disk: FailingDisk, shards: Path, write_tokens: WriteTokens, way: str
) -> None:
    """Once a second each would be 10,000 requests a second to a metadata server, for ever; and a
    second dataset has no budget of its own.
    """
    other = write_tokens(range(1, 5000), "other.bin")
    server = serve("--data", f"many={shards}", "--data", other, "--read", way, wrapper=disk.wrapper)
    began = time.monotonic()
    for seed in range(4):
        request = asking("many", batches=8, seed=seed)
        request.stream.stage.context_length = 99
        assert answer(server, request)[1] is grpc.StatusCode.OK

    def later() -> npt.NDArray[np.float64]:
        seconds = disk.stat_seconds()
        return seconds[seconds > began]

    # Two seconds of checks, unless the machine is busy with other things.
    assert eventually(lambda: later().size > 1.5 * STATS_PER_SECOND, seconds=30.0)
    print(f"\n{way}: {most_in_a_second(later())} stats in a second at most")
    assert most_in_a_second(later()) <= STATS_PER_SECOND


def test_files_that_never_change_are_not_checked(
    serve: Serve, disk: FailingDisk, sick: Path
) -> None:
    """With --immutable there are no stat calls."""
    server = serve("--data", sick, "--immutable", wrapper=disk.wrapper)
    assert eventually(lambda: "warm-up ended" in server.stderr)
    before = disk.stat_count
    time.sleep(1.2)

    assert disk.stat_count == before
    sick.unlink()
    assert answer(server, asking("sick"))[:2] == (32, grpc.StatusCode.OK)
    assert "replaced" not in server.stderr


@pytest.mark.parametrize("way", WAYS)
def test_an_error_that_goes_away_fails_neither_a_call_nor_a_dataset(
    serve: Serve, disk: FailingDisk, sick: Path, way: str
) -> None:
    """A file system that fails over is away for a moment: the rows still arrive."""
    server = serve("--data", sick, "--read", way, wrapper=disk.wrapper)
    failed = []

    def heal() -> None:
        failed.append(eventually(lambda: "read failed, retrying dataset=sick" in server.stderr))
        disk.heal()

    disk.fail_reads(errno.EIO)
    healing = threading.Thread(target=heal)
    healing.start()

    assert answer(server, asking("sick", batches=20)) == (20 * 32, grpc.StatusCode.OK, "")

    healing.join()
    assert failed == [True]
    assert disk.reads_failed > 0
    assert "dataset failed" not in server.stderr


@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
def test_an_error_that_lasts_ends_calls_as_unavailable_and_no_dataset(
    serve: Serve, disk: FailingDisk, sick: Path, write_tokens: WriteTokens, way: str
) -> None:
    """Clients retry here or elsewhere; after a repair of the file system, no restart is needed."""
    well = write_tokens(range(1, 5000), "well.bin")
    server = serve("--data", sick, "--data", well, "--read", way, wrapper=disk.wrapper)
    assert eventually(lambda: server.stderr.count("warm-up ended") == 2)
    disk.fail_reads(errno.EIO)

    for _ in range(3):
        began = time.monotonic()
        assert answer(server, asking("sick")) == (0, grpc.StatusCode.UNAVAILABLE, UNREADABLE)
        assert time.monotonic() - began < 2.5
    assert answer(server, asking("well"))[:2] == (32, grpc.StatusCode.OK)
    disk.heal()

    assert answer(server, asking("sick"))[:2] == (32, grpc.StatusCode.OK)
    (line,) = re.findall(r"WARNING tokenfeed.server (read failed.*)", server.stderr)
    reason = "Bad address" if way == "map" else "Input/output error"
    assert line == f"read failed, retrying dataset=sick file=sick.bin reason={reason}"
    assert "dataset failed" not in server.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_truncated_file_is_data_loss_while_the_file_system_fails_too(
    serve: Serve, disk: FailingDisk, sick: Path, way: str
) -> None:
    """Its size shows that, whatever the error was."""
    server = serve("--data", sick, "--read", way, "--warm-up-bytes", 0, wrapper=disk.wrapper)
    disk.fail_reads(errno.EIO)
    os.truncate(sick, 100)

    rows, status, details = answer(server, asking("sick"))

    assert (rows, status) == (0, grpc.StatusCode.DATA_LOSS)
    assert details.startswith("dataset: 'sick' changed while it was served")
    assert "dataset failed dataset=sick reason=sick.bin: truncated" in server.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_failed_stat_does_not_fail_a_dataset(
    serve: Serve, disk: FailingDisk, sick: Path, way: str
) -> None:
    """A stale handle does not mean that the file was replaced."""
    paths = [sick.with_name(f"sick-{index}.bin") for index in range(8)]
    for path in paths:
        shutil.copyfile(sick, path)
    server = serve("--data", *paths, "--read", way, wrapper=disk.wrapper)
    name = paths[0].stem

    def check_all() -> None:
        before = disk.stat_count
        assert eventually(lambda: disk.stat_count > before + len(paths))

    disk.fail_stats(errno.ESTALE)
    check_all()

    assert answer(server, asking(name))[:2] == (32, grpc.StatusCode.OK)
    failed = rf"check failed, still serving dataset={name} file=\S+ reason=Stale file handle"
    assert len(re.findall(failed, server.stderr)) == 1
    assert "replaced" not in server.stderr
    disk.heal()
    check_all()
    os.truncate(paths[3], 1000)
    assert eventually(lambda: f"dataset failed dataset={name} " in server.stderr)


@pytest.mark.alone
def test_slow_stats_hold_up_neither_health_nor_tokens_nor_batches(
    serve: Serve, disk: FailingDisk, shards: Path, write_tokens: WriteTokens
) -> None:
    """10,000 files at 50 ms each take minutes; a damaged dataset has to be NOT_SERVING in a second,
    and a revoked token refused.
    """
    well = write_tokens(np.arange(1, 5000), "well.bin")
    server = serve("--data", f"many={shards}", "--data", well, wrapper=disk.wrapper)
    disk.slow_stats(0.05)
    before = disk.stat_count
    assert eventually(lambda: disk.stat_count > before + 3)

    began = time.monotonic()
    request = asking("many")
    request.stream.stage.context_length = 99
    assert answer(server, request)[:2] == (32, grpc.StatusCode.OK)
    assert time.monotonic() - began < 2.0
    os.truncate(well, 10)
    assert eventually(lambda: health(server, "well") == 2, 5.0)
    assert health(server, "many") == 1


def health(server: Server, name: str) -> int:
    """Return what the server says of the health of a dataset: 1 is SERVING, 2 is not."""
    from grpc_health.v1 import health_pb2

    with grpc.insecure_channel(server.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
        answered = check(request, timeout=CALL_SECONDS)
        return int(health_pb2.HealthCheckResponse.FromString(answered).status)
