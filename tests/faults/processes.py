"""Faults of server processes: killed, stopped, restarted, all of them away."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from client import RemoteBatches
from tests.support.waiting import eventually

from .lab import Replica, Report, Sentinel, replicas
from .proxy import FaultProxy

_READ_SECONDS = 3.0
_HIT_SECONDS = 10.0
_SERVING_SECONDS = 30.0


class Stage:
    """Two replicas, each behind a proxy that counts what it delivers."""

    def __init__(self, servers: list[Replica], proxies: list[FaultProxy]) -> None:
        self.servers = servers
        self.proxies = proxies

    @property
    def addresses(self) -> list[str]:
        """The addresses of the proxies."""
        return [proxy.address for proxy in self.proxies]

    def serving(self) -> int:
        """Wait until a replica delivers; return its index.  Raises: TimeoutError if none does."""
        before = [proxy.down_bytes for proxy in self.proxies]
        end = time.monotonic() + _SERVING_SECONDS
        while time.monotonic() < end:
            time.sleep(0.001)
            for index, proxy in enumerate(self.proxies):
                if proxy.down_bytes > before[index] + 1000:
                    return index
        raise TimeoutError("no replica delivers")


@contextmanager
def stage(folder: Path, corpus: Path, count: int = 2) -> Iterator[Stage]:
    """Start the replicas and their proxies."""
    with replicas(folder, count, "--data", corpus) as servers, ExitStack() as stack:
        yield Stage(servers, [stack.enter_context(FaultProxy(s.address)) for s in servers])


def _under_load(
    folder: Path,
    report: Report,
    steps: int,
    pace: float,
    harm: Callable[[Stage, RemoteBatches], None],
) -> Report:
    """Watch a feed from two replicas while a function injects faults."""
    sentinel = Sentinel(folder, steps)
    errors: list[BaseException] = []
    with stage(folder, sentinel.corpus) as scene, sentinel.feed(scene.addresses) as feed:

        def run() -> None:
            try:
                harm(scene, feed)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        sentinel.watch(feed, report, pace)
        thread.join()
    for error in errors:
        raise error
    report.require_exact()
    return report


def kill(folder: Path, times: int, seed: int) -> Report:
    """Kill -9 of the replica that is serving, at random times; it is restarted."""
    report = Report("kill -9 of the replica then serving", times)
    chance = random.Random(seed)

    def harm(scene: Stage, feed: RemoteBatches) -> None:
        for _ in range(times):
            time.sleep(chance.uniform(0.05, 0.3))
            victim = scene.serving()
            before = feed.stats().reconnects
            scene.servers[victim].kill()
            hit = eventually(lambda: feed.stats().reconnects > before, _HIT_SECONDS)  # noqa: B023
            report.hits += hit
            scene.servers[victim].start()

    _under_load(folder, report, 100 * times, 0.02, harm)
    late = sorted(report.gaps)[-times:]
    report.require(late[int(0.99 * (len(late) - 1))] < 0.25, "99 % of gaps below 250 ms")
    report.require(report.longest_gap < 1.0, "every gap below 1 s")
    return report


def rolling_restart(folder: Path, times: int, seed: int) -> Report:
    """SIGTERM of one replica after the other under load; each is restarted."""
    report = Report("rolling SIGTERM of both under load", 2 * times)
    exits: list[float] = []

    def harm(scene: Stage, feed: RemoteBatches) -> None:
        for _ in range(2 * times):
            time.sleep(0.2)
            victim = scene.serving()
            before = feed.stats().reconnects
            scene.servers[victim].signal(signal.SIGTERM)
            began = time.monotonic()
            report.require(scene.servers[victim].wait() == 0, "exit code 0")
            exits.append(time.monotonic() - began)
            hit = eventually(lambda: feed.stats().reconnects > before, _HIT_SECONDS)  # noqa: B023
            report.hits += hit
            scene.servers[victim].start()

    _under_load(folder, report, 250 * times, 0.02, harm)
    report.require(max(exits) < 2.0, f"exit within 2 s (longest {max(exits):.1f})")
    report.require(report.longest_gap < 0.2, "every gap below 200 ms")
    return report


def all_down(folder: Path, seconds: float, seed: int) -> Report:
    """Both replicas are away for some time; one returns."""
    report = Report(f"all down for {seconds:.0f} s", 1)
    returned: list[float] = []

    def harm(scene: Stage, feed: RemoteBatches) -> None:
        scene.serving()
        for server in scene.servers:
            server.kill()
        time.sleep(1.0)
        batches = feed.stats().batches
        time.sleep(seconds - 1.0)
        report.hits += feed.stats().batches == batches
        scene.servers[0].start()
        returned.append(time.monotonic())
        report.require(
            eventually(lambda: feed.stats().batches > batches, 3.0),
            "resumed within 3 s of the return",
        )
        returned.append(time.monotonic())

    _under_load(folder, report, 500, 0.005, harm)
    report.fault += f" (resumed {returned[1] - returned[0]:.1f} s after the return)"
    return report


def stopped(folder: Path, times: int, seed: int) -> Report:
    """SIGSTOP of the replica that is serving: its connections stay open."""

    def silence(scene: Stage, victim: int, on: bool) -> None:
        scene.servers[victim].signal(signal.SIGSTOP if on else signal.SIGCONT)

    return _silenced(folder, Report("SIGSTOP of the replica then serving", times), silence)


def black_hole(folder: Path, times: int, seed: int) -> Report:
    """The network drops everything to and from the replica that is serving."""

    def silence(scene: Stage, victim: int, on: bool) -> None:
        scene.proxies[victim].black_hole(on)

    return _silenced(folder, Report("black hole before the replica then serving", times), silence)


def _silenced(folder: Path, report: Report, silence: Callable[[Stage, int, bool], None]) -> Report:
    """Silence the replica that is serving, until the client fails over, repeatedly."""

    def harm(scene: Stage, feed: RemoteBatches) -> None:
        for _ in range(report.injected):
            victim = scene.serving()
            before = feed.stats().reconnects
            silence(scene, victim, True)
            hit = eventually(lambda: feed.stats().reconnects > before, _HIT_SECONDS)  # noqa: B023
            report.hits += hit
            time.sleep(0.2)
            silence(scene, victim, False)
            time.sleep(0.2)

    _under_load(folder, report, 400 * report.injected, 0.005, harm)
    limit = "failover within the read timeout + 0.5 s"
    report.require(report.longest_gap < _READ_SECONDS + 0.5, limit)
    return report
