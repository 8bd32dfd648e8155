"""The adapter for Lightning, with Lightning: `python -m tests.adapters lightning`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from client import InvalidRequest, StreamMismatch
from tests.adapters import lightning_model
from tests.adapters.lightning_model import (
    SEED,
    VOCABULARY,
    WINDOWS,
    B,
    FeedData,
    Model,
    T,
    make,
    plain_loop,
    trainer_of,
    weights_of,
)
from tests.conftest import ROOT, serving
from tests.support.offline import offline_rows

# Lightning calls what torch has deprecated, and has advice.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

PER_EPOCH = WINDOWS // B


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("corpus") / "train.bin"
    np.arange(VOCABULARY).astype("<u2").tofile(found)
    return found


@pytest.fixture(scope="module")
def target(path: Path) -> Iterator[str]:
    """The address of a server."""
    with serving(path.parent) as serve:
        yield serve("--data", path).address


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def batches(path: Path, count: int, size: int = B) -> list[tuple[Tensor, Tensor]]:
    """The first batches of the stream, computed from the file."""
    rows = torch.from_numpy(offline_rows([path], "shuffled-1", SEED, T, range(count * size)))
    return [(each[:, :-1], each[:, 1:]) for each in rows.split(size)]


def steps_of(found: list[Any], accumulate: int, per_epoch: int) -> list[list[Any]]:
    """The batches of each step, as Lightning accumulates them: an epoch ends with a step."""
    epochs = [found[first : first + per_epoch] for first in range(0, len(found), per_epoch)]
    return [
        epoch[first : first + accumulate]
        for epoch in epochs
        for first in range(0, len(epoch), accumulate)
    ]


def first_tokens(found: list[tuple[Tensor, Tensor]]) -> list[list[int]]:
    return [x[:, 0].tolist() for x, _ in found]


class Stop(Exception):
    """What ends a run in the middle."""


class SaveAndStop(Callback):
    """Saves a checkpoint by hand in one of Lightning's hooks, and ends the run there."""

    def __init__(self, hook: str, batch: int, path: Path) -> None:
        self.batches, self.stops_at, self.path = 0, batch, path
        setattr(self, hook, self.act)

    def act(self, trainer: Any, module: Any, *_: Any) -> None:
        if len(module.seen) == self.stops_at and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)
            raise Stop


def fit(target: str, model: Model | None = None, **given: Any) -> Model:
    """Train on a feed; `ckpt_path`, `data`, `validation` and options of a Trainer."""
    model = model or Model()
    resume = {"ckpt_path": given.pop("ckpt_path", None)}
    validation = [make(target, order="sequential")] if given.pop("validation", False) else []
    data = given.pop("data", None) or FeedData(make(target, **given.pop("feed", {})), validation)
    given = {"max_epochs": 3} | given
    trainer_of(**given).fit(model, datamodule=data, **resume)
    return model


HOOKS = [
    "on_train_batch_start",
    "on_before_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_end",
    "on_train_epoch_end",
]


def is_called(hook: str, batch: int, accumulate: int) -> bool:
    """Whether Lightning calls a hook while it trains on a batch, counted from 1, or behind it."""
    place = (batch - 1) % PER_EPOCH + 1
    if hook == "on_before_zero_grad":
        return (place - 1) % accumulate == 0
    if hook == "on_before_optimizer_step":
        return place % accumulate == 0 or place == PER_EPOCH
    return hook != "on_train_epoch_end" or place == PER_EPOCH


MOMENTS = [
    pytest.param(*each, marks=() if each[1:] == (6, 4) else pytest.mark.proof)
    for each in product(HOOKS, [5, 6, 7], [1, 2, 4])
    if is_called(*each)
]


@pytest.mark.parametrize(("hook", "batch", "accumulate"), MOMENTS)
def test_a_checkpoint_of_any_moment_is_resumed_as_if_nothing_had_been(
    target: str, path: Path, tmp_path: Path, hook: str, batch: int, accumulate: int
) -> None:
    """Weights by SGD with momentum are equal to the last bit only if each batch was learned once,
    in order, and in the same steps. An epoch has 6 batches.
    """
    saved = tmp_path / "saved.ckpt"
    options: dict[str, Any] = {"accumulate_grad_batches": accumulate, "validation": True}
    options["val_check_interval"] = 1 if hook.startswith("on_validation") else 1.0
    with pytest.raises(Stop):
        fit(target, callbacks=[SaveAndStop(hook, batch, saved)], **options)

    resumed = fit(target, ckpt_path=saved, **options)

    expected, _ = plain_loop(
        steps_of(batches(path, 3 * PER_EPOCH), accumulate, PER_EPOCH), accumulate
    )
    assert torch.equal(weights_of(resumed), expected)
    first = 3 * PER_EPOCH - len(resumed.seen)
    assert resumed.seen == first_tokens(batches(path, 3 * PER_EPOCH)[first:])
    assert batch - accumulate <= first <= batch


def test_a_run_whose_context_grew_goes_on_at_its_batch(target: str, tmp_path: Path) -> None:
    """Batches of both lengths have as many tokens, and are counted as batches."""
    saved = tmp_path / "saved.ckpt"

    def train(**more: Any) -> Model:
        data = FeedData(make(target, order="random", context_length={0: T, 3 * B: 4 * T}))
        return fit(target, data=data, limit_train_batches=6, **more)

    whole = train()
    with pytest.raises(Stop):
        train(callbacks=[SaveAndStop("on_train_batch_end", 5, saved)])
    resumed = train(ckpt_path=saved)

    assert [len(rows) for rows in whole.seen] == [B] * 3 + [1] * 15
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    assert len(resumed.seen) in (13, 14)
    assert torch.equal(weights_of(resumed), weights_of(whole))


CHECKPOINTS: dict[str, tuple[Callable[[Path], Callback], dict[str, Any]]] = {
    "steps": (lambda to: ModelCheckpoint(to, every_n_train_steps=2, save_top_k=-1), {}),
    "last": (lambda to: ModelCheckpoint(to, every_n_train_steps=2, save_last=True), {}),
    "time": (lambda to: ModelCheckpoint(to, train_time_interval=timedelta(0)), {}),
    "epochs": (lambda to: ModelCheckpoint(to), {}),
    "validation": (
        lambda to: ModelCheckpoint(to, save_top_k=-1, save_on_train_epoch_end=False),
        {"validation": True, "val_check_interval": 3},
    ),
    "metric": (
        lambda to: ModelCheckpoint(to, monitor="loss", every_n_train_steps=1, save_top_k=-1),
        {"validation": True, "val_check_interval": 3},
    ),
    "exception": (OnExceptionCheckpoint, {}),
    "exception too": (lambda to: ModelCheckpoint(to, save_on_exception=True), {}),
}


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.proof), 4])
@pytest.mark.parametrize(
    "error", [pytest.param(RuntimeError, marks=pytest.mark.proof), KeyboardInterrupt]
)
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_what_lightning_saves_by_itself_is_resumed_exactly(
    target: str, path: Path, tmp_path: Path, kind: str, error: type[BaseException], accumulate: int
) -> None:
    """Each of its callbacks, and each file that it has written when an error or a Ctrl-C comes
    between the forward and the step of batch 10.
    """
    callback, options = CHECKPOINTS[kind]
    options = {"accumulate_grad_batches": accumulate} | options
    failing = {"enable_checkpointing": True, "callbacks": [callback(tmp_path), Fail(10, error)]}
    with pytest.raises((error, SystemExit)):  # Lightning exits by itself behind a Ctrl-C
        fit(target, **options, **failing)
    saved = sorted(tmp_path.rglob("*.ckpt"))

    steps = steps_of(batches(path, 3 * PER_EPOCH), accumulate, PER_EPOCH)
    expected, _ = plain_loop(steps, accumulate)
    assert saved
    for each in saved:
        resumed = fit(target, ckpt_path=each, **options)
        assert torch.equal(weights_of(resumed), expected), each


class Fail(Callback):
    """Raises an error behind the forward of a batch."""

    def __init__(self, batch: int, error: type[BaseException]) -> None:
        self.batch, self.error = batch, error

    def on_before_backward(self, trainer: Any, module: Any, *_: Any) -> None:
        if len(module.seen) == self.batch:
            raise self.error


def test_losses_are_those_of_a_plain_loop(target: str, path: Path) -> None:
    """To the last bit, over epochs of 6 batches; the rows left over begin the next epoch."""
    model = fit(target, max_epochs=3)

    weights, losses = plain_loop(steps_of(batches(path, 18), 1, 6))
    assert model.losses == losses
    assert torch.equal(weights_of(model), weights)
    assert model.trainer.current_epoch == 3


def test_a_training_goes_on_where_it_ended(target: str, path: Path, tmp_path: Path) -> None:
    """A checkpoint by hand behind fit(), then more epochs; and a second fit() of one Trainer."""
    trainer, data, model = trainer_of(max_epochs=1), FeedData(make(target)), Model()
    trainer.fit(model, datamodule=data)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, datamodule=data)

    resumed = fit(target, ckpt_path=tmp_path / "one.ckpt", max_epochs=2)
    expected, _ = plain_loop(steps_of(batches(path, 12), 1, 6))
    assert torch.equal(weights_of(resumed), expected)
    assert model.seen == first_tokens(batches(path, 12))  # with another optimizer: so Lightning
    again = fit(target, data=data, max_epochs=2)
    assert again.seen == model.seen, "another Trainer begins at the beginning"


def test_a_validation_by_itself_moves_no_training(target: str, path: Path, tmp_path: Path) -> None:
    """trainer.validate loads a checkpoint too, with the state of the training."""
    data = FeedData(make(target), make(target, order="sequential"))
    trainer, model = trainer_of(max_epochs=1), Model()
    trainer.fit(model, datamodule=data)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    trainer_of().validate(Model(), datamodule=data, ckpt_path=tmp_path / "one.ckpt", verbose=False)

    again = fit(target, data=data, max_epochs=1)
    assert again.seen == first_tokens(batches(path, 6))


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_feed_that_ends_ends_the_training(
    target: str, path: Path, tmp_path: Path, accumulate: int
) -> None:
    """With a last step of fewer batches, and a checkpoint that has nothing left to train on."""
    options: dict[str, Any] = {"feed": {"num_batches": 10}, "accumulate_grad_batches": accumulate}
    saved = tmp_path / "saved.ckpt"
    with pytest.raises(Stop):
        fit(target, callbacks=[SaveAndStop("on_train_batch_end", 7, saved)], **options)

    model = fit(target, ckpt_path=saved, max_steps=1000, max_epochs=-1, **options)

    expected, _ = plain_loop(steps_of(batches(path, 10), accumulate, 10), accumulate)
    assert torch.equal(weights_of(model), expected)
    model.trainer.save_checkpoint(saved)
    over = fit(target, ckpt_path=saved, max_steps=1000, max_epochs=-1, **options)
    assert over.seen == []


def test_a_last_step_of_fewer_batches_is_not_made_within_a_longer_limit(
    target: str, path: Path
) -> None:
    """Lightning makes it at the end of its epoch alone; the state is in front of it."""
    options: dict[str, Any] = {"limit_train_batches": 4, "accumulate_grad_batches": 4}
    model = fit(target, feed={"num_batches": 10}, max_epochs=-1, max_steps=1000, **options)

    expected, _ = plain_loop(steps_of(batches(path, 8), 4, 8), 4)
    assert torch.equal(weights_of(model), expected)
    assert model.trainer.datamodule.state_dict()["feed"]["sample"] == 8 * B


def test_a_state_that_is_loaded_by_hand_moves_the_rows_and_no_counter(
    target: str, path: Path, tmp_path: Path
) -> None:
    """The Trainer is new: its counters would be negative."""
    stop = SaveAndStop("on_before_backward", 4, tmp_path / "saved.ckpt")
    with pytest.raises(Stop):
        fit(target, callbacks=[stop], accumulate_grad_batches=4)
    data = FeedData(make(target))
    data.load_state_dict(torch.load(tmp_path / "saved.ckpt", weights_only=False)["FeedData"])

    model = fit(target, data=data, max_epochs=1)
    assert model.seen == first_tokens(batches(path, 6))
    assert model.trainer.fit_loop.epoch_loop.batch_progress.total.processed == 6


def test_a_feed_that_ends_too_early_is_an_error_and_no_endless_loop(target: str) -> None:
    """Lightning goes on until min_steps are reached, epoch after epoch."""
    with pytest.raises(InvalidRequest, match=r"^num_batches: end before min_steps or min_epochs"):
        fit(target, feed={"num_batches": 5}, max_epochs=-1, max_steps=100, min_steps=20)


def test_lightning_alone_begins_empty_epochs_for_ever_where_a_feed_ends(target: str) -> None:
    """The trap: max_steps is never reached."""

    class Count(Callback):
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch == 50:
                raise Stop

    model = Model()
    with make(target, num_batches=5)() as feed, pytest.raises(Stop):
        trainer_of(max_steps=100, callbacks=[Count()]).fit(model, DataLoader(feed, None))
    assert len(model.seen) == 5


@pytest.mark.parametrize("batch", [5, 8])
def test_limit_train_batches_makes_shorter_epochs_that_go_on(
    target: str, path: Path, tmp_path: Path, batch: int
) -> None:
    """Epochs of 4 batches, over the border of an epoch of the feed; resumed in the middle of one,
    and behind one.
    """
    saved = tmp_path / "saved.ckpt"
    options: dict[str, Any] = {"limit_train_batches": 4, "accumulate_grad_batches": 3}
    with pytest.raises(Stop):
        fit(target, callbacks=[SaveAndStop("on_train_batch_end", batch, saved)], **options)

    resumed = fit(target, ckpt_path=saved, **options)

    expected, _ = plain_loop(steps_of(batches(path, 12), 3, 4), 3)
    assert torch.equal(weights_of(resumed), expected)


@pytest.mark.parametrize("limits", [{"max_steps": 5, "max_epochs": -1}, {"limit_train_batches": 3}])
def test_an_endless_feed_needs_a_limit(target: str, limits: dict[str, int], tmp_path: Path) -> None:
    """Of an order without epochs, as of a mixture: an epoch of Lightning would never end."""
    with pytest.raises(InvalidRequest, match=r"^max_steps: is missing: this feed is endless"):
        fit(target, feed={"order": "random"})

    options: dict[str, Any] = {"feed": {"order": "random"}, "accumulate_grad_batches": 2} | limits
    saved = tmp_path / "saved.ckpt"
    whole = fit(target, **options)
    with pytest.raises(Stop):
        fit(target, callbacks=[SaveAndStop("on_before_backward", 4, saved)], **options)
    resumed = fit(target, ckpt_path=saved, **options)
    assert len(whole.seen) == (10 if "max_steps" in limits else 9)
    assert torch.equal(weights_of(resumed), weights_of(whole))


def test_a_checkpoint_without_a_state_of_the_class_is_refused(target: str, tmp_path: Path) -> None:
    """Lightning passes over it, and the feed would begin at its first row."""

    class Other(FeedData):
        pass

    saved = tmp_path / "saved.ckpt"
    with pytest.raises(Stop):
        fit(target, callbacks=[SaveAndStop("on_train_batch_end", 3, saved)])

    with pytest.raises(InvalidRequest, match=r"^ckpt_path: has no state of .*Other"):
        fit(target, ckpt_path=saved, data=Other(make(target)))


def test_a_state_of_another_stream_is_loaded_if_that_is_allowed(
    target: str, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.ckpt"
    with pytest.raises(Stop):
        fit(target, callbacks=[SaveAndStop("on_train_batch_end", 3, saved)])
    other = make(target, seed=8)
    with pytest.raises(StreamMismatch, match="seed"):
        fit(target, ckpt_path=saved, data=FeedData(other))

    resumed = fit(target, ckpt_path=saved, data=FeedData(other, allow=("seed",)))

    assert len(resumed.seen) == 3 * PER_EPOCH - 3


def test_overfitting_is_refused(target: str) -> None:
    """It would train on other batches in each epoch."""
    with pytest.raises(InvalidRequest, match=r"^overfit_batches: would repeat batches"):
        fit(target, overfit_batches=2)


def test_a_form_makes_what_the_steps_get(target: str) -> None:
    """Such as the names of transformers, or positions; also in a validation."""
    samples = []

    class Own(Model):
        def training_step(self, batch: Any, batch_index: int) -> Tensor:
            samples.extend(batch["sample"].tolist())
            return super().training_step((batch["x"], batch["y"]), batch_index)

        def validation_step(self, batch: Any, batch_index: int) -> None:
            super().validation_step((batch["x"], batch["y"]), batch_index)

    def form(batch: Any) -> dict[str, Any]:
        return {"x": batch.x, "y": batch.y, "sample": batch.sample}

    data = FeedData(make(target), make(target, order="sequential"), form=form)
    model = fit(target, Own(), data=data, max_epochs=2)
    assert samples == list(range(12 * B))
    assert len(model.validated) == 2


@pytest.mark.parametrize("epoch", [False, True])
def test_feeds_alone_are_refused_at_the_first_checkpoint(
    target: str, tmp_path: Path, epoch: bool
) -> None:
    """The trap: Lightning reads a batch ahead of a feed; and of an epoch that has ended it loads no
    state at all, so a resumed run would train on the same epoch again.
    """
    trainer = trainer_of(max_epochs=1, max_steps=6)
    with make(target)() as feed:
        trainer.fit(Model(), feed.epoch(0) if epoch else feed)
        with pytest.raises(InvalidRequest, match=r"tokenfeed.client.adapters.lightning.FeedData"):
            trainer.save_checkpoint(tmp_path / "saved.ckpt")


def run_ranks(folder: Path, world_size: int = 2, **given: Any) -> list[dict[str, Any]]:
    """Train in processes as Lightning starts them; what each of them saw."""
    trainer = {"devices": world_size, "max_epochs": 3} | given.pop("trainer", {})
    words = [folder / "out", json.dumps(given | {"trainer": trainer})]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, lightning_model.__file__, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads((folder / f"out-{rank}").read_text()) for rank in range(world_size)]


def close(weights: list[float], expected: Tensor) -> bool:
    return torch.allclose(torch.tensor(weights), expected, atol=1e-5)


@pytest.mark.proof
def test_two_ranks_share_the_rows_and_a_run_goes_on_with_one_or_two(
    target: str, path: Path, tmp_path: Path
) -> None:
    """Each step has the rows of one plain batch of 8: half an epoch on 2 ranks, the rest on one
    that accumulates 2 batches, and the other way round.
    """
    expected, _ = plain_loop(steps_of(batches(path, 9, 2 * B), 1, 9))
    saved = str(tmp_path / "step=4.ckpt")

    for rank, one in enumerate(run_ranks(tmp_path, target=target, save_step_4=str(tmp_path))):
        rows = [each[rank * B : (rank + 1) * B] for each in first_tokens(batches(path, 9, 2 * B))]
        assert one["seen"] == rows
        assert close(one["weights"], expected)
    alone = fit(target, ckpt_path=saved, accumulate_grad_batches=2)
    assert alone.seen == first_tokens(batches(path, 18))[8:]
    assert close(weights_of(alone).tolist(), expected)
    assert (alone.trainer.global_step, alone.trainer.current_epoch) == (9, 3)

    stop = SaveAndStop("on_train_batch_end", 10, Path(saved))
    with pytest.raises(Stop):
        fit(target, accumulate_grad_batches=2, callbacks=[stop])
    for one in run_ranks(tmp_path, target=target, checkpoint=saved):
        assert len(one["seen"]) == 4
        assert close(one["weights"], expected)
        assert (one["steps"], one["epochs"]) == (9, 3)


@pytest.mark.proof
def test_the_loss_of_a_validation_on_two_ranks_is_that_of_all_rows(
    target: str, path: Path, tmp_path: Path
) -> None:
    """The trap: 26 rows are 4 batches of 2 ranks; the last one has 2 rows on rank 0, and none on
    rank 1, whose mean is not a number.
    """
    given: dict[str, Any] = {"target": target, "validation": target, "trainer": {"max_epochs": 1}}
    helped = run_ranks(tmp_path, **given)
    alone = run_ranks(tmp_path, **given, helped=False)

    model = Model()
    weights = torch.tensor(helped[0]["weights"])
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    rows = torch.from_numpy(offline_rows([path], "sequential-1", SEED, T, range(WINDOWS)))
    logits = model.layers(rows[:, :-1]).flatten(0, 1)
    expected = cross_entropy(logits, rows[:, 1:].flatten()).item()
    assert [one["validated"] for one in helped] == [[pytest.approx(expected, abs=1e-6)]] * 2
    assert all(np.isnan(one["validated"][0]) for one in alone)


@pytest.mark.proof
def test_ranks_with_different_numbers_of_batches_all_get_an_error(
    target: str, tmp_path: Path
) -> None:
    """One would wait for the others for ever."""
    for one in run_ranks(tmp_path, target=target, num_batches=[5, 6]):
        assert "num_batches: differ: one rank has 5 batches, another one 6" in one["error"]


@pytest.mark.proof
def test_two_ranks_end_together_where_their_feed_ends(target: str, tmp_path: Path) -> None:
    """Before max_steps is reached."""
    trainer = {"max_steps": 100, "max_epochs": -1}
    for one in run_ranks(tmp_path, target=target, num_batches=[5, 5], trainer=trainer):
        assert (one["steps"], one["error"]) == (5, "")
