"""Rows over documents, from the files of a corpus to the targets of a trainer: each token of a
document but the first is a target once an epoch, whatever the server, the ranks and the resume.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from client import NumpyBatches, RemoteBatches
from tests.conftest import Serve
from tests.support import reference
from tests.support.packed_corpora import (
    IGNORED,
    ORDERS,
    PADDING,
    Corpus,
    Order,
    Pairs,
    random_lengths,
    write_corpus,
)

pytestmark = pytest.mark.timeout(120)

T, B, SEED = 13, 4, 7
ALONE = {"rank": 0, "world_size": 1}


def options_of(order: Order) -> dict[str, Any]:
    """The arguments of a feed."""
    return {"order": order[0], "long": order[1], "seed": SEED}


def delivered(batches: Iterable[Any]) -> Pairs:
    """x and y of all rows of some batches."""
    pairs = [(x.tolist(), y.tolist()) for x, y in batches]
    return [row for x, _ in pairs for row in x], [row for _, y in pairs for row in y]


def require_targets_of_their_inputs(corpus: Corpus, found: Pairs) -> None:
    """Each target is the next token of the document of its input; y is -100 at padding and where
    the next piece begins, and nowhere else.
    """
    for x, y in zip(*found, strict=True):
        length = x.index(PADDING) if PADDING in x else len(x)
        assert x[length:] == [PADDING] * (len(x) - length)
        assert y[length:] == [IGNORED] * (len(x) - length)
        for at, target in enumerate(y[:length]):
            document, place = corpus.places[x[at]]
            if target != IGNORED:
                assert corpus.places[target] == (document, place + 1)
            elif at + 1 < length:
                assert corpus.places[x[at + 1]] != (document, place + 1)


def require_each_target_once(corpus: Corpus, order: Order, context_length: int, y: Any) -> None:
    """Of the rows of one epoch."""
    found = sorted(target for row in y for target in row if target != IGNORED)
    assert found == corpus.targets_once(order, context_length)


# --- one epoch ---


@settings(max_examples=25)
@given(
    files=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=3),
    context_length=st.integers(1, 17),
    order=st.sampled_from(ORDERS),
)
def test_each_token_but_the_first_of_a_document_is_a_target_once(
    files: list[list[int]], context_length: int, order: Order
) -> None:
    """In an epoch of local files, of any documents."""
    assume(all(map(sum, files)))
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder), files)
        assume(corpus.rows(order, context_length))
        with RemoteBatches(
            corpus.target, 3, context_length, prefetch_bytes=0, **options_of(order), **ALONE
        ) as feed:
            found = delivered(feed.epoch(0, tail="pad"))

    row_count = len(corpus.rows(order, context_length))
    own = found[0][:row_count], found[1][:row_count]
    require_targets_of_their_inputs(corpus, own)
    require_each_target_once(corpus, order, context_length, found[1])
    assert own == corpus.expected(order, context_length, SEED, range(row_count))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Corpus]:
    """Three, each with documents of all lengths that matter."""
    folder = tmp_path_factory.mktemp("corpora")
    return [
        write_corpus(folder / f"{seed}", random_lengths(seed, T), f"corpus{seed}")
        for seed in range(3)
    ]


def test_a_server_and_local_files_give_the_rows_of_the_second_implementation(
    serve: Serve, corpora: list[Corpus]
) -> None:
    """Over two epochs and a bit, which have each target twice, in another order."""
    address = serve(*itertools.chain(*(corpus.words for corpus in corpora))).address
    for corpus, order in itertools.product(corpora, ORDERS):
        row_count = len(corpus.rows(order, T))
        batches = 2 * row_count // B + 3
        wanted = corpus.expected(order, T, SEED, range(batches * B))
        first, second = wanted[0][:row_count], wanted[0][row_count : 2 * row_count]
        assert first != second
        assert sorted(first) == sorted(second)
        for target in (address, corpus.target):
            with RemoteBatches(
                target, B, T, dataset=corpus.name, **options_of(order), **ALONE
            ) as feed:
                assert feed.batches_per_epoch == row_count // B
                found = delivered(itertools.islice(feed, batches))
            assert found == wanted
        for epoch in (slice(0, row_count), slice(row_count, 2 * row_count)):
            require_targets_of_their_inputs(corpus, (found[0][epoch], found[1][epoch]))
            require_each_target_once(corpus, order, T, found[1][epoch])


# --- ranks, resumes, replicas ---


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_ranks_and_resumes_neither_skip_nor_repeat_a_row(
    serve: Serve, corpora: list[Corpus], order: Order
) -> None:
    """One rank, then two, then three, then one with NumPy, in the middle of an epoch."""
    corpus = corpora[0]
    target = serve(*corpus.words).address
    options = options_of(order)
    x: list[list[int]] = []
    y: list[list[int]] = []
    state: dict[str, Any] | None = None
    for world_size, batches in ((1, 5), (2, 4), (3, 3)):
        ranks: list[list[Pairs]] = []
        for rank in range(world_size):
            with RemoteBatches(target, B, T, rank=rank, world_size=world_size, **options) as feed:
                if state is not None:
                    feed.load_state_dict(state)
                taken = [delivered([next(feed)]) for _ in range(batches)]
                ranks.append(taken)
                following = feed.state_dict()
        for own_x, own_y in itertools.chain.from_iterable(zip(*ranks, strict=True)):
            x, y = x + own_x, y + own_y
        state = json.loads(json.dumps(following))
    for way in (target, corpus.target):
        with NumpyBatches(way, B, T, **options, **ALONE) as numpy_feed:
            numpy_feed.load_state_dict(state)
            last = delivered(itertools.islice(numpy_feed, 5))
        found = x + last[0], y + last[1]
        assert found == corpus.expected(order, T, SEED, range(len(found[0])))


def test_a_restarted_server_and_its_replica_go_on_with_the_same_rows(
    serve: Serve, tmp_path: Path
) -> None:
    """One keeps its rows beside the tokens, the other one in a folder of its own."""
    corpus = write_corpus(tmp_path / "corpus", random_lengths(5, T))
    order: Order = ("packed", None)
    first = serve(*corpus.words)
    port = int(first.address.rpartition(":")[2])
    second = serve(*corpus.words, "--cache-dir", tmp_path)
    addresses = [first.address, second.address]
    found: list[Pairs] = []
    state: dict[str, Any] | None = None
    for change in (lambda: None, first.stop, lambda: serve(*corpus.words, port=port), second.stop):
        change()
        with RemoteBatches(addresses, B, T, **options_of(order), **ALONE) as feed:
            if state is not None:
                feed.load_state_dict(state)
            found.append(delivered(itertools.islice(feed, 5)))
            state = feed.state_dict()

    together = [row for x, _ in found for row in x], [row for _, y in found for row in y]
    assert together == corpus.expected(order, T, SEED, range(20 * B))
    kept = sorted(path.name for path in tmp_path.rglob(".*packed-1*"))
    assert len(kept) == 2, kept


# --- formats, masks, batches ---


def test_masked_tokens_are_no_targets_of_their_rows(serve: Serve, tmp_path: Path) -> None:
    """Beside padding and borders; with loss_mask="ignore" they are targets."""
    lengths = random_lengths(6, T)
    random = np.random.default_rng(6)
    tokens = range(1, 1 + sum(map(sum, lengths)))
    masked = frozenset(token for token in tokens if random.random() < 0.4)
    corpus = write_corpus(tmp_path / "corpus", lengths, masked=masked)
    plain = Corpus(corpus.name, corpus.paths, corpus.lengths)
    address = serve(*corpus.words).address
    for order in ORDERS:
        for target in (address, corpus.target):
            row_count = len(corpus.rows(order, T))
            for loss_mask, wanted in (("apply", corpus), ("ignore", plain)):
                with RemoteBatches(
                    target, B, T, loss_mask=loss_mask, **options_of(order), **ALONE
                ) as feed:
                    x, y = delivered(itertools.islice(feed, row_count // B + 1))
                assert (x, y) == wanted.expected(order, T, SEED, range(len(x)))
                require_each_target_once(wanted, order, T, y[:row_count])


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_batches_tell_pieces_and_padding_apart(
    serve: Serve, corpora: list[Corpus], order: Order
) -> None:
    """In each form that frameworks take, and in shapes that never change."""
    corpus = corpora[1]
    rows = corpus.rows(order, T)
    batch_count = len(rows) // B
    pieces_max = max(map(len, rows))
    size = B * min(pieces_max + 1, T) + 1
    padded_rows = 0
    for target in (serve(*corpus.words).address, corpus.target):
        with RemoteBatches(target, B, T, **options_of(order), **ALONE) as feed:
            batches = list(itertools.islice(feed.batches(), batch_count))
        for number, batch in enumerate(batches):
            samples = range(number * B, (number + 1) * B)
            numbers = [reference.place("shuffled-1", SEED, len(rows), s) for s in samples]
            own = [rows[each] for each in numbers]
            wanted = [segments(row) for row in own]
            assert batch.sample.tolist() == list(samples)
            assert batch.positions.tolist() == [positions for positions, _ in wanted]
            assert batch.segment_ids.tolist() == [ids for _, ids in wanted]
            assert (batch.x == PADDING).tolist() == (batch.segment_ids == 0).tolist()
            padded_rows += int((batch.segment_ids == 0).any(1).sum())
            assert batch.loss_mask.tolist() == (batch.y != IGNORED).tolist()
            bounds = batch.cu_seqlens.tolist()
            assert bounds == [
                *(row * T + at for row, (p, _) in enumerate(wanted) for at in zeros(p)),
                B * T,
            ]
            assert batch.max_seqlen == max(np.diff(bounds))
            fixed = batch.cu_seqlens_fixed()
            assert fixed.shape == (size,)
            assert fixed.tolist() == bounds + (size - len(bounds)) * [B * T]
    assert padded_rows > 0


def segments(row: list[list[int]]) -> tuple[list[int], list[int]]:
    """Positions and segment ids of the T tokens of x."""
    positions: list[int] = []
    ids: list[int] = []
    for number, (_, _, n) in enumerate(row, 1):
        positions += range(n)
        ids += n * [number]
    padding = max(T - len(positions), 0)
    return [*positions, *range(padding)][:T], (ids + padding * [0])[:T]


def zeros(positions: list[int]) -> Iterator[int]:
    """Where documents begin."""
    return (at for at, position in enumerate(positions) if position == 0)
