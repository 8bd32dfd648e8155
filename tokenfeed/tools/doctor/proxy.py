"""Whether a proxy of the environment explains that a server is not reached.

tokenfeed's clients never use one, so a proxy that is set is no problem by itself. It explains a
failure if it reaches what a direct connection does not.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from .findings import Finding
from .network import Server, opened, shown

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
"""In gRPC's order; the last one is curl's."""
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
_PORT = 3128
_LINE_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that other programs would use for a server.

    variable: where it is set.  place: its host and port.  login: "USER:PASSWORD" or "", never
    shown.
    """

    variable: str
    place: tuple[str, int]
    login: str


def proxy_for(host: str, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy of the environment for a host; None without one, or if the host is one of
    the exceptions.
    """
    lowered = {name.lower(): value for name, value in environment.items() if value}
    exceptions = next((lowered[name] for name in _EXCEPTIONS if name in lowered), "")
    variable = next((name for name in _VARIABLES if name in lowered), None)
    if variable is None or _is_exception(host, exceptions):
        return None
    url = lowered[variable]
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        place = (parts.hostname or "", parts.port or _PORT)
    except ValueError:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(variable, place, login) if place[0] else None


def _is_exception(host: str, exceptions: str) -> bool:
    """Return whether a host is one of the exceptions: "*", a name, a domain, or a network."""
    listed = [word.strip().lower() for word in exceptions.split(",") if word.strip()]
    if "*" in listed:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        domains = (word.removeprefix("*").removeprefix(".") for word in listed)
        return any(f".{host.lower()}".endswith(f".{domain}") for domain in domains)
    return any(address in network for network in map(_network, listed) if network is not None)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def explained(
    finding: Finding, server: Server, environment: Mapping[str, str], timeout_seconds: float
) -> Finding:
    """Return why a server is not reached: the same finding, with what its proxy says; or, if the
    proxy reaches the server, that it does.
    """
    proxy = None if server.is_unix else proxy_for(server.host, environment)
    if proxy is None:
        return finding
    answer = _connected_through(proxy, server, timeout_seconds)
    reached = len(words := answer.split()) > 1 and words[1] == "200"
    seen = f"the proxy {shown(proxy.place)} of {proxy.variable}"
    if not reached:
        evidence = f"{finding.evidence}; {seen} does not reach it either ({answer})"
        return Finding(finding.kind, finding.server, finding.problem, evidence, finding.cure)
    return Finding(
        "only-through-proxy",
        server.name,
        f"{server.host} is reached only through the proxy of {proxy.variable}, and tokenfeed uses "
        "no proxy",
        f"directly: {finding.evidence}; {seen} connects to it",
        f"ask for a direct way to TCP port {server.port} of {server.host}, or forward a local port "
        "(ssh -L) and pass that",
    )


def _connected_through(proxy: Proxy, server: Server, timeout_seconds: float) -> str:
    """Ask a proxy for a connection, and return its answer in a line, or why there is none."""
    place = shown((server.host, server.port))
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    if proxy.login:
        encoded = base64.b64encode(proxy.login.encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {encoded}")
    try:
        with opened(proxy.place, timeout_seconds) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = connection.recv(_LINE_BYTES_MAX)
    except TimeoutError:
        return "no answer"
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or type(error).__name__
    line = answer.split(b"\r\n")[0].decode("ascii", errors="replace")
    return "".join(char if char.isprintable() else "?" for char in line) or "no answer"
