"""The interface of readers, and what they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..units import Column, TextSource, Unit


class Reader(Protocol):
    """What the module of a kind of file provides."""

    KIND: str

    def units(
        self, source: TextSource, index: int, offset: int, context: ReaderContext, /
    ) -> Iterator[Unit]:
        """Yield the units of a source.

        index: of the source.  offset: where to begin: 0, or the end of a unit.
        Input that cannot be read is a unit with a problem.
        """


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What readers are given.

    columns: what is read of each document.  split_text: splits text where its tokens do
    not change.  is_val: whether a document is for validation, by its SHA-256.  on_source_hash:
    called with the number and the SHA-256 of a source by readers that compute it anyway.
    """

    columns: tuple[Column, ...]
    split_text: Callable[[Iterator[str]], Iterator[str]]
    is_val: Callable[[bytes], bool]
    on_source_hash: Callable[[int, bytes], None]
