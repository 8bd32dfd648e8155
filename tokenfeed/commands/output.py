"""How a command reports an error: in one line on stderr, and by its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import TextIO

from tokenfeed.errors import TokenfeedError, WriteFailed


def single_line(text: str) -> str:
    """Return text in one line: a path may contain a line break, which must not break up the line
    for a program that parses it.
    """
    return text.replace("\n", "\\n")


def print_error(error: TokenfeedError) -> int:
    """Print an error to stderr.  Returns: the exit code, 1."""
    sys.stderr.write(f"error: {single_line(str(error))}\n")
    return 1


def require_stdout() -> TextIO:
    """Return stdout.  Raises: WriteFailed if it is closed."""
    if sys.stdout is None:
        raise WriteFailed("stdout", "cannot be written: it is closed")
    return sys.stdout


def flush_stdout() -> None:
    """Write what is buffered, unless stdout is closed.  Raises: OSError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def print_stdout_error(error: OSError) -> int:
    """Report that stdout cannot be written: its reader closed the pipe, or a disk is full. Buffered
    output is discarded.  Returns: the exit code, 1.
    """
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.write(f"error: stdout: cannot be written: {error.strerror or error}\n")
    return 1


def exit_code(run: Callable[[], int | None], *, interrupted: str = "") -> int:
    """Run a command, and report how it ended. Stdout escapes what it cannot encode: a path may
    contain bytes that are not text, and a name signs that the terminal does not know.

    run: does it, and returns its exit code; None is 0.  interrupted: to be said after Ctrl-C.
    Returns: the exit code, 1 after an error in one line, 130 after Ctrl-C.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = run()
        flush_stdout()
    except TokenfeedError as error:
        return print_error(error)
    except KeyboardInterrupt:
        if interrupted:
            sys.stderr.write(f"interrupted: {interrupted}\n")
        return 130
    except OSError as error:
        return print_stdout_error(error)
    return code or 0
