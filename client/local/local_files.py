"""One dataset in files of this machine, read in the trainer's process: `Datasets` of a feed."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tokenfeed._links import require_package
from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.stream.stage import Redactions, Source
from tokenfeed.v1 import provenance_pb2 as provenance_pb
from tokenfeed.wire.request import Request

from ..runtime.awaited_task import AwaitedTask
from ..runtime.counters import Counters
from ..runtime.supervised import Supervised
from ..runtime.supervisor import Task
from ..stream.dataset_client import Agreement
from ..stream.usable import (
    Datasets,
    corpora_of,
    counted_rows,
    document_warnings,
    require_lists,
    require_windows,
)
from ..stream.wanted_planes import DEFAULT_PLANES, WantedPlanes
from ..transport.addresses import Targets
from .local_rows import Blocks, PatientBlocks, RowsAhead, RowsOnDemand
from .target import parse_local_target

_LOG = logging.getLogger("tokenfeed.client")

_AHEAD_BYTES_MAX = 8 << 20
"""Local rows are at hand at once: more of them ahead would only leave the caches."""
_LOG_SECONDS = 30.0


class LocalAnswers(Protocol):
    """What `tokenfeed.server.open_local` answers as the service Provenance does."""

    def locate(self, request: provenance_pb.LocateRequest) -> provenance_pb.LocateResponse:
        """Return where rows come from.  Raises: TokenfeedError."""

    def find(self, request: provenance_pb.FindRequest) -> provenance_pb.FindResponse:
        """Return which rows hold some tokens.  Raises: TokenfeedError."""

    def coverage(self, request: provenance_pb.CoverageRequest) -> provenance_pb.CoverageResponse:
        """Return which tokens samples hold.  Raises: TokenfeedError."""


class Opened(Protocol):
    """What `tokenfeed.server.open_local` returns."""

    def described(self, context_length: int, sources: Sequence[Source] = ()) -> Datasets:
        """Return the description of each source, with the rows of T = context_length tokens."""

    def look_at_lists(self) -> None:
        """Look at the files of the lists of redactions at once."""

    def blocks(self, request: Request) -> Blocks:
        """Return the rows of a request.  Raises: InvalidRequest if no file is long enough."""

    @property
    def provenance(self) -> LocalAnswers:
        """What tells where rows come from."""

    def close(self) -> None:
        """Close the files. Blocks that are being read fail with CorpusChanged."""


class LocalFiles(Supervised):
    """The source of all streams of a feed. Its files are opened when they are first needed, in a
    thread that no signal interrupts.
    """

    def __init__(
        self,
        targets: Targets,
        request: Request,
        *,
        reconnect_seconds: float,
        fingerprint: bytes | None = None,
        agreement: Agreement | None = None,
        planes: WantedPlanes = DEFAULT_PLANES,
    ) -> None:
        """Parse the targets; does no I/O.

        request: template of all streams, which differ from it only by their position.
        reconnect_seconds: how long to try again if files cannot be read.  fingerprint: of the
        required corpus; None accepts any.  agreement: compares the corpus and its planes between
        ranks that do not require different ones.  planes: to read.
        Raises: InvalidRequest if a target is malformed.
        """
        super().__init__()
        self._target = parse_local_target(targets)
        self._stream = request.stream
        self._context_length = request.stream.context_length
        self._reconnect_seconds = reconnect_seconds
        self._fingerprint = fingerprint
        self._agreement = agreement
        self.planes = planes.of_pieces(request.stream)
        self._opened: Opened | None = None
        self._described: Datasets | None = None
        self._open_lock = threading.Lock()
        self._supervise(self._close_files)

    def await_described(self) -> Datasets:
        """Return the description of each source; opens them first.  Raises: RequestError,
        CorpusError.
        """
        if self._described is None:
            self._await_opened()
        assert self._described is not None
        return self._described

    def await_provenance(self) -> LocalAnswers:
        """Return what tells where rows come from; opens the files first, like `await_described`."""
        return (self._opened or self._await_opened()).provenance

    @property
    def reads_documents(self) -> bool:
        """Whether `read_documents` was called."""
        return self.planes.known_starts

    def read_documents(self) -> None:
        """Read document starts too from now on, where all datasets know them."""
        self.planes = replace(self.planes, known_starts=True)

    def require_redactions(self, redactions: Redactions) -> None:
        """Raise StreamMismatch unless the datasets have the lists of redactions; waits, and raises,
        like `await_described`.
        """
        opened = self._await_opened()
        opened.look_at_lists()
        stream = replace(self._stream, redactions=redactions)
        require_lists("target", stream, opened.described(self._context_length, stream.sources))

    def plane_fingerprints(self) -> tuple[tuple[tuple[int, bytes], ...], ...]:
        """Return kind and fingerprint of the wanted planes of each source; waits like
        `await_described`.
        """
        return self.planes.fingerprints(self.await_described())

    def rows_of(self, order: str, context_length: int | None = None, *, place: int = 0) -> int:
        """Return the number of rows of an order of a dataset, per epoch if it has epochs;
        waits like `await_described`.

        context_length: if it differs from the request's.  place: of the dataset among the sources.
        Raises: NotFound if there is no such order; like `await_described`.
        """
        described = self.await_described()
        if context_length is not None:
            described = self._await_opened().described(context_length, self._stream.sources)
        return counted_rows(described[place], order)

    def open_rows(
        self, request: Request, *, prefetch_bytes: int, counters: Counters
    ) -> RowsAhead | RowsOnDemand:
        """Return the rows of a stream, which reads nothing before `start`; prefetch_bytes of 0
        means without a thread.
        """
        blocks = PatientBlocks(partial(self._open_blocks, request), self._reconnect_seconds)
        if prefetch_bytes == 0:
            return RowsOnDemand(self, blocks, counters)
        ahead_rows = min(prefetch_bytes, _AHEAD_BYTES_MAX) // (2 * request.stream.row_tokens)
        return RowsAhead(self, blocks, counters, max(ahead_rows, 2 * request.position.batch_size))

    def abandon(self, task: Task) -> None:
        """Leave a task behind that does not end yet: its files are read slowly, or not at all."""
        if not self.closed:
            _LOG.warning("a read has not ended yet, and its rows are not needed any more")

    def _open_blocks(self, request: Request, is_over: Callable[[], bool]) -> Blocks:
        """Return the rows of a request; opens the files first.  Raises: like
        `_await_opened`.
        """
        opened = self._opened or self._await_opened(is_over)
        return opened.blocks(self.planes.request(request, self.await_described()))

    def _await_opened(self, is_over: Callable[[], bool] = lambda: False) -> Opened:
        """Return the opened dataset; opens it in a thread.  Raises: like `_open`; InvalidRequest
        once this is closed, or is_over returns True.
        """
        self.require_own_process()
        return _OpenTask(self, self._open, is_over).result()

    def _open(self) -> Opened:
        """Return the opened dataset; the first call opens it, and the others wait for that."""
        with self._open_lock:
            if self._opened is None:
                self.require_not_closed()
                opened = self._open_files()
                try:
                    self._described = self._accepted(
                        opened.described(self._context_length, self._stream.sources)
                    )
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

    def _open_files(self) -> Opened:
        try:
            require_package("server")
        except ImportError as error:
            raise InvalidRequest("target", f"local files cannot be read here: {error}") from None
        # The only import of the server's packages, and only where they are needed.
        from tokenfeed.server.open_local import open_local

        names = [source.dataset for source in self._stream.sources]
        return open_local(self._target.words, names, self._target.options, lambda: self.closed)

    def _accepted(self, described: Datasets) -> Datasets:
        """Return descriptions.  Raises: StreamMismatch unless they are of the required corpus and
        have the lists of all redactions; InvalidRequest if a source of a mixture has no window, or
        wanted documents are not known.
        """
        found, required = described[0].fingerprint, self._fingerprint
        if required is not None and found != required:
            problem = f"these files are another corpus: {found.hex()}, not {required.hex()}"
            raise StreamMismatch("fingerprint", problem)
        require_windows(self._stream, described)
        require_lists("target", self._stream, described)
        self.planes.require_documents(described)
        if self._agreement is not None:
            known = self._stream.known(corpora_of(self._stream, described))
            self._agreement(known, self.planes.compared(described))
        for problem in document_warnings(self._stream, described, self.planes):
            _LOG.warning("%s", problem)
        return described

    def _close_files(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def require_not_closed(self) -> None:
        """Raise InvalidRequest once this is closed."""
        if self.closed:
            raise InvalidRequest("feed", "is closed; create a new one")


class _OpenTask(AwaitedTask[Opened]):
    """The opening of all files, which are read for their fingerprint."""

    thread_name = "tokenfeed-open"

    def __init__(
        self, files: LocalFiles, open_files: Callable[[], Opened], is_over: Callable[[], bool]
    ) -> None:
        """open_files: looks by itself whether the files are closed.  is_over: whether the result is
        not needed any more.
        """
        super().__init__(files.begin_use())
        self._files = files
        self._open_files = open_files
        self._is_over_for_rows = is_over
        self._logged_at = time.monotonic()

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: never, the work looks by itself; for the supervisor."""
        super().due_seconds(now)
        return math.inf

    def cancel(self) -> None:
        """Do nothing."""

    def _work(self) -> Opened:
        return self._open_files()

    def _check_wait(self) -> None:
        """Raise InvalidRequest if the files are not needed any more; log that it takes long."""
        self._files.require_not_closed()
        if self._is_over_for_rows():
            raise InvalidRequest("feed", "has ended these rows")
        if time.monotonic() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = time.monotonic()
            _LOG.warning("files are still being opened: they are read for their fingerprint")
