"""RemoteBatches: frames -> (x, y) on the device, prefetched, resumable."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.spec import StreamParts, StreamSpec
from tokenfeed.wire.request import StreamRequest

from .device.transfer import indexed, transfer_for, usable_device
from .device.widening import WIDE_NUMPY, Batch, require_fits
from .feed.agreement import rank_agreement
from .feed.batch_reader import BatchReader
from .feed.cursor import Cursor
from .feed.epochs import Epoch, EpochPlan, Tail
from .feed.history import History, as_dicts
from .feed.loaders import require_own_batches
from .feed.ranks import Group, data_parallel
from .feed.rescale import is_rescaled, rescaled
from .feed.state import log_differences, read_history, read_state, require_same_stream, write_state
from .feed.streamed_dataset import StreamedDataset
from .stats import Counters, FeedPosition, FeedStats
from .stream.row_stream import PREFETCH_BYTES, StreamClient
from .transport.credentials import Credentials, with_environment
from .transport.replicas import Targets
from .transport.timeouts import DEFAULT_TIMEOUTS, Timeouts
from .validation import (
    count,
    first_position,
    hash_digits,
    integer,
    name_of_client,
    optional_integer,
    text,
)


class RemoteBatches(IterableDataset[Batch]):
    """Batches from a tokenfeed server, as if the corpus were local.

        for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0"):
            ...

    Yields (x, y): contiguous integer tensors of shape (batch_size, context_length) on device; y is
    x shifted by one token, int64. They belong to the caller. It is an iterator: a second `for` goes
    on after the last batch handed out. Nothing is sent before the first batch is asked for; from
    then on a thread receives ahead. `close()`, or leaving a `with` block, ends it.

    For one consumer thread; `state_dict`, `history`, `position`, `stats` and `close` may be called
    from any.
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
        fingerprint: str | None = None,
        order: str = "random",
        rank: int | None = None,
        world_size: int | None = None,
        group: Group | None = None,
        start_step: int = 0,
        start_sample: int | None = None,
        num_batches: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        credentials: Credentials | None = None,
        client_name: str | None = None,
    ) -> None:
        """Describe a stream of batches; does no I/O.

        target: "HOST:PORT" or "unix:PATH", or several servers of the same corpus that stand in for
        each other: a sequence of these, or "dns:///HOST:PORT" for all addresses of a name.
        batch_size: rows per rank, in [1, 2^20].  context_length: tokens of x, in [1, longest
        file).  x_dtype: torch.int64 or torch.int32.
        seed: in [0, 2^64).  dataset: its name; may be left out where only one is served.
        fingerprint: 64 hexadecimal digits, as `python -m client describe` prints them: the corpus
        has to have it, and a server with another one is refused. Without it the first server that
        answers is believed, and ranks of a process group compare what they have.
        order: "random" (any window, with replacement, endless), "shuffled" or "sequential" (each
        window once per epoch).
        rank, world_size: data-parallel coordinates.  group: a ProcessGroup or 1-D DeviceMesh whose
        coordinates they are.  By default torch.distributed's, else RANK and WORLD_SIZE, else 0 of
        1.
        start_step: batches of all ranks to begin after, at this batch size and world size.
        start_sample: the same as a sample index, whatever the sizes were before.  num_batches:
        where the stream ends, counted from there; None is without end.
        prefetch_bytes: room for what is received ahead.
        timeouts: how long to wait for one server, and for any.  credentials: TLS files and a bearer
        token. Each field that is None comes from the environment (TOKENFEED_TLS_CA, and so on; see
        Credentials). Without tls_ca the connection is plaintext.
        client_name: a short name for people, by which servers' logs name this client: printable
        text of up to 128 characters, such as "run-17 rank 3". By default the machine's name and the
        rank.

        Raises: InvalidRequest, SamplesExhausted or NotFound (order), naming the argument and its
        limit.
        Iterating raises what the server refuses (RequestError), CorpusError, and Unreachable after
        timeouts.reconnect_seconds.
        """
        ranks = data_parallel(
            optional_integer("rank", rank), optional_integer("world_size", world_size), group
        )
        batch_size = integer("batch_size", batch_size)
        num_batches = optional_integer("num_batches", num_batches)
        prefetch_bytes = integer("prefetch_bytes", prefetch_bytes)
        require_range("prefetch_bytes", prefetch_bytes, 0, 1 << 63)
        if not isinstance(timeouts, Timeouts):
            raise InvalidRequest("timeouts", f"{timeouts!r} is none; pass client.Timeouts(...)")
        if x_dtype not in WIDE_NUMPY:
            raise InvalidRequest("x_dtype", f"{x_dtype} is not torch.int64 or torch.int32")
        # Checks every range, and is what later requests differ from by their position alone.
        self._request = StreamRequest(
            StreamSpec.of_dataset(
                text("dataset", dataset),
                orders.find(orders.versioned(text("order", order))),
                integer("seed", seed),
                integer("context_length", context_length),
            ),
            first_position(
                start_step,
                start_sample,
                Position(0, batch_size, ranks.rank, ranks.world_size),
            ),
            num_batches,
        )
        self._end_sample = SAMPLE_END
        if num_batches is not None:
            self._end_sample = self._request.position.batch_first_sample(num_batches)
        self._device = usable_device(device)
        self._x_dtype = x_dtype
        self._prefetch_bytes = prefetch_bytes
        self._dataset: StreamedDataset = StreamClient(
            target,
            self._request,
            timeouts=timeouts,
            credentials=with_environment(credentials),
            client_name=name_of_client(client_name, ranks.rank),
            fingerprint=hash_digits("fingerprint", fingerprint),
            agreement=rank_agreement(ranks, self._request, target),
        )
        self._dataset.end_with(self)
        self._reader: BatchReader | None = None
        self._cursor = Cursor(self._request.position)
        self._counters = Counters()

    # --- iterating ---

    def __iter__(self) -> RemoteBatches:
        """Return this iterator itself: every `for` over it goes on where the last one stopped.

        Raises: InvalidRequest for a loader that would make other batches of these.
        """
        require_own_batches(self._request.position.world_size)
        return self

    def __next__(self) -> Batch:
        """Return the next (x, y), waiting for it if need be.

        Raises: InvalidRequest in a DataLoader's worker process, or in a fork.
        """
        batch = self._next(None)
        if batch is None:
            raise StopIteration
        return batch

    def copy_into(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Put the next batch into tensors of the caller's, such as a CUDA graph's static inputs.

        x, y: [batch_size, context_length], int64 or int32, on the feed's device.  On CUDA the work
        is enqueued on the current stream.  Returns: False at the end, with both left as they are.
        Raises: InvalidRequest if they do not fit.
        """
        position = self._request.position
        shape = (position.batch_size, self._spec.context_length)
        self._device = indexed(self._device)
        for name, tensor in (("x", x), ("y", y)):
            require_fits(name, tensor, shape, self._device)
        if x.data_ptr() == y.data_ptr():
            raise InvalidRequest("y", "is x; each needs memory of its own")
        return self._next((x, y)) is not None

    def skip(self, samples: int) -> None:
        """Leave out samples, of all ranks together, from the next one on: to jump a loss spike.

        Every rank has to skip as many.  Raises: InvalidRequest if negative; SamplesExhausted.
        """
        samples, left = count("samples", samples), SAMPLE_END - self._cursor.sample
        if samples > left:
            raise SamplesExhausted(
                "samples", f"{samples} is not in [0, {left}]: so many are left below 2^63"
            )
        self._go_to(self._cursor.sample + samples)

    def close(self) -> None:
        """End threads and connection. May be called twice; iterating afterwards stops at once."""
        self._dataset.close()
        self._reader = None

    def __enter__(self) -> RemoteBatches:
        """Return this iterator; the `with` block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, as a DataLoader does that spawns workers.  Raises:
        InvalidRequest.
        """
        raise InvalidRequest(
            "RemoteBatches",
            "cannot go to another process: make it there; a DataLoader has to have num_workers=0",
        )

    # --- where it stands ---

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch handed out, and the history of all that was, as
        plain values.

        It is the same on every rank: any rank may load it, at any batch size, in any number of
        ranks.  Asks the server for the corpus' fingerprint if nothing was read yet.
        """
        sample, _, history = self._cursor.now
        return write_state(sample, self._parts(), history)

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go on from a saved position, with the history that it was saved with.

        allow: parts of the stream that may differ ("order", "seed", "context_length",
        "fingerprint"); what differs is logged.  num_batches still ends where it did.
        With another context length an order with epochs goes on at the same fraction of the epoch.
        In the middle of one, "shuffled" would repeat that fraction of what follows, and so does
        "sequential" with some of it where there are several files; both are refused unless allow
        has "mid_epoch" as well.
        Raises: StreamMismatch, naming what differs; InvalidRequest if state is none.
        """
        sample, saved = read_state(state)
        history = read_history(state)
        own = self._parts()
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
                self._dataset.await_described().file_count,
                allow,
            )
        log_differences(saved, own)
        self._go_to(sample, history)

    def history(self) -> list[dict[str, Any]]:
        """Return what was handed out, by this feed and by those whose state it went on from: runs
        of batches, oldest first, as plain values.

        Each has "first_batch" (how many batches there were before), "first_sample" and
        "end_sample", "batch_size" and "world_size", and which stream: "order", "seed",
        "context_length", "fingerprint".  Batch k of a run has the world_size * batch_size samples
        from first_sample + k * world_size * batch_size on, those of all ranks; from end_sample on
        the rows of its last batch were padding.
        It begins with an earlier state's first batch, or where the feed did. If the first run's
        first_batch is above 0, then the oldest were left out, of more than 1,000 runs.
        """
        _, _, history = self._cursor.now
        return as_dicts(history)

    @property
    def position(self) -> FeedPosition:
        """Where the feed stands: samples and epoch."""
        return self._position_of(self._cursor.sample)

    @property
    def token_count(self) -> int:
        """Tokens of the dataset, all files together."""
        return self._dataset.await_described().token_count

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches of this rank in an epoch.  Raises: InvalidRequest for an order without
        epochs.
        """
        self._require_epochs()
        return self._plan_epoch(0, "drop").batch_count(0)

    def stats(self) -> FeedStats:
        """Return what the feed has done so far."""
        sample, batches, _ = self._cursor.now
        return FeedStats(
            batches=batches,
            tokens=batches * self._request.position.batch_size * self._spec.context_length,
            wait_seconds=self._counters.wait_seconds,
            reconnects=self._counters.reconnects,
            samples=sample,
            epoch=self._position_of(sample).epoch if batches else None,
        )

    # --- epochs ---

    def epoch(self, epoch: int, tail: Tail = "drop") -> Epoch:
        """Return one epoch as a sized iterable, with the same number of batches on every rank.

        epoch: from 0.  tail: what becomes of the samples that make no whole batch on all ranks:
        "drop" leaves them out; "wrap" fills up with the next epoch's first samples; "pad" does too,
        with y = -100 throughout, so that a loss leaves those rows out.
        Each `for` starts it anew; only the first one goes on from where a loaded state, `skip` or
        `start_sample` has put the feed within it. The feed's position follows, and is the next
        epoch's first sample after the last batch; whoever moves the feed meanwhile ends the loop.
        Raises: InvalidRequest for an order without epochs, or together with num_batches;
        iterating, where no file is long enough for a window, or the feed was moved;
        SamplesExhausted for an epoch that would reach sample 2^63.
        """
        epoch = count("epoch", epoch)
        self._require_epochs()
        if self._request.num_batches is not None:
            raise InvalidRequest(
                "num_batches", "ends a plain loop; an epoch ends by itself, so leave it out"
            )
        world_size = self._request.position.world_size
        return Epoch(self._cursor, self._plan_epoch, self._open, epoch, tail, world_size)

    # --- inside ---

    def _next(self, out: Batch | None) -> Batch | None:
        # Another thread, or a signal handler, may close this feed meanwhile.
        reader, sample = self._reader, self._cursor.sample
        if reader is None or reader.sample != sample:
            self._drop_reader()
            batches_left = max(0, self._end_sample - sample) // self._request.position.stride
            if self._dataset.closed or batches_left == 0:
                return None
            reader = self._reader = self._open(sample, batches_left)
        try:
            batch = reader.next(out)
        except BaseException:
            # A Ctrl-C, say: what was not handed out is asked for again.
            self._drop_reader()
            raise
        if batch is not None:
            self._cursor.moves += 1
            self._cursor.commit(sample, reader.sample, reader.sample, reader.spec)
        return batch

    def _open(self, sample: int, num_batches: int) -> BatchReader:
        """Begin to read batches from a sample on."""
        if get_worker_info() is not None:
            raise InvalidRequest(
                "num_workers", "has to be 0: a feed receives ahead by itself, without workers"
            )
        self._dataset.require_own_process()
        position = replace(self._request.position, first_sample=sample)
        num_batches = min(num_batches, position.batches_left, SAMPLE_END - 1)
        request = replace(self._request, position=position, num_batches=num_batches)
        rows = self._dataset.open_rows(
            request, prefetch_bytes=self._prefetch_bytes, counters=self._counters
        )
        shape = (position.batch_size, self._spec.context_length)
        # "cuda" is the device that is current now, and stays that one.
        self._device = indexed(self._device)
        transfer = transfer_for(self._device, shape, self._x_dtype)
        return BatchReader(self._dataset, request, rows, transfer)

    @property
    def _spec(self) -> StreamSpec:
        return self._request.spec

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _go_to(self, sample: int, history: History | None = None) -> None:
        self._cursor.seek(sample, history)
        self._drop_reader()

    def _parts(self) -> StreamParts:
        return self._spec.parts(self._dataset.await_described().fingerprint)

    def _position_of(self, sample: int) -> FeedPosition:
        if not self._spec.order.HAS_EPOCHS:
            return FeedPosition(sample, None)
        return FeedPosition(sample, sample // max(1, self._rows_per_epoch()))

    def _require_epochs(self) -> None:
        if not self._spec.order.HAS_EPOCHS:
            raise InvalidRequest(
                "order",
                f"{self._spec.order.NAME} draws windows without end and has no epochs; "
                "'shuffled' and 'sequential' have",
            )

    def _plan_epoch(self, epoch: int, tail: Tail) -> EpochPlan:
        """Return which samples an epoch's batches hold.  Raises: as `_require_windows`;
        SamplesExhausted.
        """
        position, windows = self._request.position, self._require_windows()
        last = (SAMPLE_END - position.stride) // windows - 1
        if epoch > last:
            raise SamplesExhausted(
                "epoch",
                f"{epoch} is not in [0, {last}]: it has {windows} samples, and all of them stay "
                "below 2^63",
            )
        return EpochPlan(windows, position, epoch, tail)

    def _require_windows(self) -> int:
        """Return the windows of an epoch.  Raises: InvalidRequest where no file is long enough for
        a single one.
        """
        windows = self._rows_per_epoch()
        if windows == 0:
            longest = self._dataset.await_described().longest_file_tokens
            raise InvalidRequest(
                "context_length",
                f"{self._spec.context_length} has to be below the tokens of the longest file, "
                f"{longest}",
            )
        return windows

    def _rows_per_epoch(self) -> int:
        return self._dataset.rows_of(self._spec.order.NAME)
