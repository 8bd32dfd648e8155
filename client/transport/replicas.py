"""The replicas of a feed, and the connection to each.

A single gRPC channel could balance over all servers, but could neither reject one nor leave it.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenfeed.errors import InvalidRequest, Unreachable

from .addresses import Targets, each_target, require_address
from .channel import Channel
from .credentials import PLAINTEXT, Credentials
from .resolver import TargetResolver

_RESOLVE_SECONDS = 30.0
"""Maximum age of a resolved address when a connection is opened."""
_STRAGGLER_SECONDS = 1.0
"""How long to wait for the other names after the first one was resolved, the first time."""
_POLL_SECONDS = 0.1
"""How often a wait checks whether it is over."""


class Replica:
    """One server: its address, and the connection to it that streams share."""

    def __init__(
        self, address: str, credentials: Credentials, authority: str | None = None
    ) -> None:
        """Remember an address in gRPC's format; does no I/O.  authority: as for Channel."""
        self.address = address
        self._credentials = credentials
        self._authority = authority
        self._lock = threading.RLock()
        self._generations = itertools.count()
        self._channel: Channel | None = None
        self._users: Counter[Channel] = Counter()
        self._closed = False
        self.has_served = False
        """Whether it has ever sent rows."""

    @contextmanager
    def connected(self) -> Iterator[Channel]:
        """Lend the connection, which is opened on first use.

        After an exception the connection is not lent again: the next call opens a new one, so a
        fault of the connection does not persist.
        """
        with self._lock:
            if self._channel is None:
                self._channel = Channel(
                    self.address, next(self._generations), self._credentials, self._authority
                )
            channel = self._channel
            self._users[channel] += 1
        try:
            yield channel
        except BaseException:
            with self._lock:
                if self._channel is channel:
                    self._channel = None
            raise
        finally:
            with self._lock:
                self._users[channel] -= 1
                is_unused = not self._users[channel]
                if is_unused:
                    del self._users[channel]
                is_retired = self._closed or self._channel is not channel
            if is_unused and is_retired:
                channel.close()

    def close(self) -> None:
        """Cancel all calls and close what is open. May be called twice."""
        with self._lock:
            self._closed = True
            channels = {*self._users, *([self._channel] if self._channel else [])}
            self._channel = None
        for channel in channels:
            channel.close()


class ReplicaSet:
    """All servers of a feed, in the order of the targets; those of one name ordered by address."""

    def __init__(
        self,
        targets: Targets,
        credentials: Credentials = PLAINTEXT,
        authority: str | None = None,
    ) -> None:
        """Remember the targets; does no I/O.

        targets: one or several of "HOST:PORT", "unix:PATH", and "dns:///HOST:PORT", where each
        address is one server.  authority: the name in the certificates of all of them, where it is
        not that of the target.  Raises: InvalidRequest if one is not an address.
        """
        addresses = each_target(targets)
        if not addresses:
            raise InvalidRequest("target", "names no server; write HOST:PORT")
        for address in addresses:
            require_address(address)
        self._names = [TargetResolver(address) for address in addresses]
        self._credentials = credentials
        self._authority = authority
        self._lock = threading.RLock()  # held briefly: no name is resolved under it
        self._known: dict[str, Replica] = {}
        self._stragglers_end = math.inf

    def __str__(self) -> str:
        """Return the targets as they were given."""
        return ", ".join(name.target for name in self._names)

    def all(self, timeout_seconds: float, is_over: Callable[[], bool]) -> list[Replica]:
        """Return the servers, at least one. Resolves names again if they are old, and waits for
        names that were never resolved.

        is_over: whether the servers are not needed any more.  Raises: Unreachable if no name is
        resolved.
        """
        self._resolve(_RESOLVE_SECONDS)
        self._await_names(timeout_seconds, is_over)
        if replicas := self.known():
            return replicas
        raise Unreachable(self._names[0].target, self._names[0].problem)

    def known(self) -> list[Replica]:
        """Return the servers whose addresses are known so far."""
        with self._lock:
            # Each name is read once: its addresses may change meanwhile.
            authorities = {
                address: name.authority for name in self._names for address in name.addresses
            }
            for address in authorities.keys() - self._known.keys():
                authority = self._authority or authorities[address]
                self._known[address] = Replica(address, self._credentials, authority)
            return [self._known[address] for address in authorities]

    def refresh(self) -> None:
        """Start to resolve all names now, in the background."""
        self._resolve(0.0)

    def close(self) -> None:
        """Close all connections. May be called twice."""
        with self._lock:
            replicas = list(self._known.values())
        for replica in replicas:
            replica.close()

    def _resolve(self, age_seconds: float) -> None:
        with self._lock:
            for name in self._names:
                name.resolve(age_seconds=age_seconds)

    def _await_names(self, timeout_seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until a name is resolved, and the first time a moment longer for the others."""
        end = time.monotonic() + timeout_seconds
        self._stragglers_end = min(self._stragglers_end, time.monotonic() + _STRAGGLER_SECONDS)
        while not is_over():
            if any(name.addresses for name in self._names):
                end = min(end, self._stragglers_end)
            missing = [name for name in self._names if name.pending and not name.addresses]
            left_seconds = end - time.monotonic()
            if not missing or left_seconds <= 0:
                return
            missing[0].wait(min(left_seconds, _POLL_SECONDS))
