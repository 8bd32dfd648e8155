"""The CUDA path on a device: run where there is one, `pytest -m gpu`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch

from client import RemoteBatches
from tests.conftest import Serve, WriteTokens
from tests.server.rpc.test_service import serving
from tests.support import reference
from tests.support.cuda import no_waits
from tests.support.memory_store import MemoryStore
from tests.support.offline import offline_rows, received_rows
from tokenfeed.errors import InvalidRequest
from tokenfeed.server.datasets.opening import TokenChecks, dataset_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events"),
]

B, T = 16, 256
Batch = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def feeds(serve: Serve, write_tokens: WriteTokens) -> tuple[str, np.ndarray]:
    """A server's address, and the rows of its samples 0 to 1,599 with seed 0."""
    path = write_tokens(np.arange(1_000_000) % 65_521)
    return serve("--data", path).address, offline_rows([path], "shuffled-1", 0, T, range(100 * B))


def rows_of(batches: Iterable[Batch]) -> np.ndarray:
    return received_rows((x.cpu(), y.cpu()) for x, y in batches)


def test_batches_on_the_device_are_those_of_the_offline_stream(
    feeds: tuple[str, np.ndarray],
) -> None:
    """All of them held at once: they belong to the caller."""
    address, expected = feeds
    with RemoteBatches(address, B, T, device="cuda", num_batches=100) as feed:
        batches = list(feed)

    assert all(tensor.is_cuda and tensor.is_contiguous() for batch in batches for tensor in batch)
    assert np.array_equal(rows_of(batches), expected)


@pytest.mark.parametrize("x_dtype", [torch.int64, torch.int32])
def test_batches_are_right_while_the_device_is_busy_and_far_behind(
    feeds: tuple[str, np.ndarray], x_dtype: torch.dtype
) -> None:
    """The host enqueues many steps ahead; a slot used again too early would change a batch."""
    address, expected = feeds
    busy = torch.randn(4096, 4096, device="cuda")
    kept = []
    with RemoteBatches(address, B, T, device="cuda", x_dtype=x_dtype, num_batches=100) as feed:
        for x, y in feed:
            for _ in range(3):
                busy = torch.tanh(busy @ busy)
            kept.append((x.clone(), y.clone()))
            del x, y

    assert kept[0][0].dtype == x_dtype
    assert np.array_equal(rows_of((x.long(), y) for x, y in kept), expected)


def test_two_streams_of_the_consumers_get_right_batches(feeds: tuple[str, np.ndarray]) -> None:
    """Work is enqueued on whatever stream is the current one."""
    address, expected = feeds
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    batches = []
    with RemoteBatches(address, B, T, device="cuda", num_batches=100) as feed:
        for step in range(100):
            # The default stream is busy: what is read at once on another one was widened there.
            torch.cuda._sleep(20_000_000)
            with torch.cuda.stream(streams[step % 2]):
                x, y = next(feed)
                batches.append((x.clone(), y.clone()))
                streams[step % 2].synchronize()
    torch.cuda.synchronize()

    assert np.array_equal(rows_of(batches), expected)


def test_a_graph_is_captured_while_batches_arrive(
    feeds: tuple[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One CUDA call from the receiving thread would end the capture."""
    monkeypatch.setattr("tokenfeed.client.source.row_stream.FIRST_PREFETCH_BYTES", 4 << 30)
    address, expected = feeds
    x = torch.zeros(B, T, dtype=torch.int64, device="cuda")
    y, seen = torch.zeros_like(x), torch.zeros_like(x)
    # So much room that the thread is still receiving when the capture ends.
    with RemoteBatches(address, B, T, device="cuda", prefetch_bytes=4 << 30) as feed:
        assert feed.copy_into(x, y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        assert feed._reader is not None
        stream = feed._reader.rows
        with torch.cuda.graph(graph):
            received = stream._received_row
            for _ in range(200):
                seen.copy_(x + 1)
            threading.Event().wait(0.3)
            assert stream._received_row > received
        rows = []
        for _ in range(99):
            graph.replay()
            rows.append((seen - 1).cpu())
            assert feed.copy_into(x, y)

    assert np.array_equal(torch.cat(rows).numpy(), expected[: 99 * B, :-1])


@pytest.fixture
def masked() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """A server's address, the rows of its samples 0 to 1,599 with seed 0, and their targets, by a
    loss mask and by documents.
    """
    numbers = np.random.default_rng(1)
    tokens = np.arange(60_000, dtype="<u2")
    mask, starts = numbers.integers(0, 2, tokens.size), np.arange(7, tokens.size, 211)
    counts = mask.astype(bool)
    counts[starts] = False
    rows = np.frombuffer(
        b"".join(reference.rows([tokens.tobytes()], 2, "shuffled-1", 0, T, range(100 * B))), "<u2"
    )
    rows = rows.reshape(-1, T + 1).astype(np.int64)
    # Each token is at the place that it names.
    targets = np.where(counts[rows[:, 1:]], rows[:, 1:], -100)
    dataset = dataset_of(MemoryStore("train", [tokens], [mask], [starts]), TokenChecks())
    with serving({"train": dataset}) as peer:
        yield peer.address, rows, targets


@pytest.mark.parametrize("x_dtype", [torch.int64, torch.int32])
def test_targets_that_do_not_count_are_ignored_while_the_device_is_far_behind(
    masked: tuple[str, np.ndarray, np.ndarray], x_dtype: torch.dtype
) -> None:
    """The bits of a slot that is used again too early would mask another batch."""
    address, rows, targets = masked
    busy = torch.randn(4096, 4096, device="cuda")
    kept = []
    with RemoteBatches(
        address, B, T, device="cuda", x_dtype=x_dtype, mask_borders=True, num_batches=100
    ) as feed:
        for x, y in feed:
            for _ in range(3):
                busy = torch.tanh(busy @ busy)
            kept.append((x.clone(), y.clone()))
            del x, y

    assert np.array_equal(torch.cat([x for x, _ in kept]).cpu().numpy(), rows[:, :-1])
    assert np.array_equal(torch.cat([y for _, y in kept]).cpu().numpy(), targets)


def test_a_graph_reads_masked_targets_from_its_static_tensors(
    masked: tuple[str, np.ndarray, np.ndarray],
) -> None:
    """copy_into fills x and y between two replays, without a wait for the device."""
    address, rows, targets = masked
    x = torch.zeros(B, T, dtype=torch.int64, device="cuda")
    y = torch.zeros(B, T, dtype=torch.int32, device="cuda")
    seen_x, seen_y = torch.zeros_like(x), torch.zeros_like(y)
    with RemoteBatches(address, B, T, device="cuda", mask_borders=True, num_batches=100) as feed:
        assert feed.copy_into(x, y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            seen_x.copy_(x + 1)
            seen_y.copy_(y + 1)
        found = []
        while True:
            graph.replay()
            found.append(((seen_x - 1).clone(), (seen_y - 1).clone()))
            if not feed.copy_into(x, y):
                break

    assert np.array_equal(torch.cat([one for one, _ in found]).cpu().numpy(), rows[:, :-1])
    assert np.array_equal(torch.cat([one for _, one in found]).cpu().numpy(), targets)


def test_a_masked_batch_takes_one_copy_and_no_wait_for_the_device(
    masked: tuple[str, np.ndarray, np.ndarray],
) -> None:
    """The bits are in the copy of the tokens, and are unpacked where they arrive."""
    address, _, _ = masked
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with RemoteBatches(address, B, T, device="cuda", mask_borders=True, num_batches=40) as feed:
        for _ in range(10):
            next(feed)
        torch.cuda.synchronize()
        with profiler:
            with no_waits():
                for _ in range(20):
                    next(feed)
            torch.cuda.synchronize()
    copies = [event for event in profiler.events() if "Memcpy HtoD" in event.name]

    assert 0 < len(copies) <= 21
    assert all("Pinned" in event.name for event in copies)


def test_a_batch_is_no_part_of_a_graph(feeds: tuple[str, np.ndarray]) -> None:
    """Replayed, it would be the same batch for ever."""
    address, expected = feeds
    count, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    with RemoteBatches(address, B, T, device="cuda", num_batches=3) as feed:
        found = [next(feed)]
        with torch.cuda.graph(graph):
            count += 1
            with pytest.raises(InvalidRequest, match="CUDA graph"):
                next(feed)
        found += feed
    graph.replay()

    assert count.item() == 1, "the capture went on"
    assert np.array_equal(rows_of(found), expected[: 3 * B]), "no batch was lost"


def test_copies_run_under_the_compute(feeds: tuple[str, np.ndarray]) -> None:
    """On a stream of their own: a trace shows copies that overlap kernels of the trainer."""
    address, _ = feeds
    work = torch.randn(4096, 4096, device="cuda")
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with RemoteBatches(address, B, T, device="cuda") as feed:
        next(feed)
        with profiler:
            for _ in range(20):
                work = torch.tanh(work @ work)
                next(feed)
            torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_time_total > 0]
    copies = [event.time_range for event in events if "Memcpy HtoD (Pinned" in event.name]
    kernels = [
        event.time_range
        for event in events
        if "gemm" in event.name.lower() or "nvjet" in event.name
    ]

    assert copies, "the copies come from pinned memory"
    assert any(
        kernel.start < copy.start and copy.end < kernel.end for copy in copies for kernel in kernels
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a CUDA device more")
def test_several_devices_of_one_process_get_their_own_batches(
    feeds: tuple[str, np.ndarray],
) -> None:
    """Whatever the current device is when `next` is called."""
    address, expected = feeds
    found = []
    with (
        RemoteBatches(address, B, T, device="cuda:0", rank=0, world_size=2) as one,
        RemoteBatches(address, B, T, device="cuda:1", rank=1, world_size=2) as two,
    ):
        for _ in range(50):
            found += [next(two), next(one)][::-1]

    assert {str(x.device) for x, _ in found} == {"cuda:0", "cuda:1"}
    assert np.array_equal(rows_of(found), expected)
