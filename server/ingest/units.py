"""The values within an ingest: sources, their units, and their problems."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidSource

from ..storage.door import open_file, scheme_of


@dataclass(frozen=True, slots=True)
class TextSource:
    """A file of text.

    kind: name of the reader.  written_ns: modification time when the ingest began; of an object a
    number that stands for its ETag or version.  is_shared: whether workers can open it too.
    """

    path: str
    kind: str
    size_bytes: int
    written_ns: int
    is_shared: bool = False

    def open(self) -> BinaryIO:
        """Open it to be read from any place on.

        Raises: OSError; of an object InvalidCorpus, as its reads do, and InvalidSource if it is
        another one now.
        """
        if scheme_of(self.path):
            found = open_file(self.path)
            self.require(found.size_bytes, number_of(found.version))
            return found.stream()
        # By Python, since its name may not be UTF-8.
        return open(self.path, "rb")

    def require(self, size_bytes: int | None, written_ns: int) -> None:
        """Raise InvalidSource if a file is another one than when the ingest began.

        size_bytes, written_ns: are what they are now.
        """
        if (size_bytes, written_ns) != (self.size_bytes, self.written_ns):
            problem = "changed while it was ingested; ingest it again, into another folder"
            raise InvalidSource(self.path, problem)


def number_of(version: object) -> int:
    """Return a number in [0, 2^63) that stands for the version of an object."""
    return int.from_bytes(hashlib.sha256(str(version).encode()).digest()[:8], "big") >> 1


OnSourceHash = Callable[[int, str], None]
"""Is called with the number and the SHA-256 of a source."""


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
    because leaving out this input would not be enough.  is_of_engine: whether the engine is wrong,
    not the input, so that all that it has encoded is in doubt; it is fatal.
    """

    what: str
    where: str
    is_fatal: bool = False
    is_of_engine: bool = False


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


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """Strings of bytes in one buffer, as a column of Arrow has them: between processes they cost
    what their bytes cost, however many they are.

    data: uint8[m], the strings one after another.  ends: int64[n], where each one ends in it.
    present: bool[n], which of them are not null; None for all.
    """

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Strings:
        """Return the strings of a list, where None is null."""
        sizes = np.fromiter((len(value or b"") for value in values), np.int64, len(values))
        data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
        present = None
        if None in values:
            present = np.fromiter((value is not None for value in values), np.bool_, len(values))
        return cls(data, np.cumsum(sizes), present)

    @classmethod
    def joined(cls, parts: Sequence[Strings]) -> Strings:
        """Return the strings of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        present = None
        if any(part.present is not None for part in parts):
            present = np.concatenate([part._are_present for part in parts])
        ends = np.cumsum(np.concatenate([part.sizes for part in parts]))
        return cls(np.concatenate([part.data for part in parts]), ends, present)

    @property
    def _are_present(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self), np.bool_) if self.present is None else self.present

    def __len__(self) -> int:
        """Return how many strings there are, with those that are null."""
        return self.ends.size

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The size of each string in bytes, int64[n]."""
        return np.diff(self.ends, prepend=0)

    def part(self, first: int, end: int) -> Strings:
        """Return the strings of [first, end), in the same buffer."""
        if not first and end == len(self):
            return self
        before = int(self.ends[first - 1]) if first else 0
        ends = self.ends[first:end] - before
        size = int(ends[-1]) if ends.size else 0
        present = None if self.present is None else self.present[first:end]
        return Strings(self.data[before : before + size], ends, present)

    def __iter__(self) -> Iterator[memoryview | None]:
        """Yield a view of each string, None for null."""
        view, first = self.data.data, 0
        present = repeat(True) if self.present is None else self.present.tolist()
        for end, is_present in zip(self.ends.tolist(), present, strict=False):
            yield view[first:end] if is_present else None
            first = end


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table, column by column: UTF-8, or JSON of lists and structs.

    columns: the values of each column, in the order in which columns are read.  first_row: number
    of the first row in its file.
    """

    columns: tuple[Strings, ...]
    first_row: int

    @property
    def size_bytes(self) -> int:
        """Size of the text."""
        return sum(column.data.size for column in self.columns)


@dataclass(frozen=True, slots=True)
class UnreadRows:
    """Rows of a file that the process reads which encodes them: those from the place of their unit
    to its end, in one row group.

    source: the file.  rows_before: number of rows in it before the row group.  size_bytes: of the
    row group, as its columns are stored uncompressed.
    """

    source: TextSource
    rows_before: int
    size_bytes: int


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
    content: Rows | UnreadRows | Lines | TextChunk | None
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
