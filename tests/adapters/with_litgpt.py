"""The adapter for litgpt, with litgpt's pretrain: `python -m tests.adapters litgpt`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is imported: litgpt compiles its model, which needs a C++ compiler.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import numpy as np
import pytest
import torch
from litgpt import pretrain
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from torch import Tensor

from client import InvalidRequest
from tests.conftest import Serve, serving
from tests.support.offline import offline_rows
from tokenfeed.client.adapters.litgpt import FeedData

# Fabric and litgpt have advice.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

B, T, WINDOWS, SEED = 4, 8, 40, 5
VOCABULARY = WINDOWS * T + 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("corpus") / "train.bin"
    np.arange(VOCABULARY).astype("<u2").tofile(found)
    return found


@pytest.fixture(scope="module")
def target(path: Path) -> Iterator[str]:
    """The address of a server of one corpus under two names."""
    with serving(path.parent) as serve:
        yield serve("--data", f"web={path}", "--data", f"val={path}").address


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[list[int]]]]:
    """What the model gets, train and val apart; and its loss."""
    found: list[Any] = []
    forward = pretrain.GPT.forward

    def note(model: Any, idx: Tensor, *rest: Any, **options: Any) -> Tensor:
        if idx.device.type != "meta":
            found.append(("train" if model.training else "val", idx.tolist()))
        result: Tensor = forward(model, idx, *rest, **options)
        return result

    monkeypatch.setattr(pretrain.GPT, "forward", note)
    # It asks the command line.
    monkeypatch.setattr(pretrain, "save_hyperparameters", lambda *_: None)
    return found


def run(data: FeedData, out: Path, iterations: int, resume: bool | Path = False) -> None:
    """litgpt pretrain, with steps of two batches and a checkpoint at every second one."""
    torch.set_num_threads(1)
    pretrain.setup(
        model_name="pythia-14m",
        model_config=Config(
            name="tiny", block_size=T, padded_vocab_size=VOCABULARY, n_layer=1, n_head=2, n_embd=8
        ),
        precision="32-true",
        data=data,
        out_dir=out,
        resume=resume,
        devices=1,
        logger_name="csv",
        train=TrainArgs(
            save_interval=2,
            log_interval=1,
            global_batch_size=2 * B,
            micro_batch_size=B,
            max_tokens=iterations * B * T,
            max_norm=1.0,
            lr_warmup_steps=2,
        ),
        eval=EvalArgs(interval=3, max_iters=2),
    )


def data_of(target: str, **given: Any) -> FeedData:
    return FeedData(target, validation="val", dataset="web", seed=SEED, **given)


def trained_on(seen: list[tuple[str, list[list[int]]]]) -> list[list[int]]:
    return [row for kind, rows in seen if kind == "train" for row in rows]


def expected(path: Path, first: int, end: int) -> list[list[int]]:
    rows = offline_rows([path], "shuffled-1", SEED, T, range(first * B, end * B))
    return rows[:, :-1].tolist()


def weights(out: Path) -> Tensor:
    model = torch.load(out / "lit_model.pth", weights_only=False)["model"]
    return torch.cat([each.flatten().float() for each in model.values()])


def test_a_run_is_resumed_exactly_by_litgpt_s_own_checkpoint(
    target: str, path: Path, tmp_path: Path, seen: list[Any]
) -> None:
    """Rows as the file has them, and the weights of a run without a break; with validations of the
    first two batches in between.
    """
    run(data_of(target, num_batches=12), tmp_path / "whole", 12)
    assert trained_on(seen) == expected(path, 0, 12)
    sequential = offline_rows([path], "sequential-1", 0, T, range(2 * B))[:, :-1].tolist()
    validated = [row for kind, rows in seen if kind == "val" for row in rows]
    assert validated == sequential * (len(validated) // len(sequential))

    seen.clear()
    step = tmp_path / "whole" / "step-00000004" / "lit_model.pth"
    run(data_of(target, num_batches=12), tmp_path / "resumed", 12, resume=step)
    assert trained_on(seen) == expected(path, 8, 12)
    final = [weights(tmp_path / name / "final") for name in ("whole", "resumed")]
    assert torch.equal(*final)


@pytest.mark.parametrize("ends", [False, True])
def test_the_final_checkpoint_is_a_batch_ahead_unless_the_feed_ends_there(
    target: str, path: Path, tmp_path: Path, seen: list[Any], ends: bool
) -> None:
    """litgpt reads a batch before it looks whether it is done, and saves then."""
    run(data_of(target, num_batches=4 if ends else None), tmp_path / "first", 4)
    assert trained_on(seen) == expected(path, 0, 4)

    seen.clear()
    final = tmp_path / "first" / "final" / "lit_model.pth"
    run(data_of(target, num_batches=8 if ends else None), tmp_path / "second", 8, resume=final)
    assert trained_on(seen) == (expected(path, 4, 8) if ends else expected(path, 5, 9))


def test_a_feed_that_ends_early_ends_the_training(
    target: str, path: Path, tmp_path: Path, seen: list[Any]
) -> None:
    """litgpt repeats a loader that ends, which a feed does not do."""
    run(data_of(target, num_batches=6), tmp_path / "out", 100)
    assert trained_on(seen) == expected(path, 0, 6)


def test_rows_with_targets_that_do_not_count_are_refused(
    serve: Serve, tmp_path: Path, seen: list[Any]
) -> None:
    """litgpt would train on them: it takes targets from the rows."""
    documents = tmp_path / "documents.bin"
    np.tile([0, *range(1, 20)], 20).astype("<u2").tofile(documents)
    corpora = "--data", f"web={documents}", "--data", f"val={documents}"
    server = serve(*corpora, "--document-start-token", "0")
    with pytest.raises(InvalidRequest, match=r"^y: is -100 at some targets, and litgpt trains"):
        run(data_of(server.address, options={"mask_borders": True}), tmp_path / "out", 4)
