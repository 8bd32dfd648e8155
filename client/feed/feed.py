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

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import SAMPLE_END

from ..device.host_transfer import Pair
from ..device.loaders import require_no_lightning
from ..runtime import arguments
from ..source.file_target import is_local_target
from ..source.open_source import open_source
from ..transport.addresses import Targets
from .delivery import Delivery
from .feed_stream import FeedStream
from .first_stream import first_stream
from .named import named_runs
from .options import TAILS, FeedOptions, Tail
from .requested_changes import Change, declared, redacted, resized, reweighted
from .resume import Resumption, resumed
from .row_dataset import RowDataset
from .state import read_state
from .stats import FeedPosition, FeedStats, counted

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
        stream, self._agreement = first_stream(
            target, batch_size, context_length, options, open_source
        )
        stream.datasets.end_with(self)
        count = stream.request.num_batches
        super().__init__(
            stream,
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
        source and sample of each row, and states. The class BatchAttributes lists all attributes.
        Each batch still unpacks as x, y; an attribute is computed when it is first accessed.

            for batch in feed.batches():
                x, y = batch
                loss = model(x, y, positions=batch.positions)

        If a dataset does not know where its documents begin, the attributes that depend on
        documents raise InvalidRequest. A second `for` continues after the last delivered batch.
        Raises: as for iterating.
        """
        self._carry_more()
        return iter(partial(self._next, self._enriched), None)

    def skip(self, samples: int) -> None:
        """Skip the next samples of all ranks, for example to jump over a loss spike.

        samples: says how many samples of all ranks together are skipped; every rank has to pass the
        same number.
        Raises: InvalidRequest if samples is negative or no integer; SamplesExhausted if the next
        sample would be above 2^63.
        """
        self._cursor.skip(arguments.count("samples", samples))
        self._drop_reader()

    def change_mixture(self, weights: Mapping[str, float], at_sample: int | None = None) -> int:
        """Change the weights of the mixture from a sample on. The change lasts until the next stage
        that was given to Mixture.

        Rows that were prefetched are read again. The state records the change, so a feed of the
        same mixture that loads the state makes the same change. A second call with the same change
        does nothing; another change that would begin at the same sample replaces the first one.
        weights: are given as for Mixture. Sources without a weight pause; the weights can name new
        datasets.
        at_sample: is the first sample (row of the stream) that the change can affect, after all
        delivered samples; by default the change begins as soon as possible. With several ranks
        at_sample is required, and each rank has to call this method before it reaches that sample.
        With torch.distributed the ranks wait for each other in this call, and compare their
        changes; without it each rank makes the change on its own.
        Returns: the sample from which on the new weights are in force: the first end of a block at
        or above at_sample, or one block later if a stage of the mixture begins exactly there, or an
        earlier sample if the weights were in force already.
        Raises: InvalidRequest if this feed has no mixture or is closed, if weights or at_sample are
        not valid, or if no whole block is left for the new weights or for a later stage;
        StreamMismatch if the ranks ask for different changes, or if one rank cannot make the
        change; Unreachable if a rank does not call this method within 480 s, or if the ranks cannot
        compare their changes. If a new dataset cannot be read, the errors of iterating over a feed
        are raised.
        """
        stream = self._stream
        if not stream.definition.is_mixture:
            raise InvalidRequest("mixture", "is missing; only the weights of a mixture can change")
        changed, begin = self._change(
            "mixture", lambda own: reweighted(own, weights, at_sample, self), at_sample
        )
        if changed is not stream:
            _LOG.info("mixture changes sample=%d weights=%s", begin, dict(weights))
        return begin

    def change_context_length(
        self, context_length: int, at_sample: int | None = None, *, batch_size: int | None = None
    ) -> int:
        """Change the context length from a sample on, for example to train the end of a run on
        longer rows.

            feed.change_context_length(32_768, at_sample=feed.position.samples + 100_000)

        In the order "blocks" the new length begins with the next group of blocks (or with the next
        epoch, after the last group), so that no target of a whole block is left out or comes twice.
        In "random" it begins at once. Every other order of windows can change only between two
        epochs. A mixture changes at the first end of a block, and keeps its weights. Each of its
        sources then begins its next group, and leaves out the rest of its current group; the log
        says how much that is. Rows that were prefetched are read again. All rows of a batch have
        one length, so the last batch before the change is filled up with rows that have y = -100
        throughout, and that are not samples. After the change x and y have another shape. The state
        records the change. A feed with the same arguments that loads the state makes the same
        change; once the change is in force, a feed with the new context length can load the state
        too. A second call with the same change does nothing; another change that would begin at the
        same sample replaces the first one.
        context_length: is the new number of tokens of x in a row.
        at_sample: is the first sample (row) that the change may affect, as for `change_mixture`; by
        default the change begins as soon as possible.
        batch_size: is the new number of rows per rank. By default the number of tokens of a batch
        stays the same. batch_size is not in the state.
        Returns: the sample from which on rows have the new context length: the first end of a
        group, or of a block of the mixture, at or above at_sample, or an earlier sample if rows had
        this length already.
        Raises: InvalidRequest if the feed has num_batches, was given several context lengths or is
        closed; if an argument is not valid; if the tokens of a batch are no whole number of rows of
        the new length; if at_sample is in the middle of an epoch of another order; if rows are
        pieces of documents; or if a source of a mixture would leave out more than a group. The
        errors of `change_mixture` are raised too.
        """
        _, begin = self._change(
            "context_length",
            lambda own: resized(own, context_length, at_sample, batch_size),
            at_sample,
        )
        return begin

    def redact(
        self, list_hash: str, at_sample: int | None = None, dataset: str | None = None
    ) -> int:
        """From a sample on, replace the tokens of a list of redactions by a fill token, and set
        their y to -100. No other token changes, and no row moves.

            feed.redact("1443e503...", at_sample=feed.position.samples + 100_000)

        Rows that were prefetched are read again. The state records the redaction, so a feed that
        loads the state makes the same redaction without a call of this method. A second call with
        the same redaction does nothing. With at_sample=0, before the first batch, a new run can
        read a corpus with erased tokens.
        list_hash: is the hash of the list, 64 hexadecimal digits, as `tokenfeed redact` prints
        them. The feed does not use a server before that server has the list.
        at_sample: is the first sample that is redacted, as for `change_mixture`; by default the
        first sample after all delivered samples.
        dataset: names the dataset, and is required with a mixture.
        Returns: the sample from which on the redaction is in force, which is earlier than at_sample
        if the redaction was in force already.
        Raises: InvalidRequest if an argument is not valid or the feed is closed; StreamMismatch if
        no server has the list, if the ranks ask for different redactions, or if one rank cannot
        redact; Unreachable if a rank does not call this method within 480 s, or if the ranks cannot
        compare their redactions. The errors of iterating over a feed are raised too.
        """
        stream = self._stream
        changed, begin = self._change(
            "redactions",
            lambda own: redacted(declared(own), list_hash, at_sample, dataset, self),
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
        """End the threads and the connection of this feed; a loop over the feed then stops at once.
        A second call does nothing.
        """
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
        """Return the state of the feed as plain values, for JSON or torch.save: the position after
        the last delivered batch, the settings of the stream, and the history.

        After the same number of batches, every rank has the same state. Any rank may load it, at
        any batch size and number of ranks. If nothing was read yet, this call waits until a server
        has described the corpus.
        before: is a batch that the weights were not trained on yet, because its step was
        interrupted; if there are several such batches, pass the first one. The returned state is
        the one before this batch. Pass the object that this feed has delivered, not a copy: (x, y),
        x, a dict that holds x, or a batch of `batches`. A feed remembers its last 1,024 batches.
        Raises: InvalidRequest if before is none of these; TokenfeedError if the corpus cannot be
        described.
        """
        if before is not None:
            return self._state_before(before)
        require_no_lightning()
        while True:
            stream = self._declared()
            snapshot = stream.cursor.current
            if stream is self._stream:  # else the snapshot may be of another stream
                return stream.state_at(snapshot)

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Resume from a saved position, with its history.

        The feed refuses a state of another stream, unless allow names each part that differs; the
        log then names the differences. The history of what was read before does not change.
        allow: has any of "order", "seed", "context_length", "fingerprint"; for orders over
        documents "long_documents" (the argument long) and "pieces" (where documents begin);
        "mixture" (the weights before the saved sample); "planes" (loss masks, or borders that mask
        targets); "redactions"; and "mid_epoch". A source in the order "blocks" keeps the group size
        of the state, whatever group_tokens says. A feed with num_batches still ends at the sample
        that was fixed when it was created.
        Another context length: if the feed has another context length than the state, an order with
        epochs resumes at the same fraction of the epoch. In the middle of an epoch some windows
        would then repeat or be left out, except for "sequential" over one file; the state is
        refused there unless allow has "mid_epoch" too. The orders "blocks" and "random" change the
        length as `change_context_length` does.
        Mixtures: the stages before the saved sample have to be the same in the state and in this
        feed, with or without changes by `change_mixture`; or this feed has a single stage, with the
        weights in force at the saved sample. Otherwise the state is refused; with "mixture" in
        allow, the weights of this feed begin at the first end of a block from the saved sample on.
        Later stages may differ, unless they make a change of the context length impossible.
        Datasets that `change_mixture` has added are read too. The context length of this feed has
        to be the one with which the run began, or the one in force; for another length call
        `change_context_length`.
        Redactions: those of the state stay in force. The state is refused if this feed has a
        redaction that begins before the saved sample, and the state lacks this redaction or begins
        it at another sample; with "redactions" in allow, the redaction is in force from the saved
        sample on, or from the sample that the state names. If the
        state has a redaction of a corpus that this feed does not read, the state is refused; with
        "redactions" in allow, that redaction is dropped.
        Raises: StreamMismatch if the streams differ, naming the parts that do, or if the ranks load
        different states; InvalidRequest if state or allow is not valid; SamplesExhausted if the
        position at another context length would reach 2^63. If a server has to describe the
        datasets first, the errors of iterating over a feed are raised.
        """
        saved = read_state(state)

        def derive(own: FeedStream) -> Resumption:
            return resumed(own, saved, allow, self)

        before, found = self._derived(derive)
        if self._agreement is not None:
            try:
                sample = found.stream.cursor.sample
                self._agreement.require_same_state(
                    next(self._loads), sample, found.stream.compared()
                )
            except BaseException:
                found.stream.close_unless(before)
                raise
        while not self._install(found.stream, before):
            found.stream.close_unless(self._stream)
            before, found = self._derived(derive)
        for message in found.messages:
            _LOG.warning("%s", message)

    def history(self) -> list[dict[str, Any]]:
        """Return which samples this feed, and the feeds whose state it loaded, have delivered. The
        result is a list of runs (batches without a break), oldest first, as plain values.

        Each run has "first_batch" (the number of batches before the run), "first_sample",
        "end_sample", "batch_size", "world_size" and "stages": the stages in which its samples are,
        each with "first_sample", "context_length" and "sources". A source has "source" (its
        number), "dataset", "order", "seed", "fingerprint", "weight" (its samples in a block) and
        "base" (which of the source's samples the stage begins with). A source in an order over
        documents also has "long_documents" and "pieces", and a source in the order "blocks" also
        has "group_blocks". A run in which redactions are in force also has "redactions".
        Batch k of a run has the world_size * batch_size samples of all ranks from first_sample + k
        * world_size * batch_size on. In the last batch of a run, rows from end_sample on were
        padding. The history begins with the first batch of the loaded state, or of this feed. If
        first_batch of the first run is above 0, the oldest runs were dropped, since a history keeps
        at most 1,000 runs, and drops runs with old stages.
        Raises: TokenfeedError if no server can describe the corpora.
        """
        stream = self._declared()
        history = stream.told(stream.cursor.now[2])
        return named_runs(stream.known(), history) if history.runs else []

    @property
    def position(self) -> FeedPosition:
        """The index of the next sample, and the epoch of that sample. If the order has epochs, this
        waits until a server has described the dataset.
        Raises: TokenfeedError if no server can describe the dataset.
        """
        stream = self._declared()
        return stream.position_of(stream.cursor.sample)

    @property
    def token_count(self) -> int:
        """The number of tokens in all files of the dataset, or of all datasets of a mixture. The
        property waits until a server has described the datasets.
        Raises: TokenfeedError if no server can.
        """
        return sum(each.token_count for each in self._datasets.await_described())

    @property
    def batch_size(self) -> int:
        """The number of rows in the next batch of this rank. The number may differ after a change
        of the context length. If several context lengths were declared, this waits until a server
        has described the dataset.
        Raises: TokenfeedError if no server can.
        """
        return self._declared().settled().request.position.batch_size

    @property
    def context_length(self) -> int:
        """The number of tokens of x in a row of the next batch. This waits as `batch_size` does."""
        return self._declared().settled().context_length

    @property
    def batches_left(self) -> int | None:
        """The number of batches until this feed ends, by num_batches or by max_epochs of a mixture,
        at all context lengths; None if the feed is endless. With max_epochs this waits until a
        server has described the datasets.

        Raises: like `position`.
        """
        stream = self._declared()
        end = self._end(stream)
        return None if end == SAMPLE_END else stream.batches_left(end)

    @property
    def batches_per_epoch(self) -> int:
        """The number of whole batches of each rank in an epoch. This waits until a server has
        described the dataset.

        Raises: InvalidRequest for a mixture, for an order without epochs, or if the corpus is too
        small for a row; TokenfeedError if no server can describe the dataset.
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

        epoch: is the number of the epoch, from 0.
        tail: says what happens to the last samples, which do not fill a whole batch on all ranks:
        "drop" leaves them out; "wrap" fills the batch with the first samples of the next epoch;
        "pad" does the same, but the added rows have y = -100 throughout, so that a loss ignores
        them.
        Each `for` starts at the beginning of the epoch. There is one exception: if a loaded state,
        `skip`, `start_sample` or `next` has set a position within the epoch, the first `for` after
        that continues from this position. The loop moves the position of the feed; after the last
        batch the feed is at the first sample of the next epoch. If another call moves the feed
        during the loop, the loop raises InvalidRequest.
        Raises: InvalidRequest for a mixture, for an order without epochs, for a feed with
        num_batches, or if epoch or tail is not valid. `len` and iterating raise InvalidRequest if
        the corpus is too small for a row, and SamplesExhausted for an epoch that would reach sample
        2^63. Iterating also raises InvalidRequest if the epoch began before a loaded state changed
        the stream, and the errors of iterating over the feed.
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
        """Return a dataset of the rows of an epoch, which are read by their index, for frameworks
        that have their own sampler. Item i is sample i of the stream: (x, y) of [T] each, in host
        memory.

            sampler = DistributedSampler(dataset := feed.as_dataset())
            for x, y in DataLoader(dataset, 32, sampler=sampler, num_workers=2):
                ...

        In each process the dataset opens its own connection, and does not move this feed. The
        dataset needs no ranks, since the sampler distributes the rows. The redactions of this feed
        are in force in all of its rows. The dataset ignores the arguments device, start_step,
        start_sample and num_batches of this feed.
        It reads the corpus that this feed reads; unless that is known, this asks a server.
        Raises: InvalidRequest for a mixture or an order without epochs; as for iterating a feed.
        """
        self._stream.require_epochs()
        target, context_length, given = self._given
        lengths = {stage.context_length for stage in self._stream.stream.stages}
        if isinstance(context_length, Mapping) or lengths != {context_length}:
            problem = "has several values, but rows by their index have one: make a feed of one"
            raise InvalidRequest("context_length", problem)
        if len(self._stream.stream.stages) > 1:
            problem = "changed the stream, but rows by their index are of one: make a new feed"
            raise InvalidRequest("state", problem)
        source = self._stream.source
        fresh = dict.fromkeys(("group", "start_sample", "num_batches", "redactions"))
        own = {**given, **fresh, "start_step": 0, "rank": 0, "world_size": 1}
        if source.group_blocks:  # a state may have brought it
            own["group_tokens"] = source.group_blocks * source.order.BLOCK_TOKENS
        if "device" in own:
            own["device"] = "cpu"
        if not (isinstance(target, str) or is_local_target(target)):
            # Each rank begins with another replica.
            first = self._request.position.rank % len(target)
            target = [*target[first:], *target[:first]]
        lists = sorted({each.list_hash.hex() for each in self._stream.stream.redactions})
        make_feed = partial(_redacted_feed, type(self), target, context_length, own, lists)
        corpus = self._stream.known().sources[source.number].corpus
        assert corpus is not None
        return RowDataset(make_feed, corpus.fingerprint.hex())

    # --- internals: how a batch arrives is in delivery.py ---

    def _change(
        self, name: str, change: Callable[[FeedStream], Change], at_sample: int | None
    ) -> Change:
        """Change the stream, and wait until all ranks of a process group have done the same.

        name: of what is changed.  change: returns the changed stream, or the same; called again if
        another thread has replaced the stream meanwhile.  at_sample: as a user passed it; required
        with several ranks.
        Raises: InvalidRequest; what change raises; like RankAgreement.await_all_ranks. If another
        thread has passed the change, or changed the stream so that it cannot be made any more, this
        rank raises though the others have made it.
        """
        agreement = self._agreement

        def derive(own: FeedStream) -> tuple[FeedStream, int, int]:
            position = own.cursor.sample
            changed, begin = change(own)
            # What begins before the position was in force already.
            return changed, begin, begin if begin >= position else SAMPLE_END

        try:
            if at_sample is None and self._request.position.world_size > 1:
                raise InvalidRequest("at_sample", "is required with several ranks")
            before, (changed, begin, sample_max) = self._derived(derive)
            compared = "" if agreement is None else changed.compared()
        except BaseException as error:
            if agreement is not None:
                agreement.refuse(str(error) or repr(error))
            raise

        def install() -> None:
            nonlocal before, changed, begin, sample_max
            while not self._install(changed, before, sample_max):
                changed.close_unless(now := self._stream)
                if now is before:
                    problem = f"{begin} was passed by another thread; pass a sample further ahead"
                    raise InvalidRequest("at_sample", problem)
                before, (changed, begin, sample_max) = self._derived(derive)

        if agreement is None:
            install()
            return changed, begin
        try:
            agreement.await_all_ranks(
                name,
                compared,
                agreed=install,
                is_over=lambda: self._datasets.closed,
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
    fingerprint: str,
) -> Feed[Array, Rich, OneEpoch]:
    """Make a feed with redactions that are in force from its first row on. Not a method, so that
    another process can be told to call it.
    """
    feed = kind(target, 1, context_length, **{**options, "fingerprint": fingerprint})
    for each in lists:
        feed.redact(each, at_sample=0)
    return feed
