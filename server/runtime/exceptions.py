"""How unexpected exceptions are logged.

The text of an exception may contain a path or a token, and its traceback fills a page. So both are
logged at level debug only.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback

import tokenfeed

_LOG = logging.getLogger("tokenfeed.server")

_OURS = os.path.join(os.path.dirname(os.path.abspath(tokenfeed.__file__)), "")


def log_exception(level: int, message: str, *values: object) -> None:
    """Log the exception that is being handled: one line, and its traceback at level debug.

    level: of the line.  message, values: the beginning of the line. The type of the exception and
    the last line of our code in its traceback follow.
    """
    _LOG.log(level, f"{message}: %s", *values, _summary())
    _LOG.debug(message, *values, exc_info=True)


def _summary() -> str:
    """Return the type of the exception that is being handled and the last line of our code in its
    traceback: "KeyError at tokenfeed/server/rpc/service.py:88". An OSError has its errno's name.
    """
    _, error, trace = sys.exc_info()
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:
        kind += f" {errno.errorcode.get(error.errno, error.errno)}"
    frames = traceback.extract_tb(trace)
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)]
    if not ours:
        return kind
    return f"{kind} at tokenfeed/{ours[-1].filename.removeprefix(_OURS)}:{ours[-1].lineno}"


def log_safe_name(path: str) -> str:
    """Return the name of a file without its folder, on one line."""
    name = os.path.basename(path)
    return name if name.isprintable() else ascii(name)
