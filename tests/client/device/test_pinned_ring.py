"""The ring between host and device, on a device that does its work as late as it likes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client.device.pinned_ring import SLOTS, PinnedRing
from client.device.widening import NARROW
from tests.client.device.simulated_device import Device
from tokenfeed.wire.row_block import RowBlock

B, T = 3, 5
BATCHES = 3 * SLOTS


def rows_of(batch: int, width: int) -> np.ndarray:
    """Different tokens for each batch, of all sizes that the width holds."""
    numbers = np.random.default_rng(batch)
    return numbers.integers(0, 1 << 8 * width, (B, T + 1), dtype=f"<u{width}")


def pass_through(device: Device, width: int, choices: random.Random) -> list[bool]:
    """Send batches through a ring while the device works now and then; which came out right?"""
    ring = PinnedRing(device, (B, T + 1), NARROW[width])
    batches = []
    staged = 0
    while len(batches) < BATCHES:
        for _ in range(choices.randrange(4)):
            device.step(choices.randrange(2))
        if staged < BATCHES and ring.staged_count < SLOTS and choices.random() < 0.6:
            rows = rows_of(staged, width)
            ring.stage([RowBlock(rows[:1]), RowBlock(rows[1:])])
            staged += 1
        elif ring.staged_count:
            x, y = (torch.full((B, T), -3, dtype=torch.int64) for _ in range(2))
            ring.take(x, y)
            batches.append((x, y))
    device.finish()
    return [
        np.array_equal(x.numpy(), rows_of(index, width)[:, :-1])
        and np.array_equal(y.numpy(), rows_of(index, width)[:, 1:])
        for index, (x, y) in enumerate(batches)
    ]


@pytest.mark.parametrize("width", [2, 4])
@given(seed=st.integers(0, 2**32))
def test_every_batch_comes_out_as_it_went_in_however_late_the_device_is(
    width: int, seed: int
) -> None:
    """The copy engine reads pinned memory long after `next` has returned."""
    assert all(pass_through(Device(), width, random.Random(seed)))


def test_a_device_that_does_not_wait_spoils_batches() -> None:
    """Or the test above could not fail: the ring stands on its waits."""
    runs = [pass_through(Device(waits=False), 2, random.Random(seed)) for seed in range(50)]

    assert not all(all(run) for run in runs)


def test_the_host_waits_only_when_it_is_a_whole_ring_ahead() -> None:
    """Else a trainer that enqueues its steps ahead would be held back by its data."""
    device = Device()
    ring = PinnedRing(device, (B, T + 1), torch.int16)

    for batch in range(SLOTS):
        ring.stage([RowBlock(rows_of(batch, 2))])
        ring.take(*(torch.empty((B, T), dtype=torch.int64) for _ in range(2)))

    assert not ring._free[0].copied.passed, "the device has not done a thing so far"
    ring.stage([RowBlock(rows_of(SLOTS, 2))])
    assert ring._staged[0].pinned.numpy().view(np.uint16).tolist() == rows_of(SLOTS, 2).tolist()


@pytest.mark.parametrize("widths", [(2, 4), (4, 2)])
@given(seed=st.integers(0, 2**32))
def test_a_ring_takes_tokens_of_another_width(widths: tuple[int, int], seed: int) -> None:
    """The replica that takes over may serve uint32 where the first served uint16: the width is no
    part of what a stream is.
    """
    device, choices = Device(), random.Random(seed)
    ring = PinnedRing(device, (B, T + 1), NARROW[widths[0]])
    outcomes = []
    for batch in range(BATCHES):
        first, second = rows_of(batch, widths[0]), rows_of(batch, widths[1])
        parts = [[first], [first[:1], second[1:]], [second]][batch * 3 // BATCHES]
        ring.stage([RowBlock(part) for part in parts])
        for _ in range(choices.randrange(4)):
            device.step(choices.randrange(2))
        x, y = (torch.full((B, T), -3, dtype=torch.int64) for _ in range(2))
        ring.take(x, y)
        outcomes.append((x, y, np.concatenate(parts).astype(np.int64)))
    device.finish()

    for x, y, rows in outcomes:
        assert x.tolist() == rows[:, :-1].tolist()
        assert y.tolist() == rows[:, 1:].tolist()
