"""Preloads datasets that fit into memory, in the background while they are served, and computes
their missing digests.

Reading a file once in order is many times faster than reading it at random. A store that reads the
bytes hashes them while it preloads; the digest of a mapped store is computed afterwards.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from tokenfeed.errors import CorpusChanged, Unreadable

from ..runtime.exceptions import log_exception, log_safe_name
from ..runtime.process import memory_limit
from ..storage.bytes import Piece
from ..storage.store import TokenStore
from .content import SequentialDigest, read_in_turn
from .dataset import Dataset

_LOG = logging.getLogger("tokenfeed.server")

_ROOM_SHARE = 0.9
"""The rest is for streams, page tables and other processes."""
_NICENESS = 10
"""Streams have priority when CPUs are short: 340 Mtok/s during a warm-up instead of 302. The idle
class would block them: a thread that never runs does not release the GIL either."""
_CLOSE_SECONDS = 0.5


class WarmUp:
    """A thread that preloads datasets, the smallest first, and then computes their digests, until
    it is done or closed.
    """

    def __init__(self, datasets: Iterable[Dataset], bytes_max: int | None = None) -> None:
        """Prepare.  bytes_max: limit for all preloaded datasets together; None is what fits."""
        self._datasets = list(datasets)
        self._bytes_max = bytes_max
        self._done_bytes: dict[TokenStore, int] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-warmup", daemon=True)

    def start(self) -> None:
        """Start; once."""
        self._thread.start()

    def share(self, store: TokenStore) -> float | None:
        """Return how much of a store it has preloaded, in [0, 1]; None if it is not to be,
        or could not be.
        """
        done_bytes = self._done_bytes.get(store)
        return None if done_bytes is None else done_bytes / max(1, store.files.memory_bytes)

    def close(self) -> None:
        """End the thread, or abandon it if it waits for a disk. May be called twice."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        preloaded: dict[TokenStore, SequentialDigest] = {}
        try:
            os.nice(_NICENESS)  # of this thread alone, on Linux
            bytes_max = self._bytes_max
            if bytes_max is None:
                bytes_max = int(_ROOM_SHARE * memory_limit.available_bytes())
            unknown = {dataset.store for dataset in self._datasets if not dataset.digest}
            chosen = _chosen(self._datasets, bytes_max)
            self._done_bytes = dict.fromkeys(chosen, 0)
            for store in chosen:
                reading = SequentialDigest(store)
                add = reading.add if store in unknown else None
                if self._warm(store, add) == store.files.memory_bytes:
                    preloaded[store] = reading
        except Exception:  # noqa: BLE001 - the server works without a warm-up
            log_exception(logging.ERROR, "warm-up failed")
        # Digests come last: streams wait for pages, and nothing waits for a digest.
        for dataset in self._datasets:
            if self._closed.is_set():
                return
            if dataset.digest:
                continue
            problem = "not all of it was preloaded"
            if dataset.store in preloaded:
                problem = self._take_digest(dataset, preloaded[dataset.store])
            if problem:
                cure = "tokenfeed verify computes it"
                _LOG.info("digest unknown dataset=%s: %s; %s", dataset.name, problem, cure)

    def _warm(self, store: TokenStore, add: Callable[[Piece], None] | None) -> int:
        """Preload a store; return how many bytes.  add: called with each piece."""

        def on_piece(piece: Piece) -> None:
            self._done_bytes[store] = piece.done_bytes
            if add:
                add(piece)

        done_bytes = warm(store, self._closed.is_set, on_piece)
        if done_bytes < store.files.memory_bytes:
            del self._done_bytes[store]
        return done_bytes

    def _take_digest(self, dataset: Dataset, reading: SequentialDigest) -> str:
        """Compute and store a dataset's digest.  Returns: the reason if it failed, else ""."""
        try:
            return take_digest(dataset, self._closed.is_set, reading)
        except Exception:  # noqa: BLE001 - the other digests must still be computed
            log_exception(logging.ERROR, "digest failed dataset=%s", dataset.name)
            return "its computation failed"


def _chosen(datasets: Sequence[Dataset], bytes_max: int) -> list[TokenStore]:
    """Return the stores to preload: tokens, and planes where they leave room: some clients do
    without them.
    """
    tokens = fitting([dataset.store for dataset in datasets], bytes_max)
    left_bytes = bytes_max - sum(store.files.memory_bytes for store in tokens)
    planes = [plane.store for dataset in datasets for plane in dataset.plane_files]
    return tokens + fitting(planes, left_bytes)


def fitting(stores: Sequence[TokenStore], bytes_max: int) -> list[TokenStore]:
    """Return the stores that fit into bytes_max together, the smallest first; log the others."""
    chosen = []
    left_bytes = bytes_max
    for store in sorted(stores, key=lambda store: store.files.memory_bytes):
        if not store.files.memory_bytes:
            continue  # nothing would hold it
        if store.files.memory_bytes <= left_bytes:
            left_bytes -= store.files.memory_bytes
            chosen.append(store)
        else:
            _LOG.info(
                "warm-up skipped dataset=%s bytes=%d available=%d",
                store.name,
                store.files.memory_bytes,
                left_bytes,
            )
    return chosen


def warm(
    store: TokenStore,
    stopped: Callable[[], bool],
    on_piece: Callable[[Piece], None] | None = None,
) -> int:
    """Preload all of a store; return how many bytes were preloaded.

    on_piece: called with each piece.  Ends early once stopped() is true, or if the store has failed
    or cannot be read. Logs the start and the end.
    """
    size_bytes = store.files.memory_bytes
    _LOG.info("warm-up started dataset=%s bytes=%d", store.name, size_bytes)
    began = time.monotonic()
    done_bytes = 0
    reason = "complete"
    try:
        for piece in store.files.bring_in():
            done_bytes = piece.done_bytes
            if on_piece:
                on_piece(piece)
            if stopped():
                reason = "stopped"
                break
    except (CorpusChanged, Unreadable, OSError) as error:
        reason = str(error)
    _LOG.info(
        "warm-up ended dataset=%s bytes=%d of=%d seconds=%.1f reason=%s",
        store.name,
        done_bytes,
        size_bytes,
        time.monotonic() - began,
        reason,
    )
    return done_bytes


def take_digest(
    dataset: Dataset, stopped: Callable[[], bool], reading: SequentialDigest | None = None
) -> str:
    """Compute a dataset's digest and store it next to its files; if they cannot be written, only in
    memory.

    reading: what a warm-up has read; if that is not all, this thread reads the dataset now. Ends
    early once stopped() is true.  Returns: the reason if the digest is not known yet, else "".
    """
    store = dataset.store
    try:
        if reading is None or not reading.is_complete:
            reading = read_in_turn(store, stopped)
    except (CorpusChanged, Unreadable):
        return "its files changed, or cannot be read"
    if stopped() or not reading.is_complete:
        return "the server was stopped"
    # Compare more than the modification times, which can be set back.
    if not store.files.unchanged_since(reading.facts, stopped):
        return "the server was stopped" if stopped() else "its files changed"
    content_digest = reading.digest()
    found = dataset.original_digest(content_digest)
    if not found:
        problem = "some of its tokens were erased before it was known"
        _LOG.info("digest unknown dataset=%s: %s", dataset.name, problem)
        return ""
    dataset.digest = found
    kept = path = log_safe_name(store.digest_path)
    try:
        store.keep_digest(content_digest)
    except OSError as error:
        kept = f"in memory only: {path} cannot be written: {error.strerror}"
    _LOG.info(
        "digest dataset=%s sha256=%s seconds=%.1f kept=%s",
        dataset.name,
        found.hex(),
        reading.seconds,
        kept,
    )
    return ""
