"""One epoch as a sized iterable: the same number of batches on every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

from tokenfeed.errors import InvalidRequest, SamplesExhausted
from tokenfeed.stream.position import SAMPLE_END, Position
from tokenfeed.stream.stage import Stage

from ..device.host_transfer import Pair
from ..device.loaders import require_no_lightning
from ..device.numpy_batch import BatchAttributes
from ..device.target_mask import IGNORED_TARGET
from .batch_reader import BatchReader
from .cursor import Cursor, Snapshot

_LOG = logging.getLogger("tokenfeed.client")

Tail = Literal["drop", "wrap", "pad"]
TAILS: tuple[str, ...] = get_args(Tail)

Array = TypeVar("Array")
Rich = TypeVar("Rich")
Item = TypeVar("Item")

Enrich = Callable[[Pair[Array], BatchReader[Array], Snapshot, Snapshot], Item]
"""Makes an item of a batch, its reader, and the cursor's value before and behind it."""


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

    def batch_end_sample(self, first_sample: int) -> int:
        """Return the first sample behind a batch of all ranks, without padded rows.  first_sample:
        of row 0 of rank 0 in the batch.
        """
        end_sample = first_sample + self.position.stride
        return min(end_sample, self.end_sample) if self.tail == "pad" else end_sample

    def own_rows(self, first_sample: int) -> int:
        """Return how many rows of this rank's batch belong to the epoch, in [0, batch size].
        first_sample: of row 0 of rank 0 in the batch.
        """
        batch_size = self.position.batch_size
        first_row_sample = first_sample + self.position.rank * batch_size
        return min(max(0, self.end_sample - first_row_sample), batch_size)


def planned_epoch(
    windows: int,
    position: Position,
    epoch: int,
    tail: Tail,
    stage: Stage,
    length_end: int = SAMPLE_END,
) -> EpochPlan:
    """Plan the batches of an epoch.

    length_end: the first sample at another context length.  The others are those of EpochPlan.
    Raises: SamplesExhausted unless a whole batch of all ranks behind the epoch stays below 2^63;
    InvalidRequest if the epoch, with a batch behind it for tail="wrap", reaches another context
    length.
    """
    found = EpochPlan(windows, position, epoch, tail, stage)
    if found.end_sample > SAMPLE_END - position.stride:
        last = epoch - -(-(found.end_sample + position.stride - SAMPLE_END) // windows)
        raise SamplesExhausted(
            "epoch",
            f"{epoch} is not in [0, {last}]: an epoch has {windows} samples, and samples have to "
            "stay below 2^63",
        )
    reached = found.end_sample + (position.stride if tail == "wrap" else 0)
    if reached > length_end:
        problem = f"{epoch} reaches sample {length_end}, from which on the context length is"
        cure = "iterate the feed itself up to there, and read later epochs behind it"
        raise InvalidRequest("epoch", f"{problem} another one; {cure}")
    return found


class Epoch(Generic[Array, Rich]):
    """A sized iterable over one epoch; each `for` starts at its beginning.

    Only the first `for` after a loaded state, `skip`, `start_sample` or `next` has set a position
    within this epoch continues from there.
    """

    def __init__(
        self,
        cursor: Callable[[], Cursor],
        make_plan: Callable[[], EpochPlan],
        open_reader: Callable[[int, int], BatchReader[Array]],
        carry_more: Callable[[], None],
        plain: Enrich[Array, Pair[Array]],
        enriched: Enrich[Array, Rich],
        is_current: Callable[[BatchReader[Array]], bool],
        *,
        state: Callable[[], dict[str, Any]],
        load: Callable[..., None],
        world_size: int,
    ) -> None:
        """Remember what to read; does no I/O.

        cursor: returns that of the feed.  make_plan: asks the server for the number of windows.
        open_reader: starts to read, given a first sample and a number of batches.  carry_more: to
        be called before rich batches are read.  plain, enriched: make what is yielded, a pair or a
        rich batch.  is_current: whether a reader reads what the feed reads now: `redact` has not
        changed that meanwhile.
        state, load: `state_dict` and `load_state_dict` of the feed.  world_size: ranks that share
        the epoch.
        """
        self._cursor = cursor
        self._make_plan = make_plan
        self._open_reader = open_reader
        self._carry_more = carry_more
        self._plain = plain
        self._enriched = enriched
        self._is_current = is_current
        self._state = state
        self._load = load
        self._world_size = world_size

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch, the same on every rank."""
        plan = self._make_plan()
        return plan.batch_count(plan.first_sample)

    def __iter__(self) -> Iterator[Pair[Array]]:
        """Return an iterator over its batches (x, y).  Raises: as for iterating the feed."""
        return self._items(self._plain)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the feed. Loaders that store the state of their dataset call this."""
        require_no_lightning()
        return self._state()

    def load_state_dict(self, state: dict[str, Any], *, allow: Collection[str] = ()) -> None:
        """Load a state into the feed; a feed that has loaded the same state already may do so
        again. The next `for` goes on from the saved position if that is within this epoch.

        state, allow: are passed to `load_state_dict` of the feed, whose errors are raised.
        """
        self._load(state, allow=allow)

    def batches(self) -> Iterator[Rich]:
        """Return an iterator over its batches, as of `batches` of the feed: they carry more than x
        and y.
        """
        self._carry_more()
        return self._items(self._enriched)

    def _items(self, item: Enrich[Array, Item]) -> Iterator[Item]:
        plan, cursor = self._make_plan(), self._cursor()
        if cursor.repositioned and cursor.sample >= plan.end_sample:
            message = "epoch begins again epoch=%d: the feed was at sample %d, behind it"
            _LOG.warning(message, plan.epoch, cursor.sample)
        begin = cursor.seek_epoch(plan.first_sample, plan.end_sample)
        if begin < plan.stage.first_sample:
            raise InvalidRequest(
                "epoch",
                f"{plan.epoch} began before sample {plan.stage.first_sample}, from which on this "
                "feed reads another stream; read a later one",
            )
        batch_count = plan.batch_count(begin)
        if dropped := plan.dropped_count(begin):
            # A loop that gets no batch at all would end without a word.
            level = logging.INFO if batch_count or begin > plan.first_sample else logging.WARNING
            message = "epoch drops samples epoch=%d samples=%d batches=%d; tail='pad' keeps them"
            _LOG.log(level, message, plan.epoch, dropped, batch_count)
        if batch_count == 0:
            cursor.skip_to(plan.end_sample)
            return
        generation = cursor.generation
        reader = self._open_reader(begin, batch_count)
        try:
            for index in range(batch_count):
                if cursor is not self._cursor() or cursor.generation != generation:
                    raise InvalidRequest(
                        "epoch",
                        f"{plan.epoch} was still being read when skip, load_state_dict, next or "
                        "another epoch moved its feed; start the loop again",
                    )
                first_sample = reader.sample
                if not self._is_current(reader):
                    self._make_plan()  # the context length may change within this epoch now
                    reader.close()
                    reader = self._open_reader(first_sample, batch_count - index)
                before = cursor.before(first_sample)
                batch = reader.next()
                if batch is None:
                    break
                if plan.tail == "pad":
                    y: Any = batch[1]
                    y[plan.own_rows(first_sample) :] = IGNORED_TARGET
                is_last = index == batch_count - 1
                after = cursor.after(
                    first_sample,
                    plan.batch_end_sample(first_sample),
                    plan.end_sample if is_last else reader.sample,
                    plan.position.batch_size,
                )
                delivered = item(batch, reader, before, after)
                if plan.tail == "pad" and isinstance(delivered, BatchAttributes):
                    delivered.own_rows = plan.own_rows(first_sample)
                cursor.commit(after, of_epoch=True)
                yield delivered
        except GeneratorExit:
            # Python frees this iterator and would swallow a Ctrl-C in any code that runs here. So
            # no code runs: the reader is freed with this frame, which closes it.
            raise
        except BaseException:
            reader.close()
            raise
        reader.close()
