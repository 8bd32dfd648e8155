"""Resolves targets, as users write them, to addresses.

The system's resolver may hang for half a minute and cannot be cancelled. So each name is resolved
in a separate thread, and its last known addresses are kept while it cannot be resolved.
"""

from __future__ import annotations

import math
import socket
import threading
import time

from .addresses import DNS, host_and_port


class TargetResolver:
    """A target and its last known addresses."""

    def __init__(self, target: str) -> None:
        """Remember a target; does no I/O."""
        self.target = target
        self.authority = host_and_port(target)[0] if target.startswith(DNS) else None
        """The name in the certificate of each address; None is that of the target itself."""
        self.addresses: list[str] = [] if target.startswith(DNS) else [target]
        """In gRPC's format, in an order that is the same on every machine."""
        self.problem = "is not resolved yet"
        """Why there are no addresses."""
        self._resolved_at = -math.inf
        self._thread: threading.Thread | None = None

    def resolve(self, *, age_seconds: float) -> None:
        """Start to resolve the name, unless pending or done less than age_seconds ago."""
        now = time.monotonic()
        if self.authority is None or self.pending or now - self._resolved_at < age_seconds:
            return
        self._resolved_at = now
        # A daemon thread: the process may end while the resolver hangs.
        self._thread = threading.Thread(
            target=self._resolve, name="tokenfeed-resolver", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # there are too many threads at the moment
            self._thread, self._resolved_at = None, -math.inf
            self.problem = f"cannot be resolved: {error}"

    @property
    def pending(self) -> bool:
        """Whether a lookup is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the lookup, at most this long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _resolve(self) -> None:
        try:
            found = socket.getaddrinfo(*host_and_port(self.target), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter for a label above 63 characters
            self.problem = f"cannot be resolved: {error}"
            return
        self.addresses = sorted(
            {
                _numeric(family, str(address[0]), int(address[1]))
                for family, _, _, _, address in found
            }
        )


def _numeric(family: socket.AddressFamily, host: str, port: int) -> str:
    return f"ipv6:[{host}]:{port}" if family == socket.AF_INET6 else f"ipv4:{host}:{port}"
