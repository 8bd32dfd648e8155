"""What a feed reads: one dataset or a mixture, its changes and redactions, and how far it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.sampling.mixture import locate_all
from tokenfeed.sampling.plan import no_documents_fit
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.position import SAMPLE_END, require_range
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import StreamRequest

from ...runtime.arguments import integer
from ...stream.usable import corpora_of, no_rows
from ..cursor import Cursor, OpenRun
from ..history import History
from ..mixture.counts import source_stats
from ..mixture.exhaustion import exhausted
from ..mixture.past import same_corpora
from ..mixture.recipe import checked_weights
from ..mixture.schedule import Schedule
from ..redactions import (
    Planned,
    PlannedRedaction,
    planned_for,
    read_dataset,
    read_list,
    with_redaction,
)
from ..saved.comparing import require_same_planes
from ..saved.state import Planes, write_state
from ..stats import FeedPosition, SourceStats
from .dataset import StreamedDataset


class Rows(NamedTuple):
    """The rows of a batch.  samples: int64[B].  sources: int16[B], numbers of sources."""

    samples: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class FeedStream:
    """What a feed reads, and how far it is. A feed that changes its mixture or takes up redactions
    replaces it as a whole: other threads and signal handlers see all of a change, or nothing of it.

    request: all others differ from it only by their position.  open_dataset: returns the dataset of
    other requests; does no I/O.  masks: kinds of planes that mask targets, where datasets have
    them.  schedule: of a mixture.  redactions: those of the request, and those of datasets that are
    no sources.  own_redactions: those of them that the feed was told, and not a state.
    """

    request: StreamRequest
    dataset: StreamedDataset
    cursor: Cursor
    open_dataset: Callable[[StreamRequest], StreamedDataset]
    masks: tuple[int, ...] = ()
    schedule: Schedule | None = None
    redactions: Planned = ()
    own_redactions: Planned = ()

    @property
    def spec(self) -> StreamSpec:
        """The specification of the stream."""
        return self.request.spec

    def parts(self) -> StreamParts:
        """Return the stream as plain values; asks for the fingerprints if nothing was read yet.
        Raises: TokenfeedError.
        """
        return self.spec.parts(corpora_of(self.spec, self.dataset.await_described()))

    def state_at(self, snapshot: tuple[int, OpenRun]) -> dict[str, Any]:
        """Return the state of the feed at an earlier value of `cursor.current`.  Raises:
        TokenfeedError.
        """
        sample, _, history = self.cursor.at(snapshot)
        return write_state(sample, self.parts(), history, self.planes())

    def planes(self) -> Planes:
        """Return the planes that mask targets.  Raises: TokenfeedError."""
        names = [each.name for each in self.dataset.await_described()]
        if self.spec.mixture is None:
            names = [""]  # a dataset may be renamed
        return {
            (name, kind): fingerprint.hex()
            for name, planes in zip(names, self.dataset.plane_fingerprints(), strict=True)
            for kind, fingerprint in planes
            if kind in self.masks
        }

    def require_same_planes(
        self, saved: StreamParts, planes: Planes, sample: int, allow: Collection[str]
    ) -> None:
        """Compare the planes of a saved state with those of this stream.  saved, planes, sample: of
        the state.  Raises: as comparing.require_same_planes; TokenfeedError.
        """
        require_same_planes(
            planes,
            self.planes(),
            datasets=same_corpora(saved, self.parts(), sample),
            wanted=self.masks,
            allow=allow,
        )

    def rows_at(self, sample: int) -> Rows:
        """Return sample index and source number of each row of the batch of this rank that begins
        at a sample of rank 0: int64[B], int16[B].
        """
        position = replace(self.request.position, first_sample=sample)
        samples = position.samples(0, position.batch_size)
        mixture = self.spec.mixture
        if mixture is None:
            return Rows(samples, np.zeros(samples.size, np.int16))
        places, _ = locate_all(mixture, samples)
        numbers = np.array([source.number for source in self.spec.sources], np.int16)
        return Rows(samples, numbers[places])

    def compared(self) -> StreamParts | tuple[StreamParts, str]:
        """Return what ranks compare before a change: the stream, and a hash of its planes if it has
        any.  Raises: TokenfeedError.
        """
        planes = self._planes_hash()
        return (self.parts(), planes) if planes else self.parts()

    def identity(self) -> str:
        """Return what ranks compare when they load a state: the fingerprint of `parts`, and behind
        it hashes of the planes and of the redactions if there are any, 64 hexadecimal digits each.
        Raises: TokenfeedError.
        """
        parts = self.parts()
        redacted = _hash_of(parts.redactions) if parts.redactions else ""
        return parts.fingerprint + self._planes_hash() + redacted

    def position_of(self, sample: int) -> FeedPosition:
        """Return the position at a sample, with its epoch if there are any."""
        if self.spec.mixture or not self.spec.order.HAS_EPOCHS:
            return FeedPosition(sample, None)
        return FeedPosition(sample, sample // max(1, self.rows_per_epoch()))

    def require_epochs(self) -> None:
        """Raise InvalidRequest if this is a mixture, or its order has none."""
        if self.spec.mixture:
            raise InvalidRequest("mixture", "has no epochs; max_epochs of a source ends a mixture")
        if not self.spec.order.HAS_EPOCHS:
            raise InvalidRequest(
                "order",
                f"{self.spec.order.NAME} is endless and has no epochs; pass order='shuffled', "
                "'sequential', 'packed' or 'padded'",
            )

    def rows_per_epoch(self) -> int:
        """Return the rows of the first source per epoch.  Raises: TokenfeedError."""
        return self.dataset.rows_of(self.spec.order.NAME)

    def require_windows(self) -> int:
        """Return the rows per epoch.  Raises: InvalidRequest if no file is long enough, or no
        document short enough; TokenfeedError.
        """
        windows = self.rows_per_epoch()
        if windows == 0:
            if self.spec.sources[0].reads_documents:
                raise no_documents_fit(self.spec, self.spec.sources[0])
            raise no_rows(self.dataset.await_described()[0], self.spec.context_length)
        return windows

    def end_sample(self) -> int:
        """Return the sample at which a source of a mixture ends it, 2^63 if none does, and log it;
        asks for the rows of sources with max_epochs.  Raises: TokenfeedError.
        """
        if self.schedule is None or not self.schedule.max_epochs:
            return SAMPLE_END
        return exhausted(
            self.spec,
            self.schedule.max_epochs,
            self._rows_of_sources(),
            self.cursor.sample,
        )

    def source_stats(self, history: History, *, has_read: bool) -> dict[str, SourceStats]:
        """Return the statistics of the sources of a mixture.  has_read: so it need not wait."""
        rows = {}
        if has_read and self.schedule is not None:
            counted = zip(self.spec.sources, self._rows_of_sources(), strict=True)
            rows = {each.dataset: count for each, count in counted if each.order.HAS_EPOCHS}
        return source_stats(history, rows)

    def changed(
        self, weights: object, at_sample: int | None, owner: object
    ) -> tuple[FeedStream, int]:
        """Return the stream with other weights from a sample on, and from where on they are in
        force; this stream if it has them already.

        weights, at_sample: as a user passed them; None is as soon as possible.  owner: a new
        dataset is closed with it.
        Raises: InvalidRequest, also for a closed feed; TokenfeedError if new sources cannot be
        read.
        """
        assert self.schedule is not None
        sample, at = self._asked(at_sample)
        samples_of = checked_weights(weights, self.schedule.block)
        schedule, begin = self.schedule.changed(samples_of, at, sample, or_later=at_sample is None)
        if schedule is self.schedule:
            return self, begin
        _, _, history = self.cursor.now
        return self.with_schedule(schedule, sample, history, before=self.parts, owner=owner), begin

    def redacted(
        self, list_hash: str, at_sample: int | None, dataset: str | None
    ) -> tuple[FeedStream, int]:
        """Return the stream that leaves out a list from a sample on, and from where on it is in
        force; this stream if it has it already.

        list_hash, at_sample, dataset: as a user passed them; None is as soon as possible, and the
        only dataset.
        Raises: InvalidRequest, also for a closed feed; StreamMismatch if no server has the list.
        """
        sample, at = self._asked(at_sample)
        name = read_dataset(self.spec, dataset)
        new = PlannedRedaction(at, name, read_list("list_hash", list_hash))
        redactions, begin = with_redaction(self.redactions, new)
        if at < sample and redactions is not self.redactions:
            problem = f"{at} is before the current position, {sample}"
            raise InvalidRequest("at_sample", problem)
        own, _ = with_redaction(self.own_redactions, new._replace(first_sample=begin))
        if own is self.own_redactions:
            return self, begin
        return replace(self.with_redactions(redactions), own_redactions=own), begin

    def with_redactions(self, redactions: Planned) -> FeedStream:
        """Return this stream with other redactions, at the same position: this one if they are the
        same.  Raises: StreamMismatch if no server has their lists; TokenfeedError.
        """
        if redactions == self.redactions:
            return self
        request = replace(self.request, spec=planned_for(self.spec, redactions))
        self.dataset.require_redactions(request.spec.redactions)
        return replace(self, request=request, redactions=redactions)

    def rename_runs(self, before: FeedStream) -> None:
        """Continue the runs of the stream with fewer redactions that had the same position: so the
        history does not depend on when a rank has taken one up.  Raises: TokenfeedError.
        """
        sample, _, history = self.cursor.now
        if history.runs:
            history = history.continued_by(self.parts(), before=before.parts(), sample=sample)
            self.cursor.skip_to(sample, history)

    def with_schedule(
        self,
        schedule: Schedule,
        sample: int,
        history: History,
        *,
        before: Callable[[], StreamParts],
        owner: object,
    ) -> FeedStream:
        """Return the stream of another mixture that is the same up to a sample. New sources need a
        new dataset, which is described then.

        history: before the sample.  before: returns its latest stream.
        Raises: InvalidRequest; TokenfeedError if new sources cannot be read.
        """
        spec = planned_for(schedule.spec(), self.redactions)
        request = replace(self.request, spec=spec)
        dataset = self.dataset
        if request.spec.sources != self.spec.sources:
            self._require_open()
            dataset = self.open_dataset(request)
            dataset.end_with(owner)
            if self.dataset.reads_documents:
                dataset.read_documents()
        elif not {*spec.redactions} <= {*self.spec.redactions}:
            dataset.require_redactions(spec.redactions)
        stream = replace(self, request=request, dataset=dataset, schedule=schedule)
        try:
            if dataset is not self.dataset:
                _require_same_corpora(self.dataset, dataset)
            if history.runs:
                history = history.continued_by(stream.parts(), before=before(), sample=sample)
        except BaseException:
            stream.close_unless(self)
            raise
        return replace(stream, cursor=self.cursor.moved(sample, history))

    def close_unless(self, other: FeedStream) -> None:
        """Close the dataset, unless it is that of another stream."""
        if self.dataset is not other.dataset:
            self.dataset.close()

    def _planes_hash(self) -> str:
        planes = self.dataset.plane_fingerprints()
        return _hash_of(planes) if any(planes) else ""

    def _require_open(self) -> None:
        if self.dataset.closed:
            raise InvalidRequest("feed", "is closed; create a new one")

    def _asked(self, at_sample: int | None) -> tuple[int, int]:
        """Return the current position, and the sample that a change was asked for at, by default
        this one.  Raises: InvalidRequest, also for a closed feed.
        """
        self._require_open()
        sample = self.cursor.sample
        at = sample if at_sample is None else integer("at_sample", at_sample)
        require_range("at_sample", at, 0, SAMPLE_END)
        return sample, at

    def _rows_of_sources(self) -> list[int]:
        """Return the rows of each source, per epoch if its order has epochs."""
        return [
            self.dataset.rows_of(source.order.NAME, place=place)
            for place, source in enumerate(self.spec.sources)
        ]


def _hash_of(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _require_same_corpora(before: StreamedDataset, now: StreamedDataset) -> None:
    """Raise StreamMismatch if a source has another fingerprint than before, or other planes."""
    known = {
        each.name: (each.fingerprint, planes)
        for each, planes in zip(before.await_described(), before.plane_fingerprints(), strict=True)
    }
    for each, planes in zip(now.await_described(), now.plane_fingerprints(), strict=True):
        fingerprint, planes_before = known.get(each.name, (each.fingerprint, planes))
        if fingerprint != each.fingerprint:
            problem = f"is another corpus now: {each.fingerprint.hex()}"
            raise StreamMismatch(f"mixture.{each.name}", problem)
        if planes_before != planes:
            problem = "has another loss mask or other document starts now"
            raise StreamMismatch(f"mixture.{each.name}", problem)
