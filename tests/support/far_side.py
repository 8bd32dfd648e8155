"""A network namespace behind a pair of devices: a second machine, as far as the kernel knows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FarSide:
    """far: the address on the far side.  on_far_side: prefix of commands that run there."""

    far: str
    on_far_side: tuple[str, ...]


@contextmanager
def far_side(*, rate: str | None = None, answers: bool = True) -> Iterator[FarSide]:
    """Yield a far side; needs root, and ip of iproute2.

    rate: of the line in each direction, such as "50mbit", made by tc; None is as fast as it gets.
    answers: False drops all its answers, as a firewall does that filters a port.
    """
    name = f"tf{os.getpid()}"
    # Of this process: other tests may run beside it on this machine.
    third, fourth = divmod(os.getpid() % (1 << 14), 64)
    near, far = f"10.213.{third % 256}.{4 * fourth + 1}", f"10.213.{third % 256}.{4 * fourth + 2}"
    inside = ("ip", "netns", "exec", name)
    with ExitStack() as stack:
        _run("ip", "netns", "add", name)
        stack.callback(_run, "ip", "netns", "del", name)
        _run("ip", "link", "add", f"{name}a", "type", "veth", "peer", f"{name}b", "netns", name)
        # At once: the kernel removes the devices of a namespace some time after it.
        stack.callback(_run, "ip", "link", "del", f"{name}a")
        _run("ip", "addr", "add", f"{near}/30", "dev", f"{name}a")
        _run("ip", "link", "set", f"{name}a", "up")
        _run(*inside, "ip", "addr", "add", f"{far}/30", "dev", f"{name}b")
        _run(*inside, "ip", "link", "set", f"{name}b", "up")
        if rate is not None:
            slow = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms")
            _run("tc", "qdisc", "add", "dev", f"{name}a", *slow)
            _run(*inside, "tc", "qdisc", "add", "dev", f"{name}b", *slow)
        if not answers:
            _run(*inside, "ip", "route", "add", "blackhole", f"{near}/32")
        yield FarSide(far, inside)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
