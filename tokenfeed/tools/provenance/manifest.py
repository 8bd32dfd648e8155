"""tokenfeed manifest: everything that a run has read, per source and epoch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.client.feed.history import History
from tokenfeed.client.feed.named import named_redaction
from tokenfeed.commands.output import require_stdout
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling.own_samples import EpochSamples, by_epoch, by_times, own_samples_of
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stream import Stream

from .output import require_parquet, write_jsonl, write_parquet
from .run_context import RunContext, read_run
from .runs import ranges_of
from .target import Target
from .words import printable_errors

Numbers = npt.NDArray[np.int64]

# A row that is far from the others is a line of about 190 bytes; its epoch, as the samples that
# were read, is one line. So a partial epoch takes at most 0.8 MB, and that of a small dataset still
# says which tokens were read.
ROWS_AS_RANGES_MAX = 4096
"""A partial epoch with more rows is written as samples."""


def run_manifest(arguments: argparse.Namespace) -> None:
    """Write everything that a run has read."""
    if arguments.output is None:
        require_stdout()
    if arguments.format == "parquet":
        require_parquet()
        if arguments.output is None:
            raise InvalidRequest("output", "is missing; a parquet file is not written to stdout")
    with printable_errors(), closing(Target(arguments.target)) as target:
        lines = manifest_lines(read_run(arguments, target), expands=arguments.expand)
        if arguments.format == "parquet":
            write_parquet(lines, arguments.output)
        else:
            write_jsonl(lines, arguments.output)


def manifest_lines(context: RunContext, *, expands: bool) -> Iterator[dict[str, Any]]:
    """Yield the lines of a manifest, each a dict of plain values.

    expands: write ranges however many rows of an epoch were read.  Raises: TokenfeedError.
    """
    # First, so that no line is written if a dataset is missing.
    parts = [
        _Part(index, use, ranges, context)
        for index, (use, ranges) in enumerate(
            sorted(consumed(context.stream, context.history).items())
        )
    ]
    yield {
        "kind": "run",
        **context.plain,
        "end_step": context.steps,
        "steps": context.steps - context.history.first_batch,
        "samples": sum(part.samples for part in parts),
        "tokens": sum(part.tokens for part in parts),
    }
    yield _stream(context)
    for part in parts:
        yield from part.lines(expands=expands)


def _stream(context: RunContext) -> dict[str, Any]:
    """Return the line of the stream, with its stages up to the end of what was read."""
    stream = context.stream
    end = stream.place_of(max(0, context.history.end_sample - 1)) + 1
    return {
        "kind": "stream",
        "seed": stream.seed,
        "stages": [
            {
                "first_sample": stage.first_sample,
                "context_length": stage.context_length,
                "sources": [
                    {"dataset": stream.sources[share.source].dataset, **share._asdict()}
                    for share in stage.active
                ],
                "left_out_tokens": context.target.left_out_tokens(stream, place),
            }
            for place, stage in enumerate(stream.stages[:end])
        ],
        "redactions": [named_redaction(each) for each in stream.redactions],
    }


class _Part:
    """What was read of a source in one way: context length, redactions."""

    def __init__(self, index: int, use: Use, ranges: list[Numbers], context: RunContext) -> None:
        self._use, self._ranges, self._target = use, ranges, context.target
        self._source = context.stream.sources[use.source]
        self._stream = self._target.alone(self._source, use.context_length)
        self._rows_per_epoch = self._target.rows_per_epoch(self._stream)
        dataset = self._target.described(self._stream)[0].name
        self.source = use.source
        self._begun = {"source": use.source, "part": index, "dataset": dataset}
        self.samples = sum(int((each[:, 1] - each[:, 0]).sum()) for each in ranges)
        self.tokens = self.samples * use.context_length

    def lines(self, *, expands: bool) -> Iterator[dict[str, Any]]:
        """Yield its line, and those of its epochs."""
        yield self._own_line()
        for epochs, samples in self._parts():
            rows = int((samples.ranges[:, 1] - samples.ranges[:, 0]).sum())
            begun = {**self._begun, "epochs": epochs, "times": samples.times}
            yield {"kind": "epochs", **begun, "rows": rows}
            if expands or rows <= ROWS_AS_RANGES_MAX or rows == self._rows_per_epoch:
                yield from self._range_lines(begun, samples.ranges)
            else:
                yield from self._sample_lines(begun, samples.ranges)

    def _own_line(self) -> dict[str, Any]:
        source, length = self._source, self._use.context_length
        rows_per_epoch = self._rows_per_epoch
        assert source.corpus is not None
        return {
            "kind": "source",
            **self._begun,
            "fingerprint": source.corpus.fingerprint.hex(),
            **self._order(),
            "long_documents": source.long_documents or None,
            "pieces_hash": source.corpus.pieces_at(length).hex() or None,
            "redactions": [each.hex() for each in self._use.redactions],
            "samples": self.samples,
            "tokens": self.tokens,
            "epochs": self.samples / rows_per_epoch if rows_per_epoch else None,
            "rows_per_epoch": rows_per_epoch,
        }

    def _order(self) -> dict[str, Any]:
        """Return what samples are rows by."""
        return {
            "order": self._source.order.NAME,
            "seed": self._source.seed,
            "group_blocks": self._source.group_blocks or None,
            "context_length": self._use.context_length,
        }

    def _parts(self) -> Iterator[tuple[list[int] | None, EpochSamples]]:
        """Yield the samples by epoch, with the epochs [first, end), None for an order without."""
        if self._rows_per_epoch is None:
            for times, ranges in by_times(self._ranges):
                yield None, EpochSamples(0, 1, times, ranges)
            return
        for samples in by_epoch(self._ranges, self._rows_per_epoch):
            yield [samples.first_epoch, samples.end_epoch], samples

    def _range_lines(self, begun: dict[str, Any], samples: Numbers) -> Iterator[dict[str, Any]]:
        rows = "pieces" if self._stream.reads_documents else "rows"
        for page in self._target.coverage_pages(self._stream, samples):
            files = {each.file: each.name for each in page.files}
            for each in page.ranges:
                has_documents = each.HasField("first_document")
                yield {
                    "kind": "range",
                    **begun,
                    "file": each.file,
                    "file_name": files.get(each.file, ""),
                    "tokens": [each.first_token, each.end_token],
                    "documents": (
                        [each.first_document, each.end_document] if has_documents else None
                    ),
                    rows: each.row_count,
                }

    def _sample_lines(self, begun: dict[str, Any], samples: Numbers) -> Iterator[dict[str, Any]]:
        for first, end in samples.tolist():
            yield {
                "kind": "samples",
                **begun,
                **self._order(),
                "samples": [first, end],
                "rows": end - first,
            }


class Use(NamedTuple):
    """How the samples of a source were read.

    source: its number in the stream.  context_length: T.  redactions: hashes of its lists that were
    in force, ascending.
    """

    source: int
    context_length: int
    redactions: tuple[bytes, ...]


def consumed(stream: Stream, history: History) -> dict[Use, list[Numbers]]:
    """Return the own samples of each source that were delivered, without padding.

    Returns: int64[n, 2] each, ascending ranges that neither overlap nor touch; a sample that was
    delivered several times is in several of them (own_samples.py counts them).
    """
    found: dict[Use, list[Numbers]] = {}
    for times, ranges in by_times([ranges_of(history)]):
        for use, own in _own_of(stream, ranges):
            found.setdefault(use, []).extend([own] * times)
    return found


def _own_of(stream: Stream, ranges: Numbers) -> Iterator[tuple[Use, Numbers]]:
    """Yield the own samples in ranges of samples, by stage and by the redactions in force."""
    begins = [stage.first_sample for stage in stream.stages]
    later = [each.first_sample for each in stream.redactions if each.first_sample > begins[0]]
    for first, end in pairwise(sorted({*begins, *later, SAMPLE_END - 1})):
        part, _ = stream.at(first)
        for source, own in zip(
            part.sources, own_samples_of(part, np.clip(ranges, first, end)), strict=True
        ):
            if own.size:
                lists = {one.list_hash for one in part.redactions if one.source == source.number}
                yield Use(source.number, part.context_length, tuple(sorted(lists))), own
