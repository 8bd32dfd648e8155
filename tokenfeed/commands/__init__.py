"""The commands of the project, and how one was called."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Command(NamedTuple):
    """module: runs as `python -m`.  needs: the extra that it is installed with.  arguments: what it
    is told before what is typed.
    """

    module: str
    purpose: str
    needs: str = ""
    arguments: tuple[str, ...] = ()


COMMANDS = {
    "serve": Command("server", "serve token files, or text, over gRPC", "server"),
    "ingest": Command("server.ingest", "turn text into shards of tokens", "ingest"),
    "inspect": Command("server.inspect", "say what token files are"),
    "verify": Command("server.verify", "read all of a dataset and print its digest"),
    "probe": Command("server.probe", "say by the exit code whether a server is well", "server"),
    "describe": Command("client", "say what a server serves", arguments=("describe",)),
    "show": Command("client", "show one batch of a server", arguments=("show",)),
    "bench": Command("client", "measure how fast batches arrive here", "torch", ("bench",)),
    "completion": Command("commands.completion", "print what a shell completes", "completion"),
}


def program(module: str) -> str:
    """Return what a module that runs as a command was called by, for its help."""
    called = sys.argv[0]
    return called if called.partition(" ")[0] == "tokenfeed" else f"python -m {module}"
