"""Stored tokens -> x and y: on the host and on a device the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.arrived import Arrived
from tokenfeed.client.device.host_transfer import require_tokens_fit, widen_here
from tokenfeed.client.device.transfer import CpuTransfer, DirectTransfer
from tokenfeed.client.device.widening import join_into, narrow_dtype, widen_there
from tokenfeed.errors import InvalidRequest
from tokenfeed.wire.row_block import RowBlock


def widened(rows: np.ndarray, where: str, x_dtype: torch.dtype) -> tuple[list, list]:
    shape = (rows.shape[0], rows.shape[1] - 1)
    x, y = torch.empty(shape, dtype=x_dtype), torch.empty(shape, dtype=torch.int64)
    parts = [RowBlock(rows[:1]), RowBlock(rows[1:])]
    if where == "here":
        widen_here(parts, x.numpy(), y.numpy())
    else:
        narrow = torch.empty(rows.shape, dtype=narrow_dtype(parts))
        join_into(parts, narrow)
        widen_there(narrow, x, y)
    return x.tolist(), y.tolist()


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize("x_dtype", [torch.int64, torch.int32])
def test_tokens_beyond_half_of_their_width_stay_positive(where: str, x_dtype: torch.dtype) -> None:
    """uint16 widened through a signed type turns token 40,000 into -25,536."""
    rows = np.array([[0, 1, 32_767, 32_768], [40_000, 65_535, 65_534, 2]], dtype="<u2")

    assert widened(rows, where, x_dtype) == (rows[:, :-1].tolist(), rows[:, 1:].tolist())


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize("x_dtype", [torch.int64, torch.int32])
def test_wide_tokens_keep_their_value(where: str, x_dtype: torch.dtype) -> None:
    """A vocabulary of 200,000, and targets up to 2^32 - 1 as int64."""
    rows = np.array([[199_999, 70_000, 2**31 - 1], [5, 6, 2**32 - 1]], dtype="<u4")

    assert widened(rows, where, x_dtype) == (rows[:, :-1].tolist(), rows[:, 1:].tolist())


@pytest.mark.parametrize("device", ["host", "plain"])
@pytest.mark.parametrize("wide_first", [True, False])
def test_a_batch_may_come_from_servers_that_serve_different_widths(
    device: str, wide_first: bool
) -> None:
    """One with --vocab-size 100000 and one without: the same stream, and 50,000 stays 50,000."""
    parts = [
        RowBlock(np.array([[50_000, 1, 65_535]], "<u2")),
        RowBlock(np.array([[70_000, 2, 199_999]], "<u4")),
    ]
    if wide_first:
        parts.reverse()
    delivery = {
        "host": CpuTransfer((2, 2), torch.int64),
        "plain": DirectTransfer((2, 2), torch.int64, torch.device("cpu")),
    }[device]

    batch = delivery.next(Arrived(parts), None)

    assert batch is not None
    rows = np.concatenate([part.tokens for part in parts])
    assert [half.tolist() for half in batch] == [rows[:, :-1].tolist(), rows[:, 1:].tolist()]


def test_a_token_too_great_for_int32_is_found_in_any_part_of_a_batch() -> None:
    """Else it would come out negative."""
    parts = [RowBlock(np.array([[1, 2]], "<u2")), RowBlock(np.array([[3, 2**31]], "<u4"))]

    with pytest.raises(InvalidRequest, match="2147483648 does not fit"):
        require_tokens_fit(parts, width=4)
