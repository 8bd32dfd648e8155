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

from tokenfeed.commands.output import require_stdout
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.v1 import provenance_pb2 as pb

from ...feed.history import History
from ...provenance.asking import open_provenance
from ...provenance.finding import (
    FoundPage,
    FoundRow,
    KnownRun,
    Search,
    When,
    end_of_epoch,
    epochs_between,
    find_rows,
    number_of,
    searches,
)
from ...provenance.runs import future
from ...runtime.arguments import text
from ..top.screen import encodable
from .asked import AskedRun, read_run
from .options import ROWS_END
from .progress import Progress
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
        asked = read_run(arguments)
        run = _known(asked, arguments)
        wanted = searches(run, asked.corpora, arguments.dataset)
        with closing(open_provenance(arguments.target)) as provenance:
            pages = find_rows(run, wanted, asked.corpora, provenance, what)
            with _as_typed(what):
                result = _collected(pages, wanted, arguments.rows_max)
        if arguments.json:
            print(json.dumps(_plain(asked, run, result)))
        else:
            print(encodable("\n".join(_lines(asked, run, result))))


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


def _known(asked: AskedRun, arguments: argparse.Namespace) -> KnownRun:
    """Return what the run has read, and where to stop to look.  Raises: TokenfeedError."""
    if arguments.end_sample is not None and arguments.epochs is not None:
        raise InvalidRequest("epochs", "is given together with --end-sample; pass one of them")
    end_sample = arguments.end_sample
    if end_sample is not None:
        require_range("end_sample", end_sample, 1, SAMPLE_END)
    else:
        end_sample = _default_end(asked, arguments)
    if asked.is_assumed:
        _require_few_epochs(asked, arguments, end_sample)
        coming = asked.history if asked.history.runs else None
        return KnownRun(History(), True, asked.parts, 0, coming, end_sample)
    coming = None
    has_sizes = asked.history.runs or (arguments.batch_size and arguments.world_size)
    if has_sizes and asked.sample < SAMPLE_END:
        coming = future(
            asked.history,
            asked.parts,
            asked.sample,
            batch_size=arguments.batch_size,
            world_size=arguments.world_size,
        )
    end_sample = max(end_sample, asked.sample)
    _require_few_epochs(asked, arguments, end_sample)
    return KnownRun(asked.history, asked.is_complete, asked.parts, asked.sample, coming, end_sample)


def _default_end(asked: AskedRun, arguments: argparse.Namespace) -> int:
    """Return where epochs of the dataset end; by default those that were begun."""
    epochs, name = arguments.epochs, arguments.dataset
    if epochs is not None:
        require_range("epochs", epochs, 1, _NUMBER_END)
    if asked.sample >= SAMPLE_END:
        return asked.sample  # the end of the run
    number = number_of(asked.parts, name)
    if number is None:
        return asked.sample  # an earlier stream may have read it
    end = end_of_epoch(asked.corpora, asked.parts, number, epochs, asked.sample)
    if end is not None:
        return end
    if epochs is not None or asked.is_assumed:
        name = "epochs" if epochs is not None else "end_sample"
        problem = "the order random has no epochs; pass --end-sample"
        raise InvalidRequest(name, problem)
    return asked.sample


def _require_few_epochs(asked: AskedRun, arguments: argparse.Namespace, end_sample: int) -> None:
    """Raise InvalidRequest if the rows would be found again in very many epochs to come."""
    name = "end_sample" if arguments.end_sample is not None else "epochs"
    number = number_of(asked.parts, arguments.dataset)
    if number is None or getattr(arguments, name) is None:
        return
    epochs = epochs_between(asked.corpora, asked.parts, number, asked.sample, end_sample)
    if epochs > _EPOCHS_MAX:
        problem = f"is {epochs:,} epochs of the dataset ahead, and each has the same tokens"
        raise InvalidRequest(name, f"{problem}; the maximum is {_EPOCHS_MAX:,}")


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What was found.

    rows: the first ones, in the order of the run.  left_out: others.  counts: rows of each kind.
    times: how often seen rows were read, all together.
    """

    rows: list[FoundRow]
    left_out: int
    counts: Counter[When]
    times: int
    looked_for: Sequence[pb.LocatedRange]
    files: dict[int, str] = field(default_factory=dict)


def _collected(pages: Iterator[FoundPage], wanted: Sequence[Search], rows_max: int) -> Result:
    """Return the first rows of all pages, and counts of all rows, in bounded memory."""
    streams: dict[StreamParts, int] = {}
    for search in wanted:
        streams.setdefault(search.parts, len(streams))
    rows: list[FoundRow] = []
    counts: Counter[When] = Counter()
    times = 0
    looked_for: Sequence[pb.LocatedRange] = ()
    files: dict[int, str] = {}
    samples = sum(int((each.ranges[:, 1] - each.ranges[:, 0]).sum()) for each in wanted)
    with Progress(samples) as progress:
        for page in pages:
            looked_for = page.looked_for
            files.update((each.file, each.name) for each in page.files)
            counts.update(row.when for row in page.rows)
            times += sum(len(row.places) for row in page.rows if row.when is When.SEEN)
            rows = heapq.nsmallest(
                rows_max, [*rows, *page.rows], key=lambda row: (streams[row.parts], row.sample)
            )
            progress.show(page.done)
    return Result(rows, counts.total() - len(rows), counts, times, looked_for, files)


def _plain(asked: AskedRun, run: KnownRun, result: Result) -> dict[str, Any]:
    return {
        **asked.plain,
        "is_assumed": asked.is_assumed,
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
                "source_sample": row.source_sample,
                "epoch": row.epoch,
                "order": row.parts.order,
                "context_length": row.parts.context_length,
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


def _lines(asked: AskedRun, run: KnownRun, result: Result) -> Iterator[str]:
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
    yield asked.words
    if run.end_sample > run.sample:
        what = "looked at" if asked.is_assumed else "still to come"
        yield f"{what}: samples {span(run.sample, run.end_sample)}"
    for row in result.rows:
        yield _line(row, is_assumed=asked.is_assumed)
    if result.left_out:
        yield f"{counted(result.left_out, 'row')} left out; --rows-max prints more"
    yield _summary(asked, result)


def _line(row: FoundRow, *, is_assumed: bool) -> str:
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


def _summary(asked: AskedRun, result: Result) -> str:
    if asked.is_assumed:
        return f"in {counted(result.counts.total(), 'row')}"
    seen, counts = result.counts[When.SEEN], result.counts
    times = "" if result.times == seen else f", {result.times:,} times"
    not_seen = [f"{counts[When.SKIPPED]:,} skipped"]
    if not asked.is_complete:
        not_seen = [f"{counts[When.UNKNOWN]:,} unknown, which the history does not reach"]
    not_seen.append(f"{counts[When.TO_COME]:,} to come")
    return f"seen in {counted(seen, 'row')}{times}; {', '.join(not_seen)}"
