"""Datasets by name: they are described, and a request of their rows is checked and gets its
reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from tokenfeed import __version__
from tokenfeed.errors import InvalidRequest, NotFound, listed, shortened
from tokenfeed.sampling import orders
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.plan import require_windows
from tokenfeed.stream.position import (
    BATCH_BYTES_MAX,
    BATCH_SIZE_MAX,
    SAMPLE_END,
    WORLD_SIZE_MAX,
    require_range,
)
from tokenfeed.stream.stage import Source
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.frame import ROW_BYTES_MAX
from tokenfeed.wire.request import (
    CONTRACT_REVISION,
    AnyRequest,
    Expected,
    require_understood,
    require_within,
)

from ..datasets.dataset import Dataset
from ..datasets.redactions.redacted_rows import Redactor
from ..storage.mixed_store import MixedStore
from ..storage.store import RowStore
from .expected_stream import require_stream
from .held_groups import HeldGroups
from .reader import RowReader

_MIXTURES_KEPT = 64
"""Combinations of datasets that are kept ready."""


class RowQuery(NamedTuple):
    """What a request asks for, once it is checked.  datasets: of each source.  store: their rows.
    identity: of the stream, 32 bytes.
    """

    datasets: Sequence[Dataset]
    store: RowStore
    identity: bytes


class ServedDatasets:
    """Datasets that a server serves, or that a process has opened."""

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        *,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        request_bytes_max: int = 0,
    ) -> None:
        """datasets: by their names, at least one.  batch_bytes_max: larger batches are refused.
        request_bytes_max: the limit of the listener; 0 if there is none.
        """
        self.by_name = datasets
        self.redactor = Redactor()
        self._limits = pb.Limits(
            batch_size_max=BATCH_SIZE_MAX,
            batch_bytes_max=batch_bytes_max,
            world_size_max=WORLD_SIZE_MAX,
            request_bytes_max=request_bytes_max,
            row_bytes_max=ROW_BYTES_MAX,
        )
        self._mixed = lru_cache(_MIXTURES_KEPT)(self._mix)

    def named(self, name: str) -> Dataset:
        """Return the dataset of a name; "" is the only one.  Raises: InvalidRequest, NotFound."""
        if name in self.by_name:
            return self.by_name[name]
        names = listed(sorted(self.by_name))
        if name:
            raise NotFound("dataset", f"{shortened(name)!r} is not served here, only {names}")
        if len(self.by_name) > 1:
            raise InvalidRequest("dataset", f"is missing; this server has several: {names}")
        return next(iter(self.by_name.values()))

    def describe(
        self,
        request: pb.DescribeRequest,
        document_rows: Callable[[Dataset, RowsKey], pb.OrderRows] = lambda dataset, key: (
            dataset.document_rows(key)
        ),
    ) -> pb.DescribeResponse:
        """Answer Describe.

        document_rows: returns what is known of the rows of an order over documents.
        Raises: TokenfeedError.
        """
        require_understood(request)
        names = (
            [self.named(request.dataset).name]
            if request.dataset
            else sorted(self.by_name, key=str.encode)
        )
        context_length = request.context_length if request.HasField("context_length") else None
        if context_length is not None:
            require_range("context_length", context_length, 1, SAMPLE_END)
        described = [self.by_name[name].describe(context_length) for name in names]
        if request.order or request.long_documents:
            key = _rows_key(request, names)
            described[0].rows.append(document_rows(self.by_name[names[0]], key))
        return pb.DescribeResponse(
            datasets=described,
            orders=orders.ORDERS,
            limits=self._limits,
            server_version=__version__,
            contract_revisions=[CONTRACT_REVISION],
            server_time_ms=time.time_ns() // 1_000_000,
        )

    def check(self, request: AnyRequest, expected: Expected) -> RowQuery:
        """Check a request of one stage, but for its planes and redactions.  Raises:
        TokenfeedError.
        """
        stream = request.stream
        datasets = [self.named(source.dataset) for source in stream.sources]
        store: RowStore = datasets[0].store
        if len(datasets) > 1:
            have_pieces = tuple(source.reads_documents for source in stream.sources)
            store = self._mixed(tuple(dataset.name for dataset in datasets), have_pieces)
        store.require_intact()
        require_windows(stream, store.shapes)
        require_within(request, self._limits, store.dtype.itemsize)
        return RowQuery(datasets, store, require_stream(stream, expected, datasets))

    def reader(
        self, request: AnyRequest, datasets: Sequence[Dataset], store: RowStore
    ) -> RowReader:
        """Return the reader of a request that was checked.  datasets, store: as `check` returns
        them.

        Raises: StreamMismatch if a list of redactions is missing; LimitExceeded; InvalidRequest if
        storage has not the room for the groups of its order.
        """
        groups = HeldGroups(request, datasets)
        groups.at(request.first_row)
        wrap = partial(self.redactor.wrap, store, datasets, request.stream, request.planes)
        return RowReader(request, store, wrap, groups)

    def _mix(self, names: tuple[str, ...], have_pieces: tuple[bool, ...]) -> MixedStore:
        return MixedStore([self.by_name[name].store for name in names], have_pieces)


def _rows_key(request: pb.DescribeRequest, names: Sequence[str]) -> RowsKey:
    """Return the rows of the order over documents that a request names.  names: of its datasets.

    Raises: InvalidRequest, NotFound.
    """
    if not request.order:
        raise InvalidRequest("long_documents", "is set, but no order over documents is named")
    order = orders.find(request.order)
    source = Source(names[0], order, 0, long_documents=request.long_documents)
    if not source.reads_documents:
        raise InvalidRequest("order", f"{order.NAME} is not over documents; omit it")
    if len(names) > 1:
        raise InvalidRequest("dataset", "is missing; an order over documents is of one dataset")
    if not request.HasField("context_length"):
        raise InvalidRequest("context_length", f"is missing; {order.NAME} depends on it")
    return RowsKey(order.NAME, request.context_length, source.long_documents)
