"""The documents of a dataset: by number, by id, and by file.

They are counted over all files, as the format counts them: documents without a token too. Where the
format knows nothing of documents, those are meant that a search for delimiters has found.

The index of a file is read when it is first needed, one file at a time, and kept for a while.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tokenfeed.commands.printable import printable
from tokenfeed.errors import InvalidCorpus, InvalidRequest, NotFound, Unreadable, shortened
from tokenfeed.sampling.spans import Numbers
from tokenfeed.v1 import provenance_pb2 as pb

from ...runtime.exceptions import log_safe_name
from ...storage.documents import DocumentStarts
from ...storage.documents.known_documents import all_known
from ...storage.door import exists, size_of
from ...storage.formats import Documents
from ...storage.formats.document_ids import SUFFIX, DocumentIds, ids_path
from ..dataset import Dataset

Item = TypeVar("Item")

_LOG = logging.getLogger("tokenfeed.server")

IDS_MAX = 1024
"""Documents of one id."""
_KEPT_BYTES = 64 << 20
"""What was read of indices, and of ids, of a dataset: 8 bytes a document, for 8 million."""
_SEARCHES_KEPT = 16
"""Ids whose documents are remembered."""
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class FileDocuments:
    """The documents of one file.

    first_number: in the dataset, of the first one.  first_tokens, end_tokens: int64[documents],
    ascending.  token_count: of the file.
    """

    file: int
    first_number: int
    first_tokens: Numbers
    end_tokens: Numbers
    token_count: int

    @property
    def have_all_tokens(self) -> bool:
        """Whether each token is of a document."""
        bounds = np.append(self.first_tokens, self.token_count)
        return bool(bounds[0] == 0 and (bounds[1:] == self.end_tokens).all())


class DatasetDocuments:
    """The documents of a dataset. All methods may be called from several threads at once.

    kept_bytes: of what is kept in memory.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Read nothing yet. What is read later is kept, up to a limit."""
        self._dataset = dataset
        self._shards = dataset.store.shards
        self._known = all_known(self._shards)
        self._first_numbers: Numbers | None = None
        self._file_names: list[str] | None = None
        self._lock = threading.Lock()  # while a file is read, and guards what follows
        self._kept: OrderedDict[Hashable, tuple[int, object]] = OrderedDict()
        self.kept_bytes = 0
        self._searches: OrderedDict[str, _Search] = OrderedDict()

    def files_named(self, name: str) -> list[int]:
        """Return the files of a name, as it is shown: without a folder, and escaped."""
        if self._file_names is None:
            self._file_names = [shown_name(shard.path) for shard in self._shards]
        return [file for file, known in enumerate(self._file_names) if known == name]

    @property
    def are_known(self) -> bool:
        """Whether documents are known; not while they are being searched for."""
        if self._known is not None:
            return True
        starts = self._dataset.document_starts
        return starts is not None and starts.is_known

    def require_known(self) -> None:
        """Raise InvalidRequest if documents are unknown, Unreadable during a search for them."""
        if self._known is not None:
            return
        starts = self._dataset.document_starts
        if starts is None:
            problem = f"documents of dataset {self._dataset.name!r} are not known"
            cure = "pass --document-end-token to what reads its files, a server or this command"
            raise InvalidRequest("document", f"{problem}; {cure}")
        starts.require_known()

    @property
    def first_numbers(self) -> Numbers:
        """int64[files + 1], number of the first document of each file, and of all documents.

        Raises: as `require_known`.
        """
        if self._first_numbers is None:
            self.require_known()
            counts = (
                [one.count for one in self._known]
                if self._known is not None
                else self._starts.counts
            )
            found = np.zeros(len(self._shards) + 1, dtype=np.int64)
            np.cumsum(counts, out=found[1:])
            self._first_numbers = found
        return self._first_numbers

    def by_number(self, number: int) -> pb.Document:
        """Return a document.  Raises: NotFound; as `require_known`; Unreadable."""
        firsts = self.first_numbers
        if not 0 <= number < firsts[-1]:
            name = self._dataset.name
            problem = f"{number} is not in [0, {firsts[-1]}), the documents of {name!r}"
            raise NotFound("document", problem)
        file = int(np.searchsorted(firsts, number, side="right")) - 1
        return self.described(file, [number - int(firsts[file])])[0]

    def by_id(
        self, wanted: str, most: int = IDS_MAX, seconds: float | None = None
    ) -> list[pb.Document]:
        """Return all documents of an id, at least one.

        wanted: as in the file of ids, not escaped.  most: of these documents.  seconds: for which
        files are searched; then Unreadable is raised, with the progress, and the next call goes on.
        None searches all of them.
        Raises: NotFound; InvalidRequest if there are more; as `require_known`; Unreadable.
        """
        self.require_known()
        with self._lock:
            search = self._searches.pop(wanted, None) or _Search()
            self._searches[wanted] = search
            while len(self._searches) > _SEARCHES_KEPT:
                self._searches.popitem(last=False)
        end = None if seconds is None else time.monotonic() + seconds
        with search.lock:
            self._search(wanted, search, most, end)
            found = [document for one in search.found for document in self.described(*one)]
        if not found:
            name = self._dataset.name
            problem = f"no document of {name!r} has the id {printable(shortened(wanted))!r}"
            has_ids = any(self._ids_path(file) for file in range(len(self._shards)))
            raise NotFound("document_id", problem if has_ids else f"{problem}: it has no ids")
        return found

    def described(self, file: int, numbers: Sequence[int]) -> list[pb.Document]:
        """Return documents of a file with their ids.  numbers: counted within the file.

        Raises: as `require_known`; Unreadable.
        """
        known, ids = self.of_file(file), self._ids(file) if len(numbers) else None
        return [
            pb.Document(
                number=known.first_number + number,
                id="" if ids is None else printable(ids.id_of(number)),
                file=file,
                first_token=int(known.first_tokens[number]),
                end_token=int(known.end_tokens[number]),
            )
            for number in numbers
        ]

    def of_file(self, file: int) -> FileDocuments:
        """Return the documents of a file.  Raises: as `require_known`; Unreadable."""
        first = int(self.first_numbers[file])

        def read() -> tuple[int, FileDocuments]:
            token_count = self._shards[file].layout.token_count
            found = FileDocuments(file, first, *self._read(file, token_count), token_count)
            return found.end_tokens.nbytes + found.first_tokens.nbytes, found

        return self.kept(("index", file), read)

    def index_bytes(self, file: int) -> int:
        """Return about how many bytes are read to know the documents of a file and their ids."""
        path = self._ids_path(file)
        ids = size_of(path) if path else 0
        return _NUMBER_BYTES * int(np.diff(self.first_numbers[file : file + 2])[0]) + ids

    @property
    def _starts(self) -> DocumentStarts:
        assert self._dataset.document_starts is not None
        return self._dataset.document_starts

    def _read(self, file: int, token_count: int) -> tuple[Numbers, Numbers]:
        """Return where documents of a file begin and end: int64[documents] both."""
        if self._known is None:
            starts = self._starts.starts_of(file)
            return starts, np.append(starts[1:], token_count)
        return _read_index(self._known[file], token_count)

    def _ids_path(self, file: int) -> str:
        """Return the path of the ids of a file; "" if it has none."""
        path = ids_path(self._shards[file].path)
        is_known = self._known is not None and path.endswith(SUFFIX)
        return path if is_known and exists(path) else ""

    def _ids(self, file: int) -> DocumentIds | None:
        path = self._ids_path(file)
        if not path:
            return None

        def read() -> tuple[int, DocumentIds]:
            ids = self._read_ids(file, path)
            return size_of(path) + _NUMBER_BYTES * len(ids), ids

        return self.kept(("ids", file), read)

    def _read_ids(self, file: int, path: str) -> DocumentIds:
        """Raises: InvalidCorpus unless each document has an id."""
        ids = DocumentIds(path)
        count = int(np.diff(self.first_numbers[file : file + 2])[0])
        if len(ids) != count:
            raise InvalidCorpus(path, f"has {len(ids)} ids for {count} documents")
        return ids

    def _search(self, wanted: str, search: _Search, most: int, end: float | None) -> None:
        """Search the ids of the files that were not searched yet."""
        count, shown = len(self._shards), printable(shortened(wanted))
        while search.next_file < count:
            file = search.next_file
            path = self._ids_path(file)
            if path:
                numbers = self._searched(file, path, wanted)
                if search.count + len(numbers) > most:
                    problem = f"more than {most} documents have the id {shown!r}"
                    raise InvalidRequest("document_id", f"{problem}; find them singly")
                if numbers:
                    search.found.append((file, numbers))
            search.next_file += 1
            if end is not None and time.monotonic() >= end and search.next_file < count:
                done = f"{100 * search.next_file / count:.1f} % are done"
                problem = f"{self._dataset.name!r} is being searched for a document's id; {done}"
                raise Unreadable("dataset", f"{problem}; ask again")

    def _searched(self, file: int, path: str, wanted: str) -> list[int]:
        """Return the documents of an id in a file, counted within it. Ids are not kept: a search of
        many files would displace all that is.
        """
        with self._lock:
            kept = self._kept.get(("ids", file))
        ids = kept[1] if kept is not None else None
        if not isinstance(ids, DocumentIds):
            ids = self._guarded(lambda: self._read_ids(file, path))
        numbers: list[int] = ids.numbers_of(wanted).tolist()
        return numbers

    def kept(self, key: Hashable, read: Callable[[], tuple[int, Item]]) -> Item:
        """Return what is kept under a key, or was read now: one at a time, which bounds the memory.

        read: also returns the size of what it read, in bytes.  Raises: what it raises; Unreadable
        if a file is damaged.
        """
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept[1]  # type: ignore[return-value]
            size_bytes, found = self._guarded(read)
            if size_bytes <= _KEPT_BYTES:
                self._kept[key] = size_bytes, found
                self.kept_bytes += size_bytes
            while self.kept_bytes > _KEPT_BYTES:
                self.kept_bytes -= self._kept.popitem(last=False)[1][0]
            return found

    def _guarded(self, read: Callable[[], Item]) -> Item:
        """Return what was read.  Raises: Unreadable, without a path, if a file is damaged or gone;
        the log names it.
        """
        try:
            return read()
        except (InvalidCorpus, OSError) as error:
            path = error.subject if isinstance(error, InvalidCorpus) else error.filename
            problem = error.problem if isinstance(error, InvalidCorpus) else error.strerror
            name = self._dataset.name
            _LOG.warning(
                "documents unreadable dataset=%s file=%s reason=%s",
                name,
                log_safe_name(str(path)),
                problem,
            )
            what = f"{name!r} has an index of documents, or ids, that cannot be read"
            raise Unreadable("dataset", f"{what}; the log of this server names it") from error


def shown_name(path: str) -> str:
    """Return the name of a file as answers have it: escaped, without its folder."""
    return printable(os.path.basename(path))


@dataclass(slots=True)
class _Search:
    """A search for an id.

    next_file: those before were searched.  found: file and documents, counted within it.
    """

    next_file: int = 0
    found: list[tuple[int, list[int]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def count(self) -> int:
        return sum(len(numbers) for _, numbers in self.found)


def _read_index(documents: Documents, token_count: int) -> tuple[Numbers, Numbers]:
    """Return where the documents of a file begin and end: int64[documents] both.

    Raises: InvalidCorpus, also if the index has changed since it was checked.
    """
    has_pairs = documents.pairs is not None
    bounds = np.zeros(2 * documents.count if has_pairs else documents.count + 1, dtype=np.int64)
    end = 0 if has_pairs else 1
    for block in (documents.pairs or documents.ends)():
        if end + block.size <= bounds.size:
            bounds[end : end + block.size] = block
        end += block.size
    if end != bounds.size or (np.diff(bounds) < 0).any() or (bounds > token_count).any():
        raise InvalidCorpus(documents.path, "changed since it was opened")
    if has_pairs:
        pairs = bounds.reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].copy()
    return bounds[:-1], bounds[1:]
