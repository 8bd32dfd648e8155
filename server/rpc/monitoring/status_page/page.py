"""The document of the status page, and the headers under which nothing can be loaded or run that
this module did not write. Every text of a view is escaped here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path

from tokenfeed.commands.status import words
from tokenfeed.commands.status.attention import Judgement
from tokenfeed.commands.status.states import Level
from tokenfeed.commands.status.view import (
    CLIENT_COLUMNS,
    DATASET_COLUMNS,
    Cell,
    Column,
    Figure,
    Row,
    Table,
    View,
    view_of,
)
from tokenfeed.v1 import status_pb2 as pb

from ....runtime.http_server import Page

_REFRESH_SECONDS = 5
"""Without JavaScript. The script has a time of its own."""
_MARKS = {Level.PROBLEM: "✖", Level.WARNING: "▲", Level.NOTICE: ""}
"""The colors alone would not be enough."""
_SECONDS = 60
_HEIGHT = 100
_CLASSES = {Level.PROBLEM: "problem", Level.WARNING: "warning", Level.NOTICE: "notice"}


def status_page(status: pb.GetStatusResponse) -> Page:
    """Return the page."""
    view = view_of(status)
    style, script = _style(), _asset("page.js")
    title = "tokenfeed"
    if view.judgement.points:
        title = f"({len(view.judgement.points) + view.judgement.points_omitted}) {title}"
    document = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<noscript><meta http-equiv="refresh" content="{_REFRESH_SECONDS}"></noscript>
<style>{style}</style></head>
<body><p id="stale" role="alert" hidden></p>
<main>{_header(view)}{_attention(view.judgement)}
<dl class="figures">{"".join(map(_figure, view.figures))}</dl>
{"".join(map(_section, view.tables))}{_meanings(view.tables)}</main>
<script>{script}</script></body></html>
"""
    return Page(_headers(style, script), document.encode())


@cache
def _style() -> str:
    """Return the style. On a narrow screen each row is a card, and its cells have the headings."""
    labels = "".join(
        f'.{name} td:nth-child({place})::before {{ content: "{column.heading}"; }}\n'
        for name, columns in (("datasets", DATASET_COLUMNS), ("clients", CLIENT_COLUMNS))
        for place, column in enumerate((one for one in columns if one.below is None), 1)
    )
    return f"{_asset('page.css')}@media (max-width: 760px) {{\n{labels}}}\n"


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


@cache
def _headers(style: str, script: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _hash(text: str) -> str:
    """Return a hash source of CSP, by which the browser knows our own style and script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _header(view: View) -> str:
    mark = _MARKS[view.level] or "●"
    return (
        f'<header><h1>tokenfeed <span class="version">{escape(view.version)}</span></h1>'
        f'<p><strong class="health {_CLASSES[view.level]}">{mark} {escape(view.health)}</strong> '
        f"<span>up {view.age}, since {view.started}</span> "
        f'<span>as of <time id="now">{view.now}</time></span></p></header>'
    )


def _attention(judgement: Judgement) -> str:
    points = "".join(
        f'<li class="{_CLASSES[point.level]}"><span class="mark" aria-hidden="true">'
        f"{_MARKS[point.level]}</span> <bdi>{escape(point.text)}</bdi></li>"
        for point in judgement.points
    )
    if judgement.points_omitted:
        points += f'<li class="notice">And {judgement.points_omitted:,} more.</li>'
    shown = f"<ul>{points}</ul>" if points else '<p class="quiet">Nothing.</p>'
    kind = _CLASSES[max((point.level for point in judgement.points), default=Level.NOTICE)]
    return (
        f'<section class="attention {kind}" aria-labelledby="attention">'
        f'<h2 id="attention">What needs attention</h2>{shown}</section>'
    )


def _figure(figure: Figure) -> str:
    value, more = figure.value, figure.of or figure.since
    of = f" <small>{escape(more)}</small>" if more else ""
    return f"<div><dt>{figure.name}</dt><dd>{escape(value.text)}{of}{_drawn(value)}</dd></div>"


def _section(table: Table) -> str:
    """Return a table under its title, if there is anything to say."""
    if not table.rows:
        empty = f'<p class="quiet">{table.empty}</p>'
        return f"<section><h2>{table.title}</h2>{empty}</section>" if table.empty else ""
    total = omitted = ""
    if table.name == "clients":
        total = f" <small>{len(table.rows) + table.omitted:,}</small>"
    if table.omitted:
        omitted = (
            f'<p class="omitted">{table.omitted:,} more are not listed: '
            f"these {len(table.rows):,} were sent rows last.</p>"
        )
    return f"<section><h2>{table.title}{total}</h2>{omitted}{_table(table)}</section>"


def _table(table: Table) -> str:
    """Return a table that scrolls by itself where it is too wide."""
    heads = "".join(
        f'<th scope="col"{_class(column)} title="{escape(column.meaning)}">'
        f"{escape(column.heading)}</th>"
        for column in table.columns
        if column.below is None
    )
    rows = "".join(_row(table.columns, row) for row in table.rows)
    return (
        f'<div class="table" role="region" aria-label="{table.name}" tabindex="0">'
        f'<table class="{table.name}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(columns: Sequence[Column], row: Row) -> str:
    cells: list[str] = []
    for column, cell in zip(columns, row.cells, strict=True):
        text = escape(cell.text)
        if column.below is not None:
            cells[-1] += f"<small>{column.below}{text}</small>"
            continue
        if column.kind in ("state", "status"):
            text = f"{_MARKS[row.level]} {text}"
        if cell.title:
            text = f'<span title="{escape(cell.title)}">{text}</span>'
        drawn = _drawn(cell)
        cells.append(f"<td{_class(column)}>{drawn}{' ' * bool(drawn)}{text}")
    return f'<tr class="{_CLASSES[row.level]} {row.kind}">{"</td>".join(cells)}</td></tr>'


def _drawn(cell: Cell) -> str:
    if cell.line is not None:
        return rate_line(cell.line)
    return "" if cell.share is None else bar(cell.share)


def _class(column: Column) -> str:
    return f' class="{column.kind}"' if column.kind else ""


def _meanings(tables: Sequence[Table]) -> str:
    lists = "".join(
        f"<h3>{table.title}</h3><dl>{_terms(table.columns)}</dl>" for table in tables if table.rows
    )
    return (
        '<details id="meanings"><summary>What the columns mean</summary>'
        f'<div class="meanings">{lists}</div></details>'
    )


def _terms(columns: Sequence[Column]) -> str:
    return "".join(
        f"<dt>{escape(each.heading)}</dt><dd>{escape(each.meaning)}</dd>" for each in columns
    )


def rate_line(second_bytes: Sequence[int]) -> str:
    """Draw the bytes of each of the last seconds. The latest one is at the right end."""
    values = second_bytes[-_SECONDS:]
    peak = max(values, default=0)
    label = "nothing was sent yet"
    shapes = ""
    if values:
        label = f"the last {len(values)} s: {words.size(peak)}/s at most"
        first = _SECONDS - len(values)
        points = [
            f"{first + place},{_HEIGHT - (_HEIGHT - 4) * value // max(1, peak)}"
            for place, value in enumerate(values)
        ]
        area = [f"{first},{_HEIGHT}", *points, f"{_SECONDS - 1},{_HEIGHT}"]
        shapes = f'<polygon points="{" ".join(area)}"/><polyline points="{" ".join(points)}"/>'
    return (
        f'<svg class="line" viewBox="0 0 {_SECONDS - 1} {_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}"><title>{escape(label)}</title>{shapes}</svg>'
    )


def bar(share: float) -> str:
    """Draw a share of a whole, which is in [0, 1]; another one is drawn as the nearest that is."""
    width = 100.0 * min(1.0, max(0.0, share))
    shape = f'<rect class="used" x="0" width="{width:.0f}" height="8"/>' if width > 0 else ""
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f"{shape}</svg>"
    )
