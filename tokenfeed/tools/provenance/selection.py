"""Which rows tokenfeed explain is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from tokenfeed.client.feed.history import History, Run
from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END, require_range

from .run_context import RunContext
from .runs import future, places_of, rows_of_step
from .words import step_place

Row = dict[str, Any]
"""A row to explain, as its answer begins: "rank", "row", None for a sample that is of no step; and
"sample", or "is_padding"."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that are asked for.

    title: what they are.  step, run: None for a single sample.  left_out: more rows that are not
    explained.
    """

    title: str
    rows: Sequence[Row]
    left_out: int = 0
    step: int | None = None
    run: Run | None = None


def selected(context: RunContext, arguments: argparse.Namespace) -> Selection:
    """Return the rows that the options select.  Raises: InvalidRequest."""
    if arguments.sample is None:
        return _of_step(context, arguments)
    for name in ("step", "rank", "row"):
        if getattr(arguments, name) is not None:
            raise InvalidRequest(name, "is given together with --sample; pass one of them")
    require_range("sample", arguments.sample, 0, SAMPLE_END)
    title = f"sample {arguments.sample:,}"
    if not context.is_assumed:
        title += f", {_when(context, arguments.sample)}"
    return Selection(title, [{"rank": None, "row": None, "sample": arguments.sample}])


def _when(context: RunContext, sample: int) -> str:
    """Return in words when a sample was read."""
    places = places_of(context.history, np.array([sample]))[1:].T.tolist()
    if read := [step_place(*place) for place in places]:
        return f"read at {' and '.join(read)}"
    is_unknown = not context.is_complete and sample < max(
        context.sample, context.history.end_sample
    )
    return "unknown whether it was read" if is_unknown else "not read so far"


def _of_step(context: RunContext, arguments: argparse.Namespace) -> Selection:
    step, history, when = arguments.step, context.history, ""
    if context.is_assumed:
        if step is None:
            raise InvalidRequest("step", "is missing; pass it, --sample, or --state")
        for name in ("batch_size", "world_size"):
            if getattr(arguments, name) is None:
                raise InvalidRequest(
                    name, "is missing; a step depends on it, so pass it or --state"
                )
    elif step is None:
        if not context.steps:
            raise InvalidRequest("state", "has no step; pass --sample")
        step = context.steps - 1
    elif step >= context.steps:
        history = future(
            history,
            context.sample,
            context.stream,
            batch_size=arguments.batch_size,
            world_size=arguments.world_size,
        )
        when = " still to come, if the run goes on as it is"
    # Of one row: the step may have more than fit into memory.
    run = rows_of_step(history, step, arguments.rank or 0, arguments.row or 0).run
    rows, left_out = _rows_of_step(history, step, run, arguments)
    sizes = f"{run.world_size:,} x {run.batch_size:,} rows"
    return Selection(f"step {step:,}{when}: {sizes}", rows, left_out, step, run)


def _rows_of_step(
    history: History, step: int, run: Run, arguments: argparse.Namespace
) -> tuple[list[Row], int]:
    """Return the first rows of a step, and how many are left out. One rank after the other: a step
    may have more rows than fit into memory.
    """
    ranks = (
        range(run.world_size) if arguments.rank is None else range(arguments.rank, run.world_size)
    )
    rank_count = run.world_size if arguments.rank is None else 1
    total = rank_count * (run.batch_size if arguments.row is None else 1)
    rows: list[Row] = []
    for rank in ranks[:rank_count]:
        if len(rows) >= arguments.rows_max:
            break
        found = rows_of_step(history, step, rank, arguments.row)
        room = slice(arguments.rows_max - len(rows))
        columns = (each[room].tolist() for each in (found.row, found.sample, found.is_padding))
        for row, sample, is_padding in zip(*columns, strict=True):
            what = {"is_padding": True} if is_padding else {"sample": sample}
            rows.append({"rank": rank, "row": row, **what})
    return rows, total - len(rows)


def consecutive(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows in groups of consecutive samples, or of padding."""

    def since(place: tuple[int, Row]) -> int | None:
        index, row = place
        return row["sample"] - index if "sample" in row else None

    for _, group in groupby(enumerate(rows), since):
        yield [row for _, row in group]
