"""Batches in functions of Megatron's own that need no GPU. Its training itself needs one.

PyPI has megatron.core alone, not yet with all of these functions: put a checkout of Megatron-LM on
PYTHONPATH, and nothing is skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Serve
from tests.support.ports import free_port
from tokenfeed import RemoteBatches

B, T = 3, 64
LENGTHS = (5, 30, 11, 3, 60, 20, 8, 17, 40, 70, 9, 50)

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
ARGS = {
    "micro_batch_size": B,
    "seq_length": T,
    "context_parallel_size": 1,
    "dataloader_inter_document_masking": True,
    "create_attention_mask_in_dataloader": False,
    "consumed_train_samples": 0,
    "consumed_valid_samples": 0,
    "eval_iters": 0,
}


@pytest.fixture
def args(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Megatron's arguments, in a group of one process. megatron.training needs a GPU to import."""
    from megatron.core import parallel_state

    training = ModuleType("megatron.training")
    found = SimpleNamespace(**ARGS)
    training.get_args = lambda: found
    monkeypatch.setitem(sys.modules, "megatron.training", training)
    monkeypatch.delitem(sys.modules, "tokenfeed.client.adapters.megatron", raising=False)
    where = f"tcp://localhost:{free_port()}"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield found
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.fixture
def address(tmp_path: Path, serve: Serve) -> str:
    """Of a server of documents."""
    tokens = np.arange(1, sum(LENGTHS) + 1)
    tokens[np.cumsum(LENGTHS) - 1] = 0
    path = tmp_path / "train.bin"
    tokens.astype("<u2").tofile(path)
    return serve("--data", path, "--document-end-token", "0").address


def provided(address: str) -> Any:
    from tokenfeed.client.adapters.megatron import datasets_provider

    return datasets_provider(address, order="shuffled", seed=3)([0, 0, 0])[0]


def test_its_iterator_replays_batches_and_a_run_resumes(
    args: SimpleNamespace, address: str
) -> None:
    """Megatron wraps an external iterator in this class, and the ranks are those of its mpu."""
    from megatron.core.rerun_state_machine import RerunDataIterator

    batches = RerunDataIterator(provided(address))
    found = [next(batches) for _ in range(4)]
    expected = list(RemoteBatches(address, B, T, order="shuffled", seed=3, num_batches=4))
    for batch, (x, y) in zip(found, expected, strict=True):
        assert torch.equal(batch["tokens"], x)
        assert torch.equal(batch["labels"], y)
    args.consumed_train_samples = 2 * B
    resumed = RerunDataIterator(provided(address))
    assert torch.equal(next(resumed)["tokens"], expected[2][0])


def test_its_packed_sequences_are_the_documents_of_the_batch(
    args: SimpleNamespace, address: str
) -> None:
    """Rows are joined to one sequence, whose bounds attention then takes."""
    from megatron.core import utils

    if not hasattr(utils, "flatten_batch_for_packed_sequences"):
        pytest.skip("this release of megatron.core does not have it; put a checkout on PYTHONPATH")
    whole = next(RemoteBatches(address, B, T, order="shuffled", seed=3).batches())
    flat = utils.flatten_batch_for_packed_sequences(next(provided(address)))
    assert torch.equal(flat["cu_seqlens"], whole.cu_seqlens[None])
    assert flat["cu_seqlens"].dtype == torch.int32
    assert flat["max_seqlen"].tolist() == [whole.max_seqlen]
    for name, value in {
        "tokens": whole.x,
        "labels": whole.y,
        "loss_mask": torch.ones(B, T),
        "position_ids": whole.positions,
    }.items():
        assert torch.equal(flat[name], value.reshape(1, -1)), name
