"""RemoteBatches: rows -> (x, y) on the device, prefetched and resumable."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenfeed.errors import InvalidRequest, SamplesExhausted, TokenfeedError
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.spec import StreamParts, StreamSpec
from tokenfeed.wire.request import StreamRequest

from . import validation
from .device.rich_batch import RichBatch as RichBatch
from .device.transfer import indexed, transfer_for, usable_device
from .device.widening import WIDE_NUMPY, Batch, require_fits
from .feed.batch_reader import BatchReader
from .feed.cursor import Cursor
from .feed.epochs import TAILS, Epoch, EpochPlan, Tail
from .feed.history import History, as_dicts
from .feed.loaders import require_own_batches
from .feed.mixture.recipe import Mixture
from .feed.mixture.schedule import Schedule
from .feed.ranks.agreement import rank_agreement
from .feed.ranks.coordinates import Group, data_parallel
from .feed.rescale import is_rescaled, rescaled
from .feed.state import log_differences, read_history, read_state, require_same_stream
from .feed.stats import FeedPosition, FeedStats
from .feed.streamed_dataset import FeedStream, StreamedDataset
from .local.choice import open_target
from .runtime.counters import Counters
from .stream.row_stream import PREFETCH_BYTES
from .stream.wanted_planes import LOSS_MASKS, LossMask, WantedPlanes
from .transport.addresses import Targets
from .transport.credentials import Credentials
from .transport.timeouts import DEFAULT_TIMEOUTS, Timeouts

_LOG = logging.getLogger("tokenfeed.client")


class RemoteBatches(IterableDataset[Batch]):
    """Batches from a tokenfeed server, or from local files.

        for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0", order="shuffled"):
            ...

    Yields (x, y): contiguous integer tensors of shape (batch_size, context_length) on device; y is
    x shifted by one token, int64. They belong to the caller. The feed is an iterator: a second
    `for` continues after the last delivered batch. Nothing is sent before the first `next`; from
    then on a thread prefetches. `close()`, or the end of a `with` block, stops it.

    For one consumer thread. Any thread may call `state_dict`, `history`, `position`, `stats` and
    `close`.
    """

    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int,
        *,
        device: torch.device | str = "cpu",
        x_dtype: torch.dtype = torch.int64,
        seed: int = 0,
        dataset: str | None = None,
        mixture: Mixture | Mapping[str, float] | None = None,
        fingerprint: str | None = None,
        order: str = "random",
        rank: int | None = None,
        world_size: int | None = None,
        group: Group | None = None,
        loss_mask: LossMask = "apply",
        mask_borders: bool = False,
        start_step: int = 0,
        start_sample: int | None = None,
        num_batches: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        credentials: Credentials | None = None,
        client_name: str | None = None,
    ) -> None:
        """Describe a stream of batches; does no I/O.

        target: "HOST:PORT" or "unix:PATH", or several servers of the same corpus (replicas): a
        sequence of these, or "dns:///HOST:PORT" for all addresses of a name. Or local files, read
        in this process without a server: "file:PATH", where PATH is a file, a glob or a folder;
        "file:a.bin,b.bin" is one corpus, "file:web=web/,code=code/" are two.
        batch_size: rows per rank, in [1, 2^20].  context_length: tokens of x, in [1, longest
        file).  x_dtype: torch.int64 or torch.int32.
        seed: in [0, 2^64).  dataset: its name; optional if the server has only one.
        mixture: weights of several datasets instead, {"web": 0.7, "code": 0.3}, or a Mixture: of
        weights that change, and of sources with orders and seeds of their own.
        fingerprint: 64 hexadecimal digits, as `tokenfeed describe` prints them. A server with
        another corpus is refused. Without it, the client accepts the corpus of the first server
        that answers, and the ranks of a process group compare their corpora.
        order: "random" (any window, with replacement, endless), "shuffled" or "sequential" (each
        window once per epoch).
        rank, world_size: data-parallel coordinates.  group: a ProcessGroup or 1-D DeviceMesh that
        has them.  By default those of torch.distributed, else RANK and WORLD_SIZE, else 0 of 1.
        loss_mask: "apply" (where a corpus has a loss mask, y is -100 at tokens that it masks, so
        that a loss ignores them) or "ignore" (every token is a target).
        mask_borders: whether y is -100 too where its token begins another document than that of x.
        The documents of all datasets have to be known.
        start_step: batches of all ranks to begin after, at this batch size and world size.
        start_sample: the same as a sample index, independent of both sizes.  num_batches: length
        of the stream from there on; None is endless.
        prefetch_bytes: host memory for prefetched rows. With local files at most 8 MiB of it are
        used, but at least two batches, and 0 reads them without a thread.
        timeouts: for one server, and for all servers together.  credentials: TLS files and a bearer
        token. Each field that is None comes from the environment (TOKENFEED_TLS_CA, and so on; see
        Credentials). Without tls_ca the connection is plaintext.
        client_name: name of this client in server logs, printable text of up to 128 characters,
        such as "run-17 rank 3". By default the machine's name and the rank.

        Raises: InvalidRequest, SamplesExhausted or NotFound (order), naming the argument and its
        limit.
        Iterating raises RequestError if the server refuses, CorpusError, and Unreachable after
        timeouts.reconnect_seconds.
        """
        ranks = data_parallel(
            validation.optional_integer("rank", rank),
            validation.optional_integer("world_size", world_size),
            group,
        )
        batch_size = validation.integer("batch_size", batch_size)
        num_batches = validation.optional_integer("num_batches", num_batches)
        prefetch_bytes = validation.integer("prefetch_bytes", prefetch_bytes)
        require_range("prefetch_bytes", prefetch_bytes, 0, 1 << 63)
        if not isinstance(timeouts, Timeouts):
            raise InvalidRequest(
                "timeouts", f"{timeouts!r} is not valid; pass tokenfeed.Timeouts(...)"
            )
        if x_dtype not in WIDE_NUMPY:
            raise InvalidRequest("x_dtype", f"{x_dtype} is neither torch.int64 nor torch.int32")
        order = orders.latest(validation.text("order", order)).NAME
        seed = validation.integer("seed", seed)
        context_length = validation.integer("context_length", context_length)
        dataset = validation.text("dataset", dataset)
        schedule = None
        if mixture is None:
            spec = StreamSpec.of_dataset(dataset, orders.find(order), seed, context_length)
        else:
            if dataset:
                problem = "is given together with mixture, which has the names"
                raise InvalidRequest("dataset", problem)
            if fingerprint is not None:
                problem = "is of one dataset, but a mixture has several; omit it"
                raise InvalidRequest("fingerprint", problem)
            mixture = mixture if isinstance(mixture, Mixture) else Mixture(mixture)
            schedule = mixture.schedule(context_length, order, seed)
            spec = schedule.spec()
        # Checks every range. Later requests differ from this one only by their position.
        request = StreamRequest(
            spec,
            validation.first_position(
                start_step,
                start_sample,
                Position(0, batch_size, ranks.rank, ranks.world_size),
            ),
            num_batches,
        )
        planes = WantedPlanes(
            loss_mask=validation.one_of("loss_mask", loss_mask, LOSS_MASKS) == "apply",
            document_starts=validation.flag("mask_borders", mask_borders),
        )
        self._masks = planes.kinds
        self._is_rich = False
        self._end_sample = SAMPLE_END
        if num_batches is not None:
            self._end_sample = request.position.batch_first_sample(num_batches)
        self._device = usable_device(device)
        self._x_dtype = x_dtype
        self._prefetch_bytes = prefetch_bytes
        self._agreement = rank_agreement(
            ranks, request, target, schedule.max_epochs if schedule else None
        )
        open_dataset = partial(
            open_target,
            target,
            timeouts=timeouts,
            credentials=credentials,
            client_name=validation.name_of_client(client_name, ranks.rank),
            planes=planes,
        )
        source = open_dataset(
            request,
            fingerprint=validation.hash_digits("fingerprint", fingerprint),
            agreement=self._agreement,
        )
        source.end_with(self)
        self._definition = schedule
        self._stream = FeedStream(request, source, Cursor(request.position), open_dataset, schedule)
        self._loads = itertools.count()
        self._reader: BatchReader | None = None
        self._counters = Counters()

    # --- iterating ---

    def __iter__(self) -> RemoteBatches:
        """Return this iterator itself: each `for` continues where the last one stopped.

        Raises: InvalidRequest for a loader that would turn these batches into others.
        """
        require_own_batches(self._request.position.world_size)
        return self

    def __next__(self) -> Batch:
        """Return the next (x, y); waits for it.

        Raises: InvalidRequest in a worker process of a DataLoader, or in a fork.
        """
        batch = self._next(None)
        if batch is None:
            raise StopIteration
        return batch

    def batches(self) -> Iterator[RichBatch]:
        """Return an iterator over batches that carry more than x and y: whole rows, documents in
        each form that frameworks take, source and sample of each row, and states. Each still
        unpacks as x, y; the rest is computed when it is accessed.

            for batch in feed.batches():
                x, y = batch
                loss = model(x, y, positions=batch.positions)

        The rows bring where documents begin, if all datasets know it. Like the feed, a second
        `for` continues after the last delivered batch.  Raises: as for iterating.
        """
        if not self._is_rich:
            self._is_rich = True
            self._drop_reader()
            self._dataset.read_documents()
        return iter(self._next_rich, None)

    def copy_into(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Copy the next batch into the caller's tensors, such as the static inputs of a CUDA graph.

        x, y: [batch_size, context_length], int64 or int32, on the feed's device.  On CUDA the work
        is enqueued on the current stream.  Returns: False at the end, with both unchanged.
        Raises: InvalidRequest if shape, type or device do not fit.
        """
        position = self._request.position
        shape = (position.batch_size, self._spec.context_length)
        self._device = indexed(self._device)
        for name, tensor in (("x", x), ("y", y)):
            require_fits(name, tensor, shape, self._device)
        if x.data_ptr() == y.data_ptr():
            raise InvalidRequest("y", "is the same memory as x; pass two tensors")
        return self._next((x, y)) is not None

    def skip(self, samples: int) -> None:
        """Skip the next samples, of all ranks together: to jump over a loss spike.

        Every rank has to skip the same number.  Raises: InvalidRequest if negative;
        SamplesExhausted.
        """
        samples, left = validation.count("samples", samples), SAMPLE_END - self._cursor.sample
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
        try:
            if at_sample is None and stream.request.position.world_size > 1:
                raise InvalidRequest("at_sample", "is required with several ranks")
            changed, begin = stream.changed(weights, at_sample, self)
            ranks_compare = None if self._agreement is None else changed.compared()
        except BaseException as error:
            if self._agreement is not None:
                self._agreement.refuse(str(error) or repr(error))
            raise
        if self._agreement is None:
            self._install(changed)
        else:
            try:
                self._agreement.await_all_ranks(
                    ranks_compare,
                    agreed=partial(self._install, changed),
                    is_over=lambda: stream.dataset.closed,
                )
            except BaseException:
                changed.close_unless(self._stream)
                raise
        if changed is not stream:
            _LOG.info("mixture changes sample=%d weights=%s", begin, dict(weights))
        return begin

    def close(self) -> None:
        """End threads and connection. May be called twice. Iterating then stops at once."""
        closed = None
        # A change of the mixture in another thread may bring another dataset meanwhile.
        while self._dataset is not closed:
            closed = self._dataset
            closed.close()
        self._reader = None

    def __enter__(self) -> RemoteBatches:
        """Return this iterator; the `with` block closes it."""
        return self

    def __repr__(self) -> str:
        """Show the shape, order and ranks, and the sample that comes next."""
        spec, position = self._spec, self._request.position
        return (
            f"<RemoteBatches {position.batch_size} x {spec.context_length} {spec.order_name}, rank "
            f"{position.rank} of {position.world_size}, at sample {self._cursor.sample}>"
        )

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, for example by a DataLoader that spawns workers.  Raises:
        InvalidRequest.
        """
        raise InvalidRequest(
            "RemoteBatches",
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
        "fingerprint"), or of a mixture "mixture"; differences are logged.  num_batches still ends
        at the same sample.
        At another context length, an order with epochs resumes at the same fraction of the epoch.
        In the middle of an epoch, "shuffled" would repeat that fraction of the rest, and
        "sequential" some of it if there are several files. Both are refused unless allow also
        contains "mid_epoch".
        Of a mixture, the stages before the saved sample have to be those of this feed, perhaps with
        changes by `change_mixture`; later stages may be others. A feed of other weights refuses the
        state, or with allow=("mixture",) appends its own weights at the saved sample. Sources that
        a change has brought are asked for.
        Raises: StreamMismatch, naming what differs; InvalidRequest if state is not a valid state;
        as for iterating, if the corpora are not known yet, or new sources cannot be read.
        """
        sample, saved = read_state(state)
        history = read_history(state)
        if self._definition is not None and saved.stages:
            self._continue(self._definition, saved, sample, history, allow)
            return
        own = self._stream.parts()
        require_same_stream(saved, own, allow)
        if is_rescaled(sample, saved, own):
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
        log_differences(saved, own)
        if self._definition is not None:
            self._install(self._stream.restarted(self._definition, sample, history, self))
        else:
            self._seek(sample, history)

    def history(self) -> list[dict[str, Any]]:
        """Return what this feed, and the feeds whose state it loaded, have delivered: runs of
        batches, oldest first, as plain values.

        Each run has "first_batch" (the number of batches before it), "first_sample" and
        "end_sample", "batch_size" and "world_size", and its stream: "order", "seed",
        "context_length", "fingerprint", and of a mixture "sources" and "stages".
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
        """Return the statistics of the feed so far."""
        stream = self._stream
        sample, batches, history = stream.cursor.now
        return FeedStats(
            batches=batches,
            tokens=batches * stream.request.position.batch_size * stream.spec.context_length,
            wait_seconds=self._counters.wait_seconds,
            reconnects=self._counters.reconnects,
            samples=sample,
            epoch=self._position_of(sample).epoch if batches else None,
            sources=stream.source_stats(history, has_read=batches > 0),
        )

    # --- epochs ---

    def epoch(self, epoch: int, tail: Tail = "drop") -> Epoch:
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
        epoch = validation.count("epoch", epoch)
        self._require_epochs()
        if self._request.num_batches is not None:
            raise InvalidRequest(
                "num_batches", "cannot be combined with an epoch, which ends by itself; omit it"
            )
        if tail not in TAILS:
            raise InvalidRequest("tail", f"{tail!r} is not one of {', '.join(TAILS)}")
        make_plan = partial(self._plan_epoch, epoch, tail)
        return Epoch(self._cursor, make_plan, self._open, self._request.position.world_size)

    # --- internals ---

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

    def _next(self, out: Batch | None) -> Batch | None:
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
        if batch is not None:
            self._cursor.generation += 1
            self._cursor.commit(sample, reader.sample, reader.sample, reader.spec)
        return batch

    def _next_rich(self) -> RichBatch | None:
        stream = self._stream
        before = stream.cursor.current
        batch = self._next(None)
        if batch is None or self._reader is None or self._reader.noted is None:
            return None
        rows = cache(partial(stream.rows_at, before[0]))
        return RichBatch(
            *batch,
            self._reader.noted,
            samples=lambda: rows().samples,
            sources=lambda: rows().sources,
            state_before=partial(stream.state_at, before),
            state_after=partial(stream.state_at, stream.cursor.current),
        )

    def _open(self, sample: int, num_batches: int) -> BatchReader:
        """Start to read batches from a sample on."""
        if get_worker_info() is not None:
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
        shape = (position.batch_size, self._spec.context_length)
        # "cuda" becomes the current device, and stays that one.
        self._device = indexed(self._device)
        transfer = transfer_for(
            self._device, shape, self._x_dtype, masks=self._masks, notes=self._is_rich
        )
        return BatchReader(self._dataset, request, rows, transfer)

    def _continue(
        self,
        definition: Schedule,
        saved: StreamParts,
        sample: int,
        history: History,
        allow: Collection[str],
    ) -> None:
        """Continue the mixture of a state.  Raises: StreamMismatch, without a change."""
        number = next(self._loads)
        continued, messages = self._stream.continued(
            definition, saved, sample, history=history, allow=allow, owner=self
        )
        try:
            if self._agreement is not None:
                self._agreement.require_same_state(number, sample, continued.identity())
        except BaseException:
            continued.close_unless(self._stream)
            raise
        self._install(continued)
        for message in messages:
            _LOG.warning("%s", message)

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
                f"{self._spec.order.NAME} is endless and has no epochs; pass order='shuffled' or "
                "'sequential'",
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
