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
        self,
        datasets: Mapping[str, Dataset],
        limits: pb.Limits,
        *,
        place: str = "this server",
        state: str = "served here",
    ) -> None:
        """datasets: by their names, at least one.  limits: of requests.  place, state: words of
        errors, "this server has several", "is not served here".
        """
        self.by_name = datasets
        self.redactor = Redactor()
        self._limits = limits
        self._place = place
        self._state = state
        self._mixed = lru_cache(_MIXTURES_KEPT)(self._mix)

    def named(self, name: str) -> Dataset:
        """Return the dataset of a name; "" is the only one.  Raises: InvalidRequest, NotFound."""
        if name in self.by_name:
            return self.by_name[name]
        names = listed(sorted(self.by_name))
        if name:
            raise NotFound("dataset", f"{shortened(name)!r} is not {self._state}, only {names}")
        if len(self.by_name) > 1:
            raise InvalidRequest("dataset", f"is missing; {self._place} has several: {names}")
        return next(iter(self.by_name.values()))

    def checked(self, request: AnyRequest, expected: Expected) -> Checked:
        """Check a request of one stage, but for its planes and redactions.  Raises:
        TokenfeedError.
        """
        datasets, store = self._rows_of(request)
        store.require_intact()
        self._require_rows(request, store)
        return Checked(datasets, store, require_stream(request.stream, expected, datasets))

    def reader(
        self, request: AnyRequest, datasets: Sequence[Dataset], store: RowStore
    ) -> RowReader:
        """Return the reader of a request that was checked.  datasets, store: as `checked` returns
        them.

        Raises: StreamMismatch if a list of redactions is missing; LimitExceeded.
        """
        wrap = partial(self.redactor.wrap, store, datasets, request.stream, request.planes)
        return RowReader(request, store, wrap)

    def reader_of_part(self, request: AnyRequest) -> RowReader:
        """Return the reader of a part of a stream that was checked as a whole: another part may
        have planes that no source of this one has.

        Raises: InvalidRequest if no file is long enough; NotFound; StreamMismatch if a list of
        redactions is missing; LimitExceeded.
        """
        datasets, store = self._rows_of(request, may_lack_planes=True)
        self._require_rows(request, store)
        return self.reader(request, datasets, store)

    def _rows_of(
        self, request: AnyRequest, *, may_lack_planes: bool = False
    ) -> tuple[Sequence[Dataset], RowStore]:
        stream = request.stream
        datasets = [self.named(source.dataset) for source in stream.sources]
        of_pieces = OF_PIECES if stream.reads_documents else ()
        has_planes = {*request.planes} <= {REDACTED, *datasets[0].store.planes, *of_pieces}
        if len(datasets) == 1 and (has_planes or not may_lack_planes):
            return datasets, datasets[0].store
        have_pieces = tuple(source.reads_documents for source in stream.sources)
        return datasets, self._mixed(tuple(dataset.name for dataset in datasets), have_pieces)

    def _require_rows(self, request: AnyRequest, store: RowStore) -> None:
        require_windows(request.stream, store.shapes)
        require_within(request, self._limits, store.dtype.itemsize)

    def _mix(self, names: tuple[str, ...], have_pieces: tuple[bool, ...]) -> MixedStore:
        return MixedStore([self.by_name[name].store for name in names], have_pieces)
