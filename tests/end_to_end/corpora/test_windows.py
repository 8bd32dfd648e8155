"""From a file to tensors, through a real server: the right tokens, in every order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from client import RemoteBatches
from tests.conftest import Serve, Server, WriteTokens
from tests.support.commands import run
from tests.support.offline import offline_rows, received_rows
from tokenfeed.errors import InvalidCorpus, InvalidRequest, StreamMismatch

T = 16
LENGTHS = (5000, 7, T, 3001, T + 1)
"""Shards of unequal length: two of them shorter than T + 1, one exactly as long."""

ORDERS = ["random", "shuffled", "sequential"]
ServeCorpus = Callable[[bool], tuple[Server, list[Path]]]


@pytest.fixture
def serve_corpus(serve: Serve, write_tokens: WriteTokens) -> ServeCorpus:
    """Serve one file, or shards of unequal length; no two tokens of the corpus are the same."""

    def start(sharded: bool) -> tuple[Server, list[Path]]:
        lengths = LENGTHS if sharded else (sum(LENGTHS),)
        starts = np.cumsum([0, *lengths])
        paths = [
            write_tokens(np.arange(first, first + length) + 1000, f"shard-{index}.bin")
            for index, (first, length) in enumerate(zip(starts, lengths, strict=False))
        ]
        return serve("--data", f"train={paths[0]}", *paths[1:]), paths

    return start


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sharded", [False, True])
def test_every_row_is_the_window_that_the_second_implementation_computes(
    serve_corpus: ServeCorpus, order: str, sharded: bool
) -> None:
    """Right tokens, at the right place, from the first sample on."""
    server, paths = serve_corpus(sharded)

    with RemoteBatches(server.address, 7, T, seed=42, order=order, num_batches=300) as feed:
        rows = received_rows(feed)

    expected = offline_rows(paths, f"{order}-1", 42, T, range(300 * 7))
    assert np.array_equal(rows, expected)


@pytest.mark.parametrize("order", ORDERS)
def test_no_window_crosses_from_one_file_into_the_next(
    serve_corpus: ServeCorpus, order: str
) -> None:
    """The end of one document is not context for the beginning of another file."""
    server, _ = serve_corpus(True)

    with RemoteBatches(server.address, 50, T, order=order, num_batches=100) as feed:
        rows = received_rows(feed) - 1000

    ends = np.cumsum(LENGTHS)
    shards = np.searchsorted(ends, rows, side="right")
    assert (np.diff(rows, axis=1) == 1).all()
    assert (shards == shards[:, :1]).all()
    assert set(shards[:, 0].tolist()) == {0, 3, 4}


def test_random_reaches_the_first_and_the_last_possible_window(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """A classic off by one never serves the last one."""
    server = serve("--data", write_tokens(range(100, 140)))

    with RemoteBatches(server.address, 100, T, order="random", num_batches=10) as feed:
        starts = received_rows(feed)[:, 0]

    assert set(starts.tolist()) == set(range(100, 140 - T))


def test_shuffled_visits_each_window_once_an_epoch_in_another_order_each_time(
    serve_corpus: ServeCorpus,
) -> None:
    """Exactly once, not on average."""
    server, _ = serve_corpus(True)
    windows = sorted(
        1000 + int(first) + T * i
        for first, length in zip(np.cumsum([0, *LENGTHS]), LENGTHS, strict=False)
        for i in range((length - 1) // T)
    )

    with RemoteBatches(
        server.address, len(windows), T, order="shuffled", seed=5, num_batches=3
    ) as feed:
        epochs = [x[:, 0].tolist() for x, _ in feed]

    assert all(sorted(epoch) == windows for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("order", ["random", "shuffled"])
def test_two_seeds_are_two_streams_and_one_seed_is_one(
    serve_corpus: ServeCorpus, order: str
) -> None:
    """Also seeds that differ only beyond 32 bits."""
    server, _ = serve_corpus(False)

    def rows(seed: int) -> bytes:
        with RemoteBatches(server.address, 50, T, order=order, seed=seed, num_batches=2) as feed:
            return received_rows(feed).tobytes()

    assert rows(1) == rows(1)
    assert len({rows(1), rows(2), rows(2**32 + 1), rows(2**63 + 1)}) == 4


def test_uint32_tokens_arrive_as_they_are(serve: Serve, write_tokens: WriteTokens) -> None:
    """128,256 and 262,144 are vocabularies of today."""
    tokens = np.arange(2**32 - 200, 2**32)
    server = serve("--data", write_tokens(tokens, dtype="<u4"), "--dtype", "uint32")

    with RemoteBatches(server.address, 3, T, order="sequential", num_batches=4) as feed:
        rows = received_rows(feed)

    # 200 tokens make twelve windows of 16: one epoch.
    assert np.array_equal(rows[:, :-1].reshape(-1), tokens[: 12 * T])


def test_uint16_tokens_above_32767_are_not_negative(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """A widening through a signed type would make them so."""
    server = serve("--data", write_tokens(np.arange(65_536 - 100, 65_536)))

    with RemoteBatches(server.address, 2, T, order="sequential", num_batches=1) as feed:
        x, y = next(feed)

    assert x[0].tolist() == list(range(65_436, 65_436 + T))
    assert int(y.max()) == 65_436 + 2 * T


def test_train_and_validation_are_two_datasets_of_one_server(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Every training loop has both; each is requested by name."""
    train, val = write_tokens(range(100, 300)), write_tokens(range(1000, 1200), "val.bin")
    server = serve("--data", train, "--data", val)

    with (
        RemoteBatches(server.address, 2, T, dataset="train") as one,
        RemoteBatches(server.address, 2, T, dataset="val") as two,
    ):
        for _ in range(20):
            assert int(next(one)[0].max()) < 300
            assert int(next(two)[0].min()) >= 1000


def test_files_of_rows_are_served_row_by_row(serve: Serve, write_tokens: WriteTokens) -> None:
    """Each row of an epoch is a row of the files, whole, and none is missing or twice."""
    rows = np.arange(1000, 1000 + 30 * (T + 1)).reshape(30, T + 1)
    paths = [write_tokens(rows[:20], "a.bin"), write_tokens(rows[20:], "b.bin")]
    files = "file:" + ",".join(map(str, paths)) + f"?row-tokens={T + 1}"
    server = serve("--data", f"train={paths[0]}", paths[1], "--row-tokens", str(T + 1))

    for target in (server.address, files):
        with RemoteBatches(target, 5, T, seed=3, num_batches=12) as feed:
            assert feed.batches_per_epoch == 6
            delivered = received_rows(feed)
        for epoch in (delivered[:30], delivered[30:]):
            assert np.array_equal(epoch[np.argsort(epoch[:, 0])], rows)
    with RemoteBatches(server.address, 5, T, order="random", num_batches=40) as feed:
        drawn = received_rows(feed)
    assert {tuple(row) for row in drawn} == {tuple(row) for row in rows}


def test_files_of_rows_are_another_corpus_than_the_same_files_of_text(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """So a resumed run cannot get other rows: its server is refused."""
    path = write_tokens(np.arange(20 * (T + 1)) + 1000)
    target = f"file:{path}"

    with RemoteBatches(f"{target}?row-tokens={T + 1}", 5, T) as feed:
        next(feed)
        state = feed.state_dict()
    with RemoteBatches(target, 5, T) as feed, pytest.raises(StreamMismatch):
        feed.load_state_dict(state)


@pytest.mark.parametrize("context_length", [T - 1, T + 1, 2 * T + 1])
def test_files_of_rows_refuse_another_context_length_and_name_their_own(
    serve: Serve, write_tokens: WriteTokens, context_length: int
) -> None:
    """Rows of another length would be cut out of two."""
    path = write_tokens(np.arange(20 * (T + 1)) + 1000)
    server = serve("--data", path, "--row-tokens", str(T + 1))

    for target in (server.address, f"file:{path}?row-tokens={T + 1}"):
        with (
            pytest.raises(InvalidRequest, match=f"is not {T}: the files have rows of {T + 1} "),
            RemoteBatches(target, 5, context_length) as feed,
        ):
            next(feed)


def test_a_file_that_is_no_number_of_rows_is_refused(write_tokens: WriteTokens) -> None:
    """It has other rows, or a part is missing."""
    path = write_tokens(np.arange(20 * (T + 1) - 1) + 1000)

    problem = r"train.bin.* has 339 tokens, no multiple of .row-tokens=17"
    with pytest.raises(InvalidCorpus, match=problem):
        next(RemoteBatches(f"file:{path}?row-tokens={T + 1}", 5, T))
    with pytest.raises(InvalidRequest, match="row-tokens is '1'; it takes a number from 2"):
        next(RemoteBatches(f"file:{path}?row-tokens=1", 5, T))


def test_files_of_rows_have_no_rows_of_documents(serve: Serve, write_tokens: WriteTokens) -> None:
    """A document would run from one row into the next, which is of another place."""
    path = write_tokens(np.arange(20 * (T + 1)) % 7 + 1000)
    words = ("--document-end-token", "1003", "--row-tokens", str(T + 1))
    server = serve("--data", path, *words)
    files = f"file:{path}?row-tokens={T + 1}&document-end-token=1003"

    for target in (server.address, files):
        with (
            pytest.raises(InvalidRequest, match="packed-1 makes rows of documents, but the files"),
            RemoteBatches(target, 5, T, order="packed") as feed,
        ):
            next(feed)
        with RemoteBatches(target, 5, T, mask_borders=True) as feed:
            x, y = next(feed)
        assert torch.equal(y == -100, x == 1003)


def test_an_epoch_of_files_of_rows_names_their_context_length(write_tokens: WriteTokens) -> None:
    """In the words of the first batch, and not those of a file that is too short."""
    path = write_tokens(np.arange(20 * (T + 1)) + 1000)

    with RemoteBatches(f"file:{path}?row-tokens={T + 1}", 5, 2 * T) as feed:
        for ask in (lambda: len(feed.epoch(0)), lambda: feed.batches_per_epoch):
            with pytest.raises(InvalidRequest, match=f"is not {T}: the files of 'train' have rows"):
                ask()


def test_doctor_finds_nothing_wrong_with_files_of_rows(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """Its own rows have to be theirs."""
    server = serve("--data", write_tokens(np.arange(2000)), "--row-tokens", "100")

    said = run("-m", "tokenfeed", "doctor", "--seconds", "0.1", server.address)

    assert "PROBLEM" not in said
    assert "files of rows: 100 tokens each" in run("-m", "tokenfeed", "describe", server.address)
