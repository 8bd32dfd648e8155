"""The batches that Megatron-LM and Megatron Bridge take, without either."""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.client.adapters.conftest import Adapter, T
from tests.conftest import Serve, WriteTokens
from tokenfeed import Mixture, RemoteBatches
from tokenfeed.errors import InvalidRequest

MPU = """
def get_data_parallel_rank():
    return 1

def get_data_parallel_world_size():
    return 2

def get_virtual_pipeline_model_parallel_world_size():
    return VIRTUAL

VIRTUAL = None
"""
BRIDGE = """
from dataclasses import dataclass

@dataclass(kw_only=True)
class DataloaderConfig:
    dataloader_type: str | None = None

@dataclass
class DatasetProvider(DataloaderConfig):
    pass
"""
MICROBATCHES = """
def get_micro_batch_size():
    return SIZE

SIZE = 1
"""
FILES = {
    "megatron/core/__init__.py": "from . import parallel_state as mpu",
    "megatron/core/parallel_state.py": MPU,
    "megatron/core/num_microbatches_calculator.py": MICROBATCHES,
    "megatron/training/__init__.py": "ARGS = None\ndef get_args():\n    return ARGS",
    "megatron/bridge/data/base.py": BRIDGE,
}
ARGS = {
    "micro_batch_size": 2,
    "seq_length": T,
    "context_parallel_size": 1,
    "dataloader_inter_document_masking": True,
    "create_attention_mask_in_dataloader": False,
    "consumed_train_samples": 0,
    "consumed_valid_samples": 0,
    "eval_iters": 0,
}


@pytest.fixture
def module(adapter: Adapter) -> ModuleType:
    return adapter("megatron", FILES)


def given(**arguments: Any) -> None:
    """Set the arguments of Megatron."""
    import megatron.training

    megatron.training.ARGS = SimpleNamespace(**{**ARGS, **arguments})


def test_a_microbatch_has_the_types_that_are_broadcast(module: ModuleType, corpus: str) -> None:
    """Other tensor-parallel ranks receive into memory of these types: another one corrupts."""
    given()
    provider = module.datasets_provider(corpus, order="packed")
    assert provider.is_distributed
    train, valid, test = provider([0, 0, 0])
    assert (valid, test) == (None, None)
    batch = next(train)
    whole = next(RemoteBatches(corpus, 2, T, rank=1, world_size=2, order="packed").batches())
    types = {name: (value.dtype, value.shape) for name, value in batch.items()}
    shape = (2, T)
    assert types == {
        "tokens": (torch.int64, shape),
        "labels": (torch.int64, shape),
        "loss_mask": (torch.float32, shape),
        "position_ids": (torch.int64, shape),
        "cu_seqlens": (torch.int32, whole.cu_seqlens_rows().shape),
        "max_seqlen": (torch.int32, (2,)),
    }
    assert all(value.is_contiguous() for value in batch.values())
    assert torch.equal(batch["tokens"], whole.x)
    assert torch.equal(batch["loss_mask"], (whole.y != -100).float())
    assert torch.equal(batch["labels"], whole.y.clamp(min=0))
    assert torch.equal(batch["position_ids"], whole.positions)
    assert (batch["cu_seqlens"][:, 0] == 0).all()
    assert (batch["cu_seqlens"][:, -1] == T).all()
    assert batch["max_seqlen"].tolist() == whole.doc_lens()[1]


def test_without_masking_a_row_is_one_sequence(module: ModuleType, corpus: str) -> None:
    """Context parallelism may split it then; reset_position_ids is an option of its own."""
    given(dataloader_inter_document_masking=False, context_parallel_size=2)
    (batch,) = (next(module.datasets_provider(corpus)([0, 0, 0])[0]),)
    assert batch.keys() == {"tokens", "labels", "loss_mask", "position_ids"}
    assert torch.equal(batch["position_ids"], torch.arange(T).expand(2, T))
    given(dataloader_inter_document_masking=False, reset_position_ids=True)
    batch = next(module.datasets_provider(corpus)([0, 0, 0])[0])
    assert (batch["position_ids"][:, 1:] == 0).any()


def test_a_run_resumes_at_the_consumed_samples(module: ModuleType, corpus: str) -> None:
    """Megatron saves this number and nothing else, also when its batch size grows."""
    given()
    train, *_ = module.datasets_provider(corpus, order="packed", seed=5)([0, 0, 0])
    next(train)
    second = next(train)
    given(consumed_train_samples=4, consumed_valid_samples=8)
    options = {"order": "packed", "seed": 5}
    train, valid, test = module.datasets_provider(corpus, valid={}, test={"seed": 6}, **options)(
        [0, 0, 0], vp_stage=1
    )
    assert torch.equal(next(train)["tokens"], second["tokens"])
    third = RemoteBatches(corpus, 2, T, rank=1, world_size=2, start_sample=8, **options)
    assert torch.equal(next(valid)["tokens"], next(third)[0])
    other = RemoteBatches(corpus, 2, T, rank=1, world_size=2, order="packed", seed=6)
    assert torch.equal(next(test)["tokens"], next(other)[0])


def test_a_rank_that_never_reads_costs_nothing(
    module: ModuleType, serve: Serve, write_tokens: WriteTokens
) -> None:
    """All but one rank of a tensor-parallel group get a provider's iterators, and do not read."""
    server = serve("--data", write_tokens(range(1, 200)))
    before = threading.active_count()
    given(dataloader_inter_document_masking=False)
    splits = module.datasets_provider(server.address, valid={}, test={})([0, 0, 0])
    assert all(splits)
    assert threading.active_count() == before
    assert server.connection_count() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_parallel_size", 2),
        ("create_attention_mask_in_dataloader", True),
        ("reset_attention_mask", True),
        ("eod_mask_loss", True),
        ("sft", True),
        ("hybrid_context_parallel", True),
        ("full_validation", True),
        ("eval_iters", 100),
    ],
)
def test_what_a_feed_cannot_do_is_refused_by_name(
    module: ModuleType, corpus: str, name: str, value: Any
) -> None:
    """Documents would leak, an option would be ignored, or other ranks would wait for ever."""
    given(**{name: value})
    with pytest.raises(InvalidRequest, match=name):
        module.datasets_provider(corpus)([0, 0, 0])


def test_a_feed_that_ends_is_refused(module: ModuleType, corpus: str) -> None:
    """One rank of a tensor-parallel group would see the end, and the others would wait."""
    for given_options in (
        {"num_batches": 3},
        {"valid": {"num_batches": 3}},
        {"test": {"num_batches": 3}},
    ):
        with pytest.raises(InvalidRequest, match=r"^num_batches: "):
            module.datasets_provider(corpus, **given_options)
    given()
    ending = Mixture({"train": 1}, sources={"train": {"max_epochs": 1}})
    with pytest.raises(InvalidRequest, match=r"^max_epochs: "):
        module.datasets_provider(corpus, mixture=ending)([0, 0, 0])


@pytest.mark.parametrize("name", ["start_sample", "rank", "group", "device"])
def test_what_megatron_decides_is_refused_by_name(
    module: ModuleType, corpus: str, name: str
) -> None:
    """It would be given twice."""
    with pytest.raises(InvalidRequest, match=f"^{name}: is set by Megatron"):
        module.datasets_provider(corpus, valid={name: 1})


def test_a_megatron_without_masking_of_documents_is_taken(module: ModuleType, corpus: str) -> None:
    """Core 0.16 to 0.18 do not have the argument."""
    import megatron.training

    given()
    del megatron.training.ARGS.dataloader_inter_document_masking
    train, *_ = module.datasets_provider(corpus)([0, 0, 0])
    assert "cu_seqlens" not in next(train)


def test_evaluations_alone_begin_at_the_first_row(module: ModuleType, corpus: str) -> None:
    """Several checkpoints are compared on the same rows, as with Megatron's own loader."""
    given(skip_train=True, consumed_valid_samples=8)
    _, valid, _ = module.datasets_provider(corpus, valid={}, order="shuffled")([0, 0, 0])
    first, _ = next(RemoteBatches(corpus, 2, T, rank=1, world_size=2, order="shuffled"))
    assert torch.equal(next(valid)["tokens"], first)


class Group:
    """A process group of this size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


def context(cp: int = 1, pp: int = 1) -> Any:
    groups = SimpleNamespace(dp=None, cp=Group(cp), pp=Group(pp))
    return SimpleNamespace(pg_collection=groups)


@pytest.fixture
def bridge(adapter: Adapter) -> ModuleType:
    return adapter("megatron_bridge", FILES)


def test_bridge_gets_documents_of_one_row_and_saves_the_position(
    bridge: ModuleType, corpus: str
) -> None:
    """Attention of a later batch would be that of the first one, if a state were lost."""
    options = {"order": "packed"}
    provider = bridge.FeedProvider(
        target=corpus, micro_batch_size=1, seq_length=T, options=options, documents=True
    )
    assert provider.dataloader_type == "external"
    train, valid, test = provider.build_datasets(context(pp=2))
    assert (valid, test) == (None, None)
    next(train)
    state, batch = train.save_state(), next(train)
    feed = RemoteBatches(corpus, 1, T, order="packed", start_sample=1)
    whole = next(feed.batches())
    assert torch.equal(batch["cu_seqlens_q"], whole.cu_seqlens)
    assert batch["cu_seqlens_kv"].dtype == batch["max_seqlen_q"].dtype == torch.int32
    assert batch["max_seqlen_kv"].tolist() == [whole.max_seqlen]
    assert torch.equal(batch["position_ids"], whole.positions)
    resumed, *_ = provider.build_datasets(context())
    resumed.restore_state(state)
    assert torch.equal(next(resumed)["tokens"], whole.x)


@pytest.mark.parametrize(
    ("sizes", "own", "name"),
    [
        ({"cp": 2}, {}, "context_parallel_size"),
        ({"pp": 3}, {}, "pipeline_model_parallel_size"),
        ({}, {"micro_batch_size": 2}, "micro_batch_size"),
        ({}, {"options": {"num_batches": 3}}, "num_batches"),
    ],
)
def test_bridge_is_refused_what_would_leak_documents(
    bridge: ModuleType, corpus: str, sizes: dict[str, int], own: dict[str, Any], name: str
) -> None:
    """Without documents, all of it but an end is right."""
    from megatron.core import num_microbatches_calculator

    num_microbatches_calculator.SIZE = own.get("micro_batch_size", 1)
    arguments = {"target": corpus, "micro_batch_size": 1, "seq_length": T, **own}
    with pytest.raises(InvalidRequest, match=name):
        bridge.FeedProvider(**arguments, documents=True).build_datasets(context(**sizes))
    if name != "num_batches":
        train, *_ = bridge.FeedProvider(**arguments).build_datasets(context(**sizes))
        assert "cu_seqlens_q" not in next(train)


def test_bridge_with_another_micro_batch_size_than_the_training_is_refused(
    bridge: ModuleType, corpus: str
) -> None:
    """It would count more rows than it trains on."""
    provider = bridge.FeedProvider(target=corpus, micro_batch_size=2, seq_length=T)
    with pytest.raises(InvalidRequest, match=r"^micro_batch_size: 2 is not 1, that of config"):
        provider.build_datasets(context())


def test_bridge_with_virtual_stages_is_refused(bridge: ModuleType, corpus: str) -> None:
    """Bridge saves no state of the data then, and a run would begin again at the first row."""
    import megatron.core.parallel_state

    megatron.core.parallel_state.VIRTUAL = 2
    provider = bridge.FeedProvider(target=corpus, micro_batch_size=1, seq_length=T)
    with pytest.raises(InvalidRequest, match="virtual_pipeline"):
        provider.build_datasets(context())
