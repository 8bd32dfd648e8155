"""A status as lines of text: all of it, or what fits into a terminal, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenfeed.commands.status import words
from tokenfeed.commands.status.attention import Judgement, StreamJudgement, health, judge
from tokenfeed.commands.status.states import Level
from tokenfeed.v1 import status_pb2 as pb

from .columns import Column, cut, spark, table, wrapped

_MARKS = {Level.PROBLEM: "!!", Level.WARNING: "! ", Level.NOTICE: "  "}
_SPARK_COLUMNS = 20
_TABLE_LINES_MIN = 4
"""An empty line, the heading, a row, and how many there are besides."""
_DATASET_COLUMNS = (
    Column("DATASET", 0),
    Column("STATE", 1),
    Column("ROWS/S", 4, is_right=True),
    Column("BYTES/S", 2, is_right=True),
    Column("LAST MINUTE", 5),
    Column("TOKENS", 6, is_right=True),
    Column("SIZE", 3, is_right=True),
    Column("IN MEMORY", 3, is_right=True),
    Column("FORMAT", 7),
    Column("FINGERPRINT", 8),
)
_STREAM_COLUMNS = (
    Column("STATE", 0),
    Column("CLIENT", 0),
    Column("RANK", 1, is_right=True),
    Column("READS", 5),
    Column("ORDER", 7),
    Column("TRAINER AT", 3, is_right=True),
    Column("SENT TO", 4, is_right=True),
    Column("TOKENS/S", 1, is_right=True),
    Column("WAITS FOR US", 2, is_right=True),
    Column("WE WAIT", 2, is_right=True),
    Column("IDLE", 1, is_right=True),
    Column("AGE", 6, is_right=True),
    Column("ADDRESS", 8),
)


class Line(NamedTuple):
    """A line.  level: how bad what it says is.  is_heading: of a table."""

    text: str
    level: Level = Level.NOTICE
    is_heading: bool = False


def status_lines(
    status: pb.GetStatusResponse, target: str, width: int | None = None, height: int | None = None
) -> list[Line]:
    """Return what a server does.  width, height: of a terminal; None: all of it."""
    judgement = judge(status)
    lines = [*_server(status, target, width), *_attention(judgement, width, height)]
    datasets = _datasets(status, width)
    if height is not None:
        datasets = _limited(datasets, (height - len(lines)) // 3, "datasets")
    lines += datasets
    streams = _streams(judgement.streams, width)
    omitted = status.streams_omitted
    if height is None:
        more = [Line(f"and {omitted:,} clients that are not listed")] if omitted else []
        return [*lines, *streams, *more]
    lines += _limited(streams, height - len(lines), "clients", omitted)
    return [line._replace(text=cut(line.text, width)) for line in lines[: max(0, height)]]


def _limited(lines: list[Line], most: int, what: str, omitted: int = 0) -> list[Line]:
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


def _server(status: pb.GetStatusResponse, target: str, width: int | None) -> list[Line]:
    level, word = health(status)
    name = f"tokenfeed {words.printable(status.server_version)} at {words.printable(target)}"
    memory = f"{words.size(status.anonymous_bytes)} of {words.size(status.memory_limit_bytes)}"
    refused = sum(each.count for each in status.refusals)
    figures = (
        f"sends {words.size(status.bytes_per_second)}/s",
        f"streams {status.streams_open:,} of about {status.streams_max:,}",
        f"memory {memory}",
        f"threads {status.threads:,}",
        f"refused {refused:,}",
        f"cut off {status.evictions:,}",
    )
    first = f"{name}   {word}   up {words.age(status)}   {words.time(status.now_ms)}"
    lines = [Line(cut(first, width), level)]
    lines += [Line(text) for text in wrapped("   ".join(figures), width, 0)]
    if drawn := spark(status.second_bytes, 60):
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


def _datasets(status: pb.GetStatusResponse, width: int | None) -> list[Line]:
    found = sorted(status.datasets, key=lambda dataset: not dataset.lost)
    rows = [_dataset(dataset) for dataset in found]
    levels = [Level.PROBLEM if dataset.lost else Level.NOTICE for dataset in found]
    return _with_levels(table(_DATASET_COLUMNS, rows, width), levels)


def _dataset(dataset: pb.DatasetStatus) -> tuple[str, ...]:
    known = dataset.HasField("resident_share")
    return (
        words.printable(dataset.name),
        words.state_of(dataset),
        words.amount(dataset.rows_per_second),
        f"{words.size(dataset.token_bytes_per_second)}/s",
        spark(dataset.second_bytes, _SPARK_COLUMNS),
        words.amount(dataset.token_count),
        words.size(dataset.size_bytes),
        words.share(dataset.resident_share) if known else "unknown",
        words.printable(f"{dataset.format}, {dataset.dtype}"),
        dataset.fingerprint.hex()[:12],
    )


def _streams(streams: Sequence[StreamJudgement], width: int | None) -> list[Line]:
    if not streams:
        return [Line(""), Line("No client has read yet.")]
    rows = [_stream(seen) for seen in streams]
    return _with_levels(table(_STREAM_COLUMNS, rows, width), [seen.state.level for seen in streams])


def _stream(seen: StreamJudgement) -> tuple[str, ...]:
    stream = seen.status
    return (
        f"{_MARKS[seen.state.level]} {seen.state.label}",
        words.printable(stream.client_name) or "no name",
        f"{stream.rank:,} of {stream.world_size:,}",
        words.data_of(stream),
        words.settings_of(stream),
        *words.progress_of(stream),
        words.address(stream.address),
    )


def _with_levels(lines: Sequence[str], levels: Sequence[Level]) -> list[Line]:
    heading, *rows = lines
    return [Line(""), Line(heading, is_heading=True), *map(Line, rows, levels)]
