"""The row indices of a dataset: found, or made, in the background when they are first asked for.

The file of an index is checked there too: up to 1 GiB of it is read, which may take longer than a
request waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial

from tokenfeed.errors import InvalidRequest, LimitExceeded, TokenfeedError, Unreadable
from tokenfeed.sampling.document_rows import RowsKey

from ...runtime.threads.executors import Executor
from ..store import TokenStore
from .background_build import Build, OnProgress, Stopped, never
from .document_starts import DocumentStarts
from .row_index import CONTEXT_LENGTH_END, RowIndex
from .rows_builder import FileDocuments, FileRows, Memory, RowsBuilder, what_of

DOCUMENTS_MAX = 10**8
"""From here on, rows are made by a command. Fewer take a server a minute or so: 0.24 to 0.76 s for
10^6 documents; see tools/pack.py."""
INDICES_MAX = 16
"""Opened at once, so that requests for any context length do not fill the disk."""
_READ_SECONDS, _DESCRIBED_SECONDS = 900.0, 60.0
"""An index makes room for another one this long after rows were read of it, or it was only
described. A client that has prefetched rows asks for more after minutes."""
MEMORY_SHARE = 0.5
"""Of the memory that is available, how much the making of rows may take in a process that has other
work too."""
_WAIT_SECONDS = 1.0
"""A request waits for rows until they have been made for this long, which is enough for a million
documents."""
_FAILED_SECONDS = 300.0
"""After a failure, which may be that of a disk that is full. Then the next request tries again."""
_REFUSED_SECONDS = 10.0
"""After a refusal, since a command may make what was not there. Longer than a client takes to ask
again, which may not have waited for the answer."""
_FAILED_MAX = 1024
"""Keys that were refused, or failed, and are remembered."""


class RowIndices:
    """The row indices of a dataset. All methods may be called from several threads at once."""

    def __init__(
        self,
        store: TokenStore,
        starts: DocumentStarts | None,
        delimiter: int | None,
        cache_dir: str | None,
        fingerprint: bytes,
        pack_options: Sequence[str] = (),
    ) -> None:
        """Open nothing yet; the arguments are as for RowsBuilder.

        starts: of the documents; None if nothing is known of them.  pack_options: words that
        `tokenfeed pack` needs for these files.
        """
        self._store = store
        self._starts = starts
        self._delimiter = delimiter
        self._cache_dir = cache_dir
        self._fingerprint = fingerprint
        self._pack_options = pack_options
        self._lock = threading.Lock()  # guards what follows; builds are read without it
        # Of each key the last one: it is running, has an index that is open, or has failed.
        self._builds: dict[RowsKey, Build[RowIndex]] = {}
        self._needed_until: dict[RowsKey, float] = {}
        self._is_stopping = self._is_closed = False

    def get(self, key: RowsKey, *, is_read: bool = True) -> RowIndex:
        """Return an index. If it is not opened, a thread begins to find or to make it, which this
        waits for, but not for long.

        is_read: whether rows are read of it, or it is only described.
        Raises: InvalidRequest if there cannot be one, with the reason; Unreadable, with the
        progress or the failure, until it is there.
        """
        while True:
            build = self._builds.get(key)
            if build is None or build.result is None:
                with self._lock:
                    build = self._begun(key)
                if build is not None:
                    build.wait(_WAIT_SECONDS)
                    # Another one, if it was made by another thread meanwhile.
                    build = self._builds.get(key, build)
            if build is None or build.result is None:
                if build is not None and build.error is not None:
                    raise self._answer(key, build.error)
                raise self._not_yet(key)
            with self._lock:
                if self._builds.get(key) is build:  # else it has made room for another one
                    self._keep_for(key, _READ_SECONDS if is_read else _DESCRIBED_SECONDS)
                    return build.result

    def find(self, key: RowsKey) -> RowIndex | float | None:
        """Return an index if it is opened; otherwise the share of the work that is done, in
        [0, 1): a search for documents counts as half of it. Begins nothing.

        Returns: the progress of other rows while these wait for them; None if `get` would raise
        something else, it says what.
        """
        with self._lock:
            build = self._builds.get(key)
            if build is not None and build.result is not None:
                return build.result
            is_refused = self._refusal(key) is not None
            is_failed = self._starts is not None and self._starts.has_failed
            return None if is_refused or is_failed else self._progress()

    def make_now(self, key: RowsKey, stopped: Stopped = never, *, share: bool = False) -> RowIndex:
        """Return an index, found or made in this thread; of any number of documents.

        share: whether it is made once by all processes of this machine that open the same files.
        stopped: whether to stop, which raises InvalidCorpus.  Raises: TokenfeedError.
        """
        with self._lock:
            build = self._builds.get(key)
            if build is not None and build.result is not None:
                return build.result
            self._require_room()
        build = self._build(key, is_background=False, share=share)
        index = build.run(lambda: self._is_stopping or stopped())
        with self._lock:
            other = self._builds.get(key)
            if other is not None and other.result is not None:
                build.close()
                return other.result
            self._builds[key] = build
            self._keep_for(key, _DESCRIBED_SECONDS)
            if self._is_closed:
                build.close()
        if other is not None:
            other.stop()  # a thread that makes the same, if it has not failed
        return index

    def builder(
        self,
        key: RowsKey,
        memory: Memory | None = None,
        run: Executor[FileDocuments, RowsKey, FileRows] | None = None,
    ) -> RowsBuilder:
        """Return what finds or makes an index.

        memory: that it may take; by default what a server has for it.  run: as for RowsBuilder.
        Raises: InvalidRequest if there cannot be one; Unreadable during a search for documents.
        """
        self._require_possible(key)
        assert self._starts is not None
        self._starts.require_known()
        if memory is None:
            cure = "use smaller files, or a machine with more memory and: " + self._command(key)
            memory = Memory(MEMORY_SHARE, 1, cure)
        return RowsBuilder(
            self._store,
            self._starts,
            self._delimiter,
            self._cache_dir,
            self._fingerprint,
            key,
            memory,
            run,
        )

    @property
    def making(self) -> tuple[RowsKey, float] | None:
        """What is being made, and the share of it that is done; None if nothing is."""
        builds = list(self._builds.items())
        return next(((key, build.progress) for key, build in builds if build.is_running), None)

    def stop(self) -> None:
        """End a making in progress, which leaves nothing; what was opened can still be read. May be
        called twice.
        """
        self._is_stopping = True
        for build in list(self._builds.values()):
            build.stop()

    def close(self) -> None:
        """End the thread, or abandon it if it waits for a disk, and close all. May be called
        twice.
        """
        self._is_stopping = True
        with self._lock:
            self._is_closed = True
            builds = list(self._builds.values())
        for build in builds:
            build.close()

    def _build(self, key: RowsKey, *, is_background: bool, share: bool = False) -> Build[RowIndex]:
        make = partial(self._made, key, is_background, share)
        return Build(f"{what_of(key)} not made", self._store.name, make)

    def _made(
        self,
        key: RowsKey,
        is_background: bool,
        share: bool,
        stopped: Stopped,
        on_progress: OnProgress,
    ) -> RowIndex:
        """Find or make an index.  Raises: TokenfeedError."""
        builder = self.builder(key)
        index = builder.find()
        if index is None:
            if is_background and builder.starts.count >= DOCUMENTS_MAX:
                name, count = self._store.name, builder.starts.count
                problem = f"{name!r} has {count} documents, and no {builder.what} yet"
                raise InvalidRequest("order", f"{problem}; run: {self._command(key)}")
            make = builder.make_once if share else builder.make
            index = make(stopped, on_progress)
        with self._lock:
            # If all of them are in use, this index is one above the limit for a while.
            if len(self._opened) >= INDICES_MAX and (idle := self._idle()) is not None:
                self._builds.pop(idle).close()
                del self._needed_until[idle]
            self._keep_for(key, _DESCRIBED_SECONDS)
        return index

    def _begun(self, key: RowsKey) -> Build[RowIndex] | None:
        """Return the build of this key, begun now if there is none; None if it waits for another
        one.

        Raises: InvalidRequest, Unreadable.
        """
        build = self._builds.get(key)
        if build is not None and build.result is not None:
            return build
        if (refusal := self._refusal(key)) is not None:
            raise refusal
        if self._starts is not None:
            self._starts.require_known()
        if build is not None and build.error is None:
            return build  # it has its index by now
        if (making := self.making) is None:
            failed = [one for one, other in self._builds.items() if other.error is not None]
            for one in failed if len(failed) >= _FAILED_MAX else ():
                del self._builds[one]
            self._builds[key] = build = self._build(key, is_background=True)
            build.start()
            return build
        return build if making[0] == key else None

    def _refusal(self, key: RowsKey) -> TokenfeedError | None:
        """Return why nothing is begun for a key; None if nothing is known against it."""
        build = self._builds.get(key)
        try:
            self._require_possible(key)
            if build is None or not build.is_running:
                self._require_room()
        except InvalidRequest as error:
            return error
        if self._is_stopping:
            problem = f"has no {what_of(key)}, and its server stops; retry later, or on another"
            return Unreadable("dataset", f"{self._store.name!r} {problem} server")
        if build is None or build.error is None or isinstance(build.error, Unreadable):
            return None  # nothing is wrong with the documents: the next request tries it again
        is_refused = isinstance(build.error, InvalidRequest)
        end = build.ended_at + (_REFUSED_SECONDS if is_refused else _FAILED_SECONDS)
        return None if time.monotonic() >= end else self._answer(key, build.error)

    def _require_possible(self, key: RowsKey) -> None:
        """Raise InvalidRequest if there can be no such rows."""
        if self._starts is None:
            problem = f"{key.order} needs to know where documents begin"
            cure = f"which is unknown for {self._store.name!r}; pass --document-end-token"
            unknown = [shard for shard in self._store.shards if shard.layout.documents is None]
            if 0 < len(unknown) < len(self._store.shards):
                name = os.path.basename(unknown[0].path)
                cure = f"which {len(unknown)} file(s) of {self._store.name!r} do not say, first "
                cure += f"{name}; restore their indices of documents"
            raise InvalidRequest("order", f"{problem}, {cure}")
        if not 1 <= key.context_length < CONTEXT_LENGTH_END:
            problem = f"{key.context_length} is not in [1, {CONTEXT_LENGTH_END})"
            raise InvalidRequest("context_length", f"{problem}, the range of {key.order}")

    @property
    def _opened(self) -> list[RowsKey]:
        return [key for key, build in list(self._builds.items()) if build.result is not None]

    def _require_room(self) -> None:
        """Raise LimitExceeded if too many are opened, and none of them is idle."""
        if len(self._opened) >= INDICES_MAX and self._idle() is None:
            problem = f"{self._store.name!r} has rows for {INDICES_MAX} context lengths and orders"
            cure = "the most at once; use one of them, retry when one was not read for "
            cure += f"{_READ_SECONDS / 60:.0f} minutes, or on another server"
            raise LimitExceeded("context_length", f"{problem}, {cure}")

    def _keep_for(self, key: RowsKey, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._needed_until[key] = max(end, self._needed_until.get(key, end))

    def _idle(self) -> RowsKey | None:
        """Return the index that is idle for longest; None if none is."""
        found = min(self._opened, key=self._needed_until.__getitem__)
        return found if self._needed_until[found] < time.monotonic() else None

    def _command(self, key: RowsKey) -> str:
        """Return the command that makes rows."""
        command = f"tokenfeed pack DATA --context-length {key.context_length}"
        command += f" --order {key.order.partition('-')[0]} --long {key.long_documents}"
        return " ".join((command, *self._pack_options))

    def _progress(self) -> float:
        """Return the share of the work that is done, in [0, 1): of the making in progress."""
        making = self.making
        share = 0.0 if making is None else making[1]
        if self._starts is not None and self._starts.is_search:
            share = (self._starts.progress + share) / 2
        return share

    def _not_yet(self, key: RowsKey) -> Unreadable:
        """Return that an index is not there yet."""
        making, done = self.making, f"{100 * self._progress():.1f} % are done"
        if making is not None and making[0] != key:
            problem = f"no {what_of(key)} yet: they wait for {what_of(making[0])}, of which {done}"
        else:
            problem = f"{what_of(key)} that are still being made; {done}"
        cure = "retry later, or on another server"
        return Unreadable("dataset", f"{self._store.name!r} has {problem}; {cure}")

    def _answer(self, key: RowsKey, error: Exception) -> TokenfeedError:
        """Return what a request is answered with after an error of the thread."""
        if isinstance(error, InvalidRequest | Unreadable):
            return type(error)(error.subject, error.problem)
        problem = f"has no {what_of(key)}: making them failed"
        cure = f"the log of its server says why; it tries again after {_FAILED_SECONDS:.0f} s"
        return Unreadable("dataset", f"{self._store.name!r} {problem}; {cure}")
