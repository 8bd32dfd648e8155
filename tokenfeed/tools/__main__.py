"""python -m client, or python -m tokenfeed.tools: commands that query a server.

describe  prints what it serves
show      prints one batch, as text if a tokenizer is given
plan      prints what a mixture will do
explain   prints where the rows of a step come from, and what they say
find      prints which rows hold a document, and which of them a run has seen
manifest  writes everything that a run has read
doctor    says what keeps this machine from its servers, and what to change
bench     measures how fast batches arrive on this machine; the only one that needs torch
top       shows what a server does, again and again
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tokenfeed.commands.output import exit_code
from tokenfeed.errors import TokenfeedError

from .options import build_parser

__all__ = ["build_parser", "main"]

_SAVED = ("context_length", "long", "order", "seed")
"""Options that a state takes the place of."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.  Returns: 0 on success, 1 after an error, 130 after Ctrl-C; for doctor also
    the codes of doctor/findings.py.
    """
    arguments, unknown = build_parser().parse_known_args(argv)
    arguments.environment = os.environ
    if "words" in arguments and not any(word.startswith("-") for word in unknown):
        # argparse takes words from one place of the line alone; these come behind options.
        arguments.words = [*arguments.words, *unknown]
    elif unknown:
        # With the usage of this command: that of the others is no help.
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")

    def run() -> int | None:
        try:
            code: int | None = arguments.run(arguments)
        except TokenfeedError as error:
            raise TokenfeedError(_option(error.subject, arguments), error.problem) from error
        return code

    return exit_code(run)


def _option(subject: str, arguments: argparse.Namespace) -> str:
    """Return the subject of an error as the user typed it: "--batch-size" for batch_size; or what
    is wrong in a state.
    """
    is_saved = getattr(arguments, "state", None) and getattr(arguments, subject, None) is None
    if is_saved and subject in _SAVED:
        return f"state.{subject}"
    if subject in vars(arguments) and subject != "target":
        return f"--{subject.replace('_', '-')}"
    return subject


if __name__ == "__main__":
    sys.exit(main())
