"""Which stream continues a state that a feed loads. Pure, but for the datasets that a feed opens to
compare them.

A change is a stage: what a feed has read stays as it was, and from a sample on something else
follows. Nothing changes before everything was checked.

The number of ranks plays no role here. A state keeps the next sample of row 0 of rank 0, and each
rank takes its rows from there (tokenfeed/stream/position.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, zip_longest
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, SamplesExhausted, StreamMismatch
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.schedule import Rows, placed, resized_stage
from tokenfeed.stream.stage import (
    FACTS,
    LENGTH,
    RESUMED,
    Corpus,
    Redaction,
    Redactions,
    Share,
    Source,
    Stage,
)
from tokenfeed.stream.stream import Stream

from ..runtime.arguments import shown
from ..source.plane_selection import plane_name
from .change_placement import with_redaction
from .feed_stream import FeedStream
from .lengths import require_uncounted
from .mixture.continuation import SavedMixture, continued, length_dropped
from .mixture.recipe import Definition
from .state import State
from .state_differences import (
    MID_EPOCH,
    MIXTURE,
    PERMISSIONS,
    PLANES,
    REDACTIONS,
    allowed,
    blocks_of,
    corpus_of,
    differences,
    facts_of,
    length_of,
    redaction_difference,
    require_saved_corpus,
    source_differs,
)


class Resumption(NamedTuple):
    """What a feed goes on with.  messages: to be logged."""

    stream: FeedStream
    messages: tuple[str, ...]


def resumed(own: FeedStream, state: State, allow: Collection[str], owner: object) -> Resumption:
    """Return what a feed reads after it loads a state. The feed itself is not changed.

    own: what the feed reads now.  state: to be loaded.  allow: as a user passed it.  owner: newly
    opened datasets are closed when it is garbage-collected.
    Raises: as for `Feed.load_state_dict`.
    """
    is_collection = isinstance(allow, (tuple, list, set, frozenset))
    if not is_collection or not all(part in PERMISSIONS for part in allow):
        known = ", ".join(PERMISSIONS)
        raise InvalidRequest("allow", f"{shown(allow)} is not a collection of {known}")
    described = set(own.rest.numbers)
    corpora = {
        each.dataset: each.corpus for each in own.known().sources if each.number in described
    }
    definition = own.definition.stream
    mine = [replace(each, corpus=corpora.get(each.dataset)) for each in definition.sources]
    asked, of_groups = _with_groups(replace(definition, sources=tuple(mine)), state.stream)
    if own.definition.is_mixture:
        plan = _mixture(asked, state, allow, own.rows_of)
    else:
        plan = _dataset(own, asked, state, allow)
    require_counted(own.definition, state)
    redactions, messages = _redactions(definition, plan, state, allow)
    stream = replace(plan.stream, redactions=redactions)
    found = own.with_stream(stream, owner=owner, at=(plan.sample, state.history))
    try:
        found.known()
        lengths = {each.context_length for each in stream.rest(plan.sample).stages}
        if len(lengths) > 1:
            require_uncounted(found.request.num_batches)
        if lengths != {own.context_length}:
            found.count_rows()  # now: statistics do not wait for them
        messages += _other_planes(state, found, allow)
    except BaseException:
        found.close_unless(own)
        raise
    return Resumption(found, of_groups + plan.messages + messages)


def require_counted(definition: Definition, state: State) -> None:
    """Raise StreamMismatch if tokens that a mixture counts at the length of its rows have other
    lengths in a state.
    """
    length, end = definition.stream.context_length, definition.tokens_end
    for stage in state.stream.stages:
        if 0 < end >= stage.first_sample and stage.context_length != length:
            problem = f"the state has {stage.context_length} from sample {stage.first_sample} on, "
            problem += f"but the mixture has first_tokens up to sample {end}, counted at {length}"
            raise StreamMismatch("context_length", f"{problem}; write first_sample there")


def _with_groups(mine: Stream, saved: Stream) -> tuple[Stream, tuple[str, ...]]:
    """Return the definition of a feed with the groups of blocks that its sources have in a state,
    and messages to be logged: a source keeps the groups that it began with.
    """
    begun = {share.source for stage in saved.stages for share in stage.shares}
    kept = [each for each in saved.sources if each.number in begun]
    by_corpus = {blocks_of(each): each for each in kept}
    by_name = {(each.dataset, blocks_of(each)): each for each in kept}
    sources, messages = [], []
    for own in mine.sources:
        same = by_corpus.get(blocks_of(own), own)  # it may have another name now
        before = by_name.get((own.dataset, blocks_of(own)), same)
        if before.group_blocks != own.group_blocks:
            tokens = [each.group_blocks * own.order.BLOCK_TOKENS for each in (before, own)]
            messages.append(
                f"resumed with the groups of the state dataset={own.dataset!r} group_tokens="
                f"{tokens[0]} instead of {tokens[1]}"
            )
        sources.append(replace(own, group_blocks=before.group_blocks))
    return replace(mine, sources=tuple(sources)), tuple(messages)


class _Plan(NamedTuple):
    """How a feed goes on.

    stream: with the redactions of the state.  sample: where it goes on.  now_of: of sources of the
    state, the number under which the same corpus is read from there on; itself for those that are
    read no more.  messages: to be logged.
    """

    stream: Stream
    sample: int
    now_of: Mapping[int, int]
    messages: tuple[str, ...]


# --- a feed over one dataset ---


def _dataset(own: FeedStream, mine: Stream, state: State, allow: Collection[str]) -> _Plan:
    """Return the stream over one dataset that continues a state.  mine: the feed's definition.

    Raises: StreamMismatch, naming what differs.
    """
    saved, sample = state.stream, state.sample
    place = saved.place_of(sample)
    stage, source = saved.stages[place], mine.sources[0]
    rest = saved.rest(sample)
    if not rest.is_plain or len(rest.sources) > 1:
        datasets = ", ".join(each.dataset for each in rest.sources)
        raise StreamMismatch(MIXTURE, f"the state is of a mixture of {datasets}; pass mixture=")
    ((number, _, base),) = stage.active
    theirs = saved.sources[number]
    begun = saved.stages[: place + 1]
    may_go_back = "context_length" in allow
    length = length_of(begun, mine.context_length, may_go_back=may_go_back)
    differing = differences(theirs, stage.context_length, source, length)
    messages = [*allowed(differing, allow)]
    if not differing:
        same = replace(theirs, dataset=source.dataset)
        stream = replace(saved, sources=_with(saved.sources, same))
        return _Plan(stream, sample, {number: number}, ())
    for before, later in pairwise(rest.stages):
        if before.context_length != later.context_length:
            messages.append(length_dropped(later))
    begin = state.history.ahead_of(sample)
    names = {name for name, _, _ in differing}
    stream, now_number = _with_source(saved, source, length)
    if names == {"context_length"} and (source.order.BLOCK_TOKENS or not source.order.HAS_EPOCHS):
        own.require_rows(length)
        origin = RESUMED | LENGTH
        new = resized_stage(stage, begin, length, stream.sources, own.rows_of, origin)
        goes_on = sample
    else:
        goes_on = begin
        own_sample = base + sample - stage.first_sample
        if own_sample and stage.context_length != length:
            own_sample, message = _rescaled(own, theirs, stage.context_length, own_sample, allow)
            messages += message
        share = Share(now_number, 1, own_sample)
        new = Stage(stage.index + 1, begin, length, (share,), asked=begin, origin=RESUMED)
    if new.first_sample == stage.first_sample:
        new = replace(new, index=stage.index, previous=stage.previous)
        begun = begun[:-1]
    stream = stream.with_stages((*begun, new))
    now_of = {} if "fingerprint" in names else {number: now_number}
    return _Plan(stream, goes_on, now_of, tuple(messages))


def _with(sources: Sequence[Source], source: Source) -> tuple[Source, ...]:
    """Return sources with one in the place of that of its number, or behind them."""
    found = {each.number: each for each in sources} | {source.number: source}
    return tuple(found[number] for number in sorted(found))


def _with_source(saved: Stream, source: Source, context_length: int) -> tuple[Stream, int]:
    """Return a stream that has the source of a feed too, and its number there."""
    assert source.corpus is not None
    pieces = source.corpus.pieces_at(context_length)
    for each in saved.sources:
        if facts_of(each) != facts_of(source) or each.corpus is None:
            continue
        if each.corpus.pieces_at(context_length) in (b"", pieces):
            # Of all context lengths at which it was and is read.
            of_all = sorted((dict(each.corpus.pieces) | dict(source.corpus.pieces)).items())
            corpus = Corpus(source.corpus.fingerprint, tuple(of_all))
            same = replace(each, dataset=source.dataset, corpus=corpus)
            return replace(saved, sources=_with(saved.sources, same)), each.number
    new = replace(source, number=len(saved.sources))
    return replace(saved, sources=(*saved.sources, new)), new.number


def _rescaled(
    own: FeedStream, theirs: Source, length_before: int, sample: int, allow: Collection[str]
) -> tuple[int, Sequence[str]]:
    """Return the own sample at which a source goes on at another context length, and what to log:
    at the same fraction of the same epoch, rounded down; `sequential` over one file at the same
    token.

    Another length cuts the corpus into other windows, and a shuffled order visits them in another
    permutation. After a fraction f of an epoch, a fraction f of the rest was already seen. Nothing
    repeats only between two epochs.
    sample: of the source, above 0.
    Raises: StreamMismatch in the middle of an epoch that would repeat or skip windows, unless allow
    contains "mid_epoch"; SamplesExhausted.
    """
    definition = own.definition.stream
    mine, length_now = definition.sources[0], definition.context_length
    if not (theirs.order.HAS_EPOCHS and mine.order.HAS_EPOCHS):
        return sample, ()
    file_count = own.datasets.await_described()[0].file_count
    windows_before, windows_now = (
        _rows_before(own, theirs, length_before),
        own.require_rows(length_now),
    )
    permission = f"allow={(*sorted(allow), MID_EPOCH)!r}"
    if not windows_before:
        return sample, _of_unknown(sample, length_before, length_now, permission, allow)
    epoch, seen = divmod(sample, windows_before)
    in_order = theirs.order is mine.order and not mine.order.USES_SEED
    at_token = in_order and file_count == 1
    own_seen = seen * windows_now // windows_before
    if at_token:
        own_seen = seen * length_before // length_now
    own_sample = epoch * windows_now + own_seen
    if own_sample >= SAMPLE_END:
        raise SamplesExhausted("state.sample", f"{own_sample} at this context length is above 2^63")
    percent = f"{100 * seen / windows_before:.4g} %"
    problem = "nothing repeats"
    if seen:
        problem = _repeated(percent, length_now, file_count if in_order else None)
    if seen and not at_token and MID_EPOCH not in allow:
        raise StreamMismatch(
            "context_length",
            f"the state was saved with {length_before}, {percent} into epoch {epoch}, but this "
            f"stream has {length_now}; {problem}. Pass start_sample={(epoch + 1) * windows_now} "
            f"instead of the state to begin with epoch {epoch + 1}, or {permission} to resume "
            "anyway",
        )
    message = f"resumed at another context length saved={length_before} now={length_now} "
    message += f"epoch={epoch} seen={percent} source_sample={own_sample}: {problem}"
    return own_sample, [message]


def _of_unknown(
    sample: int, before: int, now: int, permission: str, allow: Collection[str]
) -> list[str]:
    """Return what to log where the seen part of an epoch is unknown.  before, now: lengths.

    Raises: StreamMismatch, unless that is allowed.
    """
    if MID_EPOCH not in allow:
        raise StreamMismatch(
            "context_length",
            f"the state was saved with {before}, but this stream has {now}. The "
            "seen part of the epoch is unknown: this corpus is another one, has no window of "
            "the saved length, or has other rows of documents. Pass start_sample= instead of "
            f"the state to choose where to begin, or {permission} to resume at sample {sample}",
        )
    unknown = "an unknown part of the epoch may repeat or be skipped"
    return [f"resumed at another context length source_sample={sample}: {unknown}"]


def _repeated(percent: str, length: int, file_count: int | None) -> str:
    """Return what repeats in the middle of an epoch at another context length.  percent: of
    the epoch was seen.  file_count: is None unless the corpus is read in its own order.
    """
    if file_count is None:
        return f"it is another permutation: {percent} of the rest of that epoch was already seen"
    if file_count == 1:
        return f"less than {length} tokens repeat"
    problem = f"each of the {file_count} files is cut into other windows, so part of the rest "
    return f"{problem}of that epoch was already seen, and part is skipped"


def _rows_before(own: FeedStream, theirs: Source, length: int) -> int:
    """Return the rows per epoch of a source of a state; 0 if they are not known."""
    mine, described = own.definition.stream.sources[0], own.datasets.await_described()[0]
    # A server knows the rows of all orders of windows, and of documents those of the feed's own.
    of_documents = theirs.order, theirs.long_documents
    is_counted = not theirs.reads_documents or of_documents == (mine.order, mine.long_documents)
    if not is_counted or described.fingerprint != corpus_of(theirs):
        return 0
    return own.datasets.rows_of(theirs.order.NAME, length)


# --- a feed of a mixture ---


def resumed_mixture(definition: Stream, state: State, allow: Collection[str], rows: Rows) -> Stream:
    """Return the stream that a feed of a mixture reads once it has loaded a state; for `tokenfeed
    plan`. Unlike `resumed`, this returns no messages about what differs.

    definition: what the feed was asked for, with its corpora.  allow: as of `Feed.load_state_dict`;
    the caller has refused values that are not valid.  rows: as for `resized_stage`.
    Raises: StreamMismatch, as `Feed.load_state_dict` does; planes and ranks are not compared.
    """
    definition, _ = _with_groups(definition, state.stream)
    plan = _mixture(definition, state, allow, rows)
    redactions, _ = _redactions(definition, plan, state, allow)
    return replace(plan.stream, redactions=redactions)


def _mixture(mine: Stream, state: State, allow: Collection[str], rows: Rows) -> _Plan:
    """Return the mixture that continues a state; as `_dataset`.  rows: as for `resized_stage`."""
    saved = renamed(state.stream, mine)
    rest = saved.rest(state.sample)
    is_one = rest.is_plain and len(rest.sources) == 1
    goes_on = MIXTURE in allow or {"order", "fingerprint"} <= set(allow)
    is_dataset = is_one and saved.is_plain and not mine.stages[0].is_plain
    # A mixture that went on behind a dataset may have a stage of one source.
    if not is_dataset or any(stage.origin & RESUMED for stage in saved.stages):
        try:
            _require_same_mixture(mine, saved, state.sample)
            return _continued(mine, saved, state, rows, allow=MIXTURE in allow and not is_one)
        except StreamMismatch:
            if not (is_dataset or (is_one and goes_on)):
                raise
    if is_dataset and not goes_on:
        problem = "the state is of one dataset; pass dataset= in place of mixture="
        cure = "allow=('mixture',) to begin the mixture at its sample"
        raise StreamMismatch(MIXTURE, f"{problem}, or {cure}")
    return _begun_behind(mine, saved, rest, state, allow, rows)


def _require_same_mixture(mine: Stream, saved: Stream, sample: int) -> None:
    """Raise StreamMismatch if a mixture has another context length or seed than a state."""
    begun = saved.stages[: saved.place_of(sample) + 1]
    before, now = begun[-1].context_length, length_of(begun, mine.context_length)
    if before != now:
        problem = f"the state was saved with {before}, but this mixture has {now}"
        cure = f"pass context_length={before}, and call change_context_length({now}) then"
        raise StreamMismatch("context_length", f"{problem}; {cure}")
    if not saved.is_plain and saved.seed != mine.seed:
        problem = f"the state was saved with {saved.seed}, but this mixture has {mine.seed}"
        cure = f"pass seed={saved.seed}; a mixture cannot change it, also not by allow"
        raise StreamMismatch("seed", f"{problem}; {cure}")


def _begun_behind(
    mine: Stream, saved: Stream, rest: Stream, state: State, allow: Collection[str], rows: Rows
) -> _Plan:
    """Return the mixture that begins where a run over the one dataset of rest was saved.  Raises:
    StreamMismatch.
    """
    (theirs,), length = rest.sources, rest.stages[0].context_length
    ours = next((each for each in mine.sources if each.dataset == theirs.dataset), None)
    messages: tuple[str, ...] = ()
    if ours is not None and ours.corpus is not None:
        differing = differences(theirs, length, ours, mine.context_length)
        messages = allowed(differing, allow)
    elif length != mine.context_length:
        messages = allowed([("context_length", length, mine.context_length)], allow)
    begin = state.history.ahead_of(state.sample)
    state = state._replace(sample=begin)
    found = _continued(mine, saved, state, rows, allow=True, may_differ=True)
    return found._replace(messages=messages + found.messages)


def _continued(
    mine: Stream,
    saved: Stream,
    state: State,
    rows: Rows,
    *,
    allow: bool,
    may_differ: bool = False,
) -> _Plan:
    """Return the mixture whose stages `continued` gives.

    saved: the stream of the state, with the names of this mixture.  rows: as for `resized_stage`.
    may_differ: whether the context length may be that of this mixture, and sources that were read
    may have other facts now; then both are sources.
    """
    begin = state.history.ahead_of(state.sample)
    past = {number for each in saved.stages for number in _read(each, begin)}
    sources = _sources_of(saved, mine, past, may_differ=may_differ)
    number_by_name = {each.dataset: each.number for each in sources}
    numbers = {each.number: number_by_name[each.dataset] for each in mine.sources}
    own = [_renumbered(stage, numbers) for stage in mine.stages]
    names = [each.dataset for each in sources]
    length = None
    if may_differ and saved.stages[saved.place_of(begin)].context_length != mine.context_length:
        length = mine.context_length
        begun = [stage for stage in own if stage.asked <= begin]
        _require_begun(saved, past, [begun[-1], *own[len(begun) :]], sources, length)
    pairs = zip(saved.sources, sources, strict=False)
    renewed = {
        now.number for before, now in pairs if replace(now, dataset=before.dataset) != before
    }
    goes_on = SavedMixture(saved, renewed, begin, names, partial(placed, sources, rows))
    found, messages = continued(goes_on, own, allow=allow, context_length=length)
    # A source that is not read is not described: it stays as the state has it.
    weighted = {number for stage in found for number in stage.weights}
    sources = tuple(
        each if each.corpus or each.number in weighted else saved.sources[each.number]
        for each in sources
    )
    stages = _hashed_as(saved.stages, found, renewed)
    stream = Stream(mine.seed, sources, stages, saved.redactions)
    return _Plan(stream, state.sample, _numbers_now(saved, sources), messages)


def _hashed_as(
    saved: Sequence[Stage], found: Sequence[Stage], renewed: Collection[int]
) -> tuple[Stage, ...]:
    """Return stages with the `previous` of a state as long as they follow the same stages as there,
    of the same sources; behind that it has to be computed.

    renewed: numbers of sources that are other ones now.
    """
    hashed, is_same = list[Stage](), True
    for before, now in zip_longest(saved[: len(found)], found):
        stage = replace(now, previous=before.previous if before and is_same else b"")
        is_same = is_same and stage == before and not any(each in renewed for each in now.weights)
        hashed.append(stage)
    return tuple(hashed)


def _numbers_now(saved: Stream, sources: Sequence[Source]) -> dict[int, int]:
    """Return under which number each source of a state is read now, as of _Plan.  sources: of the
    mixture; of several of one dataset the last one is read.
    """
    last = {each.dataset: each for each in sources}
    numbers = {}
    for before in saved.sources:
        now = last[before.dataset]
        if now.number == before.number or corpus_of(now) == corpus_of(before):
            numbers[before.number] = now.number
    return numbers


def _require_begun(
    saved: Stream,
    past: Collection[int],
    stages: Sequence[Stage],
    sources: Sequence[Source],
    length: int,
) -> None:
    """Raise StreamMismatch if a mixture goes on with a source that was read at another length: its
    rows have other places there.

    stages: of the mixture, that in force where it goes on and those ahead.
    """
    for number in past:
        if any(stage.weights.get(number) for stage in stages):
            name = sources[number].dataset
            raise StreamMismatch(
                "context_length",
                f"the state was saved with {saved.context_length}, but this mixture has {length}, "
                f"and goes on with {name!r}. First load the state into a feed of dataset={name!r} "
                f"and context_length={length} with allow=('context_length',), read up to the "
                "sample from which on it has that length (the log says it), and save there; or "
                "give the source another seed, so that it begins",
            )


def _read(stage: Stage, sample: int) -> Collection[int]:
    """Return the numbers of the sources that a stage reads before a sample."""
    return stage.weights if stage.first_sample < sample else ()


def _sources_of(
    saved: Stream, mine: Stream, past: Collection[int], *, may_differ: bool
) -> tuple[Source, ...]:
    """Return the sources of a state, and behind them those that only a feed has.

    past: numbers of those that were read; they have to be the same, unless they may differ: then
    both are sources.
    Raises: StreamMismatch, naming what differs.
    """
    own = {each.dataset: each for each in mine.sources}
    last = {each.dataset: each.number for each in saved.sources}
    found: list[Source] = []
    for theirs in saved.sources:
        ours = own.get(theirs.dataset)
        is_same = ours is not None and facts_of(theirs) == facts_of(ours)
        if ours is None or theirs.number != last[theirs.dataset] or (may_differ and not is_same):
            found.append(theirs if theirs.number in past else replace(theirs, corpus=None))
            continue
        del own[theirs.dataset]
        if theirs.number in past:
            _require_same_source(theirs, ours, mine.context_length)
            found.append(theirs)
        else:
            found.append(replace(ours, number=theirs.number))
    found += [replace(each, number=len(found) + n) for n, each in enumerate(own.values())]
    return tuple(found)


def _require_same_source(theirs: Source, ours: Source, length: int) -> None:
    for name in (*FACTS, "long_documents"):
        before, now = (
            (each.facts | {"long_documents": each.long_documents})[name] for each in (theirs, ours)
        )
        if before != now:
            argument = "long" if name == "long_documents" else name
            cure = f"pass {argument}={before!r} for this source"
            raise source_differs(theirs, name, before, now, cure)
    if theirs.corpus is not None and ours.corpus is not None:
        require_saved_corpus(theirs, ours.corpus, length)


def renamed(saved: Stream, mine: Stream) -> Stream:
    """Return the stream of a state in which a dataset that the feed does not name has the feed's
    new name for it: of a source with the same corpus, order, seed and long_documents. If several
    fit, they are taken in the order of their numbers.

    saved: the stream of the state.  mine: the stream of the feed, with its corpora.
    """
    known = {each.dataset for each in saved.sources}
    own = {each.dataset for each in mine.sources}
    new = [each for each in mine.sources if each.dataset not in known]
    sources = []
    for before in saved.sources:
        now = next((each for each in new if facts_of(each) == facts_of(before)), None)
        if before.dataset in own or now is None:
            sources.append(before)
        else:
            new.remove(now)
            sources.append(replace(before, dataset=now.dataset))
    return replace(saved, sources=tuple(sources))


def _renumbered(stage: Stage, numbers: Mapping[int, int]) -> Stage:
    shares = [share._replace(source=numbers[share.source]) for share in stage.shares]
    return replace(stage, shares=tuple(sorted(shares)))


# --- redactions ---


def _redactions(
    definition: Stream, plan: _Plan, state: State, allow: Collection[str]
) -> tuple[Redactions, tuple[str, ...]]:
    """Return the redactions of a feed that loads a state, and what to log of them: those of the
    state, and what the feed was told, from where it goes on.

    Raises: StreamMismatch, naming the list, if the rows before the sample had others than the feed,
    or the state has a list of a corpus that the feed does not have.
    """
    begin, messages = state.history.ahead_of(plan.sample), list[str]()
    still_read = state.stream.rest(state.sample)
    found = _carried(plan, still_read.numbers, begin)
    for each in still_read.redactions:
        if each.source not in plan.now_of:
            if REDACTIONS not in allow:
                raise StreamMismatch(
                    REDACTIONS,
                    f"the state has list {each.list_hash.hex()} of another corpus, so this stream "
                    "would have its tokens again. Redact the corpus of this stream too, pass the "
                    'list of that by feed.redact, and add "redactions" to allow',
                )
            dropped = f"redactions of another corpus are dropped list={each.list_hash.hex()}"
            messages.append(dropped)
    # Of several sources of one dataset the last one is read from now on.
    number_of = {each.dataset: each.number for each in plan.stream.sources}
    begins = {
        (plan.now_of.get(each.source), each.list_hash): each.first_sample
        for each in reversed(state.stream.redactions)
    }
    for each in definition.redactions:
        dataset = definition.sources[each.source].dataset
        number = number_of[dataset]
        before = begins.get((number, each.list_hash))
        if each.first_sample < state.sample and before != each.first_sample:
            problem, cure = redaction_difference(each, dataset, before, state.sample)
            if REDACTIONS not in allow:
                raise StreamMismatch(REDACTIONS, f"{problem}; {cure}")
            messages.append(f"resumed with other redactions: {problem}")
        new = Redaction(max(each.first_sample, begin), number, each.list_hash)
        found, _ = with_redaction(found, new)
    return found, tuple(messages)


def _carried(plan: _Plan, still_read: Collection[int], begin: int) -> Redactions:
    """Return the redactions of a state; a list stays in force for its corpus, whatever else a
    source of it is read by from now on.

    still_read: numbers of the sources that the state still reads.  begin: the first sample that may
    change.
    """
    found, sources = plan.stream.redactions, plan.stream.sources
    for source in plan.stream.rest(plan.sample).sources:
        for each in () if source.number in still_read else plan.stream.redactions:
            if corpus_of(sources[each.source]) == corpus_of(source):
                new = Redaction(max(each.first_sample, begin), source.number, each.list_hash)
                found, _ = with_redaction(found, new)
    return found


# --- planes ---


def _other_planes(state: State, found: FeedStream, allow: Collection[str]) -> tuple[str, ...]:
    """Compare the planes that mask targets, of the corpora that were read before the saved sample
    and are read from there on. Return what to log: of planes that the feed does not want, or that
    the state has not.

    Raises: StreamMismatch, naming dataset and plane, if a plane is another one or gone.
    """
    messages = []
    own, known = found.planes(), found.known()
    read = {number for stage in state.stream.stages for number in _read(stage, state.sample)}
    masked = {number for number, _ in state.planes}
    for now_number in found.rest.numbers:
        corpus = corpus_of(known.sources[now_number])
        same = [number for number in read if corpus_of(state.stream.sources[number]) == corpus]
        if not same:
            continue
        number = max(same, key=lambda each: (each == now_number, each in masked, each))
        dataset = state.stream.sources[number].dataset
        of = f" of dataset {dataset!r}" if found.definition.is_mixture else ""
        for kind in sorted(
            {kind for each, kind in state.planes if each == number}
            | {kind for each, kind in own if each == now_number}
        ):
            before, now = state.planes.get((number, kind)), own.get((now_number, kind))
            if before == now:
                continue
            name = plane_name(kind)
            if before is not None and kind in found.masks and PLANES not in allow:
                raise StreamMismatch(
                    PLANES,
                    f"the state was saved with {name} {before}{of}, but this stream has "
                    f"{now or 'none'}, so its targets differ. Pass a server with these files, or "
                    f"allow=({PLANES!r},) to go on with other targets",
                )
            messages.append(
                f"resumed with other targets plane={name!r} saved={before} now={now}{of}"
            )
    return tuple(messages)
