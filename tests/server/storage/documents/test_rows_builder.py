"""How much memory the making of rows takes."""

from __future__ import annotations

import pickle
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.documents.rows_corpora import (
    FINGERPRINT,
    known_starts,
    packed,
    padded,
    write_documents,
)
from tests.server.storage.documents.starts_corpora import opened
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.server.storage.documents import RowIndices
from tokenfeed.server.storage.documents.rows_builder import (
    FileDocuments,
    Memory,
    RowsBuilder,
    rows_of_documents,
)

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
        closing(known_starts(store)) as starts,
    ):
        job = RowIndices(store, starts, None, None, FINGERPRINT).builder(key)
        peak_bytes = peak_of(job)

    assert 0.5 * job.memory_bytes < peak_bytes < job.memory_bytes + CHUNKS_BYTES


@pytest.mark.parametrize(
    ("key", "mean"),
    [(packed(2048), 400), (packed(64), 400), (padded(64), 400)],
    ids=str,
)
def test_a_worker_takes_no_more_memory_than_is_asked_for_beforehand(
    tmp_path: Path, key: RowsKey, mean: int
) -> None:
    """It also holds what it sends."""
    lengths = np.random.default_rng(1).geometric(1 / mean, 200_000)
    with (
        opened(write_documents(tmp_path / "corpus", [lengths.tolist()])) as store,
        closing(known_starts(store)) as starts,
    ):
        memory = Memory(1.0, 1, "")
        indices = RowIndices(store, starts, None, None, FINGERPRINT)
        need_bytes = indices.builder(key, memory, lambda units, recipe: iter(())).memory_bytes
        unit = pickle.dumps(FileDocuments(starts.starts_of(0), int(lengths.sum())))
    tracemalloc.start()
    try:
        pickle.dumps(rows_of_documents(pickle.loads(unit), key))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert 0.5 * need_bytes < peak_bytes < need_bytes + CHUNKS_BYTES


def peak_of(job: RowsBuilder) -> int:
    """The most memory that a making takes beyond what there was."""
    tracemalloc.start()
    try:
        job.make().close()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
