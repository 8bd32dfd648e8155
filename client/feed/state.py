"""The state of a feed as plain values, and back: version, sample, stream, history, planes.

These five keys stay for ever: torch.distributed.checkpoint refuses a checkpoint that lacks a key of
the feed that loads it. It flattens dicts within lists and drops empty ones, so everything below a
key is lists, numbers and text; later fields go behind the last element of `stream`.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tokenfeed.errors import InvalidRequest, RequestError
from tokenfeed.sampling import orders
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX
from tokenfeed.stream.stage import (
    BLOCK_MAX,
    CHANGED,
    FACTS,
    LENGTH,
    RESUMED,
    SEED_END,
    SOURCES_END,
    STAGE_END,
    Corpus,
    Redaction,
    Share,
    Source,
    Stage,
)
from tokenfeed.stream.stream import Stream

from ..runtime.arguments import hash_digits, integer, shown, text
from .history import HISTORY_RUNS_MAX, History, Run, history_of

STATE_VERSION = 6
"""The only version that this release reads. Versions 1 to 5 were not released."""
STAGES_MAX, SHARES_MAX = 1000, 4000
"""Stages of a stream that are kept, and shares of all of them together."""

Planes: TypeAlias = Mapping[tuple[int, int], str]
"""Number of a source and kind of a plane -> its fingerprint, 64 hexadecimal digits."""
_KEYS = ("version", "sample", "stream", "history", "planes")
_SAMPLES, _SOURCES, _LENGTHS = (0, SAMPLE_END), (0, SOURCES_END), (1, SAMPLE_END)
# The integers of each part, in [first, end).
_RUN = {
    "first_batch": _SAMPLES,
    "first_sample": _SAMPLES,
    "end_sample": (1, SAMPLE_END + 1),
    "batch_size": (1, BATCH_SIZE_MAX + 1),
    "world_size": (1, WORLD_SIZE_MAX + 1),
}
_STAGE = {
    "first_sample": _SAMPLES,
    "context_length": _LENGTHS,
    "asked": _SAMPLES,
    "origin": (0, (CHANGED | RESUMED | LENGTH) + 1),
}
_SHARE = {"source": _SOURCES, "weight": (0, BLOCK_MAX + 1), "base": _SAMPLES}
_WEIGHT = {"source": _SOURCES, "weight": (1, BLOCK_MAX + 1)}
_REDACTION = {"first_sample": _SAMPLES, "source": _SOURCES}
Item = TypeVar("Item")


class State(NamedTuple):
    """A saved position.

    sample: the next sample of row 0 of rank 0, in [0, 2^63].  stream: known, that is with its
    corpora.  history: what was delivered until the state was saved.  planes: fingerprints of the
    planes that mask targets.
    """

    sample: int
    stream: Stream
    history: History
    planes: Planes


def folded(stream: Stream, sample: int) -> Stream:
    """Return a known stream without its oldest stages, if it has more than STAGES_MAX stages or
    SHARES_MAX shares. The first stage that is kept contains the identity of the stage before it and
    the base of each of its own sources, so no row changes.

    sample: the next one; its stage and all later ones are kept.
    """
    present, shares, kept = stream.place_of(sample), 0, 0
    for place, stage in reversed(list(enumerate(stream.stages))):
        shares += len(stage.shares)
        if place < present and (kept >= STAGES_MAX or shares > SHARES_MAX):
            break
        kept += 1
    dropped, stages = stream.stages[:-kept], stream.stages[-kept:]
    if not dropped:
        return stream
    # A feed that loads it compares its definition, which no change shows.
    asked = [tuple(stage.weights.items()) for stage in dropped if not stage.is_change]
    first = replace(stages[0], defined=asked[-1] if asked else dropped[0].defined)
    return stream.with_stages((first, *stages[1:]))


def plain_stream(stream: Stream) -> list[Any]:
    """Return a stream as lists, numbers and text, for `write_state`. The stream has to be known
    (see Stream).

    Of the identities of stages (identity.py) only that of the stage before the first one is
    written; the others are computed from it. The last value is a hash of all others: it also covers
    paused sources, which an identity does not.
    """
    first = stream.stages[0]
    values = [
        stream.seed,
        [
            [
                source.dataset,
                *(source.facts[name] for name in FACTS),
                source.long_documents,
                source.corpus.fingerprint.hex() if source.corpus else "",
                [[length, pieces.hex()] for length, pieces in _pieces(source)],
                # A release that does not know the order finds one value too many.
                *([source.group_blocks] if source.group_blocks else []),
            ]
            for source in stream.sources
        ],
        first.index,
        first.previous.hex(),
        [
            [
                stage.first_sample,
                stage.context_length,
                stage.asked,
                stage.origin,
                [list(share) for share in stage.shares],
            ]
            for stage in stream.stages
        ],
        [[each.first_sample, each.source, each.list_hash.hex()] for each in stream.redactions],
        [list(weight) for weight in first.defined],
    ]
    return [*values, hashlib.sha256(json.dumps(values).encode()).hexdigest()]


def _pieces(source: Source) -> tuple[tuple[int, bytes], ...]:
    return source.corpus.pieces if source.corpus else ()


def packed_stream(stream: Stream) -> bytes:
    """Return what `plain_stream` returns of a known stream, for `write_state` in this process."""
    return marshal.dumps(plain_stream(stream))


def write_state(sample: int, packed: bytes, history: History, planes: Planes) -> dict[str, Any]:
    """Return a position as plain values for JSON, torch.save and torch.distributed.checkpoint.

    sample, history, planes: as of State.  packed: of `packed_stream`. Each state gets a copy of
    its own, which the caller may change: 4,000 shares take 0.6 ms, and with pickle 1.1. 2 shared
    cores, 2026-11.
    """
    return {
        "version": STATE_VERSION,
        "sample": sample,
        "stream": marshal.loads(packed),
        "history": [list(run) for run in history.runs],
        "planes": [[*key, value] for key, value in planes.items()],
    }


def read_state(state: Any) -> State:
    """Return a state that `write_state` made.

    Raises: InvalidRequest, naming the damaged place: a wrong position or history is worse than
    none. A change of the stream by hand is found by its hash.
    """
    if not isinstance(state, dict):
        raise InvalidRequest(
            "state", f"is {type(state).__name__}, not a dict; pass what state_dict() returned"
        )
    version = state.get("version")
    if type(version) is not int or version != STATE_VERSION:
        raise InvalidRequest(
            "state",
            f"has version {shown(version)}, but this client reads {STATE_VERSION}; pass what "
            "state_dict() of this release returned, which may be a part of your checkpoint",
        )
    if missing := [name for name in _KEYS if name not in state]:
        raise InvalidRequest("state", f"lacks {', '.join(missing)}")
    stream = _read_stream("state.stream", state["stream"])
    first = stream.stages[0]
    return State(
        # What was before the first stage that is kept is unknown.
        _integer(
            "state.sample",
            state["sample"],
            first.first_sample if first.index else 0,
            SAMPLE_END + 1,
        ),
        stream,
        _read_history(state["history"], are_dropped=first.index > 0),
        _read_planes(state["planes"], len(stream.sources)),
    )


def _read_stream(name: str, value: Any) -> Stream:
    """Return the known stream that `plain_stream` made.  name: of the value, for errors."""
    if len(_list(name, value)) < 8:
        raise InvalidRequest(name, f"has {len(value)} values, not 8")
    seed, sources, index, previous, stages, redactions, defined, digest = value[:8]
    first_index = _integer(f"{name}.stage", index, 0, STAGE_END)
    try:
        known = [
            _stage(f"{name}.stages[{n}]", first_index + n, each)
            for n, each in enumerate(_list(f"{name}.stages", stages))
        ]
        if known:
            before = _hash(f"{name}.previous", previous)
            weights = _each(f"{name}.defined", defined, _weight)
            known[0] = replace(known[0], previous=before, defined=weights)
        stream = Stream(
            _integer(f"{name}.seed", seed, 0, SEED_END),
            _each(f"{name}.sources", sources, _source),
            tuple(known),
            _each(f"{name}.redactions", redactions, _redaction),
        )
        if not first_index and (first := stream.stages[0].first_sample):
            problem = f"is {first}, but the first stage of a stream begins at 0"
            raise InvalidRequest("stages[0].first_sample", problem)
        for number, _ in stream.stages[0].defined:
            _integer(f"{name}.defined.source", number, 0, len(stream.sources))
        _require_pieces(f"{name}.pieces", stream)
        stream = stream.known({})
    except RequestError as error:
        raise _placed(name, error) from None
    if _hash(f"{name}.hash", digest).hex() != (own := plain_stream(stream)[7]):
        problem = f"{digest} is not that of these values, {own}; they were changed or damaged"
        raise InvalidRequest(f"{name}.hash", problem)
    return stream


def _require_pieces(name: str, stream: Stream) -> None:
    for stage in stream.stages:
        for number in stage.weights:
            source, length = stream.sources[number], stage.context_length
            if source.reads_documents and not (source.corpus and source.corpus.pieces_at(length)):
                problem = f"of source {number} are missing at context_length {length}"
                raise InvalidRequest(name, problem)


def _each(name: str, values: Any, read: Callable[[str, int, Any], Item]) -> tuple[Item, ...]:
    found = []
    for index, each in enumerate(_list(name, values)):
        place = f"{name}[{index}]"
        try:
            found.append(read(place, index, each))
        except RequestError as error:
            raise _placed(place, error) from None
    return tuple(found)


def _placed(name: str, error: RequestError) -> RequestError:
    """Return an error of a value's own checks, which know only its field, with its place."""
    if error.subject.startswith(name):
        return error
    return InvalidRequest(f"{name}.{error.subject}", error.problem)


def _source(name: str, number: int, values: Any) -> Source:
    count = 4 + len(FACTS)
    has_groups = len(_list(name, values)) == count + 1
    group_blocks = _integer(f"{name}.group_blocks", values[count]) if has_groups else 0
    values = values[:count] if has_groups else values
    dataset, *known, long_documents, fingerprint, pieces = _values(name, values, count)
    facts: dict[str, Any] = {
        # Source checks the range of each.
        field: (text if kind is str else _integer)(f"{name}.{field}", value)
        for (field, kind), value in zip(FACTS.items(), known, strict=True)
    }
    if facts["order"] not in orders.ORDERS:
        problem = f"{shown(facts['order'])} is unknown to this release; upgrade tokenfeed"
        raise InvalidRequest(f"{name}.order", problem)
    facts["order"] = orders.ORDERS[facts["order"]]
    return Source(
        text(f"{name}.dataset", dataset),
        number=number,
        long_documents=text(f"{name}.long_documents", long_documents),
        group_blocks=group_blocks,
        corpus=Corpus(
            _hash(f"{name}.fingerprint", fingerprint), _each(f"{name}.pieces", pieces, _piece)
        ),
        **facts,
    )


def _piece(name: str, _: int, values: Any) -> tuple[int, bytes]:
    context_length, pieces = _values(name, values, 2)
    return _integer(f"{name}.context_length", context_length, *_LENGTHS), _hash(name, pieces)


def _stage(name: str, index: int, values: Any) -> Stage:
    *numbers, shares = _values(name, values, 5)
    first_sample, context_length, asked, origin = _integers(name, numbers, _STAGE)
    shares = _each(f"{name}.shares", shares, _share)
    return Stage(index, first_sample, context_length, shares, asked=asked, origin=origin)


def _weight(name: str, _: int, values: Any) -> tuple[int, int]:
    source, weight = _integers(name, values, _WEIGHT)
    return source, weight


def _share(name: str, _: int, values: Any) -> Share:
    return Share(*_integers(name, values, _SHARE))


def _redaction(name: str, _: int, values: Any) -> Redaction:
    *numbers, digits = _values(name, values, 3)
    first_sample, source = _integers(name, numbers, _REDACTION)
    return Redaction(first_sample, source, _hash(f"{name}.list", digits))


def _read_history(values: Any, *, are_dropped: bool) -> History:
    """Return a history.  are_dropped: whether runs were dropped with their stages."""
    runs = _each("state.history", values, _run)
    if runs and runs[0].first_batch and not are_dropped and len(runs) < HISTORY_RUNS_MAX:
        problem = f"{runs[0].first_batch} has to be 0, since no runs were dropped"
        raise InvalidRequest("state.history[0].first_batch", problem)
    for index, (before, run) in enumerate(pairwise(runs), 1):
        if run.first_batch != before.end_batch:
            raise InvalidRequest(
                f"state.history[{index}].first_batch",
                f"{run.first_batch} has to be {before.end_batch}, the end of the run before it",
            )
    return history_of(list(runs))


def _run(name: str, _: int, values: Any) -> Run:
    run = Run(*_integers(name, values, _RUN))
    if run.end_sample <= run.first_sample:
        problem = f"{run.end_sample} is not above first_sample {run.first_sample}"
        raise InvalidRequest(f"{name}.end_sample", problem)
    return run


def _read_planes(values: Any, source_count: int) -> Planes:
    def plane(name: str, _: int, value: Any) -> tuple[tuple[int, int], str]:
        *numbers, fingerprint = _values(name, value, 3)
        ranges = {"source": (0, source_count), "kind": (1, 1 << 31)}
        source, kind = _integers(name, numbers, ranges)
        return (source, kind), _hash(f"{name}.fingerprint", fingerprint).hex()

    return dict(_each("state.planes", values, plane))


def _hash(name: str, value: Any) -> bytes:
    found = hash_digits(name, value)
    if found is None:
        raise InvalidRequest(name, "is missing")
    return found


def _values(name: str, values: Any, count: int) -> Sequence[Any]:
    if len(_list(name, values)) != count:
        raise InvalidRequest(name, f"has {len(values)} values, not {count}")
    return values  # type: ignore[no-any-return]


def _list(name: str, values: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list or tuple unchanged.  Raises: InvalidRequest for other types."""
    if not isinstance(values, (list, tuple)):
        raise InvalidRequest(name, f"is {type(values).__name__}, not a list")
    return values


def _integers(name: str, values: Any, ranges: Mapping[str, tuple[int, int]]) -> list[int]:
    """Return a list of integers, each in the range of its name.  Raises: InvalidRequest."""
    pairs = zip(ranges.items(), _values(name, values, len(ranges)), strict=True)
    return [_integer(f"{name}.{field}", value, *limits) for (field, limits), value in pairs]


def _integer(name: str, value: Any, *limits: int) -> int:
    """Return an integer.  limits, and Raises: as for `integer`."""
    if isinstance(value, bool):
        raise InvalidRequest(name, f"{value} is not an integer")
    return integer(name, value, *limits)
