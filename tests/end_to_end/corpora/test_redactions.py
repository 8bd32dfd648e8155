"""Redactions of a running stream: their tokens never arrive, and nothing else changes."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from client import Mixture, NumpyBatches, RemoteBatches, StreamMismatch
from tests.conftest import Serve
from tests.support.packed_corpora import Corpus, write_corpus
from tests.support.redacting import redact
from tests.support.waiting import eventually

T, B, SEED = 16, 4, 9
FILL = 7
LENGTHS = [[30, 5, 12, 40, 3], [9, 26, 2, 33]]
"""Tokens of the documents of two files; the first token is 100."""
LIST = [(0, 35, 47), (0, 60, 64), (1, 9, 35)]
"""The third document of the first file and some tokens of its fourth one; the second document of
the second file.
"""
WINDOWS = ["shuffled", "sequential", "random"]
ORDERS = [*WINDOWS, "packed", "padded"]


class Rows(NamedTuple):
    """Rows of batches: x and y, int64[n, T]."""

    x: np.ndarray
    y: np.ndarray


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "a", LENGTHS, first=100, masked=frozenset({110, 150}))


def copied(corpus: Corpus, folder: Path) -> Corpus:
    """The same files elsewhere, with their list if they have one."""
    shutil.copytree(corpus.paths[0].parent, folder)
    paths = tuple(folder / path.name for path in corpus.paths)
    return Corpus(corpus.name, paths, corpus.lengths, corpus.first, corpus.masked)


def rows_of(batches: Iterable[Any]) -> Rows:
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in batches]
    return Rows(*(np.concatenate(each).astype(np.int64) for each in zip(*pairs, strict=True)))


def taken(feed: Any, batches: int) -> Rows:
    return rows_of(next(feed) for _ in range(batches))


def joined(*parts: Rows) -> Rows:
    return Rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def plain(corpus: Corpus, batches: int, **options: Any) -> Rows:
    """The rows without redactions."""
    with NumpyBatches(corpus.target, B, T, seed=SEED, dtype=np.int64, **options) as feed:
        return taken(feed, batches)


def tokens_of(corpus: Corpus, ranges: Sequence[tuple[int, int, int]]) -> set[int]:
    """The tokens in ranges: each is unique in these corpora."""
    bases = np.cumsum([corpus.first, *map(sum, corpus.lengths)]).tolist()
    return {bases[file] + token for file, first, end in ranges for token in range(first, end)}


def redacted(rows: Rows, gone: set[int], first_row: int) -> Rows:
    """Rows in which tokens are left out from a row on: each token says which one it is."""
    x, y = rows.x.copy(), rows.y.copy()
    left_out = np.isin(x, sorted(gone))
    left_out[:first_row] = False
    x[left_out] = FILL
    left_out = np.isin(y, sorted(gone))
    left_out[:first_row] = False
    y[left_out] = -100
    return Rows(x, y)


def require_same(found: Rows, expected: Rows) -> None:
    assert np.array_equal(found.x, expected.x)
    assert np.array_equal(found.y, expected.y)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_local", [True, False], ids=["file", "served"])
def test_from_a_sample_on_redacted_tokens_never_arrive_and_nothing_else_changes(
    serve: Serve, corpus: Corpus, is_local: bool, order: str, request: pytest.FixtureRequest
) -> None:
    """In the middle of a batch, with batches prefetched beyond it, with a loss mask or without."""
    target = corpus.target if is_local else serve(*corpus.words).address
    expected = {
        mask: plain(corpus, 30, order=order, loss_mask=mask) for mask in ("apply", "ignore")
    }
    found = redact(corpus.paths, *LIST, fill=FILL)
    gone = tokens_of(corpus, LIST)
    for mask, kind in [("apply", RemoteBatches), ("ignore", NumpyBatches)]:
        with kind(target, B, T, seed=SEED, order=order, loss_mask=mask) as feed:
            rows = [taken(feed, 5)]
            assert feed.redact(found, at_sample=42) == 42
            assert feed.redact(found.upper(), at_sample=42) == feed.redact(found, 50) == 42
            rows.append(taken(feed, 25))
            history = feed.history()

        require_same(joined(*rows), redacted(expected[mask], gone, 42))
        assert len(history) == 1
        assert history[0]["redactions"] == [{"first_sample": 42, "source": 0, "list_hash": found}]
    assert np.isin(expected["ignore"].x[42:], sorted(gone)).sum() > 20
