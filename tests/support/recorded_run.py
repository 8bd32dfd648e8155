"""A training run of which every row is recorded: 2 ranks with a skip, a larger batch, a change of
the mixture, and a resume at 3 ranks, over ingested text, Megatron, datatrove and raw files, by
windows, packed and padded rows.

Each token is a number of its own, so it tells its source, its file and its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from client import Mixture, RemoteBatches
from tests.server.ingest.corpus import write_jsonl
from tests.server.ingest.running import ingested
from tests.support.packed_corpora import Corpus, write_corpus

T = 32
SEED = 11
NAMES = ["web", "code", "math", "news", "chat"]
ORDER_OF = {
    "web": "packed",
    "code": "shuffled",
    "math": "padded",
    "news": "shuffled",
    "chat": "random",
}
WEIGHTS = {"web": 5, "code": 3, "math": 3, "news": 1, "chat": 1}
LATER_WEIGHTS = {"web": 1, "code": 2, "news": 2, "chat": 1}
_TOKENS_EACH = 9000
_END_TOKEN = 0


@dataclass(frozen=True)
class Source:
    """A source of the run.

    corpus: its files.  ids: of its documents; None if it has none.  knows_documents: whether the
    server knows where they begin.
    """

    corpus: Corpus
    ids: Sequence[str] | None = None
    knows_documents: bool = True

    @property
    def words(self) -> list[str | Path]:
        """Arguments of a server."""
        return self.corpus.words

    def tokens(self) -> np.ndarray:
        """All tokens as they are stored, file after file."""
        return np.concatenate([np.fromfile(path, "<u2") for path in self.corpus.paths])


class Row(NamedTuple):
    """A row as a rank received it.

    step: of the whole run.  tokens: int[T + 1], with padding.  count: of those without padding.
    """

    step: int
    rank: int
    row: int
    sample: int
    source: str
    tokens: np.ndarray
    count: int


@dataclass
class RecordedRun:
    """What a run was given, and its state at the end."""

    rows: list[Row] = field(default_factory=list)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    skipped: range = range(0)
    steps: int = 0

    @property
    def state(self) -> dict[str, Any]:
        """The last state, as plain values that went through JSON."""
        return self.states[self.steps]


def write_sources(folder: Path) -> dict[str, Source]:
    """Write the corpora: one of each form."""
    lengths = {name: _lengths(seed, 2) for seed, name in enumerate(NAMES)}
    firsts = {name: 1 + number * _TOKENS_EACH for number, name in enumerate(NAMES)}
    code = write_corpus(
        folder / "code", lengths["code"], "code", first=firsts["code"], form="megatron"
    )
    math = write_corpus(folder / "math", lengths["math"], "math", first=firsts["math"])
    news, chat = (
        write_corpus(
            folder / name,
            lengths[name],
            name,
            first=firsts[name],
            form="raw",
            end_token=_END_TOKEN,
        )
        for name in ("news", "chat")
    )
    return {
        "web": _ingested(folder, lengths["web"][0] + lengths["web"][1], firsts["web"]),
        "code": Source(code),
        "math": Source(math),
        "news": Source(news),
        # Its documents end with the token too, but the server is not told.
        "chat": Source(replace(chat, end_token=None), knows_documents=False),
    }


def words_tokenizer(folder: Path) -> Path:
    """Write a tokenizer.json whose token n is the word "wn", and return its path."""
    path = folder / "words.json"
    vocabulary = {f"w{number}": number for number in range(60_000)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(path))
    return path


def record(target: str, mixture: Mixture | None = None) -> RecordedRun:
    """Run it: 12 steps of 2 x 4 rows, 45 samples skipped, 8 more, 10 of 2 x 8 in which the mixture
    changes, and 14 of 3 x 8.
    """
    mixture = mixture or Mixture(
        WEIGHTS,
        order="shuffled",
        seed=SEED,
        sources={name: {"order": order} for name, order in ORDER_OF.items()},
    )
    run = RecordedRun()
    with _ranks(target, mixture, batch_size=4, world_size=2) as feeds:
        _record(run, feeds, 12)
        at = feeds[0].position.samples
        run.skipped = range(at, at + 45)
        for feed in feeds:
            feed.skip(45)
        _record(run, feeds, 8)
    with _ranks(target, mixture, batch_size=8, world_size=2, state=run.state) as feeds:
        _record(run, feeds, 3)
        begins = {
            feed.change_mixture(LATER_WEIGHTS, at_sample=feed.position.samples + 20)
            for feed in feeds
        }
        assert len(begins) == 1
        _record(run, feeds, 7)
    with _ranks(target, mixture, batch_size=8, world_size=3, state=run.state) as feeds:
        _record(run, feeds, 14)
    return run


class _ranks(ExitStack):
    """The feeds of all ranks."""

    def __init__(
        self,
        target: str,
        mixture: Mixture,
        *,
        batch_size: int,
        world_size: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.feeds = [
            self.enter_context(
                RemoteBatches(
                    target, batch_size, T, mixture=mixture, rank=rank, world_size=world_size
                )
            )
            for rank in range(world_size)
        ]
        for feed in self.feeds if state else ():
            feed.load_state_dict(state)

    def __enter__(self) -> list[RemoteBatches]:
        super().__enter__()
        return self.feeds


def _record(run: RecordedRun, feeds: Sequence[RemoteBatches], steps: int) -> None:
    rich = [feed.batches() for feed in feeds]
    for step in range(run.steps, run.steps + steps):
        for rank, batches in enumerate(rich):
            run.rows += _rows_of(step, rank, next(batches))
    run.steps += steps
    states = [json.loads(json.dumps(feed.state_dict())) for feed in feeds]
    assert all(state == states[0] for state in states)
    run.states[run.steps] = states[0]


def _rows_of(step: int, rank: int, batch: Any) -> Iterator[Row]:
    tokens, samples, sources = batch.tokens.numpy(), batch.sample.numpy(), batch.source.numpy()
    for row, (own, sample, number) in enumerate(zip(tokens, samples, sources, strict=True)):
        is_padded = ORDER_OF[NAMES[number]] in ("packed", "padded")
        # No token of these sources is 0.
        count = int(np.count_nonzero(own)) if is_padded else own.size
        yield Row(step, rank, row, int(sample), NAMES[number], own, count)


def _lengths(seed: int, files: int) -> list[list[int]]:
    """Lengths of documents: short ones, some of one token, a few longer than a row."""
    random = np.random.default_rng(seed)
    return [
        random.choice([1, 2, 7, 20, T + 1, 3 * T + 5], 100, p=[0.05, 0.1, 0.3, 0.3, 0.15, 0.1])
        .astype(int)
        .tolist()
        for _ in range(files)
    ]


def _ingested(folder: Path, lengths: Sequence[int], first: int) -> Source:
    """Ingest documents of words, with ids, into several shards."""
    numbers = first + np.cumsum([0, *lengths])
    ids = [f"page/{number}" for number in range(len(lengths))]
    rows = [
        {"id": name, "text": " ".join(f"w{token}" for token in range(begin, begin + length))}
        for name, begin, length in zip(ids, numbers.tolist(), lengths, strict=False)
    ]
    path = write_jsonl(folder / "web.jsonl", rows)
    ingested(
        path, "--out", folder / "web", "--tokenizer", words_tokenizer(folder), "--id-column", "id",
        "--shard-tokens", "2000",
    )  # fmt: skip
    paths = tuple(sorted((folder / "web").rglob("*.ds")))
    ends = [np.fromfile(f"{path}.index", "<u8").astype(int) for path in paths]
    of_files = tuple(tuple(np.diff(each, prepend=0).tolist()) for each in ends)
    return Source(Corpus("web", paths, of_files, first), ids)
