"""Tables and lines of a terminal: as wide as what is shown, and no wider than there is room."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from tokenfeed.commands.status.view import Column

_CELL_MAX = 40
_GAP = "  "
_BLOCKS = "▁▂▃▄▅▆▇█"


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
