"""The lists of redacted tokens of a dataset: a file beside it, which is read again when it changes.

A server runs when the first list is made, and for as long as it runs the lists only grow: a stream
names a list by its hash, also an older one.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.spans import Numbers

from ...runtime.exceptions import log_safe_name
from ...runtime.memo import Memo
from ...runtime.threads.worker_threads import WorkerThreads
from ...storage.door import door_of, scheme_of
from .list_format import BYTES_MAX, DamagedList, Erasure, ListContent
from .ranges import RedactionList

_LOG = logging.getLogger("tokenfeed.server")

SUFFIX = ".tokenfeed-redactions.jsonl"
_LOOK_SECONDS = 1.0
"""Between two looks at the file: on a file system of a network each is a request."""
_STORE_LOOK_SECONDS = 10.0
"""Between two looks at a list in an object store: each is billed, and may take seconds, so that a
thread of its own does it. After one that failed, also who needs to know at once does not look."""
_HELD_SECONDS = 30.0
"""How long to wait for another look at a local file; then what is known counts."""
_THREAD_COUNT = 4
_THREADS = WorkerThreads(_THREAD_COUNT)
"""For looks at lists in object stores."""
_OLDER_RANGES_KEPT = 1 << 22
"""Of older lists: 100 MB."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""There is no such file; beside one with a name of nearly 255 bytes there can be none."""

_FileState = tuple[object, ...]


def read_list(path: str) -> ListContent | None:
    """Return the content of a list file; None if there is none.

    Raises: InvalidCorpus if it is damaged, or cannot be read. A store that is away is waited for.
    """
    try:
        return _in_store(path) if scheme_of(path) else _read(path)[0]
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise InvalidCorpus(path, f"cannot be read: {error.strerror}") from error
    except DamagedList as problem:
        raise InvalidCorpus(path, f"{problem}; restore it from a replica or a backup") from problem


def _in_store(path: str) -> ListContent | None:
    """Return the content of an object; None if there is none.  Raises: InvalidCorpus, once a store
    has been away for long; DamagedList.
    """
    door = door_of(path)
    if not door.exists(path):
        return None
    with door.open(path) as file:
        if file.size_bytes > BYTES_MAX:
            raise DamagedList(f"has {file.size_bytes} bytes; the limit is {BYTES_MAX}")
        return ListContent.parse(file.read(0, file.size_bytes))


def _read(path: str) -> tuple[ListContent, _FileState]:
    """Return a file's content, and its state before it was read.  Raises: OSError, DamagedList."""
    if scheme_of(path):
        state = _state_now(path)
        try:
            found = door_of(path).content(path, BYTES_MAX)
        except ValueError as error:
            raise DamagedList(str(error)) from error
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return ListContent.parse(found), state
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedList("is not a regular file")
        if status.st_size > BYTES_MAX:
            raise DamagedList(f"has {status.st_size} bytes; the limit is {BYTES_MAX}")
        return ListContent.parse(file.read(BYTES_MAX + 1)), _state_of(status)


def _state_now(path: str) -> _FileState:
    """Return the state of a file.  Raises: OSError if there is none, or it is not told."""
    if not scheme_of(path):
        return _state_of(os.stat(path))
    try:
        found = door_of(path).entry(path, at_once=True)
    except InvalidCorpus as error:
        raise OSError(errno.EIO, error.problem) from error
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return found.size_bytes, found.version


def _state_of(status: os.stat_result) -> _FileState:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True, eq=False)
class ListedDataset:
    """What a list has to fit.

    fingerprint: of the dataset before any erasure.  token_counts: int64[files].  fill_max: the
    greatest token that can be stored and served.
    """

    fingerprint: bytes
    token_counts: Numbers
    fill_max: int

    def check(self, content: ListContent) -> RedactionList:
        """Return the latest list of a file.  Raises: DamagedList if the file does not fit."""
        if content.fingerprint != self.fingerprint:
            raise DamagedList(
                f"is of another dataset: its fingerprint is {content.fingerprint.hex()}, but this "
                f"one's is {self.fingerprint.hex()}"
            )
        if content.fill > self.fill_max:
            problem = f"replaces tokens by {content.fill}, but the greatest one here is"
            raise DamagedList(f"{problem} {self.fill_max}")
        latest, erasure = content.list_of(len(content.additions)), content.erasure
        try:
            latest.ranges.require_within(self.token_counts)
            if erasure is not None:
                erasure.ranges.require_within(self.token_counts)
        except ValueError as problem:
            raise DamagedList(f"has ranges that {problem}") from None
        return latest


@dataclass(frozen=True, slots=True)
class _Lists:
    """What was read.

    counts: of each list, by its hash, how many additions make it.  latest, erased: the lists that
    are asked for most; None if nothing was erased.
    """

    content: ListContent
    counts: dict[bytes, int]
    latest: RedactionList
    erased: RedactionList | None


class RedactionLists:
    """The lists of one dataset. May be used from several threads at once.

    Each use may look at the file, at most once a second; the others meanwhile get what was known.
    dataset: what they fit.
    """

    def __init__(self, path: str, dataset: ListedDataset, content: ListContent | None) -> None:
        """Take what was read; None if there is no file yet.  Raises: InvalidCorpus if it does not
        fit.
        """
        self.path = path
        self.dataset = dataset
        self._known: _Lists | None = None  # replaced as a whole
        self._older = Memo[bytes, RedactionList](lambda one: len(one.ranges), _OLDER_RANGES_KEPT)
        self._lock = threading.Lock()  # guards the rest
        self._state: _FileState = ()
        self._looked_at = self._failed_at = self._asked_at = -_STORE_LOOK_SECONDS
        self._is_asked = False
        self._problem = ""
        if content is not None:
            try:
                self._known = self._checked(content)
            except DamagedList as problem:
                cure = "move it away, or restore it from a replica or a backup"
                raise InvalidCorpus(path, f"{problem}; {cure}") from problem

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """Of every list, the latest one last."""
        self._look()
        return () if self._known is None else tuple(self._known.counts)

    @property
    def erased(self) -> RedactionList | None:
        """The list whose tokens are erased, whether or not these files are replaced yet."""
        self._look()
        return None if self._known is None else self._known.erased

    @property
    def content(self) -> ListContent | None:
        """All of the file."""
        self._look()
        return None if self._known is None else self._known.content

    def content_now(self) -> ListContent | None:
        """Like `content`, but looks at the file at once."""
        self._look(at_once=True)
        return None if self._known is None else self._known.content

    def find(self, list_hash: bytes) -> RedactionList | None:
        """Return the list of a hash; None if there is none. Looks at the file at once if the hash
        is unknown.
        """
        known = self._known_with(list_hash)
        if known is None:
            return None
        for each in (known.latest, known.erased):
            if each is not None and each.hash == list_hash:
                return each
        try:
            # It takes seconds for a million ranges.
            return self._older.get(
                list_hash, lambda: known.content.list_of(known.counts[list_hash])
            )
        except DamagedList as problem:
            _LOG.error("redactions ignored file=%s: it %s", log_safe_name(self.path), problem)
            return None

    def last_of(self, list_hashes: Sequence[bytes]) -> bytes:
        """Return the hash of the list that has the tokens of all of some lists: of any two, one has
        those of the other, and the same fill. Looks at the file like `find`.

        list_hashes: at least one.  Raises: KeyError, with the hash of a list that there is not.
        """
        counts = dict[bytes, int]()
        for each in list_hashes:
            known = self._known_with(each)
            if known is None:
                raise KeyError(each)
            counts[each] = known.counts[each]
        return max(counts, key=counts.__getitem__)

    def _known_with(self, list_hash: bytes) -> _Lists | None:
        """Return what is known, read again at once if a list is not; None if there is no such."""
        self._look()
        known = self._known
        if known is None or list_hash not in known.counts:
            self._look(at_once=True)
            known = self._known
        return known if known is not None and list_hash in known.counts else None

    def _look_in_thread(self) -> None:
        try:
            self._look(at_once=True)
        finally:
            self._is_asked = False

    def _look(self, *, at_once: bool = False) -> None:
        """Read the file again if it has changed.

        at_once: also within a second, and on the file system of a network: to open a file asks
        the server for its status, which a stat may have from a cache of up to a minute. Of a list
        in an object store only this waits for it.
        """
        called_at = time.monotonic()
        if scheme_of(self.path):
            if called_at - self._failed_at < _STORE_LOOK_SECONDS:
                return
            if not at_once:
                asked_seconds = called_at - self._asked_at
                # A look may hang for as long as the store; a fork has none of its parent's.
                if asked_seconds >= _STORE_LOOK_SECONDS * (6 if self._is_asked else 1):
                    self._asked_at, self._is_asked = called_at, True
                    if not _THREADS.submit(self._look_in_thread):
                        self._is_asked = False
                return
        elif not at_once and called_at - self._looked_at < _LOOK_SECONDS:
            return
        # A trainer's thread may be in the middle of a look at a local file, and a signal handler
        # there may wait for this thread. Not `acquire` with a timeout: a Ctrl-C behind the call
        # would leave it locked.
        wait_seconds = _HELD_SECONDS if at_once else 0.0
        while self._lock.locked() and not (at_once and scheme_of(self.path)):
            if time.monotonic() - called_at >= wait_seconds:
                return
            time.sleep(0.01)
        with self._lock:
            self._look_now(called_at, at_once=at_once)

    def _look_now(self, called_at: float, *, at_once: bool) -> None:
        """Read the file again if it has changed; not if another thread has done so since called_at,
        unless that is a local file that is looked at at once.
        """
        has_looked = max(self._looked_at, self._failed_at) > called_at
        if has_looked and (scheme_of(self.path) or not at_once):
            return
        self._looked_at = time.monotonic()
        try:
            self._read_again(opens=at_once)
        except OSError as error:
            if error.errno not in _ABSENT:
                self._failed_at = time.monotonic()
                self._ignore(f"cannot be read: {error.strerror}")
                return
            if self._known is not None and self._state:
                _LOG.warning("redactions gone, still known file=%s", log_safe_name(self.path))
            self._state = ()
        except DamagedList as problem:
            self._ignore(str(problem))

    def _ignore(self, problem: str) -> None:
        """Keep what was known, and log why, once."""
        if problem != self._problem:
            self._problem = problem
            _LOG.error("redactions not read file=%s: it %s", log_safe_name(self.path), problem)

    def _read_again(self, *, opens: bool) -> None:
        """Take the file if it has changed.  Raises: OSError; DamagedList, once for each change."""
        if opens and not scheme_of(self.path):
            os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        state = _state_now(self.path)
        if state == self._state:
            return
        try:
            content, self._state = _read(self.path)
        except DamagedList:
            self._state = state
            raise
        known = self._known
        if known is not None:
            hashes, erasure = tuple(known.counts), known.content.erasure
            if content.hashes[: len(hashes)] != hashes or not _has_erased(content, erasure):
                raise DamagedList("lacks what it had; restart the server if that is right")
        self._known = self._checked(content)
        self._problem = ""

    def _checked(self, content: ListContent) -> _Lists:
        latest = self.dataset.check(content)
        counts = {each: count for count, each in enumerate(content.hashes, 1)}
        erased = None
        if content.erasure is not None:
            erased = content.list_of(counts[content.erasure.list_hash])
        return _Lists(content, counts, latest, erased)


def _has_erased(content: ListContent, erasure: Erasure | None) -> bool:
    """Return whether a list says that all tokens of an erasure are erased: of its list, or of a
    later one.
    """
    if erasure is None or content.erasure is None:
        return erasure is None
    places = {each: place for place, each in enumerate(content.hashes)}
    return places[content.erasure.list_hash] >= places[erasure.list_hash]


def _renew_threads() -> None:
    """A fork has none of the threads."""
    global _THREADS
    _THREADS = WorkerThreads(_THREAD_COUNT)


os.register_at_fork(after_in_child=_renew_threads)
