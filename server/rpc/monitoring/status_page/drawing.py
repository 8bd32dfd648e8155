"""Lines and bars of the status page, as SVG without a style of its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tokenfeed.commands.status import words

_SECONDS = 60
_HEIGHT = 100


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


def bar(*shares: tuple[str, float]) -> str:
    """Draw shares of a whole, side by side.  shares: (class, share in [0, 1])."""
    shapes = []
    begin = 0.0
    for kind, share in shares:
        width = min(100.0 * max(0.0, share), 100.0 - begin)
        if width > 0:
            shapes.append(f'<rect class="{kind}" x="{begin:.0f}" width="{width:.0f}" height="8"/>')
        begin += width
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(shapes)}</svg>"
    )
