"""Files of a checkpoint, opened so that none of them can make a reader wait; and what is wrong."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import PickleError
from typing import Any, BinaryIO, NamedTuple, TypeAlias
from zipfile import BadZipFile

from tokenfeed.commands.printable import printable
from tokenfeed.errors import InvalidRequest

Keys: TypeAlias = tuple[str | int, ...]
"""What leads to a value within a checkpoint."""

DAMAGED = (
    *(ArithmeticError, AssertionError, AttributeError, BadZipFile, EOFError, ImportError),
    *(LookupError, MemoryError, OSError, PickleError, RuntimeError, TypeError, ValueError),
    struct.error,
)
"""What reading bytes raises that are not what they begin as."""


class Entry(NamedTuple):
    """A value of a checkpoint, and the keys that lead to it."""

    keys: Keys
    value: Any


def problem_of(path: Path, problem: str) -> InvalidRequest:
    """Return the error of a checkpoint.  problem: what is wrong, with the cure."""
    return InvalidRequest("state", f"{printable(path)} {problem}")


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, and give its size in bytes.

    Raises: InvalidRequest if it is none, or cannot be read; a FIFO never blocks.
    """
    try:
        file = open(path, "rb", opener=_without_waiting)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is not valid"
        raise problem_of(path, f"cannot be read: {reason}") from None
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise problem_of(path, "is neither a file nor a folder")
        try:
            yield file, status.st_size
        except OSError as error:
            raise problem_of(path, f"cannot be read: {error.strerror or error}") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
