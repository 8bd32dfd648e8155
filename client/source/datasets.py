"""Where the rows of a feed come from: the datasets of the sources of a stream, on servers or in
files, and what both have in common.
"""

from __future__ import annotations

import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.stage import Redactions
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import AnyRequest, Request

from ..device.row_source import RowSource
from ..runtime.counters import Counters
from ..runtime.supervisor import Supervisor, Task
from .plane_selection import DEFAULT_PLANES, PlaneSelection
from .server_check import Descriptions, corpora_of, document_warnings, order_rows, without_rows

_LOG = logging.getLogger("tokenfeed.client")

Agreement = Callable[[Stream, str], None]
"""Compares the known stream and the planes that mask targets with those of other ranks.  Raises:
StreamMismatch.
"""


class Requirements(TypedDict, total=False):
    """What a feed requires of datasets.

    fingerprint: of the corpus, for one dataset; None, which is the default, accepts any.
    agreement: compares the corpus and its planes between ranks that do not require different ones.
    planes: to read.
    """

    fingerprint: bytes | None
    agreement: Agreement | None
    planes: PlaneSelection


class Datasets(ABC):
    """The source of all streams of a feed. `close` ends all their rows: who waits for some gets
    None.
    """

    def __init__(
        self,
        request: Request,
        *,
        fingerprint: bytes | None = None,
        agreement: Agreement | None = None,
        planes: PlaneSelection = DEFAULT_PLANES,
    ) -> None:
        """Know nothing of the datasets yet; does no I/O. `_supervise` has to follow.

        request: template of all streams, which differ from it only by their position.  The others:
        see Requirements.
        """
        self._process = 0
        self._is_closed = False
        self._owner: weakref.ref[object] | None = None
        self._request = request
        self._context_length = request.stream.context_length
        self._fingerprint = fingerprint
        self._agreement = agreement
        self.planes = planes.of_pieces(request.stream)
        self._described: Descriptions | None = None
        # Of other context lengths, for their rows: a corpus keeps them.
        self._counted: dict[int, Descriptions] = {}

    @abstractmethod
    def await_described(self) -> Descriptions:
        """Return the description of each source, which the stream begins with; waits for them.
        Raises: TokenfeedError.
        """

    @abstractmethod
    def _describe_again(self, context_length: int, redactions: Redactions) -> Descriptions:
        """Return descriptions of now, once they were found usable; waits for them.

        context_length: of the rows to count.  redactions: whose lists have to be there.
        Raises: like `await_described`; StreamMismatch if the corpus is another one now.
        """

    @abstractmethod
    def open_rows(
        self, request: AnyRequest, *, prefetch_bytes: int, counters: Counters
    ) -> RowSource:
        """Return the rows of a request. Nothing is received before `start` of the result.

        request: over a known stream.  prefetch_bytes: limit of the host memory for prefetched rows.
        counters: updated as rows arrive.
        """

    @abstractmethod
    def abandon(self, task: Task) -> None:
        """Leave a task behind that was cancelled and does not end."""

    @property
    def reads_documents(self) -> bool:
        """Whether `read_documents` was called."""
        return self.planes.known_starts

    def read_documents(self) -> None:
        """Read document starts too from now on, where all datasets know them; does no I/O."""
        self.planes = replace(self.planes, known_starts=True)

    def require_redactions(self, redactions: Redactions) -> None:
        """Raise ListMissing unless the files, or at least one server, have all lists of some
        redactions. Servers that lack a list are logged. Waits and raises like `await_described`.
        """
        self.await_described()
        self._describe_again(self._context_length, redactions)

    def plane_fingerprints(self) -> tuple[tuple[tuple[int, bytes], ...], ...]:
        """Return for each source the kind and the fingerprint of each plane (planes.py) of it that
        the feed wants. Waits and raises like `await_described`.
        """
        return self.planes.fingerprints(self.await_described())

    def rows_of(self, order: str, context_length: int | None = None, *, place: int = 0) -> int:
        """Return how many rows a dataset has in an order; per epoch if the order has epochs. Waits
        like `await_described`, at another context length only the first time.

        order: its name.  context_length: of the rows; None is that with which the stream began.
        place: index of the source in the stream.
        Raises: NotFound if there is no such order; TokenfeedError.
        """
        described = self.await_described()
        if context_length not in (None, self._context_length):
            if context_length not in self._counted:
                redactions = self._request.stream.redactions
                self._counted[context_length] = self._describe_again(context_length, redactions)
            described = self._counted[context_length]
        return order_rows(described[place], order).rows

    # --- their use by one process, until they are closed or the feed is gone ---

    def _supervise(self, close_resources: Callable[[], None]) -> None:
        """Use a new supervisor.  close_resources: called in its thread, after all tasks."""
        self._supervisor = Supervisor(close_resources)
        if self._owner is not None and (owner := self._owner()) is not None:
            self._supervisor.end_with(owner)
        if self._is_closed:  # by another thread, while a connection is abandoned
            self._supervisor.begin_to_close()

    def end_with(self, owner: object) -> None:
        """Close this when an object is garbage-collected."""
        self._owner = weakref.ref(owner)
        self._supervisor.end_with(owner)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed or self._supervisor.closed

    @property
    def forked(self) -> bool:
        """Whether this is a fork's copy of one that was in use: its connections and threads exist
        only in the parent.
        """
        return self._process not in (0, os.getpid())

    def begin_use(self) -> Supervisor:
        """Mark this as used by this process, and return its supervisor."""
        self._process = os.getpid()
        return self._supervisor

    def require_own_process(self) -> None:
        """Raise InvalidRequest in a fork's copy of one that was in use."""
        if self.forked:
            raise InvalidRequest(
                "feed",
                f"was started in process {self._process} and cannot be used in its fork "
                f"{os.getpid()}; create it in the process that uses it",
            )

    def close(self) -> None:
        """End all tasks, and release everything. May be called twice, from any thread and by a
        signal handler. A fork's copy is only let go of.
        """
        self._is_closed = True
        if self.forked:
            self._supervisor.closed = True
        else:
            self._supervisor.close()

    # --- what both kinds check ---

    def _begin(self, described: Descriptions) -> None:
        """Begin all streams with descriptions that were found usable.  Raises: StreamMismatch if
        other ranks have others.
        """
        stream = self._request.stream
        if self._agreement is not None:
            known = stream.known(corpora_of(stream, described))
            self._agreement(known, self.planes.compared(described))
        self._described = described
        for problem in document_warnings(stream, described, self.planes):
            _LOG.warning("%s", problem)

    def _reference(self, context_length: int) -> Descriptions | None:
        """Return what descriptions have to agree with; None before there is anything."""
        if self._described is None:
            known = self._fingerprint
            return None if known is None else (pb.Dataset(fingerprint=known),)
        is_same = context_length == self._context_length
        return self._described if is_same else without_rows(self._described)
