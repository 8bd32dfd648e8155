"""Numbers and names of a status as a person reads them, for a page and for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from ...v1 import status_pb2 as pb
from ..printable import printable as escaped

NAME_SHOWN = 60
"""Characters of a name that are shown at most."""
_SPANS_SHOWN = 6
_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))


def size(byte_count: float) -> str:
    """Return a number of bytes, such as "1.46 GiB"."""
    return _scaled(byte_count, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"))


def amount(number: float) -> str:
    """Return a number of rows or tokens, or a rate of them, such as "1.46 M"."""
    return _scaled(number, 1000.0, ("", " k", " M", " G", " T", " P", " E"))


def _scaled(number: float, base: float, units: Sequence[str]) -> str:
    """Return a number with three digits and its unit."""
    place = 0
    # 999.5 would be shown as 1000.
    while number >= base - 0.5 and place < len(units) - 1:
        number /= base
        place += 1
    is_whole = place == 0 and float(number).is_integer()
    digits = 0 if is_whole or number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f}{units[place]}"


def share(part: float) -> str:
    """Return a share in [0, 1] as a percentage; only all of it is 100 %, and only nothing 0 %."""
    if 0.0 < part < 0.01:
        return "<1 %"
    return f"{100 * part:.0f} %" if part >= 1.0 else f"{min(99, round(100 * part))} %"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as "3 h 5 min"."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    left = round(seconds)
    for unit, length, smaller, smaller_length in _UNITS:
        if left >= length:
            rest = left % length // smaller_length
            return f"{left // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{left} s"


def printable(text: str, most: int = NAME_SHOWN) -> str:
    """Return text in which nothing acts on what shows it: the signs that cannot be printed, among
    them those that turn the direction of writing, become U+FFFD; it is cut after `most` signs.
    """
    return escaped(text, most, mark="\ufffd")


def address(peer: str) -> str:
    """Return the address of a client as people write it: "10.0.0.7:41234"."""
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return "Unix socket"
    return printable(rest.replace("%5B", "[").replace("%5D", "]") or peer)


def time(milliseconds: int) -> str:
    """Return a time since 1970 as date and time."""
    try:
        found = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
    return f"{found:%Y-%m-%d %H:%M:%S} UTC"


def age(status: pb.GetStatusResponse) -> str:
    """Return for how long a server has been running."""
    return duration((status.now_ms - status.started_ms) / 1000)


def is_cold(dataset: pb.DatasetStatus) -> bool:
    """Return whether its reads wait for storage: they cannot, if all of it is in memory."""
    in_memory = dataset.resident_share if dataset.HasField("resident_share") else 0.0
    return dataset.cold and in_memory < 0.99 and not dataset.lost


def state_of(dataset: pb.DatasetStatus) -> str:
    """Return whether a dataset is served, and what is being done with it."""
    found = [f"lost: {printable(dataset.lost, 300)}"] if dataset.lost else []
    found += [f"makes {printable(work.what, 100)}: {share(work.share)}" for work in dataset.making]
    if dataset.HasField("warm_up_share") and dataset.warm_up_share < 1.0 and not dataset.lost:
        found.append(f"warm-up: {share(dataset.warm_up_share)} read")
    if is_cold(dataset) and dataset.rows_per_second > 0:
        found.append("reads wait for storage")
    return "; ".join(found) or "served"


def data_of(stream: pb.StreamStatus) -> str:
    """Return what a stream reads: its dataset, or those of its mixture."""
    names = ", ".join(printable(name) for name in stream.datasets[:3])
    more = len(stream.datasets) - 3 + stream.datasets_omitted
    names += f" and {more:,} more" if more > 0 else ""
    return f"mixture of {names}" if stream.order.startswith("mixture-") else names


def settings_of(stream: pb.StreamStatus) -> str:
    """Return order, context length and batch size of a stream."""
    return f"{printable(stream.order)} T={stream.context_length} B={stream.batch_size}"


def ranks(spans: Sequence[Span], world_size: int) -> str:
    """Return some ranks of a run, such as "ranks 1 to 3 and 5 of 8".  spans: as of `spans_of`."""
    shown = []
    for first, last in spans[:_SPANS_SHOWN]:
        ends = [f"{first:,}", f"{last:,}"]
        if last - first < 2:
            shown += ends[: last - first + 1]
        else:
            shown.append(" to ".join(ends))
    if len(spans) > _SPANS_SHOWN:
        shown.append(f"{count_of(spans[_SPANS_SHOWN:]):,} others")
    word = "rank" if count_of(spans) == 1 else "ranks"
    return f"{word} {listing(shown)} of {world_size:,}"


def listing(parts: Sequence[str]) -> str:
    """Return "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


class Span(NamedTuple):
    """Ranks without a gap.  last: is one of them."""

    first: int
    last: int


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Return ranks as spans, in their order."""
    spans: list[Span] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1].last + 1:
            spans[-1] = Span(spans[-1].first, number)
        else:
            spans.append(Span(number, number))
    return spans


def absent(spans: Sequence[Span], world_size: int) -> list[Span]:
    """Return the spans of the other ranks of a run. Takes the time of the ranks that are there."""
    begins = [0, *(span.last + 1 for span in spans)]
    ends = [*(min(span.first, world_size) for span in spans), world_size]
    gaps = zip(begins, ends, strict=True)
    return [Span(begin, end - 1) for begin, end in gaps if begin < end]


def count_of(spans: Iterable[Span]) -> int:
    """Return how many ranks these are."""
    return sum(last - first + 1 for first, last in spans)
