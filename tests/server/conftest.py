"""What the tests of the server share."""

from __future__ import annotations

import numpy as np
import pytest

from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.storage.bytes import SameContent, Submit, run_inline
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.local.choice import KINDS
from tokenfeed.server.storage.store import TokenStore


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest) -> StorageOptions:
    """Each store that there is for local files, in turn."""
    return StorageOptions(read=request.param)


def look(
    store: TokenStore,
    same_content: SameContent = lambda: True,
    later: Submit = run_inline,
) -> None:
    """Poll every file of a store once, one after the other."""
    for shard in range(len(store.shards)):
        store.files.poll_file(shard, same_content, later)


def look_at_all(dataset: Dataset) -> None:
    """Poll every file of a dataset once, which rereads what has changed."""
    for shard in range(len(dataset.store.shards)):
        dataset.poll_file(shard)


def options(dtype: str | None = None) -> FormatOptions:
    """What a user says who knows the type of the tokens, "<u2", or says nothing."""
    return FormatOptions.parse(None, None if dtype is None else np.dtype(dtype).name, None)
