"""The path of a batch: from the rows of a stream to the arrays of a feed. Does not import torch."""

from __future__ import annotations

import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Generic, NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.stream.planes import DOCUMENT_STARTS, LOSS_MASK
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.wire.request import Request, RowsRequest, SampleList
from tokenfeed.wire.row_block import RowBlock

from ..device.host_transfer import Pair, Transfer
from ..device.numpy_batch import BatchAttributes, HostPart, Note
from ..device.row_source import RowSource
from ..device.target_mask import IGNORED_TARGET, TargetWatch
from ..runtime.counters import Counters
from ..source.datasets import Datasets
from ..source.server_check import row_documents_max
from .cursor import Cursor, Snapshot
from .feed_stream import FeedStream
from .requested_changes import declared, log_lengths

Array = TypeVar("Array")
Rich = TypeVar("Rich")
Item = TypeVar("Item")

REMEMBERED_BATCHES = 1024
"""How many batches back a feed knows the state before one: more than a step accumulates."""


class Delivery(ABC, Generic[Array, Rich]):
    """What delivers the batches of a feed: it reads a stream, which may be replaced meanwhile.

    Array, Rich: as for Feed.
    """

    def __init__(
        self,
        stream: FeedStream,
        *,
        end_sample: int,
        prefetch_bytes: int,
        rich_batch: Callable[..., Rich],
    ) -> None:
        """stream: to be read.  end_sample: where the feed ends.  prefetch_bytes: memory for
        prefetched rows.  rich_batch: as for Feed.
        """
        self._stream = stream
        self._target_watch = TargetWatch()
        self._end_sample = end_sample
        self._prefetch_bytes = prefetch_bytes
        self._rich_batch = rich_batch
        self._is_rich = False
        self._reader: BatchReader[Array] | None = None
        self._counters = Counters()
        self._latest: Callable[[], BatchReader[Array] | None] = lambda: None
        self._consumer = 0
        """The thread that is taking a batch; 0 is none."""
        # Of each x, and what tells the state before it. Weak: batches belong to the caller.
        self._recent: deque[tuple[weakref.ref[Any], FeedStream, Snapshot]] = deque(
            maxlen=REMEMBERED_BATCHES
        )

    @abstractmethod
    def _transfer(self, stream: FeedStream, rows: int) -> Transfer[Array]:
        """Return what moves batches of a stream, of this many rows, to the model; for the planes in
        `stream.masks`, with `_note`.
        """

    def _note(self, stream: FeedStream) -> Note | None:
        """Return what sees the rows of each batch: it notes the host part if that is wanted, and
        warns of rows without a target; None if neither is needed.
        """
        note = None
        if self._is_rich:
            note = note_of(stream)
        if LOSS_MASK not in stream.masks:
            return note
        watch = self._target_watch  # alone: the reader ends with the last reference to it

        def watched(parts: Sequence[RowBlock]) -> HostPart | None:
            if parts[0].planes:
                watch.see(parts)
            return note(parts) if note is not None else None

        return watched

    @property
    def _shape(self) -> tuple[int, int]:
        """Of x and y of the next batch: (batch_size, context_length)."""
        stream = self._settled()
        return stream.request.position.batch_size, stream.context_length

    @property
    def _request(self) -> Request:
        return self._stream.request

    @property
    def _datasets(self) -> Datasets:
        return self._stream.datasets

    @property
    def _cursor(self) -> Cursor:
        return self._stream.cursor

    def _settled(self) -> FeedStream:
        """Return what is read at the position: behind the last row of a context length, that of the
        next one.
        """
        return self._installed(lambda stream: declared(stream).settled())

    def _declared(self) -> FeedStream:
        """Return what is read, with the context lengths that were declared."""
        return self._installed(declared)

    def _installed(self, derive: Callable[[FeedStream], FeedStream]) -> FeedStream:
        """Return what is read, once it is what derives from it."""
        while True:
            before, found = self._derived(derive)
            if self._install(found, before):
                return found

    def _derived(self, derive: Callable[[FeedStream], Item]) -> tuple[FeedStream, Item]:
        """Return what is read, and what derives from it.  Raises: what derive raises, unless
        another thread or a signal handler has replaced the stream meanwhile, which may have closed
        its datasets.
        """
        while True:
            before = self._stream
            try:
                return before, derive(before)
            except TokenfeedError:
                if before is self._stream:
                    raise

    def _next(self, item: Callable[..., Item], out: Pair[Array] | None = None) -> Item | None:
        """Deliver the next batch, in out if given; None at the end.

        item: `_plain` or `_enriched`, which makes what is returned.
        """
        own, held = threading.get_ident(), self._consumer
        x = cast(Any, None if out is None else out[0])
        try:
            # No call between the test and the assignment (`Cursor`), here and below.
            if self._consumer in (0, own):
                self._consumer = own
            else:  # both would get the same batch, or lose one
                problem = "another thread is taking a batch of this feed; take batches in one"
                cure = "thread, or make a feed with a rank for each"
                raise InvalidRequest("threads", f"{problem} {cure}")
            while True:
                stream = self._settled()
                cursor, begun = stream.cursor, stream.cursor.current
                if stream.length_end <= begun.sample < SAMPLE_END:
                    continue  # another thread has moved it there: `_settled` goes on behind it
                if x is not None:
                    self._require_shape(x, stream)
                try:
                    reader = self._reader_at(stream, begun.sample)
                    batch = None if reader is None else self._read(reader, out)
                except TokenfeedError:
                    if stream is self._stream and begun is cursor.current:
                        raise
                    continue
                if reader is not None and batch is not None:
                    end = min(reader.sample, stream.length_end)
                    delivered, after = self._made(
                        item, batch, reader, stream, begun.sample, end, end
                    )
                # Another thread or a signal handler may have moved the feed meanwhile, or changed
                # its stream, or dropped its reader, which then has no more batches.
                if batch is not None and stream is self._stream and begun is cursor.current:
                    cursor.current = after
                    return delivered
                if batch is not None or reader is not self._reader:
                    continue
                if stream is self._stream and begun is cursor.current:
                    return None
        finally:
            # No call, which could be interrupted: the batch is committed, and not yet returned.
            if self._consumer == own:
                self._consumer = held  # by this thread, if a signal handler has taken the batch

    def _require_shape(self, x: Any, stream: FeedStream) -> None:
        """Raise InvalidRequest if batches have another shape than an array for them by now."""
        shape = stream.request.position.batch_size, stream.context_length
        if x.shape != shape:
            problem = f"{tuple(x.shape)} is not {shape}, which another thread has changed"
            raise InvalidRequest("x", f"{problem} batches to; pass arrays of that shape")

    def _reader_at(self, stream: FeedStream, sample: int) -> BatchReader[Array] | None:
        """Return what reads the batches of a stream from a sample on; None at the end."""
        reader = self._reader
        if (
            reader is None
            or reader.sample != sample
            or reader.request.stream is not stream.rest
            or reader.is_rich is not self._is_rich
        ):
            self._drop_reader()
            if self._datasets.closed:
                return None
            try:
                batches_left = stream.batches_to(self._end(stream), sample)
            except TokenfeedError:
                if self._datasets.closed:  # meanwhile
                    return None
                raise
            if batches_left == 0:
                return None
            reader = self._reader = self._open(stream, sample, batches_left)
        return reader

    def _read(self, reader: BatchReader[Array], out: Pair[Array] | None) -> Pair[Array] | None:
        """Return the next batch, in out if given; None at the end."""
        try:
            return reader.next(out)
        except BaseException:
            # For example a Ctrl-C: rows that were not delivered are requested again.
            self._drop_reader()
            raise

    def _made(
        self,
        item: Callable[..., Item],
        batch: Pair[Array],
        reader: BatchReader[Array],
        stream: FeedStream,
        first_sample: int,
        end_sample: int,
        next_sample: int,
        *,
        of_epoch: bool = False,
    ) -> tuple[Item, Snapshot]:
        """Return what is delivered of a batch, and the cursor behind it; rows that only fill it up
        get no targets.

        item: as for `_next`.  reader, stream: that the batch comes from.  The others: as for
        `Cursor.after`.
        """
        position, cursor = stream.request.position, stream.cursor
        rows = position.batch_size
        if end_sample < first_sample + position.stride:
            own = replace(position, first_sample=first_sample).rows_before(end_sample)
            rows, y = min(rows, own), cast(Any, batch[1])
            y[rows:] = IGNORED_TARGET
        before = cursor.before(first_sample)
        after = cursor.after(
            first_sample, end_sample, next_sample, position.batch_size, of_epoch=of_epoch
        )
        self._recent.append((weakref.ref(batch[0]), stream, before))
        delivered = item(batch, reader.transfer.noted, stream, before, after)
        if rows < position.batch_size and isinstance(delivered, BatchAttributes):
            delivered.own_rows = rows
        return delivered, after

    def _end(self, stream: FeedStream) -> int:
        """Return the sample where the feed ends; 2^63 if it does not. May wait for the datasets."""
        return min(self._end_sample, stream.end_sample())

    def _plain(self, batch: Pair[Array], *_: object) -> Pair[Array]:
        """Return (x, y) of a batch.  The arguments are those of `_enriched`."""
        return batch

    def _enriched(
        self,
        batch: Pair[Array],
        noted: HostPart,
        stream: FeedStream,
        before: Snapshot,
        after: Snapshot,
    ) -> Rich:
        """Return a batch with all that it carries.  before, after: the cursor before and behind."""
        rows = cache(partial(stream.rows_at, before.sample))
        return self._rich_batch(
            *batch,
            noted,
            samples=lambda: rows()[0],
            sources=lambda: rows()[1],
            state_before=partial(_state_at, weakref.ref(self), stream, before),
            state_after=partial(_state_at, weakref.ref(self), stream, after),
        )

    def _listed(self, samples: npt.NDArray[np.int64]) -> tuple[Pair[Array], HostPart | None]:
        """Read rows by their samples, which moves nothing: x and y, [n, T], and their HostPart if
        batches carry more.

        samples: int64[n], n in [1, 4096], of a stream with one stage.
        Raises: InvalidRequest, also once the feed is closed; as for iterating.
        """
        stream = self._stream
        stream.datasets.require_own_process()
        request = RowsRequest(stream.rest, SampleList(samples))
        # Nothing is read ahead, so local files need no thread.
        rows = stream.datasets.open_rows(request, prefetch_bytes=0, counters=self._counters)
        transfer = self._transfer(stream, len(samples))
        rows.start(owner=transfer)  # which ends with this call, also by a Ctrl-C right here
        try:
            pair = transfer.next(rows, None)
        finally:
            rows.close()
        if pair is None:
            raise InvalidRequest("feed", "is closed; create a new one")
        return pair, transfer.noted

    def _listed_batch(self, samples: npt.NDArray[np.int64]) -> Rich:
        """Read rows as `_listed` does, as a batch that carries more; it has no states."""
        self._carry_more()
        pair, host = self._listed(samples)
        return self._rich_batch(
            *pair,
            host,
            samples=lambda: samples,
            sources=partial(np.zeros, len(samples), np.int16),
            state_before=_no_state,
            state_after=_no_state,
        )

    def _epoch_rows(self) -> int:
        """Return the rows of an epoch of the only dataset. Waits for it."""
        return self._stream.require_rows()

    def _state_before(self, batch: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
        """Return the state before a batch that was delivered, with the changes of the stream since
        then.  Raises: InvalidRequest.
        """
        own = batch.values() if isinstance(batch, Mapping) else batch
        arrays = [batch] if hasattr(batch, "shape") else list(own)
        for x, stream, before in reversed(tuple(self._recent)):
            if (known := x()) is not None and any(known is each for each in arrays):
                return _state_at(weakref.ref(self), stream, before)
        raise InvalidRequest(
            "before",
            f"is none of the last {REMEMBERED_BATCHES} batches of this feed; pass one as it came: "
            "(x, y), x alone, a dict that holds x, or a batch of batches()",
        )

    def _carry_more(self) -> None:
        """Note from now on what rich batches carry."""
        if self._is_rich:
            return
        datasets = None
        while datasets is not self._datasets:  # another thread may replace them meanwhile
            datasets = self._datasets
            datasets.read_documents()
            self._is_rich = True
        self._drop_reader()

    def _open(self, stream: FeedStream, sample: int, num_batches: int) -> BatchReader[Array]:
        """Start to read batches of a stream from a sample on."""
        if _is_in_worker():
            raise InvalidRequest(
                "num_workers", "has to be 0: a feed prefetches by itself, without workers"
            )
        datasets, is_rich = stream.datasets, self._is_rich
        datasets.require_own_process()
        request = stream.request_at(sample, num_batches)
        rows = datasets.open_rows(
            request, prefetch_bytes=self._prefetch_bytes, counters=self._counters
        )
        transfer = self._transfer(stream, request.position.batch_size)
        reader = BatchReader(datasets, request, rows, transfer, is_rich=is_rich)
        # Weak: a reader that is not needed any more ends with its last reference.
        self._latest = weakref.ref(reader)
        return reader

    def _install(
        self, stream: FeedStream, before: FeedStream, sample_max: int = SAMPLE_END
    ) -> bool:
        """Read another stream from now on, which was derived from the one before; return False,
        and change nothing, if another thread has replaced that meanwhile, or if the feed is past
        sample_max.
        """
        if stream is before:
            return True
        if self._is_rich:
            stream.datasets.read_documents()
        # No call between the test and the assignment (`Cursor`).
        if self._stream is before and before.cursor.current.sample <= sample_max:
            self._stream = stream
        else:
            return False
        self._drop_reader()
        if before.datasets is not stream.datasets:
            if before.datasets.closed:  # meanwhile, by another thread
                stream.datasets.close()
            before.datasets.close()
            if self._is_rich:  # perhaps since the change began, by another thread
                stream.datasets.read_documents()
        log_lengths(before, stream)
        return True

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class BatchReader(Generic[Array]):
    """Returns the batches (x, y) of one request, in order. Construction starts the prefetch."""

    def __init__(
        self,
        datasets: Datasets,
        request: Request,
        rows: RowSource,
        transfer: Transfer[Array],
        *,
        is_rich: bool = False,
    ) -> None:
        """Start the prefetch.  rows: those of the request, from datasets; not started yet.
        is_rich: whether batches carry more than x and y.
        """
        self.is_rich = is_rich
        self.transfer = transfer
        """Moves rows to the model. Its `noted` is of the batch that `next` returned last."""
        self._stride = request.position.stride
        self.request = request
        """Of all its batches."""
        self._datasets = datasets
        self.rows = rows
        """The source; for `next`, and to look at its queue."""
        self.sample = request.position.first_sample
        """Sample of row 0 of rank 0 in the next batch."""
        rows.start(owner=self)

    def next(self, out: Pair[Array] | None = None) -> Pair[Array] | None:
        """Return the next batch (x, y); waits for it. None at the end, or once the datasets are
        closed.

        out: two arrays of the shape of a batch to write to; None makes new ones.
        Raises: InvalidRequest in a fork, or if a token does not fit the type of x or y; the error
        that ended the stream.
        Do not use the reader after its `close`, or after an exception: its position is then
        undefined.
        """
        self._datasets.require_own_process()
        if self._datasets.closed:
            return None
        batch = self.transfer.next(self.rows, out)
        if batch is not None:
            self.sample += self._stride
        return batch

    def close(self) -> None:
        """Stop the prefetch; in a fork, do nothing. May be called twice. A reader that is
        garbage-collected stops too.
        """
        if not self._datasets.forked:
            self.rows.close()


def _state_at(
    feed: weakref.ref[Delivery[Any, Any]], stream: FeedStream, snapshot: Snapshot
) -> dict[str, Any]:
    """Return the state of a feed at an earlier moment, with the changes of its stream since then.

    feed: is weak, since batches outlive their feed.  stream: is what the feed read then.  snapshot:
    is a value of its cursor.
    """
    # A change keeps the cursor, and is in force from later samples on; a state that was loaded
    # brings another cursor, and what was read before it stays as it was.
    present = feed()
    if present is not None and present._stream.cursor is stream.cursor:
        stream = present._stream
    return stream.state_at(snapshot)


def _no_state() -> NoReturn:
    problem = "is not known of rows that were chosen by their index; save that of the sampler"
    raise InvalidRequest("state", problem)


def _is_in_worker() -> bool:
    """Return whether this is a worker process of a DataLoader; does not import torch."""
    # Another thread may be importing torch: what has no such function yet has no workers.
    get_worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return get_worker_info is not None and get_worker_info() is not None


def note_of(stream: FeedStream) -> Note:
    """Return the function that makes the HostPart of each batch of a stream from its rows. It is
    called when rows have arrived.
    """

    @cache
    def known() -> Note:
        described = stream.datasets.await_described()  # rows are there, so this does not wait
        planes = stream.datasets.plane_fingerprints()
        return partial(
            HostPart.of,
            masks=stream.masks,
            knows_documents=all(DOCUMENT_STARTS in dict(own) for own in planes),
            row_documents_max=row_documents_max(stream.rest, described),
        )

    return lambda parts: known()(parts)
