"""Prompts with responses, and chats, from their ingest to the loss of a trainer: the same rows and
targets as a plain collate function makes of the same file, one document a row or packed.
"""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from client import RemoteBatches
from tests.conftest import Serve
from tests.server.ingest.chats import CHATML
from tests.server.ingest.corpus import END, write_jsonl, write_parquet
from tests.server.ingest.running import ingested
from tests.support import reference
from tokenfeed.client.source.plane_selection import LossMask
from tokenfeed.tools import inspect
from tokenfeed.tools.__main__ import main

T, B, SEED = 96, 8, 3
ALONE = {"rank": 0, "world_size": 1}
IGNORED = -100
END_ID = 256
"""Of the token that ends a response, with the tokenizer "bytes"."""
PROMPT_LETTERS, RESPONSE_LETTERS = string.ascii_uppercase + "? ", string.ascii_lowercase

Document = tuple[torch.Tensor, torch.Tensor]
"""input_ids and labels, both with all tokens; a label is -100 where nothing is learned."""


@dataclass(frozen=True)
class Ingested:
    """A corpus, and its documents as they are read from the input."""

    folder: Path
    documents: Sequence[Document]

    @property
    def lengths(self) -> list[list[int]]:
        """Of the documents of each shard, as the shards have them."""
        ends = [np.fromfile(path, "<u8") for path in sorted(self.folder.rglob("*.ds.index"))]
        return [np.diff(each, prepend=0).astype(int).tolist() for each in ends]


def document(*parts: tuple[list[int], bool]) -> Document:
    """Make one of parts: tokens, and whether they are learned."""
    ids = [token for tokens, _ in parts for token in tokens]
    labels = [token if learned else IGNORED for tokens, learned in parts for token in tokens]
    return torch.tensor(ids), torch.tensor(labels)


def text(choose: random.Random, letters: str, longest: int) -> str:
    return "".join(choose.choices(letters, k=choose.randint(1, longest)))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    """Prompts in capitals, and responses that repeat one letter of them; in several shards."""
    folder = tmp_path_factory.mktemp("pairs")
    choose = random.Random(1)
    prompts = [text(choose, PROMPT_LETTERS, 30) for _ in range(300)]
    responses = [choose.choice(RESPONSE_LETTERS) * choose.randint(1, 90) for _ in prompts]
    path = write_parquet(folder / "pairs.parquet", {"q": prompts, "a": responses})
    ingested(
        path, "--out", folder / "out", "--tokenizer", "bytes", "--append-token", END,
        "--prompt-column", "q", "--response-column", "a", "--shard-tokens", "5000",
        "--val-fraction", "0",
    )  # fmt: skip
    rows = pyarrow.parquet.read_table(path).to_pylist()
    documents = [
        document(([*row["q"].encode()], False), ([*row["a"].encode(), END_ID], True))
        for row in rows
    ]
    return Ingested(folder / "out", documents)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    """Of one to three turns, some longer than a row."""
    folder = tmp_path_factory.mktemp("chats")
    choose = random.Random(2)
    rows = [
        [
            {"role": role, "content": text(choose, string.ascii_lowercase, 12)}
            for _ in range(choose.randint(1, 3))
            for role in ("user", "assistant")
        ]
        for _ in range(120)
    ]
    (folder / "template.jinja").write_text(CHATML)
    path = write_parquet(folder / "chats.parquet", {"chat": rows})
    ingested(
        path, "--out", folder / "out", "--tokenizer", "bytes", "--messages-column", "chat",
        "--chat-template", folder / "template.jinja", "--shard-tokens", "5000",
        "--val-fraction", "0",
    )  # fmt: skip
    documents = []
    for row in pyarrow.parquet.read_table(path).to_pylist():
        parts: list[tuple[list[int], bool]] = []
        for message in row["chat"]:
            answer = message["content"] + "<|im_end|>"
            parts.append(([*f"<|im_start|>{message['role']}\n".encode()], False))
            parts.append(([*answer.encode()], message["role"] == "assistant"))
            parts.append(([*b"\n"], False))
        documents.append(document(*parts))
    return Ingested(folder / "out", documents)


@pytest.fixture(params=["pairs", "chats"])
def corpus(request: pytest.FixtureRequest) -> Ingested:
    found: Ingested = request.getfixturevalue(request.param)
    assert len(found.lengths) > 1, "several shards"
    assert [n for file in found.lengths for n in file] == [len(x) for x, _ in found.documents]
    return found


@pytest.fixture(params=["server", "files"])
def target(request: pytest.FixtureRequest, corpus: Ingested, serve: Serve) -> str:
    if request.param == "files":
        return f"file:{corpus.folder}"
    return serve("--data", corpus.folder).address


def collated(rows: Sequence[Document]) -> Document:
    """Pad rows to T + 1 tokens, and shift the labels against the input."""
    longest = torch.zeros(T + 1, dtype=torch.int64)
    ids = pad_sequence([*(x for x, _ in rows), longest], batch_first=True)
    labels = pad_sequence([*(y for _, y in rows), longest], batch_first=True, padding_value=IGNORED)
    return ids[:-1, :-1], labels[:-1, 1:]


def in_order(rows: Sequence[Document], batches: int) -> Iterator[Document]:
    """The batches of rows, shuffled as the orders are."""
    for first in range(0, batches * B, B):
        samples = range(first, first + B)
        numbers = [reference.place("shuffled-1", SEED, len(rows), sample) for sample in samples]
        yield collated([rows[number] for number in numbers])


def require_batches(target: str, rows: Sequence[Document], **options: str) -> None:
    """The batches of an epoch and the begin of the next are those of these rows."""
    count = len(rows) // B + 3
    with RemoteBatches(target, B, T, seed=SEED, **options, **ALONE) as feed:
        for found, wanted in zip(itertools.islice(feed, count), in_order(rows, count), strict=True):
            assert torch.equal(found[0], wanted[0])
            assert torch.equal(found[1], wanted[1])


def test_padded_rows_are_those_of_a_plain_collate_function(target: str, corpus: Ingested) -> None:
    """One document a row, token for token and target for target; a long one is truncated, or left
    out.
    """
    documents = corpus.documents
    is_long = [len(x) > T + 1 for x, _ in documents]
    assert 0 < sum(is_long) < len(documents)
    truncated = [(x[: T + 1], y[: T + 1]) for x, y in documents]
    kept = list(itertools.compress(documents, [not long for long in is_long]))

    require_batches(target, truncated, order="padded", long="truncate")
    require_batches(target, kept, order="padded", long="drop")


def test_packed_rows_are_the_same_documents_end_to_end(target: str, corpus: Ingested) -> None:
    """What a piece begins with is no target of the piece before it."""
    ids, labels = (torch.cat(part) for part in zip(*corpus.documents, strict=True))
    bases = [0, *itertools.accumulate(map(sum, corpus.lengths))]

    def piece(file: int, first: int, n: int) -> Document:
        own = slice(bases[file] + first, bases[file] + first + n)
        learned = labels[own].clone()
        learned[0] = IGNORED
        return ids[own], learned

    packed = reference.packed_rows(corpus.lengths, T)
    assert max(map(len, packed)) > 1
    rows = []
    for row in packed:
        pieces = [piece(*one) for one in row]
        rows.append((torch.cat([x for x, _ in pieces]), torch.cat([y for _, y in pieces])))
    require_batches(target, rows, order="packed")


@pytest.mark.parametrize(
    ("order", "loss_mask"), [("padded", "apply"), ("packed", "apply"), ("packed", "ignore")]
)
def test_a_model_learns_responses_and_prompts_only_without_the_mask(
    pairs: Ingested, order: str, loss_mask: LossMask
) -> None:
    """200 steps of a table of bigrams, with the loss that every trainer has. What a response
    repeats is learned; what follows within a prompt only if the mask is ignored.
    """
    model = nn.Embedding.from_pretrained(torch.zeros(END_ID + 1, END_ID + 1), freeze=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    with RemoteBatches(
        f"file:{pairs.folder}", B, T, order=order, seed=SEED, loss_mask=loss_mask, **ALONE
    ) as feed:
        for x, y in itertools.islice(feed, 200):
            logits = model(x)
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            is_response = (y != IGNORED) & (x >= ord("a"))
            of_response = functional.cross_entropy(logits[is_response], y[is_response])
            losses.append(of_response.item())

    assert losses[0] == pytest.approx(np.log(END_ID + 1))
    assert np.mean(losses[-20:]) < 0.8
    capitals = torch.tensor([*string.ascii_uppercase.encode()])
    after_capitals = model(capitals).softmax(-1)[:, capitals].sum(-1).mean().item()
    assert after_capitals < 0.1 if loss_mask == "apply" else after_capitals > 0.6


@pytest.mark.parametrize("is_local", [False, True])
def test_show_marks_targets_and_inspect_and_ingest_count_them(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_local: bool
) -> None:
    """So that a mask is seen before anything is trained."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"q": f"question {n} ", "a": f"{n}"} for n in (3, 4)])
    words = ("--prompt-column", "q", "--response-column", "a", "--append-token", "<|endoftext|>")
    said = ingested(path, "--tokenizer", "bytes", "--out", tmp_path / "out", *words)
    assert "26 tokens (4 of them targets), 2 documents" in said

    assert inspect.main([str(tmp_path / "out" / "train")]) == 0
    assert "  targets: 4 tokens, 15.4%\n" in capsys.readouterr().out

    out = tmp_path / "out"
    target = f"file:{out}" if is_local else serve("--data", out).address
    options = ["--batch-size", "1", "--order", "packed", "--context-length", "25"]
    assert main(["show", target, *options, "--tokenizer", "bytes"]) == 0
    printed = capsys.readouterr().out
    ends = "<|endoftext|>"
    assert printed == f"sample 0: 'question 3 ' ['3{ends}'] | 'question 4 ' ['4{ends}']\n"
    assert main(["show", target, "--batch-size", "1", "--context-length", "14"]) == 0
    assert capsys.readouterr().out.endswith("51 32 [51 256] 113 117\n")
