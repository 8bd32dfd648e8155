"""How a command says that it failed: in one line on stderr, and by its exit code."""

from __future__ import annotations

import os
import sys

from tokenfeed.errors import TokenfeedError


def single_line(text: str) -> str:
    """Return text in one line: a path may hold a line break, and whoever reads by lines must not be
    misled.
    """
    return text.replace("\n", "\\n")


def print_error(error: TokenfeedError) -> int:
    """Say what went wrong.  Returns: the exit code, 1."""
    sys.stderr.write(f"error: {single_line(str(error))}\n")
    return 1


def print_stdout_error(error: OSError) -> int:
    """Say that stdout cannot be written: whoever read it has had enough, or a disk is full. What is
    left to be written is not tried again.  Returns: the exit code, 1.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.write(f"error: stdout: cannot be written: {error.strerror}\n")
    return 1
