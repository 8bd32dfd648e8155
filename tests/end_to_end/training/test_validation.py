"""Validation of each dataset by itself, against a second implementation's windows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from client import Deleted, InvalidRequest, Mixture, NotFound, validation_feeds
from tests.conftest import Serve, Server, WriteTokens
from tests.support.offline import offline_rows, received_rows
from tests.support.packed_corpora import ORDERS, Order, random_lengths, write_corpus
from tests.support.redacting import holds_deleted, redact
from tests.support.waiting import eventually
from tokenfeed.client.batches.validation import ValidationFeeds

T, B = 8, 4
WINDOWS = {"web-val": 101, "code-val": 48, "math-val": 3}
NAMES = list(WINDOWS)
Batch = tuple[torch.Tensor, torch.Tensor]
OpenFeeds = Callable[..., ValidationFeeds]


@pytest.fixture
def paths(write_tokens: WriteTokens) -> dict[str, Path]:
    """Corpora whose tokens tell their dataset."""
    random = np.random.default_rng(3)
    return {
        name: write_tokens(
            random.integers(10_000 * n + 1, 10_000 * (n + 1), windows * T + 1), f"{name}.bin"
        )
        for n, (name, windows) in enumerate(WINDOWS.items())
    }


@pytest.fixture
def server(serve: Serve, paths: dict[str, Path]) -> Server:
    data = [word for path in paths.values() for word in ("--data", path)]
    return serve(*data, "--log-level", "debug")


@pytest.fixture
def open_feeds(server: Server) -> Iterator[OpenFeeds]:
    """Open the feeds of one server: open_feeds(sources=NAMES, ...)."""
    opened: list[ValidationFeeds] = []

    def start(sources: object = NAMES, batch_size: int = B, **arguments: object) -> ValidationFeeds:
        opened.append(validation_feeds(server.address, batch_size, T, sources, **arguments))
        return opened[-1]

    yield start
    for feeds in opened:
        feeds.close()


def test_a_list_is_in_force_for_its_dataset(open_feeds: OpenFeeds, paths: dict[str, Path]) -> None:
    """Its tokens are no targets; without it an erased dataset is refused, by name."""
    path = paths["code-val"]
    found = redact([path], (0, 20, 30), fill=7)
    feeds = open_feeds(redactions={"code-val": found})
    rows = windows_of(path)
    for x, y in islice(feeds["code-val"], 1):
        flat = [token for row in x.tolist() for token in row]
        assert flat[20:30] == [7] * 10
        assert flat[:20] == [token for row in rows[:B] for token in row[:T]][:20]
        assert [at for at, target in enumerate(y.flatten().tolist()) if target == -100] == list(
            range(19, 29)
        )
    redact([path], (0, 20, 30), fill=7, erase=True)

    def is_refused() -> bool:
        try:
            list(open_feeds()["code-val"])
        except Deleted as error:
            return "code-val" in str(error)
        return False

    assert eventually(is_refused)


@pytest.mark.parametrize("is_local", [True, False], ids=["file", "served"])
def test_an_evaluation_goes_on_while_its_dataset_is_erased(
    serve: Serve, paths: dict[str, Path], is_local: bool
) -> None:
    """It reads the same rows as before, and so does the next one. Without the list the next one is
    refused, by name: its loss would be of other tokens.
    """
    path = paths["web-val"]
    found = redact([path], (0, 20, 30), (0, 700, 703), fill=7)
    server = None if is_local else serve("--data", path)
    target = f"file:web-val={path}" if server is None else server.address
    process = os.getpid() if server is None else server.process.pid
    lists = {"web-val": found}
    with (
        validation_feeds(target, B, T, lists, redactions=lists) as feeds,
        validation_feeds(target, B, T, lists) as unaware,
    ):
        feed = feeds["web-val"]
        before = [torch.stack(batch) for batch in feed]
        assert len(list(unaware["web-val"])) == len(before)
        batches = map(torch.stack, feed)
        during = list(islice(batches, 2))
        redact([path], (0, 20, 30), (0, 700, 703), fill=7, erase=True)
        during += batches
        assert eventually(lambda: not holds_deleted(process, [path]))
        behind = [torch.stack(batch) for batch in feed]
        with pytest.raises(Deleted, match="web-val"):
            list(unaware["web-val"])
    assert torch.equal(torch.stack(during), torch.stack(before))
    assert torch.equal(torch.stack(behind), torch.stack(before))
    x, y = torch.stack(before).transpose(0, 1).flatten(1)
    assert {*x[20:30].tolist(), *x[700:703].tolist()} == {7}
    erased = {*range(19, 29), *range(699, 702)}
    assert {at for at in (y == -100).nonzero().flatten().tolist() if at < 101 * T} == erased


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("ab" * 32, "is not a dict of hashes by the names of datasets"),
        ({"web": "ab" * 32}, "'web' is not one of the datasets, web-val, code-val, math-val"),
        ({"web-val": "ab"}, "redactions: 'ab' is not 64"),
        (5, "redactions: 5 is not a dict of hashes by the names"),
    ],
)
def test_lists_that_fit_no_dataset_are_refused(
    open_feeds: OpenFeeds, given: object, problem: str
) -> None:
    """Else an evaluation would silently be another one."""
    with pytest.raises(InvalidRequest, match=problem):
        open_feeds(redactions=given)


def windows_of(path: Path, order: str = "sequential-1") -> list[list[int]]:
    return offline_rows([path], order, 0, T, range(WINDOWS[path.stem])).tolist()


def counted(batches: list[Batch]) -> list[list[int]]:
    """The rows that a loss counts: those that are not padding throughout."""
    own = [(y != -100).all(dim=1) for _, y in batches]
    assert all(bool((y[~mask] == -100).all()) for (_, y), mask in zip(batches, own, strict=True))
    kept = [(x[mask], y[mask]) for (x, y), mask in zip(batches, own, strict=True)]
    found: list[list[int]] = received_rows(kept).tolist()
    return found


def calls(server: Server) -> int:
    return server.stderr.count("call opened")


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_each_dataset_is_read_once_from_its_first_window_and_again(
    open_feeds: OpenFeeds, paths: dict[str, Path], order: str
) -> None:
    """The losses of two evaluations can be compared, and those of two datasets told apart."""
    feeds = open_feeds(order=order)

    for _ in range(3):
        found = {name: list(batches) for name, batches in feeds.items()}

        assert list(found) == NAMES
        assert {name: len(batches) for name, batches in found.items()} == {
            "web-val": 26,
            "code-val": 12,
            "math-val": 1,
        }
        for name, batches in found.items():
            assert len(feeds[name]) == len(batches)
            assert counted(batches) == windows_of(paths[name], f"{order}-1")


def test_an_evaluation_that_ends_early_begins_again_at_the_first_window(
    open_feeds: OpenFeeds, paths: dict[str, Path]
) -> None:
    """Of a large dataset, the same batches of a shuffled order are read each time."""
    batches = open_feeds(order="shuffled")["web-val"]
    windows = windows_of(paths["web-val"], "shuffled-1")

    for count in (3, 26, 3, 5):
        assert counted([*islice(batches, count)]) == windows[: count * B]


def test_two_ranks_read_each_window_once_in_the_same_number_of_batches(
    open_feeds: OpenFeeds, paths: dict[str, Path]
) -> None:
    """Also of a dataset that is smaller than a batch: a rank with fewer would stop the others."""
    ranks = [open_feeds(rank=rank, world_size=2) for rank in range(2)]

    for name in NAMES:
        first, second = ([*feeds[name]] for feeds in ranks)

        assert len(first) == len(second) == -(-WINDOWS[name] // (2 * B))
        steps = [pair for both in zip(first, second, strict=True) for pair in both]
        assert counted(steps) == windows_of(paths[name])


def test_feeds_that_are_not_read_cost_the_server_nothing(
    open_feeds: OpenFeeds, server: Server
) -> None:
    """They are made at the start of a run, which may be days before the first evaluation."""
    feeds = open_feeds()
    assert server.connection_count() == 0

    list(feeds["code-val"])

    assert 1 <= calls(server) <= 2  # for the rows, and perhaps a goodbye already
    assert server.connection_count() == 1


@pytest.mark.parametrize("ends_early", [False, True])
def test_no_thread_receives_after_an_evaluation(
    serve: Serve, write_tokens: WriteTokens, ends_early: bool
) -> None:
    """Idle again: a training feed on the same connection has it to itself."""
    tokens = np.arange(1_000_000) % 60_000  # more than is prefetched at once
    names = ["web-val", "code-val"]
    paths = [write_tokens(tokens, f"{name}.bin") for name in names]
    server = serve(*(word for path in paths for word in ("--data", path)))

    def receivers() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "tokenfeed-receiver"}

    before = receivers()
    with validation_feeds(server.address, B, 512, names, prefetch_bytes=0) as feeds:
        for batches in feeds.values():
            reading = iter(batches)
            next(reading)
            assert len(receivers() - before) == 1
            if not ends_early:
                assert len(list(reading)) == len(batches) - 1
            del reading
            assert eventually(lambda: receivers() <= before)


def test_evaluations_leave_no_history(open_feeds: OpenFeeds) -> None:
    """The history of a feed that reads many epochs fills up, and the log reports that."""
    feeds = open_feeds(["math-val"])
    feed = feeds["math-val"]._feed

    for _ in range(5):
        list(feeds["math-val"])

    assert [run["end_sample"] for run in feed.history()] == [WINDOWS["math-val"]]


@pytest.mark.parametrize(
    "sources",
    [
        {"web-val": 0.7, "code-val": 0.3},
        Mixture({"web-val": 0.7, "code-val": 0.3}),
        Mixture(
            stages=[
                {"weights": {"web-val": 1}},
                {"first_sample": 100, "weights": {"code-val": 1}},
            ]
        ),
        (name for name in ("web-val", "code-val")),
    ],
    ids=["weights", "mixture", "stages", "generator"],
)
def test_sources_are_names_or_what_has_them(
    open_feeds: OpenFeeds, paths: dict[str, Path], sources: object
) -> None:
    """Where the validation server has the names of the training server, the mixture says it all."""
    feeds = open_feeds(sources)

    assert list(feeds) == ["web-val", "code-val"]
    assert counted([*feeds["code-val"]]) == windows_of(paths["code-val"])


def test_local_files_are_validated_without_a_server(paths: dict[str, Path]) -> None:
    """A laptop and a cluster differ by a string."""
    target = "file:" + ",".join(f"{name}={path}" for name, path in paths.items())

    with validation_feeds(target, B, T, NAMES) as feeds:
        found = {name: counted([*batches]) for name, batches in feeds.items()}

    assert found == {name: windows_of(path) for name, path in paths.items()}


@pytest.mark.parametrize("order", ORDERS)
def test_each_document_is_validated_once_from_its_first_token_to_its_last(
    serve: Serve, tmp_path: Path, order: Order
) -> None:
    """In rows over documents: the loss of an evaluation is that of the documents, and of no other
    positions, also the second time, on two ranks and without a server.
    """
    name, long = order
    corpora = [
        write_corpus(tmp_path / name, random_lengths(seed, T), name)
        for seed, name in enumerate(("notes", "chats"))
    ]
    address = serve(*(word for corpus in corpora for word in corpus.words)).address
    files = "file:" + ",".join(corpus.target.removeprefix("file:") for corpus in corpora)
    names = [corpus.name for corpus in corpora]
    options = {"order": name, "long": long, "seed": 5, "world_size": 2}
    for target in (address, files):
        with (
            validation_feeds(target, B, T, names, rank=0, **options) as first,
            validation_feeds(target, B, T, names, rank=1, **options) as second,
        ):
            for corpus in corpora:
                expected = corpus.expected(order, T, 5, range(len(corpus.rows(order, T))))
                for _ in range(2):
                    ranks = ([*first[corpus.name]], [*second[corpus.name]])
                    assert len(ranks[0]) == len(ranks[1]) == len(first[corpus.name])
                    rich = list(first[corpus.name].batches())
                    for (x, y), batch in zip(ranks[0], rich, strict=True):
                        assert torch.equal(batch.x, x)
                        assert torch.equal(batch.y, y)
                    assert rich[0].positions[0, 0] == 0
                    steps = [batch for both in zip(*ranks, strict=True) for batch in both]
                    x = [row for batch, _ in steps for row in batch.tolist()]
                    y = [row for _, batch in steps for row in batch.tolist()]
                    count = len(expected[0])
                    assert (x[:count], y[:count]) == expected
                    assert all(target == -100 for row in y[count:] for target in row)


def test_a_name_that_is_not_served_is_one_sentence_at_the_first_loop(
    open_feeds: OpenFeeds,
) -> None:
    """Nothing is asked before that, and the other datasets can be read."""
    feeds = open_feeds(["web-val", "wev-val"])

    assert len([*feeds["web-val"]]) == 26
    with pytest.raises(NotFound) as caught:
        iter(feeds["wev-val"])
    assert "'wev-val'" in str(caught.value)
    assert "web-val" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_close_ends_all_of_them_and_a_later_loop_is_an_error(
    open_feeds: OpenFeeds, server: Server
) -> None:
    """A loop over nothing would print a loss of 0, or divide by it."""
    with open_feeds() as feeds:
        for name in ("web-val", "code-val"):
            list(feeds[name])
        half = iter(feeds["web-val"])
        next(half)
    feeds.close()

    assert list(half) == []
    for name in NAMES:
        with pytest.raises(InvalidRequest, match="closed"):
            iter(feeds[name])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"sources": "web-val"}, "sources: 'web-val' is not a list of names"),
        ({"sources": 3}, "sources: 3 is not a list of names"),
        ({"sources": []}, "sources: is empty"),
        ({"sources": {}}, "sources: is empty"),
        ({"sources": ["web-val", ""]}, "sources: has an empty name"),
        ({"sources": ["web-val", 3]}, "sources: 3 is not text"),
        ({"sources": ["web-val", "web-val"]}, "sources: 'web-val' is named twice"),
        ({"order": "random"}, "order: random-1 is endless"),
        ({"batch_size": 0}, "batch_size: 0"),
        ({"rank": 0}, "world_size"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(
    open_feeds: OpenFeeds, server: Server, arguments: Mapping[str, object], problem: str
) -> None:
    """Not at the first evaluation, an hour into the run."""
    with pytest.raises(InvalidRequest) as caught:
        open_feeds(**arguments)

    assert problem in str(caught.value)
    assert server.connection_count() == 0
