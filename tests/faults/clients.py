"""What happens to a server whose clients misbehave: they do not read, do not speak, come and go."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import grpc

from tokenfeed.v1 import tokenfeed_pb2 as pb

from .lab import Replica, Report, T, Witness, replicas

_METHOD = "/tokenfeed.v1.TokenFeed/GetBatch"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_RESET = struct.pack("ii", 1, 0)
_MIB = 1 << 20
_ROUNDS_MIN = 5


def _unread(channel: grpc.Channel) -> grpc.Call:
    """Ask for a stream without end, read its first frame, and no more."""
    request = pb.GetBatchRequest(
        batch_size=32, context_length=T, order="random-1", num_batches=1 << 40
    )
    call = channel.unary_stream(_METHOD)(request.SerializeToString())
    next(call)
    return call


def stalled_reader(folder: Path, seconds: float, seed: int) -> Report:
    """Clients that stop reading, and a trainer that pauses beside them."""
    report = Report(f"stalled foreign readers beside a trainer that pauses {seconds:.0f} s", 4)
    witness = Witness(folder, 2000)
    stall_seconds = min(30.0, seconds / 3)
    arguments = ("--data", witness.corpus, "--stall-seconds", str(stall_seconds))
    with replicas(folder, 1, *arguments) as (server,), ExitStack() as stack:
        paused = stack.enter_context(witness.feed(server.address))
        next(paused)
        before = most = server.memory_bytes()
        calls = [
            _unread(stack.enter_context(grpc.insecure_channel(server.address)))
            for _ in range(report.injected)
        ]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            most = max(most, server.memory_bytes())
            time.sleep(0.2)
        report.hits = server.log.count("evicted peer=")
        report.memory_bytes = most - before
        began = time.monotonic()
        next(paused)
        report.gaps.append(time.monotonic() - began)
        assert len(calls) == report.injected
        with witness.feed(server.address) as feed:
            witness.watch(feed, report)
    report.require_exact()
    report.require(report.memory_bytes < 4 * _MIB * report.injected, "4 MiB a stalled reader")
    return report


def neighbours(folder: Path, rounds: int, seed: int) -> Report:
    """What a stream at full speed loses beside clients that have stopped reading."""
    report = Report("a healthy neighbour of stalled readers", rounds)
    witness = Witness(folder, 2000)
    alone, beside = [], []
    with replicas(folder, 1, "--data", witness.corpus) as (server,):
        for _ in range(rounds):
            alone.append(_rate(witness, server, 2.0))
            with ExitStack() as stack:
                calls = [
                    _unread(stack.enter_context(grpc.insecure_channel(server.address)))
                    for _ in range(4)
                ]
                beside.append(_rate(witness, server, 2.0))
                report.hits += all(call.is_active() for call in calls)
        with witness.feed(server.address) as feed:
            witness.watch(feed, report)
    kept = median(beside) / median(alone)
    report.fault += f" (keeps {kept:.2f} of its rate)"
    report.require_exact()
    # Noise alone is more than that in a few rounds: throughput is no test.
    report.require(kept > 0.95 or rounds < _ROUNDS_MIN, "a neighbour loses under 5 %")
    return report


def _rate(witness: Witness, server: Replica, seconds: float) -> float:
    """Batches a second of a feed without end that is consumed at full speed."""
    with witness.feed(server.address, num_batches=None, prefetch_bytes=32 << 20) as feed:
        next(feed)
        began, count = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            next(feed)
            count += 1
        return count / (time.monotonic() - began)


def slow_loris(folder: Path, connections: int, seed: int) -> Report:
    """Connections that say nothing, half a preface, or a preface and nothing else."""
    report = Report("slow-loris connections", connections)
    chance = random.Random(seed)
    witness = Witness(folder, 500)
    with replicas(folder, 1, "--data", witness.corpus) as (server,), ExitStack() as stack:
        ends = []
        began = time.monotonic()
        for _ in range(connections):
            end = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
            end.sendall(_PREFACE[: chance.choice((0, 1, 20, len(_PREFACE)))])
            ends.append(end)
        with witness.feed(server.address) as feed:
            witness.watch(feed, report)
        # Each is let go by the server: its end is read, sooner or later.
        for end in ends:
            end.settimeout(max(0.1, 60 - (time.monotonic() - began)))
            report.hits += _ended(end)
        report.gaps.append(0.0)
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
    """Connections that come and go, a third of them aborted in the handshake."""
    report = Report("connects, a third aborted in the handshake", times)
    witness = Witness(folder, 200)
    with replicas(folder, 1, "--data", witness.corpus) as (server,):
        with witness.feed(server.address) as feed:
            witness.watch(feed, Report("before"))
        for _ in range(min(times, 200)):
            _connect(server.port, 0)
        time.sleep(2)
        before = server.descriptor_count(), server.thread_count(), server.memory_bytes()
        for index in range(times):
            _connect(server.port, index)
            report.hits += 1
        with witness.feed(server.address) as feed:
            witness.watch(feed, report)
        deadline = time.monotonic() + 60
        while server.descriptor_count() > before[0] + 5 and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(2)
        report.memory_bytes = server.memory_bytes() - before[2]
        report.require(server.descriptor_count() <= before[0] + 5, "descriptors are given back")
        report.require(server.thread_count() <= before[1] + 5, "threads are given back")
        report.require(report.memory_bytes < 20 * _MIB, "20 MiB of memory at most")
    report.require_exact()
    return report


def _connect(port: int, index: int) -> None:
    end = socket.create_connection(("127.0.0.1", port), 10)
    if index % 3 == 0:
        end.sendall(_PREFACE[: index % len(_PREFACE)])
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    else:
        end.sendall(_PREFACE)
        end.settimeout(10)
        end.recv(64)  # its settings
    end.close()


def client_kills(folder: Path, times: int, seed: int) -> Report:
    """Clients that vanish in the middle of a stream."""
    report = Report("clients that vanish in the middle of a stream", times)
    witness = Witness(folder, 200)
    with replicas(folder, 1, "--data", witness.corpus) as (server,):
        gate = threading.Semaphore(8)
        before = server.thread_count()

        def vanish() -> None:
            with gate, grpc.insecure_channel(server.address) as channel:
                _unread(channel)
                report.hits += 1

        threads = [threading.Thread(target=vanish) for _ in range(times)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with witness.feed(server.address) as feed:
            witness.watch(feed, report)
        report.require(server.thread_count() <= before + 40, "threads are used again")
    report.require_exact()
    return report
