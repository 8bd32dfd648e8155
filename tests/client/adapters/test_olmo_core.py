"""The form of OLMo-core's batches, and what is refused, without OLMo-core."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.client.adapters.conftest import Adapter, T
from tokenfeed import RemoteBatches
from tokenfeed.errors import InvalidRequest

BASE = """
class DataLoaderBase:
    def __init__(self, *, work_dir, global_batch_size, dp_world_size, dp_rank):
        self._global_batch_size = global_batch_size
        self.dp_world_size, self.dp_rank = dp_world_size, dp_rank
        self.batches_processed, self._epoch = 0, None

    @property
    def global_batch_size(self):
        return self._global_batch_size

    @global_batch_size.setter
    def global_batch_size(self, tokens):
        self.batches_processed = self.batches_processed * self._global_batch_size // tokens
        self._global_batch_size = tokens

    @property
    def epoch(self):
        return self._epoch

    def __iter__(self):
        for batch in self._iter_batches():
            self.batches_processed += 1
            yield batch

    def reset(self):
        self.batches_processed = 0
"""
FILES = {
    "olmo_core/data.py": BASE,
    "olmo_core/distributed/utils.py": """
def get_rank(group):
    return 0

def get_world_size(group):
    return 1
""",
}


@pytest.fixture
def module(adapter: Adapter) -> ModuleType:
    return adapter("olmo_core", FILES)


def loader_of(module: ModuleType, target: str, rows: int = 2, **options: Any) -> Any:
    train_module = SimpleNamespace(
        dp_process_group=None, label_ignore_index=options.pop("label_ignore_index", -100)
    )
    return module.FeedDataLoader(
        train_module, target, T, global_batch_size=rows * T, work_dir="/tmp", **options
    )


def test_a_batch_has_the_lengths_of_its_documents(module: ModuleType, corpus: str) -> None:
    """Flash attention takes their sums as bounds over all rows, padding of the list left out."""
    loader = loader_of(module, corpus, order="packed")
    loader.reshuffle(1)
    batch = next(iter(loader))
    whole = next(RemoteBatches(corpus, 2, T, order="packed").batches())
    assert batch.keys() == {"input_ids", "labels", "doc_lens", "max_doc_lens"}
    assert torch.equal(batch["input_ids"], whole.x)
    assert torch.equal(batch["labels"], whole.y)
    lengths = batch["doc_lens"]
    assert lengths.dtype == torch.int32
    bounds = torch.cumsum(lengths[lengths != 0], 0)
    assert bounds.tolist() == whole.cu_seqlens[1:].tolist()
    assert batch["max_doc_lens"] == lengths.max(1).values.tolist()
    plain = loader_of(module, corpus, order="packed", doc_lens=False)
    plain.reshuffle(1)
    assert next(iter(plain)).keys() == {"input_ids", "labels"}


def test_a_dry_run_reads_nothing(module: ModuleType, corpus: str) -> None:
    """Its batch would be lost."""
    loader = loader_of(module, corpus)
    mock = loader.get_mock_batch()
    assert {name: value.shape for name, value in mock.items()} == {
        "input_ids": (2, T),
        "labels": (2, T),
    }
    assert loader.feed.position.samples == 0
    assert loader.global_num_tokens_in_batch({}) == 2 * T


def test_a_state_at_another_batch_size_goes_on_in_its_epoch(
    module: ModuleType, corpus: str
) -> None:
    """A count that is rounded to 0 would begin the epoch again."""
    loader = loader_of(module, corpus, rows=1, seed=1)
    loader.reshuffle(1)
    next(iter(loader))
    resumed = loader_of(module, corpus, rows=2, seed=1)
    resumed.load_state_dict(loader.state_dict())
    resumed.reshuffle(1)
    expected = RemoteBatches(corpus, 2, T, seed=1, start_sample=1)
    assert torch.equal(next(iter(resumed))["input_ids"], next(expected)[0])


@pytest.mark.parametrize(("rows", "tokens"), [(2, 2 * T + 1), (2, 0)])
def test_a_batch_of_no_whole_rows_is_refused(
    module: ModuleType, corpus: str, rows: int, tokens: int
) -> None:
    """Also when a callback asks for it; the batches stay as they were then."""
    loader = loader_of(module, corpus, rows)
    with pytest.raises(InvalidRequest, match="is not a multiple"):
        loader.global_batch_size = tokens
    assert loader.global_batch_size == rows * T


def test_a_context_length_that_changes_is_refused(module: ModuleType, corpus: str) -> None:
    """OLMo-core has one in the whole run."""
    train_module = SimpleNamespace(dp_process_group=None)
    with pytest.raises(InvalidRequest, match=r"^context_length: has to be one number"):
        module.FeedDataLoader(
            train_module, corpus, {0: T, 100: 2 * T}, global_batch_size=2 * T, work_dir="/tmp"
        )


def test_an_epoch_without_a_batch_is_refused(module: ModuleType, corpus: str) -> None:
    """The trainer would begin one after another, for ever."""
    with pytest.raises(InvalidRequest, match="more than an epoch has"):
        loader_of(module, corpus, rows=1000).total_batches  # noqa: B018


def test_a_closed_feed_is_an_error_and_no_end(module: ModuleType, corpus: str) -> None:
    """An epoch that just stops would be followed by another one."""
    loader = loader_of(module, corpus)
    loader.reshuffle(1)
    batches = iter(loader)
    next(batches)
    loader.feed.close()
    with pytest.raises(InvalidRequest, match="closed"):
        list(batches)


def test_another_ignored_label_is_refused(module: ModuleType, corpus: str) -> None:
    """Masked targets would be learned."""
    with pytest.raises(InvalidRequest, match="label_ignore_index"):
        loader_of(module, corpus, label_ignore_index=-1)
