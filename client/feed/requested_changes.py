"""The changes that a user asks a feed for, carried out: other weights, another context length, a
redaction. Where each begins is in change_placement.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import pairwise

from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END
from tokenfeed.stream.schedule import left_out, placed, planned_stage
from tokenfeed.stream.stage import CHANGED, RESUMED, Redaction, Stage
from tokenfeed.stream.stream import Stream

from ..runtime.arguments import integer
from .change_placement import require_ahead, with_change, with_redaction
from .feed_stream import FeedStream
from .length_changes import ahead_of_lengths, with_declared, with_length
from .lengths import require_uncounted, require_whole_rows
from .mixture.recipe import checked_weights, read_list

_LOG = logging.getLogger("tokenfeed.client")

Change = tuple[FeedStream, int]
"""What a feed reads from now on, and the sample from which on a change is in force."""


def reweighted(own: FeedStream, weights: object, at_sample: int | None, owner: object) -> Change:
    """Return a feed's stream with other weights from a sample on, and the sample from which on they
    are in force; the same stream if nothing changes.

    weights, at_sample: as a user passed them; at_sample=None is as soon as possible.  owner:
    newly opened datasets are closed when it is garbage-collected.
    Raises: InvalidRequest if weights or at_sample are not valid, or the feed is closed;
    TokenfeedError if new datasets cannot be read.
    """
    at, ahead = _asked(own, at_sample)
    by_name = checked_weights(weights, own.definition.block)
    stream = own.definition.with_sources(own.stream, by_name)
    numbers = {source.dataset: source.number for source in stream.sources}
    samples_of = {numbers[name]: count for name, count in by_name.items() if count}
    new = planned_stage(stream.context_length, at, samples_of, CHANGED)
    place = partial(placed, stream.sources, own.rows_of)
    stages, begin = with_change(
        stream.stages, new, ahead, "weights", place, or_later=at_sample is None
    )
    if stages == own.stream.stages:
        return own, begin
    found = own.with_stream(stream.with_stages(stages), owner=owner)
    try:
        if own.definition.lengths:
            # One may have taken another back. A restart asks for them again.
            found = declared(replace(found, pending=own.definition.lengths))
        if len({stage.context_length for stage in found.stream.stages}) > 1:
            found.count_rows()
    except BaseException:
        found.close_unless(own)
        raise
    return found, begin


def resized(
    own: FeedStream, context_length: int, at_sample: int | None, batch_size: int | None
) -> Change:
    """Return a feed's stream with another context length from a sample on, and the sample from
    which on it is in force; the same stream if nothing changes.

    context_length, at_sample, batch_size: as a user passed them; at_sample=None is as soon as
    possible.
    Raises: InvalidRequest if an argument is not valid, the feed is closed, or the context
    length cannot change there; TokenfeedError if rows cannot be counted.
    """
    at, ahead = _asked(own, at_sample)
    length = integer("context_length", context_length)
    if own.definition.lengths:
        # A restart could not tell a change that was replaced from one that is missing.
        problem = "was given with several values: declare this change with them"
        raise InvalidRequest("context_length", problem)
    require_uncounted(own.request.num_batches)
    sized = own if batch_size is None else _sized(own, length, batch_size)
    later = at_sample is None
    stream, begin = _with_length(sized, own.stream, length, at, ahead, or_later=later)
    return sized.with_stream(stream, owner=None), begin


def _sized(own: FeedStream, length: int, batch_size: int) -> FeedStream:
    """Return this with the rows of a batch at a context length, as a user passed them.

    Raises: InvalidRequest if they are not valid, or other ones were said before.
    """
    size, said = integer("batch_size", batch_size, 1, BATCH_SIZE_MAX + 1), own.batch_sizes
    now = own.settled().request.position.batch_size
    if length == own.stage.context_length and size != now:
        problem = f"{size} is not {now}, which it is at context_length {length} by now"
        cure = "pass both to a new feed, and load the state there"
        raise InvalidRequest("batch_size", f"{problem}; {cure}")
    if said.get(length, size) != size:
        problem = f"{size} is not {said[length]}, which it is at context_length {length}"
        raise InvalidRequest("batch_size", f"{problem} in this run already")
    return own if length in said else replace(own, batch_sizes={**said, length: size})


def _with_length(
    own: FeedStream, stream: Stream, length: int, at_sample: int, ahead: int, *, or_later: bool
) -> tuple[Stream, int]:
    """Return a stream with a context length from a sample on, and where that begins, as of
    `with_length`; the rows of its datasets are counted.
    """
    rest = own.rest.stages[own.rest.place_of(own.cursor.sample)]
    own.rest.with_stages([replace(rest, context_length=length)])  # checks it, before they are
    place = partial(placed, stream.sources, own.rows_of)
    stream, begin = with_length(
        stream, length, at_sample, ahead, place, own.definition, or_later=or_later
    )
    own.count_rows(stream)
    lengths = [stage.context_length for stage in stream.stages]
    require_whole_rows(lengths, own.batch_sizes, stream.place_of(own.cursor.sample))
    return stream, begin


def declared(own: FeedStream) -> FeedStream:
    """Return what is read with the context lengths that the user declared, where they begin. Waits
    for the datasets if there are such.

    Raises: as `with_declared`; TokenfeedError.
    """
    if not own.pending or own.datasets.closed:
        return own
    found = replace(own, pending=())
    sample, _, history = own.cursor.now
    ahead = ahead_of_lengths(own.stream, own.definition, sample, history)

    def changed(stream: Stream, length: int, at_sample: int) -> Stream:
        return _with_length(own, stream, length, at_sample, ahead, or_later=True)[0]

    return found.with_stream(with_declared(own.stream, own.pending, ahead, changed), owner=None)


def log_lengths(before: FeedStream, now: FeedStream) -> None:
    """Log each change of the context length that is ahead in what is read, and what sources leave
    out there.

    before: what was read until now, with changes that were logged.
    """
    known = {_begin(*pair) for pair in pairwise(before.stream.stages)}
    _, _, history = now.cursor.now
    for last, stage in pairwise(now.stream.stages):
        is_ahead = stage.first_sample >= history.end_sample  # also if it was skipped
        if last.context_length == stage.context_length or not is_ahead:
            continue
        if _begin(last, stage) in known:
            continue
        sample, length = stage.first_sample, stage.context_length
        message = "context length changes sample=%d context_length=%d asked=%d"
        _LOG.log(
            logging.WARNING if stage.origin & RESUMED else logging.INFO,
            message,
            sample,
            length,
            stage.asked,
        )
        for share in last.shares:
            source = now.stream.sources[share.source]
            name = source.dataset
            try:
                left = left_out(last, stage, [source], now.rows_of)
            except TokenfeedError as error:  # it is away, and the change stays as it is
                message = "rows that are left out are not counted sample=%d source=%s: %s"
                _LOG.warning(message, sample, name, error)
                continue
            for rows in left.values():
                message = "rows are left out sample=%d source=%s rows=%d tokens=%d"
                _LOG.warning(message, sample, name, rows, rows * last.context_length)


def _begin(last: Stage, stage: Stage) -> tuple[object, ...]:
    return last.shares, last.context_length, stage.shares, stage.context_length, stage.first_sample


def redacted(
    own: FeedStream, list_hash: str, at_sample: int | None, dataset: str | None, owner: object
) -> Change:
    """Return the stream in which the tokens of a list are replaced from a sample on, and that
    sample; this itself if the list is in force by then already. If the stream has the
    list from a later sample on, the list now begins at this one.

    list_hash, at_sample, dataset: as a user passed them. at_sample=None is as soon as possible;
    dataset=None is the only dataset, and not valid for a mixture.  owner: newly opened datasets
    are closed when it is garbage-collected.
    Raises: InvalidRequest if an argument is not valid, the feed is closed, or the sample is not
    behind all that was delivered; StreamMismatch if no server has the list; TokenfeedError.
    """
    at, ahead = _asked(own, at_sample)
    name = own.definition.dataset_named(own.rest, dataset)
    listed = read_list("list_hash", list_hash)
    redactions, begin = own.stream.redactions, at
    for source in own.rest.sources:
        if source.dataset == name:
            new = Redaction(at, source.number, listed)
            redactions, begin = with_redaction(redactions, new)
    if redactions != own.stream.redactions:
        require_ahead(at, ahead)
    definition = own.definition.with_redaction(name, begin, listed)
    if redactions == own.stream.redactions and definition == own.definition:
        return own, begin
    told = replace(own, definition=definition)
    return told.with_stream(replace(own.stream, redactions=redactions), owner=owner), begin


def _asked(own: FeedStream, at_sample: int | None) -> tuple[int, int]:
    """Return the sample that a change was asked for at, by default the first one that may
    change; and that.

    Raises: InvalidRequest, also for a closed feed.
    """
    own.require_open()
    sample, _, history = own.cursor.now
    ahead = history.ahead_of(sample)
    return integer("at_sample", ahead if at_sample is None else at_sample, 0, SAMPLE_END), ahead
