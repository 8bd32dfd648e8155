"""What an object store bills, as an option says it and figures in dollars follow from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

OBJECT_PRICES = "--object-prices"


class Prices(NamedTuple):
    """What a store bills, in dollars.

    million_gets: S3 takes 0.40.  gigabyte: 10^9 bytes that come; free within a region of S3, and
    0.01 and more from another one.
    """

    million_gets: float = 0.40
    gigabyte: float = 0.0

    def dollars(self, gets: int, size_bytes: int) -> float:
        """Return what some GETs cost."""
        return gets / 1e6 * self.million_gets + size_bytes / 1e9 * self.gigabyte

    def bill(self, gets: int, size_bytes: int) -> str:
        """Return what some GETs cost, in words."""
        return f"{gets:,} GETs, {self.dollars(gets, size_bytes):,.2f} dollars"


def prices(text: str) -> Prices:
    """Return the prices in a text, such as "0.40,0.02".  Raises: ValueError."""
    found = Prices(*[float(price) for price in text.split(",", 1)])
    if not all(0 <= price < 1e9 for price in found):
        raise ValueError(text)
    return found


def add_prices(add: Callable[..., object]) -> None:
    """Add the option to a command.  add: as `add_argument` of its parser."""
    add(
        OBJECT_PRICES,
        type=prices,
        default=Prices(),
        metavar="GETS,GB",
        help="prices for estimates of cost: what the object store bills, in dollars, for a million "
        "GETs and for 10^9 bytes (default: 0.40,0, the prices of S3 within its region)",
    )
