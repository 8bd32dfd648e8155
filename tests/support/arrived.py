"""Rows that are there already, for a transfer."""

from __future__ import annotations

from tokenfeed.client.device.row_source import RowSource
from tokenfeed.wire.row_block import RowBlock


class Arrived(RowSource):
    """A stream of which one batch has arrived."""

    def __init__(self, parts: list[RowBlock]) -> None:
        self._parts = parts

    def peek(self, row_count: int) -> list[RowBlock]:
        assert row_count == sum(map(len, self._parts))
        return self._parts

    def consume(self, row_count: int) -> None:
        self._parts = []
