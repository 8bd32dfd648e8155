"""Brings datasets that fit into memory in, in the background, while they are being served, and
takes the digests that nobody knows yet of what it brought in.

Reading a file in once, in order, is many times faster than reading it at random. A store that reads
what it brings in has it hashed on the way; of one that maps it, the digest is taken afterwards.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from tokenfeed.errors import CorpusChanged, Unreadable

from ..runtime import memory_limit
from ..runtime.exceptions import log_exception, log_safe_name
from ..storage.store import Piece, TokenStore
from .content import InOrder, read_in_turn
from .dataset import Dataset

_LOG = logging.getLogger("tokenfeed.server")

_ROOM_SHARE = 0.9
"""The rest is for streams, page tables and the neighbours."""
_NICENESS = 10
"""Streams come first where processors are short: 340 Mtok/s beside a warm-up instead of 302. The
idle class would stop them: a thread that does not run does not let go of the GIL either."""
_CLOSE_SECONDS = 0.5


class WarmUp:
    """A thread that brings corpora in, the smallest first, and then takes their digests, until it
    is done or closed.
    """

    def __init__(self, datasets: Iterable[Dataset], bytes_max: int | None = None) -> None:
        """Begin.  bytes_max: what all corpora brought in may have; None is what memory has room
        for.
        """
        self._datasets = list(datasets)
        self._bytes_max = bytes_max
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokenfeed-warmup", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, or leave it behind where a disk keeps it waiting. May be called twice."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        is_in: dict[str, InOrder] = {}
        try:
            os.nice(_NICENESS)  # of this thread alone, on Linux
            bytes_max = self._bytes_max
            if bytes_max is None:
                bytes_max = int(_ROOM_SHARE * memory_limit.available_bytes())
            unknown = {dataset.name for dataset in self._datasets if not dataset.digest}
            for store in fitting([dataset.store for dataset in self._datasets], bytes_max):
                reading = InOrder(store)
                told = reading.add if store.name in unknown else None
                if warm(store, self._closed.is_set, told) == store.memory_bytes:
                    is_in[store.name] = reading
        except Exception:  # noqa: BLE001 - the server serves all the same
            log_exception(logging.ERROR, "could not warm up")
        # Once all are in: streams wait for pages, and for a digest nobody does.
        for dataset in self._datasets:
            if self._closed.is_set():
                return
            if dataset.digest:
                continue
            problem = "not all of it was brought into memory"
            if dataset.name in is_in:
                problem = self._take_digest(dataset, is_in[dataset.name])
            if problem:
                cure = "python -m server.verify computes it"
                _LOG.info("digest unknown dataset=%s: %s; %s", dataset.name, problem, cure)

    def _take_digest(self, dataset: Dataset, reading: InOrder) -> str:
        """Have a dataset know its digest, and keep it.  Returns: why not, "" if all is well."""
        try:
            return take_digest(dataset, self._closed.is_set, reading)
        except Exception:  # noqa: BLE001 - the others still have to be read
            log_exception(logging.ERROR, "could not take the digest dataset=%s", dataset.name)
            return "its computation failed"


def fitting(stores: Sequence[TokenStore], bytes_max: int) -> list[TokenStore]:
    """Return the stores that together have at most bytes_max, the smallest first; the others are
    logged.
    """
    chosen = []
    left_bytes = bytes_max
    for store in sorted(stores, key=lambda store: store.memory_bytes):
        if store.memory_bytes <= left_bytes:
            left_bytes -= store.memory_bytes
            chosen.append(store)
        else:
            _LOG.info(
                "not warming up dataset=%s bytes=%d: room for %d",
                store.name,
                store.memory_bytes,
                left_bytes,
            )
    return chosen


def warm(
    store: TokenStore,
    stopped: Callable[[], bool],
    brought_in: Callable[[Piece], None] | None = None,
) -> int:
    """Bring all of a store into memory; return how many bytes of it are there.

    brought_in: is told of each piece.  Ends early once stopped() is true, and where the store is
    lost or cannot be read. The log has a line when it begins and one when it ends.
    """
    size_bytes = store.memory_bytes
    _LOG.info("warming up dataset=%s bytes=%d", store.name, size_bytes)
    began = time.monotonic()
    done_bytes = 0
    reason = "complete"
    try:
        for piece in store.bring_in():
            done_bytes = piece.done_bytes
            if brought_in:
                brought_in(piece)
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
    dataset: Dataset, stopped: Callable[[], bool], reading: InOrder | None = None
) -> str:
    """Have a dataset know its digest, and keep that beside its files; in memory alone where it
    cannot be written there.

    reading: what a warm-up has read of it; where that is not all, this thread alone reads it now.
    Ends early once stopped() is true.  Returns: why it is not known, "" if it is.
    """
    store = dataset.store
    try:
        if reading is None or not reading.is_complete:
            reading = read_in_turn(store, stopped)
    except (CorpusChanged, Unreadable):
        return "its files changed, or cannot be read"
    if stopped() or not reading.is_complete:
        return "the server was stopped"
    # Not only the times of last write, which can be put back.
    if not store.unchanged_since(reading.facts, stopped):
        return "the server was stopped" if stopped() else "its files changed"
    dataset.full_digest.known = found = reading.digest()
    kept = sidecar = log_safe_name(store.digest_path)
    try:
        store.keep_digest(found)
    except OSError as error:
        kept = f"in memory alone: {sidecar} cannot be written: {error.strerror}"
    _LOG.info(
        "digest dataset=%s sha256=%s seconds=%.1f kept=%s",
        dataset.name,
        found.hex(),
        reading.seconds,
        kept,
    )
    return ""
