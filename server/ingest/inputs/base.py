"""What a reader is, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..units import Source, Unit


class Reader(Protocol):
    """What the module of a kind of file offers."""

    KIND: str

    def units(
        self, source: Source, index: int, offset: int, context: ReaderContext, /
    ) -> Iterator[Unit]:
        """Yield the units of a source.

        index: of the source.  offset: where to begin, 0 or where a unit ended.
        What cannot be read comes as a unit with a problem.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """What readers are told.

    columns: names of the one or two that are text.  pieces: cuts text where its tokens do not
    change.  is_val: by the SHA-256 of a document.  hashed: is told the SHA-256 of a source, by its
    number, by whoever needs it anyway.
    """

    columns: tuple[str, ...]
    pieces: Callable[[Iterator[str]], Iterator[str]]
    is_val: Callable[[bytes], bool]
    on_source_hash: Callable[[int, bytes], None]
