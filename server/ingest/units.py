"""What is passed on within ingest: sources, units of them, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tokenfeed.errors import InvalidSource


@dataclass(frozen=True, slots=True)
class Source:
    """A file of text.

    kind: name of the reader.  written_ns: time of its last write, when it was first looked at.
    """

    path: str
    kind: str
    size_bytes: int
    written_ns: int


class SourceOffset(NamedTuple):
    """Where to go on: in which source, where in it as its reader counts, and how many documents of
    the unit that begins there were written before.
    """

    source: int
    offset: int
    documents: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """What could not be ingested.  what: the kind of it, to be counted.  where: in its source."""

    what: str
    where: str


def require_of_content(error: Exception, path: str) -> None:
    """Raise InvalidSource unless an error is due to what is in a file: that a disk or a network
    does not answer today is nothing to be counted and left out.
    """
    if isinstance(error, MemoryError) or getattr(error, "errno", None):
        raise InvalidSource(path, f"cannot be read: {error}; run the same command again") from error


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table: a tuple of UTF-8 for each, one value a column; None for null.

    first_row: number of the first one in its file.
    """

    values: list[tuple[bytes | None, ...]]
    first_row: int

    @property
    def size_bytes(self) -> int:
        """Of the text."""
        return sum(len(value) for row in self.values for value in row if value is not None)


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of JSON.  first_byte: where they begin in their file, unpacked."""

    content: bytes
    first_byte: int

    @property
    def size_bytes(self) -> int:
        """Of the lines."""
        return len(self.content)


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A part of a document that is a whole file.

    path: of the file.  is_val: what the hash of all of it says.
    """

    path: str
    text: str
    is_first: bool
    is_last: bool
    is_val: bool

    @property
    def size_bytes(self) -> int:
        """Of the text, at least."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is encoded at once: as much text as takes a fraction of a second.

    place: where it begins.  end: where the next one does.  content: None where there is nothing but
    a problem.  done_bytes: of the source, once it is encoded.
    """

    place: SourceOffset
    end: SourceOffset
    content: Rows | Lines | TextChunk | None
    done_bytes: int
    problems: tuple[Problem, ...] = ()

    @classmethod
    def broken(cls, source: Source, index: int, offset: int, problem: Problem) -> Unit:
        """Return what stands for all that is left of a source, none of which can be read."""
        end = SourceOffset(index + 1, 0)
        return cls(SourceOffset(index, offset), end, None, source.size_bytes, (problem,))
