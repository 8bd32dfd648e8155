"""Targets that do not count: on the host, and behind a narrow copy, as token by token."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.device.simulated_device import Device
from tests.support.arrived import Arrived
from tests.support.targets import (
    Count,
    Mask,
    Starts,
    counts_plane,
    mask_plane,
    redacted_plane,
    starts_plane,
    targets,
)
from tokenfeed.client.device.host_transfer import HostTransfer
from tokenfeed.client.device.target_mask import target_counts
from tokenfeed.client.device.transfer import CpuTransfer, DirectTransfer, PinnedTransfer
from tokenfeed.client.device.widening import WIDE_NUMPY
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK, REDACTED, TOKEN_COUNTS
from tokenfeed.wire.row_block import Plane, RowBlock


@dataclass
class Rows:
    """Rows of a batch, and what is known of their tokens.  counts: None for rows of windows."""

    tokens: np.ndarray
    masks: list[Mask]
    starts: list[Starts]
    counts: list[Count]
    redacted: list[set[int]]

    def block(self, kinds: tuple[int, ...]) -> RowBlock:
        planes = {
            DOCUMENT_STARTS: starts_plane(self.starts),
            LOSS_MASK: mask_plane(self.masks),
            TOKEN_COUNTS: counts_plane(self.counts),
            REDACTED: redacted_plane(self.redacted),
        }
        return RowBlock(self.tokens, tuple(planes[kind] for kind in kinds))

    def expected(self, kinds: tuple[int, ...], masks: tuple[int, ...]) -> list[list[int]]:
        """The targets, row by row.  kinds: planes of the rows.  masks: those that are applied."""
        rows = []
        for row, mask, starts, count, gone in zip(
            self.tokens, self.masks, self.starts, self.counts, self.redacted, strict=True
        ):
            own = count if {TOKEN_COUNTS} <= {*kinds} & {*masks} else None
            borders = DOCUMENT_STARTS in kinds and (DOCUMENT_STARTS in masks or own is not None)
            masked = LOSS_MASK in kinds and LOSS_MASK in masks
            left_out = gone if {REDACTED} <= {*kinds} & {*masks} else ()
            mask = mask if masked else None
            rows.append(targets(row, mask, starts if borders else (), own, left_out))
        return rows


@st.composite
def batches(draw: st.DrawFn) -> Rows:
    """Any rows, of pieces and of windows; some have no mask, as in a mixture. Most rows of pieces
    end at the last bit of a byte, or one before or behind it.
    """
    row_count = draw(st.integers(1, 4))
    row_tokens = draw(st.integers(2, 40) | st.sampled_from([8, 9, 16, 17, 32, 33]))
    width = draw(st.sampled_from([2, 4]))
    mask = st.lists(st.integers(0, 1), min_size=row_tokens, max_size=row_tokens)
    edges = {2, row_tokens - 1, row_tokens, 7, 8, 9, 15, 16, 17}
    usable = sorted(count for count in edges if 2 <= count <= row_tokens)
    count = st.none() | st.sampled_from(usable) | st.integers(2, row_tokens)
    counts = draw(st.lists(count, min_size=row_count, max_size=row_count))
    seed = draw(st.integers(0, 2**32))
    tokens = np.random.default_rng(seed).integers(0, 60_000, (row_count, row_tokens), f"<u{width}")
    starts = []
    for row, end in zip(tokens, counts, strict=True):
        row[end:] = 0 if end is not None else row[end:]
        starts.append(draw(st.sets(st.integers(1, (end or row_tokens) - 1)).map(sorted)))
    masks = [draw(st.none() | mask) for _ in range(row_count)]
    gone = st.sets(st.integers(0, row_tokens - 1)) | st.just(set())
    return Rows(tokens, masks, starts, counts, [draw(gone) for _ in range(row_count)])


def delivered(
    parts: list[RowBlock],
    where: str,
    masks: tuple[int, ...],
    x_dtype: torch.dtype = torch.int64,
    y_dtype: torch.dtype = torch.int64,
) -> tuple[list[list[int]], list[list[int]]]:
    """x and y as a transfer delivers them."""
    shape = (sum(map(len, parts)), parts[0].tokens.shape[1] - 1)
    if where == "numpy":
        transfer = HostTransfer(shape, WIDE_NUMPY[x_dtype], WIDE_NUMPY[y_dtype], masks)
        pair = transfer.next(Arrived(parts), None)
        assert pair is not None
        assert [array.dtype for array in pair] == [WIDE_NUMPY[x_dtype], WIDE_NUMPY[y_dtype]]
        return pair[0].tolist(), pair[1].tolist()
    device, cpu = Device(), torch.device("cpu")
    transfer = {
        "host": lambda: CpuTransfer(shape, x_dtype, masks),
        "device": lambda: DirectTransfer(shape, x_dtype, cpu, masks),
        "ring": lambda: PinnedTransfer(shape, x_dtype, cpu, device, masks),
    }[where]()
    out = torch.empty(shape, dtype=x_dtype), torch.empty(shape, dtype=y_dtype)
    assert transfer.next(Arrived(parts), out) is not None
    device.finish()
    return out[0].tolist(), out[1].tolist()


ALL = (DOCUMENT_STARTS, LOSS_MASK, TOKEN_COUNTS, REDACTED)
SUBSETS = [kinds for size in range(5) for kinds in itertools.combinations(ALL, size)]
everywhere = pytest.mark.parametrize("where", ["host", "numpy", "device", "ring"])


@everywhere
@given(
    rows=batches(),
    kinds=st.sampled_from(SUBSETS),
    cuts=st.tuples(*[st.integers(0, 4)] * 2).map(sorted),
    dtypes=st.tuples(*[st.sampled_from([torch.int64, torch.int32])] * 2),
)
@settings(max_examples=300)
def test_targets_that_do_not_count_are_ignored_and_all_others_are_kept(
    where: str, rows: Rows, kinds: tuple[int, ...], cuts: list[int], dtypes: tuple[Any, Any]
) -> None:
    """Rows of any length, of pieces and of windows, in up to three parts, with several documents in
    a byte, for int32 and int64.
    """
    whole = rows.block(kinds)
    pieces = (whole[: cuts[0]], whole[cuts[0] : cuts[1]], whole[cuts[1] :])
    parts = [part for part in pieces if len(part)]

    x, y = delivered(parts, where, kinds, *dtypes)

    assert x == rows.tokens[:, :-1].tolist()
    assert y == rows.expected(kinds, kinds)


@given(rows=batches(), kinds=st.sampled_from(SUBSETS), masks=st.sampled_from(SUBSETS))
def test_targets_that_count_are_counted_without_a_look_at_y(
    rows: Rows, kinds: tuple[int, ...], masks: tuple[int, ...]
) -> None:
    """On the host, from the planes: y may be on a device that is busy."""
    whole = rows.block(kinds)

    counts = target_counts([whole[:1], whole[1:]] if len(whole) > 1 else [whole], masks)

    expected = [sum(y != -100 for y in row) for row in rows.expected(kinds, masks)]
    assert counts.tolist() == expected


@everywhere
@given(rows=batches(), kinds=st.sampled_from(SUBSETS), masks=st.sampled_from(SUBSETS))
def test_planes_that_are_not_applied_change_no_target(
    where: str, rows: Rows, kinds: tuple[int, ...], masks: tuple[int, ...]
) -> None:
    """Who asks for documents, and not to mask their borders, still trains on every token."""
    assert delivered([rows.block(kinds)], where, masks)[1] == rows.expected(kinds, masks)


@everywhere
def test_the_next_piece_of_a_row_is_no_target_and_the_next_document_of_a_window_is(
    where: str,
) -> None:
    """A row of a mixture keeps its targets across borders, as a stream of windows alone does."""
    tokens = np.array([[11, 12, 21, 22, 31, 0], [11, 12, 21, 22, 31, 41]], "<u2")
    planes = starts_plane([[2, 4]] * 2), counts_plane([5, None])
    block = RowBlock(tokens, planes)

    pieces, window = delivered([block], where, (TOKEN_COUNTS,))[1]
    assert pieces == [12, -100, 22, -100, -100]
    assert window == [12, 21, 22, 31, 41]

    pieces, window = delivered([block], where, (DOCUMENT_STARTS, TOKEN_COUNTS))[1]
    assert pieces == [12, -100, 22, -100, -100]
    assert window == [12, -100, 22, -100, 41]


@everywhere
def test_a_redacted_token_is_no_target_and_its_neighbours_are(where: str) -> None:
    """Token j of a row is the target of position j - 1; the first token of a row is no target."""
    tokens = np.array([[0, 0, 12, 13, 0, 15], [21, 22, 23, 24, 25, 26]], "<u2")
    block = RowBlock(tokens, (redacted_plane([{0, 1, 4}, {}]),))

    x, y = delivered([block], where, (REDACTED,))

    assert x == tokens[:, :-1].tolist()
    assert y == [[-100, 12, 13, -100, 15], [22, 23, 24, 25, 26]]


@everywhere
def test_rows_that_have_no_padding_learn_their_last_token(where: str) -> None:
    """A row of one piece of T + 1 tokens has T targets, whatever T is."""
    for row_tokens in range(2, 35):
        tokens = np.arange(1, row_tokens + 1, dtype="<u2")[np.newaxis]
        for count in {2, row_tokens - 1, row_tokens} - {1}:
            block = RowBlock(tokens, (counts_plane([count]),))

            _, (y,) = delivered([block], where, (TOKEN_COUNTS,))

            assert y == [*range(2, count + 1), *[-100] * (row_tokens - count)]


@everywhere
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
    narrow, wide = np.array([[50_000, 1, 65_535]], "<u2"), np.array([[70_000, 2, 199_999]], "<u4")
    for kind, planes, expected in [
        (
            LOSS_MASK,
            (mask_plane([[1, 0, 1]]), mask_plane([[0, 1, 0]])),
            [[-100, 65_535], [2, -100]],
        ),
        (TOKEN_COUNTS, (counts_plane([3]), counts_plane([2])), [[1, 65_535], [2, -100]]),
    ]:
        parts = [RowBlock(narrow, planes[:1]), RowBlock(wide, planes[1:])]
        for order in (parts, parts[::-1]):
            assert sorted(delivered(order, "device", (kind,))[1]) == expected


def test_planes_of_rows_that_arrived_stay_as_they_are() -> None:
    """The same rows are read again after an interrupt, and a mask may be delivered in place."""
    masks = np.full(2, 0xFF, np.uint8)
    block = RowBlock(
        np.array([[1, 2, 3, 4, 0, 0]] * 2, "<u2"),
        (
            starts_plane([[2], [3]]),
            Plane(LOSS_MASK, np.ones(2, np.uint32), masks),
            counts_plane([4, 4]),
            redacted_plane([{0}, set()]),
        ),
    )

    for _ in range(2):
        y = delivered([block], "host", ALL)[1]

        assert y == [[2, -100, 4, -100, -100], [2, 3, -100, -100, -100]]
        assert masks.tolist() == [0xFF] * 2
