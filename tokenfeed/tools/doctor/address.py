"""Addresses as they were typed -> servers to connect to."""

from __future__ import annotations

from dataclasses import dataclass

from tokenfeed.client.transport.addresses import DNS, UNIX, host_and_port
from tokenfeed.client.transport.resolver import TargetResolver

from .findings import Diagnosis, Finding

ADDRESSES_MAX = 64
"""Servers of a name that are examined; further ones are left out."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server to examine.

    name: as it is shown.  target: in gRPC's format.  authority: the name in its certificate, if it
    is not that of the target.  host, port: as they were typed; "" and 0 for a Unix socket.
    places: numeric addresses with their port, of a name the first ones; or the path of a socket.
    """

    name: str
    target: str
    authority: str | None
    host: str
    port: int
    places: tuple[tuple[str, int], ...] | str

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket of this machine."""
        return isinstance(self.places, str)


def resolve(target: str, timeout_seconds: float) -> list[Server]:
    """Return the servers of a target that `require_address` accepts: each address of a dns:///
    name is one, and all addresses of HOST:PORT together are one.  Raises: Diagnosis.
    """
    if target.startswith(UNIX):
        path = target.removeprefix(UNIX)
        return [Server(target, target, None, "", 0, path.removeprefix("//"))]
    host, port = host_and_port(target)
    resolver = TargetResolver(f"{DNS}[{host}]:{port}" if ":" in host else f"{DNS}{host}:{port}")
    resolver.resolve(age_seconds=0.0)
    resolver.wait(timeout_seconds)
    if not resolver.addresses:
        raise Diagnosis(_not_resolved(target, host, resolver, timeout_seconds))
    addresses = resolver.addresses[:ADDRESSES_MAX]
    places = tuple(host_and_port(address) for address in addresses)
    if not target.startswith(DNS):
        return [Server(target, target, None, host, port, places)]
    return [
        Server(shown(place), address, host, host, port, (place,))
        for address, place in zip(addresses, places, strict=True)
    ]


def unresolved(target: str) -> Server:
    """Return the server of a target without any place to connect to."""
    host, port = ("", 0) if target.startswith(UNIX) else host_and_port(target)
    return Server(target, target, None, host, port, ())


def shown(place: tuple[str, int] | str) -> str:
    """Return a place to connect to as text."""
    if isinstance(place, str):
        return place
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _not_resolved(
    target: str, host: str, resolver: TargetResolver, timeout_seconds: float
) -> Finding:
    evidence = resolver.problem
    if resolver.pending:
        evidence = f"the resolver did not answer within {timeout_seconds:g} s"
    return Finding(
        "name-not-resolved",
        target,
        f"the name {host} is not known on this machine",
        f"{host} {evidence}" if evidence == resolver.problem else evidence,
        f"check the spelling and this machine's name service (getent hosts {host}), or pass an IP "
        "address",
    )
