"""The commands of the project, and what several of them need.

status/         what the status page and `top` show
output.py       how a command reports an error
printable.py    text from outside, as a command prints it
decoding.py     token ids as text
prices.py       what an object store bills
extras.py       what is installed with an extra
completion.py   what a shell completes
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from .. import __version__


class Command(NamedTuple):
    """module: of tokenfeed; it has `build_parser`, and is run as `__main__`.  arguments: what it is
    given before what was typed.  needs: the side that has to be installed for it.
    """

    module: str
    purpose: str
    arguments: tuple[str, ...] = ()
    needs: str = "server"


def _query(name: str, purpose: str) -> Command:
    return Command("tools.__main__", purpose, (name,), "client")


COMMANDS = {
    "serve": Command("server.__main__", "serve token files, or text, over gRPC"),
    "ingest": Command("server.ingest.__main__", "turn text into shards of tokens"),
    "inspect": Command("tools.inspect", "show what token files are"),
    "verify": Command(
        "tools.verify", "read all of a dataset, print the hash of its content, and store it"
    ),
    "redact": Command(
        "tools.redact.__main__", "take documents or ranges of tokens out of a dataset"
    ),
    "pack": Command("tools.pack", "make the rows of order packed or padded, and store them"),
    "probe": Command("tools.probe", "report by the exit code whether a server is healthy"),
    "describe": _query("describe", "show what a server serves"),
    "show": _query("show", "show one batch of a server or of local files"),
    "plan": _query("plan", "show what a mixture will do"),
    "explain": _query("explain", "show where the rows of a step come from"),
    "find": _query("find", "show which rows hold a document"),
    "manifest": _query("manifest", "write what a run has read"),
    "doctor": _query("doctor", "find out why this machine cannot read from its servers"),
    "bench": _query("bench", "measure how fast batches arrive on this machine"),
    "top": _query("top", "show what a server does, again and again"),
    "completion": Command("commands.completion", "print the completion script of a shell"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the name of a command."""
    parser = argparse.ArgumentParser(
        prog="tokenfeed",
        description="Prepare tokens, serve them to training runs, and query the servers.",
        epilog="tokenfeed COMMAND --help shows the options of a command",
    )
    parser.add_argument("--version", action="version", version=f"tokenfeed {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.purpose, add_help=False)
    return parser


def program(module: str) -> str:
    """Return what a module that runs as a command was called by, for its help."""
    called = sys.argv[0]
    return called if called.partition(" ")[0] == "tokenfeed" else f"python -m {module}"
