"""Where documents begin: all of a file, and within rows, as a plane.

The starts of all files lie end to end: for each document that has tokens its first token, counted
within its file. Of a mapped file only every 64th start is held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenfeed.errors import Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.wire.row_block import Plane

from .background_build import Build, Stopped, never
from .numbers import HeldNumbers, IndexNumbers, Numbers, sums

# 512 rows of 2,049 tokens with 3 starts each take 0.2 to 0.3 ms out of 20,000 starts, 0.3 to 0.5
# out of a million and 0.4 to 0.6 out of ten million: mostly cache misses. With every 16th start in
# memory they took 0.2, 0.3 to 0.4 and 0.4 to 0.6, for four times the memory. 2 shared cores,
# 2026-11.
SPARSE = 64
"""Every such start is held in memory: 1/64 of the file."""
_STARTS_AT_ONCE = 1 << 17
"""Starts that are copied in one step, a MiB."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where files begin among all tokens and among all starts.

    first_tokens, first_starts: int64[files + 1], the last one is how many there are.
    """

    first_tokens: Numbers
    first_starts: Numbers

    @classmethod
    def of(cls, token_counts: Numbers, start_counts: Numbers) -> Places:
        """Add up the counts of files.  token_counts, start_counts: int64[files]."""
        return cls(sums(token_counts), sums(start_counts))

    @property
    def start_count(self) -> int:
        """Starts of all files."""
        return int(self.first_starts[-1])

    def counted_over_all(self, starts: Numbers) -> Numbers:
        """Return all starts, counted over the tokens of all files.  starts: int64[n]."""
        return starts + np.repeat(self.first_tokens[:-1], np.diff(self.first_starts))


class StartIndex:
    """The starts of all files. All methods may be called from several threads at once.

    fingerprint: of the plane, 32 bytes.
    """

    def __init__(
        self, places: Places, sparse: Numbers, numbers: IndexNumbers, fingerprint: bytes
    ) -> None:
        """Take numbers, which are closed with this.

        sparse: int64[ceil(n / SPARSE)], every such start, counted over all files.
        """
        self.places = places
        self.fingerprint = fingerprint
        self._sparse = sparse
        self._numbers = numbers
        self._held: Numbers | None = None
        if isinstance(numbers, HeldNumbers):
            self._held = places.counted_over_all(numbers.all)

    @property
    def is_held(self) -> bool:
        """Whether all of it is in memory."""
        return self._held is not None

    def within(self, spans: Spans, patient: bool) -> tuple[Numbers, Numbers]:
        """Return where documents begin within windows, but for their first token.

        Returns: int64[rows], how many of each row; and int64[n], counted within their row.
        Raises: CorpusChanged, Unreadable.
        """
        if self._held is None:
            return self._within_mapped(spans, patient)
        first_token = self.places.first_tokens[spans.shard] + spans.token_offset
        first = np.searchsorted(self._held, first_token, "right")
        counts = np.searchsorted(self._held, first_token + spans.row_tokens) - first
        ends = np.cumsum(counts)
        total = int(ends[-1]) if ends.size else 0
        found = self._held[np.arange(total) + np.repeat(first - ends + counts, counts)]
        return counts, found - np.repeat(first_token, counts)

    def of_file(self, file: int) -> Numbers:
        """Return all starts of a file, int64[n]; those of a mapped file are read in bounded parts.

        Raises: CorpusChanged, Unreadable.
        """
        first, end = self.places.first_starts[file : file + 2].tolist()
        base = self.places.first_tokens[file]
        if self._held is not None:
            held: Numbers = self._held[first:end] - base
            return held
        starts = np.empty(end - first, dtype=np.int64)
        for begin in range(first, end, _STARTS_AT_ONCE):
            size = min(_STARTS_AT_ONCE, end - begin)
            found = self._numbers.ranges(np.array([begin]), np.array([size]), size)
            starts[begin - first : begin - first + size] = found
        in_memory = self._sparse[-(-first // SPARSE) : -(-end // SPARSE)]
        own = starts[-first % SPARSE :: SPARSE] + base
        ascends = (starts[1:] > starts[:-1]).all()
        self._numbers.require(bool(ascends and starts[0] == 0 and (own == in_memory).all()))
        return starts

    def close(self) -> None:
        """Release everything. A read in progress fails with CorpusChanged. May be called twice."""
        self._numbers.close()

    def _within_mapped(self, spans: Spans, patient: bool) -> tuple[Numbers, Numbers]:
        """Copy only what lies between two of the starts in memory."""
        self._numbers.require(True)
        base = self.places.first_tokens[spans.shard]
        first_token = base + spans.token_offset
        # The start before this one is at most the first token, and its index is at least 0.
        block = np.searchsorted(self._sparse, first_token, "right") - 1
        end_block = self._end_block(block, first_token + spans.row_tokens)
        file_first = self.places.first_starts[spans.shard]
        first = np.maximum(SPARSE * block, file_first)
        end = np.minimum(SPARSE * end_block, self.places.first_starts[spans.shard + 1])
        sizes = end - first  # at least 1: the start at or before the first token
        ends = np.cumsum(sizes)
        firsts = ends - sizes
        total = int(ends[-1]) if ends.size else 0
        copied = self._numbers.ranges(first, sizes, total, patient)
        known = np.where(first == file_first, 0, self._sparse[block] - base)
        self._require_whole(copied, firsts, known)
        beyond = np.repeat(spans.token_offset + 1, sizes)
        np.subtract(copied, beyond, out=beyond)
        # As unsigned numbers, those at or before the first token are larger than any.
        inside = beyond.view(np.uint64) < np.uint64(spans.row_tokens - 1)
        counts = np.add.reduceat(inside.view(np.uint8), firsts, dtype=np.int64)
        return counts, beyond[np.flatnonzero(inside)] + 1

    def _end_block(self, block: Numbers, end_token: Numbers) -> Numbers:
        """Return the first block behind `block` whose first start is at or behind end_token."""
        found = block + 1
        # For most rows that is the next one; to search for all would take a tenth of a read.
        beyond = self._sparse[np.minimum(found, self._sparse.size - 1)] < end_token
        beyond &= found < self._sparse.size
        if beyond.any():
            found[beyond] = np.searchsorted(self._sparse, end_token[beyond])
        return found

    def _require_whole(self, copied: Numbers, firsts: Numbers, known: Numbers) -> None:
        """Raise CorpusChanged unless these are starts of the file that was mapped.

        firsts: int64[rows], where the starts of each row begin.  known: int64[rows], what they
        have to begin with.
        """
        ascends = copied[1:] > copied[:-1]
        ascends[firsts[1:] - 1] = True
        self._numbers.require(bool(ascends.all() and (copied[firsts] == known).all()))


class DocumentStarts(Build[StartIndex]):
    """Where the documents of a dataset begin, as a plane. While they are still being searched for,
    it has no fingerprint, and becomes usable by itself. All methods may be called from several
    threads at once.

    is_search: whether they are searched for while its tokens are served.
    """

    kind = DOCUMENT_STARTS
    cold = False
    is_search = False

    @property
    def is_known(self) -> bool:
        """Whether they can be read."""
        return self.result is not None

    @property
    def has_failed(self) -> bool:
        """Whether the search has ended without a result."""
        return self.error is not None

    @property
    def fingerprint(self) -> bytes:
        """That of the plane, 32 bytes; b"" until it is known."""
        index = self.result
        return b"" if index is None else index.fingerprint

    @property
    def count(self) -> int:
        """How many documents with tokens there are; 0 until it is known."""
        index = self.result
        return 0 if index is None else index.places.start_count

    @property
    def counts(self) -> Numbers:
        """int64[files], documents with tokens of each file.  Raises: Unreadable."""
        return np.diff(self.require_known().places.first_starts)

    def require_known(self) -> StartIndex:
        """Return what was found.  Raises: Unreadable, with the progress or the failure."""
        if (index := self.result) is not None:
            return index
        if self.has_failed:
            problem = "has no document borders: the search for them failed"
            cure = "the log of its server says why"
        else:
            done = f"{100 * self.progress:.1f} % are done"
            problem = f"is still being searched for document borders; {done}"
            cure = "retry later, or on another server"
        raise Unreadable("dataset", f"{self._name!r} {problem}; {cure}")

    def starts_of(self, file: int) -> Numbers:
        """Return where the documents of a file begin: int64[n], ascending, the first one is 0.

        Raises: CorpusChanged, Unreadable.
        """
        return self.require_known().of_file(file)

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Return where documents begin within rows, uint32 little-endian; see docs/protocol.md.

        spans: windows of this dataset, whatever their source.  patient: whether failed reads are
        retried before Unreadable is raised, and their cause is found out.
        Raises: CorpusChanged, Unreadable.
        """
        assert spans.are_windows
        counts, starts = self.require_known().within(spans, patient)
        content = starts.astype("<u4").view(np.uint8)
        return Plane(self.kind, (4 * counts).astype(np.uint32), content)

    def ready_count(self, spans: Spans) -> int | None:
        """Return that all rows are at hand, as far as is known."""
        return len(spans)

    def advise(self, spans: Spans, due_seconds: float = 0.0) -> None:
        """Do nothing: starts are few bytes beside their tokens."""

    def search_now(self, stopped: Stopped = never) -> None:
        """Search in this thread instead.  stopped: whether to stop, which raises InvalidCorpus.

        Raises: InvalidCorpus, CorpusChanged, Unreadable.
        """
        if not self.is_known:
            self.run(stopped)
