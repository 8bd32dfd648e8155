"""The SHA-256 of every source, computed in a thread once the run has read the source: most of it is
still in memory then, and only the last sources are left at the end.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

from tokenfeed.errors import InvalidSource

from ..units import TextSource
from .discovery import require_same

_LOG = logging.getLogger("tokenfeed.server")
_BLOCK_BYTES = 1 << 20
_PROGRESS_SECONDS = 5.0


class Hashes:
    """The hashes of sources, by number.

    known: those that were computed, in hexadecimal digits.
    """

    def __init__(self, sources: Sequence[TextSource], known: dict[int, str]) -> None:
        """known: hashes of earlier runs; readers, `collect` and `finish` extend it."""
        self.known = known
        self._sources = sources
        self._begun: dict[int, Future[str]] = {}
        self._reader = ThreadPoolExecutor(1, "tokenfeed-hash")
        self._closed = threading.Event()
        self._begun_bytes = self._read_bytes = 0

    def begin(self, number: int) -> None:
        """Start to hash a source, unless that was done; does not wait."""
        if number not in self.known and number not in self._begun:
            self._begun[number] = self._reader.submit(self._sha256, self._sources[number])
            self._begun_bytes += self._sources[number].size_bytes

    def collect(self) -> None:
        """Add finished hashes.  Raises: InvalidSource if a source is unreadable or has changed."""
        for number, future in list(self._begun.items()):
            if future.done():
                self.known[number] = self._begun.pop(number).result()

    def finish(self, keep: Callable[[], None]) -> None:
        """Hash all sources, and wait; calls keep and logs progress every few seconds.

        keep: saves the known hashes.  Raises: InvalidSource.
        """
        before = self._read_bytes
        for number in range(len(self._sources)):
            self.begin(number)
        left_bytes = self._begun_bytes - before
        logged_at = time.monotonic()
        while self._begun:
            wait([next(iter(self._begun.values()))], _PROGRESS_SECONDS)
            self.collect()
            if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
                logged_at = time.monotonic()
                keep()
                share = (self._read_bytes - before) / max(1, left_bytes)
                _LOG.info("hashing sources done=%.1f%%", 100 * share)

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()
        self._reader.shutdown(cancel_futures=True)

    def _sha256(self, source: TextSource) -> str:
        digest = hashlib.sha256()
        try:
            with source.open() as file:
                while block := file.read(_BLOCK_BYTES):
                    if self._closed.is_set():
                        raise CancelledError
                    digest.update(block)
                    self._read_bytes += len(block)
        except OSError as error:
            raise InvalidSource(
                source.path, f"cannot be read any more: {error.strerror}"
            ) from error
        require_same(source)
        return digest.hexdigest()
