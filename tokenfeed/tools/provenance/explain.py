"""tokenfeed explain: where the rows of a step come from, and what they say."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import repeat
from typing import Any

from tokenfeed.client.feed.named import named_stage
from tokenfeed.commands.decoding import decoder
from tokenfeed.commands.output import require_stdout
from tokenfeed.stream.position import require_range
from tokenfeed.v1 import provenance_pb2 as pb

from ..top.screen import encodable
from .rows import Tokens, read_rows
from .run_context import ROWS_END, RunContext, read_run
from .runs import Segment
from .selection import Selection, consecutive, selected
from .target import Target
from .words import DELETED, counted, escaped, pairs, printable_errors, span

REDACTED = "[redacted]"
"""What is printed in place of tokens."""

_RANGES_SHOWN = 50
"""Of a row; --json has all."""

Decode = Callable[[Sequence[int]], str]


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
        print(encodable(f"{chosen.title}, {context.words}"))
        for record in explained:
            print(encodable("\n".join(_lines(record))))
        for stage in stages:
            for name, tokens in stage["left_out_tokens"].items():
                begin = f"rows of {stage['context_length']:,} tokens began at sample"
                count = "an unknown number of" if tokens is None else f"{tokens:,}"
                left = f"{stage['first_sample']:,}, and left out {count} tokens of"
                print(encodable(f"{begin} {left} {escaped(name)}"))
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
