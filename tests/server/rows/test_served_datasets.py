"""A request of some datasets is checked in one order, wherever it came from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tokenfeed.errors import CorpusChanged, InvalidRequest, LimitExceeded, NotFound
from tokenfeed.sampling import orders
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.rows.served_datasets import ServedDatasets
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.stream.position import Position
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Expected, Request


@pytest.fixture
def datasets(write_tokens: WriteTokens) -> Iterator[dict[str, Dataset]]:
    found = {}
    for name in ("web", "code"):
        path: Path = write_tokens(np.arange(1, 500), f"{name}.bin")
        source = DatasetSource(name, (str(path),))
        found[name] = open_dataset(source, FormatOptions(), TokenChecks())
    yield found
    for dataset in found.values():
        dataset.close()


def request(context_length: int = 8, batch_size: int = 4, name: str = "web") -> Request:
    stream = Stream.of_dataset(name, orders.find("sequential-1"), 0, context_length)
    return Request(stream, Position(0, batch_size), num_batches=1)


def test_a_dataset_without_a_name_has_to_be_the_only_one(datasets: dict[str, Dataset]) -> None:
    """Else a trainer would read another one than it means."""
    several = ServedDatasets(datasets)
    alone = ServedDatasets({"web": datasets["web"]})

    assert alone.named("") is alone.named("web") is datasets["web"]
    with pytest.raises(InvalidRequest, match="is missing; this server has several: code"):
        several.named("")
    with pytest.raises(NotFound, match="'math' is not served here, only "):
        several.named("math")
    with pytest.raises(NotFound, match="'code' is not served here, only web"):
        alone.named("code")


def test_a_dataset_that_has_failed_says_so_before_anything_else(
    datasets: dict[str, Dataset],
) -> None:
    """Other errors would be mended, or tried again, for nothing."""
    served = ServedDatasets(datasets, batch_bytes_max=100)
    for wrong, error in ((request(1000), InvalidRequest), (request(8, 9), LimitExceeded)):
        with pytest.raises(error):
            served.check(wrong, Expected())
    datasets["web"].store.files.mark_failed("a test")

    for wrong in (request(1000), request(8, 9), request()):
        with pytest.raises(CorpusChanged):
            served.check(wrong, Expected())
    served.check(request(name="code"), Expected())


def test_a_call_without_rows_holds_no_group(
    datasets: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients end with one, behind their last row: storage would fetch two groups for nobody."""
    files, served, held = datasets["web"].store.files, ServedDatasets(datasets), []
    monkeypatch.setattr(type(files), "holds_groups", True)
    monkeypatch.setattr(type(files), "hold", lambda *_: held.append(_))
    stream = Stream.of_dataset("web", orders.find("blocks-1"), 0, 8)
    for num_batches in (0, 1):
        asked = Request(stream, Position(0, 4), num_batches=num_batches)
        served.reader(asked, [datasets["web"]], datasets["web"].store)
        assert len(held) == num_batches
