"""One epoch as a sized iterable: the same number of batches on every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END, Position
from tokenfeed.stream.stage import Stage

from ..device.host_transfer import Pair
from ..device.loaders import require_no_lightning
from .cursor import Cursor, Snapshot
from .feed import Feed
from .feed_stream import FeedStream
from .options import Tail

_LOG = logging.getLogger("tokenfeed.client")

Array = TypeVar("Array")
Rich = TypeVar("Rich")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The samples of an epoch's batches. Pure arithmetic.

    windows: rows per epoch, at least 0.  position: only its batch size, rank and world size are
    used.  epoch: at least 0.  tail: what happens to samples that fill no whole batch, as for
    `Feed.epoch`.  stage: from which the epoch is read; it has one source that is not paused.
    """

    windows: int
    position: Position
    epoch: int
    tail: Tail
    stage: Stage

    @property
    def first_sample(self) -> int:
        """The sample where the epoch begins. If that was in an earlier stage, it is below the first
        sample of this stage, and possibly negative.
        """
        ((_, _, base),) = self.stage.active
        return self.epoch * self.windows - base + self.stage.first_sample

    @property
    def end_sample(self) -> int:
        """The first sample of the next epoch."""
        return self.first_sample + self.windows

    def batch_count(self, first_sample: int) -> int:
        """Return the number of batches per rank from a sample of this epoch on."""
        left, stride = max(0, self.end_sample - first_sample), self.position.stride
        return left // stride if self.tail == "drop" else -(-left // stride)

    def dropped_count(self, first_sample: int) -> int:
        """Return how many samples from first_sample to the end of the epoch no rank gets; 0 unless
        tail is "drop".
        """
        left = max(0, self.end_sample - first_sample)
        return left % self.position.stride if self.tail == "drop" else 0

    def own_end(self, first_sample: int) -> int:
        """Return the first sample whose row only fills up a batch, or one behind the batch.
        first_sample: of row 0 of rank 0 in the batch.
        """
        end_sample = first_sample + self.position.stride
        return min(end_sample, self.end_sample) if self.tail == "pad" else end_sample


class Epoch(Generic[Array, Rich]):
    """A sized iterable over one epoch; each `for` starts at its beginning.

    There is one exception: if a loaded state, `skip`, `start_sample` or `next` has set a position
    within this epoch, the first `for` after that continues from this position.
    """

    def __init__(self, feed: Feed[Array, Rich, Any], epoch: int, tail: Tail) -> None:
        """Remember what to read; does no I/O.

        feed: reads the epoch, and is moved by it.  epoch, tail: are those of `Feed.epoch`.
        """
        self._feed, self._number, self._tail = feed, epoch, tail

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch, the same on every rank."""
        _, plan = self._plan()
        return plan.batch_count(plan.first_sample)

    def __iter__(self) -> Iterator[Pair[Array]]:
        """Return an iterator over its batches (x, y).  Raises: as for iterating the feed."""
        return self._items(self._feed._plain)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the feed. Loaders that store the state of their dataset call this."""
        require_no_lightning()  # which has to be its caller
        return self._feed.state_dict()

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Load a state into the feed; a feed that has loaded the same state already may do so
        again. The next `for` continues from the saved position if that is within this epoch.

        state, allow: are passed to `load_state_dict` of the feed, whose errors are raised.
        """
        self._feed.load_state_dict(state, allow=allow)

    def batches(self) -> Iterator[Rich]:
        """Return an iterator over its batches, as of `batches` of the feed: they carry more than x
        and y.
        """
        self._feed._carry_more()
        return self._items(self._feed._enriched)

    def _plan(self) -> tuple[FeedStream, EpochPlan]:
        """Plan the batches at the present context length: all of this epoch has to have it.

        Returns: what is read, and its plan.  Raises: SamplesExhausted, InvalidRequest.
        """
        stream, epoch = self._feed._settled(), self._number
        windows, position = stream.require_rows(), stream.request.position
        found = EpochPlan(windows, position, epoch, self._tail, stream.stage)
        if found.end_sample > SAMPLE_END - position.stride:
            last = epoch - -(-(found.end_sample + position.stride - SAMPLE_END) // windows)
            problem = f"{epoch} is not in [0, {last}]: an epoch has {windows} samples, and samples"
            raise SamplesExhausted("epoch", f"{problem} have to stay below 2^63")
        reached = found.end_sample + (position.stride if self._tail == "wrap" else 0)
        if reached > stream.length_end:
            problem = f"{epoch} reaches sample {stream.length_end}, from which on the context"
            cure = "iterate the feed itself up to there, and read later epochs behind it"
            raise InvalidRequest("epoch", f"{problem} length is another one; {cure}")
        return stream, found

    def _require_unmoved(self, cursor: Cursor, begun: Snapshot) -> None:
        """Raise InvalidRequest if the feed has another cursor, or was moved.  begun: where the loop
        has left it.
        """
        if cursor is not self._feed._cursor or cursor.current is not begun:
            raise InvalidRequest(
                "epoch",
                f"{self._number} was still being read when skip, load_state_dict, next or another "
                "epoch moved its feed; start the loop again",
            )

    def _begin(self) -> tuple[FeedStream, EpochPlan, int, Snapshot]:
        """Begin a loop.  Returns: what is read, its plan, the first sample, and the position of the
        feed, which the loop replaces.  Raises: as `_plan`; InvalidRequest.
        """
        feed = self._feed
        while True:
            stream, plan = self._plan()
            cursor, before = stream.cursor, stream.cursor.current
            begin, begun = before.epoch_begin(plan.first_sample, plan.end_sample)
            # As in `Delivery._next`: else another thread has replaced one of them.
            if stream is feed._stream and before is cursor.current:
                cursor.current = begun
                break
        if before.repositioned and before.sample >= plan.end_sample:
            message = "epoch begins again epoch=%d: the feed was at sample %d, behind it"
            _LOG.warning(message, plan.epoch, before.sample)
        if begin < plan.stage.first_sample:
            raise InvalidRequest(
                "epoch",
                f"{plan.epoch} began before sample {plan.stage.first_sample}, from which on this "
                "feed reads another stream; read a later one",
            )
        return stream, plan, begin, begun

    def _items(self, item: Callable[..., Item]) -> Iterator[Item]:
        feed = self._feed
        stream, plan, begin, begun = self._begin()
        cursor = stream.cursor
        batch_count = plan.batch_count(begin)
        if dropped := plan.dropped_count(begin):
            # A loop that gets no batch at all would end without a word.
            level = logging.INFO if batch_count or begin > plan.first_sample else logging.WARNING
            message = "epoch drops samples epoch=%d samples=%d batches=%d; tail='pad' keeps them"
            _LOG.log(level, message, plan.epoch, dropped, batch_count)
        if batch_count == 0:
            run = cursor.passed(begun, plan.end_sample).run
            ended = begun._replace(sample=plan.end_sample, run=run)
            if begun is cursor.current:
                cursor.current = ended
            self._require_unmoved(cursor, ended)
            return
        reader = feed._open(stream, begin, batch_count)
        try:
            for index in range(batch_count):
                first_sample = reader.sample
                while True:
                    self._require_unmoved(cursor, begun)
                    stream = feed._stream
                    if reader.request.stream is not stream.rest or reader.sample != first_sample:
                        # The context length may change within this epoch now.
                        stream, _ = self._plan()
                        reader.close()
                        reader = feed._open(stream, first_sample, batch_count - index)
                    batch = reader.next()
                    if batch is not None:
                        end = plan.own_end(first_sample)
                        behind = plan.end_sample if index == batch_count - 1 else reader.sample
                        delivered, after = feed._made(
                            item, batch, reader, stream, first_sample, end, behind, of_epoch=True
                        )
                    # As in `Delivery._next`.
                    if batch is not None and stream is feed._stream and begun is cursor.current:
                        cursor.current = begun = after
                        break
                    if batch is None and stream is feed._stream and begun is cursor.current:
                        reader.close()
                        return
                yield delivered
        except GeneratorExit:
            # Python frees this iterator and would swallow a Ctrl-C in any code that runs here. So
            # no code runs: the reader is freed with this frame, which closes it.
            raise
        except BaseException:
            reader.close()
            raise
        reader.close()
