"""The orders by the name that they have on the wire: one published algorithm per file.

A released order is never edited: `random-1` gives the same windows for ever. A better one is a new
file and a new name.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import NotServed, shortened
from . import random_v1, sequential_v1, shuffled_v1


class Order(Protocol):
    """What a module of this folder offers.

    NAME: as on the wire.  USES_SEED: whether the seed is part of the identity.
    HAS_EPOCHS: the places are the non-overlapping windows, each visited once per epoch; else every
    token offset.
    """

    NAME: str
    USES_SEED: bool
    HAS_EPOCHS: bool

    def places(
        self, samples: npt.NDArray[np.int64], seed: int, place_count: int, /
    ) -> npt.NDArray[np.int64]:
        """Return the place of each sample, int64[n], each in [0, place_count)."""
        ...


_RELEASED: tuple[Order, ...] = (random_v1, shuffled_v1, sequential_v1)
ORDERS = {order.NAME: order for order in _RELEASED}
DEFAULT = random_v1.NAME


LATEST = {order.NAME.partition("-")[0]: order.NAME for order in _RELEASED}
"""What people say -> the name on the wire."""


def versioned(name: str) -> str:
    """Return the name on the wire of an order that may be named without its version."""
    return LATEST.get(name, name)


def find(name: str) -> Order:
    """Return the order of that name; an empty name stands for `random-1`.  Raises: NotServed."""
    try:
        return ORDERS[name or DEFAULT]
    except KeyError:
        raise NotServed("order", f"{shortened(name)!r} is none of {', '.join(ORDERS)}") from None
