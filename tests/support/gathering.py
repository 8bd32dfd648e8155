"""Rows of a store as a block, in new arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.store import RowStore
from tokenfeed.wire.row_block import RowBlock


def gather_block(
    store: RowStore, spans: Spans, planes: Sequence[int] = (), patient: bool = True
) -> RowBlock:
    """The rows of spans and their planes; otherwise like `RowStore.gather`."""
    found = store.gather_planes(spans, planes, patient)
    tokens = np.empty((len(spans), spans.row_tokens), dtype=store.dtype)
    store.gather(spans, tokens, patient)
    return RowBlock(tokens, found)
