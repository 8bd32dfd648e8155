"""How much memory the making of rows takes."""

from __future__ import annotations

import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.borders.naive import opened
from tests.server.storage.rows.corpora import (
    FINGERPRINT,
    known_borders,
    packed,
    padded,
    write_documents,
)
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.server.storage.rows import RowIndices, RowsJob

CHUNKS_BYTES = 8 << 20
"""What is made at once, however many documents there are."""


@pytest.mark.parametrize(
    ("key", "mean"),
    [(packed(2048), 400), (packed(64), 400), (packed(2048), 30), (padded(64), 400)],
    ids=str,
)
def test_rows_take_no_more_memory_than_is_asked_for_beforehand(
    tmp_path: Path, key: RowsKey, mean: int
) -> None:
    """A server refuses what does not fit; if it took more, the kernel would kill it."""
    lengths = np.random.default_rng(1).geometric(1 / mean, 400_000)
    with (
        opened(write_documents(tmp_path / "corpus", [lengths.tolist()])) as store,
        closing(known_borders(store)) as borders,
    ):
        job = RowIndices(store, borders, None, None, FINGERPRINT).job(key)
        peak_bytes = peak_of(job)

    assert 0.5 * job.memory_bytes < peak_bytes < job.memory_bytes + CHUNKS_BYTES


def peak_of(job: RowsJob) -> int:
    """The most memory that a making takes beyond what there was."""
    tracemalloc.start()
    try:
        job.made().close()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
