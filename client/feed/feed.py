"""Feed: rows -> batches (x, y), prefetched and resumable; of which arrays, a subclass says.

Knows nothing of torch.
"""

from __future__ import annotations

import itertools
import logging
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, Generic, NoReturn, TypeVar

from tokenfeed.errors import InvalidRequest, SamplesExhausted, TokenfeedError
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.spec import StreamParts, StreamSpec
from tokenfeed.wire.request import StreamRequest

from ..device.host_transfer import Pair, Transfer
from ..device.numpy_batch import Note
from ..local.choice import open_target
from ..runtime import arguments
from ..runtime.counters import Counters
from ..stream.wanted_planes import LOSS_MASKS, LossMask, WantedPlanes
from ..transport.addresses import Targets
from ..transport.credentials import Credentials
from ..transport.timeouts import Timeouts
from .batch_reader import BatchReader
from .cursor import Cursor, OpenRun
from .epochs import TAILS, EpochPlan, Tail
from .history import History, as_dicts
from .mixture.recipe import Mixture, long_argument
from .mixture.schedule import Schedule
from .ranks.agreement import rank_agreement
from .ranks.coordinates import Group, data_parallel
from .redactions import Planned, planned_for
from .saved.comparing import log_differences, require_same_stream
from .saved.rescale import is_rescaled, rescaled
from .saved.state import Planes, read_history, read_planes, read_state
from .stats import FeedPosition, FeedStats, stats_of
from .streamed.changes import Changed, change_together
from .streamed.dataset import StreamedDataset, note_of
from .streamed.feed_stream import FeedStream

_LOG = logging.getLogger("tokenfeed.client")

Array = TypeVar("Array")
Rich = TypeVar("Rich")
OneEpoch = TypeVar("OneEpoch")
Own = TypeVar("Own", bound="Feed[Any, Any, Any]")


class Feed(ABC, Generic[Array, Rich, OneEpoch]):
    """What RemoteBatches and NumpyBatches have in common.

    Array: what x and y are.  Rich: a batch that carries more.  OneEpoch: an Epoch of them.
    """

    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int,
        *,
        seed: int,
        dataset: str | None,
        mixture: Mixture | Mapping[str, float] | None,
        fingerprint: str | None,
        order: str,
        long: str | None,
        rank: int | None,
        world_size: int | None,
        group: Group | None,
        loss_mask: LossMask,
        mask_borders: bool,
        start_step: int,
        start_sample: int | None,
        num_batches: int | None,
        prefetch_bytes: int,
        timeouts: Timeouts,
        credentials: Credentials | None,
        client_name: str | None,
        rich_batch: Callable[..., Rich],
        epoch: Callable[..., OneEpoch],
    ) -> None:
        """Describe a stream of batches; does no I/O.

        rich_batch, epoch: constructors, with the arguments of BatchAttributes and Epoch.  The other
        arguments, and Raises: as for RemoteBatches.
        """
        ranks = data_parallel(
            arguments.optional_integer("rank", rank),
            arguments.optional_integer("world_size", world_size),
            group,
        )
        batch_size = arguments.integer("batch_size", batch_size)
        num_batches = arguments.optional_integer("num_batches", num_batches)
        prefetch_bytes = arguments.integer("prefetch_bytes", prefetch_bytes)
        require_range("prefetch_bytes", prefetch_bytes, 0, 1 << 63)
        if not isinstance(timeouts, Timeouts):
            raise InvalidRequest(
                "timeouts", f"{timeouts!r} is not valid; pass tokenfeed.Timeouts(...)"
            )
        order = orders.latest(arguments.text("order", order)).NAME
        long_documents = long_argument(order, long)
        seed = arguments.integer("seed", seed)
        context_length = arguments.integer("context_length", context_length)
        dataset = arguments.text("dataset", dataset)
        schedule: Schedule | None = None
        redactions: Planned = ()
        if mixture is None:
            spec = StreamSpec.of_dataset(
                dataset, orders.find(order), seed, context_length, (), long_documents
            )
        else:
            if dataset:
                problem = "is given together with mixture, which has the names"
                raise InvalidRequest("dataset", problem)
            if fingerprint is not None:
                problem = "is of one dataset, but a mixture has several; omit it"
                raise InvalidRequest("fingerprint", problem)
            mixture = mixture if isinstance(mixture, Mixture) else Mixture(mixture)
            schedule = mixture.schedule(context_length, order, seed, long_documents)
            redactions = mixture.planned_redactions(context_length)
            spec = planned_for(schedule.spec(), redactions)
        # Checks every range. Later requests differ from this one only by their position.
        request = StreamRequest(
            spec,
            arguments.first_position(
                start_step,
                start_sample,
                Position(0, batch_size, ranks.rank, ranks.world_size),
            ),
            num_batches,
        )
        planes = WantedPlanes(
            loss_mask=arguments.one_of("loss_mask", loss_mask, LOSS_MASKS) == "apply",
            document_starts=arguments.flag("mask_borders", mask_borders),
        )
        self._rich_batch = rich_batch
        self._epoch = epoch
        self._masks = planes.masking
        self._is_rich = False
        self._end_sample = SAMPLE_END
        if num_batches is not None:
            self._end_sample = request.position.batch_first_sample(num_batches)
        self._prefetch_bytes = prefetch_bytes
        self._agreement = rank_agreement(
            ranks, request, target, schedule.max_epochs if schedule else None
        )
        open_dataset = partial(
            open_target,
            target,
            timeouts=timeouts,
            credentials=credentials,
            client_name=arguments.name_of_client(client_name, ranks.rank),
            planes=planes,
        )
        source = open_dataset(
            request,
            fingerprint=arguments.hash_digits("fingerprint", fingerprint),
            agreement=self._agreement,
        )
        source.end_with(self)
        self._definition = schedule
        self._stream = FeedStream(
            request,
            source,
            Cursor(request.position),
            open_dataset,
            planes.kinds,
            schedule,
            redactions,
            own_redactions=redactions,
        )
        self._loads = itertools.count()
        self._reader: BatchReader[Array] | None = None
        self._counters = Counters()
        self._latest: Callable[[], BatchReader[Array] | None] = lambda: None

    # --- iterating ---

    def __iter__(self: Own) -> Own:
        """Return this iterator itself: each `for` continues where the last one stopped."""
        return self

    def __next__(self) -> Pair[Array]:
        """Return the next (x, y); waits for it.

        Raises: InvalidRequest in a worker process of a DataLoader, or in a fork.
        """
        found = self._next(None)
        if found is None:
            raise StopIteration
        batch, _ = found
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
        if stream.schedule is None:
            raise InvalidRequest("mixture", "is missing; only the weights of a mixture can change")
        changed, begin = self._change(
            "mixture", lambda: stream.changed(weights, at_sample, self), at_sample
        )
        if changed is not stream:
            _LOG.info("mixture changes sample=%d weights=%s", begin, dict(weights))
        return begin

    def redact(
        self, list_hash: str, at_sample: int | None = None, dataset: str | None = None
    ) -> int:
        """Leave out the tokens of a list of ranges from a sample on: a fill token replaces them,
        and y is -100 there. No other token and no other row changes.

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
            "redactions", lambda: stream.redacted(list_hash, at_sample, dataset), at_sample
        )
        if changed is not stream:
            _LOG.info("redaction begins sample=%d list=%s", begin, list_hash)
        return begin

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._dataset.closed

    def close(self) -> None:
        """End threads and connection. May be called twice. Iterating then stops at once."""
        closed = None
        # A change of the mixture in another thread may bring another dataset meanwhile.
        while self._dataset is not closed:
            closed = self._dataset
            closed.close()
        self._reader = None

    def __enter__(self: Own) -> Own:
        """Return this iterator; the `with` block closes it."""
        return self

    def __repr__(self) -> str:
        """Show the shape, order and ranks, and the sample that comes next."""
        spec, position = self._spec, self._request.position
        return (
            f"<{type(self).__name__} {position.batch_size} x {spec.context_length} "
            f"{spec.order_name}, rank {position.rank} of {position.world_size}, "
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
        sample, saved = read_state(state)
        history, planes = read_history(state), read_planes(state)
        if self._definition is not None and saved.stages:
            self._continue(self._definition, saved, sample, history, planes, allow)
            return
        stream = self._stream
        own = stream.parts()
        require_same_stream(saved, own, allow)
        stream.require_same_planes(saved, planes, sample, allow)
        of_other_length = is_rescaled(sample, saved, own)
        if of_other_length:
            windows_before = None
            if saved.fingerprint == own.fingerprint:
                windows_before = self._dataset.rows_of(self._spec.order.NAME, saved.context_length)
            sample = rescaled(
                sample,
                saved,
                own,
                windows_before,
                self._require_windows(),
                self._dataset.await_described()[0].file_count,
                allow,
            )
        resumed, messages = stream.resumed(
            self._definition,
            saved,
            sample,
            history=history,
            allow=allow,
            is_rescaled=of_other_length,
            owner=self,
        )
        history = resumed.named_in(history, saved, sample)
        self._install(resumed)
        if self._definition is None:
            self._seek(sample, history)
        log_differences(saved, own)
        for message in messages:
            _LOG.warning("%s", message)

    def history(self) -> list[dict[str, Any]]:
        """Return what this feed, and the feeds whose state it loaded, have delivered: runs of
        batches, oldest first, as plain values.

        Each run has "first_batch" (the number of batches before it), "first_sample" and
        "end_sample", "batch_size" and "world_size", and its stream: "order", "seed",
        "context_length", "fingerprint", of a mixture "sources" and "stages", and "redactions" if it
        has any.
        Batch k of a run has the world_size * batch_size samples of all ranks from first_sample + k
        * world_size * batch_size on. Rows of its last batch from end_sample on were padding.
        The history begins with the first batch of a loaded state, or of this feed. If first_batch
        of the first run is above 0, there were more than 1,000 runs and the oldest were dropped.
        """
        _, _, history = self._cursor.now
        return as_dicts(history)

    @property
    def position(self) -> FeedPosition:
        """The current position: samples and epoch."""
        return self._position_of(self._cursor.sample)

    @property
    def token_count(self) -> int:
        """Tokens of all files of the dataset together."""
        return sum(each.token_count for each in self._dataset.await_described())

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches per rank and epoch.  Raises: InvalidRequest if the order has no epochs."""
        self._require_epochs()
        return self._plan_epoch(0, "drop").batch_count(0)

    def stats(self) -> FeedStats:
        """Return the statistics of the feed so far. Any thread may call this; it does no I/O."""
        stream, reader = self._stream, self._latest()
        sample, batches, history = stream.cursor.now
        return stats_of(
            self._counters,
            None if reader is None or stream.dataset.closed else reader.rows,
            stream.request.position.batch_size,
            batches=batches,
            tokens=batches * stream.request.position.batch_size * stream.spec.context_length,
            samples=sample,
            epoch=self._position_of(sample).epoch if batches else None,
            sources=stream.source_stats(history, has_read=batches > 0),
        )

    # --- epochs ---

    def epoch(self, epoch: int, tail: Tail = "drop") -> OneEpoch:
        """Return one epoch as a sized iterable, with the same number of batches on every rank.

        epoch: from 0.  tail: for the samples that do not fill a whole batch on all ranks: "drop"
        leaves them out; "wrap" fills the batch with the first samples of the next epoch; "pad" does
        the same, but these rows have y = -100 throughout, so that a loss ignores them.
        Each `for` starts at the beginning of the epoch, except the first one after a loaded state,
        `skip` or `start_sample` has set a position within it. The feed's position follows; after
        the last batch it is the first sample of the next epoch. Moving the feed ends the loop.
        Raises: InvalidRequest for an order without epochs, or together with num_batches, and on
        iterating if no file is long enough for a window, or the feed was moved; SamplesExhausted
        for an epoch that would reach sample 2^63.
        """
        epoch = arguments.count("epoch", epoch)
        self._require_epochs()
        if self._request.num_batches is not None:
            raise InvalidRequest(
                "num_batches", "cannot be combined with an epoch, which ends by itself; omit it"
            )
        if tail not in TAILS:
            raise InvalidRequest("tail", f"{tail!r} is not one of {', '.join(TAILS)}")
        make_plan = partial(self._plan_epoch, epoch, tail)
        return self._epoch(
            self._cursor,
            make_plan,
            self._open,
            self._carry_more,
            lambda batch, reader, before: self._enriched(batch, reader, self._stream, before),
            lambda reader: reader.request.spec is self._spec,
            world_size=self._request.position.world_size,
        )

    # --- internals ---

    @abstractmethod
    def _transfer(self) -> Transfer[Array]:
        """Return what moves batches of `_shape` to the model; for the planes in `_masks`, with
        `_note`.
        """

    def _note(self) -> Note | None:
        """Return what notes the host part of each batch; None unless it is wanted."""
        return note_of(self._dataset, self._spec) if self._is_rich else None

    @property
    def _shape(self) -> tuple[int, int]:
        """Of x and y: (batch_size, context_length)."""
        return self._request.position.batch_size, self._spec.context_length

    @property
    def _request(self) -> StreamRequest:
        return self._stream.request

    @property
    def _spec(self) -> StreamSpec:
        return self._stream.request.spec

    @property
    def _dataset(self) -> StreamedDataset:
        return self._stream.dataset

    @property
    def _cursor(self) -> Cursor:
        return self._stream.cursor

    def _next(self, out: Pair[Array] | None) -> tuple[Pair[Array], BatchReader[Array]] | None:
        """Deliver the next batch, in out if given.  Returns: the batch, and where it was read; None
        at the end.
        """
        # Another thread or a signal handler may close this feed meanwhile.
        reader, sample = self._reader, self._cursor.sample
        if reader is None or reader.sample != sample:
            self._drop_reader()
            if self._dataset.closed:
                return None
            try:
                end_sample = min(self._end_sample, self._stream.end_sample())
                batches_left = max(0, end_sample - sample) // self._request.position.stride
            except TokenfeedError:
                if self._dataset.closed:  # meanwhile
                    return None
                raise
            if batches_left == 0:
                return None
            reader = self._reader = self._open(sample, batches_left)
        try:
            batch = reader.next(out)
        except BaseException:
            # For example a Ctrl-C: rows that were not delivered are requested again.
            self._drop_reader()
            raise
        if batch is None:
            return None
        self._cursor.generation += 1
        self._cursor.commit(sample, reader.sample, reader.sample, reader.spec)
        return batch, reader

    def _next_rich(self) -> Rich | None:
        stream = self._stream
        before = stream.cursor.current
        found = self._next(None)
        return None if found is None else self._enriched(*found, stream, before)

    def _enriched(
        self,
        batch: Pair[Array],
        reader: BatchReader[Array],
        stream: FeedStream,
        before: tuple[int, OpenRun],
    ) -> Rich:
        """Return a batch that was just delivered with all that it carries.

        reader, stream: that it comes from.  before: `stream.cursor.current` before it.
        """
        rows = cache(partial(stream.rows_at, before[0]))
        assert reader.noted is not None
        return self._rich_batch(
            *batch,
            reader.noted,
            samples=lambda: rows().samples,
            sources=lambda: rows().sources,
            state_before=partial(stream.state_at, before),
            state_after=partial(stream.state_at, stream.cursor.current),
        )

    def _carry_more(self) -> None:
        """Note from now on what rich batches carry."""
        if not self._is_rich:
            self._is_rich = True
            self._drop_reader()
            self._dataset.read_documents()

    def _open(self, sample: int, num_batches: int) -> BatchReader[Array]:
        """Start to read batches from a sample on."""
        if _is_in_worker():
            raise InvalidRequest(
                "num_workers", "has to be 0: a feed prefetches by itself, without workers"
            )
        self._dataset.require_own_process()
        position = replace(self._request.position, first_sample=sample)
        num_batches = min(num_batches, position.batches_left, SAMPLE_END - 1)
        request = replace(self._request, position=position, num_batches=num_batches)
        rows = self._dataset.open_rows(
            request, prefetch_bytes=self._prefetch_bytes, counters=self._counters
        )
        reader = BatchReader(self._dataset, request, rows, self._transfer())
        # Weak: a reader that is not needed any more ends with its last reference.
        self._latest = weakref.ref(reader)
        return reader

    def _continue(
        self,
        definition: Schedule,
        saved: StreamParts,
        sample: int,
        history: History,
        planes: Planes,
        allow: Collection[str],
    ) -> None:
        """Continue the mixture of a state.  Raises: StreamMismatch, without a change."""
        number = next(self._loads)
        continued, messages = self._stream.continued(
            definition, saved, sample, history=history, allow=allow, owner=self
        )
        try:
            continued.require_same_planes(saved, planes, sample, allow)
            if self._agreement is not None:
                self._agreement.require_same_state(number, sample, continued.identity())
        except BaseException:
            continued.close_unless(self._stream)
            raise
        self._install(continued)
        for message in messages:
            _LOG.warning("%s", message)

    def _change(self, name: str, change: Callable[[], Changed], at_sample: int | None) -> Changed:
        """Change the stream on all ranks.  The arguments, and Raises: as for `change_together`."""
        return change_together(
            lambda: self._stream,
            change,
            name=name,
            at_sample=at_sample,
            agreement=self._agreement,
            install=self._install,
        )

    def _install(self, stream: FeedStream) -> None:
        """Read another stream from now on."""
        if stream is self._stream:
            return
        # First: an interrupt behind it must not leave rows of the stream before.
        self._drop_reader()
        before, self._stream = self._stream, stream
        if before.dataset is not stream.dataset:
            if before.dataset.closed:  # meanwhile, by another thread
                stream.dataset.close()
            before.dataset.close()
        if before.cursor is stream.cursor:
            stream.rename_runs(before)

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _seek(self, sample: int, history: History | None = None) -> None:
        self._cursor.seek(sample, history)
        self._drop_reader()

    def _position_of(self, sample: int) -> FeedPosition:
        if self._spec.mixture or not self._spec.order.HAS_EPOCHS:
            return FeedPosition(sample, None)
        return FeedPosition(sample, sample // max(1, self._rows_per_epoch()))

    def _require_epochs(self) -> None:
        if self._spec.mixture:
            raise InvalidRequest("mixture", "has no epochs; max_epochs of a source ends a mixture")
        if not self._spec.order.HAS_EPOCHS:
            raise InvalidRequest(
                "order",
                f"{self._spec.order.NAME} is endless and has no epochs; pass order='shuffled', "
                "'sequential', 'packed' or 'padded'",
            )

    def _plan_epoch(self, epoch: int, tail: Tail) -> EpochPlan:
        """Plan the batches of an epoch.  Raises: like `_require_windows`; SamplesExhausted."""
        position, windows = self._request.position, self._require_windows()
        last = (SAMPLE_END - position.stride) // windows - 1
        if epoch > last:
            raise SamplesExhausted(
                "epoch",
                f"{epoch} is not in [0, {last}]: an epoch has {windows} samples, and samples have "
                "to stay below 2^63",
            )
        return EpochPlan(windows, position, epoch, tail)

    def _require_windows(self) -> int:
        """Return the windows of an epoch.  Raises: InvalidRequest if no file is long enough."""
        windows = self._rows_per_epoch()
        if windows == 0:
            longest = self._dataset.await_described()[0].longest_file_tokens
            raise InvalidRequest(
                "context_length",
                f"{self._spec.context_length} is not below the {longest} tokens of the longest "
                "file; pass a shorter context_length",
            )
        return windows

    def _rows_per_epoch(self) -> int:
        return self._dataset.rows_of(self._spec.order.NAME)


def _is_in_worker() -> bool:
    """Return whether this is a worker process of a DataLoader; does not import torch."""
    loading = sys.modules.get("torch.utils.data")
    return loading is not None and loading.get_worker_info() is not None
