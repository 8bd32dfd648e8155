"""The trainers for transformers and TRL, by their form: `make adapters` runs both themselves."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from client import InvalidRequest, RemoteBatches
from tests.client.adapters.conftest import Adapter, T

TRAINER = """
from types import SimpleNamespace

class TrainerCallback:
    pass

class Trainer:
    def __init__(self, model=None, args=None, *, train_dataset=None, eval_dataset=None, **given):
        self.prepared, self.eval_dataset, self.callbacks = train_dataset, eval_dataset, []
        self.args = SimpleNamespace(n_gpu=0, world_size=1, **vars(args or SimpleNamespace()))
        self.control = SimpleNamespace()

    def get_cp_size(self):
        return 2 if getattr(self.args, "splits_rows", False) else 1

    def get_sp_size(self):
        return 1

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def get_batch_samples(self, batches, count, device):
        return list(batches)[:count], None
"""
STAND_INS = {
    "transformers/__init__.py": TRAINER,
    "transformers/trainer_callback.py": "class ExportableState:\n    pass\n",
    "transformers/trainer_utils.py": "class SaveStrategy:\n    STEPS = 'steps'\n",
    "datasets.py": "class Dataset:\n    from_dict = staticmethod(lambda rows: rows)\n",
    "trl.py": "from transformers import Trainer\n\nclass SFTTrainer(Trainer):\n    pass\n",
}


@pytest.fixture
def module(adapter: Adapter) -> ModuleType:
    return adapter("trl", STAND_INS)


def trainer_of(module: ModuleType, corpus: str, **given: Any) -> Any:
    feed = RemoteBatches(corpus, 2, T, order="packed", seed=3)
    arguments = {"max_steps": 3, "gradient_accumulation_steps": 2}
    args = SimpleNamespace(**arguments, **given.pop("args", {}))
    return module.FeedSFTTrainer(None, args, **{"train_dataset": feed, **given})


def test_a_trainer_prepares_one_row_that_is_none_of_the_feed(
    module: ModuleType, corpus: str
) -> None:
    """Whatever looks at a dataset in a constructor would take rows from the training."""
    trainer = trainer_of(module, corpus)
    assert trainer.prepared == {"input_ids": [[0]], "labels": [[0]]}
    assert trainer.feed_state()["sample"] == 0


def test_a_step_has_the_batches_of_the_feed_and_its_state_is_before_it(
    module: ModuleType, corpus: str
) -> None:
    """Until the optimizer has made the step: its callback says so."""
    trainer = trainer_of(module, corpus)
    expected = RemoteBatches(corpus, 2, T, order="packed", seed=3).batches()
    numbers = iter(trainer.get_train_dataloader())
    for step in range(3):
        assert trainer.feed_state()["sample"] == 4 * step
        inputs, _ = trainer.get_batch_samples(numbers, 2, None)
        assert trainer.feed_state()["sample"] == 4 * step
        for found, batch in zip(inputs, expected, strict=False):
            for name, value in batch.as_kwargs("transformers").items():
                assert found[name] is value or (found[name] == value).all(), name
        for callback in trainer.callbacks:
            callback.on_optimizer_step(trainer.args, None, trainer.control)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("packing", {"args": {"packing": True}}),
        ("padding_free", {"args": {"padding_free": True}}),
        ("assistant_only_loss", {"args": {"assistant_only_loss": True}}),
        ("completion_only_loss", {"args": {"completion_only_loss": False}}),
        ("formatting_func", {"formatting_func": len}),
        ("compute_loss_func", {"compute_loss_func": len}),
        ("label_smoothing_factor", {"args": {"label_smoothing_factor": 0.1}}),
        ("auto_find_batch_size", {"args": {"auto_find_batch_size": True}}),
        ("parallelism_config", {"args": {"splits_rows": True}}),
        ("train_dataset", {"train_dataset": [1, 2]}),
    ],
)
def test_what_would_be_silently_wrong_is_refused_by_name(
    module: ModuleType, corpus: str, name: str, given: dict[str, Any]
) -> None:
    """The error names the argument that has to go."""
    with pytest.raises(InvalidRequest, match=f"^{name}: "):
        trainer_of(module, corpus, **given)


def test_a_loss_that_a_trainer_brings_is_refused(module: ModuleType, corpus: str) -> None:
    """TRL before 1.16 has one for loss_type="dft", which shifts the targets once more."""
    import trl

    init = trl.SFTTrainer.__init__

    def with_loss(trainer: Any, *args: Any, **given: Any) -> None:
        init(trainer, *args, **given)
        trainer.compute_loss_func = len

    trl.SFTTrainer.__init__ = with_loss
    with pytest.raises(InvalidRequest, match=r"^compute_loss_func: would shift"):
        trainer_of(module, corpus)


def test_a_resumed_run_counts_the_batches_of_the_whole_one(module: ModuleType, corpus: str) -> None:
    """The steps of a checkpoint count from its first batch, and the feed may be elsewhere."""
    feed = RemoteBatches(corpus, 2, T, order="packed", seed=3, num_batches=4)
    trainer = trainer_of(module, corpus, train_dataset=feed, args={})
    trainer.args.max_steps = -1
    counted = []
    type(trainer).__mro__[-2].train = lambda self, *_, **__: counted.append(
        len(self.get_train_dataloader())
    )
    trainer.train()
    next(feed)
    trainer.train(resume_from_checkpoint=True)
    trainer.train()
    assert counted == [4, 4, 3]


def test_ranks_without_a_row_of_their_own_are_not_taken_for_ranks_of_equal_rows(
    module: ModuleType, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch before a change of the context length a rank may have no own row."""
    trainer = trainer_of(module, corpus)
    trainer.args.world_size, trainer._host_group = 4, None
    trainer.get_tp_size = lambda: 1
    samples: list[int] = []

    def gather(found: list[torch.Tensor], own: torch.Tensor, group: None) -> None:
        for each, sample in zip(found, samples, strict=True):
            each.copy_(torch.tensor([1, sample]))

    monkeypatch.setattr(torch.distributed, "all_gather", gather)
    batch = SimpleNamespace(sample_numpy=[0])
    samples[:] = [0, -1, 8, -1]
    assert trainer._all_have([batch], 1)
    samples[:] = [0, 0, 8, -1]
    with pytest.raises(InvalidRequest, match=r"^rank: 4 processes read 2 different rows"):
        trainer._all_have([batch], 1)
