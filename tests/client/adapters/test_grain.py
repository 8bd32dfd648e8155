"""The form of grain's elements, without grain."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.client.adapters.conftest import Adapter, T
from tokenfeed import NumpyBatches

FILES = {
    "grain/python.py": """
class IterDataset:
    def __init__(self):
        pass

class DatasetIterator:
    def __init__(self):
        pass

    def __iter__(self):
        return self

    def close(self):
        pass
"""
}


@pytest.fixture
def module(adapter: Adapter) -> ModuleType:
    return adapter("grain", FILES)


@pytest.mark.parametrize("order", ["shuffled", "packed", "padded"])
def test_an_element_has_the_arrays_of_maxtext(module: ModuleType, corpus: str, order: str) -> None:
    """A segment of 0 is padding, and a target of segment 0 is not learned."""
    element = next(iter(module.FeedDataset(corpus, 2, T, order=order)))
    whole = next(NumpyBatches(corpus, 2, T, order=order).batches())
    counts = whole.y != -100
    expected: dict[str, Any] = {
        "inputs": whole.x,
        "targets": np.where(counts, whole.y, 0),
        "inputs_position": whole.positions,
        "inputs_segmentation": whole.segment_ids,
        "targets_segmentation": whole.segment_ids * counts,
    }
    assert element.keys() == expected.keys()
    for name, value in expected.items():
        assert element[name].dtype == np.int32
        assert np.array_equal(element[name], value), name


def test_a_row_is_one_segment_where_documents_are_not_known(
    module: ModuleType, tmp_path: Path
) -> None:
    """A segment of 0 would switch attention and loss off."""
    path = tmp_path / "windows.bin"
    path.write_bytes(bytes(200))
    element = next(iter(module.FeedDataset(f"file:{path}", 2, T)))
    assert (element["inputs_segmentation"] == 1).all()
    assert (element["targets_segmentation"] == 1).all()
    assert np.array_equal(element["inputs_position"], np.tile(np.arange(T), (2, 1)))


def test_the_state_is_json_and_resumes_also_behind_the_end(module: ModuleType, corpus: str) -> None:
    """An iterator that has ended begins again where a state says."""
    iterator = iter(module.FeedDataset(corpus, 1, T, num_batches=2))
    next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    second = next(iterator)
    assert next(iterator, None) is None
    iterator.set_state(state)
    assert np.array_equal(next(iterator)["inputs"], second["inputs"])
    iterator.close()
    assert iterator.feed.closed
