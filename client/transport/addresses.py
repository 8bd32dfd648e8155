"""Server addresses as users write them. Text only: no DNS lookup, no connection."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from os import PathLike

from tokenfeed.errors import InvalidRequest

DNS = "dns:///"
UNIX = "unix:"

Targets = str | Sequence[str]
"""Addresses of servers: one, or several."""

_CURE = "write HOST:PORT, or file:PATH for local files"

_STORES = {
    "s3a": "s3",
    "s3n": "s3",
    "r2": "s3",
    "b2": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
}
"""What else object stores are called, and the scheme that leads there."""
_DOWNLOAD = "is not read over the network: download it"


def each_target(targets: Targets) -> list[str]:
    """Return one or several targets as a list.  Raises: InvalidRequest if it is neither."""
    try:
        return [targets] if isinstance(targets, str) else list(targets)
    except TypeError:
        problem = f"{targets!r} is not an address"
        if isinstance(targets, PathLike):
            raise InvalidRequest("target", f"{problem}; write 'file:{targets}'") from None
        raise InvalidRequest("target", f"{problem}; {_CURE}") from None


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
    address = target.removeprefix(DNS)
    is_path = target.startswith(("/", "./", "../", "~")) or ":" not in target
    if address == target and (is_path or "://" in target):
        raise InvalidRequest("target", f"{target!r} {_cure_of(target)}")
    host, _, port = address.rpartition(":")
    for kind in ("ipv4:", "ipv6:"):
        host = host.removeprefix(kind)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")
    if not bare or any(sign in bare for sign in "/, []@"):
        raise InvalidRequest("target", f"{target!r} is not an address; {_CURE}")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidRequest("target", f"{target!r} has no port in [1, 65535]; {_CURE}")


def _cure_of(target: str) -> str:
    """Return what is wrong with a URL or a path, and what to write instead."""
    scheme, _, rest = target.rpartition("://")
    place = rest.partition("/")[0]
    if not scheme:
        return f"is not an address; write HOST:PORT, or file:{target} for local files"
    if scheme == "hf":
        ingest = "run tokenfeed ingest on it if it is text, and write file:PATH"
        return f"{_DOWNLOAD} (hf download), {ingest}"
    if scheme in _STORES:
        return f"has another scheme here: write {_STORES[scheme]}://{rest}"
    if scheme in _STORES.values():
        return "names objects among servers; pass either of them"
    if scheme in ("oci", "swift"):
        return f"{_DOWNLOAD} and write file:PATH, or serve it there and write HOST:PORT"
    if scheme == "file":
        return f"names files among servers; write file:{rest}"
    if scheme == "http" and ":" not in place:
        return f"{_DOWNLOAD} and write file:PATH, or https://; of a server write HOST:PORT"
    tls = ", and pass credentials=Credentials(tls_ca=...)" if scheme in ("https", "grpcs") else ""
    address = place if ":" in place else "HOST:PORT"
    return f"has a scheme, and an address has none; write {address}{tls}"


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
