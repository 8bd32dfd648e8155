"""What happens to bytes on their way: cut, reset, dribbled, delayed, flipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from .lab import B, Report, T, Witness, replicas
from .proxy import Fault, FaultProxy

_STEPS_A_FAULT = 12
_BATCH_BYTES = B * (T + 1) * 2


def _harmed(
    folder: Path,
    report: Report,
    times: int,
    script: Callable[[int], Sequence[Fault]],
) -> Report:
    """Watch a feed through a proxy that follows the script until so many faults have struck."""
    witness = Witness(folder, _STEPS_A_FAULT * times)
    with replicas(folder, 1, "--data", witness.corpus) as (server,):
        proxy = FaultProxy(
            server.address, lambda index: script(index) if proxy.hits < times else ()
        )
        with proxy, witness.feed(proxy.address, progress_seconds=1.0) as feed:
            witness.watch(feed, report)
        report.injected, report.hits = len(proxy.strikes), proxy.hits
    report.require(report.hits >= times, f"only {report.hits} of {times} faults hit")
    report.require_exact()
    return report


def _once(chance: random.Random, *kinds: str) -> Callable[[int], Sequence[Fault]]:
    """Give each connection one fault, after it has delivered something."""

    def script(_: int) -> Sequence[Fault]:
        # What a client sends is little: its preface, headers, and 100 bytes a request.
        up = chance.random() < 0.3
        at_byte = chance.randrange(400, 1500) if up else chance.randrange(500, 12 * _BATCH_BYTES)
        kind = chance.choice(kinds)
        return [Fault(kind, "up" if up else "down", at_byte, chance.randrange(8))]  # type: ignore[arg-type]

    return script


def broken(folder: Path, times: int, seed: int) -> Report:
    """TCP cut at any byte, by FIN or RST."""
    script = _once(random.Random(seed), "cut", "reset")
    return _harmed(folder, Report("TCP cut at any byte (FIN, RST)"), times, script)


def flipped(folder: Path, times: int, seed: int) -> Report:
    """Bits flipped in either direction; most of them are the end of their connection.

    A request in which a bit was flipped is often refused; refused twice on new connections, it is
    believed. So at most every second connection hurts requests.
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
    """Dribbles byte by byte, and delays, one after another on a connection that lives."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    at_byte = 500
    for _ in range(times):
        at_byte += chance.randrange(1000, 8 * _BATCH_BYTES)
        kind = chance.choice(("dribble", "delay"))
        faults.append(Fault(kind, "down", at_byte, seconds=chance.uniform(0.0, 0.2)))  # type: ignore[arg-type]
    report = Report("1-byte dribble, delay")
    return _harmed(folder, report, times, lambda index: faults if index == 0 else ())
