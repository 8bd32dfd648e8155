"""Corpora of documents whose tokens tell their place, and the rows over documents of them, by the
second implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tests.server.storage.documents.rows_corpora import Row, rows_by_reference
from tests.server.storage.formats.writing import megatron_index
from tests.support import reference
from tokenfeed.sampling.document_rows import RowsKey

IGNORED = -100
PADDING = 0

Pairs = tuple[list[list[int]], list[list[int]]]
"""x and y of rows."""
Order = tuple[str, str | None]
"""`order` and `long` of a feed."""

ORDERS: list[Order] = [
    ("packed", None),
    ("padded", "cut"),
    ("padded", "drop"),
    ("padded", "truncate"),
]


@dataclass(frozen=True)
class Corpus:
    """A dataset on disk. Tokens are numbered from `first` on, through all files.

    name: of the dataset.  paths: of its files.  lengths: of the documents of each file.  masked:
    tokens that are not learned.  end_token: stands in the place of the last token of each document,
    if the format does not know where documents begin.
    """

    name: str
    paths: tuple[Path, ...]
    lengths: tuple[tuple[int, ...], ...]
    first: int = 1
    masked: frozenset[int] = frozenset()
    end_token: int | None = None

    @property
    def words(self) -> list[str | Path]:
        """Arguments of a server."""
        words = ["--data", f"{self.name}={self.paths[0]}", *self.paths[1:]]
        if self.end_token is not None:
            words += ["--document-end-token", f"{self.name}={self.end_token}"]
        return words

    @property
    def target(self) -> str:
        """Of a feed of the same files."""
        option = "" if self.end_token is None else f"?document-end-token={self.end_token}"
        return f"file:{self.name}={','.join(map(str, self.paths))}{option}"

    @property
    def lasts(self) -> frozenset[int]:
        """Numbers of the last tokens of documents."""
        documents = [length for file in self.lengths for length in file]
        return frozenset((self.first - 1 + np.cumsum(documents)).tolist())

    @cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """Document and position of each token."""
        documents = [length for file in self.lengths for length in file]
        places = [(d, at) for d, length in enumerate(documents) for at in range(length)]
        return {self.first + number: place for number, place in enumerate(places)}

    def rows(self, order: Order, context_length: int) -> list[Row]:
        """All rows by their number, by the second implementation."""
        name, long = order
        key = RowsKey(f"{name}-1", context_length, long or "cut")
        return rows_by_reference(self.lengths, key)

    def pair(self, row: Row, context_length: int) -> tuple[list[int], list[int]]:
        """Return x and y of a row of pieces."""
        bases = np.cumsum([self.first, *map(sum, self.lengths)]).tolist()
        ends = {} if self.end_token is None else dict.fromkeys(self.lasts, self.end_token)
        tokens, targets = [], []
        for file, first, n in row:
            piece = list(range(bases[file] + first, bases[file] + first + n))
            values = [IGNORED if t in self.masked else ends.get(t, t) for t in piece]
            tokens += [ends.get(t, t) for t in piece]
            targets += [IGNORED, *values[1:]]
        padding = context_length + 1 - len(tokens)
        x = (tokens + padding * [PADDING])[:-1]
        return x, (targets + padding * [IGNORED])[1:]

    def expected(
        self, order: Order, context_length: int, seed: int, samples: Iterable[int]
    ) -> Pairs:
        """Return x and y of samples."""
        rows = self.rows(order, context_length)
        numbers = [reference.place("shuffled-1", seed, len(rows), sample) for sample in samples]
        pairs = [self.pair(rows[number], context_length) for number in numbers]
        return [x for x, _ in pairs], [y for _, y in pairs]

    def targets_once(self, order: Order, context_length: int) -> list[int]:
        """Return the tokens that are targets in an epoch, ascending: what the orders promise."""
        documents = [length for file in self.lengths for length in file]
        row_tokens = context_length + 1
        limit = row_tokens if order[1] == "truncate" else max(documents)
        dropped = {d for d, n in enumerate(documents) if order[1] == "drop" and n > row_tokens}
        return [
            token
            for token, (document, at) in self.places.items()
            if 0 < at < limit and document not in dropped and token not in self.masked
        ]


def write_corpus(
    folder: Path,
    lengths: Sequence[Sequence[int]],
    name: str = "train",
    *,
    first: int = 1,
    masked: frozenset[int] = frozenset(),
    form: str = "datatrove",
    end_token: int | None = None,
) -> Corpus:
    """Write files.  form: "datatrove", with a loss mask if there are masked tokens, or "megatron";
    or "raw" with an end_token, and no empty documents.
    """
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ".ds" if form == "datatrove" else ".bin"
    paths = tuple(folder / f"{index}{suffix}" for index in range(len(lengths)))
    corpus = Corpus(name, paths, tuple(map(tuple, lengths)), first, masked, end_token)
    number = first
    for path, file in zip(paths, lengths, strict=True):
        ends = np.cumsum(file)
        tokens = np.arange(number, number + sum(file), dtype="<u2")
        number += tokens.size
        stored = tokens.copy()
        if end_token is not None:
            stored[ends - 1] = end_token
        stored.tofile(path)
        if form == "datatrove":
            ends.astype("<u8").tofile(f"{path}.index")
        if form == "megatron":
            index = megatron_index(file, 2 * (ends - file), np.arange(len(file) + 1))
            path.with_suffix(".idx").write_bytes(index)
        if masked:
            mask = np.array([token not in masked for token in tokens.tolist()], np.uint8)
            mask.tofile(f"{path}.loss")
    return corpus


def random_lengths(seed: int, context_length: int, documents: int = 60) -> list[list[int]]:
    """Lengths of the documents of three files: empty ones, of one and two tokens, just as long as
    a row, one more, and several rows long.
    """
    random = np.random.default_rng(seed)
    row_tokens = context_length + 1
    special = [0, 1, 2, context_length, row_tokens, row_tokens + 1, 2 * context_length + 1]
    files = []
    for _ in range(3):
        short = random.integers(1, max(3, row_tokens), documents // 2).tolist()
        others = random.choice([*special, 5 * context_length + 3], documents // 2).tolist()
        lengths = short + others
        random.shuffle(lengths)
        files.append(lengths)
    return files
