"""The picture of `tokenfeed plan`: the share of each source, by the tokens that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tokenfeed.client.feed.mixture.forecast import Forecast, tokens_before
from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest, WriteFailed
from tokenfeed.stream.stage import Stage

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

    begin, end = planned.first_sample, planned.asked_end_sample
    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    handles = _draw_shares(axes, planned)
    _draw_ends(axes, planned)
    axes.set_xlim(_tokens(planned, begin), _tokens(planned, end))
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

    names = {number: planned.stream.sources[number].dataset for number in planned.numbers}
    end = max(planned.end_sample, planned.going_on_end or planned.asked_end_sample)
    edges, shares = _steps(planned.going_on, planned.first_sample, end)
    tokens = [_tokens(planned, edge) for edge in edges]
    handles = []
    below = [0.0] * len(shares)
    for index, (label, members) in enumerate(_groups(names, edges, shares).items()):
        above = [
            base + sum(share.get(source, 0.0) for source in members)
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
            _tokens(planned, sample) for sample in (planned.end_sample, planned.asked_end_sample)
        )
        axes.axvspan(ended, right, color="white", alpha=0.6, linewidth=0)
        handles.insert(0, Patch(color="#eeeeee", label=" pale: if it goes on"))
    return handles


def _draw_ends(axes: Axes, planned: Forecast) -> None:
    """Mark where sources are exhausted."""
    ends = [
        (_tokens(planned, one.sample), planned.stream.sources[one.source].dataset)
        for one in planned.exhausted
        if one.sample >= planned.first_sample
    ]
    for at, _ in ends:
        axes.axvline(at, color="black", linewidth=1.2, linestyle="--")
    left, right = (
        _tokens(planned, sample) for sample in (planned.first_sample, planned.asked_end_sample)
    )
    marks = _marks(ends, right - left)
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(marks), list(marks.values()))
    if len(marks) > 1:
        top.tick_params("x", labelrotation=25)
        for mark in top.get_xticklabels():
            mark.set_horizontalalignment("left")


def _tokens(planned: Forecast, sample: int) -> float:
    """Return the tokens before a sample. A picture has no more digits than a float, and matplotlib
    takes no larger integers.
    """
    return float(tokens_before(planned.stream, sample))


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
    stages: Sequence[Stage], first: int, end: int
) -> tuple[list[int], list[dict[int, float]]]:
    """Return the samples between which shares are constant, and the shares of all sources there, by
    their numbers.

    first, end: samples.
    """
    edges: list[int] = []
    shares: list[dict[int, float]] = []
    for stage in stages:
        if stage.first_sample >= end:
            break
        if stage.first_sample <= first:
            edges, shares = [], []
        edges.append(max(first, stage.first_sample))
        size = stage.block_size
        shares.append({number: weight / size for number, weight in stage.weights.items()})
    return [*edges, end], shares


def _groups(
    names: Mapping[int, str], edges: Sequence[int], shares: Sequence[Mapping[int, float]]
) -> dict[str, list[int]]:
    """Return the sources that are drawn as one, by their label: the largest ones alone.

    names: of the sources, by their numbers.  edges, shares: as of `_steps`.
    """
    if len(names) <= _SOURCES_SHOWN + 1:
        return {name: [source] for source, name in names.items()}
    widths = [end - begin for begin, end in pairwise(edges)]
    sizes = {
        source: sum(share.get(source, 0.0) * w for share, w in zip(shares, widths, strict=True))
        for source in names
    }
    by_size = sorted(names, key=lambda source: -sizes[source])
    largest, others = sorted(by_size[:_SOURCES_SHOWN]), by_size[_SOURCES_SHOWN:]
    groups = {names[source]: [source] for source in largest}
    return groups | {f"{len(others)} others": others}


def _short(tokens: float) -> str:
    for unit, size in _UNITS:
        if tokens >= size:
            return f"{tokens / size:g}{unit}"
    return f"{tokens:g}"
