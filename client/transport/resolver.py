"""Targets as users write them, and the addresses that they stand for.

A resolver may hang for half a minute, and nothing can make it stop: so a name is looked up by a
thread of its own, and what it stood for last is kept for when it cannot be resolved.
"""

from __future__ import annotations

import math
import socket
import threading
import time

from .addresses import DNS


class TargetResolver:
    """A target, and the addresses that it is known to stand for."""

    def __init__(self, target: str) -> None:
        """Remember a target; does no I/O."""
        self.target = target
        host = target.removeprefix(DNS).rpartition(":")[0].strip("[]")
        self.authority = host if target.startswith(DNS) else None
        """The name that each address has to prove by its certificate; None is that of its own."""
        self.addresses: list[str] = [] if target.startswith(DNS) else [target]
        """As gRPC takes them, in an order that is the same on every machine."""
        self.problem = "is not resolved yet"
        """Why there are none."""
        self._looked_up = -math.inf
        self._thread: threading.Thread | None = None

    def resolve(self, *, age_seconds: float) -> None:
        """Begin to look a name up, unless somebody does, or did so less than age_seconds ago."""
        now = time.monotonic()
        if self.authority is None or self.pending or now - self._looked_up < age_seconds:
            return
        self._looked_up = now
        # A daemon: the process may end while the resolver hangs.
        self._thread = threading.Thread(
            target=self._resolve, name="tokenfeed-resolver", daemon=True
        )
        self._thread.start()

    @property
    def pending(self) -> bool:
        """Whether it is being looked up."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until it was looked up, or for so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _resolve(self) -> None:
        host, _, port = self.target.removeprefix(DNS).rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter for a part above 63 letters
            self.problem = f"cannot be resolved: {error}"
            return
        self.addresses = sorted(
            {_numeric(family, str(place[0]), int(place[1])) for family, _, _, _, place in found}
        )


def _numeric(family: socket.AddressFamily, host: str, port: int) -> str:
    return f"ipv6:[{host}]:{port}" if family == socket.AF_INET6 else f"ipv4:{host}:{port}"
