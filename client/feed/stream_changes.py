"""Changes of what a feed reads, as its user asks for them: other weights, another context length, a
redaction. What may change, and from which sample on, is in changes.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, require_range
from tokenfeed.stream.schedule import placed_by_weights, planned_stage, resized_stage
from tokenfeed.stream.stage import CHANGED, Redaction, Stage

from ..runtime.arguments import integer
from .changes import require_ahead, with_change, with_redaction
from .feed_stream import FeedStream
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
    stages, begin = with_change(stream.stages, new, ahead, "weights", or_later=at_sample is None)
    if stages == own.stream.stages:
        return own, begin
    return own.with_stream(stream.with_stages(stages), owner=owner), begin


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
    if own.definition.is_mixture:
        problem = "of a mixture cannot change during a run: its sources are not between two"
        raise InvalidRequest("context_length", f"{problem} groups at the same sample")
    if own.definition.lengths:
        # A restart could not tell a change that was replaced from one that is missing.
        problem = "was given with several values: declare this change with them"
        raise InvalidRequest("context_length", problem)
    require_uncounted(own.request.num_batches)
    sized = own if batch_size is None else _sized(own, length, batch_size)
    return _with_length(sized, length, at, ahead, or_later=at_sample is None)


def _sized(own: FeedStream, length: int, batch_size: int) -> FeedStream:
    """Return this with the rows of a batch at a context length, as a user passed them.

    Raises: InvalidRequest if they are not valid, or other ones were said before.
    """
    size, said = integer("batch_size", batch_size), own.batch_sizes
    require_range("batch_size", size, 1, BATCH_SIZE_MAX + 1)
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
    own: FeedStream, length: int, at_sample: int, ahead: int, *, or_later: bool
) -> Change:
    """Return this with a context length from a sample on, and where that begins, as of
    `with_change`.
    """
    new = planned_stage(length, at_sample, {own.source.number: 1}, CHANGED)
    own.rest.with_stages([new])  # checks the length, before rows are counted
    if not own.source.reads_documents:
        own.require_rows(length)
    stages, begin = with_change(
        own.stream.stages, new, ahead, "context_length", partial(_placed, own), or_later=or_later
    )
    require_whole_rows([stage.context_length for stage in stages], own.batch_sizes)
    return own.with_stream(own.stream.with_stages(stages), owner=None), begin


def _placed(own: FeedStream, last: Stage, planned: Stage) -> Stage:
    """Return a planned stage of a context length where it begins, as `place` of `scheduled`."""
    source, length = own.source, planned.context_length
    if length == last.context_length and not source.order.BLOCK_TOKENS:
        return placed_by_weights(last, planned)
    # Also of the same length: it begins where the change does that it takes back.
    rows, origin = own.rows_at_length, planned.origin
    return resized_stage(last, planned.asked, length, source, rows, origin)


def declared(own: FeedStream) -> FeedStream:
    """Return what is read with the context lengths that the user declared, where they begin. Of
    those that are asked for before all that was delivered, the last one begins as soon as
    possible, unless the stream has had it. Waits for the datasets if there are such.

    Raises: InvalidRequest if one cannot begin there; TokenfeedError.
    """
    if not own.pending or own.datasets.closed:
        return own
    _, _, history = own.cursor.now
    ahead, found, before = history.end_sample, replace(own, pending=()), 0
    for n, each in enumerate(own.pending):
        asked, length = each.begin.sample(found.stream.sample_at), each.context_length
        if asked < before and before > ahead:  # one is by tokens, which are samples only now
            problem = f"{length} is asked for at sample {asked}, behind one at {before}"
            raise InvalidRequest("context_length", f"{problem}; declare them in this order")
        before = asked
        is_known = any(
            (stage.asked, stage.context_length) == (asked, length) for stage in found.stream.stages
        )
        later = own.pending[n + 1 : n + 2]
        is_over = any(one.begin.is_before(found.stream, ahead) for one in later)
        if is_known or is_over:
            continue
        try:
            found, begin = _with_length(found, length, max(asked, ahead), ahead, or_later=True)
        except InvalidRequest as error:
            problem = f"{length} from sample {asked} on: {error}"
            raise InvalidRequest("context_length", problem) from None
        message = "context length changes sample=%d context_length=%d asked=%d"
        _LOG.info(message, begin, length, asked)
    return found


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
    at = ahead if at_sample is None else integer("at_sample", at_sample)
    require_range("at_sample", at, 0, SAMPLE_END)
    return at, ahead
