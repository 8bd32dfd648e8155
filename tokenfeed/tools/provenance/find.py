"""tokenfeed find: which rows hold a document, and which of them a run has seen."""

from __future__ import annotations

import argparse
import heapq
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenfeed.client.feed.history import History
from tokenfeed.client.runtime.arguments import text
from tokenfeed.commands.output import require_stdout
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.v1 import provenance_pb2 as pb

from ..top.screen import encodable
from .matches import (
    MatchPage,
    RowMatch,
    RunRecord,
    When,
    end_of_epoch,
    epochs_between,
    find_rows,
    numbers_of,
)
from .options import ROWS_END
from .progress import Progress
from .queries import open_provenance
from .run_context import RunContext, read_run
from .runs import future
from .words import DELETED, counted, escaped, printable_errors, span, step_place

_LOOKED_FOR_SHOWN = 20
_SPANS_SHOWN = 8
_NUMBER_END = 1 << 63
_EPOCHS_MAX = 10_000
"""Still to come that are looked at."""


def run_find(arguments: argparse.Namespace) -> None:
    """Print which rows hold a document or a range of tokens."""
    require_stdout()
    require_range("rows_max", arguments.rows_max, 1, ROWS_END)
    what = _what(arguments)
    with printable_errors():
        context = read_run(arguments)
        numbers = numbers_of(context.stream, context.corpora, text("dataset", arguments.dataset))
        run = _known(context, arguments, numbers)
        with closing(open_provenance(arguments.target)) as provenance:
            pages = find_rows(run, numbers, context.corpora, provenance, what)
            with _as_typed(what):
                result = _collected(pages, len(run.samples), arguments.rows_max)
        if arguments.json:
            print(json.dumps(_plain(context, run, result)))
        else:
            print(encodable("\n".join(_lines(context, run, result))))


def _what(arguments: argparse.Namespace) -> pb.FindRequest:
    """Return what is looked for.  Raises: InvalidRequest."""
    of_file = arguments.file is not None or arguments.file_number is not None
    given = {
        "document": arguments.document is not None,
        "id": arguments.id is not None,
        "file": of_file,
    }
    if sum(given.values()) != 1:
        ways = "--document, --id, or --file with --token"
        raise InvalidRequest("document", f"has to be given by one of {ways}")
    if given["document"]:
        require_range("document", arguments.document, 0, _NUMBER_END)
        return pb.FindRequest(document=arguments.document)
    if given["id"]:
        return pb.FindRequest(document_id=text("id", arguments.id))
    if arguments.token is None:
        raise InvalidRequest("token", "is missing; it is the first token within --file")
    if arguments.file is not None and arguments.file_number is not None:
        raise InvalidRequest("file_number", "is given together with --file; pass one of them")
    require_range("token", arguments.token, 0, _NUMBER_END)
    require_range("tokens", arguments.tokens, 1, _NUMBER_END - arguments.token)
    require_range("file_number", arguments.file_number or 0, 0, _NUMBER_END)
    return pb.FindRequest(
        range=pb.FileRange(
            file=arguments.file_number or 0,
            file_name=text("file", arguments.file),
            first_token=arguments.token,
            end_token=arguments.token + arguments.tokens,
        )
    )


@contextmanager
def _as_typed(what: pb.FindRequest) -> Iterator[None]:
    """Name in an error the option that a field of the request was given by."""
    names = {"document_id": "id", "file_name": "file", "range": "token"}
    if not what.range.file_name:
        names["file"] = "file_number"
    try:
        yield
    except TokenfeedError as error:
        raise TokenfeedError(names.get(error.subject, error.subject), error.problem) from None


def _known(context: RunContext, arguments: argparse.Namespace, numbers: Sequence[int]) -> RunRecord:
    """Return what the run has read, and where to stop to look.  Raises: TokenfeedError.

    numbers: of the sources that are looked through.
    """
    if arguments.end_sample is not None and arguments.epochs is not None:
        raise InvalidRequest("epochs", "is given together with --end-sample; pass one of them")
    # The one that is still read; a run may have left others.
    ahead = context.stream.rest(context.sample).numbers
    number = next((each for each in reversed(numbers) if each in ahead), None)
    end_sample = arguments.end_sample
    if end_sample is not None:
        require_range("end_sample", end_sample, 1, SAMPLE_END)
    else:
        end_sample = _default_end(context, arguments, number)
    end_sample = max(end_sample, context.sample)
    _require_few_epochs(context, arguments, number, end_sample)
    stream, history, coming = context.stream, context.history, None
    if context.is_assumed:
        history, coming = History(), history if history.runs else None
    elif (history.runs or (arguments.batch_size and arguments.world_size)) and (
        context.sample < SAMPLE_END
    ):
        coming = future(
            history,
            context.sample,
            context.stream,
            batch_size=arguments.batch_size,
            world_size=arguments.world_size,
        )
    return RunRecord(history, context.is_complete, stream, context.sample, coming, end_sample)


def _default_end(context: RunContext, arguments: argparse.Namespace, number: int | None) -> int:
    """Return where epochs of a source end; by default those that were begun.

    number: of the source; None if it is not read any more.
    """
    epochs = arguments.epochs
    if epochs is not None:
        require_range("epochs", epochs, 1, _NUMBER_END)
    if number is None or context.sample >= SAMPLE_END:
        return context.sample
    end = end_of_epoch(context.corpora, context.stream, number, epochs, context.sample)
    if end is not None:
        return end
    if epochs is not None or context.is_assumed:
        name = "epochs" if epochs is not None else "end_sample"
        problem = "the order random has no epochs; pass --end-sample"
        raise InvalidRequest(name, problem)
    return context.sample


def _require_few_epochs(
    context: RunContext, arguments: argparse.Namespace, number: int | None, end_sample: int
) -> None:
    """Raise InvalidRequest if the rows would be found again in very many epochs to come."""
    name = "end_sample" if arguments.end_sample is not None else "epochs"
    if number is None or getattr(arguments, name) is None:
        return
    epochs = epochs_between(context.corpora, context.stream, number, context.sample, end_sample)
    if epochs > _EPOCHS_MAX:
        problem = f"is {epochs:,} epochs of the dataset ahead, and each has the same tokens"
        raise InvalidRequest(name, f"{problem}; the maximum is {_EPOCHS_MAX:,}")


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What was found.

    rows: the first ones, in the order of the run.  left_out: others.  counts: rows of each kind.
    times: how often seen rows were read, all together.
    """

    rows: list[RowMatch]
    left_out: int
    counts: Counter[When]
    times: int
    looked_for: Sequence[pb.LocatedRange]
    files: dict[int, str] = field(default_factory=dict)


def _collected(pages: Iterator[MatchPage], samples: int, rows_max: int) -> Result:
    """Return the first rows of all pages, and counts of all rows, in bounded memory.

    samples: how many are looked at.
    """
    rows: list[RowMatch] = []
    counts: Counter[When] = Counter()
    times = 0
    looked_for: Sequence[pb.LocatedRange] = ()
    files: dict[int, str] = {}
    with Progress(samples) as progress:
        for page in pages:
            looked_for = page.looked_for
            files.update((each.file, each.name) for each in page.files)
            counts.update(row.when for row in page.rows)
            times += sum(len(row.places) for row in page.rows if row.when is When.SEEN)
            rows = heapq.nsmallest(rows_max, [*rows, *page.rows], key=lambda row: row.sample)
            progress.show(page.done)
    return Result(rows, counts.total() - len(rows), counts, times, looked_for, files)


def _plain(context: RunContext, run: RunRecord, result: Result) -> dict[str, Any]:
    return {
        **context.plain,
        "is_assumed": context.is_assumed,
        "sample": run.sample,
        "end_sample": run.end_sample,
        "looked_for": [
            {
                "file": each.file,
                "file_name": result.files.get(each.file, ""),
                "tokens": [each.first_token, each.end_token],
                "document": each.document.number if each.HasField("document") else None,
                "id": each.document.id or None,
            }
            for each in result.looked_for
        ],
        "rows": [
            {
                "when": row.when.value,
                "places": [
                    {"step": step, "rank": rank, "row": number} for step, rank, number in row.places
                ],
                "sample": row.sample,
                "source": row.source,
                "source_sample": row.source_sample,
                "epoch": row.epoch,
                "order": context.stream.sources[row.source].order.NAME,
                "context_length": row.context_length,
                "tokens": list(map(list, row.spans)),
                "redacted": list(map(list, row.redacted)),
                "deleted": list(map(list, row.deleted)),
            }
            for row in result.rows
        ],
        "rows_left_out": result.left_out,
        "counts": {each.value: result.counts[each] for each in When},
        "times_seen": result.times,
    }


def _lines(context: RunContext, run: RunRecord, result: Result) -> Iterator[str]:
    """Yield what was found as lines for people."""
    for each in result.looked_for[:_LOOKED_FOR_SHOWN]:
        named = ""
        if each.HasField("document"):
            of_id = f" {escaped(each.document.id)}" if each.document.id else ""
            named = f"document {each.document.number:,}{of_id}: "
        name = escaped(result.files.get(each.file, ""))
        yield f"{named}{name} tokens {span(each.first_token, each.end_token)}"
    if (left := len(result.looked_for) - _LOOKED_FOR_SHOWN) > 0:
        yield f"and {counted(left, 'more document')} of this id"
    yield context.words
    if run.end_sample > run.sample:
        what = "looked at" if context.is_assumed else "still to come"
        yield f"{what}: samples {span(run.sample, run.end_sample)}"
    for row in result.rows:
        yield _line(row, is_assumed=context.is_assumed)
    if result.left_out:
        yield f"{counted(result.left_out, 'row')} left out; --rows-max prints more"
    yield _summary(context, result)


def _line(row: RowMatch, *, is_assumed: bool) -> str:
    when = "" if is_assumed else f"{row.when.value}: "
    at = " and ".join(step_place(*place) for place in row.places)
    epoch = "" if row.epoch is None else f", epoch {row.epoch:,}"
    shown = [span(*each) for each in row.spans[:_SPANS_SHOWN]]
    if (left := len(row.spans) - _SPANS_SHOWN) > 0:
        shown.append(f"{left:,} more")
    sample = f"sample {row.sample:,}"
    if row.sample != row.source_sample:
        sample += f" ({row.source_sample:,} of the dataset)"
    line = f"{when}{at + ', ' if at else ''}{sample}{epoch}, tokens {', '.join(shown)} of the row"
    redacted = _marked(row.spans, row.redacted, "redacted")
    return f"{line}{redacted}{_marked(row.spans, row.deleted, DELETED)}"


def _marked(spans: Sequence[tuple[int, int]], marks: Sequence[tuple[int, int]], word: str) -> str:
    """Return whether all, some or none of what was looked for is marked in a row."""
    both = sum(
        max(0, min(end, last) - max(first, begin)) for first, end in spans for begin, last in marks
    )
    if not both:
        return ""
    return f", {word}" if both == sum(end - first for first, end in spans) else f", partly {word}"


def _summary(context: RunContext, result: Result) -> str:
    if context.is_assumed:
        return f"in {counted(result.counts.total(), 'row')}"
    seen, counts = result.counts[When.SEEN], result.counts
    times = "" if result.times == seen else f", {result.times:,} times"
    not_seen = [f"{counts[When.SKIPPED]:,} skipped"]
    if not context.is_complete:
        not_seen = [f"{counts[When.UNKNOWN]:,} unknown, which the history does not reach"]
    not_seen.append(f"{counts[When.TO_COME]:,} to come")
    return f"seen in {counted(seen, 'row')}{times}; {', '.join(not_seen)}"
