"""Datasets by name: a request of their rows is checked, and gets its reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, NotFound, listed, shortened
from tokenfeed.sampling.plan import require_windows
from tokenfeed.stream.planes import REDACTED
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.piece_planes import OF_PIECES
from tokenfeed.wire.request import AnyRequest, Expected, require_within

from ..datasets.dataset import Dataset
from ..datasets.provenance.expected import require_stream
from ..datasets.redactions.redacted_rows import Redactor
from ..storage.mixed_store import MixedStore
from ..storage.store import RowStore
from .reader import RowReader

_MIXTURES_KEPT = 64
"""Combinations of datasets that are kept ready."""


class Checked(NamedTuple):
    """What a request is for.  datasets: of each source.  store: their rows.  identity: of the
    stream, 32 bytes.
    """

    datasets: Sequence[Dataset]
    store: RowStore
    identity: bytes


class ServedDatasets:
    """Datasets that a server serves, or that a process has opened."""

    def __init__(
        self, datasets: Mapping[str, Dataset], limits: pb.Limits, verb: str = "served here"
    ) -> None:
        """datasets: by their names, at least one.  limits: of requests.  verb: what was done with
        them, for errors.
        """
        self.by_name = datasets
        self.redactor = Redactor()
        self._limits = limits
        self._verb = verb
        self._mixed = lru_cache(_MIXTURES_KEPT)(self._mix)

    def named(self, name: str) -> Dataset:
        """Return the dataset of a name; "" is the only one.  Raises: InvalidRequest, NotFound."""
        if name in self.by_name:
            return self.by_name[name]
        names = listed(sorted(self.by_name))
        if name:
            raise NotFound("dataset", f"{shortened(name)!r} is not {self._verb}, only {names}")
        if len(self.by_name) > 1:
            raise InvalidRequest("dataset", f"is missing; several are {self._verb}: {names}")
        return next(iter(self.by_name.values()))

    def of(self, request: AnyRequest) -> tuple[Sequence[Dataset], RowStore]:
        """Return the dataset of each source of a request of one stage, and the store of its rows.

        Raises: InvalidRequest, also if no file is long enough; NotFound; LimitExceeded for batches
        that are too large.
        """
        stream = request.stream
        datasets = [self.named(source.dataset) for source in stream.sources]
        store: RowStore = datasets[0].store
        of_pieces = OF_PIECES if stream.reads_documents else ()
        # Another stage may have planes that the only source of this one lacks.
        has_planes = {*request.planes} <= {REDACTED, *datasets[0].store.planes, *of_pieces}
        if len(datasets) > 1 or not has_planes:
            have_pieces = tuple(source.reads_documents for source in stream.sources)
            store = self._mixed(tuple(dataset.name for dataset in datasets), have_pieces)
        require_windows(stream, store.shapes)
        require_within(request, self._limits, store.dtype.itemsize)
        return datasets, store

    def checked(self, request: AnyRequest, expected: Expected) -> Checked:
        """Check a request, but for its planes and redactions.  Raises: TokenfeedError."""
        datasets, store = self.of(request)
        store.require_intact()
        return Checked(datasets, store, require_stream(request.stream, expected, datasets))

    def reader(
        self, request: AnyRequest, datasets: Sequence[Dataset], store: RowStore
    ) -> RowReader:
        """Return the reader of the rows of a request.  datasets, store: as `of` returns them.

        Raises: StreamMismatch if a list of redactions is missing; LimitExceeded.
        """
        wrap = partial(self.redactor.wrap, store, datasets, request.stream, request.planes)
        return RowReader(request, store, wrap)

    def _mix(self, names: tuple[str, ...], have_pieces: tuple[bool, ...]) -> MixedStore:
        return MixedStore([self.by_name[name].store for name in names], have_pieces)
