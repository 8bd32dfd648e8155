"""What a feed reads: its stream, the datasets behind the stream, and how far the feed is.

A stream is known once the corpora of its sources are described. A plane is data beside the tokens
of a row, such as a loss mask; its kind is a number. Pieces are the parts of documents that an order
over documents puts into rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest, NotFound, StreamMismatch
from tokenfeed.sampling.mixture_v1 import locate_all
from tokenfeed.sampling.plan import no_documents_fit
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.stage import MIXTURE, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request

from ..source.datasets import Datasets
from ..source.plane_selection import plane_name
from ..source.server_check import corpora_of, no_rows, place_of_dataset
from .cursor import Cursor, Snapshot
from .history import History
from .lengths import Length, batch_size_of
from .mixture.recipe import Definition, first_end
from .ranks.agreement import compared
from .state import Planes, folded, packed_stream, write_state
from .state_differences import require_saved_corpus
from .stats import FeedPosition, SourceStats, source_stats

_LOG = logging.getLogger("tokenfeed.client")


@dataclass(frozen=True)
class FeedStream:
    """What a feed reads, and how far it is. A feed whose stream changes replaces the whole value:
    other threads and signal handlers see all of a change, or nothing of it.

    request: the request of the first batch, over the whole stream: all stages that are kept, those
    that were read included. `request_at` derives all other requests.  rest: the part of the stream
    from the position on, up to another context length. It also has the sources of the definition of
    a mixture, and those that this feed has read, to count their rows. While the corpora of earlier
    sources are unknown, it is the whole stream.
    datasets: those of the sources of `rest`.  cursor: the position.  open_datasets: returns the
    datasets of another request; does no I/O.  masks: kinds of planes that mask targets where a
    dataset has them.
    definition: what the user asked for, with redactions since then; a loaded state does not change
    it.  batch_sizes: rows of a batch of this rank at the context lengths for which the user said
    it, the first one first.  pending: declared context lengths that the stream may lack, until
    `declared`.  counted: batches, and their tokens of x, that this feed had delivered when its
    batches got the present shape.  unread: keeps the rows per epoch of sources that are not in
    `rest`, by source and context length, once `rows_of` has opened their datasets to count them.
    """

    request: Request
    rest: Stream
    datasets: Datasets
    cursor: Cursor
    open_datasets: Callable[[Request], Datasets]
    masks: tuple[int, ...]
    definition: Definition
    batch_sizes: Mapping[int, int]
    pending: tuple[Length, ...] = ()
    counted: tuple[int, int] = (0, 0)
    unread: dict[tuple[Source, int], int] = field(default_factory=dict, compare=False, repr=False)
    _memo: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    @property
    def stream(self) -> Stream:
        """The whole stream, as far as it is known without waiting for the datasets; `known` has
        their corpora too.
        """
        return self.request.stream

    def known(self) -> Stream:
        """Return the whole stream with its corpora; waits until the datasets are described.

        Raises: StreamMismatch if a dataset has another corpus than when it was read; TokenfeedError
        if a dataset cannot be described.
        """
        if "known" not in self._memo:
            corpora = corpora_of(self.rest, self.datasets.await_described())
            for source in self.rest.sources:
                if source.corpus is not None:
                    length = self.rest.context_length
                    require_saved_corpus(source, corpora[source.number], length)
            self._memo["known"] = self.stream.known(corpora)
        known: Stream = self._memo["known"]
        return known

    def state_at(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return the state of the feed; waits for its corpora if nothing was read yet.

        snapshot: the present or an earlier value of `cursor.current`.  Raises: TokenfeedError.
        """
        if "packed" not in self._memo:
            self._memo["packed"] = packed_stream(self.known())
        sample, _, history = self.cursor.at(snapshot)
        return write_state(sample, self._memo["packed"], self.told(history), self.planes())

    def told(self, history: History) -> History:
        """Return the part of a history whose stages are still kept; a run may be cut."""
        first = self.stream.stages[0]
        return history.since(first.first_sample) if first.index else history

    def planes(self) -> Planes:
        """Return the fingerprints of the planes that mask targets; waits until the datasets are
        described.  Raises: TokenfeedError.
        """
        self.datasets.await_described()
        return {
            (number, kind): fingerprint.hex()
            for number, planes in zip(
                self.rest.numbers, self.datasets.plane_fingerprints(), strict=True
            )
            for kind, fingerprint in planes
            if kind in self.masks
        }

    def rows_at(self, sample: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]:
        """Return for each row of a batch of this rank its sample index, -1 if it only fills up the
        batch, and the number of its source: int64[B] and int16[B].

        sample: of row 0 of rank 0 in that batch.
        """
        position = replace(self.request.position, first_sample=sample)
        samples = position.samples(0, position.batch_size)
        numbers, _ = locate_all(self.stream, samples)
        samples[samples >= self.length_end] = -1
        return samples, numbers.astype(np.int16)

    def request_at(self, sample: int, num_batches: int) -> Request:
        """Return the request of batches of this rank, of the rest of the stream.

        sample: of row 0 of rank 0.  num_batches: at most; fewer if samples end at 2^63.
        """
        position = replace(self.request.position, first_sample=sample)
        num_batches = min(num_batches, position.batches_left, SAMPLE_END - 1)
        return replace(self.request, stream=self.rest, position=position, num_batches=num_batches)

    def compared(self) -> str:
        """Return what ranks compare: a hash of the known stream, of the planes that mask targets,
        and of the batch sizes.  Raises: TokenfeedError.
        """
        planes, sizes = sorted(self.planes().items()), sorted(self.batch_sizes.items())
        return compared(self.known(), planes, sizes)

    # --- the shape of batches ---

    @property
    def context_length(self) -> int:
        """Tokens of x in a row that is read now."""
        return self.rest.stages[self.rest.place_of(self.cursor.sample)].context_length

    @cached_property
    def length_end(self) -> int:
        """The first sample at another context length than that which is read now; 2^63 if there is
        none.
        """
        behind = self.rest.stages[-1].index + 1 - self.stream.stages[0].index
        stages = self.stream.stages
        return stages[behind].first_sample if behind < len(stages) else SAMPLE_END

    def batches_to(self, end_sample: int, sample: int) -> int:
        """Return how many batches of one shape follow from a sample on: whole ones up to
        end_sample, and one that is filled up where the context length changes before it.
        """
        stride = self.request.position.stride
        if self.length_end <= end_sample:
            return -(-max(0, self.length_end - sample) // stride)
        return max(0, end_sample - sample) // stride

    def batches_left(self, end_sample: int) -> int:
        """Return how many batches of this rank follow, of all shapes; otherwise as `batches_to`."""
        sample, found = self.cursor.sample, 0
        while sample < end_sample:
            stages = self.stream.stages[self.stream.place_of(sample) :]
            length, stride = stages[0].context_length, self._shaped(sample).request.position.stride
            others = (each.first_sample for each in stages if each.context_length != length)
            if (length_end := next(others, SAMPLE_END)) > end_sample:
                return found + (end_sample - sample) // stride
            found += -(-(length_end - sample) // stride)
            sample = length_end
        return found

    def tokens_of(self, batches: int) -> int:
        """Return the tokens of x in batches of this rank.  batches: that this feed has delivered,
        at least up to the present shape.
        """
        before, tokens = self.counted
        return tokens + (batches - before) * self.request.position.batch_size * self.context_length

    def settled(self) -> FeedStream:
        """Return what is read at the position: this, until all rows of its context length have been
        delivered or skipped. Both have the same cursor.
        """
        sample, end = self.cursor.sample, self.length_end
        if sample < end or end == SAMPLE_END:
            return self
        rest = _rest_of(self.stream, sample, self.definition, self.rest.numbers)
        found = replace(self, rest=rest, counted=self._counted_now())._shaped(sample)
        found._memo.update(self._memo)
        return found

    def _shaped(self, sample: int) -> FeedStream:
        """Return this with batches of the shape that they have at a sample."""
        stages = self.stream.stages[: self.stream.place_of(sample) + 1]
        size = batch_size_of([stage.context_length for stage in stages], self.batch_sizes)
        position = replace(self.request.position, batch_size=size)
        return replace(self, request=replace(self.request, position=position))

    def _counted_now(self) -> tuple[int, int]:
        _, batches, _ = self.cursor.now
        return batches, self.tokens_of(batches)

    @property
    def order_name(self) -> str:
        """The name of the order of the samples, for people."""
        return MIXTURE if self.definition.is_mixture else self.source.order.NAME

    # --- epochs ---

    @property
    def stage(self) -> Stage:
        """The stage of the next sample."""
        return self.stream.stages[self.stream.place_of(self.cursor.sample)]

    def require_epochs(self) -> None:
        """Raise InvalidRequest if this is a mixture, or its order has no epochs."""
        if self.definition.is_mixture:
            raise InvalidRequest("mixture", "has no epochs; max_epochs of a source ends a mixture")
        if not self.source.order.HAS_EPOCHS:
            raise InvalidRequest(
                "order",
                f"{self.source.order.NAME} is endless and has no epochs; pass order='shuffled', "
                "'sequential', 'packed' or 'padded'",
            )

    @property
    def source(self) -> Source:
        """The source of the present stage of a stream over one dataset."""
        ((number, _),) = self.stage.weights.items()
        return self.stream.sources[number]

    def rows_of(self, source: Source, context_length: int) -> int:
        """Return the rows per epoch of a source; waits for its description, also at a length at
        which it was not asked for yet.

        source: is found by the name of its dataset; if `rest` does not have it, its dataset is
        opened for this alone.  context_length: is that of the rows.
        Raises: as `rows_of_unread`.
        """
        if any(each.dataset == source.dataset for each in self.rest.sources):
            place = place_of_dataset(self.rest, source)
            return self.datasets.rows_of(source.order.NAME, context_length, place=place)
        if (source, context_length) not in self.unread:
            self.require_open()
            rows = rows_of_unread(source, context_length, self._opened)
            self.unread[source, context_length] = rows
        return self.unread[source, context_length]

    def require_rows(self, context_length: int | None = None, source: Source | None = None) -> int:
        """Return the rows per epoch of a source, at least 1, by default at the present length.

        source: None is that of a feed without a mixture.
        Raises: InvalidRequest if no file is long enough for a window, or no document fits into a
        row; TokenfeedError.
        """
        length, source = context_length or self.stage.context_length, source or self.source
        rows = self.rows_of(source, length)
        if rows:
            return rows
        if source.reads_documents:
            raise no_documents_fit(self.stream, source)
        described = self.datasets.await_described()[place_of_dataset(self.rest, source)]
        raise no_rows(described, source.order, length)

    def count_rows(self, stream: Stream | None = None) -> None:
        """Count the rows of each stage from the position on, before a caller needs them who must
        not wait.

        stream: is to be read; None is that which is read.  Raises: as `require_rows`.
        """
        for source, length in (stream or self.stream).readings(self.cursor.sample):
            self.require_rows(length, source)

    def position_of(self, sample: int) -> FeedPosition:
        """Return the position at a sample. If the order has epochs, this waits for the number of
        rows per epoch, and raises TokenfeedError if the dataset cannot be described.
        """
        if self.definition.is_mixture or not self.source.order.HAS_EPOCHS:
            return FeedPosition(sample, None)
        stage = self.stage
        own = stage.active[0].base + sample - stage.first_sample
        return FeedPosition(sample, own // max(1, self.rows_of(self.source, stage.context_length)))

    def end_sample(self) -> int:
        """Return the sample at which the mixture ends because max_epochs of a source are used up;
        2^63 if it does not end. The end is logged. Waits for the datasets if a source has
        max_epochs.

        Raises: InvalidRequest if max_epochs does not suffice for the first block; TokenfeedError.
        """
        max_epochs = self.definition.max_epochs
        end = first_end(self.stream, max_epochs, self._rows_of_sources, self.cursor.sample)
        if end is None:
            return SAMPLE_END
        name = self.stream.sources[end.source].dataset
        _LOG.warning(
            "mixture ends when a source is exhausted source=%s max_epochs=%d sample=%d tokens=%d",
            name,
            max_epochs[name],
            end.sample,
            self.stream.tokens_before(end.sample),
        )
        return end.sample

    def source_stats(self, history: History, *, has_read: bool) -> Mapping[str, SourceStats]:
        """Return what each dataset of a mixture has contributed, by its name; empty without a
        mixture.

        has_read: whether a batch was read, so that the rows of sources are known without waiting;
        if not, all epochs are None.
        """
        if not self.definition.is_mixture:
            return {}
        rows = self._rows_of_sources(self.stream.context_length) if has_read else {}
        rows = {
            number: count
            for number, count in rows.items()
            if self.stream.sources[number].order.HAS_EPOCHS
        }
        return source_stats(self.stream, history, rows)

    def _rows_of_sources(self, context_length: int) -> dict[int, int]:
        """Return the rows of each source that is still read, per epoch if its order has epochs."""
        return {
            source.number: self.datasets.rows_of(source.order.NAME, context_length, place=place)
            for place, source in enumerate(self.rest.sources)
        }

    # --- another stream ---

    def with_stream(
        self, stream: Stream, *, owner: object, at: tuple[int, History] | None = None
    ) -> FeedStream:
        """Return a FeedStream that reads another stream; this one if neither stream nor position
        differs.

        If the sources to be read differ, new datasets are opened, and this waits until they are
        described. Otherwise both values share their datasets. The caller drops one of the two
        values with `close_unless`.
        stream: known, except for new sources and stages.  owner: newly opened datasets are closed
        when it is garbage-collected.  at: another position, and the history before it; None keeps
        the present ones.
        Raises: InvalidRequest for a closed feed; StreamMismatch if a corpus, its pieces or its
        planes differ from before, or no server has a list of redactions; TokenfeedError if new
        datasets cannot be read.
        """
        if stream == self.stream and at is None:
            return self
        cursor = self.cursor if at is None else self.cursor.moved(*at)
        kept = self.rest.numbers if at is None else ()
        rest = _rest_of(stream, cursor.sample, self.definition, kept)
        found = replace(
            self,
            request=replace(self.request, stream=stream),
            rest=rest,
            datasets=self._datasets_for(rest, owner),
            cursor=cursor,
            counted=self._counted_now(),
            pending=self.pending if at is None else self.definition.lengths,
        )
        try:
            if found.length_end < SAMPLE_END and rest.reads_documents:
                names = ", ".join(each.dataset for each in rest.sources if each.reads_documents)
                problem = f"changes, but rows of {names} are pieces of documents, which are others"
                cure = "give it an order of windows, or name it first behind the change"
                raise InvalidRequest("context_length", f"{problem} then; {cure}")
            found = found._shaped(cursor.sample)
            if found.datasets is not self.datasets:
                _require_same_planes(self, found)
            return found._hashed() if len(stream.stages) > 1 else found
        except BaseException:
            found.close_unless(self)
            raise

    def _datasets_for(self, rest: Stream, owner: object) -> Datasets:
        """Return the datasets of another rest of a stream.  owner, Raises: as for `with_stream`."""
        if _datasets_of(rest) != _datasets_of(self.rest):
            self.require_open()
            datasets = self._opened(rest)
            datasets.end_with(owner)
            if self.datasets.reads_documents:
                datasets.read_documents()
            return datasets
        if not {*rest.redactions} <= {*self.rest.redactions}:
            self.datasets.require_redactions(rest.redactions)
        return self.datasets

    def _opened(self, stream: Stream) -> Datasets:
        return self.open_datasets(replace(self.request, stream=stream))

    def _hashed(self) -> FeedStream:
        """Return this with the identities before its stages, and without stages that are too old:
        no hash is computed when a state is saved.  Raises: as for `known`.
        """
        known = self.known()
        previous = {stage.index: stage.previous for stage in known.stages}
        stages = [replace(each, previous=previous[each.index]) for each in self.rest.stages]
        kept = folded(known, self.cursor.sample)
        request = replace(self.request, stream=kept)
        found = replace(self, request=request, rest=self.rest.with_stages(stages))
        found._memo.update(known=kept, packed=packed_stream(kept))
        return found

    def close_unless(self, other: FeedStream) -> None:
        """Close the datasets, unless `other` has the same ones."""
        if self.datasets is not other.datasets:
            self.datasets.close()

    def require_open(self) -> None:
        """Raise InvalidRequest for a closed feed."""
        if self.datasets.closed:
            raise InvalidRequest("feed", "is closed; create a new one")


def rows_of_unread(
    source: Source, context_length: int, open_datasets: Callable[[Stream], Datasets]
) -> int:
    """Return the rows per epoch of a source that is not read now. This opens its dataset, counts
    them, and closes the dataset.

    source: names the dataset and the order.  context_length: is that of the rows.  open_datasets:
    returns the datasets of a stream, not opened yet.
    Raises: InvalidRequest if the dataset is not there any more; StreamMismatch if it is another one
    than when it was read; TokenfeedError.
    """
    # Every dataset can be opened at one token a row, whichever other rows it has.
    of_one = source.dataset, source.order, source.seed, 1, source.long_documents
    alone = Stream.of_dataset(*of_one, group_blocks=source.group_blocks)
    datasets = open_datasets(alone)
    try:
        described = datasets.await_described()
        if source.corpus is not None:
            require_saved_corpus(source, corpora_of(alone, described)[0], 1)
        return datasets.rows_of(source.order.NAME, context_length)
    except NotFound as error:
        problem = f"cannot change: the rows of {source.dataset!r} are not known ({error})"
        cure = "serve it until the change has begun; no mixture has to name it"
        raise InvalidRequest("context_length", f"{problem}; {cure}") from None
    finally:
        datasets.close()


def _rest_of(stream: Stream, sample: int, definition: Definition, kept: Collection[int]) -> Stream:
    """Return the part of a stream that is still read, and of a mixture all sources that it was
    asked for, whose rows are counted; the whole one while the corpora of what was read before are
    not known.

    kept: numbers of sources that stay a part of it: a source that pauses leaves out rows too.
    """
    rest, first = stream.rest(sample), stream.place_of(sample)
    length = stream.stages[first].context_length
    same = list(takewhile(lambda stage: stage.context_length == length, stream.stages[first:]))
    names = {each.dataset for each in definition.stream.sources} if definition.is_mixture else set()
    numbers = {*rest.numbers, *kept}
    # Of several sources of one dataset, the last one is read from now on.
    last = {each.dataset: each.number for each in stream.sources}
    numbers |= {number for name, number in last.items() if name in names}
    if not all(each.corpus or each.number in numbers for each in stream.sources):
        return stream.with_stages([*stream.stages[:first], *same])
    sources = tuple(each for each in stream.sources if each.number in numbers)
    redactions = tuple(each for each in stream.redactions if each.source in numbers)
    shared = rest.stages[: len(same)]
    return replace(rest, sources=sources, stages=shared, redactions=redactions)


def _datasets_of(stream: Stream) -> list[tuple[object, ...]]:
    """Return what datasets are opened by."""
    return [(each.number, each.dataset, each.order, each.long_documents) for each in stream.sources]


def _require_same_planes(before: FeedStream, now: FeedStream) -> None:
    """Raise StreamMismatch if a dataset has other planes than before, of the kinds that were wanted
    before and are wanted now: beside the first source of documents, document starts are wanted of
    all datasets.
    """
    kinds = {*before.datasets.planes.kinds} & {*now.datasets.planes.kinds}
    known = {
        each.fingerprint: planes
        for each, planes in zip(
            before.datasets.await_described(), before.datasets.plane_fingerprints(), strict=True
        )
    }
    described = zip(now.datasets.await_described(), now.datasets.plane_fingerprints(), strict=True)
    for each, planes in described:
        changed = {*known.get(each.fingerprint, planes)} ^ {*planes}
        if other := kinds & {kind for kind, _ in changed}:
            names = sorted(map(plane_name, other))
            problem = f"has other planes now: {', '.join(names)}"
            raise StreamMismatch(f"mixture.{each.name}", problem)
