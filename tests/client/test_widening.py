"""Stored tokens -> x and y: on the host and on a device the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client.widening import NARROW, join_into, widen_here, widen_there


def widened(rows: np.ndarray, where: str, x_dtype: torch.dtype) -> tuple[list, list]:
    shape = (rows.shape[0], rows.shape[1] - 1)
    x, y = torch.empty(shape, dtype=x_dtype), torch.empty(shape, dtype=torch.int64)
    if where == "here":
        widen_here([rows[:1], rows[1:]], x.numpy(), y.numpy())
    else:
        narrow = torch.empty(rows.shape, dtype=NARROW[rows.itemsize])
        join_into([rows[:1], rows[1:]], narrow)
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
