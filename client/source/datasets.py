"""Where the rows of a feed come from: the datasets of the sources of a stream, on servers or in
files, and what both have in common.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

from tokenfeed.stream.stage import Redactions
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import AnyRequest, Request

from ..device.row_source import RowSource
from ..runtime.counters import Counters
from ..runtime.supervised import Supervised
from .check import (
    Described,
    corpora_of,
    counted_rows,
    document_warnings,
    require_usable,
    without_rows,
)
from .wanted_planes import DEFAULT_PLANES, WantedPlanes

_LOG = logging.getLogger("tokenfeed.client")

Agreement = Callable[[Stream, str], None]
"""Compares the known stream and the planes that mask targets with those of other ranks.  Raises:
StreamMismatch.
"""


class Required(TypedDict, total=False):
    """What a feed requires of datasets.

    fingerprint: of the corpus, for one dataset; None, which is the default, accepts any.
    agreement: compares the corpus and its planes between ranks that do not require different ones.
    planes: to read.
    """

    fingerprint: bytes | None
    agreement: Agreement | None
    planes: WantedPlanes


class Datasets(Supervised, ABC):
    """The source of all streams of a feed. `close` ends all their rows: who waits for some gets
    None.
    """

    def __init__(
        self,
        request: Request,
        client_name: str = "",
        *,
        fingerprint: bytes | None = None,
        agreement: Agreement | None = None,
        planes: WantedPlanes = DEFAULT_PLANES,
    ) -> None:
        """Know nothing of the datasets yet; does no I/O.

        request: template of all streams, which differ from it only by their position.
        client_name: name of this client in server logs; "" is none.  The others: see Required.
        """
        super().__init__()
        self._request = request
        self._context_length = request.stream.context_length
        self._client_name = client_name
        self._fingerprint = fingerprint
        self._agreement = agreement
        self.planes = planes.of_pieces(request.stream)
        self._described: Described | None = None

    @abstractmethod
    def await_described(self) -> Described:
        """Return the description of each source, which the stream begins with; waits for them.
        Raises: TokenfeedError.
        """

    @abstractmethod
    def _describe_again(self, context_length: int, redactions: Redactions) -> Described:
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
        like `await_described`.

        order: its name.  context_length: of the rows; None is that of the stream.  place: index of
        the source in the stream.
        Raises: NotFound if there is no such order; TokenfeedError.
        """
        described = self.await_described()
        if context_length is not None:
            described = self._describe_again(context_length, self._request.stream.redactions)
        return counted_rows(described[place], order)

    def _begin(self, described: Described) -> None:
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

    def _reference(self, context_length: int) -> Described | None:
        """Return what descriptions have to agree with; None before there is anything."""
        if self._described is None:
            known = self._fingerprint
            return None if known is None else (pb.Dataset(fingerprint=known),)
        is_same = context_length == self._context_length
        return self._described if is_same else without_rows(self._described)

    def _require_usable(
        self,
        address: str,
        described: pb.DescribeResponse,
        reference: Described | None,
        redactions: Redactions,
    ) -> None:
        """Raise what `require_usable` does.  address: of a server, or FILES."""
        stream = replace(self._request.stream, redactions=redactions)
        request = replace(self._request, stream=stream)
        require_usable(address, described, request, self._client_name, reference, self.planes)
