"""Which rows tokenfeed explain is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import SAMPLE_END, require_range

from ...feed.history import History, Run
from ...provenance.runs import by_stream, future, places_of, rows_of_step
from .asked import AskedRun
from .words import counted, escaped, step_place


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row to explain.  rank, row: None for a sample that is of no step."""

    rank: int | None
    row: int | None
    sample: int
    is_padding: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that are asked for.

    parts: their stream.  title: what they are.  step, run: None for a single sample.  left_out:
    more rows that are not explained.
    """

    parts: StreamParts
    title: str
    rows: Sequence[Wanted]
    left_out: int = 0
    step: int | None = None
    run: Run | None = None


def selected(asked: AskedRun, arguments: argparse.Namespace) -> Selection:
    """Return the rows that the options select.  Raises: InvalidRequest."""
    if arguments.sample is None:
        return _of_step(asked, arguments)
    for name in ("step", "rank", "row"):
        if getattr(arguments, name) is not None:
            raise InvalidRequest(name, "is given together with --sample; pass one of them")
    require_range("sample", arguments.sample, 0, SAMPLE_END)
    parts, title = asked.parts, f"sample {arguments.sample:,}"
    if not asked.is_assumed:
        parts, read = _of_sample(asked, arguments.sample)
        title += f", {read}"
    return Selection(parts, title, [Wanted(None, None, arguments.sample)])


def _of_sample(asked: AskedRun, sample: int) -> tuple[StreamParts, str]:
    """Return the stream that a sample is of, and in words when it was read. It is the stream of the
    next batch, unless only earlier ones of the run have read a sample of this number: then it is
    the last of these.
    """
    read: dict[StreamParts, list[str]] = {}
    for parts in (asked.parts, *reversed(by_stream(asked.history))):
        if parts not in read:
            places = places_of(asked.history, parts, np.array([sample]))
            each = zip(places.step.tolist(), places.rank.tolist(), places.row.tolist(), strict=True)
            read[parts] = [step_place(*place) for place in each]
    having = [parts for parts, at in read.items() if at]
    if not having:
        reach = max([asked.sample, *(run.end_sample for run in asked.history.runs)])
        is_unknown = not asked.is_complete and sample < reach
        return asked.parts, "unknown whether it was read" if is_unknown else "not read so far"
    words = f"read at {' and '.join(read[having[0]])}"
    if having[0] != asked.parts:
        words += f" in {_stream(having[0])}, which the run has left"
    for other in having[1:]:
        words += f"; that of {_stream(other)} was read at {' and '.join(read[other])}"
    return having[0], words


def _stream(parts: StreamParts) -> str:
    """Return an earlier stream of a run in words."""
    redacted = f", {counted(len(parts.redactions), 'redaction')}" if parts.redactions else ""
    name = f"{escaped(parts.order)}, seed {parts.seed}, T={parts.context_length:,}{redacted}"
    return f"an earlier stream ({name})"


def _of_step(asked: AskedRun, arguments: argparse.Namespace) -> Selection:
    step, history, when = arguments.step, asked.history, ""
    if asked.is_assumed:
        if step is None:
            raise InvalidRequest("step", "is missing; pass it, --sample, or --state")
        for name in ("batch_size", "world_size"):
            if getattr(arguments, name) is None:
                raise InvalidRequest(
                    name, "is missing; a step depends on it, so pass it or --state"
                )
    elif step is None:
        if not asked.steps:
            raise InvalidRequest("state", "has no step; pass --sample")
        step = asked.steps - 1
    elif step >= asked.steps:
        history = future(
            history,
            asked.parts,
            asked.sample,
            batch_size=arguments.batch_size,
            world_size=arguments.world_size,
        )
        when = " still to come, if the run goes on as it is"
    # Of one row: the step may have more than fit into memory.
    run = rows_of_step(history, step, arguments.rank or 0, arguments.row or 0).run
    rows, left_out = _rows_of_step(history, step, run, arguments)
    sizes = f"{run.world_size:,} x {run.batch_size:,} rows"
    return Selection(run.spec, f"step {step:,}{when}: {sizes}", rows, left_out, step, run)


def _rows_of_step(
    history: History, step: int, run: Run, arguments: argparse.Namespace
) -> tuple[list[Wanted], int]:
    """Return the first rows of a step, and how many are left out. One rank after the other: a step
    may have more rows than fit into memory.
    """
    ranks = (
        range(run.world_size) if arguments.rank is None else range(arguments.rank, run.world_size)
    )
    rank_count = run.world_size if arguments.rank is None else 1
    total = rank_count * (run.batch_size if arguments.row is None else 1)
    rows: list[Wanted] = []
    for rank in ranks[:rank_count]:
        if len(rows) >= arguments.rows_max:
            break
        found = rows_of_step(history, step, rank, arguments.row)
        room = slice(arguments.rows_max - len(rows))
        columns = (each[room].tolist() for each in (found.row, found.sample, found.is_padding))
        rows += [Wanted(rank, *values) for values in zip(*columns, strict=True)]
    return rows, total - len(rows)


def consecutive(rows: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Yield the rows in groups of consecutive samples, or of padding."""
    group: list[Wanted] = []
    for row in rows:
        if group and (
            row.is_padding != group[-1].is_padding
            or (not row.is_padding and row.sample != group[-1].sample + 1)
        ):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
