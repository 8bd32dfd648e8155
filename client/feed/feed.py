"""Feed: rows -> batches (x, y), prefetched and resumable; of which arrays, a subclass says.

Knows nothing of torch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END

from ..device.host_transfer import Pair
from ..local.choice import open_target
from ..runtime import arguments
from ..transport.addresses import Targets
from .delivery import Delivery
from .epochs import TAILS, Tail, planned_epoch
from .feed_stream import Change, asked_stream
from .named import named_runs
from .options import FeedOptions
from .resume import resumed
from .state import read_state
from .stats import FeedPosition, FeedStats, stats_of

_LOG = logging.getLogger("tokenfeed.client")

Array = TypeVar("Array")
Rich = TypeVar("Rich")
OneEpoch = TypeVar("OneEpoch")
Own = TypeVar("Own", bound="Feed[Any, Any, Any]")


class Feed(Delivery[Array, Rich], Generic[Array, Rich, OneEpoch]):
    """What RemoteBatches and NumpyBatches have in common.

    Array: what x and y are.  Rich: a batch that carries more.  OneEpoch: an Epoch of them.
    """

    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int,
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
        stream, planes, self._agreement = asked_stream(
            target, batch_size, context_length, options, open_target
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

    # --- iterating ---

    def __iter__(self: Own) -> Own:
        """Return this iterator itself: each `for` continues where the last one stopped."""
        return self

    def __next__(self) -> Pair[Array]:
        """Return the next (x, y); waits for it.

        Raises: InvalidRequest in a worker process of a DataLoader, or in a fork.
        """
        batch = self._next(None)
        if batch is None:
            raise StopIteration
        return batch

    def batches(self) -> Iterator[Rich]:
        """Return an iterator over batches that carry more than x and y: whole rows, documents in
        each form that frameworks take, source and sample of each row, and states. Each still
        unpacks as x, y; the rest is computed when it is accessed.

            for batch in feed.batches():
                x, y = batch
                loss = model(x, y, positions=batch.positions)

        The rows bring where documents begin, if all datasets know it. Like the feed, a second
        `for` continues after the last delivered batch.  Raises: as for iterating.
        """
        self._carry_more()
        return iter(self._next_rich, None)

    def skip(self, samples: int) -> None:
        """Skip the next samples, of all ranks together: to jump over a loss spike.

        Every rank has to skip the same number.  Raises: InvalidRequest if negative;
        SamplesExhausted.
        """
        samples, left = arguments.count("samples", samples), SAMPLE_END - self._cursor.sample
        if samples > left:
            raise SamplesExhausted(
                "samples", f"{samples} is not in [0, {left}], the samples left below 2^63"
            )
        self._seek(self._cursor.sample + samples)

    def change_mixture(self, weights: Mapping[str, float], at_sample: int | None = None) -> int:
        """Change the weights of the mixture from a sample on, up to its next stage.

        Rows that were prefetched are read again. The state has the change, so a feed of the same
        definition that loads it has it too. The same change twice is one; another one that would
        begin at the same sample replaces it.
        weights: as for Mixture; sources without a weight pause, new ones may come.  at_sample: from
        which sample on, not before the current position; by default as soon as possible. With
        several ranks it is required, and all of them have to call this before they reach it: they
        wait for each other, and compare.
        Returns: the sample from which on these weights are in force: the first end of a block from
        there on, or an earlier one if they are in force already.
        Raises: InvalidRequest; StreamMismatch on all ranks if they differ; Unreachable if a rank
        does not call this in time; as for iterating, if new sources cannot be read.
        """
        stream = self._stream
        if not stream.definition.is_mixture:
            raise InvalidRequest("mixture", "is missing; only the weights of a mixture can change")
        changed, begin = self._change(
            "mixture", lambda: stream.reweighted(weights, at_sample, self), at_sample
        )
        if changed is not stream:
            _LOG.info("mixture changes sample=%d weights=%s", begin, dict(weights))
        return begin

    def redact(
        self, list_hash: str, at_sample: int | None = None, dataset: str | None = None
    ) -> int:
        """Replace the tokens of a list of ranges by a fill token from a sample on; y is -100 there.
        No other token and no other row changes.

            feed.redact("1443e503...", at_sample=feed.position.samples + 100_000)

        Rows that were prefetched are read again. The state has the redaction, so a feed that loads
        it has it too, whether it calls this or not. The same redaction twice is one. At sample 0,
        before the first batch, it lets a new run read a corpus with erased tokens.
        list_hash: 64 hexadecimal digits, as `tokenfeed redact` prints them. A server without that
        list is left out, until it has it.  at_sample: as for `change_mixture`, also for several
        ranks; by default the current position.  dataset: of a mixture, required there.
        Returns: the sample from which on it is in force: an earlier one if it was already.
        Raises: InvalidRequest; StreamMismatch if no server has the list, and on all ranks if they
        differ; Unreachable if a rank does not call this in time; as for iterating.
        """
        stream = self._stream
        changed, begin = self._change(
            "redactions", lambda: stream.redacted(list_hash, at_sample, dataset, self), at_sample
        )
        if changed is not stream:
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
            f"<{type(self).__name__} {position.batch_size} x {stream.stream.context_length} "
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
            "cannot be sent to another process; create it there. A DataLoader needs num_workers=0",
        )

    # --- position and state ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last delivered batch, and the history, as plain values.

        It is the same on every rank. Any rank may load it, at any batch size and number of ranks.
        Asks the server for the fingerprint of the corpus if nothing was read yet.
        """
        stream = self._stream
        return stream.state_at(stream.cursor.current)

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Resume from a saved position, with its history.

        allow: parts of the stream that may differ ("order", "seed", "context_length",
        "fingerprint", and over documents "long_documents" and "pieces"), or of a mixture "mixture",
        "planes": loss masks or borders that mask targets, and "redactions"; differences are logged.
        num_batches still ends at the same sample.
        At another context length, an order with epochs resumes at the same fraction of the epoch.
        In the middle of an epoch, "shuffled" would repeat that fraction of the rest, and
        "sequential" some of it if there are several files. Both are refused unless allow also
        contains "mid_epoch".
        Of a mixture, the stages before the saved sample have to be those of this feed, perhaps with
        changes by `change_mixture`; later stages may be others. A feed of other weights refuses the
        state, or with allow=("mixture",) appends its own weights at the saved sample. Sources that
        a change has brought are asked for.
        Redactions of the state are taken over, also those that are not in force yet. An own one
        that the rows before the saved sample had not is refused, or with allow=("redactions",) in
        force from there on. Lists of another corpus are refused too, or with it dropped.
        Raises: StreamMismatch, naming what differs; InvalidRequest if state is not a valid state;
        as for iterating, if the corpora are not known yet, or new sources cannot be read.
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
        batches, oldest first, as plain values.

        Each run has "first_batch" (the number of batches before it), "first_sample" and
        "end_sample", "batch_size" and "world_size", and "stages": those of the stream that it has
        samples of, each with its "first_sample", "context_length" and "sources". A source has
        "source" (its number), "dataset", "order", "seed", "fingerprint", "weight" and "base"; over
        documents also "long_documents" and "pieces". The run has "redactions" too if some are in
        force in it.
        Batch k of a run has the world_size * batch_size samples of all ranks from first_sample + k
        * world_size * batch_size on. Rows of its last batch from end_sample on were padding.
        The history begins with the first batch of a loaded state, or of this feed. If first_batch
        of the first run is above 0, there were more than 1,000 runs and the oldest were dropped.
        """
        history = self._stream.told(self._cursor.now[2])
        return named_runs(self._stream.known(), history) if history.runs else []

    @property
    def position(self) -> FeedPosition:
        """The current position: samples and epoch."""
        return self._stream.position_of(self._cursor.sample)

    @property
    def token_count(self) -> int:
        """Tokens of all files of the dataset together."""
        return sum(each.token_count for each in self._datasets.await_described())

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches per rank and epoch.  Raises: InvalidRequest if the order has no epochs."""
        self._stream.require_epochs()
        windows = self._stream.require_windows()
        return windows // self._request.position.stride

    def stats(self) -> FeedStats:
        """Return the statistics of the feed so far. Any thread may call this; it does no I/O."""
        stream, reader = self._stream, self._latest()
        sample, batches, history = stream.cursor.now
        return stats_of(
            self._counters,
            None if reader is None or stream.datasets.closed else reader.rows,
            stream.request.position.batch_size,
            batches=batches,
            tokens=batches * stream.request.position.batch_size * stream.stream.context_length,
            samples=sample,
            epoch=stream.position_of(sample).epoch if batches else None,
            sources=stream.source_stats(history, has_read=batches > 0),
        )

    # --- epochs ---

    def epoch(self, epoch: int, tail: Tail = "drop") -> OneEpoch:
        """Return one epoch as a sized iterable, with the same number of batches on every rank.

        epoch: from 0.  tail: for the samples that do not fill a whole batch on all ranks: "drop"
        leaves them out; "wrap" fills the batch with the first samples of the next epoch; "pad" does
        the same, but these rows have y = -100 throughout, so that a loss ignores them.
        Each `for` starts at the beginning of the epoch, except the first one after a loaded state,
        `skip`, `start_sample` or `next` has set a position within it. The feed's position follows;
        after the last batch it is the first sample of the next epoch. Moving the feed ends the
        loop.
        Raises: InvalidRequest for an order without epochs, or together with num_batches, and on
        iterating if no file is long enough for a window, or the feed was moved; SamplesExhausted
        for an epoch that would reach sample 2^63.
        """
        epoch = arguments.count("epoch", epoch)
        self._stream.require_epochs()
        if self._request.num_batches is not None:
            raise InvalidRequest(
                "num_batches", "cannot be combined with an epoch, which ends by itself; omit it"
            )
        arguments.one_of("tail", tail, TAILS)
        return self._epoch(
            lambda: self._cursor,
            lambda: planned_epoch(
                self._stream.require_windows(),
                self._request.position,
                epoch,
                tail,
                self._stream.stage,
            ),
            self._open,
            self._carry_more,
            lambda batch, reader, before, after: self._enriched(
                batch, reader, self._stream, before, after
            ),
            lambda reader: reader.request.stream is self._stream.rest,
            state=self.state_dict,
            load=self.load_state_dict,
            world_size=self._request.position.world_size,
        )

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
