"""Server addresses as users write them. Text only: no DNS lookup, no connection."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from tokenfeed.errors import InvalidRequest

DNS = "dns:///"
UNIX = "unix:"

Targets = str | Sequence[str]
"""Addresses of servers: one, or several."""

_CURE = "write HOST:PORT, or file:PATH for local files"


def each_target(targets: Targets) -> list[str]:
    """Return one or several targets as a list.  Raises: InvalidRequest if it is neither."""
    try:
        return [targets] if isinstance(targets, str) else list(targets)
    except TypeError:
        raise InvalidRequest("target", f"{targets!r} is not an address; {_CURE}") from None


def require_address(target: str) -> None:
    """Raise InvalidRequest unless target is "HOST:PORT", "dns:///HOST:PORT" or "unix:PATH".

    gRPC accepts nearly any text and would wait for it. For port 99999 it would use port 34463.
    """
    if not isinstance(target, str) or not target.isprintable() or not target.isascii():
        raise InvalidRequest("target", f"{target!r} is not an address; {_CURE}")
    if target.startswith(UNIX):
        if len(target) == len(UNIX):
            raise InvalidRequest("target", f"{target!r} names no path; write unix:PATH")
        return
    host, _, port = target.removeprefix(DNS).rpartition(":")
    for kind in ("ipv4:", "ipv6:"):
        host = host.removeprefix(kind)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")
    if not bare or any(sign in bare for sign in "/, []@"):
        raise InvalidRequest("target", f"{target!r} is not an address; {_CURE}")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidRequest("target", f"{target!r} has no port in [1, 65535]; {_CURE}")


def host_and_port(target: str) -> tuple[str, int]:
    """Return host and port of a target that is not a Unix socket."""
    for kind in (DNS, "ipv4:", "ipv6:"):
        target = target.removeprefix(kind)
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


def is_local(target: str) -> bool:
    """Return whether a target is on this machine."""
    if target.startswith(UNIX):
        return True
    host, _ = host_and_port(target)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
