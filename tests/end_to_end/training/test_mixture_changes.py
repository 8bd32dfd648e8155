"""Mixtures whose weights change in the middle of a run, or at a resume."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import InvalidRequest, Mixture, NotFound, RemoteBatches, StreamMismatch
from tests.conftest import Serve, WriteTokens
from tests.support import reference
from tests.support.commands import run_ranks
from tests.support.meanwhile import meanwhile
from tests.support.mixtures import (
    MIXTURE,
    NAMES,
    OPTIONS,
    WEIGHTS,
    B,
    T,
    local,
    offline,
    served,
    write_sources,
)
from tests.support.offline import received_rows
from tests.support.packed_corpora import write_corpus
from tests.support.ports import free_port
from tokenfeed.client.feed import feed as feed_module
from tokenfeed.client.feed import requested_changes
from tokenfeed.client.feed.ranks import agreement
from tokenfeed.stream.stream import Stream


def stages_of(state: dict[str, Any]) -> list[Any]:
    """The stages in a state."""
    return state["stream"][4]  # type: ignore[no-any-return]


@pytest.fixture
def paths(write_tokens: WriteTokens) -> dict[str, list[Path]]:
    return write_sources(write_tokens)


@pytest.mark.parametrize("is_local", [True, False])
def test_weights_change_in_the_middle_of_a_run(
    serve: Serve, paths: dict[str, list[Path]], is_local: bool
) -> None:
    """Twice, with batches prefetched beyond the change, and a source that comes later."""
    target = local(paths) if is_local else served(serve, paths).address
    mixture = Mixture(WEIGHTS, **OPTIONS)
    with RemoteBatches(target, B, T, mixture=mixture) as feed:
        rows = [received_rows(next(feed) for _ in range(10))]
        begins = [feed.change_mixture({"code": 1, "math": 2}, at_sample=137)]
        rows.append(received_rows(next(feed) for _ in range(25)))
        begins.append(feed.change_mixture({"web": 3, "math": 0, "news": 2}, at_sample=230))
        begins.append(feed.change_mixture({"web": 3, "news": 2}, at_sample=230))
        rows.append(received_rows(next(feed) for _ in range(55)))
        state = json.loads(json.dumps(feed.state_dict()))

    asked = [(0, [70, 20, 10, 0]), (137, [0, 1, 2, 0]), (230, [3, 0, 0, 2])]
    expected_begins = [stage.first_sample for stage in reference.stages(asked)[1:]]
    assert begins == [*expected_begins, expected_begins[-1]]
    assert np.array_equal(np.concatenate(rows), offline(paths, range(360), asked))

    # A script that runs again with its own definition continues with the changes,
    with RemoteBatches(target, 3, T, mixture=mixture) as feed:
        feed.load_state_dict(state)
        assert feed.change_mixture({"web": 3, "news": 2}, at_sample=230) == expected_begins[-1]
        assert feed.change_mixture({"code": 1, "math": 2}, at_sample=137) == expected_begins[0]
        feed.load_state_dict(state)
        rows.append(received_rows(next(feed) for _ in range(20)))
        assert stages_of(feed.state_dict()) == stages_of(state)
    assert np.array_equal(np.concatenate(rows), offline(paths, range(420), asked))


@pytest.mark.parametrize("ahead", [0, 100])
def test_a_source_of_documents_joins_a_mixture_of_windows(
    serve: Serve, tmp_path: Path, ahead: int
) -> None:
    """From then on all rows come with document starts, which were not requested before."""
    chats = write_corpus(tmp_path / "chats", [[7, 40, 3, 20, 11] * 20], "chats")
    web = write_corpus(tmp_path / "web", [[30] * 40], "web", first=5000)
    address = serve(*chats.words, *web.words).address
    orders = {"web": {"order": "shuffled"}, "chats": {"order": "packed"}}
    alone = Mixture({"web": 1}, sources={"web": orders["web"]}, order="packed")
    with RemoteBatches(address, B, T, mixture=alone) as feed:
        next(feed)
        begin = feed.change_mixture({"web": 1, "chats": 1}, at_sample=B + ahead)
        next(feed)
        state = feed.state_dict()
        feed.skip(ahead)
        rows = received_rows([next(feed), next(feed)])
    with RemoteBatches(address, B, T, mixture=alone) as feed:
        feed.load_state_dict(state)
        feed.skip(ahead)
        again = received_rows([next(feed), next(feed)])
    stages = [{"weights": {"web": 1}}, {"first_sample": begin, "weights": {"web": 1, "chats": 1}}]
    with RemoteBatches(address, B, T, mixture=Mixture(stages=stages, sources=orders)) as feed:
        feed.skip(2 * B + ahead)
        declared = received_rows([next(feed), next(feed)])

    assert begin == B + ahead
    assert (rows == again).all()
    assert (rows == declared).all()
    assert {bool(row.max() < 5000) for row in rows} == {True, False}


def test_a_feed_of_other_weights_appends_them_on_request(
    paths: dict[str, list[Path]], caplog: pytest.LogCaptureFixture
) -> None:
    """At the saved sample, once, and the past stays what it was."""
    with RemoteBatches(local(paths), B, T, mixture=Mixture(WEIGHTS, **OPTIONS)) as feed:
        rows = [received_rows(next(feed) for _ in range(40))]
        state = feed.state_dict()
    other = Mixture({"web": 0, "code": 1, "math": 2}, **OPTIONS)
    with RemoteBatches(local(paths), B, T, mixture=other) as feed:
        with pytest.raises(StreamMismatch, match=r"mixture: stage 0 of the state, .* web 70"):
            feed.load_state_dict(state)
        assert feed.position.samples == 0
        with caplog.at_level(logging.WARNING, "tokenfeed.client"):
            feed.load_state_dict(state, allow=("mixture",))
        assert "resumed with other weights sample=200" in caplog.text
        rows.append(received_rows(next(feed) for _ in range(20)))
        state = feed.state_dict()
    caplog.clear()
    for allow in ((), ("mixture",)):
        with RemoteBatches(local(paths), B, T, mixture=other) as feed:
            feed.load_state_dict(state, allow=allow)
            again = received_rows(next(feed) for _ in range(10))
            assert stages_of(feed.state_dict()) == stages_of(state)
    rows.append(again)
    assert "resumed" not in caplog.text

    asked = [(0, [70, 20, 10, 0]), (160, [0, 1, 2, 0])]
    assert np.array_equal(np.concatenate(rows), offline(paths, range(280), asked))


@pytest.mark.parametrize(
    ("weights", "at_sample", "world_size", "problem"),
    [
        ({"web": 1}, 3, 1, "at_sample: 3 is before 4, the first sample"),
        ({"web": 1}, None, 2, "at_sample: is required with several ranks"),
        ({"web": 0}, 100, 1, "weights: are all 0"),
        ({"web": -1}, 100, 1, "weights.web: -1 is negative"),
        ({"web": 1}, 150, 1, "at_sample: 150 leaves no block: the next stage begins at 200"),
        ({"web": 1}, 2**63, 1, "at_sample: 9223372036854775808 is not in"),
        ({"web": 1}, 2**63 - 1, 1, "weights: from sample .* on leave no block to a later stage"),
        ("web", 100, 1, "weights: 'web' is not a mapping from names"),
        ({3: 1}, 100, 1, "a key of weights: 3 is not text"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    paths: dict[str, list[Path]],
    weights: dict[str, float],
    at_sample: int | None,
    world_size: int,
    problem: str,
) -> None:
    """And changes nothing."""
    with RemoteBatches(local(paths), B, T, mixture=MIXTURE, rank=0, world_size=world_size) as feed:
        next(feed)
        before = feed.state_dict()
        with pytest.raises(InvalidRequest, match=problem):
            feed.change_mixture(weights, at_sample)
        assert feed.state_dict() == before


def in_stream_order(rows_of_ranks: list[object], batch_size: int) -> np.ndarray:
    """The rows of all ranks, as the samples of a stream."""
    rows = np.stack([np.asarray(rows).reshape(-1, batch_size, T + 1) for rows in rows_of_ranks], 1)
    return rows.reshape(-1, T + 1)


def test_eight_ranks_lose_and_repeat_nothing(
    serve: Serve, write_tokens: WriteTokens, in_ranks: Callable[..., list[object]]
) -> None:
    """Weights change twice during the run, with ranks at different steps and batches prefetched
    beyond the change; a server is killed; one rank asks for other weights; and the run resumes with
    other ranks, another batch size and other weights.
    """
    random = np.random.default_rng(5)
    paths = {
        name: [write_tokens(random.integers(10_000 * n, 10_000 * (n + 1), 20_000), f"{name}.bin")]
        for n, name in enumerate(NAMES[:3])
    }
    options = {"order": "shuffled", "seed": 9}
    port = free_port()
    server = served(serve, paths, port=port)
    killed = threading.Event()

    def train(rank: int, feed: RemoteBatches) -> tuple[np.ndarray, dict[str, Any]]:
        rows = [received_rows(next(feed) for _ in range(5 + rank))]
        begins = [feed.change_mixture({"web": 2, "code": 5, "math": 3}, at_sample=501)]
        rows.append(received_rows(next(feed) for _ in range(20 - rank)))
        assert feed.position.samples == 25 * 24
        if rank == 0:
            server.stop(signal.SIGKILL)
            served(serve, paths, port=port)
            killed.set()
        assert killed.wait(10)
        rows.append(received_rows(next(feed) for _ in range(1 + rank)))
        with pytest.raises(StreamMismatch, match=r"mixture: rank \d changes it to another one"):
            feed.change_mixture({"web": 1, "code": 1 + (rank == 5)}, at_sample=900)
        begins.append(feed.change_mixture({"web": 1, "math": 2}, at_sample=900))
        rows.append(received_rows(next(feed) for _ in range(24 - rank)))
        assert begins == [510, 900]
        assert feed.stats().reconnects <= 2
        return np.concatenate(rows), feed.state_dict()

    def feed_of(rank: int) -> RemoteBatches:
        mixture = Mixture({"web": 7, "code": 2, "math": 1}, **options)
        return RemoteBatches(server.address, 3, T, mixture=mixture, rank=rank, world_size=8)

    def resume(rank: int, feed: RemoteBatches) -> np.ndarray:
        feed.load_state_dict(state, allow=("mixture",))
        return received_rows(next(feed) for _ in range(30))

    def resumed_feed_of(rank: int) -> RemoteBatches:
        mixture = Mixture({"web": 1, "code": 1, "math": 1}, **options)
        return RemoteBatches(server.address, 5, T, mixture=mixture, rank=rank, world_size=4)

    found = in_ranks(train, 8, feed_of)
    assert [each for each in found if isinstance(each, BaseException)] == []
    state = found[3][1]
    assert all(each[1] == state for each in found)
    resumed = in_ranks(resume, 4, resumed_feed_of)
    rows = np.concatenate(
        [in_stream_order([each[0] for each in found], 3), in_stream_order(resumed, 5)]
    )

    asked = [(0, [7, 2, 1]), (501, [2, 5, 3]), (900, [1, 0, 2]), (1200, [1, 1, 1])]
    places = [reference.mixture_place(9, asked, sample) for sample in range(1800)]
    for source in range(3):
        own = sorted(place for number, place in places if number == source)
        assert own == list(range(len(own)))
    expected = [
        reference.rows([paths[NAMES[n]][0].read_bytes()], 2, "shuffled-1", 9, T, [own])[0]
        for n, own in places
    ]
    assert np.array_equal(rows, np.stack([np.frombuffer(row, "<u2") for row in expected]))
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_rank_that_asks_for_other_weights_is_refused_on_all(
    paths: dict[str, list[Path]], in_ranks: Callable[..., list[object]]
) -> None:
    """And the run goes on as if none had asked."""

    def train(rank: int, feed: RemoteBatches) -> np.ndarray:
        rows = [received_rows(next(feed) for _ in range(rank + 1))]
        weights = {"code": 1, "news": 2} if rank < 2 else {"code": 2, "news": 1}
        with pytest.raises(StreamMismatch, match=r"mixture: rank \d changes it to another one"):
            feed.change_mixture(weights, at_sample=137)
        rows.append(received_rows(next(feed) for _ in range(19 - rank)))
        return np.concatenate(rows)

    mixture = Mixture(WEIGHTS, **OPTIONS)
    found = in_ranks(
        train,
        3,
        lambda rank: RemoteBatches(local(paths), B, T, mixture=mixture, rank=rank, world_size=3),
    )

    expected = offline(paths, range(240), [(0, [70, 20, 10, 0])])
    assert np.array_equal(in_stream_order(found, B), expected)


@pytest.mark.parametrize(
    ("weights", "subject"), [({"code": 1}, "at_sample"), ({"elsewhere": 1}, "mixture")]
)
def test_a_rank_that_cannot_change_tells_the_others(
    serve: Serve,
    paths: dict[str, list[Path]],
    in_ranks: Callable[..., list[object]],
    weights: dict[str, int],
    subject: str,
) -> None:
    """It is too late, or a new source is not served to it: they do not wait for it."""
    server = served(serve, paths)

    def train(rank: int, feed: RemoteBatches) -> None:
        for _ in range(1 + 30 * rank):
            next(feed)
        if rank == 0 and subject == "mixture":
            feed.change_mixture({"code": 1}, at_sample=337)
        feed.change_mixture(weights, at_sample=137 if subject == "at_sample" else 337)

    errors = in_ranks(
        train,
        2,
        lambda rank: RemoteBatches(server.address, B, T, mixture=WEIGHTS, rank=rank, world_size=2),
    )

    assert isinstance(errors[0], StreamMismatch)
    assert "rank 1 cannot change it" in str(errors[0])
    assert isinstance(errors[1], InvalidRequest if subject == "at_sample" else NotFound)
    assert errors[1].subject == subject


def test_ranks_that_load_states_of_other_mixtures_are_told(
    paths: dict[str, list[Path]], in_ranks: Callable[..., list[object]]
) -> None:
    """The first one decides, and the others see that theirs is another one."""
    mixture = Mixture(WEIGHTS, **OPTIONS)
    states = []
    for weights in ({"code": 1}, {"math": 1}):
        with RemoteBatches(local(paths), B, T, mixture=mixture) as feed:
            feed.change_mixture(weights, at_sample=100)
            for _ in range(30):
                next(feed)
            states.append(feed.state_dict())

    found = in_ranks(
        lambda rank, feed: feed.load_state_dict(states[rank == 2]),
        3,
        lambda rank: RemoteBatches(local(paths), B, T, mixture=mixture, rank=rank, world_size=3),
    )

    refused = [str(each) for each in found if isinstance(each, StreamMismatch)]
    assert 1 <= len(refused) <= 2
    assert all("state: of rank" in each for each in refused)


def test_a_change_that_lies_ahead_survives_a_restart(paths: dict[str, list[Path]]) -> None:
    """It was asked for once, and the script that runs again is past that line."""
    mixture = Mixture(WEIGHTS, **OPTIONS)
    with RemoteBatches(local(paths), B, T, mixture=mixture) as feed:
        early = feed.state_dict()
        assert feed.change_mixture({"code": 1, "math": 2}, at_sample=137) == 200
        rows = [received_rows(next(feed) for _ in range(10))]
        state = feed.state_dict()
        feed.load_state_dict(early)
        assert len(stages_of(feed.state_dict())) == 1, "a rewind is before the change"
    with RemoteBatches(local(paths), B, T, mixture=mixture) as feed:
        feed.load_state_dict(state)
        rows.append(received_rows(next(feed) for _ in range(60)))

    asked = [(0, [70, 20, 10, 0]), (137, [0, 1, 2, 0])]
    assert np.array_equal(np.concatenate(rows), offline(paths, range(280), asked))


def test_a_resumed_feed_whose_weights_change_later_resumes_again(
    paths: dict[str, list[Path]],
) -> None:
    """The weights that it appended when it resumed must not undo the change at every restart."""
    with RemoteBatches(local(paths), B, T, mixture=Mixture(WEIGHTS, **OPTIONS)) as feed:
        rows = [received_rows(next(feed) for _ in range(40))]
        state = feed.state_dict()
    other = Mixture({"web": 0, "code": 1, "math": 2}, **OPTIONS)
    for at_sample in (None, 400, None):
        with RemoteBatches(local(paths), B, T, mixture=other) as feed:
            feed.load_state_dict(state, allow=("mixture",))
            if at_sample:
                feed.change_mixture({"web": 1}, at_sample)
            rows.append(received_rows(next(feed) for _ in range(40)))
            state = feed.state_dict()

    asked = [(0, [70, 20, 10, 0]), (160, [0, 1, 2, 0]), (400, [1, 0, 0, 0])]
    assert np.array_equal(np.concatenate(rows), offline(paths, range(640), asked))


def test_a_definition_that_was_appended_continues_with_its_own_stages(
    paths: dict[str, list[Path]],
) -> None:
    """And loads its own states again, with or without the permission, in any of them."""
    with RemoteBatches(local(paths), B, T, mixture=Mixture(WEIGHTS, **OPTIONS)) as feed:
        rows = [received_rows(next(feed) for _ in range(50))]
        state = feed.state_dict()
    stages = [
        {"weights": {"web": 0, "code": 1, "math": 9}},
        {"first_sample": 195, "weights": {"web": 1, "code": 1}},
        {"first_sample": 205, "weights": {"code": 1, "math": 2}},
        {"first_sample": 380, "weights": {"math": 1}},
    ]
    other = Mixture(stages=stages, block=10, **OPTIONS)
    for allow in [("mixture",), ("mixture",), (), ()]:
        with RemoteBatches(local(paths), B, T, mixture=other) as feed:
            feed.load_state_dict(state, allow=allow)
            rows.append(received_rows(next(feed) for _ in range(20)))
            state = feed.state_dict()
    with (
        RemoteBatches(local(paths), B, T, mixture=Mixture(WEIGHTS, **OPTIONS)) as feed,
        pytest.raises(StreamMismatch, match="the state has a stage from sample 200 on"),
    ):
        feed.load_state_dict(state)

    asked = [(0, [70, 20, 10]), (200, [1, 1, 0]), (205, [0, 1, 2]), (380, [0, 0, 1])]
    assert np.array_equal(np.concatenate(rows), offline(paths, range(520), asked))


def test_a_renamed_dataset_is_known_by_its_corpus(paths: dict[str, list[Path]]) -> None:
    """Names are for looking up only."""
    with RemoteBatches(local(paths), B, T, mixture=Mixture({"web": 7, "math": 3})) as feed:
        rows = [received_rows(next(feed) for _ in range(10))]
        state = feed.state_dict()
    renamed = {("internet" if name == "web" else name): each for name, each in paths.items()}
    with RemoteBatches(local(renamed), B, T, mixture={"internet": 7, "math": 3}) as feed:
        feed.load_state_dict(state)
        rows.append(received_rows(next(feed) for _ in range(10)))
    with RemoteBatches(local(paths), B, T, mixture={"web": 7, "math": 3}) as feed:
        expected = received_rows(next(feed) for _ in range(20))
    other = {"code": 7, "math": 3}
    with (
        RemoteBatches(local(paths), B, T, mixture=other) as feed,
        pytest.raises(StreamMismatch, match=r"the weights web 7, math 3, but here math 3, code 7"),
    ):
        feed.load_state_dict(state)

    assert np.array_equal(np.concatenate(rows), expected)


def test_a_change_as_soon_as_possible_leaves_the_first_block(
    paths: dict[str, list[Path]],
) -> None:
    """Before the first batch, and just where a stage begins."""
    with RemoteBatches(local(paths), B, T, mixture={"web": 7, "math": 3}) as feed:
        assert feed.change_mixture({"web": 1}) == 10
        for _ in range(4):
            next(feed)
        assert feed.change_mixture({"math": 1}) == 16
        assert feed.change_mixture({"math": 1}) == 16
        assert feed.change_mixture({"math": 2}, at_sample=30) == 30


@pytest.mark.parametrize("is_before", [False, True])
def test_a_change_during_another_one_is_kept(
    paths: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """By another thread or a signal handler, before new datasets are opened, or behind that; the
    other change opens datasets too, and closes those before.
    """
    with RemoteBatches(local(paths), B, T, mixture={"web": 7, "math": 3}) as feed:
        next(feed)
        change = partial(feed.change_mixture, {"code": 1}, at_sample=60)
        meanwhile(monkeypatch, feed_module, "reweighted", change, is_before=is_before)
        assert feed.change_mixture({"web": 1, "code": 1}, at_sample=30) == 30

        stages = feed._stream.stream.stages
        assert [(stage.first_sample, len(stage.weights)) for stage in stages] == [
            (0, 2), (30, 2), (60, 1),
        ]  # fmt: skip


def test_a_change_while_declared_lengths_are_placed_is_no_error(
    paths: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the datasets that are asked for their rows."""
    lengths, mixture = {0: T, 200: 2 * T}, {"web": 1, "math": 1}
    options = {"mixture": mixture, "order": "random"}
    with RemoteBatches(local(paths), 4, lengths, **options) as feed:
        change = partial(feed.change_mixture, {"code": 1}, at_sample=100)
        meanwhile(monkeypatch, requested_changes, "ahead_of_lengths", change, is_before=True)

        assert next(feed)[0].shape == (4, T)
        assert not feed.closed


def test_a_closed_feed_opens_nothing_again(
    serve: Serve, paths: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a change nor for a state; also if another thread closes it meanwhile."""
    server = served(serve, paths)
    feed = RemoteBatches(server.address, B, T, mixture={"web": 7, "math": 3})
    next(feed)
    state = feed.state_dict()
    feed.close()
    with pytest.raises(InvalidRequest, match="is closed"):
        feed.change_mixture({"code": 1})
    with RemoteBatches(server.address, B, T, mixture={"web": 7, "math": 3}) as other:
        other.change_mixture({"code": 1})
        state = other.state_dict()
    with pytest.raises(InvalidRequest, match="is closed"):
        feed.load_state_dict(state)

    feed = RemoteBatches(server.address, B, T, mixture={"web": 7, "math": 3})

    def closed_meanwhile(stream: Stream, sample: int) -> Stream:
        feed.close()
        return stream

    next(feed)
    monkeypatch.setattr("tokenfeed.client.feed.feed_stream.folded", closed_meanwhile)
    assert feed.change_mixture({"code": 1}) == 10
    assert feed._datasets.closed
    assert list(feed) == []


def test_a_source_that_is_read_no_more_does_not_end_the_feed(
    paths: dict[str, list[Path]],
) -> None:
    """It had more epochs before than the file allows it now."""
    with RemoteBatches(local(paths), B, T, mixture={"web": 7, "code": 3}, order="shuffled") as feed:
        for _ in range(60):
            next(feed)
        state = feed.state_dict()
    stages = [
        {"weights": {"web": 7, "code": 3}},
        {"first_sample": 240, "weights": {"code": 1, "math": 1}},
    ]
    mixture = Mixture(stages=stages, sources={"web": {"max_epochs": 1}})
    with RemoteBatches(local(paths), B, T, mixture=mixture, order="shuffled") as feed:
        feed.load_state_dict(state)
        assert len([next(feed) for _ in range(20)]) == 20


def test_a_rank_that_is_interrupted_goes_with_the_others(
    paths: dict[str, list[Path]],
    in_ranks: Callable[..., list[object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once all have agreed; it may be caught, and the run goes on."""
    compared = agreement.RankAgreement._compared

    def interrupted(self: agreement.RankAgreement, store: Any, key: str, *rest: Any) -> str:
        while self._rank == 0 and store.add(f"{key}/count", 0) == 0:
            time.sleep(0.01)  # so that rank 0 is the last one, which decides
        decision = compared(self, store, key, *rest)
        if self._rank == 1:
            raise KeyboardInterrupt
        return decision

    monkeypatch.setattr(agreement.RankAgreement, "_compared", interrupted)

    def train(rank: int, feed: RemoteBatches) -> dict[str, Any]:
        next(feed)
        with pytest.raises(KeyboardInterrupt) if rank else nullcontext():
            feed.change_mixture({"code": 1}, at_sample=137)
        return feed.state_dict()

    states = in_ranks(
        train,
        2,
        lambda rank: RemoteBatches(local(paths), B, T, mixture=WEIGHTS, rank=rank, world_size=2),
    )

    assert len(stages_of(states[0])) == 2
    assert states[0] == states[1]


def test_ranks_that_load_states_of_different_samples_are_told(
    paths: dict[str, list[Path]], in_ranks: Callable[..., list[object]]
) -> None:
    """Of one mixture."""
    states = []
    with RemoteBatches(local(paths), B, T, mixture=WEIGHTS) as feed:
        for _ in range(2):
            next(feed)
            states.append(feed.state_dict())

    found = in_ranks(
        lambda rank, feed: feed.load_state_dict(states[rank]),
        2,
        lambda rank: RemoteBatches(local(paths), B, T, mixture=WEIGHTS, rank=rank, world_size=2),
    )

    (refused,) = [str(each) for each in found if isinstance(each, StreamMismatch)]
    assert re.match(r"state: of rank \d, at sample [48], is not that of rank \d, at", refused)


def test_a_skip_beyond_the_end_of_a_source_does_not_depend_on_what_was_read_before(
    paths: dict[str, list[Path]],
) -> None:
    """Its stage is over by then."""
    stages = [{"weights": {"web": 1}}, {"first_sample": 400, "weights": {"code": 1}}]
    mixture = Mixture(stages=stages, sources={"web": {"max_epochs": 1}}, order="shuffled")
    for read_before in (False, True):
        with RemoteBatches(local(paths), B, T, mixture=mixture) as feed:
            if read_before:
                next(feed)
            feed.skip(400 - feed.position.samples)
            assert len([next(feed) for _ in range(5)]) == 5


def test_a_state_of_another_length_is_named_so(paths: dict[str, list[Path]]) -> None:
    """Not by its weights, which are the same."""
    stages = [{"weights": WEIGHTS}, {"first_tokens": 300 * T, "weights": {"code": 1}}]
    with RemoteBatches(local(paths), B, T, mixture=Mixture(stages=stages)) as feed:
        feed.skip(400)
        state = feed.state_dict()
    with (
        RemoteBatches(local(paths), B, 2 * T, mixture=Mixture(stages=stages)) as feed,
        pytest.raises(StreamMismatch, match="context_length: the state was saved with 8"),
    ):
        feed.load_state_dict(state, allow=("mixture",))


def test_an_earlier_sample_is_refused_whatever_was_in_force_there(
    paths: dict[str, list[Path]],
) -> None:
    """What was cannot be changed."""
    with RemoteBatches(local(paths), B, T, mixture={"web": 7, "code": 3}) as feed:
        feed.change_mixture({"web": 1}, at_sample=100)
        feed.skip(150)
        with pytest.raises(InvalidRequest, match="50 is before 150, the first"):
            feed.change_mixture({"web": 7, "code": 3}, at_sample=50)
        assert feed.change_mixture({"web": 1}, at_sample=100) == 100


# A rank of a trainer. The second change differs by rank, and the third comes too late on one.
RANK = """
import sys
import torch.distributed as dist
from client import InvalidRequest, RemoteBatches, StreamMismatch
dist.init_process_group("gloo")
rank = dist.get_rank()
with RemoteBatches(sys.argv[1], 4, 8, mixture={"web": 7, "code": 3}) as feed:
    for _ in range(1 + rank):
        next(feed)
    changes = ({"web": 1}, 97), ({"web": 1, "code": 1 + rank}, 150), ({"math": 1}, 20)
    for weights, at_sample in changes:
        try:
            print(f"{feed.change_mixture(weights, at_sample)}\\n", end="")
        except (InvalidRequest, StreamMismatch) as error:
            print(f"{error.subject}\\n", end="")
        for _ in range(2 - rank + 1 if weights == {"web": 1} else 0):
            next(feed)
    print(f"{feed.state_dict()['stream'][4]}\\n", end="")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_a_process_group_change_together(
    paths: dict[str, list[Path]], tmp_path: Path
) -> None:
    """Real processes, and the store that torch has between them."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)

    lines = run_ranks(2, script, local(paths)).splitlines()

    shares = [[0, 7, 0], [1, 3, 0]], [[0, 1, 70], [1, 0, 30]]
    changed = [[0, 8, 0, 0, shares[0]], [100, 8, 97, 1, shares[1]]]
    assert lines.count("100") == 2
    assert lines.count("mixture") == 2
    assert lines.count("at_sample") == 2
    assert lines.count(str(changed)) == 2
