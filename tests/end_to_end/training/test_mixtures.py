"""Mixtures, from real servers and files: every row is the one that the offline stream has."""

from __future__ import annotations

import json
import logging
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from client import InvalidRequest, Mixture, NotFound, RemoteBatches, StreamMismatch
from tests.conftest import Serve, WriteTokens
from tests.support import reference
from tests.support.mixtures import (
    ASKED,
    MIXTURE,
    NAMES,
    OPTIONS,
    STAGES,
    B,
    T,
    local,
    offline,
    served,
    write_sources,
)
from tests.support.offline import received_rows
from tests.support.ports import free_port
from tokenfeed.client.feed.ranks import agreement


@pytest.fixture
def paths(write_tokens: WriteTokens) -> dict[str, list[Path]]:
    return write_sources(write_tokens)


@pytest.mark.parametrize("kind", ["map", "pread", "file", "file without a thread"])
def test_rows_are_those_of_the_offline_stream(
    serve: Serve, paths: dict[str, list[Path]], kind: str
) -> None:
    """Through three stages, one of which begins within a batch, and is asked for in tokens."""
    is_local = kind.startswith("file")
    target = local(paths) if is_local else served(serve, paths, "--read", kind).address
    prefetch = {"prefetch_bytes": 0} if kind == "file without a thread" else {}
    feed = RemoteBatches(target, B, T, mixture=MIXTURE, num_batches=90, **prefetch)

    with feed:
        found = received_rows(feed)

    assert np.array_equal(found, offline(paths, range(90 * B)))
    assert reference.stages(ASKED)[1].first_sample % B != 0 or reference.stages(ASKED)[2][0] % B


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_ranks_partition_the_stream(
    serve: Serve, paths: dict[str, list[Path]], world_size: int
) -> None:
    """Also where a stage begins between two of them."""
    server = served(serve, paths)
    steps = 360 // (world_size * B)
    ranks = []
    for rank in range(world_size):
        with RemoteBatches(
            server.address,
            B,
            T,
            mixture=MIXTURE,
            num_batches=steps,
            rank=rank,
            world_size=world_size,
        ) as feed:
            ranks.append(received_rows(feed).reshape(steps, B, T + 1))

    found = np.stack(ranks, axis=1).reshape(-1, T + 1)

    assert np.array_equal(found, offline(paths, range(steps * world_size * B)))


def test_a_run_goes_on_elsewhere_from_its_state(serve: Serve, paths: dict[str, list[Path]]) -> None:
    """From a server that was killed to another batch size and world size, and to local files."""
    first = served(serve, paths)
    with RemoteBatches(first.address, B, T, mixture=MIXTURE) as feed:
        found = [received_rows(next(feed) for _ in range(40))]
        state = json.loads(json.dumps(feed.state_dict()))
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    server = served(serve, paths)
    ranks = []
    for rank in range(2):
        with RemoteBatches(server.address, 7, T, mixture=MIXTURE, rank=rank, world_size=2) as feed:
            feed.load_state_dict(state)
            ranks.append(received_rows(next(feed) for _ in range(5)).reshape(5, 7, T + 1))
            state_after = feed.state_dict()
    found.append(np.stack(ranks, axis=1).reshape(-1, T + 1))
    with RemoteBatches(local(paths), 3, T, mixture=MIXTURE) as feed:
        feed.load_state_dict(state_after)
        found.append(received_rows(next(feed) for _ in range(20)))
        history = feed.history()

    assert np.array_equal(np.concatenate(found), offline(paths, range(160 + 70 + 60)))
    assert [(run["first_sample"], run["end_sample"]) for run in history] == [
        (0, 160),
        (160, 230),
        (230, 290),
    ]
    begins = [[stage["first_sample"] for stage in run["stages"]] for run in history]
    assert begins == [[0], [0, 200], [230]]
    assert [(each["dataset"], each["weight"]) for each in history[1]["stages"][1]["sources"]] == [
        ("code", 1),
        ("math", 2),
    ]


def test_what_each_source_has_contributed_is_in_the_stats(paths: dict[str, list[Path]]) -> None:
    """From the history, so also what a loaded state had, and not what was skipped."""
    with RemoteBatches(local(paths), B, T, mixture=MIXTURE) as feed:
        assert feed.stats().sources == {}
        for _ in range(10):
            next(feed)
        feed.skip(180)
        for _ in range(10):
            next(feed)
        state = feed.state_dict()
    with RemoteBatches(local(paths), B, T, mixture=MIXTURE) as feed:
        feed.load_state_dict(state)
        next(feed)
        found = feed.stats().sources
    seen = [*range(40), *range(220, 264)]
    sources = [reference.mixture_place(9, ASKED, sample)[0] for sample in seen]

    windows = {"web": 399 // T, "math": 399 // T, "news": 2 * (399 // T)}
    assert found == {
        name: (
            sources.count(number),
            sources.count(number) * T,
            sources.count(number) / windows[name] if name in windows else None,
        )
        for number, name in enumerate(NAMES)
    }


def test_a_killed_server_loses_no_row_and_repeats_none(
    serve: Serve, paths: dict[str, list[Path]]
) -> None:
    """Its replica serves the same mixture, and was never told of it."""
    one, other = served(serve, paths), served(serve, paths)
    targets = [one.address, other.address]
    with RemoteBatches(targets, B, T, mixture=MIXTURE, num_batches=90, prefetch_bytes=1) as feed:
        found = [received_rows(next(feed) for _ in range(20))]
        one.stop(signal.SIGKILL)
        found.append(received_rows(feed))

    assert np.array_equal(np.concatenate(found), offline(paths, range(360)))
    assert feed.stats().reconnects == 1


def test_sources_of_several_widths_are_served_in_the_widest(
    serve: Serve, paths: dict[str, list[Path]], write_tokens: WriteTokens
) -> None:
    """One vocabulary may be stored in two types."""
    tokens = np.random.default_rng(5).integers(60_000, 200_000, 900)
    paths["code"] = [write_tokens(tokens, "wide.npy.bin", "<u4")]
    data = [part for name, files in paths.items() for part in ("--data", f"{name}={files[0]}")]
    np.save(paths["code"][0].with_name("code.npy"), tokens.astype("<u4"))
    data[3] = f"code={paths['code'][0].with_name('code.npy')}"
    data += [str(paths["news"][1])]
    server = serve(*data)

    with RemoteBatches(server.address, B, T, mixture=MIXTURE, num_batches=90) as feed:
        found = received_rows(feed)

    assert np.array_equal(found, offline(paths, range(360), token_bytes={"code": 4}))


def test_a_source_that_is_exhausted_ends_the_stream_on_every_rank(
    serve: Serve, paths: dict[str, list[Path]], caplog: pytest.LogCaptureFixture
) -> None:
    """At the last whole batch before the block that it cannot fill: 49 windows of 5 a block."""
    server = served(serve, paths)
    mixture = Mixture({"web": 5, "math": 5}, sources={"web": {"max_epochs": 1}}, order="shuffled")
    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        for rank in range(3):
            with RemoteBatches(
                server.address, B, T, mixture=mixture, rank=rank, world_size=3
            ) as feed:
                assert feed.batches_left == 90 // (3 * B)
                assert len(list(feed)) == 90 // (3 * B)
                assert feed.batches_left == 0

    said = "mixture ends when a source is exhausted source=web max_epochs=1 sample=90 tokens=720"
    assert said in caplog.text


@pytest.mark.parametrize(
    ("changes", "subject", "problem"),
    [
        ({"sources": {"web": {"seed": 6}}}, "mixture.web", "saved with seed 5, but this stream"),
        (
            {"sources": {"web": {"order": "sequential", "seed": 5}}},
            "mixture.web",
            "order shuffled-1",
        ),
        ({"seed": 10}, "seed", "saved with 9, but this mixture has 10"),
        (
            {"stages": [{"weights": {"web": 7, "code": 2, "math": 1}}, *STAGES[1:]]},
            "mixture",
            "has the weights web 70, code 20, math 10, but here web 7, code 2, math 1",
        ),
        (
            {"stages": [STAGES[0], {**STAGES[1], "first_sample": 10, "first_tokens": None}]},
            "mixture",
            "stage 1 of the state begins at sample 200, but here at 100",
        ),
        (
            {"stages": [STAGES[0], {"first_sample": 90, "weights": {"code": 1}}, *STAGES[1:]]},
            "mixture",
            "stage 1 of the state begins at sample 200, but here at 100",
        ),
        (
            {"stages": STAGES[:1]},
            "mixture",
            "the state has a stage from sample 200 on, and this mixture has not",
        ),
    ],
)
def test_a_state_with_another_past_is_refused(
    paths: dict[str, list[Path]], changes: dict[str, object], subject: str, problem: str
) -> None:
    """The message says what differs: a hash could not."""
    with RemoteBatches(local(paths), B, T, mixture=MIXTURE, start_sample=220) as feed:
        next(feed)
        feed.skip(0)
        state = feed.state_dict()
    state["sample"] = 220
    own = {
        "stages": STAGES,
        "sources": {
            "web": {"seed": 5},
            "code": {"order": "random"},
            "math": {"order": "sequential"},
        },
        "order": "shuffled",
        "seed": 9,
    }
    sources = {**own["sources"], **changes.pop("sources", {})}  # type: ignore[dict-item]
    used = {name for stage in (changes.get("stages") or STAGES) for name in stage["weights"]}
    kept = {name: options for name, options in sources.items() if name in used}
    other = Mixture(**{**own, **changes, "sources": kept})  # type: ignore[arg-type]

    with (
        RemoteBatches(local(paths), B, T, mixture=other) as feed,
        pytest.raises(StreamMismatch) as caught,
    ):
        feed.load_state_dict(state)

    assert caught.value.subject == subject
    assert problem in caught.value.problem


def test_a_state_with_another_future_is_taken(paths: dict[str, list[Path]]) -> None:
    """Weights are planned again during a run; a new source comes behind the others."""
    stages = [*STAGES[:2], {"first_sample": 400, "weights": {"web": 1, "news": 1}}]
    with RemoteBatches(local(paths), B, T, mixture=MIXTURE) as feed:
        rows = [received_rows(next(feed) for _ in range(50))]
        state = feed.state_dict()
    other = Mixture(
        stages=stages,
        sources={
            "web": {"seed": 5},
            "code": {"order": "random"},
            "math": {"order": "sequential"},
        },
        order="shuffled",
        seed=9,
    )
    with RemoteBatches(local(paths), B, T, mixture=other) as feed:
        feed.load_state_dict(state)
        rows.append(received_rows(next(feed) for _ in range(60)))

    asked = [*ASKED[:2], (400, [1, 0, 0, 1])]
    assert np.array_equal(np.concatenate(rows), offline(paths, range(440), asked))


def test_a_mixture_s_state_is_no_dataset_s(paths: dict[str, list[Path]]) -> None:
    """And the other way round."""
    with RemoteBatches(local(paths), B, T, mixture=MIXTURE) as feed:
        of_mixture = feed.state_dict()
    with RemoteBatches(local(paths), B, T, dataset="web") as feed:
        of_dataset = feed.state_dict()
        with pytest.raises(
            StreamMismatch, match=r"mixture: the state is of a mixture of web, code"
        ):
            feed.load_state_dict(of_mixture)
    with (
        RemoteBatches(local(paths), B, T, mixture=MIXTURE) as feed,
        pytest.raises(StreamMismatch, match=r"mixture: the state is of one dataset"),
    ):
        feed.load_state_dict(of_dataset)


@pytest.mark.parametrize("is_local", [True, False])
def test_an_unknown_dataset_is_named(
    serve: Serve, paths: dict[str, list[Path]], is_local: bool
) -> None:
    target = local(paths) if is_local else served(serve, paths).address
    with (
        RemoteBatches(target, B, T, mixture={"web": 1, "cod": 1}) as feed,
        pytest.raises(NotFound, match=r"'cod' is not .* only .*code"),
    ):
        next(feed)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_source_that_is_too_short_is_named(
    serve: Serve, paths: dict[str, list[Path]], write_tokens: WriteTokens, is_local: bool
) -> None:
    """The others could be read, but a stream without it would be another one."""
    paths["math"] = [write_tokens(range(1, T + 1), "short.bin")]
    target = local(paths) if is_local else served(serve, paths).address
    for options, problem in (
        ({}, r"context_length: 8 .* longest file of math has 8"),
        ({"web": {"max_epochs": 1}}, r"context_length: 8 .* longest file of math"),
    ):
        mixture = Mixture({"web": 1, "math": 1}, sources=options, order="shuffled")
        with (
            RemoteBatches(target, B, T, mixture=mixture) as feed,
            pytest.raises(InvalidRequest, match=problem),
        ):
            next(feed)


def test_a_closed_feed_with_max_epochs_ends_without_a_word(paths: dict[str, list[Path]]) -> None:
    """It was never asked how long its sources are."""
    mixture = Mixture({"web": 1}, sources={"web": {"max_epochs": 1}}, order="shuffled")
    feed = RemoteBatches(local(paths), B, T, mixture=mixture)
    feed.close()

    assert list(feed) == []


@pytest.mark.parametrize("is_local", [True, False])
def test_a_source_of_a_later_stage_is_checked_at_the_start(
    serve: Serve, paths: dict[str, list[Path]], write_tokens: WriteTokens, is_local: bool
) -> None:
    """A run must not end after a week because of a corpus that it begins to read only then."""
    paths["math"] = [write_tokens(range(1, T + 1), "short.bin")]
    target = local(paths) if is_local else served(serve, paths).address
    stages = [{"weights": {"web": 1}}, {"first_sample": 10**6, "weights": {"math": 1}}]
    with (
        RemoteBatches(target, B, T, mixture=Mixture(stages=stages)) as feed,
        pytest.raises(InvalidRequest, match=r"context_length: 8 .* longest file of math has 8"),
    ):
        next(feed)


def test_max_epochs_that_do_not_fill_the_first_block_are_refused(
    paths: dict[str, list[Path]],
) -> None:
    """A feed without a single batch would end a job in silence."""
    mixture = Mixture(
        {"web": 0.5, "math": 0.5}, sources={"web": {"max_epochs": 1}}, order="shuffled"
    )
    with (
        RemoteBatches(local(paths), B, T, mixture=mixture) as feed,
        pytest.raises(
            InvalidRequest, match=r"sources\.web\.max_epochs: is 1, which are 49 samples"
        ),
    ):
        next(feed)


def test_a_feed_that_is_closed_while_it_waits_for_its_end_stops_at_once() -> None:
    """max_epochs asks the server how long a source is."""
    mixture = Mixture({"web": 1}, sources={"web": {"max_epochs": 1}}, order="shuffled")
    feed = RemoteBatches(f"127.0.0.1:{free_port()}", B, T, mixture=mixture)
    threading.Timer(0.5, feed.close).start()

    assert list(feed) == []


@pytest.mark.parametrize(
    ("other", "has_failed"),
    [
        ({"mixture": {"web": 7, "code": 3}}, False),
        ({"mixture": {"web": 3, "code": 7}}, True),
        ({"mixture": {"code": 3, "web": 7}}, True),
        ({"mixture": {"web": 7, "code": 3}, "seed": 8}, True),
        (
            {"mixture": Mixture({"web": 7, "code": 3}, sources={"web": {"max_epochs": 3}})},
            True,
        ),
    ],
)
def test_ranks_with_other_mixtures_are_told(
    paths: dict[str, list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    other: dict[str, object],
    has_failed: bool,
) -> None:
    """A file of weights that differs on one node: they would train on different data in silence."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(agreement, "has_process_group", lambda: True)
    monkeypatch.setattr(agreement, "_default_store", lambda: store)
    options = {"mixture": {"web": 7, "code": 3}, "seed": 7}
    for rank, own in enumerate((options, options | other)):
        monkeypatch.setattr(agreement, "_MADE", {})
        with RemoteBatches(
            local(paths), B, T, order="shuffled", rank=rank, world_size=2, **own
        ) as feed:
            if rank and has_failed:
                with pytest.raises(
                    StreamMismatch, match=r"mixture: of rank 1 is not that of rank 0"
                ):
                    next(feed)
            else:
                next(feed)


def test_sources_keep_their_numbers_in_whatever_order_they_are_named_later(
    paths: dict[str, list[Path]],
) -> None:
    """A number decides rows: a script whose lines were sorted must not change the stream."""
    with RemoteBatches(local(paths), B, T, mixture=MIXTURE) as feed:
        rows = [received_rows(next(feed) for _ in range(30))]
        state = feed.state_dict()
    stages = [{"weights": {"math": 0.1, "code": 0.2, "web": 0.7}}, *STAGES[1:]]
    with RemoteBatches(local(paths), B, T, mixture=Mixture(stages=stages, **OPTIONS)) as feed:
        feed.load_state_dict(state)
        rows.append(received_rows(next(feed) for _ in range(60)))

    assert np.array_equal(np.concatenate(rows), offline(paths, range(360)))
