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


def bar(share: float) -> str:
    """Draw a share of a whole, which is in [0, 1]; another one is drawn as the nearest that is."""
    width = 100.0 * min(1.0, max(0.0, share))
    shape = f'<rect class="used" x="0" width="{width:.0f}" height="8"/>' if width > 0 else ""
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f"{shape}</svg>"
    )
