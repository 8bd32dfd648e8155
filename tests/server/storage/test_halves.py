"""Halves of wider tokens are told from uint16 tokens, and no more is read for it than needed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.server.storage.halves import Halves, rule_out_halves


def total(blocks: list[Halves]) -> Halves:
    return Halves(*(sum(counts) for counts in zip(*blocks, strict=True)))


@given(
    seed=st.integers(0, 1 << 32),
    odd_large_share=st.sampled_from((0.0, 0.005, 0.0099, 0.01, 0.0101, 0.02, 0.5, 1.0)),
    even_large_share=st.sampled_from((0.0, 0.01, 0.5, 1.0)),
    block_tokens=st.sampled_from((511, 512, 1000, 4096)),
)
def test_a_file_that_is_ruled_out_early_would_not_have_looked_like_halves(
    seed: int, odd_large_share: float, even_large_share: float, block_tokens: int
) -> None:
    """Whatever follows: the rest of the file is not counted any more."""
    random = np.random.default_rng(seed)
    tokens = np.zeros(8191, dtype=np.uint16)
    for first, share in ((0, even_large_share), (1, odd_large_share)):
        large = random.random(tokens[first::2].size) < share
        tokens[first::2][large] = random.integers(4, 0xFFFF, int(large.sum()))
    whole = Halves.of(tokens, 0)
    counted: list[Halves] = []
    for first in range(0, tokens.size, block_tokens):
        counted.append(Halves.of(tokens[first : first + block_tokens], first))
        if rule_out_halves(total(counted).odd_large, tokens.size):
            break

    assert total(counted).look_alike == whole.look_alike


def test_ordinary_tokens_are_ruled_out_after_a_few_percent_of_the_file() -> None:
    """Otherwise nothing would be gained: the count takes a third of a scan."""
    tokens = np.random.default_rng(1).integers(0, 50_257, 1 << 20, dtype=np.uint16)

    assert rule_out_halves(Halves.of(tokens[: 1 << 15], 0).odd_large, tokens.size)
    assert not rule_out_halves(Halves.of(tokens[: 1 << 13], 0).odd_large, tokens.size)
