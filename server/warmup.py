"""Brings corpora that fit into memory in, in the background, while they are being served, and takes
the digests that nobody knows yet of what it brought in.

Reading a file in once, in order, is many times faster than faulting it in at random, and a page
that is in the page table costs a gather no fault any more. The map is never touched in user space:
a file cut short meanwhile is an error of the system call.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tokenfeed.errors import BadCorpus, CorpusChanged

from . import kernel, memory
from .blame import file_name, log_blame
from .corpus import Corpus
from .dataset import Dataset, digest_in_turn
from .digest import sidecar_path, write_sidecar
from .scratch import Scratch

_LOG = logging.getLogger("tokenfeed.server")

# Whether a disk reads 2 GiB in pieces of 1 or 4 MiB makes no difference (1.0 to 1.7 GB/s), nor does
# its read_ahead_kb. 2 cores, 2026-11; docs/decisions/0006-warm-up.md.
PIECE_BYTES = 1 << 20
_PIECES_AHEAD = 4
_READ_BYTES = 128 << 10
"""What the kernel is asked for at once. Of a longer range it reads only the first part, as long as
the disk's read_ahead_kb, and says nothing."""
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
        is_in: dict[str, bool] = {}
        try:
            os.nice(_NICENESS)  # of this thread alone, on Linux
            bytes_max = self._bytes_max
            if bytes_max is None:
                bytes_max = int(_ROOM_SHARE * memory.room_bytes())
            for corpus in fitting([dataset.corpus for dataset in self._datasets], bytes_max):
                is_in[corpus.name] = warm(corpus, self._closed.is_set) == _size_bytes(corpus)
        except Exception:  # noqa: BLE001 - the server serves all the same
            log_blame(logging.ERROR, "could not warm up")
        # Once all are in: streams wait for pages, and for a digest nobody does.
        for dataset in self._datasets:
            if self._closed.is_set():
                return
            if dataset.digest:
                continue
            problem = "not all of it was brought into memory"
            if is_in.get(dataset.name):
                problem = self._take_digest(dataset)
            if problem:
                cure = "python -m server.verify computes it"
                _LOG.info("digest unknown dataset=%s: %s; %s", dataset.name, problem, cure)

    def _take_digest(self, dataset: Dataset) -> str:
        """Have a dataset know its digest, and keep it.  Returns: why not, "" if all is well."""
        try:
            return take_digest(dataset, self._closed.is_set)
        except Exception:  # noqa: BLE001 - the others still have to be read
            log_blame(logging.ERROR, "could not take the digest dataset=%s", dataset.name)
            return "its computation failed"


def fitting(corpora: Sequence[Corpus], bytes_max: int) -> list[Corpus]:
    """Return the corpora that together have at most bytes_max, the smallest first; the others are
    logged.
    """
    chosen = []
    left_bytes = bytes_max
    for corpus in sorted(corpora, key=_size_bytes):
        if _size_bytes(corpus) <= left_bytes:
            left_bytes -= _size_bytes(corpus)
            chosen.append(corpus)
        else:
            _LOG.info(
                "not warming up dataset=%s bytes=%d: room for %d",
                corpus.name,
                _size_bytes(corpus),
                left_bytes,
            )
    return chosen


def warm(corpus: Corpus, stopped: Callable[[], bool]) -> int:
    """Bring a corpus into memory and into the page table; return how many bytes of it are there.

    Ends early once stopped() is true, and where the corpus is lost or cannot be read. The log has a
    line when it begins and one when it ends.
    """
    size_bytes = _size_bytes(corpus)
    _LOG.info("warming up dataset=%s bytes=%d", corpus.name, size_bytes)
    began = time.monotonic()
    done_bytes = 0
    reason = "complete"
    try:
        for done_bytes in _bring_in(corpus):  # noqa: B007 - also wanted after an error
            if stopped():
                reason = "stopped"
                break
    except (CorpusChanged, OSError) as error:
        reason = str(error)
    _LOG.info(
        "warm-up ended dataset=%s bytes=%d of=%d seconds=%.1f reason=%s",
        corpus.name,
        done_bytes,
        size_bytes,
        time.monotonic() - began,
        reason,
    )
    return done_bytes


def take_digest(dataset: Dataset, stopped: Callable[[], bool]) -> str:
    """Read a dataset in this thread alone, have it know its digest, and keep that beside its files;
    in memory alone where it cannot be written there.

    Ends early once stopped() is true.  Returns: why it is not known, "" if it is.
    """
    corpus = dataset.corpus
    before = [shard.facts_now() for shard in corpus.shards]
    began = time.monotonic()
    try:
        found = digest_in_turn(corpus, stopped)
    except (BadCorpus, CorpusChanged):
        return "its files changed, or cannot be read"
    if not found:
        return "the server was stopped"
    # Not only the times of last write, which can be put back.
    if corpus.lost or [shard.facts_now() for shard in corpus.shards] != before:
        return "its files changed"
    dataset.full_digest.known = found
    kept = sidecar = file_name(sidecar_path(corpus.shards, corpus.stored))
    try:
        write_sidecar(corpus.shards, corpus.stored, found)
    except OSError as error:
        kept = f"in memory alone: {sidecar} cannot be written: {error.strerror}"
    _LOG.info(
        "digest dataset=%s sha256=%s seconds=%.1f kept=%s",
        dataset.name,
        found.hex(),
        time.monotonic() - began,
        kept,
    )
    return ""


def _bring_in(corpus: Corpus) -> Iterator[int]:
    """Bring a corpus in piece by piece; yield how many bytes are there by now.

    Raises: CorpusChanged; OSError where the files cannot be read.
    """
    address, span_bytes = corpus.span
    asked_bytes = 0
    for first in range(0, span_bytes, PIECE_BYTES):
        corpus.require_intact()
        end = min(first + PIECE_BYTES, span_bytes)
        ahead_bytes = min(end + _PIECES_AHEAD * PIECE_BYTES, span_bytes)
        _read_ahead(address + asked_bytes, address + ahead_bytes)
        asked_bytes = ahead_bytes
        if not kernel.populate(address + first, end - first):
            _touch(address + first, end - first)
        yield end


def _read_ahead(first_address: int, end_address: int) -> None:
    """Have the kernel start to read a range, without waiting for it."""
    firsts = np.arange(first_address, end_address, _READ_BYTES, dtype=np.uint64)
    ends = np.append(firsts[1:], np.uint64(end_address))
    ranges = np.stack([firsts, ends - firsts], axis=1)
    if len(ranges) and not kernel.read_ahead(ranges):
        kernel.read_ahead_singly(ranges)


def _touch(address: int, size_bytes: int) -> None:
    """Have the kernel copy a byte of every page, for kernels that cannot populate.  Raises:
    OSError where a page cannot be read.
    """
    pages = np.arange(address, address + size_bytes, kernel.PAGE_BYTES, dtype=np.uint64)
    scratch = Scratch()
    try:
        if not scratch.fill(np.stack([pages, np.ones_like(pages)], axis=1)):
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    finally:
        scratch.close()


def _size_bytes(corpus: Corpus) -> int:
    return corpus.span[1]
