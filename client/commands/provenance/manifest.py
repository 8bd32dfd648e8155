"""tokenfeed manifest: everything that a run has read, per source and epoch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tokenfeed.errors import InvalidRequest

from ...provenance.asking import Provenance, covered, open_provenance
from ...provenance.consumption import Consumed, consumed, stream_totals
from .asked import AskedRun, read_run
from .output import require_parquet, write_jsonl, write_parquet
from .words import printable_errors

# A row that is far from the others is a range of about 150 bytes; its epoch, as the samples that
# were read, is one line. So a partial epoch takes at most 1.2 MB, and that of a small dataset still
# says which tokens were read.
ROWS_AS_RANGES_MAX = 8192
"""A partial epoch with more rows is written as samples."""


def run_manifest(arguments: argparse.Namespace) -> None:
    """Write everything that a run has read."""
    if arguments.format == "parquet":
        require_parquet()
        if arguments.output is None:
            raise InvalidRequest("output", "is missing; a parquet file is not written to stdout")
    with printable_errors():
        asked = read_run(arguments)
        with closing(open_provenance(arguments.target)) as provenance:
            lines = manifest_lines(asked, provenance, expands=arguments.expand)
            if arguments.format == "parquet":
                write_parquet(lines, arguments.output)
            else:
                write_jsonl(lines, arguments.output)


def manifest_lines(
    asked: AskedRun, provenance: Provenance, *, expands: bool
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a manifest, each a dict of plain values.

    expands: write ranges however many rows of an epoch were read.  Raises: TokenfeedError.
    """
    runs = asked.history.runs
    yield {
        "kind": "run",
        "known": asked.words,
        "first_step": asked.history.first_batch,
        "end_step": asked.steps,
        "is_complete": asked.history.first_batch == 0,
        "samples": sum(run.end_sample - run.first_sample for run in runs),
        "tokens": sum(
            (run.end_sample - run.first_sample) * run.spec.context_length for run in runs
        ),
    }
    yield from _streams(asked)
    for index, source in enumerate(consumed(asked.history)):
        yield from _source(index, source, asked, provenance, expands=expands)


def _streams(asked: AskedRun) -> Iterator[dict[str, Any]]:
    for parts, steps, samples in stream_totals(asked.history):
        yield {
            "kind": "stream",
            "order": parts.order,
            "seed": parts.seed,
            "context_length": parts.context_length,
            "fingerprint": parts.fingerprint,
            "stages": [
                {
                    "first_sample": stage.first_sample,
                    "weights": {
                        source.dataset: weight
                        for source, weight in zip(parts.sources, stage.weights, strict=True)
                        if weight
                    },
                }
                for stage in parts.stages
            ],
            "redactions": [each._asdict() for each in parts.redactions],
            "steps": steps,
            "samples": samples,
            "tokens": samples * parts.context_length,
        }


def _source(
    index: int, source: Consumed, asked: AskedRun, provenance: Provenance, *, expands: bool
) -> Iterator[dict[str, Any]]:
    spec, expected = asked.corpora.alone(source.parts, source.number)
    rows_per_epoch = asked.corpora.rows_per_epoch(spec)
    length, values = source.key
    dataset = asked.corpora.described(spec)[0].name
    yield {
        "kind": "source",
        "source": index,
        "dataset": dataset,
        "fingerprint": values.fingerprint,
        "order": values.order,
        "seed": values.seed,
        "context_length": length,
        "long_documents": values.long_documents or None,
        "pieces": values.pieces or None,
        "samples": source.samples,
        "tokens": source.samples * length,
        "epochs": source.samples / rows_per_epoch if rows_per_epoch else None,
        "rows_per_epoch": rows_per_epoch,
    }
    for part in source.by_epoch(rows_per_epoch):
        samples = part.samples
        rows = int((samples.ranges[:, 1] - samples.ranges[:, 0]).sum())
        as_ranges = expands or rows <= ROWS_AS_RANGES_MAX or rows == rows_per_epoch
        begun = {"source": index, "dataset": dataset, "epochs": part.epochs, "times": samples.times}
        yield {"kind": "epochs", **begun, "rows": rows}
        if as_ranges:
            for page in covered(provenance, spec, expected, samples.ranges):
                files = {each.file: each.name for each in page.files}
                for each in page.ranges:
                    has_documents = each.HasField("first_document")
                    documents = [each.first_document, each.end_document] if has_documents else None
                    yield {
                        "kind": "range",
                        **begun,
                        "file": each.file,
                        "file_name": files.get(each.file, ""),
                        "tokens": [each.first_token, each.end_token],
                        "documents": documents,
                        "pieces" if spec.reads_documents else "rows": each.row_count,
                    }
            continue
        for first, end in samples.ranges.tolist():
            yield {
                "kind": "samples",
                **begun,
                "order": values.order,
                "seed": values.seed,
                "context_length": length,
                "samples": [first, end],
                "rows": end - first,
            }
