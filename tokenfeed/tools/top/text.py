"""A status as lines of text: all of it, or what fits into a terminal, the worst first. Tables are
as wide as what is shown, and no wider than there is room.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from tokenfeed.commands.status import words
from tokenfeed.commands.status.attention import Judgement
from tokenfeed.commands.status.states import Level
from tokenfeed.commands.status.view import Column, Row, Table, View, view_of
from tokenfeed.v1 import status_pb2 as pb

_CELL_MAX = 40
_GAP = "  "
_BLOCKS = "▁▂▃▄▅▆▇█"
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


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return the heading and the rows.  width: how much room there is; None: enough."""
    cells = [[column.heading.upper() for column in columns], *rows]
    widths = [
        min(_CELL_MAX, max(columns_of(row[place]) for row in cells))
        for place in range(len(columns))
    ]
    shown = list(range(len(columns)))
    while (
        width is not None
        and len(shown) > 1
        and sum(widths[place] + len(_GAP) for place in shown) - len(_GAP) > width
    ):
        shown.remove(max(shown, key=lambda place: columns[place].rank))
    if width is not None and len(shown) == 1:
        widths[shown[0]] = min(width, widths[shown[0]])
    return [
        _GAP.join(_padded(row[place], widths[place], columns[place]) for place in shown).rstrip()
        for row in cells
    ]


def _padded(text: str, width: int, column: Column) -> str:
    text = cut(text, width)
    space = " " * (width - columns_of(text))
    return space + text if column.kind == "number" else text + space


def cut(text: str, width: int | None) -> str:
    """Return the beginning of a line that fits; it ends with "…" if something was cut."""
    if width is None or columns_of(text) <= width:
        return text
    taken = 0
    for place, sign in enumerate(text):
        taken += _columns_of_sign(sign)
        if taken > width - 1:
            return text[:place] + "…" if width > 0 else ""
    return text


def wrapped(text: str, width: int | None, indent: int) -> list[str]:
    """Return a text in lines that fit, broken at spaces; the second and later ones are indented."""
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if width is None or not line.strip() or columns_of(longer) <= width:
            line = longer
        else:
            lines.append(cut(line, width))
            line = " " * indent + word
    return [*lines, cut(line, width)]


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_columns_of_sign, text))


def _columns_of_sign(sign: str) -> int:
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def spark(second_bytes: Sequence[int], columns: int) -> str:
    """Draw the last minute in some columns, the latest second at the right end."""
    values = list(second_bytes)
    step = max(1, -(-60 // columns))
    sums = [sum(values[max(0, end - step) : end]) for end in range(len(values), 0, -step)][::-1]
    peak = max(sums, default=0)
    if not peak:
        return ""
    return "".join(_BLOCKS[min(7, 8 * value // peak)] for value in sums).rjust(60 // step)
