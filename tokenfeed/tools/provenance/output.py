"""Where a manifest is written: lines of JSON, or a parquet file. A file is there as a whole, or not
at all; into a FIFO or a device, all is written as it comes.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from tokenfeed.commands.extras import missing
from tokenfeed.commands.output import require_stdout
from tokenfeed.errors import InvalidRequest, Unreadable, WriteFailed

if TYPE_CHECKING:
    import pyarrow as pa

Lines = Iterable[dict[str, Any]]

_ROW_GROUP = 1 << 14
"""Lines of a row group of a parquet file: 1 to 2 MiB of memory."""
_COLUMNS = {
    "kind": "string",
    "source": "int64",
    "part": "int64",
    "dataset": "string",
    "fingerprint": "string",
    "order": "string",
    "seed": "uint64",
    "group_blocks": "int64",
    "context_length": "int64",
    "first_epoch": "int64",
    "end_epoch": "int64",
    "times": "int64",
    "file": "int64",
    "file_name": "string",
    "first_token": "int64",
    "end_token": "int64",
    "first_document": "int64",
    "end_document": "int64",
    "first_sample": "int64",
    "end_sample": "int64",
    "rows": "int64",
    "pieces": "int64",
    "steps": "int64",
    "rows_per_epoch": "int64",
    "samples": "int64",
    "tokens": "int64",
    "epochs": "float64",
    "line": "string",
}
"""Name and type of each column; `line` has all of a line that is no range, as JSON."""
_PAIRS = {
    ("range", "tokens"): ("first_token", "end_token"),
    ("range", "documents"): ("first_document", "end_document"),
    ("samples", "samples"): ("first_sample", "end_sample"),
    ("epochs", "epochs"): ("first_epoch", "end_epoch"),
    ("range", "epochs"): ("first_epoch", "end_epoch"),
    ("samples", "epochs"): ("first_epoch", "end_epoch"),
}
"""Kind of a line and its half-open interval -> two columns."""


def write_jsonl(lines: Lines, path: str | None) -> None:
    """Write a line of JSON for each, to a file, or to stdout.

    Raises: InvalidRequest if the path is no file; Unreadable for what the lines are made of;
    WriteFailed.
    """
    if path is None:
        stdout = require_stdout()
        for line in _read(lines):
            stdout.write(_json(line))
        return
    with _output(path) as place, _write_errors(path), open(place, "w") as file:
        for line in _read(lines):
            file.write(_json(line))


def _read(lines: Lines) -> Iterator[dict[str, Any]]:
    """Yield lines; an OSError of theirs is not one of writing them."""
    try:
        yield from lines
    except OSError as error:
        subject = str(error.filename or "target")
        raise Unreadable(subject, f"cannot be read: {error.strerror or error}") from None


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"


def require_parquet() -> None:
    """Raise InvalidRequest unless parquet files can be written here."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidRequest("--format", missing(error, "parquet")) from None


def write_parquet(lines: Lines, path: str) -> None:
    """Write a row of a parquet file for each line.  Raises: as write_jsonl."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in _COLUMNS.items()])
    with _output(path) as place, _write_errors(path):
        with pq.ParquetWriter(place, schema) as writer:
            for table in _tables(_read(lines), schema):
                writer.write_table(table)


def _tables(lines: Lines, schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    rows = []
    for line in lines:
        rows.append(_columns(line))
        if len(rows) == _ROW_GROUP:
            yield pa.Table.from_pylist(rows, schema)
            rows = []
    yield pa.Table.from_pylist(rows, schema)


def _columns(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line as values of columns."""
    kind = line["kind"]
    values: dict[str, Any] = {}
    for name, value in line.items():
        if (pair := _PAIRS.get((kind, name))) is not None:
            values.update(zip(pair, value or (None, None), strict=True))
        elif name in _COLUMNS and not isinstance(value, (list, dict)):
            values[name] = value
    if kind in ("run", "stream", "source"):
        values["line"] = json.dumps(line)
    return values


@contextmanager
def _output(path: str) -> Iterator[str]:
    """Lend where to write what will be at a path."""
    if not os.path.basename(path) or os.path.isdir(path):
        raise InvalidRequest("output", f"{path!r} is not the path of a file")
    if _is_special(path):
        yield path
        return
    # The file that a link leads to is replaced, and not the link.
    with _whole_file(os.path.realpath(path)) as beside:
        yield beside


def _is_special(path: str) -> bool:
    """Return whether something is written as it comes: a FIFO, a device, /dev/stdout."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False  # there is none yet, or it is reported when it is opened


@contextmanager
def _whole_file(path: str) -> Iterator[str]:
    """Lend a path beside another one, which is replaced at the end, unless there is an error, or
    the process is told to end.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f".{name}.{os.getpid()}.part")
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _exit) if is_main else None
    try:
        yield beside
        with _write_errors(path):
            os.replace(beside, path)
    finally:
        with suppress(OSError):
            os.unlink(beside)
        if is_main:
            signal.signal(signal.SIGTERM, before)


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _write_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailed(path, f"cannot be written: {error.strerror or error}") from None
