"""The loaders for nanochat, by their form: nanochat is a repository, and no package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client import InvalidRequest, RemoteBatches
from tests.conftest import Serve, WriteTokens
from tests.support.offline import offline_rows, received_rows
from tokenfeed.client.adapters.nanochat import Loaders, loaders

T, B, WINDOWS = 8, 4, 40


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(WINDOWS * T + 1))


@pytest.fixture
def pair(serve: Serve, path: Path) -> Loaders:
    """The loaders of a server."""
    make = partial(RemoteBatches, serve("--data", path).address, seed=5)
    return loaders(make, partial(make, order="sequential"))


def train(pair: Loaders, **options: Any) -> Iterator[Any]:
    """As base_train.py calls it."""
    return pair.with_state(None, B, T, split="train", device=torch.device("cpu"), **options)


def steps(loader: Iterator[Any], count: int, accumulate: int) -> tuple[list[Any], dict[str, Any]]:
    """nanochat's loop: what it learns, and the state that it saves behind that."""
    learned = []
    x, y, state = next(loader)
    for _ in range(count * accumulate):
        learned.append((x, y))
        x, y, state = next(loader)
    return learned, json.loads(json.dumps(state))


def expected(path: Path, first: int, end: int, order: str = "shuffled-1") -> list[list[int]]:
    return offline_rows([path], order, 5, T, range(first * B, end * B)).tolist()


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_saved_state_is_that_of_what_was_learned(
    pair: Loaders, path: Path, accumulate: int
) -> None:
    """nanochat holds a batch more than it has learned when it saves, and writes JSON."""
    learned, state = steps(train(pair), 2, accumulate)
    resumed, _ = steps(train(pair, resume_state_dict=state), 2, accumulate)

    rows = received_rows(learned + resumed).tolist()
    assert rows == expected(path, 0, 4 * accumulate)
    # What its log shows.
    assert (state["epoch"], state["pq_idx"], state["rg_idx"]) == (0, 0, 2 * accumulate * B)


def test_each_evaluation_reads_the_same_rows(pair: Loaders, path: Path) -> None:
    """Its order is that of the corpus, from the beginning."""
    for _ in range(2):
        batches = pair.without_state(None, B, T, split="val", device="cpu")
        found = received_rows(list(islice(batches, 3))).tolist()
        assert found == expected(path, 0, 3, "sequential-1")


def test_targets_that_do_not_count_are_those_that_nanochat_ignores(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Its loss has ignore_index=-1, and -100 would be an index out of range."""
    tokens = np.tile([0, *range(1, 20)], 20)  # documents that begin with 0
    server = serve("--data", write_tokens(tokens), "--document-start-token", "0")
    make = partial(RemoteBatches, server.address, order="padded", rank=0, world_size=1)
    _, y, _ = next(loaders(make, make).with_state(None, B, 32, "train", device="cpu"))
    assert -100 not in y
    assert (y == -1).any()


def test_what_nanochat_cannot_do_is_refused(pair: Loaders, path: Path) -> None:
    """A state of its own loader, and a feed that ends in the middle of a run."""
    with pytest.raises(InvalidRequest, match=r"^resume_state_dict: is of nanochat's own loader"):
        next(train(pair, resume_state_dict={"pq_idx": 0, "rg_idx": 3, "epoch": 1}))
    ending = partial(RemoteBatches, f"file:{path}", num_batches=2)
    with pytest.raises(InvalidRequest, match=r"^feed: has ended before nanochat .* num_batches"):
        steps(train(loaders(ending, ending)), 3, 1)
