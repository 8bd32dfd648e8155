"""Targets that do not count: on the host, and behind a narrow copy, as token by token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client.device.transfer import CpuTransfer, DirectTransfer
from tests.support.arrived import Arrived
from tests.support.targets import Mask, Starts, mask_plane, starts_plane, targets
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK
from tokenfeed.wire.row_block import RowBlock


@dataclass
class Rows:
    """Rows of a batch, and what is known of their tokens."""

    tokens: np.ndarray
    masks: list[Mask]
    starts: list[Starts]

    def block(self, kinds: tuple[int, ...]) -> RowBlock:
        planes = {DOCUMENT_STARTS: starts_plane(self.starts), LOSS_MASK: mask_plane(self.masks)}
        return RowBlock(self.tokens, tuple(planes[kind] for kind in kinds))

    def expected(self, kinds: tuple[int, ...]) -> list[list[int]]:
        return [
            targets(
                row,
                mask if LOSS_MASK in kinds else None,
                starts if DOCUMENT_STARTS in kinds else (),
            )
            for row, mask, starts in zip(self.tokens, self.masks, self.starts, strict=True)
        ]


@st.composite
def batches(draw: st.DrawFn) -> Rows:
    """Any rows; some have no mask, as in a mixture."""
    row_count, row_tokens = draw(st.integers(1, 4)), draw(st.integers(2, 40))
    width = draw(st.sampled_from([2, 4]))
    mask = st.lists(st.integers(0, 1), min_size=row_tokens, max_size=row_tokens)
    starts = st.sets(st.integers(1, row_tokens - 1)).map(sorted)
    seed = draw(st.integers(0, 2**32))
    return Rows(
        np.random.default_rng(seed).integers(0, 60_000, (row_count, row_tokens), f"<u{width}"),
        [draw(st.none() | mask) for _ in range(row_count)],
        [draw(starts) for _ in range(row_count)],
    )


def delivered(
    parts: list[RowBlock],
    where: str,
    masks: tuple[int, ...],
    x_dtype: torch.dtype = torch.int64,
    y_dtype: torch.dtype = torch.int64,
) -> tuple[list[list[int]], list[list[int]]]:
    """x and y as a transfer delivers them."""
    shape = (sum(map(len, parts)), parts[0].tokens.shape[1] - 1)
    transfer = {
        "host": lambda: CpuTransfer(shape, x_dtype, masks),
        "device": lambda: DirectTransfer(shape, x_dtype, torch.device("cpu"), masks),
    }[where]()
    out = torch.empty(shape, dtype=x_dtype), torch.empty(shape, dtype=y_dtype)
    assert transfer.next(Arrived(parts), out) is not None
    return out[0].tolist(), out[1].tolist()


KINDS = [(LOSS_MASK,), (DOCUMENT_STARTS,), (DOCUMENT_STARTS, LOSS_MASK)]


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("kinds", KINDS)
@given(rows=batches(), cut=st.integers(0, 4), dtypes=st.tuples(*[st.booleans()] * 2))
def test_targets_that_do_not_count_are_ignored_and_all_others_are_kept(
    where: str, kinds: tuple[int, ...], rows: Rows, cut: int, dtypes: tuple[bool, bool]
) -> None:
    """Rows of any length, in two parts, with several documents in a byte, for int32 and int64."""
    whole = rows.block(kinds)
    parts = [part for part in (whole[:cut], whole[cut:]) if len(part)]
    types = [torch.int64 if is_wide else torch.int32 for is_wide in dtypes]

    x, y = delivered(parts, where, kinds, *types)

    assert x == rows.tokens[:, :-1].tolist()
    assert y == rows.expected(kinds)


@pytest.mark.parametrize("where", ["host", "device"])
@given(rows=batches())
def test_planes_that_are_not_applied_change_no_target(where: str, rows: Rows) -> None:
    """Who asks for borders alone still trains on every token."""
    block = rows.block((DOCUMENT_STARTS, LOSS_MASK))

    assert delivered([block], where, (LOSS_MASK,))[1] == rows.expected((LOSS_MASK,))
    assert delivered([block], where, ())[1] == rows.tokens[:, 1:].tolist()


@pytest.mark.parametrize("where", ["host", "device"])
def test_the_last_target_of_a_row_has_a_bit_of_its_own(where: str) -> None:
    """T + 1 tokens have T + 1 bits: with T = 8 the last one is the first bit of a second byte."""
    tokens = np.arange(10, 19, dtype="<u2")[np.newaxis]
    for last in (0, 1):
        plane = mask_plane([[0] * 8 + [last]])
        assert plane.content.tolist() == [0, last]

        _, y = delivered([RowBlock(tokens, (plane,))], where, (LOSS_MASK,))

        assert y == [[-100] * 7 + [18 if last else -100]]


def test_a_batch_of_two_widths_keeps_the_masks_of_its_rows() -> None:
    """The server that takes over may serve wider tokens, and bits then lie elsewhere."""
    parts = [
        RowBlock(np.array([[50_000, 1, 65_535]], "<u2"), (mask_plane([[1, 0, 1]]),)),
        RowBlock(np.array([[70_000, 2, 199_999]], "<u4"), (mask_plane([[0, 1, 0]]),)),
    ]
    for order in (parts, parts[::-1]):
        found = delivered(order, "device", (LOSS_MASK,))[1]

        assert sorted(found) == [[-100, 65_535], [2, -100]]
