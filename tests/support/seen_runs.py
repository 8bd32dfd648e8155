"""A training run of several ranks that was meddled with, and every row that it has read: for
tokenfeed explain, find and manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from client import Mixture
from tests.conftest import Serve, Server
from tokenfeed.client.batches.arrays import NumpyBatches

T = 15
SEED = 4
WEIGHTS = {"web": 5, "code": 3, "chat": 2}
LATER = {"web": 1, "code": 4, "chat": 3}
SOURCES: dict[str, dict[str, Any]] = {
    "web": {"order": "shuffled"},
    "code": {"order": "packed"},
    "chat": {"order": "padded", "long": "cut", "seed": 6},
}
MIXTURE = Mixture(weights=WEIGHTS, sources=SOURCES, seed=SEED, block=10)


@dataclass(frozen=True)
class Texts:
    """A dataset of documents whose tokens are bytes.

    paths: of its files.  documents: of each file, their texts.  ids: of each document of all files.
    """

    name: str
    paths: tuple[Path, ...]
    documents: tuple[tuple[str, ...], ...]
    ids: tuple[str, ...]

    def content(self, file: int) -> str:
        """The text of a file."""
        return "".join(self.documents[file])

    def document_at(self, file: int, token: int) -> tuple[int, str, int, int]:
        """Number, id, first token and end of the document that has a token."""
        number = sum(map(len, self.documents[:file]))
        first = 0
        for text in self.documents[file]:
            if token < first + len(text):
                return number, self.ids[number], first, first + len(text)
            first += len(text)
            number += 1
        raise AssertionError(f"file {file} has no token {token}")

    def place(self, number: int) -> tuple[int, int, int]:
        """File, first token and end of a document."""
        for file, texts in enumerate(self.documents):
            if number < len(texts):
                first = sum(map(len, texts[:number]))
                return file, first, first + len(texts[number])
            number -= len(texts)
        raise AssertionError("there is no such document")


def write_texts(folder: Path, name: str, seed: int, files: int = 2, documents: int = 30) -> Texts:
    """Write files as ingest does, with ids. Documents have one to five words of random letters."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths, all_texts, ids = [], [], []
    for index in range(files):
        lengths = random.integers(1, 50, documents)
        texts = ["".join(random.choice(list("abcdefgh \n"), size)) for size in lengths]
        path = folder / f"{name}-{index}.ds"
        np.frombuffer("".join(texts).encode(), np.uint8).astype("<u2").tofile(path)
        np.cumsum(lengths).astype("<u8").tofile(f"{path}.index")
        own = [f"{name}/{index}/{n}" for n in range(documents)]
        Path(f"{path}.ids").write_text("".join(f"{each}\n" for each in own))
        paths.append(path)
        all_texts.append(tuple(texts))
        ids += own
    return Texts(name, tuple(paths), tuple(all_texts), tuple(ids))


class Delivered(NamedTuple):
    """A row that a rank has read.  text: of its tokens, with NUL for padding."""

    step: int
    rank: int
    row: int
    sample: int
    dataset: str
    text: str


@dataclass
class SeenRun:
    """A run: what it has read, and the state that it has saved last."""

    target: str
    rows: list[Delivered] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Any] = field(default_factory=dict)
    skipped: list[tuple[int, int]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """How many it has taken."""
        return self.rows[-1].step + 1 if self.rows else 0

    def go(
        self,
        batch_size: int,
        world_size: int,
        steps: Sequence[int],
        *,
        skips: int = 0,
        weights: Mapping[str, float] | None = None,
        mixture: Mixture = MIXTURE,
    ) -> None:
        """Go on from the last state: some steps, a skip, and other steps, behind each other.

        weights: another mixture after the first steps, from the next sample on.
        """
        feeds = [
            NumpyBatches(
                self.target, batch_size, T, mixture=mixture, rank=rank, world_size=world_size,
                prefetch_bytes=1 << 16,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        try:
            for feed in feeds:
                if self.state:
                    feed.load_state_dict(self.state)
            for index, count in enumerate(steps):
                if index and skips:
                    begin = feeds[0].position.samples
                    self.skipped.append((begin, begin + skips))
                for feed in feeds if index else ():
                    feed.skip(skips)
                    if weights is not None:
                        feed.change_mixture(weights, at_sample=feed.position.samples)
                self._take(feeds, count)
            self.state = json.loads(json.dumps(feeds[0].state_dict()))
            self.sources = feeds[0].stats().sources
        finally:
            for feed in feeds:
                feed.close()

    def _take(self, feeds: Sequence[NumpyBatches], count: int) -> None:
        batches = [iter(feed.batches()) for feed in feeds]
        for _ in range(count):
            step = self.steps
            for rank, each in enumerate(batches):
                self.rows += _rows(step, rank, next(each))


NAMES = list(WEIGHTS)


def _rows(step: int, rank: int, batch: Any) -> Iterator[Delivered]:
    for row, (sample, source, tokens) in enumerate(
        zip(batch.sample.tolist(), batch.source.tolist(), batch.tokens.tolist(), strict=True)
    ):
        yield Delivered(step, rank, row, sample, NAMES[source], "".join(map(chr, tokens)))


def meddled_with(target: str) -> SeenRun:
    """A run of 2 ranks with a skip and a batch ramp, and of 3 ranks with another mixture."""
    run = SeenRun(target)
    run.go(2, 2, (9, 4), skips=23)
    run.go(4, 2, (6,))
    run.go(3, 3, (2, 5), weights=LATER)
    return run


def write_all(folder: Path) -> dict[str, Texts]:
    """Write the datasets of the mixture."""
    return {name: write_texts(folder / name, name, seed) for seed, name in enumerate(WEIGHTS)}


def served(serve: Serve, texts: Mapping[str, Texts], *options: str) -> Server:
    """Serve datasets."""
    words: list[str | Path] = []
    for name, each in texts.items():
        words += ["--data", f"{name}={each.paths[0]}", *each.paths[1:]]
    return serve(*words, *options)


def local(texts: Mapping[str, Texts]) -> str:
    """Return the target that reads the same files without a server."""
    return "file:" + ",".join(
        f"{name}={','.join(map(str, each.paths))}" for name, each in texts.items()
    )
