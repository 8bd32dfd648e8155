"""The servers that stand in for each other, and the connection to each.

One gRPC channel could spread over all of them, but it could neither refuse one nor leave it.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tokenfeed.errors import InvalidRequest, Unreachable

from .channel import PLAINTEXT, Channel, Security, require_address

_DNS = "dns:///"

Targets = str | Sequence[str]


class Replica:
    """One server: its address, and the connection to it that streams share."""

    def __init__(self, address: str, security: Security, authority: str | None = None) -> None:
        """Remember an address as gRPC takes it; does no I/O.  authority: as for Channel."""
        self.address = address
        self._security = security
        self._authority = authority
        self._lock = threading.RLock()
        self._generations = itertools.count()
        self._channel: Channel | None = None
        self._users: dict[Channel, int] = {}

    @contextmanager
    def connected(self) -> Iterator[Channel]:
        """Lend the connection, made when it is first needed.

        Whoever leaves by an exception is the last to get it: the next one is new, so that no fault
        of this one outlives it.
        """
        channel = self._take()
        try:
            yield channel
        except BaseException:
            self._retire(channel)
            raise
        finally:
            self._put_back(channel)

    def close(self) -> None:
        """Cancel all calls and close what is open. May be called twice."""
        with self._lock:
            channels = {*self._users, *([self._channel] if self._channel else [])}
            self._channel = None
        for channel in channels:
            channel.close()

    def _take(self) -> Channel:
        with self._lock:
            if self._channel is None:
                self._channel = Channel(
                    self.address, next(self._generations), self._security, self._authority
                )
            self._users[self._channel] = self._users.get(self._channel, 0) + 1
            return self._channel

    def _retire(self, channel: Channel) -> None:
        with self._lock:
            if self._channel is channel:
                self._channel = None

    def _put_back(self, channel: Channel) -> None:
        with self._lock:
            self._users[channel] -= 1
            last = not self._users[channel]
            if last:
                del self._users[channel]
            unwanted = last and self._channel is not channel
        if unwanted:
            channel.close()


class Replicas:
    """All servers of a feed, in the order in which they were named; those of one name by
    address.
    """

    def __init__(self, targets: Targets, security: Security = PLAINTEXT) -> None:
        """Remember whom to ask; does no I/O.

        targets: one or several of "HOST:PORT", "unix:PATH", and "dns:///HOST:PORT", each address
        of which is a server of its own.  Raises: InvalidRequest if one is no address.
        """
        self._targets = [targets] if isinstance(targets, str) else list(targets)
        if not self._targets:
            raise InvalidRequest("target", "names no server; write HOST:PORT")
        for target in self._targets:
            require_address(target)
        self._security = security
        self._lock = threading.RLock()
        self._known: dict[str, Replica] = {}
        self._current: list[Replica] = []

    def __str__(self) -> str:
        """Return them as they were given."""
        return ", ".join(self._targets)

    def all(self) -> list[Replica]:
        """Return the servers, at least one. Names are resolved when it is first called.  Raises:
        Unreachable if no name can be resolved.
        """
        with self._lock:
            if not self._current:
                self._resolve()
            return self._current

    def look_again(self) -> None:
        """Have names resolved anew the next time."""
        with self._lock:
            if any(target.startswith(_DNS) for target in self._targets):
                self._current = []

    def close(self) -> None:
        """Close all connections. May be called twice."""
        with self._lock:
            replicas = list(self._known.values())
        for replica in replicas:
            replica.close()

    def _resolve(self) -> None:
        failure: Unreachable | None = None
        addresses: dict[str, str | None] = {}
        for target in self._targets:
            try:
                addresses |= dict.fromkeys(_addresses(target), _authority(target))
            except OSError as error:  # noqa: PERF203 - one name may fail, and the others not
                failure = Unreachable(target, f"cannot be resolved: {error.strerror}")
        if not addresses and failure is not None:
            raise failure
        self._current = [
            self._known.setdefault(address, Replica(address, self._security, authority))
            for address, authority in addresses.items()
        ]


def _addresses(target: str) -> list[str]:
    """Return what a target stands for, as gRPC takes it, in an order that is the same on every
    machine.  Raises: OSError.
    """
    if not target.startswith(_DNS):
        return [target]
    host, _, port = target.removeprefix(_DNS).rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return sorted(
        {_numeric(family, str(place[0]), int(place[1])) for family, _, _, _, place in found}
    )


def _authority(target: str) -> str | None:
    """Return the name that a resolved address has to prove by its certificate."""
    if not target.startswith(_DNS):
        return None
    return target.removeprefix(_DNS).rpartition(":")[0].strip("[]")


def _numeric(family: socket.AddressFamily, host: str, port: int) -> str:
    return f"ipv6:[{host}]:{port}" if family == socket.AF_INET6 else f"ipv4:{host}:{port}"
