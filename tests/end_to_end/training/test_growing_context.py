"""Runs whose context length changes in the middle of an epoch, against a count of all targets."""

from __future__ import annotations

import io
import json
import logging
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client import InvalidRequest, Mixture, NumpyBatches, RemoteBatches, StreamMismatch
from tests.conftest import Serve
from tests.support.meanwhile import meanwhile
from tests.support.redacting import redact
from tokenfeed.client.feed import delivery
from tokenfeed.client.feed.delivery import BatchReader
from tokenfeed.sampling.plan import Shape, plan

U = 1 << 19
COUNTS = (17 * U + 1, U, 21 * U + 70_000, 5)
"""Tokens of the files: 38 whole blocks, in groups of 13, 13 and 12."""
GROUPS = {"order": "blocks", "seed": 11, "group_tokens": 16 * U}
LONG, LONGER = 1 << 15, 1 << 17
"""Context lengths that read an epoch in few rows."""
TOKENS = 1 << 18
"""Of a batch of a rank."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files in which each token is its own place in the corpus."""
    folder, first = tmp_path_factory.mktemp("places"), 0
    found = []
    for number, count in enumerate(COUNTS):
        found.append(folder / f"{number}.bin")
        np.arange(first, first + count, dtype=np.uint32).tofile(found[-1])
        first += count
    return found


def local(paths: Sequence[Path]) -> str:
    return f"file:{','.join(map(str, paths))}?dtype=uint32&format=raw"


def feed_of(target: Any, length: Any, **options: Any) -> NumpyBatches:
    size = options.pop("batch_size", None) or TOKENS // length
    return NumpyBatches(target, size, length, **GROUPS | options)


def of_blocks() -> np.ndarray:
    """Which places are targets of whole blocks."""
    found, first = np.zeros(sum(COUNTS), np.bool_), 0
    for count in COUNTS:
        found[first + 1 : first + 1 + (count - 1) // U * U] = True
        first += count
    return found


class Ledger:
    """What arrived on all ranks: how often each place was a target, and the length of the row of
    each sample.
    """

    def __init__(self) -> None:
        self.targets = np.zeros(sum(COUNTS), np.int64)
        self.lengths: dict[int, int] = {}

    def add(self, batch: Any) -> None:
        size, length = batch.x.shape
        own = size if batch.own_rows is None else batch.own_rows
        assert (batch.y[own:] == -100).all()
        learned = batch.y[:own][batch.y[:own] != -100]
        assert batch.num_valid_targets == learned.size
        np.add.at(self.targets, learned, 1)
        for sample in batch.sample_numpy[:own].tolist():
            assert sample not in self.lengths
            self.lengths[sample] = length

    def require_every_target_once(self) -> None:
        """Of whole blocks; and no sample is missing."""
        assert sorted(self.lengths) == list(range(len(self.lengths)))
        assert (self.targets[of_blocks()] == 1).all()
        assert self.targets.max() == 1


def read_epoch(feed: NumpyBatches, ledger: Ledger, behind: int = 0) -> None:
    """Read the rest of epoch 0, of which a context length changes last at a sample."""
    while feed.position.samples < behind:
        ledger.add(next(feed.batches()))
    for batch in feed.epoch(0, tail="pad").batches():
        ledger.add(batch)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_context_that_grows_twice_has_every_target_of_whole_blocks_once(
    serve: Serve, paths: list[Path], is_local: bool
) -> None:
    """Batches keep their tokens, the one before a change is filled up, and the sample that was
    returned is the first of the new length.
    """
    places = ["--format", "raw", "--dtype", "uint32"]
    target = local(paths) if is_local else serve("--data", *paths, *places).address
    ledger, shapes = Ledger(), []
    with feed_of(target, LONG, batch_size=12) as feed:
        begins = [
            feed.change_context_length(1 << 16, at_sample=5),
            feed.change_context_length(LONGER, at_sample=250),
        ]
        while feed.position.samples < begins[1]:
            batch = next(feed.batches())
            ledger.add(batch)
            shapes.append((batch.x.shape, batch.num_valid_targets // batch.x.shape[1]))
        read_epoch(feed, ledger)
        stats, history = feed.stats(), feed.history()

    assert begins == [13 * 16, 13 * 16 + 13 * 8]
    assert [shape for shape, _ in shapes] == [*[(12, LONG)] * 18, *[(6, 1 << 16)] * 18]
    assert [own for (size, _), own in shapes if own != size] == [4, 2]  # of 208 and of 104 rows
    ledger.require_every_target_once()
    assert [ledger.lengths[begin] for begin in begins] == [1 << 16, LONGER]
    assert [ledger.lengths[begin - 1] for begin in begins] == [LONG, 1 << 16]
    assert stats.tokens == stats.batches * 12 * LONG
    assert [(run["first_sample"], run["end_sample"], run["batch_size"]) for run in history] == [
        (0, 208, 12),
        (208, 312, 6),
        (312, 312 + 12 * 4 + 3, 3),  # with three windows of a rest
    ]


def in_other_form(state: dict[str, Any], form: int) -> dict[str, Any]:
    """A state that was saved and read: as JSON, by torch.save, or as it is."""
    if form == 0:
        return json.loads(json.dumps(state))  # type: ignore[no-any-return]
    if form == 1:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)  # type: ignore[no-any-return]
    return state


@pytest.mark.parametrize("seed", range(3))
def test_changes_with_skips_other_ranks_and_batch_sizes_and_restarts_lose_nothing(
    paths: list[Path], seed: int
) -> None:
    """The whole life of a run, 3 -> 5 -> 2 ranks: what was not skipped comes once."""
    random = np.random.default_rng(seed)
    ledger, skipped, state = Ledger(), set[int](), None
    lengths = [1 << 14, LONG, 1 << 16, LONGER]
    for form, world_size in enumerate((3, 5, 2)):
        with ExitStack() as stack:
            length, size = 1 << 14, int(random.choice([8, 16]))
            feeds = [
                stack.enter_context(
                    feed_of(local(paths), length, batch_size=size, rank=rank, world_size=world_size)
                )
                for rank in range(world_size)
            ]
            if state is not None:
                for feed in feeds:
                    feed.load_state_dict(state)
            for _ in range(2):
                at = feeds[0].position.samples + int(random.integers(0, 8))
                new = int(random.choice(lengths))
                begins = {feed.change_context_length(new, at) for feed in feeds}
                assert len(begins) == 1
                if random.random() < 0.5:
                    first, count = feeds[0].position.samples, int(random.integers(1, 5))
                    skipped |= set(range(first, first + count))
                    for feed in feeds:
                        feed.skip(count)
                for _ in range(int(random.integers(1, 3))):
                    for feed in feeds:
                        ledger.add(next(feed.batches()))
            states = [feed.state_dict() for feed in feeds]
            assert all(each == states[0] for each in states)
            state = in_other_form(states[0], form)
    assert state is not None
    with feed_of(local(paths), 1 << 14, batch_size=8) as feed:
        feed.load_state_dict(state)
        read_epoch(feed, ledger, behind=feed.state_dict()["stream"][4][-1][0])
        ledger.targets += targets_of(feed, skipped)

    assert not skipped & {*ledger.lengths}
    ledger.lengths |= dict.fromkeys(skipped, 0)
    ledger.require_every_target_once()


def targets_of(feed: NumpyBatches, samples: Collection[int]) -> np.ndarray:
    """How often each place is a target of the rows of these samples, by the plan."""
    found, firsts = np.zeros(sum(COUNTS), np.int64), np.cumsum(COUNTS) - np.array(COUNTS)
    for sample in samples:
        stream, _ = feed._stream.known().at(sample)
        spans = plan(stream, [Shape(np.array(COUNTS))], np.array([sample]))
        first = int(firsts[spans.shard[0]] + spans.token_offset[0])
        found[first + 1 : first + 1 + stream.context_length] += 1
    return found


def test_a_server_that_is_killed_and_a_redaction_change_no_other_row(
    serve: Serve, paths: list[Path], tmp_path: Path
) -> None:
    """The change is in the state of nobody but the feed: any replica continues."""
    copies = [tmp_path / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        copy.hardlink_to(path)
    places = ["--format", "raw", "--dtype", "uint32"]
    listed = redact(copies, (0, 1000, 700_000), options=places)
    servers = [serve("--data", *copies, *places) for _ in range(2)]
    ledger = Ledger()
    with feed_of([server.address for server in servers], LONG) as feed:
        begin = feed.change_context_length(LONGER, at_sample=100)
        assert feed.redact(listed, at_sample=begin + 7) == begin + 7
        for _ in range(4):
            ledger.add(next(feed.batches()))
        servers[0].stop(signal.SIGKILL)
        read_epoch(feed, ledger, behind=begin)
        assert feed.stats().reconnects
        behind = [sample for sample in ledger.lengths if sample >= begin + 7]
        redacted = targets_of(feed, behind) > 0

    redacted[:1000] = redacted[700_000:] = False
    assert redacted.any()
    assert ledger.targets.max() == 1
    assert np.array_equal(ledger.targets == 0, redacted | ~of_blocks() & (ledger.targets == 0))


def test_other_orders_are_refused_within_an_epoch_by_name(paths: list[Path]) -> None:
    """And told where they can change: there the next epoch comes, at the new length."""
    with feed_of(local(paths), LONG, order="shuffled", batch_size=8) as feed:
        rows = sum((count - 1) // LONG for count in COUNTS)
        with pytest.raises(InvalidRequest, match=f"pass {rows}, where epoch 1 begins") as refusal:
            feed.change_context_length(LONGER, at_sample=100)
        assert refusal.value.subject == "at_sample"
        assert feed.change_context_length(LONGER, at_sample=rows) == rows
        feed.skip(rows - 3)
        batches = [next(feed.batches()) for _ in range(2)]

    assert [batch.x.shape for batch in batches] == [(8, LONG), (2, LONGER)]
    assert batches[0].sample_numpy.tolist() == [rows - 3, rows - 2, rows - 1, *[-1] * 5]
    assert batches[1].sample_numpy.tolist() == [rows, rows + 1]
    assert (batches[0].y[3:] == -100).all()


def test_random_rows_change_at_once(paths: list[Path]) -> None:
    """There is nothing to be read to its end."""
    with feed_of(local(paths), LONG, order="random") as feed:
        assert feed.change_context_length(LONGER, at_sample=20) == 20
        shapes = [next(feed)[0].shape for _ in range(4)]

    assert shapes == [(8, LONG)] * 3 + [(2, LONGER)]


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"context_length": 3000}, "3000 does not divide 524288"),
        ({}, {"context_length": 0}, "context_length: 0 is not in"),
        ({"order": "random"}, {"context_length": 1 << 24}, "is not below the 11080048 tokens"),
        ({}, {"context_length": U}, "8 rows of 32768 tokens are no whole rows of 524288"),
        ({}, {"context_length": LONGER, "batch_size": 0}, "batch_size: 0 is not in"),
        ({}, {"context_length": LONG, "batch_size": 3}, "3 is not 8, which it is at"),
        ({"num_batches": 9}, {"context_length": LONGER}, "num_batches: counts batches of one"),
        ({"order": "packed"}, {"context_length": LONGER}, "rows of packed-1 are other pieces"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_changes_nothing(
    paths: list[Path], options: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    """A run of weeks does not end because of a word."""
    target = local(paths)
    if options.get("order") == "packed":
        target += "&document-end-token=7"
    with feed_of(target, LONG, **options) as feed:
        next(feed)
        before = feed.state_dict()
        with pytest.raises(InvalidRequest) as refusal:
            feed.change_context_length(**arguments)

        assert message in str(refusal.value)
        assert feed.state_dict() == before
        assert next(feed)[0].shape == (8, LONG)


def test_several_ranks_have_to_say_where(paths: list[Path]) -> None:
    """The first sample that may change differs between them."""
    with (
        feed_of(local(paths), LONG, rank=0, world_size=2) as feed,
        pytest.raises(InvalidRequest, match="at_sample: is required with several ranks"),
    ):
        feed.change_context_length(LONGER)


def test_a_batch_size_of_the_new_length_may_be_given(paths: list[Path]) -> None:
    """The memory of a GPU may not do as many tokens of a long context."""
    with feed_of(local(paths), LONG) as feed:
        begin = feed.change_context_length(LONGER, at_sample=1, batch_size=1)
        feed.skip(begin - 8)
        assert next(feed)[0].shape == (8, LONG)
        assert (feed.batch_size, feed.context_length) == (1, LONGER)
        assert next(feed)[0].shape == (1, LONGER)
        state = feed.state_dict()
    with feed_of(local(paths), LONGER, batch_size=1) as feed:
        feed.load_state_dict(state)
        assert next(feed)[0].shape == (1, LONGER)
        assert feed.position.samples == begin + 2


def test_a_length_that_was_read_long_ago_does_not_forbid_another_one(paths: list[Path]) -> None:
    """A batch has fewer tokens by now than one row had then."""
    with feed_of(local(paths), LONGER) as feed:
        next(feed)
        begin = feed.change_context_length(LONG, batch_size=1)
        feed.skip(begin - feed.position.samples)
        next(feed)
        state = feed.state_dict()
    with feed_of(local(paths), LONG, batch_size=1) as feed:
        feed.load_state_dict(state)
        next(feed)

        begin = feed.change_context_length(LONG // 2)

        feed.skip(begin - feed.position.samples)
        assert next(feed)[0].shape == (2, LONG // 2)


def test_the_tokens_of_a_batch_follow_the_last_length_that_was_said(paths: list[Path]) -> None:
    """Not the first one of the feed: also if the stage of the last one is read already."""
    with NumpyBatches(local(paths), 3, 8, order="random") as feed:
        next(feed)
        feed.change_context_length(16, batch_size=2)
        assert next(feed)[0].shape == (2, 16)
        feed.change_context_length(32)
        assert next(feed)[0].shape == (1, 32)
        with pytest.raises(InvalidRequest, match="2 rows of 16 tokens are no whole rows of 12"):
            feed.change_context_length(12, at_sample=feed.position.samples + 50)
        feed.change_context_length(64, batch_size=1)
        assert next(feed)[0].shape == (1, 64)


def test_a_change_ahead_survives_a_restart_and_may_be_replaced(paths: list[Path]) -> None:
    """The script asks for it again, or for another one, or is the next script."""
    with feed_of(local(paths), LONG) as feed:
        begin = feed.change_context_length(LONGER, at_sample=150)
        next(feed)
        state = feed.state_dict()
        before = feed.state_dict()
    with feed_of(local(paths), LONG) as feed:
        feed.load_state_dict(state)
        assert feed.state_dict() == before
        assert feed.change_context_length(LONGER, at_sample=150) == begin
        assert feed.state_dict() == before
        assert feed.change_context_length(1 << 16, at_sample=150) == begin
        feed.skip(begin - feed.position.samples)
        assert next(feed)[0].shape == (4, 1 << 16)
        # What was delivered stays.
        with pytest.raises(InvalidRequest, match="the first sample that may change"):
            feed.change_context_length(LONGER, at_sample=begin)


def test_a_resume_at_another_length_goes_on_with_the_next_group(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The same rule as in a run, on request; a fraction of an epoch would repeat and skip."""
    ledger = Ledger()
    with feed_of(local(paths), LONG) as feed:
        for _ in range(12):
            ledger.add(next(feed.batches()))
        state = feed.state_dict()
    with feed_of(local(paths), LONGER) as feed:
        with pytest.raises(StreamMismatch, match="context_length: the state was saved with 32768"):
            feed.load_state_dict(state)
        with caplog.at_level(logging.WARNING, "tokenfeed.client"):
            feed.load_state_dict(state, allow=("context_length",))
        assert "context length changes sample=208 context_length=131072" in caplog.text
        assert (feed.position.samples, feed.context_length, feed.batch_size) == (96, LONG, 8)
        read_epoch(feed, ledger, behind=208)
        again = feed.state_dict()
    with feed_of(local(paths), LONGER) as feed:
        feed.load_state_dict(again)
        assert next(feed)[0].shape == (2, LONGER)

    assert (ledger.lengths[207], ledger.lengths[208]) == (LONG, LONGER)
    ledger.require_every_target_once()


def test_an_epoch_is_read_up_to_a_change_and_behind_it(paths: list[Path]) -> None:
    """A loop over an epoch has one shape; one that would not is refused, naming the sample."""
    rows = sum((count - 1) // LONG for count in COUNTS)
    with feed_of(local(paths), LONG) as feed:
        begin = feed.change_context_length(LONGER, at_sample=2 * rows - 1)
        assert begin == 2 * rows  # within the rests: the next epoch
        assert len(list(feed.epoch(0))) == rows // 8
        epoch = feed.epoch(1, tail="pad")
        count = len(epoch)
        assert [x.shape for x, _ in epoch] == [(8, LONG)] * count
        longer = feed.epoch(2)
        assert feed.position == (2 * rows, 2)
        assert {x.shape for x, _ in longer} == {(2, LONGER)}
        assert len(longer) == sum((count - 1) // LONGER for count in COUNTS) // 2
    with feed_of(local(paths), LONG) as feed:
        begin = feed.change_context_length(LONGER, at_sample=50)
        for tail in ("drop", "pad", "wrap"):
            with pytest.raises(InvalidRequest, match=f"epoch: 0 reaches sample {begin}"):
                iter(feed.epoch(0, tail=tail)).__next__()


def test_a_change_within_the_epoch_that_is_read_ends_its_loop(paths: list[Path]) -> None:
    """Its length was told; batches of another shape are none of it."""
    with feed_of(local(paths), LONG) as feed:
        loop = iter(feed.epoch(0))
        next(loop)
        feed.change_context_length(LONGER, at_sample=50)
        with pytest.raises(InvalidRequest, match="epoch: 0 reaches sample 208"):
            next(loop)


def test_tensors_are_copied_into_memory_of_the_present_shape(paths: list[Path]) -> None:
    """Static inputs have to be made again for the new shape."""

    def made(feed: RemoteBatches) -> Iterator[torch.Tensor]:
        shape = feed.batch_size, feed.context_length
        return iter([torch.empty(shape, dtype=torch.int64) for _ in range(2)])

    with RemoteBatches(local(paths), 100, LONG, **GROUPS) as feed:
        begin = feed.change_context_length(1 << 14, at_sample=150)
        x, y = made(feed)
        for _ in range(2):
            assert feed.copy_into(x, y)
        assert (begin, feed.position.samples) == (208, 200)
        assert feed.copy_into(x, y)
        assert torch.equal(y[8:], torch.full_like(y[8:], -100))
        assert not (y[:8] == -100).any()
        with pytest.raises(InvalidRequest, match=r"x: .*200"):
            feed.copy_into(x, y)
        assert feed.copy_into(*made(feed))


def test_a_change_by_another_thread_never_fills_memory_of_the_old_shape(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that is being read may become one of the new length: that is refused by name."""
    with RemoteBatches(local(paths), 8, LONG, order="random") as feed:
        x, y = (torch.empty(8, LONG, dtype=torch.int64) for _ in range(2))
        assert feed.copy_into(x, y)
        change = partial(feed.change_context_length, LONGER, at_sample=8)
        meanwhile(monkeypatch, BatchReader, "next", change, is_before=True)
        with pytest.raises(InvalidRequest, match=r"x: \(8, 32768\) is not \(2, 131072\), which"):
            feed.copy_into(x, y)
        assert next(feed)[0].shape == (2, LONGER)
        assert feed.position.samples == 10


def test_a_redaction_during_the_placing_of_declared_lengths_stays(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Corpora are described for seconds; another thread may change the stream then."""
    copies = [tmp_path / path.name for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        copy.hardlink_to(path)
    listed = redact(copies, (0, 1000, 700_000), options=["--format", "raw", "--dtype", "uint32"])
    with feed_of(local(copies), GROWING, batch_size=12) as feed:
        begun: list[int] = []
        meanwhile(
            monkeypatch,
            delivery,
            "declared",
            lambda: begun.append(feed.redact(listed, at_sample=7)),
        )
        assert next(feed)[0].shape == (12, LONG)
        assert begun == [7]
        (redaction,) = feed.state_dict()["stream"][5]
        assert redaction[0] == 7
        assert len(feed.state_dict()["stream"][4]) == 3


def test_declared_lengths_are_placed_once(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A log of a run has each change once, however often a loop asks for the shape."""
    with (
        caplog.at_level(logging.INFO, "tokenfeed.client"),
        feed_of(local(paths), GROWING, batch_size=12) as feed,
    ):
        for _ in range(3):
            assert (feed.batch_size, feed.context_length, feed.position.samples) == (12, LONG, 0)

    assert caplog.text.count("context length changes sample=208 context_length=65536") == 1


def test_ranks_change_together_or_not_at_all(
    paths: list[Path], in_ranks: Callable[..., list[object]]
) -> None:
    """A rank with rows of another length would wait in a collective for ever."""

    def train(rank: int, feed: NumpyBatches) -> list[tuple[int, ...]]:
        shapes = [next(feed)[0].shape for _ in range(1 + rank)]
        with pytest.raises(StreamMismatch, match=r"context_length: rank \d changes it to another"):
            feed.change_context_length(LONGER if rank else 1 << 16, at_sample=100)
        with pytest.raises(StreamMismatch, match=r"context_length: rank \d changes it to another"):
            feed.change_context_length(LONGER, at_sample=100, batch_size=1 + rank)
        assert feed.change_context_length(LONGER, at_sample=100) == 208
        return [*shapes, *(next(feed)[0].shape for _ in range(14 - rank))]

    found = in_ranks(train, 2, lambda rank: feed_of(local(paths), LONG, rank=rank, world_size=2))

    assert found == [[(8, LONG)] * 13 + [(2, LONGER)] * 2] * 2


def test_a_feed_at_the_last_sample_has_a_shape_and_no_batch(paths: list[Path]) -> None:
    """There is no other context length behind it, for which one could wait for ever."""
    with feed_of(local(paths), LONG, order="random") as feed:
        feed.skip(1 << 63)

        assert (feed.batch_size, feed.context_length, list(feed)) == (8, LONG, [])


GROWING: dict[int | str, int] = {0: LONG, 5: 1 << 16, f"{20 * U} tokens": LONGER}
"""The second one ends at 13 blocks, so the third one is asked for within the next group."""


def test_lengths_that_are_declared_begin_as_those_that_are_asked_for(paths: list[Path]) -> None:
    """A script that is started again has them too, whichever of them its state has reached."""
    ledger, states = Ledger(), []
    with feed_of(local(paths), GROWING, batch_size=12) as feed:
        while feed.position.samples < 312:
            states.append(feed.state_dict())
            ledger.add(next(feed.batches()))
        read_epoch(feed, ledger)
        stages = [(stage[0], stage[1]) for stage in feed.state_dict()["stream"][4]]
    with feed_of(local(paths), LONG, batch_size=12) as feed:
        feed.change_context_length(1 << 16, at_sample=5)
        feed.change_context_length(LONGER, at_sample=208 + 14 * 4)
        assert feed.state_dict()["stream"][4] == states[0]["stream"][4]

    ledger.require_every_target_once()
    assert stages == [(0, LONG), (208, 1 << 16), (312, LONGER)]
    for state in (states[0], states[1], states[18], states[20], states[-1]):
        with feed_of(local(paths), GROWING, batch_size=12) as feed:
            feed.load_state_dict(state)
            assert feed.state_dict() == state
            x, _ = next(feed)
            assert x.shape[1] == ledger.lengths[state["sample"]]


def test_what_a_restart_could_not_repeat_is_refused(paths: list[Path]) -> None:
    """A call beside declared lengths, a batch size for rows that come already, batches that are
    counted through a change, and rows by their index of a run of two lengths.
    """
    with feed_of(local(paths), GROWING, batch_size=12) as feed:
        with pytest.raises(InvalidRequest, match="context_length: was given with several values"):
            feed.change_context_length(1 << 14, at_sample=100)
    with feed_of(local(paths), LONG) as feed:
        begin = feed.change_context_length(LONGER, at_sample=1)
        ahead = feed.state_dict()
        feed.skip(begin)
        next(feed)
        with pytest.raises(InvalidRequest, match="batch_size: 1 is not 2, which it is at"):
            feed.change_context_length(LONGER, at_sample=1, batch_size=1)
        assert feed.change_context_length(LONGER, at_sample=1, batch_size=2) == begin
        with pytest.raises(InvalidRequest, match="context_length: has several values"):
            feed.as_dataset()
    with feed_of(local(paths), LONG, num_batches=3) as feed:
        with pytest.raises(InvalidRequest, match="num_batches: counts batches of one shape"):
            feed.load_state_dict(ahead)
        assert feed.position.samples == 0


def test_a_run_without_lengths_gets_those_that_a_script_declares(paths: list[Path]) -> None:
    """From its sample on, as soon as the group ends; of several that were for earlier, the last."""
    with feed_of(local(paths), LONG, batch_size=12) as feed:
        for _ in range(15):
            next(feed)
        state = feed.state_dict()
    declared = {0: LONG, 5: 1 << 14, 60: 1 << 16, "13e6 tokens": LONGER}
    with feed_of(local(paths), declared, batch_size=12) as feed:
        feed.load_state_dict(state)
        stages = [(stage[0], stage[1]) for stage in feed.state_dict()["stream"][4]]

    assert stages == [(0, LONG), (208, 1 << 16), (312, LONGER)]


def test_a_feed_may_begin_behind_a_declared_change(paths: list[Path]) -> None:
    """The stream is a function of its definition: sample 320 has the row that it has in a run."""
    with feed_of(local(paths), GROWING, batch_size=12, start_sample=320) as feed:
        assert (feed.context_length, feed.batch_size) == (LONGER, 3)
        batch = next(feed.batches())
        expected = targets_of(feed, [320, 321, 322])
    with feed_of(local(paths), GROWING, batch_size=12) as feed:
        feed.skip(320)
        again = next(feed.batches())

    assert np.array_equal(batch.y, again.y)
    assert np.array_equal(np.sort(batch.y.ravel()), np.flatnonzero(expected))


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ({}, {}, "context_length: {} does not begin at sample 0"),
        ({5: LONG}, {}, "does not begin at sample 0"),
        ({0: LONG, 9: LONGER, 5: LONG}, {}, "is not in ascending order"),
        ({0: LONG, "9 rows": LONGER}, {}, "is no sample, and not written as"),
        ({0: LONG, "9.5 tokens": LONGER}, {}, "9.5 is not a whole number above 0"),
        ({0: LONG, "x tokens": LONGER}, {}, "'x' is not a number of tokens, such as"),
        ({0: LONG, 9: 1 << 18}, {"batch_size": 3}, "batch_size: 3 rows of 32768 tokens are no"),
        ({0: LONG, 9: LONGER}, {"num_batches": 5}, "num_batches: counts batches of one shape"),
        ({0: LONG, 90: LONGER}, {"start_step": 12}, "start_step: 12 is behind sample 90"),
        ({0: LONG, 9: LONGER}, {"order": "packed"}, "rows of packed-1 are other pieces at each"),
        (
            {0: LONG, 9: LONGER},
            {"mixture": Mixture({"a": 1, "b": 1}, sources={"b": {"order": "packed"}})},
            "rows of packed-1 are other pieces at each",
        ),
    ],
)
def test_lengths_that_cannot_be_are_refused_when_a_feed_is_made(
    lengths: dict[Any, int], options: dict[str, Any], message: str
) -> None:
    """Before anything is read: a run would end at its change."""
    with pytest.raises(InvalidRequest) as refusal:
        feed_of("localhost:1", lengths, **{"batch_size": 8, **options})

    assert message in str(refusal.value)


def test_a_declared_length_within_an_epoch_of_another_order_is_refused_before_the_first_batch(
    paths: list[Path],
) -> None:
    """Where epochs end is known once the corpus is; no step is lost by then."""
    with (
        feed_of(local(paths), {0: LONG, 9: LONGER}, batch_size=8, order="shuffled") as feed,
        pytest.raises(InvalidRequest, match=r"context_length: 131072 from sample 9 on: .*epoch 1"),
    ):
        next(feed)
    with (
        feed_of(local(paths), {0: LONG, 9: LONGER}, batch_size=8) as feed,
        pytest.raises(InvalidRequest, match="rows by their index have one"),
    ):
        feed.as_dataset()


def test_ranks_that_declare_other_lengths_are_told(
    paths: list[Path], in_ranks: Callable[..., list[object]]
) -> None:
    """Before the first batch, and not when one of them changes."""

    def train(rank: int, feed: NumpyBatches) -> str:
        try:
            next(feed)
        except StreamMismatch as error:
            return str(error)
        return ""

    def made(rank: int) -> NumpyBatches:
        lengths = {0: LONG, "1e9 tokens": LONGER if rank else 1 << 16}
        return feed_of(local(paths), lengths, batch_size=8, rank=rank, world_size=2)

    found = "".join(map(str, in_ranks(train, 2, made)))

    assert found.startswith("context_length: rank")
    assert "131072 from 1000000000 tokens on" in found
    assert "65536 from 1000000000 tokens on" in found


def test_a_closed_feed_with_declared_lengths_has_no_batch(paths: list[Path]) -> None:
    """As any other one."""
    feed = feed_of(local(paths), GROWING, batch_size=12)
    feed.close()

    assert list(feed) == []


def test_masks_and_documents_are_those_of_rows_of_the_new_length(
    serve: Serve, tmp_path: Path
) -> None:
    """A plane of the wrong row would hide targets silently: every batch is that of a fresh feed."""
    random = np.random.default_rng(3)
    random.integers(0, 30, 4001).astype("<u2").tofile(tmp_path / "a.bin")
    random.integers(0, 2, 4001).astype("u1").tofile(tmp_path / "a.mask")
    words = ["--data", tmp_path / "a.bin", "--document-end-token", "0"]
    server = serve(*words, "--loss-mask", tmp_path / "a.mask")
    options = {"order": "shuffled", "seed": 4, "mask_borders": True}
    with (
        NumpyBatches(server.address, 8, 32, **options) as feed,
        NumpyBatches(server.address, 8, 32, **options) as short,
        NumpyBatches(server.address, 4, 64, start_sample=62, **options) as long,
    ):
        assert feed.change_context_length(64, at_sample=125) == 125
        batches, others = iter(feed.batches()), (iter(short.batches()), iter(long.batches()))
        for number in range(20):
            batch, other = next(batches), next(others[number >= 16])
            own = 5 if number == 15 else len(batch.x)
            assert batch.x.shape == other.x.shape == ((4, 64) if number >= 16 else (8, 32))
            assert np.array_equal(batch.x[:own], other.x[:own])
            assert np.array_equal(batch.y[:own], other.y[:own])
            assert np.array_equal(batch.positions[:own], other.positions[:own])
            assert np.array_equal(batch.loss_mask[:own], other.loss_mask[:own])
            assert batch.num_valid_targets == np.count_nonzero(batch.y != -100)
            assert 0 < batch.num_valid_targets < batch.y.size
