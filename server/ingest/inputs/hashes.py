"""The SHA-256 of every source, taken beside the run once all of a source is read: where there are
many, most of one is in memory then, and the end has only the last ones left to do.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

from tokenfeed.errors import InvalidSource

from ..units import Source
from .discovery import require_same

_LOG = logging.getLogger("tokenfeed.server")
_BLOCK_BYTES = 1 << 20
_PROGRESS_SECONDS = 5.0


class Hashes:
    """The hashes of sources, by number.

    known: those that are taken, in hexadecimal digits.
    """

    def __init__(self, sources: Sequence[Source], known: dict[int, str]) -> None:
        """known: what runs before this one have taken; filled by all methods but `begin`."""
        self.known = known
        self._sources = sources
        self._begun: dict[int, Future[str]] = {}
        self._reader = ThreadPoolExecutor(1, "tokenfeed-hash")
        self._closed = threading.Event()
        self._begun_bytes = self._read_bytes = 0

    def add(self, number: int, sha256: bytes) -> None:
        """Take over what somebody else has found."""
        self.known[number] = sha256.hex()

    def begin(self, number: int) -> None:
        """Have a source read, once; does not wait."""
        if number not in self.known and number not in self._begun:
            self._begun[number] = self._reader.submit(self._sha256, self._sources[number])
            self._begun_bytes += self._sources[number].size_bytes

    def collect(self) -> None:
        """Take over what is done.  Raises: InvalidSource if a source cannot be read, or changed."""
        for number, future in list(self._begun.items()):
            if future.done():
                self.known[number] = self._begun.pop(number).result()

    def finish(self, keep: Callable[[], None]) -> None:
        """Wait for the hashes of all sources; now and then keep those that are known, and say how
        far they are.  Raises: InvalidSource.
        """
        before = self._read_bytes
        for number in range(len(self._sources)):
            self.begin(number)
        left_bytes = self._begun_bytes - before
        said = time.monotonic()
        while self._begun:
            wait([next(iter(self._begun.values()))], _PROGRESS_SECONDS)
            self.collect()
            if time.monotonic() - said >= _PROGRESS_SECONDS:
                said = time.monotonic()
                keep()
                share = (self._read_bytes - before) / max(1, left_bytes)
                _LOG.info("reading sources once more, for their hashes: %.1f%%", 100 * share)

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()
        self._reader.shutdown(cancel_futures=True)

    def _sha256(self, source: Source) -> str:
        digest = hashlib.sha256()
        try:
            with open(source.path, "rb") as file:
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
