"""Where the stages of a stream begin, and with which samples of each source. Pure arithmetic.

The samples of a stage come in blocks, each with a fixed number of samples of every source
(stage.py). A stage is asked for at a sample, and begins at the first end of a block at or behind
it: only at the end of a block no source has left out a sample. A stage of another context length
begins where the only source has read whole groups of blocks, or an epoch; of several, each goes on
with its next group. docs/protocol.md, Streams, has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import InvalidRequest
from .position import SAMPLE_END
from .stage import DEFINED, FIRST_PREVIOUS, LENGTH, Share, Source, Stage

Rows = Callable[[Source, int], int]
"""Returns the rows per epoch of a source at a context length. Of an order with groups it is asked
for BLOCK_TOKENS too: each row is a whole block then.
"""
Place = Callable[[Stage, Stage], Stage]
"""Takes a stage and the planned one behind it, and returns the planned one where it begins."""


def first_stage(context_length: int, weights: Mapping[int, int]) -> Stage:
    """Return stage 0.

    context_length: T, at least 1.  weights: samples of each source in a block, by its number.
    Raises: InvalidRequest, naming the field and its limit.
    """
    return Stage(0, 0, context_length, _shares({}, weights), FIRST_PREVIOUS)


def next_stage(last: Stage, asked: int, weights: Mapping[int, int], origin: int = DEFINED) -> Stage:
    """Return the stage that follows another one with other weights, at the same context length. It
    begins at the first end of a block of `last` at or behind the sample that it is asked for at.

    last: the stage before it.  asked: the sample that it is asked for at, at least
    last.first_sample; if it is that, it begins there, and `last` has no row.  weights: as for
    `first_stage`; sources of `last` that are missing pause.  origin: DEFINED, CHANGED or RESUMED.
    Raises: InvalidRequest for weights out of range; SamplesExhausted if it would begin at or above
    sample 2^63, or a source at or above its own sample 2^63.
    """
    blocks = last.blocks_before(asked)
    bases = {share.source: share.base + blocks * share.weight for share in last.shares}
    return Stage(
        last.index + 1,
        last.first_sample + blocks * last.block_size,
        last.context_length,
        _shares(bases, weights),
        asked=asked,
        origin=origin,
    )


class TooEarly(InvalidRequest):
    """A source refuses a change at a sample, and takes it from a later one on.

    refusal: what is wrong, without the cure.  sample: the first one at which that source does not
    refuse it; another source may.
    """

    def __init__(self, subject: str, problem: str, refusal: str = "", sample: int = 0) -> None:
        """subject, problem: as of every error.  The others: see the class."""
        super().__init__(subject, problem)
        self.refusal, self.sample = refusal, sample


def resized_stage(
    last: Stage,
    asked: int,
    context_length: int,
    sources: Sequence[Source],
    rows: Rows,
    origin: int = DEFINED,
) -> Stage:
    """Return the stage that follows another one at another context length, with its weights.

    If blocks have one sample, it begins at the first sample at or behind the one that it is asked
    for at, where what is left of the epoch has the same tokens at both lengths: an order with
    groups of blocks goes on with its next group, and behind its last one with the next epoch. So no
    token of a whole block is left out, and none comes twice. Other orders with epochs change only
    between two of them: windows of another length are other ones.
    Else it begins at the first end of a block. There each source goes on in the same way, and what
    is left of its group is left out, as `left_out` says; also of sources that pause. An order
    without epochs goes on at once.
    last: the stage before it.  asked: at least last.first_sample.  context_length: T of the new
    stage.  sources: of the stream.  rows: as of Rows, at least 1 at the lengths of both stages.
    origin: as for `next_stage`.
    Raises: InvalidRequest in the middle of an epoch of another order, or if more than a group would
    be left out: TooEarly, naming the sample from which on the source would leave out less, if there
    is one; or for an order over documents; SamplesExhausted as `next_stage` does.
    """
    by_number = {source.number: source for source in sources}
    blocks = last.blocks_before(asked)
    begin, shares = last.first_sample + blocks * last.block_size, list[Share]()
    for number, weight, base in last.shares:
        source, own = by_number[number], base + blocks * weight
        reads_on = last.is_plain and weight > 0
        to_end = reads_on and bool(source.order.BLOCK_TOKENS)
        if source.reads_documents:
            raise _no_windows(source, is_alone=len(last.shares) == 1)
        end, goes_on = own, own
        if to_end or context_length != last.context_length:
            end, goes_on = _meeting(source, own, last.context_length, context_length, rows)
        if not to_end and end - own > _group_rows(source, last):
            epoch_rows = rows(source, last.context_length)
            raise _too_early(last, asked, source, range(own, end), epoch_rows)
        if reads_on:
            begin += end - own
        shares.append(Share(number, weight, goes_on))
    return Stage(last.index + 1, begin, context_length, tuple(shares), asked=asked, origin=origin)


def left_out(
    last: Stage, following: Stage, sources: Iterable[Source], rows: Rows
) -> dict[int, int]:
    """Return how many rows of a stage are left out by sources where the context length changes
    behind it, by their numbers: at most those of a group of each. Without those that leave none.

    last, following: stages; the second one as of `resized_stage`.  sources: of which to count.
    rows: as of Rows.
    """
    by_number, found = {source.number: source for source in sources}, dict[int, int]()
    length, other = last.context_length, following.context_length
    blocks = last.blocks_before(following.first_sample)
    for number, weight, base in last.shares if length != other else ():
        source = by_number.get(number)
        if source is not None and source.order.BLOCK_TOKENS and not (last.is_plain and weight):
            own = base + blocks * weight
            end, _ = _meeting(source, own, length, other, rows)
            found[number] = end - own
    return {number: count for number, count in found.items() if count}


def _meeting(source: Source, own: int, length: int, other: int, rows: Rows) -> tuple[int, int]:
    """Return the first own sample of a source at or behind one, from which on what is left of the
    epoch has the same tokens at two context lengths, and the own sample there at the other length.

    own, length: in rows of this length.  other: the other length.  rows: as of Rows.
    """
    if not own or not source.order.HAS_EPOCHS:
        return own, own
    before, now = rows(source, length), rows(source, other)
    epoch, seen = divmod(own, before)
    # Of this epoch: (behind which row, before which row of the other length) both have read the
    # same tokens.
    meeting = (0, 0) if seen == 0 else (before, now)
    if seen and (size := source.order.BLOCK_TOKENS):
        of_block = size // length
        blocks, block = rows(source, size), -(-seen // of_block)
        if block <= blocks:
            turn = _end_of_group(block, blocks, source.group_blocks)
            meeting = turn * of_block, turn * (size // other)
    return epoch * before + meeting[0], epoch * now + meeting[1]


def _no_windows(source: Source, *, is_alone: bool) -> InvalidRequest:
    """Return the error of a source over documents.  is_alone: whether no other source is read."""
    problem = f"cannot change during a run: rows of {source.order.NAME} are other pieces then"
    cure = "save a state at the end of an epoch, and resume with allow=('context_length',)"
    if not is_alone:
        cure = f"give {source.dataset!r} the order 'blocks' or 'random' from the beginning"
    return InvalidRequest("context_length", f"{problem}; {cure}")


def _too_early(
    last: Stage, asked: int, source: Source, left: range, epoch_rows: int
) -> InvalidRequest:
    """Return the error of a source that would leave out more than a group.

    last, asked: as for `resized_stage`.  left: own samples that would be left out, up to the end of
    an epoch.  epoch_rows: of the source.
    """
    (share,) = (share for share in last.shares if share.source == source.number)
    is_alone = last.is_plain and share.weight > 0
    of, most = "" if is_alone else f" of {source.dataset!r}", _group_rows(source, last)
    refusal = f"{asked} would leave out {len(left)} rows{of}, more than a group of {most}"
    if not most:
        refusal = f"{asked} is within an epoch{of} of {source.order.NAME}, which has other windows"
        refusal += " at another context length"
    if not is_alone and not most:
        cure = "give it the order 'blocks' or 'random' from the beginning"
    elif not share.weight:
        cure = "it pauses: change its weight first, until fewer are left of its epoch"
    else:
        blocks = -(-(left.stop - most - share.base) // share.weight)
        sample = last.first_sample + blocks * last.block_size
        cure = f"pass {sample}, from which on fewer are left of its epoch"
        if is_alone:
            epoch = left.stop // epoch_rows
            cure = f"pass {sample}, where epoch {epoch} begins, or use order='blocks'"
        return TooEarly("at_sample", f"{refusal}; {cure}", refusal, sample)
    return InvalidRequest("at_sample", f"{refusal}; {cure}")


def _group_rows(source: Source, stage: Stage) -> int:
    """Return the most rows of a stage in a group of blocks of a source; 0 of an order without."""
    return source.group_blocks * (source.order.BLOCK_TOKENS // stage.context_length)


def _end_of_group(block: int, blocks: int, group_blocks: int) -> int:
    """Return the first end of a group at or behind a block of an epoch, in blocks.

    block: in [1, blocks].  blocks: of the epoch, cut into groups that differ by at most one.
    group_blocks: maximum number of blocks in a group.
    """
    least, longer = divmod(blocks, -(-blocks // group_blocks))
    end = longer * (least + 1)
    if block <= end:
        return -(-block // (least + 1)) * (least + 1)
    return end + -(-(block - end) // least) * least


def planned_stage(
    context_length: int, asked: int, weights: Mapping[int, int], origin: int = DEFINED
) -> Stage:
    """Return a stage that is asked for at a sample, for `later` of `scheduled`. Its index, its
    first sample and its bases are placeholders.

    context_length: where stages are placed by their weights, `scheduled` puts that of the stages
    before it in its place.
    asked: at which sample, in [0, 2^63).  weights, origin: as for `next_stage`.
    Raises: InvalidRequest or SamplesExhausted, naming the field and its limit.
    """
    shares = _shares({}, weights)
    return Stage(0, asked, context_length, shares, asked=asked, origin=origin)


def placed_by_weights(last: Stage, planned: Stage) -> Stage:
    """Return a planned stage where it begins behind another one, as `next_stage` says."""
    return next_stage(last, planned.asked, planned.weights, planned.origin)


def placed(sources: Sequence[Source], rows: Rows, last: Stage, planned: Stage) -> Stage:
    """Return a planned stage, of weights or of a context length, where it begins behind another
    one.

    sources, rows, and Raises: as for `resized_stage`.
    """
    if not planned.origin & LENGTH:
        return placed_by_weights(last, planned)
    length, origin = planned.context_length, planned.origin
    return resized_stage(last, planned.asked, length, sources, rows, origin)


def scheduled(
    begun: Sequence[Stage],
    later: Iterable[Stage] = (),
    place: Place = placed_by_weights,
) -> tuple[Stage, ...]:
    """Return stages, each with the index, the first sample and the base of each share that it
    really has.

    begun: at least one; returned unchanged.  later: the stages behind them, in order, as
    `planned_stage` makes them; their `previous` is b"" then.
    Raises: InvalidRequest if a stage is asked for at or before the begin of the stage before it;
    SamplesExhausted if one would begin at or above sample 2^63.
    """
    found = list(begun)
    for stage in later:
        last = found[-1]
        if stage.asked <= last.first_sample:
            raise InvalidRequest(
                f"stages[{last.index + 1}].first_sample",
                f"{stage.asked} is not above {last.first_sample}, where the one before it begins",
            )
        found.append(place(last, stage))
    return tuple(found)


def _shares(bases: Mapping[int, int], weights: Mapping[int, int]) -> tuple[Share, ...]:
    """Return the shares of all sources that have or had a weight.  bases: of those that had one."""
    return tuple(
        Share(number, weights.get(number, 0), bases.get(number, 0))
        for number in sorted({*bases, *weights})
    )


class Exhausted(NamedTuple):
    """Where a source ends, because its epochs are used up.

    sample: first sample of the first block that the source cannot fill.  stage: Stage.index of the
    stage of that block, of those that were given.  source: number of the source.  source_samples:
    how many of its own samples come before that block.
    """

    sample: int
    stage: int
    source: int
    source_samples: int


def first_exhausted(
    stages: Sequence[Stage], limits: Mapping[int, int], sample: int = 0
) -> Exhausted | None:
    """Return where the first source ends, None if none does.

    limits: how many own samples, from 0, sources may contribute in all, by their numbers; others
    are endless.  sample: stages that end before it do not count; the result may be below it, within
    its stage.
    """
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        end = _first_end(stage, limits)
        end_sample = SAMPLE_END if following is None else following.first_sample
        if sample < end_sample and end is not None and end.sample < end_sample:
            return end
    return None


def _first_end(stage: Stage, limits: Mapping[int, int]) -> Exhausted | None:
    """Return where the first source of a stage ends if no other stage follows."""
    ends = (
        _end_of(stage, share, limits[share.source])
        for share in stage.active
        if share.source in limits
    )
    return min(ends, default=None)


def _end_of(stage: Stage, share: Share, limit: int) -> Exhausted:
    blocks = max(0, limit - share.base) // share.weight
    return Exhausted(
        stage.first_sample + blocks * stage.block_size,
        stage.index,
        share.source,
        share.base + blocks * share.weight,
    )


class WithoutExhausted(NamedTuple):
    """A mixture that goes on without the sources that are exhausted.

    stages: of the mixture that goes on.  exhausted: where sources end, in the order in which they
    do; their `stage` is the Stage.index of a stage that was given.  end_sample: where a stage has
    no source left, so that the mixture ends; None if that is not so before the end_sample that was
    given.
    """

    stages: tuple[Stage, ...]
    exhausted: tuple[Exhausted, ...]
    end_sample: int | None


def without_exhausted(
    stages: Sequence[Stage],
    limits: Mapping[int, int],
    end_sample: int = SAMPLE_END,
    sample: int = 0,
) -> WithoutExhausted:
    """Return a mixture in which each source pauses from the first block on that it cannot fill. A
    later stage all of whose sources have ended is left out.

    stages: of the mixture.  limits, sample: as for `first_exhausted`; no stage changes before
    `sample`.  end_sample: a source that ends at this sample or behind it stays.
    Raises: SamplesExhausted if a stage would begin at or above sample 2^63.
    """
    begun, ends = [stages[0]], list[Exhausted]()

    def put(asked: int, weights: Mapping[int, int], origin: int) -> None:
        last = begun[-1]
        if asked > last.first_sample:
            begun.append(next_stage(last, asked, weights, origin))
        else:
            # Blocks have other sizes now, and the last stage has none left.
            bases = {share.source: share.base for share in last.shares}
            begun[-1] = replace(last, shares=_shares(bases, weights))

    index = stages[0].index
    for stage in (*stages[1:], None):
        while True:
            last, until = begun[-1], end_sample
            if stage is not None:
                blocks = last.blocks_before(stage.asked)
                until = min(until, last.first_sample + blocks * last.block_size)
            end = _first_end(last, limits)
            if until <= sample or end is None or end.sample >= until:
                break
            ends.append(end._replace(stage=index))
            rest = _without(ends, last)
            if not rest:
                return WithoutExhausted(tuple(begun), tuple(ends), end.sample)
            put(max(end.sample, sample), rest, last.origin)
        if stage is not None and (rest := _without(ends, stage)):
            put(stage.asked, rest, stage.origin)
            index = stage.index
    return WithoutExhausted(tuple(begun), tuple(ends), None)


def _without(ends: Sequence[Exhausted], stage: Stage) -> dict[int, int]:
    gone = {end.source for end in ends}
    return {number: weight for number, weight in stage.weights.items() if number not in gone}
