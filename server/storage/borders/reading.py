"""Where documents begin within rows: a plane that is read from an array or from one mapped file.

The entries of all files lie end to end: for each document its first token, counted within its
file. Of a mapped file (kept/mapped.py), only every 64th entry is held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenfeed.sampling.spans import Spans
from tokenfeed.stream.planes import DOCUMENT_STARTS
from tokenfeed.wire.row_block import Plane

from ..kept.mapped import NUMBER, MappedNumbers, Numbers

ENTRY = NUMBER
WHAT = "document borders"
"""What the file holds, in messages."""
# 512 rows of 2,049 tokens with 3 starts each take 0.2 to 0.3 ms out of 20,000 entries, 0.3 to 0.5
# out of a million and 0.4 to 0.6 out of ten million: mostly cache misses. With every 16th entry in
# memory they took 0.2, 0.3 to 0.4 and 0.4 to 0.6, for four times the memory. 2 shared cores,
# 2026-11.
SPARSE = 64
"""Every such entry is held in memory: 1/64 of the file."""
_ENTRIES_AT_ONCE = 1 << 17
"""Entries that are copied in one step, a MiB."""
FOOTER = b"TKFDOCS1"
"""The end of a file of entries."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where files begin among all tokens and among all entries.

    first_tokens, first_entries: int64[files + 1], the last one is how many there are.
    """

    first_tokens: Numbers
    first_entries: Numbers

    @classmethod
    def of(cls, token_counts: Numbers, entry_counts: Numbers) -> Places:
        """Add up the counts of files.  token_counts, entry_counts: int64[files]."""
        return cls(_sums(token_counts), _sums(entry_counts))

    @property
    def entry_count(self) -> int:
        """Entries of all files."""
        return int(self.first_entries[-1])

    def counted_over_all(self, entries: Numbers, first_entry: int) -> Numbers:
        """Return consecutive entries, counted over the tokens of all files.

        entries: int64[n], at least one.  first_entry: index of the first of them.
        """
        end = first_entry + entries.size
        first_file, end_file = np.searchsorted(self.first_entries, (first_entry, end - 1), "right")
        within = np.clip(self.first_entries[first_file - 1 : end_file + 1], first_entry, end)
        return entries + np.repeat(self.first_tokens[first_file - 1 : end_file], np.diff(within))


class Entries(Protocol):
    """The entries of all files. All methods may be called from several threads at once."""

    def within(self, spans: Spans, patient: bool) -> tuple[Numbers, Numbers]:
        """Return where documents begin within windows, but for their first token.

        Returns: int64[rows], how many of each row; and int64[n], counted within their row.
        Raises: CorpusChanged, Unreadable.
        """

    @property
    def places(self) -> Places:
        """Where files begin among tokens and entries."""

    def of_file(self, file: int) -> Numbers:
        """Return all entries of a file: int64[n].  Raises: CorpusChanged, Unreadable."""

    def close(self) -> None:
        """Release everything. May be called twice."""


class Borders:
    """The plane of document starts of a dataset. May be read from several threads at once.

    kind: its field in a frame.  fingerprint: 32 bytes.  count: its entries.
    """

    kind = DOCUMENT_STARTS
    progress = 1.0
    cold = False

    def __init__(self, entries: Entries, count: int, fingerprint: bytes) -> None:
        """Take entries, which are closed with this."""
        self.fingerprint = fingerprint
        self.count = count
        self._entries = entries

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Return where documents begin within rows, uint32 little-endian; see docs/protocol.md.

        spans: windows of this dataset, whatever their source.  patient: whether failed reads are
        retried before Unreadable is raised, and their cause is found out.
        Raises: CorpusChanged, Unreadable.
        """
        assert spans.are_windows
        counts, starts = self._entries.within(spans, patient)
        content = starts.astype("<u4").view(np.uint8)
        return Plane(self.kind, (4 * counts).astype(np.uint32), content)

    @property
    def counts(self) -> Numbers:
        """int64[files], entries of each file."""
        return np.diff(self._entries.places.first_entries)

    def starts_of(self, file: int) -> Numbers:
        """Return where the documents of a file begin: int64[n], ascending, the first one is 0.

        Raises: CorpusChanged, Unreadable.
        """
        return self._entries.of_file(file)

    def advise(self, spans: Spans) -> None:
        """Do nothing: entries are few bytes beside their tokens."""

    def close(self) -> None:
        """Release everything. A read in progress fails with CorpusChanged. May be called twice."""
        self._entries.close()


class MemoryEntries:
    """Entries in an array."""

    def __init__(self, places: Places, entries: Numbers) -> None:
        """entries: int64[n], at least one, counted within their files."""
        self.places = places
        self._first_tokens = places.first_tokens
        self._starts = places.counted_over_all(entries, 0)

    def within(self, spans: Spans, patient: bool) -> tuple[Numbers, Numbers]:
        """Return where documents begin within windows."""
        first_token = self._first_tokens[spans.shard] + spans.token_offset
        first = np.searchsorted(self._starts, first_token, "right")
        counts = np.searchsorted(self._starts, first_token + spans.row_tokens) - first
        ends = np.cumsum(counts)
        total = int(ends[-1]) if ends.size else 0
        found = self._starts[np.arange(total) + np.repeat(first - ends + counts, counts)]
        return counts, found - np.repeat(first_token, counts)

    def of_file(self, file: int) -> Numbers:
        """Return all entries of a file."""
        first, end = self.places.first_entries[file : file + 2]
        starts: Numbers = self._starts[first:end] - self._first_tokens[file]
        return starts

    def close(self) -> None:
        """Release nothing: the array is garbage when this is."""


class MappedEntries:
    """Entries in a file, which begins with them and ends with FOOTER."""

    def __init__(
        self, name: str, places: Places, sparse: Numbers, descriptor: int, path: str
    ) -> None:
        """Map an open file.

        name: of the dataset.  sparse: int64[ceil(n / SPARSE)], every such entry, counted over all
        files.  descriptor: may be closed afterwards.  path: "" if the file has no name.
        Raises: OSError.
        """
        self.places = places
        self._sparse = sparse
        self._file = MappedNumbers(WHAT, name, descriptor, path, FOOTER)

    def within(self, spans: Spans, patient: bool) -> tuple[Numbers, Numbers]:
        """Return where documents begin within windows; copies only what lies between two of the
        entries in memory.
        """
        self._file.require(True)
        base = self.places.first_tokens[spans.shard]
        first_token = base + spans.token_offset
        # The entry before this one is at most the first token, and its index is at least 0.
        block = np.searchsorted(self._sparse, first_token, "right") - 1
        end_block = self._end_block(block, first_token + spans.row_tokens)
        file_first = self.places.first_entries[spans.shard]
        first = np.maximum(SPARSE * block, file_first)
        end = np.minimum(SPARSE * end_block, self.places.first_entries[spans.shard + 1])
        sizes = end - first  # at least 1: the entry at or before the first token
        ends = np.cumsum(sizes)
        firsts = ends - sizes
        total = int(ends[-1]) if ends.size else 0
        copied = self._file.ranges(first, sizes, total, patient)
        known = np.where(first == file_first, 0, self._sparse[block] - base)
        self._require_whole(copied, firsts, known)
        beyond = np.repeat(spans.token_offset + 1, sizes)
        np.subtract(copied, beyond, out=beyond)
        # As unsigned numbers, those at or before the first token are larger than any.
        inside = beyond.view(np.uint64) < np.uint64(spans.row_tokens - 1)
        counts = np.add.reduceat(inside.view(np.uint8), firsts, dtype=np.int64)
        return counts, beyond[np.flatnonzero(inside)] + 1

    def of_file(self, file: int) -> Numbers:
        """Return all entries of a file, read in bounded parts."""
        first, end = self.places.first_entries[file : file + 2].tolist()
        starts = np.empty(end - first, dtype=np.int64)
        for begin in range(first, end, _ENTRIES_AT_ONCE):
            size = min(_ENTRIES_AT_ONCE, end - begin)
            found = self._file.ranges(np.array([begin]), np.array([size]), size)
            starts[begin - first : begin - first + size] = found
        in_memory = self._sparse[-(-first // SPARSE) : -(-end // SPARSE)]
        own = starts[-first % SPARSE :: SPARSE] + self.places.first_tokens[file]
        ascends = (starts[1:] > starts[:-1]).all()
        self._file.require(bool(ascends and starts[0] == 0 and (own == in_memory).all()))
        return starts

    def close(self) -> None:
        """Unmap the file. A read in progress fails with CorpusChanged."""
        self._file.close()

    def _end_block(self, block: Numbers, end_token: Numbers) -> Numbers:
        """Return the first block behind `block` whose first entry is at or behind end_token."""
        found = block + 1
        # For most rows that is the next one; to search for all would take a tenth of a read.
        beyond = self._sparse[np.minimum(found, self._sparse.size - 1)] < end_token
        beyond &= found < self._sparse.size
        if beyond.any():
            found[beyond] = np.searchsorted(self._sparse, end_token[beyond])
        return found

    def _require_whole(self, copied: Numbers, firsts: Numbers, known: Numbers) -> None:
        """Raise CorpusChanged unless these are entries of the file that was mapped.

        firsts: int64[rows], where the entries of each row begin.  known: int64[rows], what they
        have to begin with.
        """
        ascends = copied[1:] > copied[:-1]
        ascends[firsts[1:] - 1] = True
        self._file.require(bool(ascends.all() and (copied[firsts] == known).all()))


def _sums(counts: Numbers) -> Numbers:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
