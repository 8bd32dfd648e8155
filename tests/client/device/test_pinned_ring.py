"""The ring between host and device, on a device that does its work as late as it likes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.client.device.simulated_device import FAULTY, Device, FaultyDevice
from tests.support.targets import Count, counts_plane, mask_plane, starts_plane, targets
from tokenfeed.client.device.pinned_ring import SLOTS, PinnedRing
from tokenfeed.client.device.widening import NARROW, join_into
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK, TOKEN_COUNTS
from tokenfeed.wire.row_block import RowBlock

B, T = 3, 5
BATCHES = 3 * SLOTS


def rows_of(batch: int, width: int) -> np.ndarray:
    """Different tokens for each batch, of all sizes that the width holds."""
    numbers = np.random.default_rng(batch)
    return numbers.integers(0, 1 << 8 * width, (B, T + 1), dtype=f"<u{width}")


MASKS = (DOCUMENT_STARTS, LOSS_MASK)
PIECES = (TOKEN_COUNTS,)
ALL = (DOCUMENT_STARTS, LOSS_MASK, TOKEN_COUNTS)


def block_of(batch: int, width: int) -> RowBlock:
    """The rows of a batch, of which the first is a window without a mask, and different planes for
    each batch.
    """
    masks, starts, counts = planes_of(batch)
    planes = starts_plane(starts), mask_plane(masks), counts_plane(counts)
    return RowBlock(rows_of(batch, width), planes)


def planes_of(batch: int) -> tuple[list[list[int] | None], list[list[int]], list[Count]]:
    numbers = np.random.default_rng(batch + BATCHES)
    masks = [None, *numbers.integers(0, 2, (B - 1, T + 1)).tolist()]
    starts = [[batch % T + 1], [], [1 + row for row in range(batch % T)]]
    return masks, starts, [None, 2 + batch % T, T + 1 - batch % 2]


def targets_of(rows: list[list[int]], batch: int, kinds: tuple[int, ...]) -> list[list[int]]:
    """The targets of rows with the planes of a batch."""
    found = []
    for row, mask, starts, count in zip(rows, *planes_of(batch), strict=True):
        count = count if TOKEN_COUNTS in kinds else None
        borders = DOCUMENT_STARTS in kinds or count is not None
        mask = mask if LOSS_MASK in kinds else None
        found.append(targets(row, mask, starts if borders else (), count))
    return found


def pass_through(
    device: Device, width: int, choices: random.Random, kinds: tuple[int, ...] = ()
) -> list[bool]:
    """Send batches through a ring while the device works now and then; which came out right?

    kinds: those of planes that mask targets.
    """
    ring = PinnedRing(device, (B, T + 1), NARROW[width], kinds)
    batches = []
    staged = 0
    while len(batches) < BATCHES:
        for _ in range(choices.randrange(4)):
            device.step(choices.randrange(2))
        if staged < BATCHES and ring.staged_count < SLOTS and choices.random() < 0.6:
            block = block_of(staged, width) if kinds else RowBlock(rows_of(staged, width))
            ring.stage([block[:1], block[1:]])
            staged += 1
        elif ring.staged_count:
            x, y = (torch.full((B, T), -3, dtype=torch.int64) for _ in range(2))
            ring.take(x, y)
            batches.append((x, y))
    device.finish()
    return [
        np.array_equal(x.numpy(), rows_of(index, width)[:, :-1])
        and y.tolist() == targets_of(rows_of(index, width).tolist(), index, kinds)
        for index, (x, y) in enumerate(batches)
    ]


@pytest.mark.parametrize("kinds", [(), MASKS, PIECES, ALL], ids=str)
@pytest.mark.parametrize("width", [2, 4])
@given(seed=st.integers(0, 2**32))
def test_every_batch_comes_out_as_it_went_in_however_late_the_device_is(
    width: int, kinds: tuple[int, ...], seed: int
) -> None:
    """The copy engine reads pinned memory long after `next` has returned."""
    assert all(pass_through(Device(), width, random.Random(seed), kinds))


@pytest.mark.parametrize("kinds", [(), MASKS, PIECES, ALL], ids=str)
def test_a_device_that_does_not_wait_spoils_batches(kinds: tuple[int, ...]) -> None:
    """Or the test above could not fail: the ring stands on its waits."""
    runs = [pass_through(Device(waits=False), 2, random.Random(seed), kinds) for seed in range(50)]

    assert not all(all(run) for run in runs)


@pytest.mark.parametrize("faulty", FAULTY)
@pytest.mark.parametrize("width", [2, 4])
def test_a_mask_that_is_not_in_the_copy_of_its_tokens_is_found(
    faulty: type[FaultyDevice], width: int
) -> None:
    """Each of these devices treats batches without a mask right."""
    runs = {
        kinds: [
            pass_through(faulty(T + 1), width, random.Random(seed), kinds) for seed in range(50)
        ]
        for kinds in ((), MASKS, PIECES)
    }

    assert all(all(run) for run in runs[()])
    assert not all(all(run) for run in runs[MASKS])
    assert not all(all(run) for run in runs[PIECES])


class ReusesMasks(PinnedRing):
    """Writes the bits of the next batch into a slot that the device may still have to copy."""

    def stage(self, parts: list[RowBlock]) -> None:
        pinned = self._free[0].pinned
        before = pinned.clone()
        join_into(parts, pinned, MASKS)
        pinned[:, : T + 1] = before[:, : T + 1]
        super().stage(parts)


def test_bits_that_are_written_before_their_slot_was_copied_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tokens of a slot wait for its last copy, and so have its bits to."""
    monkeypatch.setitem(globals(), "PinnedRing", ReusesMasks)
    runs = [pass_through(Device(), 2, random.Random(seed), MASKS) for seed in range(50)]

    assert not all(all(run) for run in runs)


def test_a_batch_with_masks_takes_one_copy() -> None:
    """A second one would cost as much as the copy of the tokens of a small batch."""
    device = Device()
    ring = PinnedRing(device, (B, T + 1), torch.int16, MASKS)
    ring.stage([block_of(0, 2)])

    assert device.step(0)
    assert not device.step(0)


def test_slots_without_masks_hold_tokens_alone() -> None:
    """What most streams transfer does not grow."""
    ring = PinnedRing(Device(), (B, T + 1), torch.int16)

    assert ring._free[0].pinned.shape == ring._free[0].buffer.shape == (B, T + 1)


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


@pytest.mark.parametrize("kinds", [(), MASKS, ALL], ids=str)
@pytest.mark.parametrize("widths", [(2, 4), (4, 2)])
@given(seed=st.integers(0, 2**32))
def test_a_ring_takes_tokens_of_another_width(
    widths: tuple[int, int], kinds: tuple[int, ...], seed: int
) -> None:
    """The replica that takes over may serve uint32 where the first served uint16: the width is no
    part of what a stream is.
    """
    device, choices = Device(), random.Random(seed)
    ring = PinnedRing(device, (B, T + 1), NARROW[widths[0]], kinds)
    outcomes = []
    for batch in range(BATCHES):
        first, second = block_of(batch, widths[0]), block_of(batch, widths[1])
        if not kinds:
            first, second = RowBlock(first.tokens), RowBlock(second.tokens)
        parts = [[first], [first[:1], second[1:]], [second]][batch * 3 // BATCHES]
        ring.stage(parts)
        for _ in range(choices.randrange(4)):
            device.step(choices.randrange(2))
        x, y = (torch.full((B, T), -3, dtype=torch.int64) for _ in range(2))
        ring.take(x, y)
        rows = np.concatenate([part.tokens for part in parts]).tolist()
        outcomes.append((x, y, rows, targets_of(rows, batch, kinds)))
    device.finish()

    for x, y, rows, expected in outcomes:
        assert x.tolist() == [row[:-1] for row in rows]
        assert y.tolist() == expected
