"""Ports where nobody listens."""

from __future__ import annotations

import random
import socket
from pathlib import Path


def free_port() -> int:
    """A TCP port that is free at every address of this machine, and stays so until it is used: the
    kernel gives none below its own range to a connection, or to a server that asks for any. Nor is
    it one of those that Ray gives to its workers, up to 19999.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(20_000, first)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
