"""The batches that each contract of torchtitan takes, without torchtitan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.client.adapters.conftest import Adapter, T
from tokenfeed import RemoteBatches
from tokenfeed.client.device.documents import BatchDocuments
from tokenfeed.errors import InvalidRequest

BASE = """
from dataclasses import dataclass

class BaseDataLoader:
    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    def close(self):
        pass
"""
TYPES = """
from dataclasses import dataclass, field
from typing import Any

@dataclass(kw_only=True, slots=True)
class TokenizedTrainingMicrobatch:
    input: Any
    labels: Any
    positions: Any
    padding_mask: Any
    num_valid_tokens: int
    model_kwargs: dict = field(default_factory=dict)
"""
TYRO = {"tyro/__init__.py": "from . import conf", "tyro/conf.py": "Suppress = object()"}
DATA = "torchtitan/components/data"
NEWER = {
    **TYRO,
    f"{DATA}/loader.py": BASE,
    f"{DATA}/collators.py": "KEY = 'input'",
    f"{DATA}/types.py": "",
}
FORMS = {
    "rows": {**TYRO, "torchtitan/components/dataloader.py": BASE},
    "flat": NEWER,
    "counted": {**NEWER, f"{DATA}/collators.py": "KEY = 'num_valid_tokens'"},
    "dataclass": {**NEWER, f"{DATA}/types.py": TYPES},
}
"""What the contracts differ in: of 0.3.0, and of three states of the main branch, 2026."""
SIZES = {
    "rows": {"seq_len": T, "local_batch_size": 2, "snapshot_every_n_steps": None},
    "flat": {"max_context_length": T, "num_tokens_per_batch": 2 * T},
    "counted": {"max_context_length": T, "num_tokens_per_batch": 2 * T},
    "dataclass": {"max_context_length": T, "num_tokens_per_microbatch": 2 * T},
}
RANKS = {"dp_world_size": 2, "dp_rank": 1, "tokenizer": None}


def loader_of(module: ModuleType, form: str, target: str, **config: Any) -> Any:
    own = module.FeedDataLoader.Config(target=target, **config)
    return module.FeedDataLoader(own, **RANKS, **SIZES[form])


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def module(adapter: Adapter, form: str) -> ModuleType:
    return adapter("torchtitan", FORMS[form])


def expected(target: str, **options: Any) -> Iterator[Any]:
    return RemoteBatches(target, 2, T, rank=1, world_size=2, **options).batches()


def fields_of(form: str, item: Any) -> dict[str, Any]:
    if form == "dataclass":
        return {name: getattr(item, name) for name in item.__slots__}
    arrays, labels = item
    return {**arrays, "labels": labels}


@pytest.mark.parametrize("order", ["shuffled", "packed", "padded"])
def test_a_batch_has_the_fields_of_the_contract(
    module: ModuleType, form: str, corpus: str, order: str
) -> None:
    """A key too many reaches the forward of the model, and one too few is an error in the loop."""
    own = {"rows": set(), "flat": set(), "counted": {"num_valid_tokens"}}
    names = {"input", "labels", "positions"} | own.get(
        form, {"padding_mask", "num_valid_tokens", "model_kwargs"}
    )
    loader = loader_of(module, form, corpus, options={"order": order})
    for item, batch in zip(range(3), expected(corpus, order=order), strict=False):
        found = fields_of(form, next(iter(loader)))
        assert found.keys() == names, item
        shape = (2, T) if form == "rows" else (2 * T,)
        arrays = {"input": batch.x, "labels": batch.y, "positions": batch.positions}
        for name, value in arrays.items():
            assert found[name].dtype == torch.int64
            assert torch.equal(found[name], value.reshape(shape))
        if "num_valid_tokens" in names:
            assert found["num_valid_tokens"] == (batch.y != -100).sum()
        if form == "dataclass":
            assert torch.equal(found["padding_mask"], batch.padding_mask.flatten())


def test_rows_restart_positions_where_documents_are_not_known(
    module: ModuleType, form: str, tmp_path: Path
) -> None:
    """In a flat batch, attention finds the rows by their positions alone."""
    path = tmp_path / "windows.bin"
    path.write_bytes(bytes(200))
    loader = loader_of(module, form, f"file:{path}")
    positions = fields_of(form, next(iter(loader)))["positions"]
    assert torch.equal(positions.reshape(2, T), torch.arange(T).expand(2, T))


def test_the_state_resumes_at_another_number_of_ranks(
    module: ModuleType, form: str, corpus: str
) -> None:
    """torchtitan's own loaders refuse that."""
    loader = loader_of(module, form, corpus, options={"order": "packed"})
    rows = iter(loader)
    next(rows)
    resumed = module.FeedDataLoader(
        module.FeedDataLoader.Config(target=corpus, options={"order": "packed"}),
        **{**RANKS, "dp_world_size": 1, "dp_rank": 0},
        **SIZES[form],
    )
    resumed.load_state_dict({})
    resumed.load_state_dict(loader.state_dict())
    assert resumed.feed.position.samples == loader.feed.position.samples == 4
    loader.close()
    assert loader.feed.closed


def test_tokens_that_are_no_whole_rows_are_refused(adapter: Adapter, corpus: str) -> None:
    """Rows would be cut at another place than the feed's identity says."""
    module = adapter("torchtitan", FORMS["flat"])
    config = module.FeedDataLoader.Config(target=corpus)
    with pytest.raises(InvalidRequest, match=f"num_tokens_per_batch: 20 is not a multiple .* {T}"):
        module.FeedDataLoader(config, **RANKS, max_context_length=T, num_tokens_per_batch=20)


def test_positions_of_a_batch_restart_at_documents(corpus: str) -> None:
    """Otherwise the comparisons above would compare nothing."""
    batch = next(expected(corpus, order="packed"))
    assert isinstance(batch.documents, BatchDocuments)
    assert (batch.positions[:, 1:] == 0).any()
