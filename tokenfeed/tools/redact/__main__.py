"""tokenfeed redact: adds documents, or ranges of tokens, to the redacted tokens of a dataset, and
erases them from its files if it is told to.

A list changes nothing by itself: a training run names its hash, and has other tokens in place of
these from a sample on. docs/redact.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tokenfeed.commands import program
from tokenfeed.commands.output import exit_code, require_stdout
from tokenfeed.server.cli.dataset_options import PLANE_OPTIONS, add_dataset_arguments, parse_dataset
from tokenfeed.server.storage.door import StorageOptions, door_of

from .redacting import FILL, ListSummary, RedactTarget, Selection
from .waiting import require_wait, wait_for_servers

_WAIT_SECONDS = 600.0
"""Longer than a server takes to look at 100,000 files once."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("tokenfeed.tools.redact"),
        description="Add documents or ranges of tokens to a dataset's list of redacted tokens, and "
        "print the hash of the list. Without a document or range, show the list.",
        epilog="example: tokenfeed redact shards/ --id user-1234 --reason 'ticket 77'",
    )
    add_dataset_arguments(parser, *PLANE_OPTIONS)
    add = parser.add_argument
    several = partial(add, action="append", default=[])
    several(
        "--document",
        type=int,
        metavar="N",
        help="number of a document to redact, counted over all files, from 0; may be given several "
        "times",
    )
    several(
        "--id",
        metavar="ID",
        help="redact every document that has this id; may be given several times",
    )
    several(
        "--range",
        metavar="FILE:FIRST:END",
        help="range of tokens to redact: from position FIRST in the file up to, but without, "
        "position END; FILE is the number of the file, from 0, or its name; may be given several "
        "times",
    )
    add(
        "--list",
        metavar="FILE",
        help="file with the list of redacted tokens (default: beside the token files)",
    )
    add(
        "--fill",
        type=int,
        metavar="TOKEN",
        help=f"token id that replaces redacted tokens, one for the whole list (default: {FILL})",
    )
    add(
        "--reason",
        default="",
        metavar="TEXT",
        help="reason for the redaction, which is stored in the list",
    )
    add(
        "--erase",
        action="store_true",
        help="erase all tokens of the list from the token files, for good: each file with such "
        "tokens is replaced; if an erasure was interrupted, finish it",
    )
    add(
        "--no-delimiter",
        action="store_true",
        help="with --erase, for file formats that do not record where documents begin: confirm "
        "that no server of the dataset has the option --document-end-token or "
        "--document-start-token",
    )
    several(
        "--wait",
        metavar="HOST:PORT",
        help="with --erase: address of a server; wait until it reads the new files, and has no "
        "file with erased tokens open any more; may be given several times",
    )
    add(
        "--wait-seconds",
        type=float,
        default=_WAIT_SECONDS,
        metavar="S",
        help="maximum number of seconds that --wait waits for all servers (default: %(default)g)",
    )
    add("--json", action="store_true", help="print one JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Redact.  Returns: 0 when done, 1 after an error in one line, 130 after Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(message)s")
    return exit_code(
        partial(_run, arguments), interrupted="run it again, which finishes what was begun"
    )


def _run(arguments: argparse.Namespace) -> None:
    require_stdout()
    require_wait(arguments.wait, arguments.wait_seconds, erases=arguments.erase)
    found = redact(arguments)
    print(json.dumps(found.facts(), indent=1) if arguments.json else found.text(), flush=True)
    erasure = found.content.erasure
    if erasure is not None and arguments.wait:
        wait_for_servers(
            arguments.wait, found.content.fingerprint, erasure.list_hash, arguments.wait_seconds
        )


def redact(arguments: argparse.Namespace) -> ListSummary:
    """Do what a command line asks for.  Raises: TokenfeedError."""
    chosen = Selection(
        arguments.document, arguments.id, arguments.range, arguments.fill, arguments.reason
    )
    source, options = parse_dataset(arguments)
    redactions = None if arguments.list is None else door_of(arguments.list).real(arguments.list)
    planes = replace(options.planes, redactions=redactions)
    target = RedactTarget(source, options.formats, StorageOptions(options.read), planes)
    return target.redact(chosen, erases=arguments.erase, has_no_delimiter=arguments.no_delimiter)


if __name__ == "__main__":
    sys.exit(main())
