"""tokenfeed find: which rows hold a document, and which of them a run has seen."""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from operator import itemgetter
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.history import History
from tokenfeed.client.runtime.arguments import text
from tokenfeed.commands.output import require_stdout
from tokenfeed.errors import InvalidRequest, StreamMismatch, TokenfeedError, listed
from tokenfeed.sampling.mixture_v1 import counts_at
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb

from .run_context import ROWS_END, RunContext, read_run
from .runs import Segment, future, places_of, segments
from .target import Target
from .words import DELETED, counted, escaped, pairs, printable_errors, span, step_place

Numbers = npt.NDArray[np.int64]

WHEN = SEEN, SKIPPED, UNKNOWN, TO_COME = "seen", "skipped", "unknown", "to come"
"""What a run has done with a row."""
_LOOKED_FOR_SHOWN = 20
_SPANS_SHOWN = 8
_NUMBER_END = 1 << 63
_PROGRESS_SECONDS = 1.0
_LONG_SECONDS = 3600.0


def run_find(arguments: argparse.Namespace) -> None:
    """Print which rows hold a document or a range of tokens."""
    require_stdout()
    require_range("rows_max", arguments.rows_max, 1, ROWS_END)
    what = _what(arguments)
    with printable_errors(), closing(Target(arguments.target)) as target:
        context = read_run(arguments, target)
        numbers = _numbers_of(context, text("dataset", arguments.dataset))
        found = _found(context, arguments, numbers, what)
    print(json.dumps(found) if arguments.json else "\n".join(_lines(found)))


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


def _numbers_of(context: RunContext, dataset: str) -> list[int]:
    """Return the numbers of the sources that read a dataset.

    dataset: is its name, in the run or at the target; "" if there is only one.
    Raises: InvalidRequest if it is none or has to be named.
    """
    names = sorted({source.dataset for source in context.stream.sources})
    if not dataset and len(names) > 1:
        raise InvalidRequest("dataset", f"has to name one of the sources: {', '.join(names)}")
    own = [
        source.number
        for source in context.stream.sources
        if dataset in ("", source.dataset) or dataset == context.target.name_of(source)
    ]
    if not own:
        problem = f"{dataset!r} is not read by this run, only {listed(names)}"
        raise InvalidRequest("dataset", problem)
    return own


def _end_sample(context: RunContext, arguments: argparse.Namespace, numbers: Sequence[int]) -> int:
    """Return where to stop to look at what is still to come.  Raises: TokenfeedError.

    numbers: are those of the sources that are looked through.
    """
    end_sample, epochs = arguments.end_sample, arguments.epochs
    if end_sample is not None and epochs is not None:
        raise InvalidRequest("epochs", "is given together with --end-sample; pass one of them")
    sample, stream, target = context.sample, context.stream, context.target
    # The one that is still read; a run may have left others.
    ahead = stream.rest(sample).numbers
    number = next((each for each in reversed(numbers) if each in ahead), None)
    if end_sample is not None:
        require_range("end_sample", end_sample, 1, SAMPLE_END)
    elif epochs is not None:
        require_range("epochs", epochs, 1, _NUMBER_END)
    if end_sample is None and number is not None and sample < SAMPLE_END:
        # By default the epochs that were begun.
        end_sample = _end_of_epoch(target, stream, number, epochs, sample)
        if end_sample is None and (epochs is not None or context.is_assumed):
            name = "epochs" if epochs is not None else "end_sample"
            raise InvalidRequest(name, "the order random has no epochs; pass --end-sample")
    return max(end_sample or sample, sample)


def _read_and_coming(
    context: RunContext, arguments: argparse.Namespace
) -> tuple[History, History | None]:
    """Return what the run has read, and the batches to come; None if their steps are unknown."""
    history, sizes = context.history, (arguments.batch_size, arguments.world_size)
    if context.is_assumed:
        return History(), history if history.runs else None
    if context.sample < SAMPLE_END and (history.runs or all(sizes)):
        batch_size, world_size = sizes
        return history, future(
            history,
            context.sample,
            context.stream,
            batch_size=batch_size,
            world_size=world_size,
        )
    return history, None


def _found(
    context: RunContext,
    arguments: argparse.Namespace,
    numbers: Sequence[int],
    what: pb.FindRequest,
) -> dict[str, Any]:
    """Return what was found, as plain values: the first rows, in the order of the run, and counts
    of all rows, in bounded memory.

    numbers: are those of the sources that are looked through.  what: names the tokens.
    Raises: TokenfeedError; StreamMismatch if the target has another dataset of that name.
    """
    end_sample, before = _end_sample(context, arguments, numbers), context.sample
    histories = _read_and_coming(context, arguments)
    # Of an incomplete history any sample may have been read. A request cannot name 2^63.
    end = min(max(histories[0].end_sample, before, end_sample), SAMPLE_END - 1)
    begin = context.stream.stages[0].first_sample
    parts = _parts(context, numbers, begin, end)
    rows: list[dict[str, Any]] = []
    looked_for: list[dict[str, Any]] = []
    counts, times = Counter(dict.fromkeys(WHEN, 0)), 0
    with Progress(max(0, end - begin)) as progress, _as_typed(what):
        for index, (segment, number) in enumerate(parts):
            for page in context.target.find_pages(segment, number, what):
                found = [*_rows(context, segment, number, page.rows, histories, end_sample)]
                looked_for = [*_looked_for(page)]
                counts.update(row["when"] for row in found)
                times += sum(len(row["places"]) for row in found if row["when"] == SEEN)
                rows = heapq.nsmallest(
                    arguments.rows_max, [*rows, *found], key=itemgetter("sample")
                )
                is_last = not page.HasField("next_candidate")
                share = 1.0 if is_last else page.next_candidate / max(1, page.candidates)
                progress.show((index + share) / len(parts))
    return {
        **context.plain,
        "is_assumed": context.is_assumed,
        "sample": before,
        "end_sample": end_sample,
        "looked_for": looked_for,
        "rows": rows,
        "rows_left_out": counts.total() - len(rows),
        "counts": dict(counts),
        "times_seen": times,
    }


def _parts(
    context: RunContext, numbers: Sequence[int], first_sample: int, end_sample: int
) -> list[tuple[Segment, int]]:
    """Return what to ask for: segments of the run, each with the number of a source."""
    parts, mismatch = [], None
    for segment in segments(context.stream, first_sample, end_sample):
        for source in segment.stream.sources:
            if source.number not in numbers:
                continue
            try:
                context.target.alone(source, segment.stream.context_length)
            except StreamMismatch as error:
                mismatch = error  # a run may have read several datasets, one after the other
            else:
                own = context.target.checked(segment.stream)
                parts.append((segment._replace(stream=own), source.number))
    if not parts and mismatch is not None:
        raise mismatch
    return parts


def _rows(
    context: RunContext,
    segment: Segment,
    number: int,
    rows: Sequence[pb.FoundRow],
    histories: tuple[History, History | None],
    end_sample: int,
) -> Iterator[dict[str, Any]]:
    """Yield found rows with what the run has done with them.

    number: is that of the source.  histories: are what was read and what is to come.  end_sample:
    ends what is still looked at.
    """
    samples = np.array([row.sample for row in rows], dtype=np.int64)
    read, coming = ({} if each is None else _places(each, samples) for each in histories)
    order, length = context.stream.sources[number].order.NAME, segment.stream.context_length
    for index, row in enumerate(rows):
        when, places = SKIPPED if context.is_complete else UNKNOWN, read.get(index, [])
        if places:
            when = SEEN
        elif context.sample <= row.sample < end_sample:
            when, places = TO_COME, coming.get(index, [])
        yield {
            "when": when,
            "places": places,
            "sample": row.sample,
            "source": number,
            "source_sample": row.source_sample,
            "epoch": row.epoch if row.HasField("epoch") else None,
            "order": order,
            "context_length": length,
            "tokens": pairs(row.spans),
            "redacted": pairs(row.redacted),
            "deleted": pairs(row.deleted),
        }


def _places(history: History, samples: Numbers) -> dict[int, list[dict[str, int]]]:
    """Return where each sample was delivered, by its index."""
    places: dict[int, list[dict[str, int]]] = {}
    for index, step, rank, row in zip(*places_of(history, samples).tolist(), strict=True):
        places.setdefault(index, []).append({"step": step, "rank": rank, "row": row})
    return places


def _looked_for(page: pb.FindResponse) -> Iterator[dict[str, Any]]:
    files = {each.file: each.name for each in page.files}
    for each in page.looked_for:
        yield {
            "file": each.file,
            "file_name": files.get(each.file, ""),
            "tokens": [each.first_token, each.end_token],
            "document": each.document.number if each.HasField("document") else None,
            "id": each.document.id or None,
        }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what was found as lines for people."""
    looked_for, is_assumed = found["looked_for"], found["is_assumed"]
    for each in looked_for[:_LOOKED_FOR_SHOWN]:
        named = ""
        if each["document"] is not None:
            of_id = f" {escaped(each['id'])}" if each["id"] else ""
            named = f"document {each['document']:,}{of_id}: "
        yield f"{named}{escaped(each['file_name'])} tokens {span(*each['tokens'])}"
    if (left := len(looked_for) - _LOOKED_FOR_SHOWN) > 0:
        yield f"and {counted(left, 'more document')} of this id"
    yield found["known"]
    if found["end_sample"] > found["sample"]:
        what = "looked at" if is_assumed else "still to come"
        yield f"{what}: samples {span(found['sample'], found['end_sample'])}"
    for row in found["rows"]:
        yield _line(row, is_assumed=is_assumed)
    if found["rows_left_out"]:
        yield f"{counted(found['rows_left_out'], 'row')} left out; --rows-max prints more"
    yield _summary(found)


def _line(row: dict[str, Any], *, is_assumed: bool) -> str:
    when = "" if is_assumed else f"{row['when']}: "
    at = " and ".join(step_place(**place) for place in row["places"])
    epoch = "" if row["epoch"] is None else f", epoch {row['epoch']:,}"
    shown = [span(*each) for each in row["tokens"][:_SPANS_SHOWN]]
    if (left := len(row["tokens"]) - _SPANS_SHOWN) > 0:
        shown.append(f"{left:,} more")
    sample = f"sample {row['sample']:,}"
    if row["sample"] != row["source_sample"]:
        sample += f" ({row['source_sample']:,} of the dataset)"
    line = f"{when}{at + ', ' if at else ''}{sample}{epoch}, tokens {', '.join(shown)} of the row"
    redacted = _marked(row["tokens"], row["redacted"], "redacted")
    return f"{line}{redacted}{_marked(row['tokens'], row['deleted'], DELETED)}"


def _marked(spans: Sequence[Sequence[int]], marks: Sequence[Sequence[int]], word: str) -> str:
    """Return whether all, some or none of what was looked for is marked in a row."""
    both = sum(
        max(0, min(end, last) - max(first, begin)) for first, end in spans for begin, last in marks
    )
    if not both:
        return ""
    return f", {word}" if both == sum(end - first for first, end in spans) else f", partly {word}"


def _summary(found: dict[str, Any]) -> str:
    counts = found["counts"]
    if found["is_assumed"]:
        return f"in {counted(sum(counts.values()), 'row')}"
    seen, times = counts[SEEN], ""
    if found["times_seen"] != seen:
        times = f", {found['times_seen']:,} times"
    not_seen = [f"{counts[SKIPPED]:,} skipped"]
    if not found["is_complete"]:
        not_seen = [f"{counts[UNKNOWN]:,} unknown, which the history does not reach"]
    not_seen.append(f"{counts[TO_COME]:,} to come")
    return f"seen in {counted(seen, 'row')}{times}; {', '.join(not_seen)}"


def _end_of_epoch(
    target: Target, stream: Stream, number: int, epochs: int | None, sample: int
) -> int | None:
    """Return the sample, from a given one on, at which a source has ended epochs, or behind its
    last sample if a later stage drops it before; None for an order without epochs.

    number: is that of the source.  epochs: says how many; None is those that have ended at the
    sample, and the next one.
    """
    last = SAMPLE_END - 1
    before, at_last = (_epochs_before(target, stream, number, each) for each in (sample, last))
    if before is None or at_last is None:
        return None
    wanted = min(Fraction(epochs if epochs is not None else int(before) + 1), at_last)

    def has_ended(at: int) -> bool:
        ended = _epochs_before(target, stream, number, at)
        return ended is not None and ended >= wanted

    low, high = sample, sample
    while not has_ended(high):
        low, high = high, min(2 * high + 1, last)
    while low < high:
        middle = (low + high) // 2
        if has_ended(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _epochs_before(target: Target, stream: Stream, number: int, sample: int) -> Fraction | None:
    """Return the epochs of a source before a sample, by the last stage that reads the source;
    None for an order without epochs.
    """
    for place in range(stream.place_of(sample), -1, -1):
        stage, end = stream.stages[place], stream.end_of(place)
        if number in stage.weights:
            alone = target.alone(stream.sources[number], stage.context_length)
            rows = target.rows_per_epoch(alone)
            at = sample if end is None else min(sample, end)
            own = counts_at(stage, stream.seed, at)[number]
            return None if rows is None else Fraction(own, rows)
    return Fraction(0)


class Progress:
    """A line on stderr for a search that takes longer than a second; and a warning if it takes more
    than an hour, at the rate so far.
    """

    def __init__(
        self,
        samples: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """samples: all that are looked at.  stream: by default stderr.  clock: in seconds."""
        self._samples = samples
        self._has_warned = False
        self._stream = stream or sys.stderr
        self._clock = clock
        self._shown = self._begun = clock()

    def __enter__(self) -> Progress:
        """Show nothing yet."""
        return self

    def show(self, done: float) -> None:
        """Say how far it is.  done: in [0, 1]."""
        now = self._clock()
        if now - self._shown < _PROGRESS_SECONDS:
            return
        self._shown = now
        if done > 0:
            self._warn((now - self._begun) * (1 - done) / done)
        text = f"looked at {100 * done:.1f} % of the rows"
        is_terminal = self._stream.isatty()
        print(
            f"\r{text}" if is_terminal else text,
            end="" if is_terminal else "\n",
            file=self._stream,
            flush=True,
        )

    def _warn(self, left_seconds: float) -> None:
        if self._has_warned or left_seconds < _LONG_SECONDS:
            return
        self._has_warned = True
        hours = left_seconds / _LONG_SECONDS
        left = f"{hours / 24:,.0f} days" if hours >= 48 else f"{hours:.1f} hours"
        print(
            f"warning: to look at {self._samples:,} samples takes about {left} at this "
            "rate; Ctrl-C ends it, and an earlier --end-sample takes less",
            file=self._stream,
            flush=True,
        )

    def __exit__(self, *_: object) -> None:
        """Remove the line from a terminal."""
        if self._shown != self._begun and self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()
