"""The orders by their name on the wire: one published algorithm per file.

A released order is never edited: `random-1` gives the same windows for ever. A better order gets a
new file and a new name. splitmix.py is their hash.
"""

from __future__ import annotations

from ...errors import NotFound, shortened
from ...stream.order import Order
from . import blocks_v1, packed_v1, padded_v1, random_v1, sequential_v1, shuffled_v1

_RELEASED: tuple[Order, ...] = (
    random_v1,
    shuffled_v1,
    sequential_v1,
    packed_v1,
    padded_v1,
    blocks_v1.ORDER,
)
ORDERS = {order.NAME: order for order in _RELEASED}
OF_WINDOWS = {name: order for name, order in ORDERS.items() if not order.LONG_DOCUMENTS}
DEFAULT = random_v1.NAME
"""Of a request that names none."""
DEFAULT_OF_FEEDS = "shuffled"
"""Of RemoteBatches, and of commands that are about its streams."""

LATEST = {order.NAME.partition("-")[0]: order.NAME for order in _RELEASED}
"""Name without a version -> the latest name on the wire."""


def latest(name: str) -> Order:
    """Return the order of that name, which may omit the version.  Raises: NotFound."""
    if name not in (*LATEST, *ORDERS):
        raise NotFound("order", f"{shortened(name)!r} is not one of {', '.join(LATEST)}")
    return ORDERS[LATEST.get(name, name)]


def find(name: str) -> Order:
    """Return the order of that name on the wire; "" stands for `random-1`.  Raises: NotFound."""
    try:
        return ORDERS[name or DEFAULT]
    except KeyError:
        raise NotFound("order", f"{shortened(name)!r} is not one of {', '.join(ORDERS)}") from None
