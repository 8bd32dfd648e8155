"""A whole run that needs no torch: it runs on the lowest versions of all dependencies, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client import NumpyBatches
from tests.conftest import Serve, WriteTokens
from tests.support.offline import offline_rows, received_rows

T = 16


@pytest.mark.parametrize("order", ["random-1", "shuffled-1", "sequential-1"])
def test_a_run_that_stops_and_goes_on_elsewhere_has_the_rows_of_the_reference(
    serve: Serve, write_tokens: WriteTokens, order: str
) -> None:
    """Over the end of an epoch, and with other batches from the state on."""
    path: Path = write_tokens(np.arange(40 * T + 1))
    options = {"order": order.partition("-")[0], "rank": 0, "world_size": 1, "seed": 5}
    with NumpyBatches(serve("--data", path).address, 7, T, **options) as feed:
        before = [next(feed) for _ in range(9)]
        state = feed.state_dict()
    with NumpyBatches(serve("--data", path).address, 11, T, **options) as feed:
        feed.load_state_dict(state)
        after = [next(feed) for _ in range(4)]

    rows = received_rows([*before, *after])
    assert np.array_equal(rows, offline_rows([path], order, 5, T, range(9 * 7 + 4 * 11)))
