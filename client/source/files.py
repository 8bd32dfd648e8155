"""Datasets in files of this machine, without a server: the only module of the client that uses the
server's packages, and only when a feed is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tokenfeed._links import require_package
from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.stage import Redactions
from tokenfeed.wire.request import AnyRequest, Request

from ..runtime.awaited_task import AwaitedTask
from ..runtime.counters import Counters
from ..runtime.supervisor import Task
from ..transport.addresses import Targets
from .calls import Calls
from .datasets import Datasets, Requirements
from .describe import describe_sources
from .file_rows import FileRows
from .file_target import parse_local_target
from .server_check import Descriptions, require_usable

if TYPE_CHECKING:
    from typing import Unpack

    from tokenfeed.server.datasets.provenance.answers import Answers
    from tokenfeed.server.open_local import LocalDatasets

_LOG = logging.getLogger("tokenfeed.client")

_AHEAD_BYTES_MAX = 8 << 20
"""Local rows are at hand at once: more of them ahead would only leave the caches."""
_LOG_SECONDS = 30.0


Result = TypeVar("Result")


class Files(Datasets):
    """Datasets in files of this machine, which are read in the trainer's process. They are opened
    when they are first needed, in a thread that no signal interrupts.
    """

    def __init__(
        self,
        targets: Targets,
        request: Request,
        *,
        reconnect_seconds: float,
        **required: Unpack[Requirements],
    ) -> None:
        """Parse the targets; does no I/O.

        reconnect_seconds: how long to try again if files cannot be read.
        Raises: InvalidRequest if a target is malformed.
        """
        super().__init__(request, **required)
        self._target = parse_local_target(targets)
        names = [source.dataset for source in request.stream.sources]
        self._is_remote = any(map(self._target.is_remote, names))
        self._reconnect_seconds = reconnect_seconds
        self._opened: LocalDatasets | None = None
        self._open_lock = threading.Lock()
        self._supervise(self._close_files)

    def await_described(self) -> Descriptions:
        """Return the description of each source; opens them first.  Raises: RequestError,
        CorpusError.
        """
        if self._described is None:
            self._await_opened()
        assert self._described is not None
        return self._described

    def await_provenance(self) -> Answers:
        """Return what tells where rows come from; opens the files first, like `await_described`."""
        return self._await_opened().provenance

    def open_rows(
        self, request: AnyRequest, *, prefetch_bytes: int, counters: Counters
    ) -> FileRows:
        """Return the rows of a stream, which reads nothing before `start`; prefetch_bytes of 0
        means without a thread, if they are read without waiting for other threads.
        """
        ahead_rows = min(prefetch_bytes, _AHEAD_BYTES_MAX) // (2 * request.stream.row_tokens)
        # A Ctrl-C in the consumer's thread could leave what other threads wait for half done.
        if prefetch_bytes or self._is_remote:
            ahead_rows = max(ahead_rows, 2 * request.position.batch_size)
        return FileRows(
            self,
            partial(self._files_of, request),
            counters,
            reconnect_seconds=self._reconnect_seconds,
            rows_ahead=ahead_rows,
        )

    def abandon(self, task: Task) -> None:
        """Leave a task behind that does not end yet: its files are read slowly, or not at all."""
        if not self.closed:
            _LOG.warning("a read has not ended yet, and its rows are not needed any more")

    def _files_of(
        self, request: AnyRequest, is_over: Callable[[], bool]
    ) -> tuple[LocalDatasets, Calls]:
        """Return what reads the rows of a request.  Raises: like `_await_opened`."""
        opened = self._await_opened(is_over)
        described = self.await_described()
        return opened, Calls(self.planes.request(request, described), described)

    def _describe_again(self, context_length: int, redactions: Redactions) -> Descriptions:
        return self._await(lambda: self._describe(self._open(), context_length, redactions))

    def _describe(
        self, opened: LocalDatasets, context_length: int, redactions: Redactions
    ) -> Descriptions:
        """Return descriptions, once they were found usable, as of a server."""
        answer = describe_sources(
            self._request.stream, context_length, "the target", opened.describe
        )
        datasets, stream = tuple(answer.datasets), self._request.stream
        reference = self._reference(context_length)
        redacted = replace(stream, redactions=redactions)
        require_usable("target", datasets, redacted, reference, self.planes)
        return datasets

    def _await_opened(self, is_over: Callable[[], bool] = lambda: False) -> LocalDatasets:
        """Return the opened datasets; opens them first.  Raises: like `_open` and `_await`."""
        return self._opened or self._await(self._open, is_over)

    def _await(
        self, work: Callable[[], Result], is_over: Callable[[], bool] = lambda: False
    ) -> Result:
        """Return the result of work in a thread.  Raises: what work raises; InvalidRequest once
        this is closed, or is_over returns True.
        """
        self.require_own_process()
        logged_at = time.monotonic()

        def check_wait() -> None:
            nonlocal logged_at
            self.require_not_closed()
            if is_over():
                raise InvalidRequest("feed", "has ended these rows")
            if self._opened is None and time.monotonic() - logged_at >= _LOG_SECONDS:
                logged_at = time.monotonic()
                _LOG.warning("files are still being opened: they are read for their fingerprint")

        # Not cancelled: opening looks by itself whether the files are closed.
        return AwaitedTask(
            self.begin_use(), "tokenfeed-files", lambda _: work(), check_wait=check_wait
        ).result()

    def _open(self) -> LocalDatasets:
        """Return the opened dataset; the first call opens it, and the others wait for that."""
        with self._open_lock:
            if self._opened is None:
                self.require_not_closed()
                opened = self._open_files()
                try:
                    redactions = self._request.stream.redactions
                    self._begin(self._describe(opened, self._context_length, redactions))
                except BaseException:
                    opened.close()
                    raise
                self._opened = opened
            opened = self._opened
        if self.closed:
            # The supervisor may have looked just before.
            self._close_files()
        self.require_not_closed()
        return opened

    def _open_files(self) -> LocalDatasets:
        try:
            require_package("server")
        except ImportError as error:
            raise InvalidRequest("target", f"local files cannot be read here: {error}") from None
        # The only import of the server's packages, and only where they are needed.
        from tokenfeed.server.open_local import open_local

        names = [source.dataset for source in self._request.stream.sources]
        return open_local(self._target.words, names, self._target.options, lambda: self.closed)

    def _close_files(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def require_not_closed(self) -> None:
        """Raise InvalidRequest once this is closed."""
        if self.closed:
            raise InvalidRequest("feed", "is closed; create a new one")
