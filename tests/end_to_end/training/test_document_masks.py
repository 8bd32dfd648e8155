"""Documents that share a row: attention restricted by a batch's cu_seqlens keeps them apart.

transformers_positions.py shows the same of `positions` in models of transformers, run by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.rows_with_documents import batch_with_documents
from tokenfeed.client.device.rich_batch import RichBatch

VOCABULARY, WIDTH, HEADS, LAYERS = 97, 32, 4, 2
T = 48
DOCUMENT = (20, 37)
"""Where the document begins and ends whose loss is looked at, in row 1 of the batch."""


class Block(nn.Module):
    """Attention and a multilayer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.learned = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: Tensor, may_see: Tensor) -> Tensor:
        normal = functional.layer_norm(hidden, (WIDTH,))
        heads = self.queries_keys_values(normal).view(-1, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = heads.permute(1, 2, 0, 3)
        found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=may_see)
        hidden = hidden + self.attended(found.transpose(0, 1).flatten(1))
        return hidden + self.learned(functional.layer_norm(hidden, (WIDTH,)))


class TinyGPT(nn.Module):
    """A GPT over a flattened batch, as attention with variable lengths takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded = nn.Embedding(VOCABULARY, WIDTH)
        self.placed = nn.Embedding(T, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.predicted = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """x, positions: [B, T].  Returns: logits [B, T, vocabulary]."""
        index = torch.arange(x.numel())
        sequence = torch.searchsorted(cu_seqlens, index, right=True)
        may_see = (sequence[:, None] == sequence) & (index[:, None] >= index)
        hidden = (self.embedded(x) + self.placed(positions)).flatten(0, 1)
        for block in self.blocks:
            hidden = block(hidden, may_see)
        return self.predicted(hidden).view(*x.shape, VOCABULARY)


@pytest.fixture
def model() -> Iterator[TinyGPT]:
    """New, with weights so large that tokens matter to each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(4)
        made = TinyGPT()
        for block in made.blocks:
            block.queries_keys_values.weight.mul_(3)
        yield made
    torch.set_num_threads(threads)


def row_of_documents(before: int) -> tuple[np.ndarray, list[list[int]]]:
    """Three rows; in row 1 the same document after others that depend on `before`."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (3, T + 1))
    numbers = np.random.default_rng(before)
    tokens[1, : DOCUMENT[0]] = numbers.integers(0, VOCABULARY, DOCUMENT[0])
    others = sorted(numbers.choice(np.arange(1, DOCUMENT[0]), 3, replace=False).tolist())
    return tokens, [[7, 30], [*others, *DOCUMENT], []]


def loss_on_document(model: TinyGPT, batch: RichBatch, masked: bool) -> float:
    """The loss on those targets of the document that belong to it too."""
    x, y = batch
    positions, cu_seqlens = batch.positions, batch.cu_seqlens
    if not masked:
        positions = torch.arange(T).expand_as(x)
        cu_seqlens = torch.arange(len(x) + 1) * T
    logits = model(x, positions, cu_seqlens)
    own = slice(DOCUMENT[0], DOCUMENT[1] - 1)
    return functional.cross_entropy(logits[1, own], y[1, own]).item()


def test_what_stands_before_a_document_in_its_row_does_not_change_its_loss(
    model: TinyGPT,
) -> None:
    """Else a model learns to read from a text that has nothing to do with this one."""
    batches = [batch_with_documents(*row_of_documents(before)) for before in range(5)]

    masked = [loss_on_document(model, batch, masked=True) for batch in batches]
    unmasked = [loss_on_document(model, batch, masked=False) for batch in batches]

    assert max(masked) - min(masked) < 1e-5
    # Or the line above would hold for a model that ignores what it has read.
    assert max(unmasked) - min(unmasked) > 1e-2


def test_a_document_in_a_row_has_the_loss_that_it_has_alone(model: TinyGPT) -> None:
    """Positions begin with 0, and nothing before the document is seen."""
    tokens, starts = row_of_documents(before=0)
    alone = np.zeros_like(tokens[:2])
    document = tokens[1, slice(*DOCUMENT)]
    alone[1, : document.size] = document
    x, y = batch_with_documents(alone, [[], [document.size]])
    logits = model(x, torch.arange(T).expand_as(x), torch.arange(3) * T)
    expected = functional.cross_entropy(
        logits[1, : document.size - 1], y[1, : document.size - 1]
    ).item()

    loss = loss_on_document(model, batch_with_documents(tokens, starts), masked=True)

    assert abs(loss - expected) < 1e-5


@pytest.mark.parametrize("max_seqlen", [None, 17])
def test_fixed_cu_seqlens_give_the_same_loss(model: TinyGPT, max_seqlen: int | None) -> None:
    """Empty sequences at the end change nothing, nor do cuts of other, longer documents."""
    batch = batch_with_documents(*row_of_documents(before=0))
    fixed = batch.cu_seqlens_fixed(max_seqlen=max_seqlen)
    own = slice(DOCUMENT[0], DOCUMENT[1] - 1)

    logits = model(batch.x, batch.positions, fixed)

    loss = functional.cross_entropy(logits[1, own], batch.y[1, own]).item()
    assert abs(loss - loss_on_document(model, batch, masked=True)) < 1e-5
    assert fixed.numel() == 3 * T + 1
