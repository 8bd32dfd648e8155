"""Collects entries: in memory up to a limit, more in a file, in the first folder that takes it.

A full disk in the middle is no error: the file goes on in the next folder, with what it has.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from tokenfeed.stream import identity
from tokenfeed.stream.planes import DOCUMENT_STARTS

from ...runtime.exceptions import log_safe_name
from .known import Part
from .reading import ENTRY, SPARSE, Numbers, Places

_LOG = logging.getLogger("tokenfeed.server")

MEMORY_BYTES_MAX = 1 << 20
"""More entries than that lie in a file."""
_COPY_BYTES = 1 << 20


class NoPlace(Exception):
    """No folder takes a file.  error: that of the last one."""

    def __init__(self, error: OSError) -> None:
        """Keep it."""
        super().__init__(error)
        self.error = error


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
        return tempfile.mkstemp(prefix="tokenfeed-documents-")
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    try:
        return os.open(folder or ".", os.O_TMPFILE | os.O_RDWR, 0o600), ""
    except OSError:
        # An unpredictable name: a shared folder may hold a malicious link.
        return tempfile.mkstemp(prefix=name, dir=folder or ".")


class Spool:
    """A file that is appended to, in the first of several places that takes it."""

    def __init__(self, name: str, paths: Sequence[str]) -> None:
        """Begin with an empty file.

        name: of the dataset, for the log.  paths: which names it may get, in order; "" is a
        temporary file without a name.  Raises: NoPlace.
        """
        self._name = name
        self._left = list(paths)
        self._size_bytes = 0
        self._file: _PartialFile | None = None
        self._carry_on(OSError(errno.ENOENT, os.strerror(errno.ENOENT)))

    @property
    def descriptor(self) -> int:
        """Of the file; valid until it is closed or goes on elsewhere."""
        return self._opened.descriptor

    @property
    def path(self) -> str:
        """Its name; "" if it has none and never gets one."""
        return self._opened.path

    def append(self, content: bytes) -> None:
        """Write all of it.  Raises: NoPlace."""
        self._try(lambda: self._opened.append(content))
        self._size_bytes += len(content)

    def finish(self, *, named: bool) -> None:
        """Give the complete file its name, unless it is not to have one.  Raises: NoPlace."""
        if named:
            self._try(lambda: self._opened.take_name())
        else:
            self._opened.forget_name()

    def close(self) -> None:
        """Close it, and remove it unless it has its name. May be called twice."""
        self._opened.close()

    @property
    def _opened(self) -> _PartialFile:
        assert self._file is not None
        return self._file

    def _try(self, write: Callable[[], None]) -> None:
        while (error := _error_of(write)) is not None:
            self._carry_on(error)

    def _carry_on(self, error: OSError) -> None:
        """Go on in the next place that takes what was written so far, since this one does not.

        Raises: NoPlace if there is none.
        """
        old, self._file = self._file, None
        if old is not None:
            self._warn(old.path, error)
        try:
            while self._file is None:
                if not self._left:
                    raise NoPlace(error)
                path = self._left.pop(0)
                try:
                    self._file = self._copied(old, path)
                except OSError as another:
                    error = another
                    self._warn(path, error)
        finally:
            self._file = self._file or old
            if old is not None:
                old.close()

    def _copied(self, old: _PartialFile | None, path: str) -> _PartialFile:
        """Return a new file with the content of the old one.  Raises: OSError."""
        made = _PartialFile(path)
        try:
            for first in range(0, self._size_bytes if old else 0, _COPY_BYTES):
                assert old is not None
                size_bytes = min(_COPY_BYTES, self._size_bytes - first)
                made.append(os.pread(old.descriptor, size_bytes, first))
        except BaseException:
            made.close()
            raise
        return made

    def _warn(self, path: str, error: OSError) -> None:
        _LOG.warning(
            "document borders not kept dataset=%s file=%s: %s",
            self._name,
            log_safe_name(path) or "temporary",
            error.strerror,
        )


def _error_of(write: Callable[[], None]) -> OSError | None:
    try:
        write()
    except OSError as error:
        return error
    return None


class Collector:
    """The entries of all files, in order, and every 64th of them, counted over all files."""

    def __init__(self, token_counts: Numbers, make_spool: Callable[[], Spool]) -> None:
        """Begin with none.

        token_counts: int64[files].  make_spool: called once there are more than fit in memory.
        """
        self._first_tokens = np.cumsum(token_counts) - token_counts
        self._make_spool = make_spool
        self._counts = np.zeros(token_counts.size, dtype=np.int64)
        self._token_counts = token_counts
        self._blocks: list[bytes] = []
        self._waiting_bytes = 0
        self._sparse: list[Numbers] = []
        self.count = 0
        self.spool: Spool | None = None

    def add(self, part: Part) -> None:
        """Add the entries of the next part.  Raises: NoPlace."""
        starts = part.starts
        if not starts.size:
            return
        self._sparse.append(starts[-self.count % SPARSE :: SPARSE] + self._first_tokens[part.file])
        self._counts[part.file] += starts.size
        self.count += starts.size
        self._blocks.append(starts.astype(ENTRY).tobytes())
        self._waiting_bytes += len(self._blocks[-1])
        if self._waiting_bytes > MEMORY_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory to the file, which is made if there is none.  Raises: NoPlace."""
        content = b"".join(self._blocks)
        if self.spool is None:
            self.spool = self._make_spool()
        self.spool.append(content)
        self._blocks, self._waiting_bytes = [], 0

    @property
    def places(self) -> Places:
        """Where files begin among tokens and entries."""
        return Places.of(self._token_counts, self._counts)

    @property
    def entry_counts(self) -> list[int]:
        """How many entries each file has."""
        counts: list[int] = self._counts.tolist()
        return counts

    @property
    def sparse(self) -> Numbers:
        """int64[ceil(count / SPARSE)], every such entry, counted over all files."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._sparse])

    def in_memory(self) -> Numbers:
        """Return all entries; only while there is no file."""
        return np.frombuffer(b"".join(self._blocks), ENTRY)

    def fingerprint(self) -> bytes:
        """Return that of the plane, 32 bytes.  Raises: OSError if the file cannot be read."""
        if self.spool is None:
            content = b"".join(self._blocks)
            return fingerprint_of(lambda first, end: content[first:end], self.entry_counts)
        descriptor = self.spool.descriptor
        return fingerprint_of(
            lambda first, end: os.pread(descriptor, end - first, first), self.entry_counts
        )


def fingerprint_of(read: Callable[[int, int], bytes], entry_counts: Sequence[int]) -> bytes:
    """Return the fingerprint of the plane, 32 bytes.

    read: returns the bytes of entries from a first byte to an end.  entry_counts: of each file.
    """
    blocks = identity.content_blocks(ENTRY.itemsize * sum(entry_counts))
    hashes = (hashlib.sha256(read(*block)).digest() for block in blocks)
    return identity.plane_fingerprint(DOCUMENT_STARTS, entry_counts, hashes)
