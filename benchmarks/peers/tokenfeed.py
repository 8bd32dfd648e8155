"""tokenfeed itself: python -m server, and RemoteBatches on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from benchmarks.peers.batch import B, T, counted


def serve(path: str) -> None:
    """Become the server that its users start; its first line ends with the address, too."""
    command = [sys.executable, "-m", "server", "--data", path, "--host", "localhost", "--port", "0"]
    os.execv(sys.executable, [*command, "--log-level", "warning"])


def take(source: str) -> Iterator[int]:
    """Iterate as the README says."""
    from client import RemoteBatches

    return counted(RemoteBatches(source, B, T))
