"""Fixtures of the tests of redacted and erased tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.redactions import list_file
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions

Open = Callable[..., Dataset]


@pytest.fixture
def open_(storage: StorageOptions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open datasets that are closed after the test, and look at their lists with each use."""
    monkeypatch.setattr(list_file, "_LOOK_SECONDS", 0.0)
    opened: list[Dataset] = []

    def start(
        *paths: Path, dtype: str | None = None, checks: TokenChecks | None = None, **planes: object
    ) -> Dataset:
        source = DatasetSource("train", tuple(map(str, paths)))
        options = FormatOptions.parse(None, dtype, None)
        where = PlaneOptions(**planes)  # type: ignore[arg-type]
        opened.append(open_dataset(source, options, checks or TokenChecks(), storage, planes=where))
        return opened[-1]

    yield start
    for dataset in opened:
        dataset.close()
