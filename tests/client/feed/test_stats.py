"""What a feed says of itself, against servers and local files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from client import NumpyBatches, RemoteBatches
from tests.client.conftest import ScriptedServer, honest, honest_frames
from tests.conftest import Serve, WriteTokens
from tests.support.waiting import eventually
from tokenfeed.client.feed.stats import FeedStats
from tokenfeed.v1 import tokenfeed_pb2 as pb

B, T, BATCHES = 4, 32, 25
ROWS = B * BATCHES
KINDS = [RemoteBatches, NumpyBatches]


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(range(60_000))


def require_consistent(stats: FeedStats, batches: int) -> None:
    waits = stats.wait_histogram
    assert len(waits.counts) == len(waits.bounds_seconds) + 1
    assert list(waits.counts) == sorted(waits.counts)
    # One more if the end of the stream was waited for.
    assert waits.counts[-1] in (batches, batches + 1)
    assert waits.sum_seconds == stats.wait_seconds


@pytest.mark.parametrize("kind", KINDS)
def test_what_arrives_from_a_server_is_counted_exactly(
    serve: Serve, path: Path, kind: type[Any]
) -> None:
    """So that the figures of trainers and servers can be compared."""
    server = serve("--data", path)
    with kind(server.address, B, T, num_batches=BATCHES) as feed:
        for _ in feed:
            pass
        server.stop()

        stats = feed.stats()  # asks nobody

    assert (stats.batches, stats.rows_received) == (BATCHES, ROWS)
    assert stats.token_bytes_received == ROWS * (T + 1) * 2
    assert 1 <= stats.frames_received <= ROWS
    assert 0 < stats.frame_bytes_received - stats.token_bytes_received < 200 * stats.frames_received
    assert stats.server.rpartition(":")[2] == server.address.rpartition(":")[2]
    assert (stats.waiting_seconds, stats.reconnect_reasons) == (0.0, {})
    require_consistent(stats, BATCHES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"prefetch_bytes": 0}])
def test_local_files_have_the_same_statistics(
    path: Path, kind: type[Any], options: dict[str, int]
) -> None:
    """A run moves from a laptop to a cluster, and its plots stay."""
    with kind(f"file:{path}", B, T, num_batches=BATCHES, **options) as feed:
        for _ in feed:
            pass

        stats = feed.stats()

    assert (stats.batches, stats.rows_received) == (BATCHES, ROWS)
    assert stats.token_bytes_received == ROWS * (T + 1) * 2
    assert (stats.frames_received, stats.frame_bytes_received, stats.server) == (0, 0, "")
    assert (stats.queue_capacity_batches > 0) == (not options)
    require_consistent(stats, BATCHES)


def test_the_queue_holds_what_has_arrived_and_was_not_taken(scripted: ScriptedServer) -> None:
    """An empty queue says that the data is late, a full one that the trainer is."""
    with NumpyBatches(scripted.address, B, T, num_batches=BATCHES) as feed:
        assert feed.stats().queue_capacity_batches == 0
        for left in range(BATCHES - 1, BATCHES - 6, -1):
            next(feed)
            assert eventually(lambda: feed.stats().queue_depth_batches == left)  # noqa: B023
        assert feed.stats().queue_capacity_batches > BATCHES
        # What has arrived already was not waited for.
        assert feed.stats().wait_histogram.counts[0] >= 4

    stats = feed.stats()
    assert (stats.queue_depth_batches, stats.queue_capacity_batches) == (0, 0)


def test_the_queue_of_a_loop_that_was_left_is_forgotten(scripted: ScriptedServer) -> None:
    """Statistics keep no reader alive, which would go on receiving."""
    scripted.windows_per_epoch = B * BATCHES
    with NumpyBatches(scripted.address, B, T, order="shuffled") as feed:
        for _ in feed.epoch(0):
            assert feed.stats().queue_capacity_batches > 0
            break

        assert feed.stats().queue_capacity_batches == 0
        next(feed)
        assert feed.stats().queue_capacity_batches > 0


def test_a_wait_in_progress_is_seen_by_another_thread(scripted: ScriptedServer) -> None:
    """A trainer whose servers are away shows it before they are back."""
    released = threading.Event()

    def late(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        released.wait(10)
        yield from honest(request, context)

    scripted.scripts = [late]
    with NumpyBatches(scripted.address, B, T, num_batches=1) as feed:
        taking = threading.Thread(target=lambda: list(feed))
        taking.start()

        assert eventually(lambda: feed.stats().waiting_seconds > 0.2)
        assert feed.stats().wait_seconds == 0.0
        released.set()
        taking.join()
        stats = feed.stats()

    assert stats.waiting_seconds == 0.0
    assert stats.wait_seconds > 0.2
    counts = dict(
        zip(stats.wait_histogram.bounds_seconds, stats.wait_histogram.counts, strict=False)
    )
    assert counts[0.1] < stats.wait_histogram.counts[-1]


def test_reconnects_are_counted_by_their_reason(scripted: ScriptedServer) -> None:
    """A server that restarts is no matter; frames that arrive damaged are."""

    def cut(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield next(honest_frames(request))[1]
        context.abort(grpc.StatusCode.UNAVAILABLE, "server: going away")

    def damaged(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        frames = honest_frames(request)
        yield next(frames)[1]
        message = bytearray(next(frames)[1])
        message[-1] ^= 1
        yield bytes(message)

    # The first call is followed by one that is requested ahead, so each script breaks one stream.
    scripted.scripts = [cut, damaged, honest]
    with NumpyBatches(scripted.address, B, T, num_batches=BATCHES) as feed:
        rows = [row for x, _ in feed for row in x[:, 0].tolist()]
        stats = feed.stats()

    assert rows == list(range(ROWS))
    assert stats.reconnect_reasons == {"Unreachable": 1, "BadFrame": 1}
    assert stats.reconnects == 2
    assert stats.rows_received == ROWS
