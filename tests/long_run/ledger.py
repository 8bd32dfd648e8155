"""What arrived in the long run, and what has to arrive: the one written down by the trainers, the
other computed from the files by the second implementation (tests/support/reference.py).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tests.support import reference

T = 256
SEED = 20_26
ORDER_OF = {"web": "shuffled-1", "code": "random-1", "math": "sequential-1", "books": "packed-1"}
FILL = 7
BLOCK = 1 << 19
GROWN = "grown"
GROUP_BLOCKS = 16
ENTRY = np.dtype([("sample", "<i8"), ("source", "<i2"), ("digest", "S16")])


def entries(batch: Any) -> np.ndarray:
    """Return an ENTRY for each row of a batch of `NumpyBatches.batches()` that has a sample."""
    found = np.empty(len(batch.tokens), ENTRY)
    found["sample"], found["source"] = batch.sample, batch.source
    found["digest"] = [digest(row) for row in batch.tokens]
    return found[found["sample"] >= 0]


def digest(tokens: np.ndarray) -> bytes:
    """Return 16 bytes, none of them a zero at the end, which an array of bytes would lose."""
    return hashlib.sha256(np.ascontiguousarray(tokens, "<u2").tobytes()).hexdigest()[:16].encode()


class Stream(Protocol):
    """What was asked for."""

    names: Sequence[str]

    def copy(self) -> Stream:
        """Return the same, for a checkpoint."""

    def rows(self, corpora: Corpora) -> Rows:
        """Return its rows."""

    def batches(
        self, first_sample: int, batch_size: int, rank: int, world_size: int
    ) -> Iterator[Sequence[int]]:
        """Yield the samples of the batches of a rank.

        first_sample: with which the first batch of rank 0 begins.
        """


class Rows(Protocol):
    """The rows of a stream."""

    def source(self, sample: int) -> tuple[int, int]:
        """Return the source of a sample, and its sample in the order of that one."""

    def pieces(self, sample: int) -> list[list[int]]:
        """Return [file, first token, length] of each piece of a row."""

    def entry(self, sample: int) -> tuple[int, int, bytes]:
        """Return what has to be written down of a sample."""


@dataclass
class Mixed:
    """A mixture: weights and redactions, each from a sample on.

    asked: (sample, weight of each source).  lists: (sample, source, list) of each redaction.
    """

    names = tuple(ORDER_OF)

    asked: list[tuple[int, list[int]]]
    lists: list[tuple[int, int, reference.RedactionList]] = field(default_factory=list)

    @property
    def stages(self) -> list[reference.Stage]:
        """The stages that were asked for."""
        return reference.stages(self.asked)

    def copy(self) -> Mixed:
        """Return the same, for a checkpoint."""
        return Mixed(list(self.asked), list(self.lists))

    def rows(self, corpora: Corpora) -> Rows:
        """Return its rows."""
        return MixedRows(corpora, self)

    def batches(
        self, first_sample: int, batch_size: int, rank: int, world_size: int
    ) -> Iterator[Sequence[int]]:
        """Yield the samples of the batches of a rank."""
        first = first_sample + rank * batch_size
        return (range(at, at + batch_size) for at in count(first, batch_size * world_size))


@dataclass
class Grown:
    """A mixture of a dataset in blocks and a random one: context lengths and weights, each from a
    sample on.

    asked: (sample, context length or weight of each source), the first two at 0.  token_counts: of
    the files of each source.
    """

    names = (GROWN, "code")
    asked: list[tuple[int, int | list[int]]]
    token_counts: list[list[int]]

    @property
    def stages(self) -> list[reference.GrownStage]:
        """The stages that were asked for."""
        orders = (("blocks-1", GROUP_BLOCKS), ("random-1", 0))
        sources = [
            (order, counts, blocks)
            for (order, blocks), counts in zip(orders, self.token_counts, strict=True)
        ]
        return reference.grown_stages(sources, self.asked)

    def copy(self) -> Grown:
        """Return the same, for a checkpoint."""
        return Grown(list(self.asked), self.token_counts)

    def rows(self, corpora: Corpora) -> Rows:
        """Return its rows."""
        return GrownRows(corpora, self)

    def batches(
        self, first_sample: int, batch_size: int, rank: int, world_size: int
    ) -> Iterator[Sequence[int]]:
        """Yield the samples of the batches of a rank.  batch_size: of the first length."""
        first_length, lengths = self.stages[0].context_length, list[reference.LengthStage]()
        for length, stage, _ in self.stages:
            if not lengths or lengths[-1].context_length != length:
                lengths.append(reference.LengthStage(stage.first_sample, length, 0))
        tokens = batch_size * first_length
        found = reference.length_batches(lengths, tokens, first_sample, rank, world_size)
        return ([row for row in rows if row is not None] for _, rows, _ in found)


@dataclass
class Corpora:
    """The files of the sources.

    files: tokens of each file of each source, uint16.  lengths: of the documents of each file of
    the source that is packed.
    """

    files: dict[str, list[np.ndarray]]
    lengths: list[list[int]]

    @cached_property
    def packed_rows(self) -> list[list[list[int]]]:
        """The rows of the source that is packed."""
        return reference.packed_rows(self.lengths, T)

    def pieces(self, source: int, own: int) -> list[list[int]]:
        """Return [file, first token, length] of each piece of a row.  own: its sample within the
        order of the source.
        """
        name = list(ORDER_OF)[source]
        if ORDER_OF[name] == "packed-1":
            rows = self.packed_rows
            return rows[reference.place("packed-1", SEED, len(rows), own)]
        counts = [tokens.size for tokens in self.files[name]]
        file, first = reference.window(ORDER_OF[name], SEED, counts, T, own)
        return [[file, first, T + 1]]

    def tokens(self, source: int, pieces: list[list[int]]) -> np.ndarray:
        """Return the tokens of a row, uint16[T + 1]."""
        files = self.files[list(ORDER_OF)[source]]
        row = np.zeros(T + 1, "<u2")
        parts = [files[file][first : first + n] for file, first, n in pieces]
        joined = np.concatenate(parts)
        row[: joined.size] = joined
        return row


class MixedRows:
    """The rows of a mixture."""

    def __init__(self, corpora: Corpora, stream: Mixed) -> None:
        """Compute its stages."""
        self._corpora, self._stream = corpora, stream
        self._stages = stream.stages
        self._begins = [stage.first_sample for stage in self._stages]

    def source(self, sample: int) -> tuple[int, int]:
        """Return the source of a sample, and its sample in the order of that one."""
        number = bisect_right(self._begins, sample) - 1
        return reference.stage_place(SEED, number, self._stages[number], sample)

    def pieces(self, sample: int) -> list[list[int]]:
        """Return [file, first token, length] of each piece of a row."""
        return self._corpora.pieces(*self.source(sample))

    def entry(self, sample: int) -> tuple[int, int, bytes]:
        """Return what has to be written down of a sample."""
        source, own = self.source(sample)
        pieces = self._corpora.pieces(source, own)
        tokens = self._corpora.tokens(source, pieces)
        lists = [one for begin, of, one in self._stream.lists if begin <= sample and of == source]
        if any(touches(piece, one) for one in lists for piece in pieces):
            sent, _ = reference.redacted_row(tokens.tolist(), pieces, lists)
            tokens = np.array(sent, "<u2")
        return sample, source, digest(tokens)


class GrownRows:
    """The rows of a mixture whose context length changes."""

    def __init__(self, corpora: Corpora, stream: Grown) -> None:
        """Compute its stages."""
        self._files = [corpora.files[name] for name in stream.names]
        self._counts, self._stages = stream.token_counts, stream.stages
        self._begins = [each.stage.first_sample for each in self._stages]

    def source(self, sample: int) -> tuple[int, int]:
        """Return the source of a sample, and its sample in the order of that one."""
        number = bisect_right(self._begins, sample) - 1
        return reference.stage_place(SEED, number, self._stages[number].stage, sample)

    def pieces(self, sample: int) -> list[list[int]]:
        """Return [file, first token, length] of each piece of a row."""
        length = self._stages[bisect_right(self._begins, sample) - 1].context_length
        source, own = self.source(sample)
        if source == 0:
            place = reference.blocks_window(SEED, self._counts[0], length, GROUP_BLOCKS, own)
        else:
            place = reference.window("random-1", SEED, self._counts[source], length, own)
        return [[*place, length + 1]]

    def entry(self, sample: int) -> tuple[int, int, bytes]:
        """Return what has to be written down of a sample."""
        ((file, first, n),) = self.pieces(sample)
        source, _ = self.source(sample)
        return sample, source, digest(self._files[source][file][first : first + n])


def touches(piece: list[int], one: reference.RedactionList) -> bool:
    """Whether a list redacts a token of a piece."""
    file, first, n = piece
    return any(f == file and begin < first + n and end > first for f, begin, end in one.ranges)


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps of the ranks of a job.

    folder: with the ledger of each rank.  batch_size: of the first context length.  steps: how
    many of it are in the run, up to end_sample; what the ranks did behind them was forgotten when
    they were killed, and came again.  stream: as it was at the end.
    """

    folder: Path
    batch_size: int
    world_size: int
    first_sample: int
    steps: int
    end_sample: int
    stream: Stream

    def batches(self, rank: int) -> Iterator[Sequence[int]]:
        """Yield the samples of the batches of a rank."""
        return self.stream.batches(self.first_sample, self.batch_size, rank, self.world_size)

    def compare(self, corpora: Corpora) -> Counter[str]:
        """Count rows that are right, wrong, lost, and forgotten (which have to be right too)."""
        rows, counts = self.stream.rows(corpora), Counter[str]()
        for rank in range(self.world_size):
            samples = chain.from_iterable(self.batches(rank))
            # A trainer that was killed may have written a part of a row, which is left out here.
            for entry in np.fromfile(self.folder / f"rank-{rank}", ENTRY).tolist():
                due = next(samples)
                is_right = entry == rows.entry(due)
                counts["right" if is_right else "wrong"] += 1
                counts["forgotten"] += due >= self.end_sample
            counts["lost"] += sum(1 for _ in takewhile(self.end_sample.__gt__, samples))
        counts["right"] -= counts["forgotten"]
        return counts
