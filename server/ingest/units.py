"""The values within an ingest: sources, their units, and their problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tokenfeed.errors import InvalidSource


@dataclass(frozen=True, slots=True)
class TextSource:
    """A file of text.

    kind: name of the reader.  written_ns: modification time when the ingest began.
    """

    path: str
    kind: str
    size_bytes: int
    written_ns: int


class SourceOffset(NamedTuple):
    """Where to resume: the source, the offset in it as its reader counts, and how many documents of
    the unit that begins there were already written.
    """

    source: int
    offset: int
    documents: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """A column of parquet, or a key of jsonl, that is read.

    kind: text; json, which may also be lists and structs; id, which is text or an integer; or
    numbers, a list of integers.  is_optional: whether null, or an absent key, is a value too.
    may_be_absent: whether a file of parquet may lack it.  refuses: names of other columns that must
    not be there.
    """

    name: str
    kind: Literal["text", "json", "id", "numbers"] = "text"
    is_optional: bool = False
    may_be_absent: bool = False
    refuses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Input that could not be ingested.

    what: its kind, for counting.  where: in its source.  is_fatal: whether the ingest has to end,
    because leaving out this input would not be enough.
    """

    what: str
    where: str
    is_fatal: bool = False


class InvalidDocument(Exception):
    """A document that cannot be ingested, before its place in the source is known."""

    def __init__(self, what: str, place: str = "", *, is_fatal: bool = False) -> None:
        """what, is_fatal: as of a Problem.  place: within the document, such as messages[2]."""
        super().__init__(what)
        self.what = what
        self.place = place
        self.is_fatal = is_fatal

    def problem(self, where: str) -> Problem:
        """Return the problem.  where: the place of the document."""
        place = f"{where}, {self.place}" if self.place else where
        return Problem(self.what, place, self.is_fatal)


def require_of_content(error: Exception, path: str) -> None:
    """Raise InvalidSource unless the cause of an error is the content of a file: input is not left
    out because a disk or a network fails.
    """
    if isinstance(error, MemoryError) or getattr(error, "errno", None):
        raise InvalidSource(path, f"cannot be read: {error}; run the same command again") from error


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table: for each a tuple of UTF-8, one value per column, None for null. Lists and
    structs are JSON.

    first_row: number of the first row in its file.
    """

    values: list[tuple[bytes | None, ...]]
    first_row: int

    @property
    def size_bytes(self) -> int:
        """Size of the text."""
        return sum(len(value) for row in self.values for value in row if value is not None)


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of JSON.  first_byte: where they begin in the uncompressed file."""

    content: bytes
    first_byte: int

    @property
    def size_bytes(self) -> int:
        """Size of the lines."""
        return len(self.content)


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A part of a document that is a whole file.

    path: of the file.  is_val: whether it is for validation, by the hash of the whole file.
    """

    path: str
    text: str
    is_first: bool
    is_last: bool
    is_val: bool

    @property
    def size_bytes(self) -> int:
        """Size of the text, at least."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is encoded at once: a fraction of a second of work.

    place: where it begins.  end: where the next one begins.  content: None if there is only a
    problem.  done_bytes: bytes of the source that are done once it is encoded.
    """

    place: SourceOffset
    end: SourceOffset
    content: Rows | Lines | TextChunk | None
    done_bytes: int
    problems: tuple[Problem, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of its text."""
        return 0 if self.content is None else self.content.size_bytes

    @classmethod
    def broken(cls, source: TextSource, index: int, offset: int, problem: Problem) -> Unit:
        """Return a unit for the rest of a source, which cannot be read."""
        end = SourceOffset(index + 1, 0)
        return cls(SourceOffset(index, offset), end, None, source.size_bytes, (problem,))
