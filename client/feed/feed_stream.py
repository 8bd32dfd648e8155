"""What a feed reads: its stream, the datasets behind the stream, and how far the feed is.

A stream is known once the corpora of its sources are described. A plane is data beside the tokens
of a row, such as a loss mask; its kind is a number. Pieces are the parts of documents that an order
over documents puts into rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.sampling import orders
from tokenfeed.sampling.mixture import locate_all
from tokenfeed.sampling.plan import no_documents_fit
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, Position, require_range
from tokenfeed.stream.schedule import (
    first_exhausted,
    placed_by_weights,
    planned_stage,
    resized_stage,
)
from tokenfeed.stream.stage import CHANGED, MIXTURE, Redaction, Source, Stage
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request

from ..runtime import arguments
from ..runtime.arguments import integer
from ..source.check import corpora_of, no_rows
from ..source.datasets import Datasets
from ..source.plane_selection import PlaneSelection, plane_name
from ..transport.addresses import Targets
from .changes import (
    require_ahead,
    require_same_corpus,
    with_change,
    with_redaction,
    with_weights,
)
from .cursor import Cursor, Snapshot
from .history import History
from .lengths import asked_at, is_past, read_lengths
from .mixture.recipe import (
    Definition,
    Length,
    Mixture,
    checked_weights,
    group_blocks,
    limits_of,
    lists_by_dataset,
    long_argument,
    read_list,
)
from .options import FeedOptions
from .ranks.agreement import RankAgreement, compared, rank_agreement
from .ranks.coordinates import data_parallel
from .state import Planes, folded, packed_stream, write_state
from .stats import FeedPosition, SourceStats, source_stats

_LOG = logging.getLogger("tokenfeed.client")


class Rows(NamedTuple):
    """Which samples the rows of a batch are.

    samples: int64[B], sample indices; -1 for rows that fill up the last batch of a context length.
    sources: int16[B], numbers of their sources. B is the batch size.
    """

    samples: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int16]


OpenDatasets = Callable[[Request], Datasets]
"""Returns the datasets of the sources of a request; does no I/O."""
Change: TypeAlias = "tuple[FeedStream, int]"
"""What a feed reads from now on, and the sample from which on a change is in force."""


@dataclass(frozen=True, slots=True)
class FeedStream:
    """What a feed reads, and how far it is. A feed whose stream changes replaces the whole value:
    other threads and signal handlers see all of a change, or nothing of it.

    request: the request of the first batch, over the whole stream: all stages that are kept, those
    that were read included. `request_at` derives all other requests.  rest: the part of the stream
    from the position on, up to another context length. For a mixture it also has the sources that
    are not read any more, to count their rows. While the corpora of earlier sources are unknown, it
    is the whole stream.
    datasets: those of the sources of `rest`.  cursor: the position.  open_datasets: returns the
    datasets of another request.  masks: kinds of planes that mask targets where a dataset has them.
    definition: what the user asked for, with redactions since then; a loaded state does not change
    it.  batch_sizes: rows of a batch of this rank at the context lengths for which the user said
    it, the first one first.  pending: declared context lengths that the stream may lack, until
    `declared`.  counted: batches, and their tokens of x, that this feed had delivered when its
    batches got the present shape.
    """

    request: Request
    rest: Stream
    datasets: Datasets
    cursor: Cursor
    open_datasets: OpenDatasets
    masks: tuple[int, ...]
    definition: Definition
    batch_sizes: Mapping[int, int]
    pending: tuple[Length, ...] = ()
    counted: tuple[int, int] = (0, 0)
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
                    require_same_corpus(source, corpora[source.number], length)
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

    def rows_at(self, sample: int) -> Rows:
        """Return sample index and source number of each row of a batch of this rank.  sample: of
        row 0 of rank 0 in that batch.
        """
        position = replace(self.request.position, first_sample=sample)
        samples = position.samples(0, position.batch_size)
        numbers, _ = locate_all(self.stream, samples)
        samples[samples >= self.length_end] = -1
        return Rows(samples, numbers.astype(np.int16))

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

    @property
    def length_end(self) -> int:
        """The first sample at another context length than that which is read now; 2^63 if there is
        none.
        """
        behind = self.rest.stages[-1].index + 1 - self.stream.stages[0].index
        stages = self.stream.stages
        return stages[behind].first_sample if behind < len(stages) else SAMPLE_END

    def batches_to(self, end_sample: int) -> int:
        """Return how many batches of one shape come next: whole ones up to a sample, and one that
        is filled up where the context length changes before it.
        """
        left, stride = self.cursor.sample, self.request.position.stride
        if self.length_end <= end_sample:
            return -(-(self.length_end - left) // stride)
        return max(0, end_sample - left) // stride

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
        sample = self.cursor.sample
        if sample < self.length_end:
            return self
        rest = _rest_of(self.stream, sample, self.definition)
        found = replace(self, rest=rest, counted=self._counted_now())._shaped(sample)
        found._memo.update(self._memo)
        return found

    def declared(self) -> FeedStream:
        """Return what is read with the context lengths that the user declared, where they begin. Of
        those that are asked for before all that was delivered, the last one begins as soon as
        possible, unless the stream has had it. Waits for the datasets if there are such.

        Raises: InvalidRequest if one cannot begin there; TokenfeedError.
        """
        if not self.pending or self.datasets.closed:
            return self
        _, _, history = self.cursor.now
        ahead, found, before = history.end_sample, replace(self, pending=()), 0
        for n, each in enumerate(self.pending):
            asked, length = asked_at(each, found.stream), each.context_length
            if asked < before:  # one is by tokens, which are samples only now
                problem = f"{length} is asked for at sample {asked}, behind one at {before}"
                raise InvalidRequest("context_length", f"{problem}; declare them in this order")
            before = asked
            is_known = any(
                (stage.asked, stage.context_length) == (asked, length)
                for stage in found.stream.stages
            )
            is_over = any(is_past(one, found.stream, ahead) for one in self.pending[n + 1 : n + 2])
            if is_known or is_over:
                continue
            try:
                found, begin = found._with_length(length, max(asked, ahead), ahead, or_later=True)
            except InvalidRequest as error:
                problem = f"{length} from sample {asked} on: {error}"
                raise InvalidRequest("context_length", problem) from None
            message = "context length changes sample=%d context_length=%d asked=%d"
            _LOG.info(message, begin, length, asked)
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
        return MIXTURE if self.definition.is_mixture else self._source.order.NAME

    # --- epochs ---

    @property
    def stage(self) -> Stage:
        """The stage of the next sample."""
        return self.stream.stages[self.stream.place_of(self.cursor.sample)]

    def require_epochs(self) -> None:
        """Raise InvalidRequest if this is a mixture, or its order has no epochs."""
        if self.definition.is_mixture:
            raise InvalidRequest("mixture", "has no epochs; max_epochs of a source ends a mixture")
        if not self._source.order.HAS_EPOCHS:
            raise InvalidRequest(
                "order",
                f"{self._source.order.NAME} is endless and has no epochs; pass order='shuffled', "
                "'sequential', 'packed' or 'padded'",
            )

    @property
    def _source(self) -> Source:
        """The source of the present stage of a stream over one dataset."""
        ((number, _),) = self.stage.weights.items()
        return self.stream.sources[number]

    def rows_at_length(self, context_length: int) -> int:
        """Return the rows per epoch of the source that is read, of a feed without a mixture; waits
        for its description, also at a length at which it was not asked for yet.

        context_length: of the rows.  Raises: TokenfeedError.
        """
        return self.datasets.rows_of(self._source.order.NAME, context_length, place=self._place)

    def require_rows(self, context_length: int | None = None) -> int:
        """Return `rows_at_length`, at least 1, by default at the present length.

        Raises: InvalidRequest if no file is long enough for a window, or no document fits into a
        row; TokenfeedError.
        """
        length, source = context_length or self.stage.context_length, self._source
        rows = self.rows_at_length(length)
        if rows:
            return rows
        if source.reads_documents:
            raise no_documents_fit(self.stream, source)
        raise no_rows(self.datasets.await_described()[self._place], source.order, length)

    @property
    def _place(self) -> int:
        """Which of the datasets has the source that is read."""
        return self.rest.numbers.index(self._source.number)

    @property
    def epoch_offset(self) -> int:
        """A sample's number within its source, less the sample index, in the present stage. Not 0
        after a change of the context length, for example; may be negative.
        """
        return self.stage.active[0].base - self.stage.first_sample

    def position_of(self, sample: int) -> FeedPosition:
        """Return the position at a sample. If the order has epochs, this waits for the number of
        rows per epoch, and raises TokenfeedError if the dataset cannot be described.
        """
        if self.definition.is_mixture or not self._source.order.HAS_EPOCHS:
            return FeedPosition(sample, None)
        own = sample + self.epoch_offset
        return FeedPosition(sample, own // max(1, self.rows_at_length(self.stage.context_length)))

    def end_sample(self) -> int:
        """Return the sample at which the mixture ends because max_epochs of a source are used up;
        2^63 if it does not end. The end is logged. Waits for the datasets if a source has
        max_epochs.

        Raises: InvalidRequest if max_epochs does not suffice for the first block; TokenfeedError.
        """
        max_epochs = self.definition.max_epochs
        if not max_epochs:
            return SAMPLE_END
        sample, rows = self.cursor.sample, self._rows_of_sources()
        limits = limits_of(self.stream, max_epochs, rows, sample)
        end = first_exhausted(self.stream.stages, limits, sample)
        if end is None:
            return SAMPLE_END
        name = self.stream.sources[end.source].dataset
        _LOG.warning(
            "mixture ends when a source is exhausted source=%s max_epochs=%d sample=%d tokens=%d",
            name,
            max_epochs[name],
            end.sample,
            end.sample * self.stream.context_length,
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
        rows = {
            number: count
            for number, count in (self._rows_of_sources() if has_read else {}).items()
            if self.stream.sources[number].order.HAS_EPOCHS
        }
        return source_stats(self.stream, history, rows)

    def _rows_of_sources(self) -> dict[int, int]:
        """Return the rows of each source that is still read, per epoch if its order has epochs."""
        return {
            source.number: self.datasets.rows_of(source.order.NAME, place=place)
            for place, source in enumerate(self.rest.sources)
        }

    # --- changes ---

    def reweighted(self, weights: object, at_sample: int | None, owner: object) -> Change:
        """Return the stream with other weights from a sample on, and the sample from which on they
        are in force; this stream itself if nothing changes.

        weights, at_sample: as a user passed them; at_sample=None is as soon as possible.  owner:
        newly opened datasets are closed when it is garbage-collected.
        Raises: InvalidRequest if weights or at_sample are not valid, or the feed is closed;
        TokenfeedError if new datasets cannot be read.
        """
        at, ahead = self._asked(at_sample)
        by_name = checked_weights(weights, self.definition.block)
        own = self.definition.with_sources(self.stream, by_name)
        numbers = {source.dataset: source.number for source in own.sources}
        samples_of = {numbers[name]: count for name, count in by_name.items() if count}
        stages, begin = with_weights(own.stages, samples_of, at, ahead, or_later=at_sample is None)
        if stages == self.stream.stages:
            return self, begin
        return self.with_stream(own.with_stages(stages), owner=owner), begin

    def resized(self, context_length: int, at_sample: int | None, batch_size: int | None) -> Change:
        """Return the stream with another context length from a sample on, and the sample from which
        on it is in force; this stream itself if nothing changes.

        context_length, at_sample, batch_size: as a user passed them; at_sample=None is as soon as
        possible.
        Raises: InvalidRequest if an argument is not valid, the feed is closed, or the context
        length cannot change there; TokenfeedError if rows cannot be counted.
        """
        at, ahead = self._asked(at_sample)
        length = integer("context_length", context_length)
        if self.definition.is_mixture:
            problem = "of a mixture cannot change during a run: its sources are not between two"
            raise InvalidRequest("context_length", f"{problem} groups at the same sample")
        if self.definition.lengths:
            # A restart could not tell a change that was replaced from one that is missing.
            problem = "was given with several values: declare this change with them"
            raise InvalidRequest("context_length", problem)
        self.require_one_shape()
        sizes = dict(self.batch_sizes)
        if batch_size is not None:
            size = integer("batch_size", batch_size)
            require_range("batch_size", size, 1, BATCH_SIZE_MAX + 1)
            now = self.settled().request.position.batch_size
            if length == self.stage.context_length and size != now:
                problem = f"{size} is not {now}, which it is at context_length {length} by now"
                cure = "pass both to a new feed, and load the state there"
                raise InvalidRequest("batch_size", f"{problem}; {cure}")
            if sizes.setdefault(length, size) != size:
                problem = f"{size} is not {sizes[length]}, which it is at context_length {length}"
                raise InvalidRequest("batch_size", f"{problem} in this run already")
        sized = self if sizes == self.batch_sizes else replace(self, batch_sizes=sizes)
        return sized._with_length(length, at, ahead, or_later=at_sample is None)

    def _with_length(self, length: int, at_sample: int, ahead: int, *, or_later: bool) -> Change:
        """Return this with a context length from a sample on, and where that begins, as of
        `with_change`.
        """
        new = planned_stage(length, at_sample, {self._source.number: 1}, CHANGED)
        self.rest.with_stages([new])  # checks the length, before rows are counted
        if not self._source.reads_documents:
            self.require_rows(length)
        stages, begin = with_change(
            self.stream.stages, new, ahead, "context_length", self._placed, or_later=or_later
        )
        _require_whole_rows([stage.context_length for stage in stages], self.batch_sizes)
        return self.with_stream(self.stream.with_stages(stages), owner=None), begin

    def require_one_shape(self) -> None:
        """Raise InvalidRequest if batches are counted, which then have to be of one shape."""
        _require_uncounted(self.request.num_batches)

    def _placed(self, last: Stage, planned: Stage) -> Stage:
        """Return a planned stage of a context length where it begins, as `place` of `scheduled`."""
        source, length = self._source, planned.context_length
        if length == last.context_length and not source.order.BLOCK_TOKENS:
            return placed_by_weights(last, planned)
        # Also of the same length: it begins where the change does that it takes back.
        rows, origin = self.rows_at_length, planned.origin
        return resized_stage(last, planned.asked, length, source, rows, origin)

    def redacted(
        self, list_hash: str, at_sample: int | None, dataset: str | None, owner: object
    ) -> Change:
        """Return the stream in which the tokens of a list are replaced from a sample on, and that
        sample; this stream itself if the list is in force by then already. If the stream has the
        list from a later sample on, the list now begins at this one.

        list_hash, at_sample, dataset: as a user passed them. at_sample=None is as soon as possible;
        dataset=None is the only dataset, and not valid for a mixture.  owner: newly opened datasets
        are closed when it is garbage-collected.
        Raises: InvalidRequest if an argument is not valid, the feed is closed, or the sample is not
        behind all that was delivered; StreamMismatch if no server has the list; TokenfeedError.
        """
        at, ahead = self._asked(at_sample)
        name = self.definition.dataset_named(self.rest, dataset)
        listed = read_list("list_hash", list_hash)
        redactions, begin = self.stream.redactions, at
        for source in self.rest.sources:
            if source.dataset == name:
                new = Redaction(at, source.number, listed)
                redactions, begin = with_redaction(redactions, new)
        if redactions != self.stream.redactions:
            require_ahead(at, ahead)
        definition = self.definition.with_redaction(name, begin, listed)
        if redactions == self.stream.redactions and definition == self.definition:
            return self, begin
        told = replace(self, definition=definition)
        return told.with_stream(replace(self.stream, redactions=redactions), owner=owner), begin

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
        rest, datasets = _rest_of(stream, cursor.sample, self.definition), self.datasets
        if _datasets_of(rest) != _datasets_of(self.rest):
            self._require_open()
            datasets = self.open_datasets(replace(self.request, stream=rest))
            datasets.end_with(owner)
            if self.datasets.reads_documents:
                datasets.read_documents()
        elif not {*rest.redactions} <= {*self.rest.redactions}:
            datasets.require_redactions(rest.redactions)
        request = replace(self.request, stream=stream)
        found = replace(
            self,
            request=request,
            rest=rest,
            datasets=datasets,
            cursor=cursor,
            counted=self._counted_now(),
            pending=self.pending if at is None else self.definition.lengths,
        )
        try:
            found = found._shaped(cursor.sample)
            request = found.request
            if datasets is not self.datasets:
                _require_same_planes(self, found)
            if len(stream.stages) > 1:
                known = found.known()
                previous = {stage.index: stage.previous for stage in known.stages}
                stages = [replace(each, previous=previous[each.index]) for each in rest.stages]
                kept = folded(known, cursor.sample)
                request = replace(request, stream=kept)
                found = replace(found, request=request, rest=rest.with_stages(stages))
                # Now: no hash is computed when a state is saved.
                found._memo.update(known=kept, packed=packed_stream(kept))
        except BaseException:
            found.close_unless(self)
            raise
        return found

    def close_unless(self, other: FeedStream) -> None:
        """Close the datasets, unless `other` has the same ones."""
        if self.datasets is not other.datasets:
            self.datasets.close()

    def _require_open(self) -> None:
        if self.datasets.closed:
            raise InvalidRequest("feed", "is closed; create a new one")

    def _asked(self, at_sample: int | None) -> tuple[int, int]:
        """Return the sample that a change was asked for at, by default the first one that may
        change; and that.

        Raises: InvalidRequest, also for a closed feed.
        """
        self._require_open()
        sample, _, history = self.cursor.now
        ahead = history.ahead_of(sample)
        at = ahead if at_sample is None else integer("at_sample", at_sample)
        require_range("at_sample", at, 0, SAMPLE_END)
        return at, ahead


def asked_stream(
    target: Targets,
    batch_size: int,
    context_length: int | Mapping[int | str, int],
    options: FeedOptions,
    open_datasets: Callable[..., Datasets],
) -> tuple[FeedStream, PlaneSelection, RankAgreement | None]:
    """Return what a feed reads, the planes that the feed wants, and what compares the feed with
    other ranks (None if there is nothing to compare). Does no I/O.

    Call this once for each feed, in the order in which feeds are created: the n-th feed of one rank
    is compared with the n-th feed of the others.
    options: all of them, checked.  open_datasets: as `open_source`.  The other arguments, and
    Raises: as for RemoteBatches.
    """
    batch_size = integer("batch_size", batch_size)
    length, lengths = read_lengths(context_length)
    definition = _definition(length, options)
    ranks = data_parallel(options["rank"], options["world_size"], options["group"])
    if lengths:
        definition = replace(definition, lengths=lengths)
        _require_changeable(definition, batch_size * ranks.world_size, batch_size, options)
    request = Request(
        definition.stream,
        arguments.first_position(
            options["start_step"],
            options["start_sample"],
            Position(0, batch_size, ranks.rank, ranks.world_size),
        ),
        num_batches=options["num_batches"],
    )
    planes = PlaneSelection(
        loss_mask=options["loss_mask"] == "apply", document_starts=options["mask_borders"]
    )
    agreement = rank_agreement(ranks, request, target, options["fingerprint"])
    open_own = partial(
        open_datasets,
        target,
        timeouts=options["timeouts"],
        credentials=options["credentials"],
        client_name=arguments.name_of_client(options["client_name"], ranks.rank),
        planes=planes,
    )
    datasets = open_own(
        request,
        fingerprint=arguments.hash_digits("fingerprint", options["fingerprint"]),
        agreement=None if agreement is None else partial(agreement.require_same, definition),
    )
    cursor = Cursor(request.position)
    stream = request.stream
    found = FeedStream(
        request,
        stream,
        datasets,
        cursor,
        open_own,
        planes.masking,
        definition,
        {length: batch_size},
        lengths,
    )
    return found, planes, agreement


def _require_changeable(
    definition: Definition, stride: int, batch_size: int, options: FeedOptions
) -> None:
    """Raise InvalidRequest unless the arguments of a feed allow several context lengths.

    stride, batch_size: rows of a batch at first, of all ranks and of each.
    """
    length, lengths = definition.stream.context_length, definition.lengths
    if definition.is_mixture:
        problem = "has several values, but a mixture has one; pass one"
        raise InvalidRequest("context_length", problem)
    if definition.stream.reads_documents:
        order = definition.stream.sources[0].order.NAME
        problem = f"has several values, but rows of {order} are other pieces at each; pass one"
        raise InvalidRequest("context_length", problem)
    _require_uncounted(options["num_batches"])
    step, first = options["start_step"], asked_at(lengths[0], definition.stream)
    if step * stride > first:
        problem = f"{step} is behind sample {first}, from which on a step may be other samples"
        raise InvalidRequest("start_step", f"{problem}; pass start_sample=, or load a state")
    every = [length, *(each.context_length for each in lengths)]
    _require_whole_rows(every, {length: batch_size})


def _require_uncounted(num_batches: int | None) -> None:
    if num_batches is not None:
        problem = "counts batches of one shape; omit it, and end the loop by its steps"
        raise InvalidRequest("num_batches", problem)


def _require_whole_rows(lengths: Sequence[int], sizes: Mapping[int, int]) -> None:
    """Raise InvalidRequest as `batch_size_of` does.  lengths, sizes: are those of a whole run."""
    for place in range(len(lengths)):
        batch_size_of(lengths[: place + 1], sizes)


def batch_size_of(lengths: Sequence[int], sizes: Mapping[int, int]) -> int:
    """Return the rows of a batch of a rank at the last of some context lengths: those that the user
    said, or as many as have the tokens of the batches before.

    lengths: of the stages up to there.  sizes: what the user said, by context length; at least one.
    Raises: InvalidRequest if these tokens are no whole rows.
    """
    known = next((length for length in reversed(lengths) if length in sizes), next(iter(sizes)))
    found, rest = divmod(sizes[known] * known, lengths[-1])
    if rest or not found:
        problem = f"{sizes[known]} rows of {known} tokens are no whole rows of {lengths[-1]}"
        raise InvalidRequest("batch_size", f"{problem}; pass a batch_size for this length")
    return found


def _definition(context_length: int, options: FeedOptions) -> Definition:
    order, seed, dataset = options["order"], options["seed"], options["dataset"] or ""
    long_documents = long_argument(order, options["long"])
    mixture = options["mixture"]
    if mixture is None:
        found = orders.find(order)
        stream = Stream.of_dataset(
            dataset,
            found,
            seed,
            context_length,
            long_documents,
            group_blocks=group_blocks(found, options["group_tokens"]),
        )
        definition = Definition(stream, order, long_documents, is_mixture=False)
        return _redacted(definition, options["redactions"])
    if dataset:
        problem = "is given together with mixture, which has the names"
        raise InvalidRequest("dataset", problem)
    if options["fingerprint"] is not None:
        problem = "is of one dataset, but a mixture has several; omit it"
        raise InvalidRequest("fingerprint", problem)
    recipe = mixture if isinstance(mixture, Mixture) else Mixture(mixture)
    definition = recipe.definition(
        context_length, order, seed, long_documents, options["group_tokens"]
    )
    return _redacted(definition, options["redactions"])


def _redacted(definition: Definition, given: str | Mapping[str, str] | None) -> Definition:
    """Return a definition with redactions that are in force from sample 0 on, as a user passed
    them.  Raises: InvalidRequest.
    """
    names = [each.dataset for each in definition.stream.sources]
    for dataset, digits in lists_by_dataset(names, given).items():
        definition = definition.with_redaction(dataset, 0, read_list("redactions", digits))
    return definition


def _rest_of(stream: Stream, sample: int, definition: Definition) -> Stream:
    """Return the part of a stream that is still read, and of a mixture all sources that it was
    asked for, whose rows are counted; the whole one while the corpora of what was read before are
    not known.
    """
    rest = stream.rest(sample)
    length = rest.stages[0].context_length
    same = takewhile(lambda stage: stage.context_length == length, rest.stages)
    rest = rest.with_stages(same).rest(sample)
    names = {each.dataset for each in definition.stream.sources} if definition.is_mixture else set()
    numbers = set(rest.numbers)
    # Of several sources of one dataset, the last one is read from now on.
    last = {each.dataset: each.number for each in stream.sources}
    numbers |= {number for name, number in last.items() if name in names}
    if not all(each.corpus or each.number in numbers for each in stream.sources):
        return stream
    sources = tuple(each for each in stream.sources if each.number in numbers)
    redactions = tuple(each for each in stream.redactions if each.source in numbers)
    return replace(rest, sources=sources, redactions=redactions)


def _datasets_of(stream: Stream) -> list[tuple[object, ...]]:
    """Return what datasets are opened by."""
    return [(each.number, each.dataset, each.order, each.long_documents) for each in stream.sources]


def _require_same_planes(before: FeedStream, now: FeedStream) -> None:
    """Raise StreamMismatch if a dataset has other planes than before."""
    known = {
        each.fingerprint: planes
        for each, planes in zip(
            before.datasets.await_described(), before.datasets.plane_fingerprints(), strict=True
        )
    }
    described = zip(now.datasets.await_described(), now.datasets.plane_fingerprints(), strict=True)
    for each, planes in described:
        if other := {*known.get(each.fingerprint, planes)} ^ {*planes}:
            names = sorted({plane_name(kind) for kind, _ in other})
            problem = f"has other planes now: {', '.join(names)}"
            raise StreamMismatch(f"mixture.{each.name}", problem)
