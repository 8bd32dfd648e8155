"""The datasets of a stream, and what an answer says of their files, documents and marks: tokens of
rows that are redacted or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import provenance_pb2 as pb

from ..dataset import Dataset
from .documents import DatasetDocuments, shown_name

RowSpans: TypeAlias = Sequence[Sequence[tuple[int, int]]]
"""Of each row, [first, end) of some of its tokens."""

SPAN_BYTES = 12
"""About the size of a TokenSpan in an answer."""
INDEX_BYTES_MAX = 32 << 20
"""Indices and ids that a call reads, but for those of its first file."""
INDEX_FILES_MAX = 256
"""Files whose indices a call reads."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a stream of one stage.

    datasets, documents: of each source, in the order of stream.sources.
    """

    stream: Stream
    datasets: Sequence[Dataset]
    documents: Sequence[DatasetDocuments]

    @property
    def shapes(self) -> list[Shape]:
        """That of each dataset."""
        return [dataset.store.shape for dataset in self.datasets]

    def files(self, found: Iterable[tuple[int, int]]) -> list[pb.SourceFile]:
        """Return what an answer says of files.  found: source, by its place, and file; any of them
        several times.
        """
        return [
            pb.SourceFile(
                source=self.stream.numbers[source],
                file=file,
                name=shown_name(self.datasets[source].store.shards[file].path),
            )
            for source, file in sorted(set(found))
        ]

    def affordable(self, spans: Spans) -> int:
        """Return how many rows may be looked up in one call: those before the row of which a span
        needs too many indices of documents to be read; at least one.

        spans: their source is a place in stream.sources.
        """
        if not any(documents.are_known for documents in self.documents):
            return len(spans)
        pairs = np.stack([spans.source, spans.shard], axis=1)
        _, first = np.unique(pairs, axis=0, return_index=True)
        size_bytes = 0
        for count, span in enumerate(np.sort(first).tolist()):
            documents = self.documents[int(spans.source[span])]
            if documents.are_known:
                size_bytes += documents.index_bytes(int(spans.shard[span]))
            if count and (size_bytes > INDEX_BYTES_MAX or count >= INDEX_FILES_MAX):
                return max(1, int(np.searchsorted(spans.first_span, span, side="right")) - 1)
        return len(spans)


class RowMarks(NamedTuple):
    """Of each row: the tokens that redactions replace, and those that are deleted."""

    redacted: RowSpans
    deleted: RowSpans

    def counts(self) -> list[int]:
        """Return how many spans each row has."""
        each = zip(self.redacted, self.deleted, strict=True)
        return [len(redacted) + len(deleted) for redacted, deleted in each]


Marks: TypeAlias = Callable[[Spans], RowMarks]
"""Returns those of some rows."""


def unmarked(spans: Spans) -> RowMarks:
    """Return the marks of rows in which nothing is redacted or deleted."""
    nothing: RowSpans = [()] * len(spans)
    return RowMarks(nothing, nothing)


def messages(spans: Sequence[tuple[int, int]]) -> list[pb.TokenSpan]:
    """Return spans of a row as an answer has them."""
    return [pb.TokenSpan(first_token=first, end_token=end) for first, end in spans]
