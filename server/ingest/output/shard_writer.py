"""Writes shards, and resumes them after a kill.

All files are in a hidden folder until they are complete. Shards have datatrove's format: X.ds has
the tokens, X.ds.index the ends of documents, X.ds.loss the loss mask, and beyond that X.ds.ids the
ids of documents. A checkpoint records how long each file was at its last sync; a resumed run
truncates the file to that length.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import WriteFailed

from ...datasets.sources.manifest import WORK_FOLDER
from ...runtime import small_files
from ...storage.formats.document_ids import SUFFIX as IDS
from ..tokenize.encoding import EncodedUnit
from .shuffle import piece

_FLUSH_BYTES = 4 << 20
_WHOLE_BYTES = 1 << 17
"""A piece of this size is written as it is; smaller ones are collected first."""


class _AppendFile:
    """A file that is only appended to."""

    def __init__(self, path: str, size_bytes: int) -> None:
        """Open a file, and truncate it to size_bytes.  Raises: WriteFailed."""
        self._path = path
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        with write_errors(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
            if os.fstat(self._descriptor).st_size < size_bytes:
                cure = f"remove its folder {WORK_FOLDER} and start again"
                raise WriteFailed(path, f"is shorter than its checkpoint records; {cure}")
            os.ftruncate(self._descriptor, size_bytes)
            os.lseek(self._descriptor, size_bytes, os.SEEK_SET)

    def add(self, content: bytes | npt.NDArray[np.generic]) -> None:
        """Append bytes, or those of an array in C order.  Raises: WriteFailed."""
        if len(content) and not isinstance(content, bytes):
            whole = content.data.cast("B")
            if whole.nbytes >= _WHOLE_BYTES:
                self._flush()
                with write_errors(self._path):
                    _write_all(self._descriptor, whole)
                return
        content = bytes(content)
        self._waiting.append(content)
        self._waiting_bytes += len(content)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._flush()

    def sync(self) -> None:
        """Wait until all of it is on the disk.  Raises: WriteFailed."""
        self._flush()
        with write_errors(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; data that was not synced may be lost."""
        os.close(self._descriptor)

    def _flush(self) -> None:
        with write_errors(self._path):
            _write_all(self._descriptor, b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0


@dataclass(slots=True)
class SplitProgress:
    """What is written of a split.

    shards: tokens and index entries of each complete shard.  tokens, ends, last_end: tokens, index
    entries and the last index entry of the open shard.  documents: number in the split.
    id_bytes: size of the ids of the open shard.  targets: tokens of the split that its masks allow.
    """

    shards: list[tuple[int, int]] = field(default_factory=list)
    tokens: int = 0
    ends: int = 0
    last_end: int = 0
    documents: int = 0
    id_bytes: int = 0
    targets: int = 0

    @property
    def all_tokens(self) -> int:
        """Tokens in the split."""
        return self.tokens + sum(tokens for tokens, _ in self.shards)


class SplitWriter:
    """Writes the shards of one split; the last one is open."""

    def __init__(
        self,
        folder: str,
        *,
        tokenizer: str,
        dtype: np.dtype[np.unsignedinteger],
        shard_tokens: int,
        has_mask: bool,
        has_ids: bool,
        counts: SplitProgress,
    ) -> None:
        """Resume at a checkpoint.

        tokenizer: its name, for the metadata.  shard_tokens: maximum per shard.  counts: progress
        of the checkpoint, which is updated.
        Raises: WriteFailed.
        """
        self.counts = counts
        self._folder = folder
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._has_mask = has_mask
        self._has_ids = has_ids
        self._files: dict[str, _AppendFile] = {}
        with write_errors(folder):
            os.makedirs(folder, exist_ok=True)
            for name in os.listdir(folder):
                if name[:6].isdigit() and int(name[:6]) >= len(counts.shards) + bool(counts.tokens):
                    os.unlink(os.path.join(folder, name))
        if counts.tokens:
            self._open()

    def add(self, part: EncodedUnit) -> None:
        """Write the documents of a part.  Raises: WriteFailed."""
        ends = np.cumsum(part.lengths)
        first, count = 0, part.lengths.size
        while first < count:
            begin = int(ends[first - 1]) if first else 0
            room = self._shard_tokens - self.counts.tokens
            fitting = int(np.searchsorted(ends, begin + room, side="right"))
            if part.begins and part.ends and fitting > first and ends[fitting - 1] > begin:
                self._add_whole(piece(part, first, fitting))
                first = fitting
                continue
            ids = None if part.ids is None else part.ids.part(first, first + 1)
            tokens = slice(begin, int(ends[first]))
            self._add_document(
                part.tokens[tokens],
                None if part.mask is None else part.mask[tokens],
                None if ids is None else ids.data.tobytes(),
                begins=part.begins or first > 0,
                ends=part.ends or first < count - 1,
            )
            first += 1

    def _add_whole(self, part: EncodedUnit) -> None:
        """Write whole documents, with tokens, for which the open shard has room."""
        counts = self.counts
        if not self._files:
            self._open()
        self._add_tokens(part.tokens, part.mask)
        ends = np.cumsum(part.lengths) + (counts.tokens - part.tokens.size)
        self._files[".ds.index"].add(ends.astype("<u8"))
        if part.ids is not None:
            self._files[IDS].add(part.ids.data)
            counts.id_bytes += part.ids.data.size
        counts.ends += ends.size
        counts.documents += ends.size
        counts.last_end = counts.tokens

    def _add_tokens(
        self, tokens: npt.NDArray[np.unsignedinteger], mask: npt.NDArray[np.bool_] | None
    ) -> None:
        self._files[".ds"].add(tokens)
        if mask is not None:
            self._files[".ds.loss"].add(mask)
            self.counts.targets += int(np.count_nonzero(mask))
        self.counts.tokens += tokens.size

    def _add_document(
        self,
        tokens: npt.NDArray[np.unsignedinteger],
        mask: npt.NDArray[np.bool_] | None,
        own_id: bytes | None,
        *,
        begins: bool,
        ends: bool,
    ) -> None:
        """Write a document, or a piece of one. A shard boundary splits it only if it is longer than
        a shard, or if its length is not known yet. Each piece is an entry of the index, with the id
        of the document and its line feed.
        """
        counts = self.counts
        fits = counts.tokens + tokens.size <= self._shard_tokens
        if begins and ends and not fits and tokens.size <= self._shard_tokens:
            self.finish()
        first = 0
        while first < tokens.size:
            if counts.tokens == self._shard_tokens:
                self.finish(own_id)
            if not self._files:
                self._open()
            end = min(tokens.size, first + self._shard_tokens - counts.tokens)
            self._add_tokens(tokens[first:end], None if mask is None else mask[first:end])
            first = end
        if ends:
            counts.documents += 1
            self._end_here(own_id)

    def _end_here(self, own_id: bytes | None) -> None:
        if not self._files:  # It ended with the previous shard.
            return
        self.counts.ends += 1
        self.counts.last_end = self.counts.tokens
        self._files[".ds.index"].add(self.counts.tokens.to_bytes(8, "little"))
        if own_id is not None:
            self._files[IDS].add(own_id)
            self.counts.id_bytes += len(own_id)

    def _open(self) -> None:
        counts = self.counts
        sizes = {".ds": counts.tokens * self._dtype.itemsize, ".ds.index": 8 * counts.ends}
        if self._has_mask:
            sizes[".ds.loss"] = counts.tokens
        if self._has_ids:
            sizes[IDS] = counts.id_bytes
        for suffix, size_bytes in sizes.items():
            path = self._path(len(counts.shards), suffix)
            self._files[suffix] = _AppendFile(path, size_bytes)

    def _path(self, number: int, suffix: str) -> str:
        return os.path.join(self._folder, shard_name(number, suffix))

    def finish(self, own_id: bytes | None = None) -> None:
        """Complete the open shard, if there is one.

        own_id: of the document that is split here, if one is, with its line feed.
        Raises: WriteFailed.
        """
        counts = self.counts
        if not counts.tokens:
            return
        if counts.last_end != counts.tokens:  # A document is split here.
            self._end_here(own_id)
        self.sync()
        self.close()
        lines = (f"{self._tokenizer}|{self._dtype.itemsize}", counts.tokens, f"{counts.tokens:,} T")
        path = self._path(len(counts.shards), ".ds.metadata")
        write_whole(path, "\n".join(map(str, lines)))
        counts.shards.append((counts.tokens, counts.ends))
        counts.tokens = counts.ends = counts.last_end = counts.id_bytes = 0

    def sync(self) -> None:
        """Wait until everything that was added is on the disk.  Raises: WriteFailed."""
        for file in self._files.values():
            file.sync()
        sync_folder(self._folder)

    def close(self) -> None:
        """Close the open shard, if there is one."""
        for file in self._files.values():
            file.close()
        self._files = {}


def shard_name(number: int, suffix: str = ".ds") -> str:
    """Return the name of a shard's file."""
    return f"{number:06}{suffix}"


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def write_whole(path: str, text: str) -> None:
    """Write a small file atomically.  Raises: WriteFailed."""
    with write_errors(path):
        small_files.replace_file(path, text.encode(), 0o644)


def sync_folder(folder: str) -> None:
    """Wait until the names in a folder are on the disk.  Raises: WriteFailed."""
    with write_errors(folder):
        small_files.sync_folder(folder)


@contextmanager
def write_errors(path: str) -> Iterator[None]:
    """Turn an OSError into a WriteFailed that says what to do."""
    try:
        yield
    except OSError as error:
        cure = "finished work is kept; run the same command again"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "finished work is kept; free some space and run the same command again"
        raise WriteFailed(path, f"{error.strerror}; {cure}") from error
