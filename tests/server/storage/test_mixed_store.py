"""Rows of several stores in one block: those that each store alone would gather."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gathering import gather_block
from tests.support.memory_store import MemoryStore
from tests.support.stores import STORES
from tokenfeed.errors import CorpusChanged, Unreadable
from tokenfeed.sampling.spans import Pieces, Spans
from tokenfeed.server.runtime.threads.poll_rate import PollRate
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.local import mapped_bytes
from tokenfeed.server.storage.mixed_store import MixedStore
from tokenfeed.server.storage.store import TokenStore

T = 7
Open = Callable[..., TokenStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    """Open files with given tokens, each of which is 1 or more, by the map unless told."""
    opened: list[TokenStore] = []

    def open_one(*files: np.ndarray, kind: str = "map") -> TokenStore:
        paths = []
        for index, tokens in enumerate(files):
            path = tmp_path / f"{len(opened)}-{index}.bin"
            tokens.tofile(path)
            paths.append(str(path))
        options = FormatOptions.parse(None, files[0].dtype.name, None)
        opened.append(STORES[kind](f"s{len(opened)}", paths, options, PollRate()))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def tokens_of(count: int, dtype: str = "<u2", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 60_000, count).astype(dtype)


def windows(rows: Sequence[tuple[int, int, int]]) -> Spans:
    """Rows, each (source, file, first token)."""
    source, shard, offset = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Spans(T + 1, source, shard, offset)


def expected(stores: Sequence[TokenStore], spans: Spans) -> np.ndarray:
    """What each store gathers by itself, row by row."""
    rows = []
    for row in range(len(spans)):
        one = spans[row : row + 1]
        source = int(one.source[0]) if one.source.size else 0
        rows.append(gather_block(stores[source], one).tokens)
    return np.concatenate(rows)


@pytest.mark.parametrize(
    ("kinds", "dtypes", "is_joint"),
    [
        (("map", "map", "map"), ("<u2", "<u2", "<u2"), True),
        (("map", "map"), ("<u4", "<u4"), True),
        (("map", "map"), ("<u2", "<u4"), False),
        (("map", "pread"), ("<u2", "<u2"), False),
        (("pread", "pread"), ("<u2", "<i4"), False),
        (("map", "map"), ("<i8", "<i8"), False),
    ],
)
def test_rows_of_any_stores_are_those_of_each_alone(
    open_store: Open, kinds: Sequence[str], dtypes: Sequence[str], is_joint: bool
) -> None:
    """In the widest type of them."""
    stores = [
        open_store(tokens_of(900, dtype, seed), tokens_of(50, dtype, seed + 1), kind=kind)
        for seed, (kind, dtype) in enumerate(zip(kinds, dtypes, strict=True))
    ]
    for store in stores:
        store.narrow(60_000)
    random = np.random.default_rng(7)
    spans = windows(
        [(random.integers(len(stores)), random.integers(2), random.integers(42)) for _ in range(99)]
    )
    mixed = MixedStore(stores)

    found = gather_block(mixed, spans).tokens

    assert found.dtype.itemsize == max(store.dtype.itemsize for store in stores)
    assert np.array_equal(found, expected(stores, spans))
    tokens = np.empty_like(found)
    assert (mixed._joint is not None and mixed._gather_joint(spans, tokens)) == is_joint
    if is_joint:
        assert np.array_equal(tokens, found)


@settings(max_examples=100)
@given(st.data())
def test_rows_of_several_pieces_are_mixed_too(data: st.DataObject) -> None:
    """With padding behind them."""
    stores = [MemoryStore(name, [tokens_of(100, seed=seed)]) for seed, name in enumerate("abc")]
    rows = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=8))
    counts = np.array([count for _, count in rows], dtype=np.int64)
    total = int(counts.sum())
    source = np.repeat(np.array([source for source, _ in rows], dtype=np.int64), counts)
    pieces = Pieces(np.concatenate([[0], np.cumsum(counts)]), np.full(total, 2, dtype=np.int64))
    offsets = np.arange(total, dtype=np.int64) % 90
    spans = Spans(10, source, np.zeros(total, dtype=np.int64), offsets, pieces)

    found = gather_block(MixedStore(stores, [True] * 3), spans).tokens

    assert found.shape == (len(rows), 10)
    if rows:
        assert np.array_equal(found, expected(stores, spans))


def test_a_source_that_was_truncated_fails_alone(open_store: Open, tmp_path: Path) -> None:
    """Its rows are never zeros, and rows of the others are delivered in other mixtures."""
    stores = [open_store(tokens_of(5000, seed=seed)) for seed in range(3)]
    mixed = MixedStore(stores)
    spans = windows([(0, 0, 9), (1, 0, 4000), (2, 0, 7)])
    gather_block(mixed, spans)

    os.truncate(tmp_path / "1-0.bin", 2 * 4003)
    with pytest.raises(Unreadable):
        gather_block(mixed, spans, patient=False)
    with pytest.raises(CorpusChanged, match="'s1' changed"):
        gather_block(mixed, spans)
    with pytest.raises(CorpusChanged, match="'s1' changed"):
        mixed.require_intact()

    others = MixedStore([stores[0], stores[2]])
    assert gather_block(others, windows([(0, 0, 9), (1, 0, 7)])).tokens.all()


def test_rows_that_end_with_zeros_are_delivered_in_one_call(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros are tokens, and what a truncation leaves: the last byte that is not 0 tells."""
    zeros = tokens_of(900)
    zeros[100:200] = 0
    stores = [open_store(zeros), open_store(tokens_of(900, seed=1))]
    mixed = MixedStore(stores)
    spans = windows([(0, 0, 120), (1, 0, 5), (0, 0, 95)])
    monkeypatch.setattr(TokenStore, "gather", None)

    found = gather_block(mixed, spans).tokens

    assert not found[0].any()
    assert found[1].all()


def test_a_file_that_ends_with_zeros_is_mixed_in_one_call(open_store: Open) -> None:
    """Its last byte that is not 0 is known since it was opened."""
    ending = np.concatenate([tokens_of(100), np.zeros(100_000, "<u2")])
    stores = [open_store(ending), open_store(tokens_of(900, seed=1))]
    mixed = MixedStore(stores)
    spans = windows([(0, 0, 50_000), (1, 0, 5)])
    assert mixed._joint is not None
    tokens = np.empty((2, T + 1), "<u2")

    assert mixed._gather_joint(spans, tokens)

    assert np.array_equal(tokens, expected(stores, spans))


def test_a_store_that_is_closed_meanwhile_delivers_nothing(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its addresses are another one's by then."""
    stores = [open_store(tokens_of(900, seed=seed)) for seed in range(2)]
    mixed = MixedStore(stores)
    spans = windows([(0, 0, 1), (1, 0, 1)])
    faults = mapped_bytes.major_faults

    def close_first() -> int:
        stores[1].close()
        return faults()

    monkeypatch.setattr(mapped_bytes, "major_faults", close_first)
    with pytest.raises(CorpusChanged):
        gather_block(mixed, spans)


def test_only_stores_that_are_cold_are_advised(open_store: Open) -> None:
    """About their own rows, and planes that they have."""
    stores = [open_store(tokens_of(900, seed=seed)) for seed in range(2)]
    advised: list[tuple[str, list[int], list[int]]] = []
    for store in stores:
        store.advise = lambda spans, planes, due_seconds, name=store.name: advised.append(  # type: ignore[method-assign]
            (name, spans.token_offset.tolist(), planes)
        )
    mixed = MixedStore(stores)
    assert mixed.cold
    stores[0].files.readahead.cold = False  # type: ignore[attr-defined]
    assert mixed.cold

    mixed.advise(windows([(0, 0, 1), (1, 0, 2), (1, 0, 3)]), (51,))

    assert advised == [("s1", [2, 3], [])]
    gather_block(mixed, windows([(0, 0, 1)]))
    assert not mixed.cold, "a store that is hardly ever used does not count"
    gather_block(mixed, windows([(0, 0, 1), (1, 0, 1)]))
    assert mixed.cold
    stores[1].files.readahead.cold = False  # type: ignore[attr-defined]
    assert not mixed.cold


@pytest.mark.parametrize(
    ("resident", "told"),
    [([True, False], [0, 3]), ([False, False], [3, 3]), ([True, True], [3, 3])],
    ids=["one store", "both", "none any more"],
)
def test_a_gather_that_waited_is_told_to_the_stores_whose_rows_were_away(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, resident: list[bool], told: list[int]
) -> None:
    """Only these are read ahead; if pages came meanwhile, it may have been any of them."""
    stores = [open_store(tokens_of(100, seed=seed)) for seed in (0, 1)]
    mixed = MixedStore(stores)
    joint, heard = mixed._joint, [0, 0]
    assert joint is not None

    def waiting(*arguments: Any) -> int:
        joint(*arguments)
        return 3

    def observe(index: int, waits: int) -> None:
        heard[index] += waits

    monkeypatch.setattr(mixed, "_joint", waiting)
    for index, store in enumerate(stores):
        monkeypatch.setattr(store.files, "seem_resident", lambda _, found=resident[index]: found)
        monkeypatch.setattr(store.files, "observe", partial(observe, index))
    spans = windows([(0, 0, 5), (1, 0, 9)])
    block = gather_block(mixed, spans)
    assert heard == told
    assert block.tokens.tolist() == expected(stores, spans).tolist()
