"""The picture of `tokenfeed plan`: the share of each source, by the tokens that were read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest, WriteFailed
from tokenfeed.stream.stages import AskedStage, scheduled

from ...feed.mixture.forecast import Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

_SOURCES_SHOWN = 9
"""The others are drawn as one: more colors could not be told apart."""
_COLOR_OF_OTHERS = "#bbbbbb"
_BORDERS_SHOWN = 60
_MARKS_MAX = 24
_NAMES_SHOWN = 2
_INCHES, _DOTS_PER_INCH = (10.0, 5.0), 150
_UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def require_png(path: str) -> None:
    """Raise InvalidRequest unless a picture can be drawn into a file of this name."""
    if not path.lower().endswith(".png"):
        raise InvalidRequest("--plot", f"{path} does not end in .png")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InvalidRequest("--plot", missing(error, "plot")) from None


def draw(planned: Forecast, path: str) -> None:
    """Draw a forecast into a PNG file, in place of one that exists.  Raises: WriteFailed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    length = planned.spec.context_length
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    handles = _draw_shares(axes, planned)
    _draw_ends(axes, planned)
    axes.set_xlim(float(planned.first_sample * length), float(planned.asked_end_sample * length))
    axes.set_ylim(0, 1)
    axes.set_xlabel("tokens")
    axes.set_ylabel("share of the samples")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(handles=handles[::-1], loc="outside right upper", frameon=False)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise WriteFailed(path, f"cannot be written: {error.strerror}") from None


def _draw_shares(axes: Axes, planned: Forecast) -> list[Patch]:
    """Draw the shares of the mixture; paler beyond its end, those of the one that goes on.

    Returns: what the legend has.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    names = [source.dataset for source in planned.spec.sources]
    end = max(planned.end_sample, planned.going_on_end or planned.asked_end_sample)
    edges, shares = _steps(planned.going_on, planned.first_sample, end)
    # A picture has no more digits than a float, and matplotlib takes no larger integers.
    tokens = [float(edge * planned.spec.context_length) for edge in edges]
    handles = []
    below = [0.0] * len(shares)
    for index, (label, members) in enumerate(_groups(names, edges, shares).items()):
        above = [
            base + sum(share[source] for source in members)
            for base, share in zip(below, shares, strict=True)
        ]
        color = colormaps["tab10"](index) if len(members) == 1 else _COLOR_OF_OTHERS
        lower, upper = [*below, below[-1]], [*above, above[-1]]
        axes.fill_between(tokens, lower, upper, step="post", color=color, linewidth=0)
        # matplotlib leaves out labels that begin with "_".
        handles.append(Patch(color=color, label=f" {label}"))
        below = above
    ends = {one.sample for one in planned.exhausted}
    inner = zip(tokens[1:-1], edges[1:-1], strict=True)
    borders = [at for at, edge in inner if edge not in ends]
    for border in borders if len(borders) <= _BORDERS_SHOWN else ():
        axes.axvline(border, color="white", linewidth=1.2)
    if planned.end_sample < planned.asked_end_sample:
        ended, right = (
            float(sample * planned.spec.context_length)
            for sample in (planned.end_sample, planned.asked_end_sample)
        )
        axes.axvspan(ended, right, color="white", alpha=0.6, linewidth=0)
        handles.insert(0, Patch(color="#eeeeee", label=" pale: if it goes on"))
    return handles


def _draw_ends(axes: Axes, planned: Forecast) -> None:
    """Mark where sources are exhausted."""
    length = planned.spec.context_length
    ends = [
        (float(one.sample * length), planned.spec.sources[one.source].dataset)
        for one in planned.exhausted
        if one.sample >= planned.first_sample
    ]
    for at, _ in ends:
        axes.axvline(at, color="black", linewidth=1.2, linestyle="--")
    marks = _marks(ends, float((planned.asked_end_sample - planned.first_sample) * length))
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(marks), list(marks.values()))
    if len(marks) > 1:
        top.tick_params("x", labelrotation=25)
        for mark in top.get_xticklabels():
            mark.set_horizontalalignment("left")


def _marks(ends: Sequence[tuple[float, str]], width: float) -> dict[float, str]:
    """Return what to write above the picture, by tokens: neighbors share a mark.

    ends: where sources are exhausted, in order.  width: of the picture, in tokens.
    """
    found: list[tuple[float, list[str]]] = []
    for tokens, name in ends:
        if found and tokens - found[-1][0] < width / _MARKS_MAX:
            found[-1][1].append(name)
        else:
            found.append((tokens, [name]))
    return {tokens: f"{_listed(names)} exhausted" for tokens, names in found}


def _listed(names: Sequence[str]) -> str:
    left = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _steps(
    asked: Sequence[AskedStage], first: int, end: int
) -> tuple[list[int], list[list[float]]]:
    """Return the samples between which shares are constant, and the shares of all sources there.

    first, end: samples.
    """
    stages = scheduled(asked, len(asked[0].weights))
    edges: list[int] = []
    shares: list[list[float]] = []
    for stage in stages:
        if stage.first_sample >= end:
            break
        if stage.first_sample <= first:
            edges, shares = [], []
        edges.append(max(first, stage.first_sample))
        shares.append([weight / stage.block_size for weight in stage.weights])
    return [*edges, end], shares


def _groups(
    names: Sequence[str], edges: Sequence[int], shares: Sequence[Sequence[float]]
) -> dict[str, list[int]]:
    """Return the sources that are drawn as one, by their label: the largest ones alone."""
    widths = [end - begin for begin, end in pairwise(edges)]
    sizes = [
        sum(share[source] * width for share, width in zip(shares, widths, strict=True))
        for source in range(len(names))
    ]
    by_size = sorted(range(len(names)), key=lambda source: -sizes[source])
    if len(names) <= _SOURCES_SHOWN + 1:
        return {names[source]: [source] for source in range(len(names))}
    largest = sorted(by_size[:_SOURCES_SHOWN])
    others = by_size[_SOURCES_SHOWN:]
    groups = {names[source]: [source] for source in largest}
    return groups | {f"{len(others)} others": others}


def _short(tokens: float) -> str:
    for unit, size in _UNITS:
        if tokens >= size:
            return f"{tokens / size:g}{unit}"
    return f"{tokens:g}"
