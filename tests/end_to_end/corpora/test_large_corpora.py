"""Corpora as large as real ones: a file of a terabyte, and ten thousand shards.

Both are sparse, so they cost a test no disk. A few tokens are written at known places: whatever is
read there has come from the right one of half a million million places.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client import RemoteBatches
from tests.conftest import ROOT, Serve, Server
from tests.support import reference
from tests.support.forked import COLD
from tests.support.waiting import least_seconds

TERABYTE = 10**12
SHARDS = 10_000
SHARD_TOKENS = 1_000_000

B, T = 32, 2048
ORDERS = ("random", "shuffled", "sequential")
TRIES = 3
"""Each measurement is repeated, and the best one counts: machines are busy with other work too."""

MARKED_TOKENS = 3000
MARKED_PLACES = (0, 2**31 - 1000, 2**32 - 1000, 10**11 + 1, 4 * 10**11, TERABYTE // 2 - 3000)
"""Tokens of the terabyte from which on something is written."""
MARKED_SHARDS = {
    0: 0,
    1: SHARD_TOKENS - MARKED_TOKENS,
    4_999: 123_456,
    5_000: 1,
    9_999: SHARD_TOKENS - MARKED_TOKENS,
    **{500 * index + 77: 40_000 * index for index in range(20)},
}
"""Shards in which something is written, and from which of their tokens on."""


@pytest.fixture(scope="module")
def terabyte(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("terabyte") / "train.bin"
    path.touch()
    os.truncate(path, TERABYTE)
    for index, first_token in enumerate(MARKED_PLACES):
        write_at(path, first_token, marks(index))
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("shards")
    for index in range(SHARDS):
        path = shard_path(folder, index)
        path.touch()
        os.truncate(path, 2 * SHARD_TOKENS)
    for index, first_token in MARKED_SHARDS.items():
        write_at(shard_path(folder, index), first_token, marks(index))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.alone
@pytest.mark.slow
def test_a_terabyte_is_ready_within_a_second_of_the_imports(serve: Serve, terabyte: Path) -> None:
    """A restart must cost a trainer no pause: nothing at start may grow with the corpus."""
    # A server that is forked has imported nothing.
    import_seconds = least_seconds(seconds_to_import, 0.0) if COLD in os.environ else 0.0

    enough = 1.0 + import_seconds
    assert least_seconds(lambda: seconds_until_ready(serve, terabyte), enough) < enough


@pytest.mark.alone
@pytest.mark.parametrize("order", ORDERS)
def test_the_first_batch_of_a_terabyte_comes_within_a_tenth_of_a_second(
    serve: Serve, terabyte: Path, order: str
) -> None:
    """Training runs are started often while they are debugged; and resuming must cost nothing."""
    server = serve("--data", terabyte)
    first_batch_seconds(server, order)

    seconds = least_seconds(lambda: first_batch_seconds(server, order), 0.1)

    print(f"\n{order}: first batch after {1000 * seconds:.1f} ms")
    assert seconds < 0.1


@pytest.mark.alone
@pytest.mark.parametrize("order", ORDERS)
def test_sample_ten_to_the_fourteen_costs_what_sample_zero_costs(
    serve: Serve, terabyte: Path, order: str
) -> None:
    """Resuming by skipping takes hours; here the position is an argument like any other."""
    server = serve("--data", terabyte)
    for start_sample in (0, 10**14):
        first_batch_seconds(server, order, start_sample)

    ratios = []
    for _ in range(TRIES):
        # In turn, so that whatever else the machine does hits both alike.
        pairs = [
            [first_batch_seconds(server, order, start_sample) for start_sample in (0, 10**14)]
            for _ in range(9)
        ]
        near, far = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios.append(far / near)
        if ratios[-1] < 2:
            break

    print(f"\n{order}: {1000 * near:.1f} ms at sample 0, {1000 * far:.1f} ms at sample 10^14")
    assert min(ratios) < 2


def test_a_terabyte_served_in_every_order_takes_little_memory(serve: Serve, terabyte: Path) -> None:
    """A permutation kept as a list would be 8 TB; the page cache is the only copy of the corpus."""
    server = serve("--data", terabyte)
    for order in ORDERS:
        with RemoteBatches(server.address, B, T, order=order, num_batches=300) as feed:
            assert sum(1 for _ in feed) == 300

    # What rows are gathered into is shared memory to the kernel, and just as much our own.
    anonymous_bytes, shared_bytes = (status_bytes(server, name) for name in ("RssAnon", "RssShmem"))
    print(f"\nRssAnon {anonymous_bytes >> 20} MiB, RssShmem {shared_bytes >> 20} MiB")
    assert anonymous_bytes + shared_bytes < 150 << 20


@pytest.mark.parametrize("place", range(len(MARKED_PLACES)))
def test_tokens_anywhere_in_a_terabyte_are_found_where_they_were_written(
    serve: Serve, terabyte: Path, place: int
) -> None:
    """Beyond 2^31 and 2^32 tokens, 32-bit arithmetic somewhere would serve other places unseen."""
    server = serve("--data", terabyte)
    first_window = MARKED_PLACES[place] // T

    x, y = first_windows(server, first_window)

    # The end of the corpus is not divisible by T; its windows go on with the next epoch.
    window_count = (TERABYTE // 2 - 1) // T
    tokens = np.memmap(terabyte, "<u2", "r")
    for row in range(len(x)):
        first = (first_window + row) % window_count * T
        assert np.array_equal(x[row], tokens[first : first + T])
        assert np.array_equal(y[row], tokens[first + 1 : first + T + 1])
    # At least T of the marked tokens are in these windows.
    assert np.isin(marks(place), x).sum() >= MARKED_TOKENS - T


@pytest.mark.alone
@pytest.mark.slow
def test_ten_thousand_shards_are_ready_within_two_seconds_under_a_thousand_descriptors(
    serve: Serve, shards: Path
) -> None:
    """1,024 is what a container or a login gives; corpora are cut into more shards than that."""

    def measure() -> float:
        return seconds_until_ready(serve, shards, few_descriptors=True)

    ready_seconds = least_seconds(measure, 2.0)

    print(f"\n{SHARDS} shards ready after {ready_seconds:.2f} s")
    assert ready_seconds < 2.0


def test_windows_of_ten_thousand_shards_are_what_their_files_hold(
    serve: Serve, shards: Path
) -> None:
    """In one range of addresses, one page too many would shift every shard behind it."""
    server = serve("--data", f"train={shards}", wrapper=few_descriptors_wrapper())
    windows_per_shard = (SHARD_TOKENS - 1) // T
    for shard, first_token in MARKED_SHARDS.items():
        # A few windows around what was written, and those across the border to the next shard.
        for window in (max(0, first_token // T - 1), windows_per_shard - 2):
            first_sample = shard * windows_per_shard + window

            x, y = first_windows(server, first_sample)

            for row in range(len(x)):
                index, window = divmod((first_sample + row), windows_per_shard)
                tokens = np.fromfile(shard_path(shards, index % SHARDS), "<u2")
                assert np.array_equal(x[row], tokens[window * T : window * T + T])
                assert np.array_equal(y[row], tokens[window * T + 1 : window * T + T + 1])
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 100


@pytest.mark.parametrize("order", ORDERS)
def test_seeds_beyond_32_bits_and_samples_beyond_2_to_the_53_are_served_exactly(
    serve: Serve, shards: Path, order: str
) -> None:
    """Floats would round there, and deliver a sample twice and its neighbor never."""
    server = serve("--data", f"train={shards}", wrapper=few_descriptors_wrapper())
    for seed in (2**32 + 7, 2**64 - 1):
        for start_sample in (2**32 + 1, 10**14, 2**53 + 1, 2**62 + 3):
            sample, shard = next_marked_shard(order, seed, start_sample)

            # T + 1 is the length of a shard, so a shard is a window, and there is no other.
            with RemoteBatches(
                server.address,
                1,
                SHARD_TOKENS - 1,
                seed=seed,
                order=order,
                start_sample=sample,
                num_batches=1,
            ) as feed:
                x, y = (tensor[0].numpy() for tensor in next(feed))

            tokens = np.fromfile(shard_path(shards, shard), "<u2")
            assert np.array_equal(x, tokens[:-1])
            assert np.array_equal(y, tokens[1:])


def next_marked_shard(order: str, seed: int, start_sample: int) -> tuple[int, int]:
    """Return the first sample from start_sample on whose window has marked tokens, and its shard.

    Of 10,000 windows some 25 are marked: a sample read elsewhere would be nothing but zeros.
    """
    samples = range(start_sample, start_sample + 10 * SHARDS)
    shards = (reference.place(f"{order}-1", seed, SHARDS, sample) for sample in samples)
    pairs = zip(samples, shards, strict=True)
    return next((sample, shard) for sample, shard in pairs if shard in MARKED_SHARDS)


def seconds_to_import() -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import tokenfeed.server.cli.serve"], cwd=ROOT, check=True
    )
    return time.perf_counter() - started


def seconds_until_ready(serve: Serve, data: Path, *, few_descriptors: bool = False) -> float:
    """Start a server, wait for its line "listening on", and stop it again."""
    started = time.perf_counter()
    server = serve("--data", data, wrapper=few_descriptors_wrapper() if few_descriptors else ())
    seconds = time.perf_counter() - started
    assert server.stop() == 0
    return seconds


def few_descriptors_wrapper() -> tuple[str, ...]:
    return ("bash", "-c", 'ulimit -n 1024; exec "$@"', "-")


def first_batch_seconds(server: Server, order: str, start_sample: int = 0) -> float:
    with RemoteBatches(server.address, B, T, order=order, start_sample=start_sample) as feed:
        started = time.perf_counter()
        next(feed)
        return time.perf_counter() - started


def first_windows(server: Server, first_sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of a few windows in the order of the corpus."""
    with RemoteBatches(
        server.address, 4, T, order="sequential", start_sample=first_sample, num_batches=1
    ) as feed:
        x, y = next(feed)
    return x.numpy(), y.numpy()


def status_bytes(server: Server, name: str) -> int:
    """Return a figure of /proc/PID/status, which gives it in KiB."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05}.bin"


def marks(index: int) -> np.ndarray:
    """Return tokens that are all different, other ones for each index."""
    return (np.arange(MARKED_TOKENS) + 10_000 + index).astype("<u2")


def write_at(path: Path, first_token: int, tokens: np.ndarray) -> None:
    with path.open("r+b") as file:
        file.seek(2 * first_token)
        file.write(tokens.tobytes())
