"""The file of an index, as a file: where it may be, opened, and written.
What lies in it: index_builder.py.

A file is written once, in the first folder that takes it, and has its name only once it is
complete. A full disk in the middle is no error: the file goes on in the next folder, with what it
has. Nothing else of this package calls `os` for a file.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress

from tokenfeed.errors import InvalidCorpus

from ...runtime.exceptions import log_safe_name
from ..beside import path_beside
from ..bytes import StoredShard
from ..door import absolute
from ..formats import Stored
from ..local.shard import FileStat
from ..option_names import CACHE_DIR
from ..store import TokenStore

_LOG = logging.getLogger("tokenfeed.server")

MEMORY_BYTES_MAX = 1 << 20
"""More content than that is not held in memory: it lies in a file."""
_COPY_BYTES = 1 << 20


class DamagedIndex(Exception):
    """An index file that cannot be used. Its text follows "it"."""


def index_paths(
    shards: Sequence[StoredShard], stored: Stored, suffix: str, cache_dir: str | None
) -> tuple[str, ...]:
    """Return where the file may be, in order: in cache_dir if that is given, beside the tokens."""
    beside = path_beside(shards, stored, suffix)
    if cache_dir is None:
        return (beside,)
    # The cache folder is shared by corpora of other folders, whose files may have the same names.
    paths = "\0".join(absolute(shard.path) for shard in shards)
    own = hashlib.sha256(paths.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(cache_dir, f".{own}{os.path.basename(beside)}"), beside


class IndexFile:
    """An opened file.

    path: its name; "" if it has none.  facts: of the file, when this was made.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        """Take a descriptor, which `close` closes.  Raises: OSError."""
        self.descriptor = descriptor
        self.path = path
        self.facts = FileStat.of(os.fstat(descriptor))

    def read(self, first_byte: int, end_byte: int) -> bytes:
        """Return bytes of it.  Raises: DamagedIndex if it has fewer; OSError."""
        if first_byte < 0:
            raise DamagedIndex("is truncated")
        parts = []
        while first_byte < end_byte:
            part = os.pread(self.descriptor, end_byte - first_byte, first_byte)
            if not part:
                raise DamagedIndex("is truncated")
            first_byte += len(part)
            parts.append(part)
        return b"".join(parts)

    def is_changed(self) -> bool | None:
        """Return whether it was truncated or written to; None if its name is gone. May be asked
        when it is closed.
        """
        try:
            now = FileStat.of(os.stat(self.path))
        except FileNotFoundError:
            return None
        except OSError:
            return False
        if now[:2] != self.facts[:2]:
            return None
        return now[:4] != self.facts[:4]

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self.descriptor)


def open_index(path: str) -> IndexFile:
    """Open a file to read it.  Raises: OSError; DamagedIndex for what is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedIndex("is not a regular file")
    return IndexFile(descriptor, path)


class IndexWriter:
    """Content that is appended, and completed once by what follows it: in memory up to a limit,
    more in the first folder that takes it.

    size_bytes: of what was appended.
    """

    def __init__(self, what: str, store: TokenStore, paths: Sequence[str]) -> None:
        """Begin with none.

        what: the content, such as "document borders".  store: whose it is.  paths: which names the
        file may get, in order.
        """
        self._what = what
        self._store = store
        self._left = [*paths, ""]  # the last one is a temporary file, without a name
        self._memory = bytearray()
        self._file: _PartialFile | None = None
        self._written_bytes = 0
        self.size_bytes = 0

    @property
    def is_in_memory(self) -> bool:
        """Whether it is so little that it need not lie in a file."""
        return self.size_bytes <= MEMORY_BYTES_MAX

    def append(self, content: bytes) -> None:
        """Add all of it.  Raises: InvalidCorpus if it can be written nowhere."""
        self.size_bytes += len(content)
        if self.is_in_memory:
            self._memory += content
            return
        if self._file is None:
            self._begin_file()
        self._write(content)

    def read(self, first_byte: int, end_byte: int) -> bytes:
        """Return some of it.  Raises: InvalidCorpus."""
        if self.is_in_memory:
            return bytes(self._memory[first_byte:end_byte])
        try:
            return os.pread(self._opened.descriptor, end_byte - first_byte, first_byte)
        except OSError as error:
            raise self._nowhere(error) from error

    def complete(self, end: bytes, *, named: bool) -> str:
        """Add what follows the content in its file, and return the name of the file; "" if it has
        none.

        named: whether it may have one. What is in memory is then written if a folder takes it.
        Raises: InvalidCorpus if it is not in memory, and can be written nowhere.
        """
        if self.is_in_memory:
            del self._left[-1]
            if not named:
                return ""
            with suppress(InvalidCorpus):
                self._begin_file()
                return self._finished(end, _PartialFile.take_name)
            return ""
        path = self._finished(end, _PartialFile.take_name if named else _PartialFile.forget_name)
        if named and not path:
            _LOG.warning(
                "%s lie in a temporary file dataset=%s: they are made again at each start; pass "
                "--cache-dir with a folder that can be written",
                *(self._what, self._store.name),
            )
        return path

    def file(self) -> IndexFile:
        """Return the file that it lies in, which `close` closes.  Raises: OSError."""
        return IndexFile(self._opened.descriptor, self._opened.path)

    def close(self) -> None:
        """Close the file, and remove it unless it is complete. May be called twice."""
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> _PartialFile:
        assert self._file is not None
        return self._file

    def _begin_file(self) -> None:
        self._go_on_elsewhere(OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
        self._written_bytes = len(self._memory)

    def _write(self, content: bytes) -> None:
        self._try(lambda file: file.append(content))
        self._written_bytes += len(content)

    def _finished(self, end: bytes, finish: Callable[[_PartialFile], None]) -> str:
        self._write(end)
        self._try(finish)
        return self._opened.path

    def _try(self, write: Callable[[_PartialFile], None]) -> None:
        try:
            write(self._opened)
        except OSError as error:
            self._warn(self._opened.path, error)
            self._go_on_elsewhere(error)
            self._try(write)

    def _go_on_elsewhere(self, error: OSError) -> None:
        """Go on in the next place that takes what was written so far.

        error: of the place before.  Raises: InvalidCorpus if there is no place left.
        """
        old = self._file
        while self._left:
            path = self._left.pop(0)
            try:
                self._file = self._copied(old, path)
            except OSError as another:
                error = another
                self._warn(path, error)
                continue
            if old is not None:
                old.close()
            return
        raise self._nowhere(error) from error

    def _copied(self, old: _PartialFile | None, path: str) -> _PartialFile:
        """Return a new file with the content of the old one, or of memory.  Raises: OSError."""
        made = _PartialFile(path)
        try:
            if old is None:
                made.append(bytes(self._memory))
            for first in range(0, self._written_bytes if old else 0, _COPY_BYTES):
                assert old is not None
                size_bytes = min(_COPY_BYTES, self._written_bytes - first)
                made.append(os.pread(old.descriptor, size_bytes, first))
        except BaseException:
            made.close()
            raise
        return made

    def _nowhere(self, error: OSError) -> InvalidCorpus:
        cure = f"pass {CACHE_DIR} with a folder that can be written and has room"
        problem = f"its {self._what} can be written nowhere: {error.strerror}; {cure}"
        return InvalidCorpus(self._store.shards[0].path, problem, CACHE_DIR)

    def _warn(self, path: str, error: OSError) -> None:
        _LOG.warning(
            "%s not kept dataset=%s file=%s: %s",
            *(self._what, self._store.name, log_safe_name(path) or "temporary", error.strerror),
        )


class _PartialFile:
    """A file without a name until it is complete, so that a process that is killed leaves nothing;
    with one of its own where the file system knows no files without names.
    """

    def __init__(self, path: str) -> None:
        """Create it beside path; "": a temporary file that gets no name.  Raises: OSError."""
        self.path = path
        self.descriptor, self._partial = _new_file(path)
        if not path:
            self.forget_name()

    def append(self, content: bytes) -> None:
        """Write all of it.  Raises: OSError."""
        left = memoryview(content)
        while left:
            left = left[os.write(self.descriptor, left) :]

    def take_name(self) -> None:
        """Sync it, and give it the name that it is to have.  Raises: OSError."""
        if not self.path:
            return
        os.fchmod(self.descriptor, 0o644)
        os.fsync(self.descriptor)
        if not self._partial:
            # A link cannot take the name of a file that exists, so it gets another one first.
            self._partial = f"{self.path}.{secrets.token_hex(8)}"
            own = f"/proc/self/fd/{self.descriptor}"
            os.link(own, self._partial, src_dir_fd=self.descriptor, follow_symlinks=True)
        os.replace(self._partial, self.path)
        self._partial = ""

    def forget_name(self) -> None:
        """Remove its name; it can be read as long as it is open."""
        if self._partial:
            with suppress(OSError):
                os.unlink(self._partial)
        self.path = self._partial = ""

    def close(self) -> None:
        """Close it, and remove it unless it has its name."""
        if self._partial:
            self.forget_name()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _new_file(path: str) -> tuple[int, str]:
    """Create a file beside path, or a temporary one.  Returns: its descriptor; and its name, "" if
    it has none.  Raises: OSError.
    """
    if not path:
        return tempfile.mkstemp(prefix="tokenfeed-index-")
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    try:
        return os.open(folder or ".", os.O_TMPFILE | os.O_RDWR, 0o600), ""
    except OSError:
        # An unpredictable name: a shared folder may hold a malicious link.
        return tempfile.mkstemp(prefix=name, dir=folder or ".")
