"""A file that is written once, in the first folder that takes it, and has its name only once it is
complete.

A full disk in the middle is no error: the file goes on in the next folder, with what it has.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...runtime.exceptions import log_safe_name

_LOG = logging.getLogger("tokenfeed.server")

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
        return tempfile.mkstemp(prefix="tokenfeed-kept-")
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    try:
        return os.open(folder or ".", os.O_TMPFILE | os.O_RDWR, 0o600), ""
    except OSError:
        # An unpredictable name: a shared folder may hold a malicious link.
        return tempfile.mkstemp(prefix=name, dir=folder or ".")


class Spool:
    """A file that is appended to, in the first of several places that takes it."""

    def __init__(self, what: str, name: str, paths: Sequence[str]) -> None:
        """Begin with an empty file.

        what, name: its content, such as "document borders", and its dataset, for the log.  paths:
        which names it may get, in order; "" is a temporary file without a name.  Raises: NoPlace.
        """
        self._what = what
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
            "%s not kept dataset=%s file=%s: %s",
            self._what,
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
