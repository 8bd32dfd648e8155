"""The loaders for litgpt, by their form: `make adapters` runs litgpt itself."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from client import InvalidRequest
from tests.client.adapters.conftest import Adapter, T
from tests.conftest import WriteTokens
from tests.support.offline import offline_rows

B, WINDOWS = 2, 21


@pytest.fixture
def module(adapter: Adapter) -> ModuleType:
    stand_ins = {"litgpt/__init__.py": "", "litgpt/data.py": "class DataModule:\n    pass\n"}
    return adapter("litgpt", stand_ins)


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(WINDOWS * T + 1))


def data_of(module: ModuleType, path: Path, **given: Any) -> Any:
    target = f"file:web={path},val={path}"
    data = module.FeedData(target, validation="val", dataset="web", seed=5, **given)
    data.connect(tokenizer=None, batch_size=B, max_seq_length=T)
    return data


def test_a_loader_has_whole_rows_a_state_and_a_length_that_stays(
    module: ModuleType, path: Path
) -> None:
    """litgpt takes its targets from the rows, and makes a schedule of the length after a resume."""
    rows = offline_rows([path], "shuffled-1", 5, T, range(6 * B)).reshape(6, B, T + 1)
    loader = data_of(module, path, num_batches=6).train_dataloader()
    found = [batch.tolist() for batch in islice(loader, 4)]
    resumed = data_of(module, path, num_batches=6).train_dataloader()
    resumed.load_state_dict(loader.state_dict())

    assert len(loader) == len(resumed) == 6
    assert found + [batch.tolist() for batch in resumed] == rows.tolist()


def test_each_validation_has_the_whole_batches_from_the_first_on(
    module: ModuleType, path: Path
) -> None:
    """In the order of the corpus, so that losses can be compared."""
    count = WINDOWS // B
    rows = offline_rows([path], "sequential-1", 0, T, range(count * B)).reshape(count, B, T + 1)
    loader = data_of(module, path).val_dataloader()

    assert len(loader) == count
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == rows.tolist()


def test_what_litgpt_would_train_on_silently_is_refused(module: ModuleType, corpus: str) -> None:
    """It has no mask of targets; and without a length of rows there are none."""
    data = module.FeedData(corpus, validation="", options={"mask_borders": True})
    with pytest.raises(InvalidRequest, match=r"^max_seq_length: is missing"):
        data.connect(batch_size=B)
    data.connect(batch_size=B, max_seq_length=T)
    with pytest.raises(InvalidRequest, match=r"^y: is -100 at some targets, and litgpt trains"):
        next(iter(data.train_dataloader()))
