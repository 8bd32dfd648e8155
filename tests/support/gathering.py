"""Rows of a store as a block, in new arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.redactions.redacted_rows import RedactedRows, Rows
from tokenfeed.wire.row_block import RowBlock


def gather_block(
    store: Rows,
    spans: Spans,
    planes: Sequence[int] = (),
    patient: bool = True,
    *,
    dtype: npt.DTypeLike = None,
) -> RowBlock:
    """The rows of spans and their planes; otherwise like `RowStore.gather`.

    dtype: of the tokens, if the rows are redacted: these do not know it.
    """
    found = store.gather_planes(spans, planes, patient)
    assert isinstance(store, RedactedRows) == (dtype is not None)
    if not isinstance(store, RedactedRows):
        dtype = store.dtype
    tokens = np.empty((len(spans), spans.row_tokens), dtype=dtype)
    store.gather(spans, tokens, patient)
    return RowBlock(tokens, found)
