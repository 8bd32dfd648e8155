"""The Trainer of transformers by tokenfeed.client.adapters.transformers, and without it.

    python -m tests.adapters transformers

Tokens of the corpus are their places, so that a row tells which one it is; the expected ones are
computed by the second implementation.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from client import InvalidRequest, Mixture, StreamMismatch, validation_feeds
from tests.adapters import hf_runs
from tests.adapters.hf_runs import (
    LEARNING_RATE,
    SEED,
    PlainTrainer,
    Rows,
    Seen,
    T,
    arguments,
    feed_at,
    fit,
    fit_plainly,
    model_of,
)
from tests.conftest import ROOT, serving
from tests.support.commands import run, torchrun
from tests.support.packed_corpora import Corpus, write_corpus
from tokenfeed.client.adapters.transformers import FeedTrainer
from tokenfeed.tools.provenance.checkpoint import read_states

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(400)]
PACKED = ("packed", None)
RANKS = 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two files of short documents; some tokens are masked."""
    lengths = np.random.default_rng(3).integers(2, 24, 70).tolist()
    masked = frozenset(range(40, 300, 3))
    folder = tmp_path_factory.mktemp("corpus")
    return write_corpus(folder, [lengths[:40], lengths[40:]], masked=masked)


@pytest.fixture(scope="module")
def address(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the corpus, and of a small one."""
    folder = tmp_path_factory.mktemp("server")
    small = write_corpus(folder / "small", [[9, 20, 30, 5]], "small")
    with serving(folder) as serve:
        yield serve(*corpus.words, *small.words).address


def expected(corpus: Corpus, first: int, end: int) -> tuple[list[list[int]], list[list[int]]]:
    """x and y of samples."""
    return corpus.expected(PACKED, T, SEED, range(first, end))


def rows(corpus: Corpus, first: int, end: int) -> list[list[int]]:
    return expected(corpus, first, end)[0]


def own_rows(corpus: Corpus, first: int, end: int, rank: int, batch_size: int) -> list[list[int]]:
    """x of the samples of a rank."""
    samples = [n for n in range(first, end) if n // batch_size % RANKS == rank]
    return corpus.expected(PACKED, T, SEED, samples)[0]


def loss_sum(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of some rows, each of whose documents is passed alone."""
    total = torch.zeros(())
    for tokens, targets in zip(x, y, strict=True):
        # The corpus counts tokens up within a document, and documents follow in other places.
        begins = [0, *(1 + np.flatnonzero(np.diff(tokens) != 1)).tolist(), len(tokens)]
        for begin, end in itertools.pairwise(begins):
            logits = model(input_ids=tokens[None, begin:end], use_cache=False).logits[0]
            total = total + cross_entropy(
                logits, targets[begin:end], ignore_index=-100, reduction="sum"
            )
    return total


def plain_loop(corpus: Corpus, steps: list[tuple[int, int]]) -> tuple[list[float], float]:
    """Losses, and the sum of the last weights, of a loop over the offline rows.  steps: the samples
    of each, [first, end).
    """
    model, losses = model_of(), []
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    for first, end in steps:
        x, y = map(torch.tensor, expected(corpus, first, end))
        loss = loss_sum(model, x, y) / (y != -100).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, float(model.lm_head.weight.detach().double().abs().sum())


@pytest.fixture(scope="module")
def alone(address: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of 6 steps of 2 batches of 2 rows, which has saved every second one."""
    folder = tmp_path_factory.mktemp("alone")
    saving = {"save_strategy": "steps", "save_steps": 2}
    found = fit(address, folder, max_steps=6, gradient_accumulation_steps=2, **saving)
    return folder, found


@pytest.fixture(scope="module")
def on_ranks(
    address: str, alone: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[Any]]]:
    """What two ranks found in each of some jobs, by their number, and the folder of the jobs."""
    folder = tmp_path_factory.mktemp("ranks")
    step = {"gradient_accumulation_steps": 2}
    jobs = [
        {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "feed": {"batch_size": 1}},
        {"max_steps": 6, "resume": str(alone[0] / "checkpoint-4"), "feed": {"batch_size": 1}},
        {"max_steps": 99, "by_rank": [{"num_batches": 5}, {"num_batches": 8}]},
        {"max_steps": 99, "epoch": 0},
        {"max_steps": 2, "by_rank": 2 * [{"rank": 0, "world_size": 1}]},
    ]
    jobs = [job | step for job in jobs] + [
        {"is_prepared": True, "shifted_twice": True},
        {"batch_size": 3},
    ]
    printed = torchrun(RANKS, Path(hf_runs.__file__), address, folder, json.dumps(jobs))
    ranks = dict(json.loads(line) for line in printed.splitlines() if line.startswith("["))
    return folder, [list(each) for each in zip(ranks[0], ranks[1], strict=True)]


def test_a_run_trains_on_the_offline_rows_with_the_loss_of_a_plain_loop(
    alone: tuple[Path, dict[str, Any]], corpus: Corpus
) -> None:
    """Targets are counted over both batches of a step, and no target is shifted twice."""
    _, found = alone
    losses, weight = plain_loop(corpus, [(n, n + 4) for n in range(0, 24, 4)])

    assert found["rows"] == rows(corpus, 0, 24)
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    assert found["weight"] == pytest.approx(weight, rel=1e-6)
    assert "attention_mask" not in found["keywords"]
    assert found["sample"] == 24


@pytest.mark.parametrize(
    ("resume", "first", "options"),
    [
        ("checkpoint-2", 8, {}),
        ("checkpoint-4", 16, {"ignore_data_skip": True}),
        ("checkpoint-4", 16, {"restore_callback_states_from_checkpoint": True}),
    ],
)
def test_a_resumed_run_goes_on_with_the_next_row(
    alone: tuple[Path, dict[str, Any]],
    address: str,
    corpus: Corpus,
    tmp_path: Path,
    resume: str,
    first: int,
    options: dict[str, Any],
) -> None:
    """Nothing skips once more, whatever the arguments say."""
    folder, whole = alone
    found = fit(
        address, tmp_path, str(folder / resume), max_steps=6, gradient_accumulation_steps=2,
        **options,
    )  # fmt: skip

    assert found["rows"] == rows(corpus, first, 24)
    # The Trainer reads the losses before the checkpoint from it.
    assert found["losses"] == pytest.approx(whole["losses"], abs=0)
    assert found["weight"] == whole["weight"]


def test_the_last_checkpoint_is_found_and_commands_read_its_state(
    alone: tuple[Path, dict[str, Any]], address: str, corpus: Corpus
) -> None:
    """`tokenfeed explain` takes the folder as it is."""
    folder, _ = alone
    found = fit(address, folder, True, max_steps=8, gradient_accumulation_steps=2)

    assert found["rows"] == rows(corpus, 24, 32)
    (state,) = read_states(folder / "checkpoint-2")
    assert state.state.sample == 8


@pytest.mark.proof
def test_ranks_have_the_loss_of_a_plain_loop_and_any_number_of_them_resumes(
    on_ranks: tuple[Path, list[list[Any]]],
    alone: tuple[Path, dict[str, Any]],
    address: str,
    corpus: Corpus,
    tmp_path: Path,
) -> None:
    """The mean is over the targets of all ranks, and the state is that of all of them."""
    folder, (fresh, resumed, *_) = on_ranks
    losses, weight = plain_loop(corpus, [(n, n + 4) for n in range(0, 24, 4)])
    for rank, found in enumerate(fresh):
        assert found["rows"] == own_rows(corpus, 0, 16, rank, 1)
        assert found["losses"] == pytest.approx(losses[:4], rel=1e-5)
    for rank, found in enumerate(resumed):
        assert found["rows"] == own_rows(corpus, 16, 24, rank, 1)
        assert found["losses"] == pytest.approx(losses, rel=1e-5)
        assert found["weight"] == pytest.approx(weight, rel=1e-6)

    back = fit(
        address, tmp_path, str(folder / "0" / "checkpoint-2"), max_steps=6,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    assert back["rows"] == rows(corpus, 8, 24)
    assert back["losses"] == pytest.approx(losses, rel=1e-5)


@pytest.mark.proof
def test_a_run_ends_on_all_ranks_with_the_last_whole_step(
    on_ranks: tuple[Path, list[list[Any]]], corpus: Corpus
) -> None:
    """A rank that waited for the gradients of another would hang for half an hour."""
    _, (_, _, unequal, epoch, *_) = on_ranks
    windows = len(corpus.rows(PACKED, T))
    assert [found["steps"] for found in unequal] == [2, 2]
    assert [found["sample"] for found in unequal] == [16, 16]
    steps = windows // (2 * 2 * RANKS)
    assert [found["steps"] for found in epoch] == [steps, steps]
    for rank, found in enumerate(epoch):
        assert found["rows"] == own_rows(corpus, 0, steps * 8, rank, 2)


@pytest.mark.proof
def test_ranks_that_would_train_on_the_same_rows_are_refused(
    on_ranks: tuple[Path, list[list[Any]]],
) -> None:
    """The loss would look sane, of half the data."""
    for error in on_ranks[1][4]:
        assert error.startswith("rank: 2 processes read 1 different rows at once")


@pytest.mark.proof
def test_the_loss_of_an_evaluation_is_the_mean_over_all_targets_on_any_number_of_ranks(
    on_ranks: tuple[Path, list[list[Any]]], address: str, corpus: Corpus, tmp_path: Path
) -> None:
    """Neither a mean of means, nor of rows that only fill up a batch."""
    count = len(corpus.rows(PACKED, T))
    assert count % 3, "or no row would be added"
    x, y = map(torch.tensor, expected(corpus, 0, count))
    batches = [slice(n, n + 3) for n in range(0, count, 3)]
    with torch.no_grad():
        mean = (loss_sum(model_of(), x, y) / (y != -100).sum()).item()
        means = [(loss_sum(model_of(), x[b], y[b]) / (y[b] != -100).sum()).item() for b in batches]
    assert np.mean(means) != pytest.approx(mean, rel=1e-4), "or the test could not tell them apart"

    found = [hf_runs.evaluated(address, tmp_path, 3), *on_ranks[1][6]]

    assert found == pytest.approx([mean] * 3, rel=1e-5)
    # Without the adapter:
    with feed_at(address, 3) as feed:
        trainer = PlainTrainer(model_of(), TrainingArguments(**arguments(tmp_path)))
        trainer.get_eval_dataloader = lambda _: DataLoader(
            Rows(feed.epoch(0, tail="pad")), batch_size=None
        )
        plain = trainer.evaluate([None])["eval_loss"]
    assert plain == pytest.approx(np.mean(means), rel=1e-4)


def test_validation_feeds_are_evaluated_by_name_and_training_goes_on_where_it_was(
    address: str, corpus: Corpus, tmp_path: Path
) -> None:
    """As often as the Trainer asks; each time from the first row on."""
    model = model_of()
    seen = Seen(model)
    names = ["small", "train"]
    with (
        feed_at(address, dataset="train") as feed,
        validation_feeds(address, 3, T, names, order="packed") as validation,
    ):
        options = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
        trainer = FeedTrainer(
            model,
            TrainingArguments(**arguments(tmp_path, **options)),
            train_dataset=feed,
            eval_dataset=validation,
        )
        trainer.train()
        again = trainer.evaluate(validation)
    history = trainer.state.log_history
    for name in names:
        losses = [entry[f"eval_{name}_loss"] for entry in history if f"eval_{name}_loss" in entry]
        assert len(losses) == 5, "at first, after each step, and at the end"
        assert losses[-2] == losses[-1] == again[f"eval_{name}_loss"]
        assert len(set(losses)) == 4
    assert seen.rows == rows(corpus, 0, 6)
    fresh = next(entry["eval_train_loss"] for entry in history if "eval_train_loss" in entry)
    assert fresh == pytest.approx(hf_runs.evaluated(address, tmp_path, 3), rel=1e-6)


def test_epochs_end_and_are_resumed_where_they_would_have_been(
    address: str, corpus: Corpus, tmp_path: Path
) -> None:
    """The last step of an epoch has fewer batches, and counts as one."""
    per_epoch = len(corpus.rows(PACKED, T)) // 2
    assert per_epoch % 2, "or no step would have fewer"
    options = {"num_train_epochs": 2, "gradient_accumulation_steps": 2}
    saving = {"save_strategy": "steps", "save_steps": 3}
    whole = fit(address, tmp_path / "whole", **options, **saving)
    resumed = fit(address, tmp_path, str(tmp_path / "whole" / "checkpoint-3"), **options)

    assert whole["steps"] == 2 * -(-per_epoch // 2)
    assert whole["rows"] == rows(corpus, 0, 2 * per_epoch * 2)
    assert whole["epochs"][per_epoch // 2] == 1.0
    assert resumed["rows"] == whole["rows"][3 * 4 :]
    for name in ("losses", "epochs", "weight"):
        assert resumed[name] == whole[name]


@pytest.mark.parametrize(
    ("feed", "steps", "sample"),
    [
        ({"num_batches": 5}, 2, 8),
        ({"mixture": Mixture({"train": 1}, sources={"train": {"max_epochs": 1}})}, None, None),
    ],
)
def test_a_feed_that_ends_ends_training_and_its_last_step_is_saved(
    address: str,
    corpus: Corpus,
    tmp_path: Path,
    feed: dict[str, Any],
    steps: int | None,
    sample: int | None,
) -> None:
    """max_steps may be far beyond; a batch that fills no step is not counted as trained."""
    if steps is None:
        steps = len(corpus.rows(PACKED, T)) // 4
        sample = steps * 4
    options = {"max_steps": 10**9, "gradient_accumulation_steps": 2, "save_strategy": "steps"}
    found = fit(address, tmp_path, feed=feed, **options)

    assert (found["steps"], found["sample"]) == (steps, sample)
    (state,) = read_states(tmp_path / f"checkpoint-{steps}")
    assert state.state.sample == sample


class Interrupt(TrainerCallback):  # type: ignore[misc]
    """Presses Ctrl-C at an event, once, and notes the positions at others."""

    def __init__(self, event: str, step: int) -> None:
        self.trainer: Any = None
        self.samples: list[int] = []
        self.event, self.step = event, step

    def _at(self, event: str, state: Any) -> None:
        self.samples.append(self.trainer.feed_state()["sample"])
        if event == self.event and state.global_step == self.step:
            self.event = ""
            raise KeyboardInterrupt

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._at("substep", state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._at("before", state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._at("after", state)


@pytest.mark.parametrize(
    ("event", "step", "sample"), [("substep", 2, 8), ("before", 2, 8), ("after", 2, 8)]
)
def test_a_step_that_is_interrupted_comes_again(
    address: str, corpus: Corpus, tmp_path: Path, event: str, step: int, sample: int
) -> None:
    """The weights have not learned it; behind the optimizer they have."""
    model = model_of()
    seen, interrupt = Seen(model), Interrupt(event, step)
    with feed_at(address) as feed:
        options = {"max_steps": 4, "gradient_accumulation_steps": 2}
        trainer = FeedTrainer(
            model,
            TrainingArguments(**arguments(tmp_path, **options)),
            train_dataset=feed,
            callbacks=[interrupt],
        )
        interrupt.trainer = trainer
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert trainer.feed_state()["sample"] == sample
        assert interrupt.samples[:6] == [0, 0, 4, 4, 4, 8], "a checkpoint at any event is right"
        seen.rows.clear()
        trainer.train()
    assert seen.rows == rows(corpus, sample, sample + 16)


def test_a_run_that_ends_is_resumed_by_the_trainer_that_was_interrupted(
    address: str, corpus: Corpus, tmp_path: Path
) -> None:
    """Its feed is at step 7 then, and the checkpoint counts from the first batch."""
    model = model_of()
    seen = Seen(model)
    options = {"num_train_epochs": 1, "save_strategy": "steps", "save_steps": 5}
    with feed_at(address, num_batches=10) as feed:
        interrupt = Interrupt("after", 7)
        interrupt.trainer = trainer = FeedTrainer(
            model,
            TrainingArguments(**arguments(tmp_path, **options)),
            train_dataset=feed,
            callbacks=[interrupt],
        )
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        seen.rows.clear()
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 10
    assert seen.rows == rows(corpus, 10, 20)


def test_logits_of_a_batch_of_the_trainer_are_those_of_its_documents_alone(
    address: str, corpus: Corpus, tmp_path: Path
) -> None:
    """A packed row has several documents, and none sees another."""
    with feed_at(address, 4) as feed:
        trainer = FeedTrainer(
            model := model_of(),
            TrainingArguments(**arguments(tmp_path, max_steps=1)),
            train_dataset=feed,
        )
        numbers = iter(trainer.get_train_dataloader())
        ((inputs,), count) = trainer.get_batch_samples(numbers, 1, torch.device("cpu"))
    assert count == (inputs["labels"] != -100).sum()
    lengths = inputs["cu_seq_lens_q"].diff().tolist()
    model.eval()
    with torch.no_grad():
        together = model(**inputs).logits.flatten(0, 1)
        alone = [
            model(input_ids=document[None], use_cache=False).logits[0]
            for document in inputs["input_ids"].flatten().split(lengths)
        ]
        leaking = model(input_ids=inputs["input_ids"], use_cache=False).logits.flatten(0, 1)
    assert (together - torch.cat(alone)).abs().max() < 1e-5
    assert (leaking - torch.cat(alone)).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("options", "datasets", "named"),
    [
        ({"label_smoothing_factor": 0.1}, {}, "label_smoothing_factor: has to be 0"),
        ({"auto_find_batch_size": True}, {}, "auto_find_batch_size: cannot make the batches"),
        ({}, {"compute_loss_func": len}, "compute_loss_func: would shift the targets once more"),
        ({}, {"train_dataset": [1, 2]}, "train_dataset: is no feed"),
    ],
)
def test_what_does_not_go_with_a_feed_is_refused_by_name(
    address: str, tmp_path: Path, options: dict[str, Any], datasets: dict[str, Any], named: str
) -> None:
    """Smoothing would shift the targets once more, in silence."""
    with feed_at(address) as feed:
        given = TrainingArguments(**arguments(tmp_path, max_steps=1, **options))
        with pytest.raises(InvalidRequest, match=named):
            FeedTrainer(model_of(), given, **{"train_dataset": feed, **datasets})


def test_a_batch_that_is_larger_than_an_epoch_is_refused(address: str, tmp_path: Path) -> None:
    """The Trainer would speak of max_steps and of a dataloader without a length."""
    with feed_at(address, batch_size=1 << 16) as feed:
        given = TrainingArguments(**arguments(tmp_path, num_train_epochs=1))
        with pytest.raises(InvalidRequest, match="batch_size: is larger than"):
            FeedTrainer(model_of(), given, train_dataset=feed).train()


def test_a_saved_state_of_the_trainer_has_the_position_of_its_end(
    address: str, tmp_path: Path
) -> None:
    """Scripts of transformers end with save_model and save_state."""
    with feed_at(address) as feed:
        given = TrainingArguments(**arguments(tmp_path, max_steps=2, save_strategy="no"))
        trainer = FeedTrainer(model_of(), given, train_dataset=feed)
        trainer.train()
        trainer.save_state()
        (saved,) = read_states(tmp_path / "trainer_state.json")

        assert saved.state.sample == feed.position.samples == 4


def test_an_evaluation_that_would_move_the_trained_feed_is_refused(
    address: str, tmp_path: Path
) -> None:
    """Training would go on with other rows."""
    given = arguments(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1)
    with feed_at(address) as feed:
        trainer = FeedTrainer(
            model_of(),
            TrainingArguments(**given),
            train_dataset=feed,
            eval_dataset=feed.epoch(0, tail="pad"),
        )
        for begin in (trainer.evaluate, trainer.train):
            with pytest.raises(InvalidRequest, match=r"^eval_dataset: is an epoch of the feed"):
                begin()
        with pytest.raises(InvalidRequest, match=r"^eval_dataset: is a feed, which is read once"):
            trainer.evaluate(feed)
        trainer.compute_metrics = len
        with pytest.raises(InvalidRequest, match=r"^compute_metrics: gets no logits"):
            trainer.evaluate()


def test_a_checkpoint_without_a_state_of_a_feed_is_refused(
    alone: tuple[Path, Any], address: str, tmp_path: Path
) -> None:
    """The run would begin again at the first row."""
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    for path in (alone[0] / "checkpoint-2").iterdir():
        (checkpoint / path.name).write_bytes(path.read_bytes())
    written = checkpoint / "trainer_state.json"
    state = json.loads(written.read_text())
    del state["stateful_callbacks"]["FeedState"]
    written.write_text(json.dumps(state))

    with pytest.raises(InvalidRequest, match=r"^resume_from_checkpoint: has no state of a feed"):
        fit(address, tmp_path / "out", str(checkpoint), max_steps=4)


def test_a_state_of_another_stream_is_loaded_if_that_is_allowed(
    alone: tuple[Path, Any], address: str, tmp_path: Path
) -> None:
    def resume(**more: Any) -> int:
        given = TrainingArguments(**arguments(tmp_path, max_steps=4))
        with feed_at(address, seed=8) as feed:
            trainer = FeedTrainer(model_of(), given, train_dataset=feed, **more)
            trainer.train(resume_from_checkpoint=str(alone[0] / "checkpoint-2"))
            return int(trainer.state.global_step)

    with pytest.raises(StreamMismatch, match="seed"):
        resume()
    assert resume(allow=("seed",)) == 4


@pytest.mark.proof
@pytest.mark.parametrize(
    ("example", "end"),
    [
        ("hf_trainer.py", "resumed from checkpoint-10: samples 160 to 320"),
        ("sft.py", " after"),
    ],
)
def test_an_example_trains(example: str, end: str) -> None:
    """Each says by its exit code whether it did what it shows."""
    assert run(ROOT / "examples" / example, seconds=250).rstrip().endswith(end)


# --- without the adapter ---


def test_without_the_adapter_labels_are_shifted_twice_and_the_loss_looks_sane(
    address: str, corpus: Corpus, tmp_path: Path
) -> None:
    """It is the loss of the token after the next one."""
    found = fit_plainly(address, tmp_path, shifted_twice=True)
    losses, _ = plain_loop(corpus, [(0, 2)])

    assert found["rows"] == rows(corpus, 0, 4)
    assert found["loss"] == pytest.approx(losses[0], rel=0.2)
    assert found["loss"] != pytest.approx(losses[0], rel=1e-3)


def test_without_the_adapter_the_state_is_a_batch_ahead_if_accelerate_prepares(
    address: str, tmp_path: Path
) -> None:
    """Its loader holds one, so a resumed run leaves it out."""
    plain = fit_plainly(address, tmp_path / "plain")
    prepared = fit_plainly(address, tmp_path / "prepared", is_prepared=True)

    assert plain["state"]["sample"] == 4
    assert prepared["state"]["sample"] == 6


@pytest.mark.proof
def test_without_the_adapter_all_ranks_train_on_the_rows_of_rank_0(
    on_ranks: tuple[Path, list[list[Any]]], corpus: Corpus
) -> None:
    """accelerate reads on rank 0 alone, and deals its batches out. Those of rank 1 are left out."""
    for rank, found in enumerate(on_ranks[1][5]):
        samples = [8 * step + 4 * rank + row for step in range(2) for row in range(2)]
        assert found["rows"] == corpus.expected(PACKED, T, SEED, samples)[0]
        assert samples != [4 * step + 2 * rank + row for step in range(2) for row in range(2)]


def test_without_the_adapter_a_resumed_run_skips_twice(
    address: str, corpus: Corpus, tmp_path: Path
) -> None:
    """The feed has its state, and the Trainer skips as many batches again."""
    state = fit_plainly(address, tmp_path)["state"]
    model = model_of()
    seen = Seen(model)
    given = TrainingArguments(**arguments(tmp_path, max_steps=3))
    with feed_at(address) as feed:
        feed.load_state_dict(state)
        trainer = PlainTrainer(model, given, train_dataset=Rows(feed))
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert seen.rows == rows(corpus, 8, 10), "samples 4 to 8 were never trained on"


def test_without_the_adapter_a_feed_as_train_dataset_is_refused_and_the_adapter_named(
    address: str, tmp_path: Path
) -> None:
    """Its batches would be taken for rows."""
    with feed_at(address) as feed:
        given = TrainingArguments(**arguments(tmp_path, max_steps=1))
        trainer = Trainer(model_of(), given, train_dataset=feed)
        with pytest.raises(InvalidRequest, match=r"^train_dataset: .*adapters\.transformers"):
            trainer.train()
