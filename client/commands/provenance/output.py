"""Where a manifest is written: lines of JSON, or a parquet file. A file is there as a whole, or not
at all.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest, WriteFailed

if TYPE_CHECKING:
    import pyarrow as pa

Lines = Iterable[dict[str, Any]]

_ROW_GROUP = 1 << 14
"""Lines of a row group of a parquet file: 1 to 2 MiB of memory."""
_COLUMNS = {
    "kind": "string",
    "source": "int64",
    "dataset": "string",
    "fingerprint": "string",
    "order": "string",
    "seed": "uint64",
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
    """Write a line of JSON for each, to a file, or to stdout.  Raises: WriteFailed."""
    if path is None:
        for line in lines:
            sys.stdout.write(_json(line))
        return
    with _whole_file(path) as beside, _write_errors(path), beside.open("w") as file:
        for line in lines:
            file.write(_json(line))


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"


def require_parquet() -> None:
    """Raise InvalidRequest unless parquet files can be written here."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidRequest("--format", missing(error, "parquet")) from None


def write_parquet(lines: Lines, path: str) -> None:
    """Write a row of a parquet file for each line.  Raises: WriteFailed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, getattr(pa, kind)()) for name, kind in _COLUMNS.items()])
    with _whole_file(path) as beside, _write_errors(path):
        with pq.ParquetWriter(beside, schema) as writer:
            for table in _tables(lines, schema):
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
def _whole_file(path: str) -> Iterator[Path]:
    """Lend a path beside another one, which is replaced at the end, unless there is an error."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield beside
        with _write_errors(path):
            os.replace(beside, target)
    finally:
        with suppress(OSError):
            beside.unlink()


@contextmanager
def _write_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailed(path, f"cannot be written: {error.strerror or error}") from None
