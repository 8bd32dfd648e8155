"""Shared by the examples that train a model on the CPU: a small GPT, and its optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, DROPOUT = 128, 4, 2, 0.1
LEARNING_RATE, HEAD_LEARNING_RATE, EMBEDDING_LEARNING_RATE = 1e-3, 2e-3, 5e-3


class Block(nn.Module):
    """Attention, then a small network, each added to its input."""

    def __init__(self) -> None:
        """Create the weights."""
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, WIDTH] -> [B, T, WIDTH]
        """Apply the block."""
        rows, length, _ = x.shape
        heads = self.query_key_value(self.norm_1(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.output(mixed.transpose(1, 2).reshape(rows, length, WIDTH)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm_2(x)))))


class GPT(nn.Module):
    """A GPT whose initial output is the token frequencies, so that it learns only the rest."""

    def __init__(self, counts: Tensor, context_length: int) -> None:
        """Create the weights.

        counts: of each of the K tokens, or classes of tokens, in the training data, [K]; zeros if
        they are unknown.  context_length: T.
        """
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(len(counts), WIDTH),
            nn.Embedding(context_length, WIDTH),
        )
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.dropout = nn.RMSNorm(WIDTH), nn.Dropout(DROPOUT)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        self.head = nn.Linear(WIDTH, len(counts), bias=False)
        nn.init.zeros_(self.head.weight)
        self.bias = nn.Parameter(((counts + 1) / (counts + 1).sum()).log().float())

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, T, K]
        """Return the logits of the next token at each position."""
        x = self.dropout(self.tokens(tokens) + self.places.weight)
        x = self.dropout(self.norm(self.blocks(x)))
        logits: Tensor = self.head(x) + self.bias
        return logits


def make_optimizer(model: GPT) -> torch.optim.Optimizer:
    """Return AdamW. Most tokens are in few batches, so their learning rates are higher."""
    rates = {"tokens": EMBEDDING_LEARNING_RATE, "places": EMBEDDING_LEARNING_RATE}
    rates |= {"head": HEAD_LEARNING_RATE}
    groups = [
        {"params": [weight], "initial_lr": rates.get(name.partition(".")[0], LEARNING_RATE)}
        for name, weight in model.named_parameters()
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1)
