"""How a command reports an error: in one line on stderr, and by its exit code."""

from __future__ import annotations

import os
import sys

from tokenfeed.errors import TokenfeedError


def single_line(text: str) -> str:
    """Return text in one line: a path may contain a line break, which must not break up the line
    for a program that parses it.
    """
    return text.replace("\n", "\\n")


def print_error(error: TokenfeedError) -> int:
    """Print an error to stderr.  Returns: the exit code, 1."""
    sys.stderr.write(f"error: {single_line(str(error))}\n")
    return 1


def flush_stdout() -> None:
    """Write what is buffered, unless stdout is closed.  Raises: OSError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def print_stdout_error(error: OSError) -> int:
    """Report that stdout cannot be written: its reader closed the pipe, or a disk is full. Buffered
    output is discarded.  Returns: the exit code, 1.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.write(f"error: stdout: cannot be written: {error.strerror or error}\n")
    return 1
