"""Faults of the network: connections cut and reset, bytes dribbled, delayed and flipped."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from client import Timeouts
from tests.support.far_side import far_side

from .lab import B, Report, Sentinel, T, replicas
from .proxy import DESCRIPTION_BYTES, Fault, FaultProxy

_STEPS_A_FAULT = 12
_BATCH_BYTES = B * (T + 1) * 2
_LATE_BYTES = 12 * _BATCH_BYTES


def _harmed(
    folder: Path,
    report: Report,
    times: int,
    script: Callable[[int], Sequence[Fault]],
) -> Report:
    """Watch a feed through a proxy that follows the script until enough faults have hit."""
    sentinel = Sentinel(folder, _STEPS_A_FAULT * times)
    with replicas(folder, 1, "--data", sentinel.corpus) as (server,):
        with sentinel.feed(server.address, num_batches=50) as feed:
            for _ in feed:
                pass
        before = server.usage.memory_bytes()
        proxy = FaultProxy(
            server.address, lambda index: script(index) if proxy.hits < times else ()
        )
        timeouts = Timeouts(read_seconds=1.0, reconnect_seconds=120.0)
        with proxy, sentinel.feed(proxy.address, timeouts=timeouts) as feed:
            sentinel.watch(feed, report)
        report.memory_bytes = server.usage.memory_bytes() - before
        report.injected, report.hits = len(proxy.strikes), proxy.hits
    report.require(report.hits >= times, f"only {report.hits} of {times} faults hit")
    report.require_exact(some_miss=True)
    return report


def _once(chance: random.Random, *kinds: str) -> Callable[[int], Sequence[Fault]]:
    """Give each connection one fault, after it has delivered something."""

    def script(_: int) -> Sequence[Fault]:
        # A client sends few bytes: its preface, headers, and 100 bytes per request. Most faults
        # strike while batches are in transit, some before, during Describe.
        early, up = chance.random() < 0.1, chance.random() < 0.3
        if up:
            at_byte = chance.randrange(1, 650) if early else chance.randrange(700, 1500)
        else:
            at_byte = chance.randrange(1, 3000) if early else chance.randrange(3000, _LATE_BYTES)
        kind = chance.choice(kinds)
        return [Fault(kind, "up" if up else "down", at_byte, chance.randrange(8))]  # type: ignore[arg-type]

    return script


def broken(folder: Path, times: int, seed: int) -> Report:
    """TCP cut at any byte, by FIN or RST."""
    script = _once(random.Random(seed), "cut", "reset")
    return _harmed(folder, Report("TCP cut at any byte (FIN, RST)"), times, script)


def flipped(folder: Path, times: int, seed: int) -> Report:
    """Bits flipped in either direction; most of them end their connection.

    A request with a flipped bit is often refused, and the client raises an error after two refusals
    on new connections. So at most every second connection damages requests.
    """
    chance = random.Random(seed)

    def script(index: int) -> Sequence[Fault]:
        flips = []
        for direction, step_bytes in (("up", 600), ("down", 8 * _BATCH_BYTES))[index % 2 :]:
            at_byte = 400
            for _ in range(times):
                at_byte += chance.randrange(step_bytes)
                flips.append(Fault("flip", direction, at_byte, chance.randrange(8)))  # type: ignore[arg-type]
        return flips

    return _harmed(folder, Report("a bit flipped, in either direction"), times, script)


def slowed(folder: Path, times: int, seed: int) -> Report:
    """Bytes sent one by one, and delays, one after another on a connection that stays open."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    at_byte = 500
    for _ in range(times):
        at_byte += chance.randrange(1000, 8 * _BATCH_BYTES)
        kind = chance.choice(("dribble", "delay"))
        faults.append(Fault(kind, "down", at_byte, seconds=chance.uniform(0.0, 0.2)))  # type: ignore[arg-type]
    report = Report("1-byte dribble, delay")
    return _harmed(folder, report, times, lambda index: faults if index == 0 else ())


def thin_line(folder: Path, mebibytes: int, seed: int) -> Report:
    """Two replicas behind a link of 50 Mbit/s (tbf) and 80 ms (the proxies), and large batches."""
    report = Report(f"50 Mbit/s and 80 ms, batches of {mebibytes} MiB, two replicas", 1)
    batch_size, batches = 16, 4
    context_length = (mebibytes << 20) // (2 * batch_size) - 1
    sentinel = Sentinel(folder, batches, batch_size=batch_size, context_length=context_length)
    with far_side(rate="50mbit") as line, ExitStack() as stack:
        servers = stack.enter_context(
            replicas(folder, 2, "--data", sentinel.corpus, host=line.far, wrapper=line.on_far_side)
        )
        proxies = [
            stack.enter_context(FaultProxy(server.address, latency_seconds=0.04))
            for server in servers
        ]
        addresses = [proxy.address for proxy in proxies]
        with sentinel.feed(addresses, prefetch_bytes=2 * mebibytes << 20) as feed:
            done = threading.Event()
            gaps: list[float] = []
            watching = threading.Thread(target=_note_gaps, args=(proxies, done, gaps))
            watching.start()
            began = time.monotonic()
            sentinel.watch(feed, report)
            seconds = time.monotonic() - began
            done.set()
            watching.join()
            report.require(feed.stats().reconnects == 0, "no flapping")
    # The rate proves that the link was slow.
    mbits = 8e-6 * batches * (mebibytes << 20) / seconds
    report.hits += 20 < mbits <= 52
    report.fault += f" ({mbits:.0f} Mbit/s; gap: without a byte)"
    report.gaps = gaps
    report.require(report.longest_gap < 1.0, "progress never stops")
    report.require(
        min(p.down_bytes for p in proxies) < DESCRIPTION_BYTES, "the other replica is left alone"
    )
    report.require_exact()
    return report


def _note_gaps(proxies: Sequence[FaultProxy], done: threading.Event, gaps: list[float]) -> None:
    """Record the times without a received byte, after the first bytes."""
    seen, since = 0, time.monotonic()
    while not done.wait(0.01):
        down_bytes = sum(proxy.down_bytes for proxy in proxies)
        if down_bytes > seen:
            if seen:
                gaps.append(time.monotonic() - since)
            seen, since = down_bytes, time.monotonic()
