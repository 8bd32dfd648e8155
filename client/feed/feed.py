"""Feed: an iterator over batches (x, y) of a stream's rows, prefetched and resumable. A subclass
says which arrays x and y are. Blocks and stages of a mixture are explained at Mixture.

Knows nothing of torch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END

from ..device.host_transfer import Pair
from ..device.loaders import require_no_lightning
from ..runtime import arguments
from ..source.file_target import is_local_target
from ..source.open_source import open_source
from ..transport.addresses import Targets
from .delivery import Delivery
from .first_stream import first_stream
from .named import named_runs
from .options import TAILS, FeedOptions, Tail
from .resume import resumed
from .row_dataset import RowDataset
from .state import read_state
from .stats import FeedPosition, FeedStats, counted
from .stream_changes import Change, redacted, resized, reweighted

_LOG = logging.getLogger("tokenfeed.client")

Array = TypeVar("Array")
Rich = TypeVar("Rich")
OneEpoch = TypeVar("OneEpoch")
Own = TypeVar("Own", bound="Feed[Any, Any, Any]")


class Feed(Delivery[Array, Rich], Generic[Array, Rich, OneEpoch]):
    """An iterator over batches (x, y): the base of RemoteBatches and NumpyBatches.

    Array: the type of x and of y.  Rich: the type of a batch that carries more.  OneEpoch: the type
    of what `epoch` returns, an Epoch of such batches.
    """

    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int | Mapping[int | str, int],
        options: FeedOptions,
        *,
        rich_batch: Callable[..., Rich],
        epoch: Callable[..., OneEpoch],
    ) -> None:
        """Describe a stream of batches; does no I/O.

        options: all of them, as `checked` returns them.  rich_batch, epoch: constructors, with the
        arguments of BatchAttributes and Epoch.  The other arguments, and Raises: as for
        RemoteBatches.
        """
        stream, planes, self._agreement = first_stream(
            target, batch_size, context_length, options, open_source
        )
        stream.datasets.end_with(self)
        count = stream.request.num_batches
        super().__init__(
            stream,
            masks=planes.masking,
            end_sample=(
                SAMPLE_END if count is None else stream.request.position.batch_first_sample(count)
            ),
            prefetch_bytes=options["prefetch_bytes"],
            rich_batch=rich_batch,
        )
        self._epoch = epoch
        self._loads = itertools.count()
        self._given = target, context_length, options

    # --- iterating ---

    def __iter__(self: Own) -> Own:
        """Return this iterator itself: each `for` continues where the last one stopped."""
        return self

    def __next__(self) -> Pair[Array]:
        """Return the next (x, y); waits for it.

        Raises: InvalidRequest in a worker process of a DataLoader, or in a fork.
        """
        batch = self._next(self._plain)
        if batch is None:
            raise StopIteration
        return batch

    def batches(self) -> Iterator[Rich]:
        """Return an iterator over batches that carry more than x and y: whole rows, documents,
        source and sample of each row, and states; BatchAttributes lists all. Each still unpacks as
        x, y; the rest is computed when it is accessed.

            for batch in feed.batches():
                x, y = batch
                loss = model(x, y, positions=batch.positions)

        If a dataset does not know where its documents begin, attributes that need this raise
        InvalidRequest. A second `for` continues after the last delivered batch.
        Raises: as for iterating.
        """
        self._carry_more()
        return iter(partial(self._next, self._enriched), None)

    def skip(self, samples: int) -> None:
        """Skip the next samples, of all ranks together: to jump over a loss spike.

        samples: how many; every rank has to skip the same number.
        Raises: InvalidRequest if samples is negative or no integer; SamplesExhausted if the next
        sample would be above 2^63.
        """
        samples, left = arguments.count("samples", samples), SAMPLE_END - self._cursor.sample
        if samples > left:
            raise SamplesExhausted(
                "samples", f"{samples} is not in [0, {left}], the samples left below 2^63"
            )
        self._seek(self._cursor.sample + samples)

    def change_mixture(self, weights: Mapping[str, float], at_sample: int | None = None) -> int:
        """Change the weights of the mixture from a sample on, until the next stage that was given
        to Mixture.

        Prefetched rows are read again. The state has the change: a feed of the same mixture that
        loads the state has the change too. To ask for the same change again changes nothing;
        another change that would begin at the same sample replaces the first one.
        weights: as for Mixture. Sources without a weight pause; new datasets may be named.
        at_sample: from which sample on, behind all that was delivered; by default as soon as
        possible. With several ranks it is required, and each rank has to call this before it
        reaches at_sample. With torch.distributed the ranks wait for each other, and compare;
        without it each rank changes by itself.
        Returns: the sample from which on these weights are in force: the first end of a block at or
        above at_sample, one block later if a stage of the mixture begins just there, or an earlier
        sample if they are in force already.
        Raises: InvalidRequest if this is no mixture, the feed is closed, weights or at_sample are
        not valid, or no whole block is left for these weights or for a later stage; StreamMismatch
        if ranks ask for different changes, or one of them cannot change; Unreachable if a rank does
        not call this within 480 s, or the ranks cannot be compared; as for iterating, if new
        datasets cannot be read.
        """
        stream = self._stream
        if not stream.definition.is_mixture:
            raise InvalidRequest("mixture", "is missing; only the weights of a mixture can change")
        changed, begin = self._change(
            "mixture", lambda: reweighted(stream, weights, at_sample, self), at_sample
        )
        if changed is not stream:
            _LOG.info("mixture changes sample=%d weights=%s", begin, dict(weights))
        return begin

    def change_context_length(
        self, context_length: int, at_sample: int | None = None, *, batch_size: int | None = None
    ) -> int:
        """Change the context length from a sample on: to train the end of a run on longer rows.

            feed.change_context_length(32_768, at_sample=feed.position.samples + 100_000)

        In the order "blocks" the feed goes on with the next group of blocks, or behind the last
        one with the next epoch, so that no target of a whole block is left out or comes twice; in
        "random" at once. Every other order of windows can change only between two epochs.
        A mixture changes at the first end of a block, and keeps its weights. There each source goes
        on with its next group, and the rest of its present one is left out; the log says how much.
        Prefetched rows are read again. A batch has rows of one length: the last one before the
        change is filled up with rows whose y is -100 throughout, which have no sample. From then on
        x and y have another shape.
        The state has the change: a feed with the same arguments that loads the state has it too,
        and so has one of the new context length, once it is in force. To ask for the same change
        again changes nothing; another one that would begin at the same sample replaces it.
        context_length: T of the rows from there on.  at_sample: as for `change_mixture`, counted in
        rows; by default as soon as possible.  batch_size: rows per rank from there on. By default
        batches keep their tokens. It is not in the state.
        Returns: the sample from which on rows have this context length: the first end of a group,
        or of a block of the mixture, at or above at_sample, or an earlier sample if they have it
        already.
        Raises: InvalidRequest if the feed has num_batches, or was given several context lengths; if
        it is closed, an argument is not valid, batches of as many tokens have no whole rows,
        at_sample is within an epoch of another order, rows are pieces of documents, or a source of
        a mixture would leave out more than a group; else as for `change_mixture`.
        """
        stream = self._stream
        _, begin = self._change(
            "context_length",
            lambda: resized(stream, context_length, at_sample, batch_size),
            at_sample,
        )
        return begin

    def redact(
        self, list_hash: str, at_sample: int | None = None, dataset: str | None = None
    ) -> int:
        """Replace the tokens of a list of ranges by a fill token from a sample on; y is -100 there.
        No other token and no other row changes.

            feed.redact("1443e503...", at_sample=feed.position.samples + 100_000)

        Prefetched rows are read again. The state has the redaction: a feed that loads the state has
        it too, without a call of this. To ask for the same redaction again changes nothing. With
        at_sample=0, before the first batch, a new run can read a corpus with erased tokens.
        list_hash: 64 hexadecimal digits, as `tokenfeed redact` prints them. A server without that
        list is not used until it has the list.  at_sample: as for `change_mixture`; by default the
        first sample behind all that was delivered.  dataset: name of the dataset; required with a
        mixture.
        Returns: the sample from which on the redaction is in force; an earlier one if it was
        already.
        Raises: InvalidRequest if an argument is not valid or the feed is closed; StreamMismatch if
        no server has the list, ranks ask for different redactions, or one of them cannot redact;
        Unreachable if a rank does not call this within 480 s, or the ranks cannot be compared; as
        for iterating.
        """
        stream = self._stream
        changed, begin = self._change(
            "redactions",
            lambda: redacted(self._declared(), list_hash, at_sample, dataset, self),
            at_sample,
        )
        if changed.stream.redactions != stream.stream.redactions:
            _LOG.info("redaction begins sample=%d list=%s", begin, list_hash)
        return begin

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._datasets.closed

    def close(self) -> None:
        """End threads and connection. May be called twice. Iterating then stops at once."""
        closed = None
        # A change of the mixture in another thread may bring another dataset meanwhile.
        while self._datasets is not closed:
            closed = self._datasets
            closed.close()
        self._reader = None

    def __enter__(self: Own) -> Own:
        """Return this iterator; the `with` block closes it."""
        return self

    def __repr__(self) -> str:
        """Show the shape, order and ranks, and the sample that comes next."""
        stream, position = self._stream, self._request.position
        return (
            f"<{type(self).__name__} {position.batch_size} x {stream.context_length} "
            f"{stream.order_name}, rank {position.rank} of {position.world_size}, "
            f"at sample {self._cursor.sample}>"
        )

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, for example by a DataLoader that spawns workers.  Raises:
        InvalidRequest.
        """
        raise InvalidRequest(
            "feed",
            "cannot be pickled, for another process or by from_generator of datasets; create it "
            "there, or in the generator. A DataLoader needs num_workers=0, or as_dataset()",
        )

    # --- position and state ---

    def state_dict(
        self, *, before: Mapping[str, Any] | Iterable[Any] | None = None
    ) -> dict[str, Any]:
        """Return the position after the last delivered batch, what the feed reads, and the history,
        as plain values, for JSON or torch.save.

        It is the same on every rank after the same number of batches. Any rank may load it, at any
        batch size and number of ranks. If nothing was read yet, this waits for the description of
        the corpus.
        before: a batch that the weights have not learned yet, as of a step that was interrupted; of
        several, the first. The state is then that before this batch. Pass the object that this feed
        has delivered, not a copy: (x, y), x, a dict that holds x, or a batch of `batches`. A feed
        knows its last 1,024 batches.
        Raises: InvalidRequest if before is none of these; TokenfeedError if the corpus cannot be
        described.
        """
        if before is not None:
            return self._state_before(before)
        require_no_lightning()
        stream = self._declared()
        return stream.state_at(stream.cursor.current)

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Resume from a saved position, with its history.

        A state of another stream is refused, unless allow names each part that differs; the
        differences are then logged. What was read before stays as it was.
        allow: any of "order", "seed", "context_length", "fingerprint"; over documents
        "long_documents" (the argument long) and "pieces" (where documents begin); "mixture" (the
        weights before the saved sample); "planes" (loss masks, or borders that mask targets);
        "redactions"; and "mid_epoch". A source in the order "blocks" keeps the groups of the state,
        whatever group_tokens says.
        num_batches: the feed still ends at the sample that was fixed when it was created.
        Another context length: an order with epochs resumes at the same fraction of the epoch. In
        the middle of an epoch some windows would then repeat or be left out, except for
        "sequential" over one file; that is refused unless allow has "mid_epoch" too. The orders
        "blocks" and "random" go on as behind `change_context_length`.
        Mixtures: the stages of the state before the saved sample have to be those of this feed,
        with or without changes by `change_mixture`; or this feed has a single stage, with the
        weights in force there. Else the state is refused, or with "mixture" in allow the weights of
        this feed begin at the first end of a block from the saved sample on. Later stages may
        differ, unless they make a change of the context length impossible. Datasets that a change
        has brought are asked for. The context length is that with which the run began, or that in
        force: call `change_context_length` for another one.
        Redactions of the state stay. The state is refused if this feed has a redaction that begins
        before the saved sample, and the state lacks it or begins it elsewhere; with "redactions" in
        allow, it is in force from the saved sample on, or as the state says. If the
        state has a redaction of a corpus that this feed does not read, the state is refused; with
        "redactions" in allow, that redaction is dropped.
        Raises: StreamMismatch, naming what differs, also if ranks load different states;
        InvalidRequest if state or allow is not valid; SamplesExhausted if the position at another
        context length would reach 2^63; as for iterating, if datasets have to be described first.
        """
        before = self._stream
        found = resumed(before, read_state(state), allow, self)
        if self._agreement is not None:
            try:
                sample = found.stream.cursor.sample
                self._agreement.require_same_state(
                    next(self._loads), sample, found.stream.compared()
                )
            except BaseException:
                found.stream.close_unless(before)
                raise
        self._install(found.stream)
        for message in found.messages:
            _LOG.warning("%s", message)

    def history(self) -> list[dict[str, Any]]:
        """Return what this feed, and the feeds whose state it loaded, have delivered: runs of
        batches without a break, oldest first, as plain values.

        Each run has "first_batch" (the number of batches before the run), "first_sample",
        "end_sample", "batch_size", "world_size" and "stages": the stages in which its samples are,
        each with "first_sample", "context_length" and "sources". A source has "source" (its
        number), "dataset", "order", "seed", "fingerprint", "weight" (its samples in a block) and
        "base" (its own sample with which the stage begins); over documents also "long_documents"
        and "pieces", and in the order "blocks" "group_blocks". A run has "redactions" too if some
        are in force in it.
        Batch k of a run has the world_size * batch_size samples of all ranks from first_sample + k
        * world_size * batch_size on. Rows of its last batch from end_sample on were padding.
        The history begins with the first batch of a loaded state, or of this feed. If first_batch
        of the first run is above 0, the oldest runs were dropped: above 1,000 runs, or with old
        stages.
        Raises: TokenfeedError if the corpora have to be described first, and cannot be.
        """
        stream = self._declared()
        history = stream.told(self._cursor.now[2])
        return named_runs(stream.known(), history) if history.runs else []

    @property
    def position(self) -> FeedPosition:
        """The next sample, and its epoch. If the order has epochs, this waits until the dataset is
        described.  Raises: TokenfeedError if it cannot be described.
        """
        return self._declared().position_of(self._cursor.sample)

    @property
    def token_count(self) -> int:
        """Tokens of all files of the dataset together; of a mixture, of all its sources. Waits
        until they are described.  Raises: TokenfeedError.
        """
        return sum(each.token_count for each in self._datasets.await_described())

    @property
    def batch_size(self) -> int:
        """Rows in the next batch of this rank. Another one may follow a change of the context
        length. If several were declared, this waits until the dataset is described, and raises
        TokenfeedError.
        """
        return self._declared().settled().request.position.batch_size

    @property
    def context_length(self) -> int:
        """Tokens of x in a row of the next batch; waits like `batch_size`."""
        return self._declared().settled().context_length

    @property
    def batches_left(self) -> int | None:
        """Batches until num_batches, or max_epochs of a mixture, end this feed; None if it is
        endless. Waits for the datasets if a mixture has max_epochs.

        Raises: like `position`.
        """
        position, end = self._request.position, self._end()
        return None if end == SAMPLE_END else max(0, end - self._cursor.sample) // position.stride

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches per rank and epoch; waits until the dataset is described.

        Raises: InvalidRequest for a mixture, for an order without epochs, or if no row fits;
        TokenfeedError if the dataset cannot be described.
        """
        stream = self._declared().settled()
        stream.require_epochs()
        return stream.require_rows() // stream.request.position.stride

    def stats(self) -> FeedStats:
        """Return the statistics of the feed so far. Any thread may call this; it does no I/O."""
        stream, reader = self._stream, self._latest()
        sample, batches, history = stream.cursor.now
        rows = None if reader is None or stream.datasets.closed else reader.rows
        return FeedStats(
            batches=batches,
            tokens=stream.tokens_of(batches),
            samples=sample,
            epoch=stream.position_of(sample).epoch if batches else None,
            sources=stream.source_stats(history, has_read=batches > 0),
            **counted(self._counters, rows, stream.request.position.batch_size),
        )

    # --- epochs ---

    def epoch(self, epoch: int, tail: Tail = "drop") -> OneEpoch:
        """Return one epoch as a sized iterable, with the same number of batches on every rank.

        epoch: from 0.  tail: for the samples that do not fill a whole batch on all ranks: "drop"
        leaves them out; "wrap" fills the batch with the first samples of the next epoch; "pad" does
        the same, but these rows have y = -100 throughout, so that a loss ignores them.
        Each `for` starts at the beginning of the epoch, except the first one after a loaded state,
        `skip`, `start_sample` or `next` has set a position within it. The feed's position follows;
        after the last batch it is the first sample of the next epoch.
        If the feed is moved meanwhile, the loop raises InvalidRequest.
        Raises: InvalidRequest for a mixture, an order without epochs, together with num_batches, or
        if epoch or tail is not valid. `len` and iterating raise InvalidRequest if no row fits, and
        SamplesExhausted for an epoch that would reach sample 2^63. Iterating raises InvalidRequest
        too if the epoch began before a loaded state changed the stream; else as for the feed.
        """
        epoch = arguments.count("epoch", epoch)
        self._stream.require_epochs()
        if self._request.num_batches is not None:
            raise InvalidRequest(
                "num_batches", "cannot be combined with an epoch, which ends by itself; omit it"
            )
        arguments.one_of("tail", tail, TAILS)
        return self._epoch(self, epoch, tail)

    def as_dataset(self) -> RowDataset[Array, Rich]:
        """Return the rows of an epoch by their index, for frameworks that bring a sampler of their
        own: item i is sample i of the stream, (x, y) of [T] each, in host memory.

            sampler = DistributedSampler(dataset := feed.as_dataset())
            for x, y in DataLoader(dataset, 32, sampler=sampler, num_workers=2):
                ...

        It has a connection of its own in each process, moves nothing of this feed, and needs no
        ranks: the sampler shares the rows out. It has the redactions of this feed from its first
        row on. device, start_step, start_sample and num_batches do not matter to it.
        Raises: InvalidRequest for a mixture or an order without epochs.
        """
        self._stream.require_epochs()
        target, context_length, given = self._given
        lengths = {stage.context_length for stage in self._stream.stream.stages}
        if isinstance(context_length, Mapping) or lengths != {context_length}:
            problem = "has several values, but rows by their index have one: make a feed of one"
            raise InvalidRequest("context_length", problem)
        fresh = dict.fromkeys(("group", "start_sample", "num_batches", "redactions"))
        own = {**given, **fresh, "start_step": 0, "rank": 0, "world_size": 1}
        if "device" in own:
            own["device"] = "cpu"
        if not (isinstance(target, str) or is_local_target(target)):
            # Each rank begins with another replica.
            first = self._request.position.rank % len(target)
            target = [*target[first:], *target[:first]]
        lists = sorted({each.list_hash.hex() for each in self._stream.stream.redactions})
        make_feed = partial(_redacted_feed, type(self), target, context_length, own, lists)
        return RowDataset(make_feed, given["fingerprint"])

    # --- internals: how a batch arrives is in delivery.py ---

    def _change(self, name: str, change: Callable[[], Change], at_sample: int | None) -> Change:
        """Change the stream, and wait until all ranks of a process group have done the same.

        name: of what is changed.  change: returns the changed stream, or the same.  at_sample: as a
        user passed it; required with several ranks.
        Raises: InvalidRequest; what change raises; like RankAgreement.await_all_ranks.
        """
        agreement, before, position = self._agreement, self._stream, self._cursor.sample
        try:
            if at_sample is None and self._request.position.world_size > 1:
                raise InvalidRequest("at_sample", "is required with several ranks")
            changed, begin = change()
            compared = "" if agreement is None else changed.compared()
        except BaseException as error:
            if agreement is not None:
                agreement.refuse(str(error) or repr(error))
            raise
        if agreement is None:
            if position <= begin < self._cursor.sample:
                changed.close_unless(before)
                problem = f"{begin} was passed by another thread; pass a sample further ahead"
                raise InvalidRequest("at_sample", problem)
            self._install(changed)
            return changed, begin
        try:
            agreement.await_all_ranks(
                name,
                compared,
                agreed=lambda: self._install(changed),
                is_over=lambda: before.datasets.closed,
            )
        except BaseException:
            changed.close_unless(self._stream)  # which may be the changed one
            raise
        return changed, begin


def _redacted_feed(
    kind: Callable[..., Feed[Array, Rich, OneEpoch]],
    target: Targets,
    context_length: int,
    options: Mapping[str, Any],
    lists: Sequence[str],
    fingerprint: str | None,
) -> Feed[Array, Rich, OneEpoch]:
    """Make a feed with redactions that are in force from its first row on. Not a method, so that
    another process can be told to call it.

    kind: its class.  lists: their hashes.  The others are its arguments.
    """
    feed = kind(target, 1, context_length, **{**options, "fingerprint": fingerprint})
    for each in lists:
        feed.redact(each, at_sample=0)
    return feed
