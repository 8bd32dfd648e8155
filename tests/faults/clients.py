"""Clients that misbehave: they do not read, do not speak, or connect and leave."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import grpc
import numpy as np

from client import RemoteBatches
from tokenfeed.v1 import tokenfeed_pb2 as pb

from . import mutants
from .lab import Process, Replica, Report, Sentinel, T, heap_bytes, replicas, write_corpus

_METHOD = "/tokenfeed.v1.TokenFeed/GetBatch"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"
_RESET = struct.pack("ii", 1, 0)
_GREEDY_STREAMS = 64
_SOAK_SECONDS_MIN = 300
_STALLED_SECONDS_MAX = 120
_STREAMS_KILLED = 20
_ROUNDS_WARM = 12
_MIB = 1 << 20
_OWN_TIMERS_CONNECTIONS_MIN = 50
"""From so many slow-loris connections on, the server has its own timers: 46 s."""
_SHORT_TIMERS = {
    "tokenfeed.server.rpc.listener.HANDSHAKE_SECONDS": 1.0,
    "tokenfeed.server.rpc.listener.PING_SECONDS": 0.5,
    "tokenfeed.server.rpc.listener.PING_ANSWER_SECONDS": 1.5,
}
_ROUNDS_MIN = 5


def _unread(channel: grpc.Channel) -> grpc.Call:
    """Request an endless stream and read only its first frame."""
    call = channel.unary_stream(_METHOD)(_endless())
    next(call)
    return call


def _endless() -> bytes:
    stream = pb.Stream(sources=[pb.Source(order="random-1")], stage=pb.Stage(context_length=T))
    request = pb.GetBatchRequest(batch_size=32, stream=stream, num_batches=1 << 40)
    return request.SerializeToString()


def stalled_reader(folder: Path, seconds: float, seed: int) -> Report:
    """A client that stops reading for up to two minutes, and a trainer that pauses meanwhile."""
    report = Report(f"a stalled foreign reader, and a trainer that pauses {seconds:.0f} s", 1)
    sentinel = Sentinel(folder, 2000)
    send_timeout_seconds = min(30.0, seconds / 3)
    arguments = ("--data", sentinel.corpus, "--send-timeout-seconds", str(send_timeout_seconds))
    with replicas(folder, 1, *arguments) as (server,), ExitStack() as stack:
        with sentinel.feed(server.address) as feed:
            sentinel.watch(feed, report)
        _rate(sentinel, server.address, 1.0)  # so that frames have grown before
        paused = stack.enter_context(sentinel.feed(server.address))
        next(paused)
        before = most = server.usage.memory_bytes()
        foreign = grpc.insecure_channel(server.address)
        stack.callback(foreign.close)
        call = _unread(foreign)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            most = max(most, server.usage.memory_bytes())
            if time.monotonic() - began > _STALLED_SECONDS_MAX:
                call.cancel()
            time.sleep(0.2)
        report.hits = server.stderr.count("stream closed peer=")
        report.memory_bytes = most - before
        began = time.monotonic()
        next(paused)
        report.gaps.append(time.monotonic() - began)
        reconnects = paused.stats().reconnects
        report.require(report.gaps[-1] < 1.0 and reconnects == 0, "the trainer resumes at once")
    report.require_exact()
    report.require(report.memory_bytes < 4 * _MIB, "4 MiB of memory at most")
    return report


def neighbors(folder: Path, rounds: int, seed: int) -> Report:
    """The rate of a stream at full speed while other clients have stopped reading."""
    report = Report("a healthy neighbor of stalled readers", rounds)
    sentinel = Sentinel(folder, 2000)
    alone, contended = [], []
    seconds = 2.0 if rounds > 1 else 0.7
    with replicas(folder, 1, "--data", sentinel.corpus) as (server,):
        for _ in range(rounds):
            alone.append(_rate(sentinel, server.address, seconds))
            with ExitStack() as stack:
                calls = [
                    _unread(stack.enter_context(grpc.insecure_channel(server.address)))
                    for _ in range(4)
                ]
                contended.append(_rate(sentinel, server.address, seconds))
                report.hits += all(call.is_active() for call in calls)
        with sentinel.feed(server.address) as feed:
            sentinel.watch(feed, report)
    kept = median(contended) / median(alone)
    report.fault += f" (keeps {kept:.2f} of its rate)"
    report.require_exact()
    # Noise exceeds 5 % in a few rounds, so few rounds have a looser limit.
    limit = 0.95 if rounds >= _ROUNDS_MIN else 0.5
    report.require(kept > limit, f"a neighbor keeps {limit} of its rate")
    return report


def greedy_client(folder: Path, rounds: int, seed: int) -> Report:
    """The rate of one stream at full speed while another client reads many streams."""
    report = Report(f"a trainer next to a client that reads {_GREEDY_STREAMS} streams", rounds)
    sentinel = Sentinel(folder, 2000)
    socket_path = folder / "feed.sock"
    alone, contended = [], []
    seconds = 2.0 if rounds > 1 else 0.7
    with replicas(folder, 1, "--data", sentinel.corpus, "--unix", socket_path) as (server,):
        for _ in range(rounds):
            alone.append(_rate(sentinel, f"unix:{socket_path}", seconds))
            with _reading(server.address, _GREEDY_STREAMS) as greedy:
                contended.append(_rate(sentinel, f"unix:{socket_path}", seconds))
                report.hits += greedy.poll() is None
        with _reading(server.address, _GREEDY_STREAMS):
            with sentinel.feed(f"unix:{socket_path}") as feed:
                sentinel.watch(feed, report)
    kept = median(contended) / median(alone)
    report.fault += f" (keeps {kept:.2f} of its rate)"
    report.require_exact()
    report.require(kept > 0.1, "it is not starved")
    return report


_READ = """
import sys, threading, time, grpc
address, method, streams, request, pause = sys.argv[1:]
def read():
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_stream(method)(bytes.fromhex(request))
        next(call)
        first.release()
        time.sleep(float(pause))
        for _ in call:
            pass
first = threading.Semaphore(0)
for _ in range(int(streams)):
    threading.Thread(target=read, daemon=True).start()
for _ in range(int(streams)):
    first.acquire()
print("reading", flush=True)
time.sleep(60)
"""


@contextmanager
def _reading(
    address: str, streams: int, pause_seconds: float = 0.0
) -> Iterator[subprocess.Popen[str]]:
    """Read endless streams in another process, each over its own connection. It is killed at the
    end.

    pause_seconds: after the first frame of each.
    """
    process = subprocess.Popen(
        [
            sys.executable, "-c", _READ, address, _METHOD, str(streams), _endless().hex(),
            str(pause_seconds),
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _rate(sentinel: Sentinel, address: str, seconds: float) -> float:
    """Batches per second of an endless feed that is consumed at full speed."""
    with sentinel.feed(address, num_batches=None, prefetch_bytes=32 << 20) as feed:
        next(feed)
        began, count = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            next(feed)
            count += 1
        return count / (time.monotonic() - began)


def slow_loris(folder: Path, connections: int, seed: int) -> Report:
    """Connections that send nothing, half a preface, or only a preface, or that complete the
    handshake and then do not answer pings.
    """
    report = Report("slow-loris connections", connections)
    chance = random.Random(seed)
    sentinel = Sentinel(folder, 500)
    openings = (b"", _PREFACE[:1], _PREFACE[:20], _PREFACE, _PREFACE + _SETTINGS_ACK)
    timers = _SHORT_TIMERS if connections < _OWN_TIMERS_CONNECTIONS_MIN else None
    data = ("--data", sentinel.corpus)
    with replicas(folder, 1, *data, timers=timers) as (server,), ExitStack() as stack:
        ends = []
        began = time.monotonic()
        for _ in range(connections):
            end = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
            end.sendall(chance.choice(openings))
            ends.append(end)
        with sentinel.feed(server.address) as feed:
            sentinel.watch(feed, report)
        # The server closes each one: its end is read, sooner or later.
        for end in ends:
            end.settimeout(max(0.1, 60 - (time.monotonic() - began)))
            report.hits += _ended(end)
        report.fault += f" (all gone after {time.monotonic() - began:.0f} s)"
    report.require_exact()
    return report


def _ended(end: socket.socket) -> bool:
    try:
        while end.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def connects(folder: Path, times: int, seed: int) -> Report:
    """Connections that open and close, a third of them aborted in the handshake."""
    report = Report("connects, a third aborted in the handshake", times)
    sentinel = Sentinel(folder, 200)
    with replicas(folder, 1, "--data", sentinel.corpus) as (server,):
        with sentinel.feed(server.address) as feed:
            sentinel.watch(feed, Report("before"))
        for _ in range(min(times, 200)):
            _connect(server.port, 0)
        time.sleep(2)
        before = server.usage.all()
        for index in range(times):
            report.hits += _connect(server.port, index)
        with sentinel.feed(server.address) as feed:
            sentinel.watch(feed, report)
        _require_given_back(server, before, report)
    report.require(report.memory_bytes < 20 * _MIB, "20 MiB of memory at most")
    report.require_exact()
    return report


def _connect(port: int, index: int) -> bool:
    """Connect and leave; return whether the server was there."""
    with socket.create_connection(("127.0.0.1", port), 10) as end:
        if index % 3 == 0:
            end.sendall(_PREFACE[: index % len(_PREFACE)])
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            return True
        end.sendall(_PREFACE)
        return len(end.recv(64)) > 0  # its settings


def client_kills(folder: Path, times: int, seed: int) -> Report:
    """Processes that are killed while they read streams."""
    report = Report("kill -9 of a client in the middle of its streams", times)
    sentinel = Sentinel(folder, 200)
    with replicas(folder, 1, "--data", sentinel.corpus) as (server,):
        # The memory of streams is kept: it grows for the first few hundred.
        for _ in range(min(times // _STREAMS_KILLED, _ROUNDS_WARM)):
            with _reading(server.address, _STREAMS_KILLED):
                pass
        time.sleep(2)
        before = _, descriptors, _ = server.usage.all()
        for _ in range(0, times, _STREAMS_KILLED):
            with _reading(server.address, _STREAMS_KILLED):
                connections = server.usage.descriptor_count() - descriptors
                report.hits += min(_STREAMS_KILLED, connections)
        with sentinel.feed(server.address) as feed:
            sentinel.watch(feed, report)
        _require_given_back(server, before, report)
    report.require_exact()
    return report


def _require_given_back(server: Replica, before: tuple[int, int, int], report: Report) -> None:
    """Wait up to a minute until the server has closed its clients' connections, and compare."""
    _, descriptors, threads = before
    deadline = time.monotonic() + 60
    while server.usage.descriptor_count() > descriptors + 5 and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(2)
    memory_after, descriptors_after, threads_after = server.usage.all()
    report.memory_bytes = memory_after - before[0]
    report.require(descriptors_after <= descriptors + 5, "descriptors are given back")
    report.require(threads_after <= threads + 5, "threads are given back")


def malformed(folder: Path, times: int, seed: int) -> Report:
    """Malformed and extreme requests, mutants of valid ones; a hit is one that a handler reads."""
    report = Report("malformed and extreme requests, mutants of valid ones", times)
    files = mutants.write_files(folder)
    with replicas(folder, 1, *mutants.data_arguments(folder, files)) as (server,):
        feed = mutants.open_feed(server, files)
        mutants.judge_all(feed, list(mutants.make_mutants(feed, 500, seed + 1)))
        before = server.usage.memory_bytes()
        verdicts = mutants.judge_all(feed, list(mutants.make_mutants(feed, times, seed)))
        report.memory_bytes = server.usage.memory_bytes() - before
        mutants.still_serves(feed)
    report.hits = sum(verdict.parsed for verdict in verdicts)
    report.failures += [str(verdict) for verdict in verdicts if verdict.wrong][:5]
    report.require(report.hits > 0.3 * times, f"only {report.hits} of {times} reached a handler")
    delivered = Counter(word for one in verdicts for word in one.words)
    for word in sorted(mutants.WORDS):
        count = delivered[word]
        report.require(count > 0.01 * times, f"only {count} of {times} got {word} rows")
    return report


def soak(folder: Path, seconds: float, seed: int) -> Report:
    """One client at full speed; memory, descriptors and threads of server and client stay flat."""
    report = Report(f"{seconds:.0f} s at full speed", 1)
    batch_size, context_length, batches = 32, 1024, 400
    corpus = write_corpus(folder / "corpus.bin", batches * batch_size * context_length + 1)
    expected = np.lib.stride_tricks.sliding_window_view(
        np.fromfile(corpus, "<u2"), context_length + 1
    )[::context_length].reshape(batches, batch_size, context_length + 1)
    samples: list[tuple[int, ...]] = []
    long = seconds >= _SOAK_SECONDS_MIN
    with replicas(folder, 1, "--data", corpus) as (server,):
        client = Process(os.getpid())
        # How full the client's queue is depends on who has the processors: in a short time that
        # would be as much as the limit of its heap.
        options = {} if long else {"prefetch_bytes": 8 * _MIB}
        with RemoteBatches(
            server.address, batch_size, context_length, order="sequential", **options
        ) as feed:
            began = sampled = time.monotonic()
            for x, y in feed:
                rows = expected[report.batches % batches]
                right = np.array_equal(x, rows[:, :-1]) and np.array_equal(y, rows[:, 1:])
                report.corrupted += not right
                report.batches += 1
                now = time.monotonic()
                if now - sampled > seconds / 300:
                    sampled = now
                    samples.append((*server.usage.all(), *client.all(), heap_bytes()))
                if now - began > seconds:
                    break
    # The first fifth is warm-up; of the rest, the last third is compared with the first.
    flat = np.array(samples[len(samples) // 5 :])
    third = len(flat) // 3
    growth = np.median(flat[-third:], axis=0) - np.median(flat[:third], axis=0)
    # Only the server's memory is guaranteed. What malloc keeps in a client after its blocks are
    # freed grows by up to 130 MiB in half a minute at full speed, and by a few MiB after that.
    limits = {
        "server memory": 2 * _MIB if long else 16 * _MIB,
        "server fds": 1,
        "server threads": 1,
        "client memory": 16 * _MIB if long else 160 * _MIB,
        "client fds": 1,
        "client threads": 1,
        "client heap in use": 16 * _MIB,
    }
    for (name, limit), grown in zip(limits.items(), growth.tolist(), strict=True):
        report.require(grown <= limit, f"{name} grew by {grown:.0f}")
    report.hits = 1
    report.memory_bytes = int(growth[0])
    rate = 2e-6 * report.batches * batch_size * context_length / seconds
    report.fault += (
        f" ({rate:.0f} MB/s; client {growth[3] / _MIB:+.1f} MiB, {growth[6] / _MIB:+.1f} in use)"
    )
    report.require_exact()
    return report
