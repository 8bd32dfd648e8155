"""`sequential-1` is the corpus as it lies there."""

from __future__ import annotations

import numpy as np

from tokenfeed.sampling.orders import sequential_v1


def test_windows_come_in_the_order_of_the_corpus_epoch_after_epoch() -> None:
    """What llm.c and nanochat do, and what an evaluation wants."""
    samples = np.arange(2**62, 2**62 + 25, dtype=np.int64)

    places = sequential_v1.places(samples, 0, 10)

    assert places.tolist() == [(2**62 + i) % 10 for i in range(25)]
