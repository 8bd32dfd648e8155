"""Whatever two servers do, in whatever order, the delivered rows are 0, 1, 2, ... and right."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.client.conftest import honest_frames, start_server, wanted
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.timeouts import Timeouts
from tokenfeed.v1 import tokenfeed_pb2 as pb

B, T = 3, 4
SECONDS = 0.3
Script = Callable[[pb.GetBatchRequest, grpc.ServicerContext], Iterator[bytes]]


def messages_of(request: pb.GetBatchRequest, rows_per_frame: int = 2) -> list[bytes]:
    return [message for _, message in honest_frames(request, rows_per_frame)]


def cut(frames: int, code: grpc.StatusCode) -> Script:
    def script(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from messages_of(request)[:frames]
        context.abort(code, "seed: this and that")

    return script


def stall(frames: int) -> Script:
    def script(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from messages_of(request)[:frames]
        gone = threading.Event()
        context.add_callback(gone.set)
        gone.wait(10)

    return script


def other_identity(request: pb.GetBatchRequest, _: grpc.ServicerContext) -> Iterator[bytes]:
    other = pb.GetBatchRequest()
    other.CopyFrom(request)
    other.stream.sources[0].seed += 1
    yield from messages_of(other)


def twice(request: pb.GetBatchRequest, _: grpc.ServicerContext) -> Iterator[bytes]:
    for message in messages_of(request):
        yield message
        yield message


def reordered(request: pb.GetBatchRequest, _: grpc.ServicerContext) -> Iterator[bytes]:
    yield from reversed(messages_of(request, rows_per_frame=1))


def damaged(bit: int) -> Script:
    def script(request: pb.GetBatchRequest, _: grpc.ServicerContext) -> Iterator[bytes]:
        for message in messages_of(request):
            bits = 8 * len(message)
            place = bits - 1 - bit % bits  # the tokens come last
            flipped = bytearray(message)
            flipped[place // 8] ^= 1 << place % 8
            yield bytes(flipped)

    return script


def finely(request: pb.GetBatchRequest, _: grpc.ServicerContext) -> Iterator[bytes]:
    yield from messages_of(request, rows_per_frame=1)


BREAKS = st.sampled_from(
    [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED]
)
SCRIPTS = st.one_of(
    st.builds(cut, st.integers(0, 4), BREAKS),
    # A refusal after something came looks like one, and is none: the next call is granted.
    st.builds(cut, st.integers(1, 4), st.just(grpc.StatusCode.INVALID_ARGUMENT)),
    st.builds(stall, st.integers(0, 2)),
    st.builds(damaged, st.integers(0, 150)),
    st.builds(damaged, st.integers(0, 2000)),
    st.sampled_from([other_identity, twice, reordered, finely]),
)


class TwoServers(RuleBasedStateMachine):
    """A stream of two servers, of which each plays what it is told for its next calls."""

    def __init__(self) -> None:
        super().__init__()
        self._started = [start_server() for _ in range(2)]
        self._row = 0

    @initialize()
    def open(self) -> None:
        request = wanted(T, B)
        self._remote = Servers(
            [script.address for script, _ in self._started],
            request,
            timeouts=Timeouts(read_seconds=SECONDS, reconnect_seconds=30.0),
        )
        self._stream = self._remote.open_rows(
            request, prefetch_bytes=8 * B * (T + 1) * 2, counters=Counters()
        )
        self._stream.start()

    @rule(server=st.integers(0, 1), script=SCRIPTS)
    def play(self, server: int, script: Script) -> None:
        self._started[server][0].scripts.append(script)

    @rule(count=st.integers(1, 3 * B))
    def take(self, count: int) -> None:
        for _ in range(count):
            parts = self._stream.peek(1)
            assert parts is not None
            rows = parts[0].tokens
            assert len(parts) == 1
            expected = np.zeros((1, T + 1), dtype=rows.dtype)
            expected[0, 0] = self._row
            np.testing.assert_array_equal(rows, expected)
            self._stream.consume(1)
            self._row += 1

    def teardown(self) -> None:
        if hasattr(self, "_stream"):
            self._remote.close()
            self._stream.close()
        for _, server in self._started:
            server.stop(0).wait()


TestTwoServers = pytest.mark.slow(pytest.mark.timeout(300)(TwoServers.TestCase))
TestTwoServers.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
