"""A status as lines of text: all of it, or what fits into a terminal, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenfeed.commands.status import words
from tokenfeed.commands.status.attention import Judgement
from tokenfeed.commands.status.states import Level
from tokenfeed.commands.status.view import Column, Row, Table, View, view_of
from tokenfeed.v1 import status_pb2 as pb

from .columns import cut, spark, table, wrapped

_MARKS = {Level.PROBLEM: "!!", Level.WARNING: "! ", Level.NOTICE: "  "}
_SPARK_COLUMNS = 20
_TABLE_LINES_MIN = 4
"""An empty line, the heading, a row, and how many there are besides."""


class Line(NamedTuple):
    """A line.  level: how bad what it says is.  is_heading: of a table."""

    text: str
    level: Level = Level.NOTICE
    is_heading: bool = False


def status_lines(
    status: pb.GetStatusResponse, target: str, width: int | None = None, height: int | None = None
) -> list[Line]:
    """Return what a server does.  width, height: of a terminal; None: all of it."""
    view = view_of(status)
    lines = [*_server(view, target, width), *_attention(view.judgement, width, height)]
    for each in view.tables:
        found, omitted = _table(each, width), each.omitted
        if height is not None:
            # Datasets leave room for the clients, which come after them.
            room = (height - len(lines)) // (3 if each.name == "datasets" else 1)
            found = _limited(found, room, each.name, omitted)
        elif omitted:
            found.append(Line(f"and {omitted:,} {each.name} that are not listed"))
        lines += found
    if height is None:
        return lines
    return [line._replace(text=cut(line.text, width)) for line in lines[: max(0, height)]]


def _limited(lines: list[Line], most: int, what: str, omitted: int) -> list[Line]:
    """Return the first lines of a table, and how many there are besides; none if there is only room
    for its heading.
    """
    if len(lines) <= most and not omitted:
        return lines
    if most < _TABLE_LINES_MIN:
        return []
    kept = lines[: most - 1]
    left = len(lines) - len(kept) + omitted
    return [*kept, Line(f"and {left:,} more {what}")]


def _server(view: View, target: str, width: int | None) -> list[Line]:
    name = f"tokenfeed {view.version} at {words.printable(target)}"
    figures = (
        " ".join(filter(None, (each.word, each.value.text, each.of))) for each in view.figures
    )
    first = f"{name}   {view.health}   up {view.age}   {view.now}"
    lines = [Line(cut(first, width), view.level)]
    lines += [Line(text) for text in wrapped("   ".join(figures), width, 0)]
    sent = view.figures[0].value.line
    if sent is not None and (drawn := spark(sent, 60)):
        lines.append(Line(cut(drawn, width)))
    return lines


def _attention(judgement: Judgement, width: int | None, height: int | None) -> list[Line]:
    if not judgement.points:
        return []
    lines = [Line(""), Line("WHAT NEEDS ATTENTION", is_heading=True)]
    most = len(judgement.points) if height is None else max(1, height // 3)
    shown = 0
    for point in judgement.points:
        found = wrapped(f"{_MARKS[point.level]} {point.text}", width, 3)
        if shown and len(lines) - 2 + len(found) > most:
            break
        lines += [Line(text, point.level) for text in found]
        shown += 1
    left = len(judgement.points) - shown + judgement.points_omitted
    return [*lines, Line(f"   and {left:,} more")] if left else lines


def _table(found: Table, width: int | None) -> list[Line]:
    """Return the lines of a table, or of what stands in its place."""
    if not found.rows:
        return [Line(""), Line(found.empty)] if found.empty else []
    heading, *rows = table(found.columns, [_cells(found.columns, row) for row in found.rows], width)
    levels = [row.level for row in found.rows]
    return [Line(""), Line(heading, is_heading=True), *map(Line, rows, levels)]


def _cells(columns: Sequence[Column], row: Row) -> list[str]:
    texts = []
    for column, cell in zip(columns, row.cells, strict=True):
        text = cell.text if cell.line is None else spark(cell.line, _SPARK_COLUMNS)
        texts.append(f"{_MARKS[row.level]} {text}" if column.kind == "state" else text)
    return texts
