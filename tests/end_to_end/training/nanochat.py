"""nanochat's way from parquet to rows, written from its description, as a peer.

Rank r of W reads row groups r, r + W, ...; each document has a token before it; up to 1,000 of them
wait in a buffer. A row takes the longest that fits, again and again, and where none fits the
shortest, cropped. What it remembers is the row group; on resume it goes on with the next of its
own, and what was in the buffer is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

State = dict[str, int]
BUFFER_DOCUMENTS = 1000
BATCH_DOCUMENTS = 128


@dataclass(frozen=True)
class Document:
    """Its number in the files, and its tokens."""

    number: int
    tokens: Sequence[int]


class NanochatLoader:
    """Rows of one rank.  state: of the last row that was delivered.  handed_out: numbers of the
    documents that were in them, whole or cropped.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        encode: Callable[[list[str]], list[list[int]]],
        *,
        row_tokens: int,
        rank: int,
        world_size: int,
        state: State | None = None,
    ) -> None:
        self.state: State = dict(state or {})
        self.handed_out: list[int] = []
        self._encode = encode
        self._row_tokens = row_tokens
        self._batches = self._read(paths, rank, world_size, state)
        self._buffer: list[Document] = []
        self._read_state: State = {}

    def rows(self) -> Iterator[list[int]]:
        """Rows until the files are read once."""
        while True:
            row: list[int] = []
            while len(row) < self._row_tokens:
                self._refill()
                if not self._buffer:
                    return
                row += self._take(self._row_tokens - len(row))
            self.state = dict(self._read_state)
            yield row

    def _take(self, room: int) -> Sequence[int]:
        fitting = [one for one in self._buffer if len(one.tokens) <= room]
        if fitting:
            taken = max(fitting, key=lambda one: len(one.tokens))
        else:
            taken = min(self._buffer, key=lambda one: len(one.tokens))
        self._buffer.remove(taken)
        self.handed_out.append(taken.number)
        return taken.tokens[:room]

    def _refill(self) -> None:
        while len(self._buffer) < BUFFER_DOCUMENTS:
            batch = next(self._batches, None)
            if batch is None:
                return
            documents, self._read_state = batch
            self._buffer += documents

    def _read(
        self, paths: Sequence[Path], rank: int, world_size: int, state: State | None
    ) -> Iterator[tuple[list[Document], State]]:
        import pyarrow.parquet

        files: list[Any] = [pyarrow.parquet.ParquetFile(path) for path in paths]
        first_number = 0
        for file_index, file in enumerate(files):
            firsts = [first_number]
            for group in range(file.num_row_groups):
                firsts.append(firsts[-1] + file.metadata.row_group(group).num_rows)
            first_number = firsts[-1]
            group = rank
            if state is not None and file_index < state["pq_idx"]:
                continue
            if state is not None and file_index == state["pq_idx"]:
                group = (state["rg_idx"] // world_size + 1) * world_size + rank
            for index in range(group, file.num_row_groups, world_size):
                texts = file.read_row_group(index, columns=["text"]).column("text").to_pylist()
                for first in range(0, len(texts), BATCH_DOCUMENTS):
                    tokens = self._encode(texts[first : first + BATCH_DOCUMENTS])
                    documents = [
                        Document(firsts[index] + first + place, [0, *found])
                        for place, found in enumerate(tokens)
                    ]
                    yield documents, {"pq_idx": file_index, "rg_idx": index}
