"""Writes shards, and resumes them after a kill.

All files are in a hidden folder until they are complete. Shards have datatrove's format: X.ds has
the tokens, X.ds.index the ends of documents, X.ds.loss the loss mask, and beyond that X.ds.ids the
ids of documents. A checkpoint records how long each file was at its last sync; a resumed run
truncates the file to that length.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import WriteFailed

from ...datasets.sources.manifest import WORK_FOLDER
from ...runtime import small_files
from ...storage.formats.document_ids import SUFFIX as IDS
from ..job import Job, SplitProgress
from ..tokenize.encoding import EncodedUnit
from ..tokenize.tokenizer import TokenIds, load_tokenizer, token_dtype
from ..units import Strings
from .shuffle import piece

_BUFFER_BYTES = 1 << 17
"""A piece of this size is written as it is; smaller ones are collected first."""
_NO_ENDS = np.empty(0, np.int64)


class _RawFile(io.FileIO):
    """A file without a buffer, written by os.write: at which tests end the process."""

    def write(self, content: Any, /) -> int:
        return os.write(self.fileno(), content)


class SplitWriter:
    """Writes the shards of one split; the last one is open."""

    def __init__(self, folder: str, job: Job, counts: SplitProgress) -> None:
        """Resume at a checkpoint.  counts: its progress, which is updated.  Raises: WriteFailed."""
        self.counts = counts
        self._folder = folder
        self._job = job
        self._dtype = token_dtype(load_tokenizer(job.recipe.tokenizer_file))
        self._files: dict[str, BinaryIO] = {}
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
            room = self._job.shard_tokens - self.counts.tokens
            fitting = int(np.searchsorted(ends, begin + room, side="right"))
            if part.begins and part.ends and fitting > first and ends[fitting - 1] > begin:
                # Whole documents, with tokens, for which the open shard has room.
                whole = piece(part, first, fitting)
                self._write(whole.tokens, whole.mask, np.cumsum(whole.lengths), whole.ids)
                self.counts.documents += fitting - first
                first = fitting
                continue
            self._add_document(
                piece(part, first, first + 1),
                begins=part.begins or first > 0,
                ends=part.ends or first < count - 1,
            )
            first += 1

    def _write(
        self,
        tokens: TokenIds,
        mask: npt.NDArray[np.bool_] | None,
        ends: npt.NDArray[np.int64] = _NO_ENDS,
        ids: Strings | None = None,
    ) -> None:
        """Write tokens for which the open shard has room.

        ends: which of them end documents, as entries of the index.  ids: of these documents.
        """
        counts = self.counts
        if not self._files:
            self._open()
        self._append(".ds", tokens)
        if mask is not None:
            self._append(".ds.loss", mask)
            counts.targets += int(np.count_nonzero(mask))
        self._append(".ds.index", (ends + counts.tokens).astype("<u8"))
        if ids is not None:
            self._append(IDS, ids.data)
            counts.id_bytes += ids.data.size
        counts.tokens += tokens.size
        counts.ends += ends.size
        if ends.size:
            counts.last_end = counts.tokens

    def _append(self, suffix: str, content: npt.NDArray[np.generic]) -> None:
        with write_errors(self._path(suffix)):
            self._files[suffix].write(content.data)

    def _add_document(self, part: EncodedUnit, *, begins: bool, ends: bool) -> None:
        """Write a document, or a piece of one. A shard boundary splits it only if it is longer than
        a shard, or if its length is not known yet. Each piece is an entry of the index, with the id
        of the document and its line feed.
        """
        counts, size, shard_tokens = self.counts, part.tokens.size, self._job.shard_tokens
        if begins and ends and counts.tokens + size > shard_tokens >= size:
            self.finish()
        first = 0
        while first < size:
            if counts.tokens == shard_tokens:
                self.finish(part.ids)
            end = min(size, first + shard_tokens - counts.tokens)
            mask = None if part.mask is None else part.mask[first:end]
            self._write(part.tokens[first:end], mask)
            first = end
        if ends:
            counts.documents += 1
            self._end_here(part.ids)

    def _end_here(self, ids: Strings | None) -> None:
        if self._files:  # Otherwise it ended with the previous shard.
            self._write(np.empty(0, self._dtype), None, np.zeros(1, np.int64), ids)

    def _open(self) -> None:
        counts, recipe = self.counts, self._job.recipe
        sizes = {".ds": counts.tokens * self._dtype.itemsize, ".ds.index": 8 * counts.ends}
        if recipe.has_mask:
            sizes[".ds.loss"] = counts.tokens
        if recipe.id_column is not None:
            sizes[IDS] = counts.id_bytes
        for suffix, size_bytes in sizes.items():
            path = self._path(suffix)
            with write_errors(path):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
                file = io.BufferedWriter(_RawFile(descriptor, "wb"), _BUFFER_BYTES)
                self._files[suffix] = file
                if os.fstat(descriptor).st_size < size_bytes:
                    cure = f"remove its folder {WORK_FOLDER} and start again"
                    raise WriteFailed(path, f"is shorter than its checkpoint records; {cure}")
                file.truncate(size_bytes)
                file.seek(size_bytes)

    def _path(self, suffix: str) -> str:
        return os.path.join(self._folder, shard_name(len(self.counts.shards), suffix))

    def finish(self, ids: Strings | None = None) -> None:
        """Complete the open shard, if there is one.

        ids: of the document that is split here, if one is.  Raises: WriteFailed.
        """
        counts = self.counts
        if not counts.tokens:
            return
        if counts.last_end != counts.tokens:  # A document is split here.
            self._end_here(ids)
        self.sync()
        self.close()
        name, width = self._job.recipe.tokenizer_file.name, self._dtype.itemsize
        lines = f"{name}|{width}\n{counts.tokens}\n{counts.tokens:,} T"
        write_whole(self._path(".ds.metadata"), lines)
        counts.shards.append((counts.tokens, counts.ends))
        counts.tokens = counts.ends = counts.last_end = counts.id_bytes = 0

    def sync(self) -> None:
        """Wait until everything that was added is on the disk.  Raises: WriteFailed."""
        for suffix, file in self._files.items():
            with write_errors(self._path(suffix)):
                file.flush()
                os.fsync(file.fileno())
        sync_folder(self._folder)

    def close(self) -> None:
        """Close the open shard, if there is one; what was not synced may be lost."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()
        self._files = {}


def shard_name(number: int, suffix: str = ".ds") -> str:
    """Return the name of a shard's file."""
    return f"{number:06}{suffix}"


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
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            cure = "make it writable, or pass another --out"
        raise WriteFailed(path, f"{error.strerror}; {cure}") from error
