"""The ids of documents, X.ds.ids beside X.ds: one line of UTF-8 per document, in their order.

Ingest writes it, `grep -n` and `sed -n` read it, and this module answers both questions: which id a
document has, and which documents have an id. Ids need not be unique.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus

from ..door import exists, open_file

SUFFIX = ".ds.ids"
_BLOCK_BYTES = 64 << 20
_END = b"\n"


def ids_path(shard_path: str) -> str:
    """Return the path of the ids of a shard's documents, if it has them."""
    return f"{shard_path}.ids"


def ids_beside(shard_paths: Sequence[str]) -> list[str]:
    """Return the files of ids beside shards; shards without ids have none."""
    return [path for path in map(ids_path, shard_paths) if exists(path)]


class DocumentIds:
    """The ids of one shard, in memory: their bytes, and 8 bytes for each."""

    def __init__(self, path: str) -> None:
        """Read a file.  Raises: InvalidCorpus if it cannot be read, or does not end with a line."""
        with open_file(path) as file:
            blocks = [
                file.read(first, min(_BLOCK_BYTES, file.size_bytes - first))
                for first in range(0, file.size_bytes, _BLOCK_BYTES)
            ]
        # Each id has a line end on both sides.
        self._content = b"".join([_END, *blocks])
        if not self._content.endswith(_END):
            raise InvalidCorpus(path, "does not end with a whole line; it may be truncated")
        self._ends = np.flatnonzero(np.frombuffer(self._content, np.uint8) == _END[0])

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._ends) - 1

    def id_of(self, number: int) -> str:
        """Return the id of a document.  number: in the shard.  Raises: IndexError."""
        if not 0 <= number < len(self):
            raise IndexError(f"document {number} is not in [0, {len(self)})")
        first, end = int(self._ends[number]) + 1, int(self._ends[number + 1])
        return self._content[first:end].decode("utf-8", "surrogateescape")

    def numbers_of(self, wanted: str) -> npt.NDArray[np.int64]:
        """Return the numbers of the documents that have an id: int64[n], ascending."""
        line = _END + wanted.encode("utf-8", "surrogateescape") + _END
        places = []
        place = self._content.find(line) if wanted.count("\n") == 0 else -1
        while place >= 0:
            places.append(place)
            place = self._content.find(line, place + len(line) - 1)
        return np.searchsorted(self._ends, np.array(places, dtype=np.int64)).astype(np.int64)
