"""Parquet: one document per row, read row group by row group, each in batches."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet

from tokenfeed.errors import InvalidSource

from ..tokenize.documents import no_column, require_not_refused
from ..tokenize.recipe import Recipe
from ..units import (
    Column,
    InvalidDocument,
    OnSourceHash,
    Problem,
    Rows,
    SourceOffset,
    Strings,
    TextSource,
    Unit,
    UnreadRows,
    require_of_content,
)

KIND = "parquet"

_UNIT_BYTES = 1 << 20
"""Half a second of work for one core. A quarter of it made no difference (docs/decisions/0012)."""
_UNIT_ROWS_MAX = 1 << 16
_BATCH_BYTES = 1 << 20
_BATCH_ROWS = (16, 512)
"""Rows that are decoded at once, about _BATCH_BYTES, if a dictionary expands all of a file as its
first rows: at least and at most. With documents of 2 KB, 32 at once cost a quarter more time than
512 (docs/decisions/0012)."""
_UNREAD_BYTES_MAX = 8 << 20
"""Row groups up to this size are read by workers, so this process decodes larger ones only: of such
a group a worker holds all tokens until it is done."""
_Columns = tuple[Strings, ...]
_Bare = Callable[[Any], Any]
"""Makes a value without the nulls that Arrow adds."""

_JSON_EXTENSION = "arrow.json"
"""The type of columns of JSON that datasets writes since 4.7."""
_MESSAGE_KEYS = frozenset(["content"])
"""A message has this key, also if it is null."""
_KIND_CHARS_MAX = 160

_ROWS_BITS = 32
"""An offset is (row group << _ROWS_BITS) + row in the group."""


def units(
    source: TextSource, index: int, offset: int, recipe: Recipe, _: OnSourceHash
) -> Iterator[Unit]:
    """Yield rows.  offset: (row group << 32) + row."""
    try:
        with source.open() as opened:
            yield from _opened_units(source, index, offset, recipe.read_columns, opened)
    except OSError as error:
        raise InvalidSource(source.path, f"cannot be read: {error.strerror}") from error


def _opened_units(
    source: TextSource, index: int, offset: int, columns: tuple[Column, ...], opened: BinaryIO
) -> Iterator[Unit]:
    first_group, first_row = _group_and_row(offset)
    try:
        file = _parquet_file(opened)
    except (OSError, pyarrow.ArrowException) as error:
        require_of_content(error, source.path)
        yield Unit.broken(source, index, offset, Problem(_unreadable(error), "its footer"))
        return
    with file:
        problem = _column_problem(file, columns)
        if problem is None and not file.metadata.num_rows:
            problem = Problem("empty file", "0 rows")
        if problem is not None:
            yield Unit.broken(source, index, offset, problem)
            return
        rows_before = sum(file.metadata.row_group(group).num_rows for group in range(first_group))
        for group in range(first_group, file.num_row_groups):
            yield from _group_units(source, index, file, columns, group, first_row, rows_before)
            rows_before += file.metadata.row_group(group).num_rows
            first_row = 0


def read(unit: Unit, recipe: Recipe) -> Iterator[Unit]:
    """Yield the rows of a unit that is not read yet, in units with their text. Ends once they have
    _UNREAD_BYTES_MAX, as a dictionary expands few bytes into much text, or _UNIT_ROWS_MAX rows, of
    which each may be a problem.  Raises: InvalidSource.
    """
    content, size_bytes = unit.content, 0
    assert isinstance(content, UnreadRows)
    source, (group, first_row) = content.source, _group_and_row(unit.place.offset)
    index, columns = unit.place.source, recipe.read_columns
    try:
        opened, file = _shared_file(source)
        for found in _group_units(
            source, index, file, columns, group, first_row, content.rows_before
        ):
            _require_same(source, opened)
            yield found
            size_bytes += found.size_bytes
            rows = found.end.offset - unit.place.offset
            if size_bytes >= _UNREAD_BYTES_MAX or rows >= _UNIT_ROWS_MAX:
                return
    except OSError as error:
        raise InvalidSource(source.path, f"cannot be read: {error.strerror}") from error


def _group_and_row(offset: int) -> tuple[int, int]:
    return divmod(offset, 1 << _ROWS_BITS)


_shared: dict[TextSource, tuple[BinaryIO, pyarrow.parquet.ParquetFile]] = {}
"""The file that this worker has read last: a footer is parsed once a file, not once a row group."""


def _shared_file(source: TextSource) -> tuple[BinaryIO, pyarrow.parquet.ParquetFile]:
    if source not in _shared:
        for opened, _ in _shared.values():
            opened.close()
        _shared.clear()
        opened = source.open()
        _require_same(source, opened)
        _shared[source] = opened, _parquet_file(opened)
    return _shared[source]


def _require_same(source: TextSource, opened: BinaryIO) -> None:
    status = os.fstat(opened.fileno())
    source.require(status.st_size, status.st_mtime_ns)


def _parquet_file(opened: BinaryIO) -> pyarrow.parquet.ParquetFile:
    # Reads pages when they are needed: a row group may be larger than memory.
    return pyarrow.parquet.ParquetFile(
        opened, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
    )


def _group_units(
    source: TextSource,
    index: int,
    file: pyarrow.parquet.ParquetFile,
    columns: tuple[Column, ...],
    group: int,
    first_row: int,
    rows_before: int,
) -> Iterator[Unit]:
    stored = file.metadata.row_group(group)
    row_count = stored.num_rows

    def place(row: int) -> SourceOffset:
        whole = row == row_count
        return SourceOffset(index, (group + whole << _ROWS_BITS) + (0 if whole else row))

    def done_bytes(row: int) -> int:
        return int(source.size_bytes * (group + row / max(1, row_count)) / file.num_row_groups)

    if source.is_shared and row_count and stored.total_byte_size <= _UNREAD_BYTES_MAX:
        own = replace(source, is_shared=False)
        unread = UnreadRows(own, rows_before, stored.total_byte_size)
        yield Unit(place(first_row), place(row_count), unread, done_bytes(row_count))
        return
    row = first_row
    try:
        for run in _runs(_batches(file, columns, group), first_row):
            end = row + len(run[0])
            rows = Rows(run, rows_before + row)
            yield Unit(place(row), place(end), rows, done_bytes(end))
            row = end
    except (OSError, pyarrow.ArrowException) as error:
        require_of_content(error, source.path)
        lost = f"row group {group}: {row_count - row:,} rows from row {rows_before + row:,} on"
        problem = Problem(_unreadable(error), lost)
        yield Unit(place(row), place(row_count), None, done_bytes(row_count), (problem,))


def _batches(
    file: pyarrow.parquet.ParquetFile, columns: tuple[Column, ...], group: int
) -> Iterator[_Columns]:
    """Yield the columns of a row group, some rows at once."""
    stored = file.metadata.row_group(group)
    row_bytes = _expansion(file, columns) * stored.total_byte_size // max(1, stored.num_rows)
    fewest, most = _BATCH_ROWS
    rows = min(most, max(fewest, _BATCH_BYTES // max(1, row_bytes)))
    yield from _decoded(file, columns, group, rows)


@lru_cache(maxsize=1)
def _expansion(file: pyarrow.parquet.ParquetFile, columns: tuple[Column, ...]) -> int:
    """Return how many times as large as its first row group is on average the first rows of a file
    are; 1 at least.
    """
    stored = file.metadata.row_group(0)
    try:
        first = next(_decoded(file, columns, 0, _BATCH_ROWS[0]))
    except (OSError, pyarrow.ArrowException, StopIteration):
        return 1
    row_bytes = sum(column.data.size for column in first) // len(first[0])
    # In whole numbers, so that rows which are a little longer than others change nothing.
    return max(1, row_bytes * int(stored.num_rows) // max(1, int(stored.total_byte_size)))


def _decoded(
    file: pyarrow.parquet.ParquetFile, columns: tuple[Column, ...], group: int, rows: int
) -> Iterator[_Columns]:
    present = set(file.schema_arrow.names)
    names = list(dict.fromkeys(column.name for column in columns if column.name in present))
    for batch in file.iter_batches(rows, [group], names, use_threads=False):
        yield tuple(
            _values(batch.column(column.name))
            if column.name in present
            else Strings.of([None] * batch.num_rows)
            for column in columns
        )


def _runs(batches: Iterator[_Columns], first_row: int) -> Iterator[_Columns]:
    """Yield rows from first_row on, in runs of a unit's size. The size is that of the decoded text:
    a dictionary expands few bytes into much text.
    """
    run: list[_Columns] = []
    run_rows = run_bytes = 0
    for batch in batches:
        count = len(batch[0])
        first = min(first_row, count)
        first_row -= first
        # Bytes up to each row, and 0 before the first one.
        ends = np.zeros(count + 1, np.int64)
        for column in batch:
            ends[1:] += column.ends
        while first < count:
            full = int(np.searchsorted(ends, ends[first] + _UNIT_BYTES - run_bytes, side="left"))
            end = min(count, max(full, first + 1), first + _UNIT_ROWS_MAX - run_rows)
            run.append(tuple(column.part(first, end) for column in batch))
            run_rows, run_bytes = run_rows + end - first, run_bytes + int(ends[end] - ends[first])
            if run_bytes >= _UNIT_BYTES or run_rows >= _UNIT_ROWS_MAX:
                yield _joined(run)
                run, run_rows, run_bytes = [], 0, 0
            first = end
    if run:
        yield _joined(run)


def _joined(run: list[_Columns]) -> _Columns:
    return tuple(map(Strings.joined, zip(*run, strict=True)))


def _values(column: pyarrow.Array) -> Strings:
    """Return text as it is stored; it is decoded, and its UTF-8 checked, later. Integers become
    decimal digits, and lists JSON.
    """
    types = pyarrow.types
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_integer(column.type):
        digits = [None if value is None else b"%d" % value for value in column.to_pylist()]
        return Strings.of(digits)
    if not _is_text(column.type):
        bare = _without_padding(column.type, _MESSAGE_KEYS)
        return Strings.of([_json(value, bare) for value in column])
    is_large = types.is_large_string(column.type) or types.is_large_binary(column.type)
    if not (is_large or types.is_string(column.type) or types.is_binary(column.type)):
        # This imports pyarrow.compute, which takes 30 ms.
        column, is_large = column.cast(pyarrow.large_binary()), True
    return _text(column, np.dtype(np.int64 if is_large else np.int32))


def _text(column: pyarrow.Array, offset: np.dtype[np.signedinteger[Any]]) -> Strings:
    """Return text that lies in the buffers of Arrow, without a copy.  offset: of its offsets."""
    validity, offsets, data = column.buffers()
    first, end = column.offset, column.offset + len(column)
    if first == end or data is None:
        return Strings.of(column.to_pylist())
    places = np.frombuffer(offsets, offset)[first : end + 1].astype(np.int64)
    present: npt.NDArray[np.bool_] | None = None
    if column.null_count:
        bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        present = bits[first:end].astype(np.bool_)
    text = np.frombuffer(data, np.uint8)[places[0] : places[-1]]
    return Strings(text, places[1:] - places[0], present)


def _json(value: pyarrow.Scalar, bare: _Bare | None) -> bytes | None:
    """Return a value as JSON.  bare: as of `_without_padding`."""
    try:
        if not value.is_valid:
            return None
        plain = value.as_py()
        plain = plain if bare is None else bare(plain)
        return json.dumps(plain, ensure_ascii=False, default=_text_of).encode()
    except UnicodeDecodeError:
        return b"\xff"  # so that it is counted as what it is
    except (ValueError, OverflowError, RecursionError):  # also a time that Python does not have
        return b""  # as above: it is not JSON


def _without_padding(kind: pyarrow.DataType, kept: frozenset[str] = frozenset()) -> _Bare | None:
    """Return what makes a value without the nulls that Arrow adds: a struct has the keys of all
    rows, and null for those that its own row lacked. A null that was in the data looks the same.
    None if values of the type are used as they are.

    kind: the type of the values.  kept: keys of the outermost structs that stay where they are
    null.
    """
    types = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        is_json = kind.extension_name == _JSON_EXTENSION
        return _if_given(json.loads) if is_json else _without_padding(kind.storage_type, kept)
    if types.is_dictionary(kind):
        return _without_padding(kind.value_type, kept)
    if _is_list(kind):
        of_item = _without_padding(kind.value_type, kept)
        return of_item and _if_given(lambda items: list(map(of_item, items)))
    if not types.is_struct(kind):
        return None
    fields = [kind.field(index) for index in range(kind.num_fields)]
    bare = {field.name: _without_padding(field.type) for field in fields}

    def of_struct(value: dict[str, Any]) -> dict[str, Any]:
        return {
            name: held if (of_field := bare[name]) is None else of_field(held)
            for name, held in value.items()
            if held is not None or name in kept
        }

    return _if_given(of_struct)


def _if_given(make: _Bare) -> _Bare:
    """Return the same for values that may be null, and stay so."""
    return lambda value: None if value is None else make(value)


def _text_of(value: date | time | timedelta | Decimal) -> str:
    """Return what JSON has no number for, as text."""
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _column_problem(
    file: pyarrow.parquet.ParquetFile, columns: tuple[Column, ...]
) -> Problem | None:
    schema = file.schema_arrow
    try:
        require_not_refused(columns[0], schema.names)
    except InvalidDocument as error:
        return error.problem("its schema")
    for column in columns:
        name = column.name
        if schema.names.count(name) > 1:
            return Problem(f"several columns {name!r}", "its schema")
        if name not in schema.names:
            if column.may_be_absent:
                continue
            return Problem(*no_column(name, schema.names))
        kind = schema.field(name).type
        if isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        if pyarrow.types.is_dictionary(kind):
            kind = kind.value_type
        if column.kind == "numbers":
            of_items = kind.value_type if _is_list(kind) else kind
            are_numbers = pyarrow.types.is_integer(of_items) or pyarrow.types.is_boolean(of_items)
            if not (_is_list(kind) and are_numbers):
                return Problem(f"column {name!r} is not a list of integers", _but(kind))
        elif column.kind == "json":
            if not _is_text(kind) and not (_is_list(kind) and _is_json(kind)):
                return Problem(f"column {name!r} is neither a list of structs nor JSON", _but(kind))
        elif not _is_text(kind) and not (column.kind == "id" and pyarrow.types.is_integer(kind)):
            of_ids = " or an integer" if column.kind == "id" else ""
            return Problem(f"column {name!r} is not text{of_ids}", _but(kind))
    return None


def _but(kind: pyarrow.DataType) -> str:
    text = f"but {kind}"
    return text if len(text) <= _KIND_CHARS_MAX else f"{text[:_KIND_CHARS_MAX]}..."


def _is_text(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or (hasattr(types, "is_string_view") and types.is_string_view(kind))
    )


def _is_list(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_json(kind: pyarrow.DataType) -> bool:
    """Return whether all values of a type can be written as JSON."""
    types = pyarrow.types
    if isinstance(kind, pyarrow.BaseExtensionType):
        return kind.extension_name == _JSON_EXTENSION or _is_json(kind.storage_type)
    if types.is_dictionary(kind) or _is_list(kind):
        return _is_json(kind.value_type)
    if types.is_struct(kind):
        return all(_is_json(kind.field(index).type) for index in range(kind.num_fields))
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_text = _is_text(kind) and not types.is_binary(kind) and not types.is_large_binary(kind)
    is_time = types.is_temporal(kind) and not types.is_interval(kind)
    return bool(is_text or is_number or is_time or types.is_boolean(kind) or types.is_null(kind))


def _unreadable(error: Exception) -> str:
    return "unreadable: " + " ".join(str(error).split())[:120]
