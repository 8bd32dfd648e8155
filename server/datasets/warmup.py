"""Preloads datasets that fit into memory, in the background while they are served, and computes
their missing digests.

Reading a file once in order is many times faster than reading it at random. Digests are computed
afterwards, from what is then in memory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from tokenfeed.errors import CorpusChanged, InvalidCorpus, Unreadable

from ..runtime.exceptions import log_exception, log_safe_name
from ..runtime.process import memory_limit
from ..storage.digest_file import digest_path, write_digest
from ..storage.store import TokenStore
from .content import Content, digest_of
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
        preloaded: list[TokenStore] = []
        try:
            os.nice(_NICENESS)  # of this thread alone, on Linux
            bytes_max = self._bytes_max
            if bytes_max is None:
                bytes_max = int(_ROOM_SHARE * memory_limit.available_bytes())
            chosen = _chosen(self._datasets, bytes_max)
            self._done_bytes = dict.fromkeys(chosen, 0)
            preloaded += filter(self._warm, chosen)
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
                problem = self._take_digest(dataset)
            if problem:
                cure = "tokenfeed verify computes it"
                _LOG.info("digest unknown dataset=%s: %s; %s", dataset.name, problem, cure)

    def _warm(self, store: TokenStore) -> bool:
        """Preload a store; return whether all of it was."""

        def on_progress(done_bytes: int) -> None:
            self._done_bytes[store] = done_bytes

        is_complete = warm(store, self._closed.is_set, on_progress) == store.files.memory_bytes
        if not is_complete:
            del self._done_bytes[store]
        return is_complete

    def _take_digest(self, dataset: Dataset) -> str:
        """Compute and store a dataset's digest.  Returns: the reason if it failed, else ""."""
        try:
            return take_digest(dataset, self._closed.is_set)
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
    on_progress: Callable[[int], None] = lambda done_bytes: None,
) -> int:
    """Preload all of a store; return how many bytes were preloaded.

    on_progress: called with the bytes that are preloaded, again and again.  Ends early once
    stopped() is true, or if the store has failed or cannot be read. Logs the start and the end.
    """
    size_bytes = store.files.memory_bytes
    _LOG.info("warm-up started dataset=%s bytes=%d", store.name, size_bytes)
    began = time.monotonic()
    done_bytes = 0
    reason = "complete"
    try:
        for done_bytes in store.files.bring_in():
            on_progress(done_bytes)
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


def take_digest(dataset: Dataset, stopped: Callable[[], bool]) -> str:
    """Compute a dataset's digest in this thread and store it next to its files; if they cannot be
    written, only in memory.

    Ends early once stopped() is true.  Returns: the reason if the digest is not known yet, else "".
    """
    store, began = dataset.store, time.monotonic()
    facts = store.files.facts
    content = Content(store, store.files.read_served, stopped, readers=1)
    try:
        hashes = [block.sha256 for block in content.hashed(complete=True)]
    except (CorpusChanged, Unreadable):
        return "its files changed, or cannot be read"
    except InvalidCorpus:
        return "the server was stopped"
    # Compare more than the modification times, which can be set back.
    if not store.files.unchanged_since(facts, stopped):
        return "the server was stopped" if stopped() else "its files changed"
    content_digest = digest_of(store, hashes)
    found = dataset.original_digest(content_digest)
    if not found:
        problem = "some of its tokens were erased before it was known"
        _LOG.info("digest unknown dataset=%s: %s", dataset.name, problem)
        return ""
    dataset.digest = found
    kept = path = log_safe_name(digest_path(store))
    try:
        write_digest(store, dataset.fingerprint, content_digest)
    except OSError as error:
        kept = f"in memory only: {path} cannot be written: {error.strerror}"
    _LOG.info(
        "digest dataset=%s sha256=%s seconds=%.1f kept=%s",
        dataset.name,
        found.hex(),
        time.monotonic() - began,
        kept,
    )
    return ""
