"""Epochs, states and positions of a feed, against a second implementation's windows."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from client import (
    InvalidRequest,
    NumpyBatches,
    RemoteBatches,
    SamplesExhausted,
    StreamMismatch,
)
from tests.conftest import Serve, WriteTokens
from tests.support.meanwhile import meanwhile
from tests.support.object_server import object_server
from tests.support.offline import offline_rows, received_rows
from tests.support.redacting import redact
from tokenfeed.client.feed import feed as feed_module
from tokenfeed.client.feed.cursor import Cursor, Snapshot
from tokenfeed.client.feed.delivery import BatchReader
from tokenfeed.client.feed.epochs import Epoch, EpochPlan
from tokenfeed.client.feed.feed import Feed
from tokenfeed.client.feed.feed_stream import FeedStream
from tokenfeed.client.feed.options import Tail
from tokenfeed.client.feed.stats import FeedStats
from tokenfeed.client.source.files import Files

T = 8
WINDOWS = 101
Batch = tuple[torch.Tensor, torch.Tensor]
OpenFeed = Callable[..., RemoteBatches]


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(WINDOWS * T + 1) % 50_000)


@pytest.fixture
def open_feed(serve: Serve, path: Path) -> Iterable[OpenFeed]:
    """Open feeds of one server: open_feed(batch_size=4, order="shuffled", ...)."""
    server = serve("--data", path)
    opened: list[RemoteBatches] = []

    def start(batch_size: int = 4, **arguments: object) -> RemoteBatches:
        given = {"order": "shuffled", "seed": 5} | arguments
        opened.append(RemoteBatches(server.address, batch_size, T, **given))
        return opened[-1]

    yield start
    for feed in opened:
        feed.close()


def rows_of(batches: Iterable[Batch]) -> list[list[int]]:
    found = list(batches)
    return received_rows(found).tolist() if found else []


def expected(path: Path, first: int, end: int, order: str = "shuffled-1") -> list[list[int]]:
    return offline_rows([path], order, 5, T, range(first, end)).tolist()


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_is_its_windows_and_each_loop_starts_at_its_beginning(
    open_feed: OpenFeed, path: Path, order: str, epoch: int
) -> None:
    """As a DataLoader over a shuffled dataset, with a length."""
    feed = open_feed(order=order).epoch(epoch)
    first = epoch * WINDOWS

    assert len(feed) == 25
    for _ in range(2):
        assert rows_of(feed) == expected(path, first, first + 100, f"{order}-1")


@pytest.mark.parametrize("tail", ["drop", "wrap", "pad"])
def test_three_ranks_get_an_epoch_in_the_same_number_of_batches(
    open_feed: OpenFeed, path: Path, tail: Tail
) -> None:
    """101 windows over 3 x 4 rows: the last batch is short of 7."""
    ranks = [open_feed(rank=rank, world_size=3).epoch(1, tail) for rank in range(3)]
    batches = [list(rank) for rank in ranks]

    assert [len(own) for own in batches] == [len(rank) for rank in ranks]
    assert {len(own) for own in batches} == {8 if tail == "drop" else 9}
    counted = [
        [x[row].tolist() for x, y in own for row in range(4) if (y[row] != -100).all()]
        for own in batches
    ]
    windows = [row[:-1] for row in expected(path, WINDOWS, 2 * WINDOWS + 7)]
    every = sorted(row for own in counted for row in own)
    if tail == "drop":
        assert every == sorted(windows[:96])
    elif tail == "wrap":
        assert every == sorted(windows)
    else:
        assert every == sorted(windows[:WINDOWS])
        y = torch.cat([y for own in batches for _, y in own])
        assert int((y == -100).all(dim=1).sum()) == 7


def test_dropped_samples_are_counted_in_the_log(
    open_feed: OpenFeed, caplog: pytest.LogCaptureFixture
) -> None:
    """Five percent of a small validation set are worth a line."""
    with caplog.at_level(logging.INFO, "tokenfeed.client"):
        rows_of(open_feed(batch_size=30).epoch(2))

    assert "epoch drops samples epoch=2 samples=11 batches=" in caplog.text


def test_rows_that_fill_the_last_batch_have_no_valid_target(
    open_feed: OpenFeed,
) -> None:
    """Each target of the corpus counts once in a mean over its epoch."""
    feed = open_feed(batch_size=5)

    batches = list(feed.epoch(0, tail="pad").batches())

    counts = [batch.num_valid_targets for batch in batches]
    assert counts == [int((batch.y != -100).sum()) for batch in batches]
    assert sum(counts) == WINDOWS * T < len(batches) * 5 * T


def test_an_epoch_smaller_than_a_batch_is_empty_with_a_warning_or_padded(
    open_feed: OpenFeed, caplog: pytest.LogCaptureFixture
) -> None:
    """A tiny validation set and many ranks."""
    feed = open_feed(batch_size=256)

    assert rows_of(feed.epoch(0)) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"epoch drops samples epoch=0 samples={WINDOWS} batches=0; tail='pad'" in caplog.text
    ((_, y),) = feed.epoch(0, "pad")
    assert int((y != -100).all(dim=1).sum()) == WINDOWS


def test_a_random_order_has_no_epochs_and_says_so(open_feed: OpenFeed) -> None:
    """It draws with replacement: there is no such thing."""
    feed = open_feed(order="random")

    for ask in (lambda: feed.epoch(0), lambda: feed.batches_per_epoch):
        with pytest.raises(InvalidRequest, match="has no epochs"):
            ask()
    assert feed.position.epoch is None


@pytest.mark.parametrize(("epoch", "tail"), [(-1, "drop"), (0, "keep"), (0.5, "drop")])
def test_an_epoch_that_cannot_be_is_refused(open_feed: OpenFeed, epoch: int, tail: Tail) -> None:
    """With the argument's name."""
    with pytest.raises(InvalidRequest, match=r"^(epoch|tail): "):
        open_feed().epoch(epoch, tail)


@pytest.mark.parametrize("epoch", [2**63, (2**63 - 4) // WINDOWS])
def test_an_epoch_whose_samples_reach_2_63_is_refused_by_name(
    open_feed: OpenFeed, epoch: int
) -> None:
    """Samples have to fit an int64, and the user did not pass first_sample."""
    feed = open_feed()
    last = (2**63 - 4) // WINDOWS - 1

    for ask in (len, list):
        with pytest.raises(SamplesExhausted, match=rf"^epoch: {epoch} is not in \[0, {last}\]"):
            ask(feed.epoch(epoch))
    assert len(list(feed.epoch(last, "wrap"))) == 26


@pytest.mark.parametrize("taken", [0, 1, 24, 25])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_a_run_resumed_twice_within_an_epoch_goes_on_there_and_then_as_usual(
    open_feed: OpenFeed, taken: int, tail: Tail
) -> None:
    """At its first batch, in the middle, at its last whole batch or its exact end."""
    unbroken = open_feed()
    whole = [rows_of(unbroken.epoch(epoch, tail)) for epoch in (1, 2)]
    found: list[list[int]] = []
    feed = open_feed(start_sample=WINDOWS)
    for batches in (taken, 1):
        epoch = iter(feed.epoch(feed.position.epoch, tail))
        for _, batch in zip(range(batches), epoch, strict=False):
            found += rows_of([batch])
        state = feed.state_dict()
        feed = open_feed()
        feed.load_state_dict(state)

    for epoch in range(feed.position.epoch, 3):
        found += rows_of(feed.epoch(epoch, tail))

    assert found == whole[0] + whole[1]
    assert feed.position == (3 * WINDOWS, 3)
    assert rows_of(feed.epoch(1, tail)) == whole[0], "only the first loop goes on"


def test_an_epoch_goes_on_behind_batches_of_next(open_feed: OpenFeed, path: Path) -> None:
    """As one warms a graph up before it is captured: with a batch, of a loaded state or not."""
    feed = open_feed()
    next(feed)
    assert rows_of(feed.epoch(0)) == expected(path, 4, 100)
    state = open_feed(start_sample=WINDOWS + 8).state_dict()
    feed.load_state_dict(state)
    next(feed)
    assert feed.copy_into(
        torch.empty(4, T, dtype=torch.int64), torch.empty(4, T, dtype=torch.int64)
    )
    assert rows_of(feed.epoch(1)) == expected(path, WINDOWS + 16, WINDOWS + 100)
    assert rows_of(feed.epoch(1)) == expected(path, WINDOWS, WINDOWS + 100)


def whole_feed(feed: RemoteBatches) -> Iterator[object]:
    return feed.batches()


def one_epoch(feed: RemoteBatches) -> Iterator[object]:
    return feed.epoch(feed.position.samples // WINDOWS).batches()


@pytest.mark.parametrize("batches_of", [iter, whole_feed, one_epoch])
def test_an_interrupt_loses_no_batch_wherever_it_comes(
    path: Path, batches_of: Callable[[RemoteBatches], Iterator[object]]
) -> None:
    """Python lets a Ctrl-C in where a function is called and where one of C returns; each of these
    places in turn, until a batch has no more of them.
    """
    with RemoteBatches(f"file:{path}", 1, T, order="shuffled", prefetch_bytes=0) as feed:
        for at in count(1):
            left = WINDOWS - feed.position.samples % WINDOWS
            feed.skip(left if left < 3 else 0)
            batches = batches_of(feed)
            next(batches)
            before = feed.position.samples
            with interrupt_at(at):
                try:
                    next(batches)
                    break
                except KeyboardInterrupt:
                    pass
            assert feed.position.samples == before, at

    assert at > 20


@contextmanager
def interrupt_at(at: int, *within: str) -> Iterator[None]:
    """Interrupt the code of this thread at one of the places where Python lets a Ctrl-C in.

    within: parts of the paths of its files; none are all files.
    """
    passed = 0

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal passed
        file = frame.f_code.co_filename
        # What comes in the caller's own line is the caller's.
        is_ours = file not in (__file__, contextlib.__file__)
        is_ours &= not within or any(part in file for part in within)
        passed += is_ours and event in ("call", "c_return")
        if passed == at:
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_after_an_interrupt_while_redactions_are_looked_up_the_next_call_has_the_batch(
    path: Path,
) -> None:
    """Other threads wait for some of the steps, and without prefetching this thread takes them."""
    listed = redact([path], (0, 0, WINDOWS * T), fill=7)

    def hung(*_: object) -> None:
        pytest.fail("hung after an interrupt")

    handler = signal.signal(signal.SIGALRM, hung)
    for at in count(1):
        with NumpyBatches(f"file:{path}", 1, T, prefetch_bytes=0, redactions=listed) as feed:
            feed.token_count  # noqa: B018 - opens the files
            with interrupt_at(at, "/memo.py", "/redactions/"):
                try:
                    next(feed)
                    break
                except KeyboardInterrupt:
                    pass
            signal.alarm(20)
            x, _ = next(feed)
            signal.alarm(0)
            assert x.tolist() == [[7] * T]
    signal.signal(signal.SIGALRM, handler)

    assert at > 20


def test_the_thread_of_a_trainer_reads_no_object_store(path: Path) -> None:
    """A Ctrl-C there could leave a fetch that nobody does, and that others wait for."""
    entered: set[str] = set()
    with object_server() as store:
        store.put("bucket/train.bin", path.read_bytes())
        target = "s3://bucket/train.bin?dtype=uint16"
        with NumpyBatches(target, 1, T, order="sequential", prefetch_bytes=0) as feed:
            dataset = feed.as_dataset()
            sys.setprofile(lambda frame, *_: entered.add(frame.f_code.co_filename))
            rows = [next(feed)[0][0].tolist(), dataset[1][0].tolist()]
            sys.setprofile(None)

    assert rows == [list(range(T)), list(range(T, 2 * T))]
    assert not [each for each in entered if "/storage/objects/" in each]


@pytest.mark.parametrize("how", ["next", "epoch"])
@pytest.mark.parametrize("move", ["skip", "load"])
@pytest.mark.parametrize("moment", ["read", "made"])
def test_a_move_while_a_batch_is_read_is_kept(
    open_feed: OpenFeed, monkeypatch: pytest.MonkeyPatch, how: str, move: str, moment: str
) -> None:
    """By another thread or a signal handler: the batch is not delivered where the feed was."""
    feed = open_feed(order="sequential")
    feed.skip(40)
    state = feed.state_dict()
    feed.skip(0)
    batches = iter(feed if how == "next" else feed.epoch(0))
    next(batches)

    def act() -> None:
        if move == "skip":
            feed.skip(16)
        else:
            feed.load_state_dict(state)

    meanwhile(monkeypatch, *MOMENTS[moment], act)
    at = 60 if move == "skip" else 40
    if how == "next":
        assert next(batches)[0][0, 0] == at * T
        assert feed.position.samples == at + 4
        return
    with pytest.raises(InvalidRequest, match="0 was still being read when skip, load_state_dict"):
        next(batches)
    assert feed.position.samples == at


@pytest.mark.parametrize("moment", ["read", "made"])
@pytest.mark.parametrize("how", ["next", "epoch"])
def test_a_redaction_while_a_batch_is_read_is_in_force_in_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, how: str, moment: str
) -> None:
    """`redact` has returned the sample from which on the tokens never arrive."""
    listed = redact([path], (0, 0, WINDOWS * T), fill=7)
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        batches = iter(feed if how == "next" else feed.epoch(0))
        next(batches)
        begun: list[int] = []
        meanwhile(monkeypatch, *MOMENTS[moment], lambda: begun.append(feed.redact(listed)))

        x, _ = next(batches)

        assert begun == [4]
        assert (x == 7).all()
        assert feed.position.samples == 8


def test_a_redaction_while_a_state_is_loaded_is_in_force(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = redact([path], (0, 0, WINDOWS * T), fill=7)
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        next(feed)
        state = feed.state_dict()
        meanwhile(monkeypatch, feed_module, "resumed", lambda: feed.redact(listed, at_sample=40))
        feed.load_state_dict(state)

        rows = [row for _ in range(12) for row in next(feed)[0].tolist()]
        assert [row == [7] * T for row in rows] == [False] * 36 + [True] * 12


def test_a_redaction_while_an_epoch_is_opened_again_loses_no_batch(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = redact([path], (0, 0, T), fill=7), redact([path], (0, 0, 2 * T), fill=7)
    with RemoteBatches(f"file:{path}", 4, T, order="shuffled", seed=5) as feed:
        loop = iter(feed.epoch(0))
        next(loop)
        feed.redact(first, at_sample=100)
        meanwhile(monkeypatch, Epoch, "_plan", lambda: feed.redact(second, at_sample=100))

        assert rows_of(loop) == expected(path, 4, 100)
        assert feed.position.samples == WINDOWS
        assert [(run["first_sample"], run["end_sample"]) for run in feed.history()] == [(0, 100)]


def test_who_asks_for_more_of_batches_while_one_is_awaited_ends_no_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are read again then, with what they carry."""
    with RemoteBatches(f"file:{path}", 4, T, order="shuffled", seed=5) as feed:
        next(feed)
        meanwhile(monkeypatch, BatchReader, "next", feed.batches, is_before=True)

        assert rows_of([next(feed)]) == expected(path, 4, 8)


def test_a_change_whose_first_sample_is_passed_meanwhile_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether before it is in force, or while it is made once more since another one came first."""
    listed = redact([path], (0, 0, WINDOWS * T), fill=7)
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        next(feed)
        meanwhile(monkeypatch, Feed, "_install", lambda: next(feed), is_before=True)
        with pytest.raises(InvalidRequest, match="at_sample: 4 was passed by another thread"):
            feed.redact(listed)

        meanwhile(
            monkeypatch,
            feed_module,
            "redacted",
            lambda: feed.load_state_dict(feed.state_dict()),
            lambda: next(feed),
        )
        with pytest.raises(InvalidRequest, match="at_sample: 8 was passed by another thread"):
            feed.redact(listed)

        assert feed.redact(listed) == 12
        assert next(feed)[0].tolist() == [[7] * T] * 4


def test_a_skip_counts_from_the_batch_that_was_taken_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        next(feed)
        meanwhile(monkeypatch, Cursor, "passed", lambda: next(feed))
        feed.skip(20)

        assert feed.position.samples == 28
        assert [(run["first_sample"], run["end_sample"]) for run in feed.history()] == [(0, 8)]


def test_a_skip_while_a_reader_is_opened_loses_no_batch_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RemoteBatches(f"file:{path}", 4, T, order="sequential", num_batches=5) as feed:
        meanwhile(monkeypatch, Feed, "_end", lambda: feed.skip(4), is_before=True)

        assert [x[0, 0].item() // T for x, _ in feed] == [4, 8, 12, 16]


@pytest.mark.parametrize(
    ("of", "name"), [(Feed, "_end"), (Files, "open_rows"), (FeedStream, "settled")]
)
@pytest.mark.parametrize("samples", [40, 44])
def test_a_skip_to_another_context_length_meanwhile_gives_its_batch(
    path: Path, monkeypatch: pytest.MonkeyPatch, of: type, name: str, samples: int
) -> None:
    with RemoteBatches(f"file:{path}", 4, {0: T, 40: 2 * T}, order="random") as feed:
        is_before = of is not FeedStream
        meanwhile(monkeypatch, of, name, lambda: feed.skip(samples), is_before=is_before)

        assert next(feed)[0].shape == (2, 2 * T)
        assert feed.position.samples == samples + 2


def test_memory_for_another_context_length_is_refused_before_it_is_filled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length changes behind the check of what was passed."""
    memory = [torch.zeros(4, T, dtype=torch.int64) for _ in range(2)]
    with RemoteBatches(f"file:{path}", 4, {0: T, 40: 2 * T}, order="random") as feed:
        meanwhile(monkeypatch, RemoteBatches, "_next", lambda: feed.skip(60), is_before=True)
        with pytest.raises(InvalidRequest, match="which another thread has changed batches to"):
            feed.copy_into(*memory)


def test_a_state_has_the_redaction_of_the_batch_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread redacts, and takes a batch, while the state is taken."""
    listed = redact([path], (0, 0, WINDOWS * T), fill=7)
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        next(feed)
        meanwhile(monkeypatch, Feed, "_declared", lambda: (feed.redact(listed), next(feed)))
        state = feed.state_dict()
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        feed.load_state_dict(state)

        assert feed.position.samples == 8
        assert next(feed)[0].tolist() == [[7] * T] * 4


def test_a_redaction_begins_behind_the_batch_that_follows_a_state_loaded_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = redact([path], (0, 0, WINDOWS * T), fill=7)
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        state = feed.state_dict()
        feed.skip(20)
        load = partial(feed.load_state_dict, state)
        meanwhile(monkeypatch, feed_module, "redacted", load, lambda: next(feed))
        with pytest.raises(InvalidRequest, match="at_sample: 0 was passed by another thread"):
            feed.redact(listed)
        assert feed.redact(listed) == 4


def test_an_epoch_without_a_batch_keeps_a_move_that_comes_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        feed.skip(100)
        meanwhile(monkeypatch, EpochPlan, "dropped_count", lambda: feed.skip(1000))
        with pytest.raises(InvalidRequest, match="0 was still being read when skip"):
            list(feed.epoch(0))

        assert feed.position.samples == 1100


def test_an_epoch_goes_on_at_its_position_though_the_feed_is_changed_as_it_begins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = redact([path], (0, 0, T), fill=7)
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        feed.skip(40)
        meanwhile(monkeypatch, Snapshot, "epoch_begin", lambda: feed.redact(listed, at_sample=90))

        assert [x[0, 0].item() // T for x, _ in feed.epoch(0)] == list(range(40, 100, 4))


def test_an_epoch_is_that_of_a_state_that_is_loaded_while_it_is_planned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another context length: an epoch has other rows then."""
    allowed = ("context_length", "mid_epoch")
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        feed.skip(200)
        state = feed.state_dict()
    found = []
    for is_meanwhile in (False, True):
        with RemoteBatches(f"file:{path}", 4, 2 * T, order="sequential") as feed:
            if is_meanwhile:
                load = partial(feed.load_state_dict, state, allow=allowed)
                meanwhile(monkeypatch, Epoch, "_plan", load)
            else:
                feed.load_state_dict(state, allow=allowed)
            found.append((rows_of(iter(feed.epoch(3))), feed.position))

    assert found[0] == found[1]


def test_who_asks_for_more_while_a_reader_is_opened_gets_it_in_the_next_batch(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RemoteBatches(f"file:{path}", 4, T, order="sequential") as feed:
        asked: list[Iterator[Any]] = []
        meanwhile(monkeypatch, RemoteBatches, "_transfer", lambda: asked.append(feed.batches()))
        next(feed)

        assert next(asked[0]).tokens[0].tolist() == list(range(4 * T, 5 * T + 1))


MOMENTS = {"read": (BatchReader, "next"), "made": (Feed, "_made")}
"""When the rows of a batch have come, and before it is counted."""


@pytest.mark.parametrize("how", ["skip", "load"])
def test_a_feed_that_another_thread_moves_goes_on_there(open_feed: OpenFeed, how: str) -> None:
    """The end of a loop without a word would be the end of the training."""
    feed = open_feed()
    state = feed.state_dict()
    stopped = threading.Event()

    def move() -> None:
        while not stopped.wait(0.002):
            if how == "skip":
                feed.skip(4)
            else:
                feed.load_state_dict(state)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(100):
            next(feed)
    finally:
        stopped.set()
        mover.join()


def test_an_epoch_that_begins_again_behind_its_end_says_so(
    open_feed: OpenFeed, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop over epochs that forgets where a state was would repeat one."""
    feed = open_feed(batch_size=1)
    feed.skip(WINDOWS)

    next(iter(feed.epoch(0)))

    assert "epoch begins again epoch=0: the feed was at sample 101, behind it" in caplog.text


def test_a_second_thread_that_takes_batches_is_told(open_feed: OpenFeed) -> None:
    """Both would get the same batch, or lose one."""
    feed = open_feed(batch_size=1)
    told: list[InvalidRequest] = []
    taken: list[int] = []

    def take() -> None:
        try:
            while not told and len(taken) < 100_000:
                taken.append(next(feed)[0][0, 0].item())
        except InvalidRequest as error:
            told.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert "threads: another thread is taking a batch of this feed" in str(told[0])
    next(feed)
    assert feed.position.samples == len(taken) + 1


def test_the_position_after_an_epoch_is_the_beginning_of_the_next(
    open_feed: OpenFeed, path: Path
) -> None:
    """Else what was dropped would come first in the next one."""
    feed = open_feed()
    for tail in ("drop", "wrap", "pad"):
        for _ in feed.epoch(4, tail):
            at_the_last_batch = feed.state_dict()["sample"]
        assert feed.position == (5 * WINDOWS, 5)
        assert at_the_last_batch == 5 * WINDOWS

    assert rows_of([next(feed)]) == expected(path, 5 * WINDOWS, 5 * WINDOWS + 4)


def test_a_state_counts_what_was_delivered_and_not_what_was_fetched(
    open_feed: OpenFeed, path: Path
) -> None:
    """The thread is megabytes ahead of the trainer."""
    feed = open_feed(order="random")
    for _ in range(7):
        next(feed)

    assert feed.state_dict()["sample"] == 28
    resumed = open_feed(batch_size=3, order="random")
    resumed.load_state_dict(feed.state_dict())
    assert rows_of([next(resumed)]) == expected(path, 28, 31, "random-1")


def test_a_state_may_be_loaded_after_iterating_and_taken_by_another_thread(
    open_feed: OpenFeed, path: Path
) -> None:
    """A checkpoint is written in the background; a run is rolled back in the middle."""
    feed = open_feed(order="random")
    next(feed)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(feed.state_dict()))
    thread.start()
    thread.join()
    for _ in range(5):
        next(feed)

    feed.load_state_dict(taken[0])

    assert rows_of([next(feed)]) == expected(path, 4, 8, "random-1")


def test_a_state_of_another_corpus_is_refused_by_name_or_allowed(
    open_feed: OpenFeed, serve: Serve, write_tokens: WriteTokens
) -> None:
    """The corpus was tokenized again under the same name."""
    other = serve("--data", write_tokens(np.arange(1000), "other.bin"))
    state = open_feed(order="random").state_dict()

    with RemoteBatches(other.address, 4, T, order="random", seed=5) as feed:
        with pytest.raises(StreamMismatch, match=r"^fingerprint: ") as caught:
            feed.load_state_dict(state | {"sample": 40})
        assert "allow=" in str(caught.value)
        assert feed.position.samples == 0

        feed.load_state_dict(state | {"sample": 40}, allow=("fingerprint",))
        assert feed.position.samples == 40
        next(feed)


def test_a_seed_that_the_order_ignores_is_no_difference(open_feed: OpenFeed) -> None:
    """sequential-1 is the same stream with any seed."""
    with open_feed(order="sequential", seed=5) as feed:
        next(feed)
        state = feed.state_dict()

    with open_feed(order="sequential", seed=6) as feed:
        feed.load_state_dict(state)
        assert feed.history()[0]["stages"][0]["sources"][0]["seed"] == 0


def test_the_end_of_a_feed_stays_where_it_was_when_a_state_is_loaded(
    open_feed: OpenFeed,
) -> None:
    """A run of 1,000 steps resumed at 400 has 600 left, at any batch size."""
    feed = open_feed(batch_size=4, order="random", num_batches=10)
    for _ in range(4):
        next(feed)
    resumed = open_feed(batch_size=2, order="random", num_batches=20)
    resumed.load_state_dict(feed.state_dict())

    assert len(list(resumed)) == 12
    assert list(resumed) == []


def test_skipped_samples_are_left_out(open_feed: OpenFeed, path: Path) -> None:
    """To jump a loss spike, all ranks by the same number."""
    feed = open_feed(order="random")
    next(feed)

    feed.skip(10)

    assert rows_of([next(feed)]) == expected(path, 14, 18, "random-1")
    with pytest.raises(InvalidRequest, match="negative"):
        feed.skip(-1)
    with pytest.raises(SamplesExhausted, match=rf"^samples: {2**63} is not in \[0, {2**63 - 18}\]"):
        feed.skip(2**63)
    assert rows_of([next(feed)]) == expected(path, 18, 22, "random-1")


def test_a_feed_says_what_it_has_done(open_feed: OpenFeed) -> None:
    """For a progress line, and to see whether data is the bottleneck."""
    # So little room that each batch is a new request: the thread is never ahead for long.
    feed = open_feed(prefetch_bytes=0)
    assert feed.stats() == FeedStats(0, 0, 0.0, 0, 0, None)
    for _ in range(30):
        next(feed)

    stats = feed.stats()

    assert (stats.batches, stats.tokens) == (30, 30 * 4 * T)
    assert (stats.samples, stats.epoch) == (120, 1)
    assert stats.wait_seconds > 0
    assert stats.reconnects == 0
    assert feed.token_count == WINDOWS * T + 1
    assert feed.batches_per_epoch == 25


def test_training_and_validation_share_a_connection_and_never_stall_each_other(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    """The validation iterator stays where it is for an hour, in the middle of a call."""
    server = serve(
        "--data",
        f"train={write_tokens(np.arange(400_000) % 60_000, 'train.bin')}",
        "--data",
        f"val={write_tokens(np.arange(400_000) % 60_000, 'val.bin')}",
    )
    with (
        RemoteBatches(server.address, 32, 512, dataset="train") as train,
        RemoteBatches(server.address, 32, 512, dataset="val") as val,
    ):
        for x, _ in (next(train), next(val)):
            assert x.shape == (32, 512)
        for _ in range(3000):
            next(train)
        next(val)

        assert server.connection_count() == 1
