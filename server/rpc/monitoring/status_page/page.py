"""What fills the document of the status page, and the headers under which nothing can be loaded or
run that this package did not write. The template escapes every text of a view.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from tokenfeed.commands.status import words
from tokenfeed.commands.status.states import Level
from tokenfeed.commands.status.view import CLIENT_COLUMNS, DATASET_COLUMNS, Cell, view_of
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
    style, script = _style(), _asset("page.js")
    document = _template().render(
        view=view_of(status), style=style, script=script, refresh=_REFRESH_SECONDS
    )
    return Page(_headers(style, script), document.encode())


@cache
def _template() -> Template:
    """Return page.html. It escapes every text but our style, our script, and what is drawn."""
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {"mark": _MARKS.get, "kind": _CLASSES.get, "drawn": _drawn}
    return environment.from_string(_asset("page.html"))


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
    return Path(__file__).with_name(name).read_text("utf-8")


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


def _drawn(cell: Cell) -> str:
    """Return the drawing in a cell; nothing if it has none."""
    if cell.line is not None:
        return rate_line(cell.line)
    return "" if cell.share is None else bar(cell.share)


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
        f'role="img" aria-label="{label}"><title>{label}</title>{shapes}</svg>'
    )


def bar(share: float) -> str:
    """Draw a share of a whole, which is in [0, 1]; another one is drawn as the nearest that is."""
    width = 100.0 * min(1.0, max(0.0, share))
    shape = f'<rect class="used" x="0" width="{width:.0f}" height="8"/>' if width > 0 else ""
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f"{shape}</svg>"
    )
