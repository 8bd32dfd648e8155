"""What the host notes of a batch on its way: the same in every transfer, if it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from client import InvalidRequest
from tests.client.device.simulated_device import Device
from tests.support.rows_with_documents import rows_with_documents
from tokenfeed.client.device.host_transfer import HostTransfer
from tokenfeed.client.device.numpy_batch import HostPart, Note
from tokenfeed.client.device.row_source import RowSource
from tokenfeed.client.device.transfer import CpuTransfer, DirectTransfer, PinnedTransfer
from tokenfeed.stream.planes import TOKEN_COUNTS
from tokenfeed.wire.row_block import RowBlock

B, T, BATCHES = 2, 6, 5
MASKS = (TOKEN_COUNTS,)
Make = Callable[[Note | None], Any]


def parts_of(batch: int) -> list[RowBlock]:
    """The rows of a batch: one of a window, and one of two pieces that has padding."""
    tokens = np.full((B, T + 1), batch)
    return rows_with_documents(tokens, [[], [1 + batch]], split=1, counts=[None, 2 + batch])


class Batches(RowSource):
    """A stream of which all batches have arrived."""

    def __init__(self) -> None:
        self._batches = [parts_of(batch) for batch in range(BATCHES)]

    def ready(self, row_count: int) -> bool:
        return bool(self._batches)

    def peek(self, row_count: int) -> list[RowBlock] | None:
        return self._batches[0] if self._batches else None

    def consume(self, row_count: int) -> None:
        del self._batches[0]


TRANSFERS: dict[str, Make] = {
    "numpy": lambda note: HostTransfer((B, T), np.dtype("i8"), np.dtype("i8"), MASKS, note=note),
    "host": lambda note: CpuTransfer((B, T), torch.int64, MASKS, note=note),
    "device": lambda note: DirectTransfer(
        (B, T), torch.int64, torch.device("cpu"), MASKS, note=note
    ),
    "ring": lambda note: PinnedTransfer(
        (B, T), torch.int64, torch.device("cpu"), Device(), MASKS, note=note
    ),
}
transfers = pytest.mark.parametrize("make", TRANSFERS.values(), ids=TRANSFERS)


@transfers
def test_what_is_noted_is_of_the_batch_that_was_returned_last(make: Make) -> None:
    """A ring sends the next batch on its way before the one that it returns is read."""
    rows, transfer = Batches(), make(partial(HostPart.of, row_documents_max=3))

    for batch in range(BATCHES):
        assert transfer.next(rows, None) is not None
        noted = transfer.noted
        assert noted is not None
        assert noted.last_tokens.tolist() == [batch] * B
        assert noted.documents.starts.tolist() == [1 + batch]
        assert noted.documents.token_counts.tolist() == [T + 1, 2 + batch]
        assert noted.documents.row_documents_max == 3
    assert transfer.next(rows, None) is None


@transfers
def test_the_documents_of_a_stream_that_does_not_know_all_of_them_are_not_noted(make: Make) -> None:
    """Starts that some rows have say nothing about the others."""
    transfer = make(partial(HostPart.of, knows_documents=False))

    assert transfer.next(Batches(), None) is not None
    assert transfer.noted.documents is None
    assert transfer.noted.last_tokens.tolist() == [0] * B


@transfers
def test_nothing_is_noted_unless_it_is_asked_for(make: Make) -> None:
    """Who takes pairs pays for pairs."""
    transfer = make(None)

    assert transfer.next(Batches(), None) is not None
    assert transfer.noted is None


def test_a_device_without_a_ring_has_the_batch_on_it() -> None:
    """MPS and others: a trainer on it would train with tensors of the CPU. meta needs no device."""
    meta = torch.device("meta")
    rows, transfer = Batches(), DirectTransfer((B, T), torch.int32, meta, MASKS)

    batch = transfer.next(rows, None)

    assert batch is not None
    assert [(each.device, each.shape) for each in batch] == [(meta, (B, T))] * 2
    assert [each.dtype for each in batch] == [torch.int32, torch.int64]


@pytest.mark.parametrize("make", ["host", "ring"])
def test_a_token_that_does_not_fit_is_an_error_of_its_own_batch(make: str) -> None:
    """A ring sends the next batch on its way before it returns one, which must not be lost."""
    tokens = np.zeros((B, T + 1), "<u4")
    rows, cpu = Batches(), torch.device("cpu")
    rows._batches = [[RowBlock(each)] for each in (tokens, tokens + np.uint32(1 << 31))]
    transfer: CpuTransfer | PinnedTransfer = {
        "host": lambda: CpuTransfer((B, T), torch.int32, ()),
        "ring": lambda: PinnedTransfer((B, T), torch.int32, cpu, Device(), ()),
    }[make]()

    assert transfer.next(rows, None) is not None
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="x_dtype"):
            transfer.next(rows, None)
