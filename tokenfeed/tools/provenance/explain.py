"""tokenfeed explain: where the rows of a step come from, and what they say."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.history import Run
from tokenfeed.client.feed.named import named_stage
from tokenfeed.client.feed.options import PREFETCH_BYTES
from tokenfeed.client.runtime.counters import Counters
from tokenfeed.client.source.open_source import open_to_look
from tokenfeed.commands.decoding import decoder
from tokenfeed.commands.output import require_stdout
from tokenfeed.errors import BadFrame, Deleted, InvalidRequest
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.v1 import provenance_pb2 as pb

from .run_context import ROWS_END, RunContext, read_run
from .runs import Segment, StepRow, future, places_of, rows_of_step
from .target import QUESTION_SECONDS, Target, request_of
from .words import DELETED, counted, escaped, pairs, printable_errors, span, step_place

REDACTED = "[redacted]"
"""What is printed in place of tokens."""

_RANGES_SHOWN = 50
"""Of a row; --json has all."""

Decode = Callable[[Sequence[int]], str]
Tokens = npt.NDArray[np.unsignedinteger]
Row = dict[str, Any]
"""A row to explain, as its answer begins: "rank", "row", None for a sample that is of no step; and
"sample", or "is_padding"."""


def run_explain(arguments: argparse.Namespace) -> None:
    """Print where rows come from."""
    require_stdout()
    require_range("rows_max", arguments.rows_max, 1, ROWS_END)
    decode = None if arguments.tokenizer is None else decoder(arguments.tokenizer)
    with printable_errors(), closing(Target(arguments.target)) as target:
        context = read_run(arguments, target)
        chosen = selected(context, arguments)
        explained = _explained(context, chosen, decode)
        if arguments.json:
            print(json.dumps(_plain(context, chosen, list(explained))))
            return
        stages = _stages(context, chosen)
        print(f"{chosen.title}, {context.words}")
        for record in explained:
            print("\n".join(_lines(record)))
        for stage in stages:
            for name, tokens in stage["left_out_tokens"].items():
                begin = f"rows of {stage['context_length']:,} tokens began at sample"
                count = "an unknown number of" if tokens is None else f"{tokens:,}"
                left = f"{stage['first_sample']:,}, and left out {count} tokens of"
                print(f"{begin} {left} {escaped(name)}")
    if chosen.left_out:
        print(f"{counted(chosen.left_out, 'row')} left out; --rows-max prints more")


def _explained(
    context: RunContext, chosen: Selection, decode: Decode | None
) -> Iterator[dict[str, Any]]:
    """Yield a record of each row, in order."""
    for group in consecutive(chosen.rows):
        if "is_padding" in group[0]:
            yield from group
            continue
        rows = iter(group)
        first, end = group[0]["sample"], group[-1]["sample"] + 1
        for segment in context.target.segments(context.stream, first, end):
            described = context.target.described(segment.stream)
            names = {
                number: dataset.name
                for number, dataset in zip(segment.stream.numbers, described, strict=True)
            }
            # In this order: the end of a segment must not take a row away.
            records = _of_segment(segment, names, context.target, decode)
            for record, row in zip(records, rows, strict=False):
                yield row | record


def _of_segment(
    segment: Segment, names: dict[int, str], target: Target, decode: Decode | None
) -> Iterator[dict[str, Any]]:
    """Yield a record of each row of a segment.  names: of datasets, by the number of the source."""
    rows: Iterator[Tokens | None] = repeat(None)
    if decode is not None:
        rows = read_rows(target.target, segment)
    for page in target.locate_pages(segment):
        files = {(file.source, file.file): file.name for file in page.files}
        for row in page.rows:
            record: dict[str, Any] = {
                "dataset": names.get(row.source, ""),
                "source_sample": row.source_sample,
                "epoch": row.epoch if row.HasField("epoch") else None,
                "ranges": [_range(row, each, files) for each in row.ranges],
                "padding_tokens": row.padding_tokens,
                "redacted": pairs(row.redacted),
                "deleted": pairs(row.deleted),
                "is_deleted": bool(row.deleted),
            }
            tokens = next(rows)
            if decode is not None and tokens is None:
                record["is_deleted"] = True
            elif decode is not None and tokens is not None:
                _add_text(row, record["ranges"], tokens, decode)
            yield record


def _range(
    row: pb.LocatedRow, each: pb.LocatedRange, files: dict[tuple[int, int], str]
) -> dict[str, Any]:
    document = None
    if each.HasField("document"):
        of = each.document
        document = {
            "number": of.number,
            "id": of.id or None,
            "tokens": [of.first_token, of.end_token],
        }
    return {
        "file": each.file,
        "file_name": files.get((row.source, each.file), ""),
        "tokens": [each.first_token, each.end_token],
        "document": document,
    }


def _add_text(
    row: pb.LocatedRow, ranges: list[dict[str, Any]], tokens: Tokens, decode: Decode
) -> None:
    """Put the text of each range into it."""
    at = 0
    for each in ranges:
        first, end = each["tokens"]
        end_at = at + end - first
        each["text"] = _decoded(tokens, at, end_at, row.redacted, decode)
        at = end_at


def _decoded(
    tokens: Tokens, at: int, end: int, redacted: Sequence[pb.TokenSpan], decode: Decode
) -> str:
    """Return the text of the tokens [at, end) of a row."""
    found = []
    for each in redacted:
        first, last = max(each.first_token, at), min(each.end_token, end)
        if first < last:
            found += [decode(tokens[at:first].tolist()), REDACTED]
            at = last
    return "".join([*found, decode(tokens[at:end].tolist())])


def _plain(context: RunContext, chosen: Selection, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all of it as plain values."""
    stream, run = context.stream, chosen.run
    return {
        **context.plain,
        "is_assumed": context.is_assumed,
        "step": chosen.step,
        "batch_size": run.batch_size if run else None,
        "world_size": run.world_size if run else None,
        "seed": stream.seed,
        "stages": _stages(context, chosen),
        "rows": records,
        "rows_left_out": chosen.left_out,
    }


def _stages(context: RunContext, chosen: Selection) -> list[dict[str, Any]]:
    """Return the stages of the rows, and what their sources have left out where each began."""
    stream = context.stream
    places = {stream.place_of(row["sample"]): None for row in chosen.rows if "sample" in row}
    return [
        {
            **named_stage(stream, stream.stages[place]),
            "left_out_tokens": context.target.left_out_tokens(stream, place),
        }
        for place in places
    ]


def _lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield a row as lines for people."""
    is_single = record["rank"] is None
    row = "" if is_single else f"rank {record['rank']:,} row {record['row']:,}: "
    if record.get("is_padding"):
        yield f"{row}padding behind an epoch or a context length, without targets"
        return
    dataset = escaped(record["dataset"])
    own = f"sample {record['source_sample']:,} of {dataset}"
    if record["sample"] != record["source_sample"]:
        own = f"sample {record['sample']:,}, {own}"
    if record["epoch"] is not None:
        own += f", epoch {record['epoch']:,}"
    padding = record["padding_tokens"]
    more = f", {counted(padding, 'token')} of padding" if padding else ""
    for first, end in record["redacted"]:
        more += f", tokens {span(first, end)} of the row are redacted"
    for first, end in record["deleted"]:
        more += f", tokens {span(first, end)} of the row are {DELETED}"
    yield f"{row}{own}{more}"
    for each in record["ranges"][:_RANGES_SHOWN]:
        yield f"  {_place(each)}"
        if "text" in each:
            yield f"    {each['text']!r}"
    if left := len(record["ranges"]) - _RANGES_SHOWN:
        if left > 0:
            yield f"  and {counted(left, 'more range')}; --json has all"
    if record["is_deleted"]:
        yield f"    {DELETED}"


def _place(each: dict[str, Any]) -> str:
    found = f"{escaped(each['file_name'])} tokens {span(*each['tokens'])}"
    if (document := each["document"]) is not None:
        named = f" {escaped(document['id'])}" if document["id"] else ""
        found += f", document {document['number']:,}{named}: {span(*document['tokens'])}"
    return found


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
    found = rows_of_step(history, step, arguments.rank, arguments.row)
    run, rows = found.run, [_begun(row) for row in islice(found.rows, arguments.rows_max)]
    sizes = f"{run.world_size:,} x {run.batch_size:,} rows"
    return Selection(f"step {step:,}{when}: {sizes}", rows, found.row_count - len(rows), step, run)


def _begun(found: StepRow) -> Row:
    what = {"is_padding": True} if found.sample is None else {"sample": found.sample}
    return {"rank": found.rank, "row": found.row, **what}


def consecutive(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows in groups of consecutive samples, or of padding."""

    def since(place: tuple[int, Row]) -> int | None:
        index, row = place
        return row["sample"] - index if "sample" in row else None

    for _, group in groupby(enumerate(rows), since):
        yield [row for _, row in group]


def read_rows(target: str, segment: Segment) -> Iterator[Tokens | None]:
    """Yield the tokens of the samples of a segment, in order: [T + 1], padding included; None for a
    row whose tokens were erased.

    Raises: TokenfeedError.
    """
    dataset = open_to_look(target, request_of(segment), QUESTION_SECONDS)
    try:
        stream, at, end_sample = segment
        row_count = end_sample - at
        while at < end_sample:
            part = request_of(Segment(stream, at, min(at + row_count, end_sample)))
            rows = dataset.open_rows(part, prefetch_bytes=PREFETCH_BYTES, counters=Counters())
            rows.start()
            try:
                for _ in range(part.row_count):
                    blocks = rows.peek(1)
                    if not blocks:
                        raise BadFrame("GetBatch", f"has no row of sample {at}")
                    yield blocks[0].tokens[0]
                    rows.consume(1)
                    at += 1
            except Deleted:
                # Of several rows it does not say which.
                if row_count == 1:
                    yield None
                    at += 1
                row_count = 1
            finally:
                rows.close()
    finally:
        dataset.close()
