"""Log records as JSON, one object a line, for programs that collect logs.

A record's message is constant, and its values are arguments, as in "stream opened peer=%s rows=%d".
So what stands before the first key is the event, and each value is a field of its own. Values come
from paths and clients: whatever they contain, a record is one line of valid JSON. Knows nothing of
tokens.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
from datetime import datetime, timezone
from functools import lru_cache
from numbers import Integral, Real
from types import TracebackType
from typing import NamedTuple

_LOG = logging.getLogger("tokenfeed.server")

_TEXT_MAX = 4096
"""Characters of one value: some collectors split lines above 16 KiB."""
_INTEGERS = range(-(1 << 63), 1 << 64)
"""What readers of JSON take for an integer."""
_RESERVED = frozenset(("time", "level", "logger", "event", "message", "exception"))
_CONVERSION = re.compile(
    r"(?:(?<![\w.%-])(?P<key>[A-Za-z_]\w*)=)?"
    r"%(?:%|[-#0 +]*(?P<width>\*|\d*)(?:\.(?P<digits>\*|\d*))?[hlL]?[a-zA-Z])"
)
"""One of printf, as in "rows=%d", with its key if there is one; "%%" too."""


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON. Never raises."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: time (RFC 3339, UTC), level, logger, event, message, a field for each
        value with a key, and the traceback if there is one.
        """
        now = datetime.fromtimestamp(record.created, timezone.utc)
        found: dict[str, object] = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": _text(record.name),
        }
        try:
            found |= _content(record)
        except Exception:  # noqa: BLE001 - a wrong message, or a value that cannot be shown
            found |= {"event": "unformatted", "message": _text(record.msg)}
            found["arguments"] = _text(record.args)
        if record.exc_info:
            found["exception"] = _text(self.formatException(record.exc_info), cut_begin=True)
        return json.dumps(found, allow_nan=False)


def log_crashes() -> None:
    """Log warnings of Python, and exceptions that end a thread or the process, as records too."""
    logging.captureWarnings(True)

    def log_crash(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, (SystemExit, KeyboardInterrupt)):
            return  # as asked for
        _LOG.critical("crashed thread=%s", threading.current_thread().name, exc_info=error)

    def log_thread_crash(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            log_crash(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    sys.excepthook = log_crash
    threading.excepthook = log_thread_crash


def _content(record: logging.LogRecord) -> dict[str, object]:
    """Return event, message and fields.  Raises: any exception, if they do not go together."""
    message = _text(record.getMessage())
    if not isinstance(record.args, tuple) or not record.args:
        return {"event": message, "message": message}
    parts = _parsed(str(record.msg))
    event = message
    if parts.event is not None:
        event = _text(parts.event % record.args[: parts.event_values])
    fields = {key: _value(record.args[place]) for key, place in parts.fields}
    return {"event": event, "message": message} | fields


class _Parts(NamedTuple):
    """A constant message.

    event: its beginning, up to the first key; None if it has no key.  event_values: how many
    arguments are in that.  fields: key and index of the argument.
    """

    event: str | None
    event_values: int
    fields: tuple[tuple[str, int], ...]


@lru_cache(512)
def _parsed(message: str) -> _Parts:
    event: str | None = None
    event_values = place = 0
    fields = []
    for found in _CONVERSION.finditer(message):
        if found[0].endswith("%%"):
            continue
        key = found["key"]
        if key and event is None:
            event, event_values = message[: found.start()].rstrip(" :,("), place
        place += (found["width"] == "*") + (found["digits"] == "*")
        if key:
            fields.append((f"{key}_" if key in _RESERVED else key, place))
        place += 1
    return _Parts(event, event_values, tuple(fields))


def _value(value: object) -> object:
    """Return a value as JSON has it: a number, or text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral) and int(value) in _INTEGERS:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value):
        return float(value)
    return _text(value)


def _text(value: object, *, cut_begin: bool = False) -> str:
    """Return a value as text that UTF-8 can encode, cut after _TEXT_MAX characters.

    cut_begin: keep the end.
    """
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - whatever it is, the record is logged
        text = f"<{type(value).__name__}>"
    if len(text) > _TEXT_MAX:
        text = f"...{text[-_TEXT_MAX:]}" if cut_begin else f"{text[:_TEXT_MAX]}..."
    # Bytes of a path that are no text would be half a character, which strict readers refuse.
    return text.encode(errors="backslashreplace").decode()
