"""Saved positions: plain values, versioned, and checked before they are used.

Pure. A state names its stream by the parts of the identity: the hash alone would not show what
differs. It contains the history of the batches that were delivered before.

    version         2, or 3 if it has a mixture, or 4 if it has an order over documents, or 5 if it
                    has redactions; a state of version 1 ends with the fingerprint
    sample          the next sample of row 0 of rank 0
    order, seed, context_length, fingerprint        the stream of that sample
    history_from    the first batch of the history: above 0 if the oldest runs were dropped
    history         a list of runs, each a list of six integers: first batch, first sample, end
                    sample, batch size, world size, and the index of its stream in specs
    specs           a list of streams, each a list: order, seed, context length, fingerprint; in
                    version 3 also its sources and its stages
    sources, stages     version 3: those of the mixture of that sample, or empty. A source is a
                    list: dataset, order, seed, fingerprint; a stage: first sample, a list of the
                    weights of all sources, its origin (0 the definition, 1 a change; plus 2 if a
                    feed of another definition continued from there), the sample asked for
    long_documents, pieces      version 4, which has all keys of version 3: what the order does with
                    long documents, and the hash of their pieces, or empty; each list of specs and
                    of sources ends with both
    (redactions)    version 5: the stream of that sample is also the last one of specs, and each of
                    specs has the parts of version 4, and ends with its redactions: lists of first
                    sample, number of the source, and hash of the list. Other keys are those of the
                    version that the state would have without redactions
    planes          a list of lists, one for each plane that masks targets: dataset of the mixture
                    (or ""), kind and fingerprint

A state of version 2 has all keys but these of a mixture, and runs are lists:
torch.distributed.checkpoint loads only the keys that the loading feed has, and flattens lists that
contain dicts, so that it would refuse a state whose number of runs differs from that feed's. A feed
that has taken up no redaction loads those of a state by specs, which every feed has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tokenfeed.errors import InvalidRequest, RequestError
from tokenfeed.sampling import orders
from tokenfeed.stream.parts import RedactionValues, SourceValues, StageValues, StreamParts
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, require_range
from tokenfeed.stream.spec import SEED_END, Mixture, StreamSpec
from tokenfeed.stream.stages import BLOCK_MAX, CHANGED, RESUMED, AskedStage, scheduled

from ...runtime.arguments import hash_digits, integer, shown, text
from ..history import History, Run, history_of
from ..mixture.schedule import sources_of

_LOG = logging.getLogger("tokenfeed.client")

STATE_VERSION = 5

_MIXTURE = ("sources", "stages")
_DOCUMENTS = ("long_documents", "pieces")
_REDACTIONS = "redactions"
PARTS = ("order", "seed", "context_length", "fingerprint")
"""What every state has of its stream."""
COMPARED = (*PARTS, *_DOCUMENTS)
"""The parts of a stream of one dataset that make its samples."""
Planes: TypeAlias = Mapping[tuple[str, int], str]
"""Dataset of a mixture (or "") and kind of a plane -> its fingerprint, 64 hexadecimal digits."""

_WITHOUT_MIXTURE, _WITHOUT_DOCUMENTS, _WITHOUT_REDACTIONS = 2, 3, 4
"""The versions of a state without a mixture, without an order over documents, and without
redactions: an earlier release reads them too."""
_NOTHING = History()
_HISTORY = ("history_from", "history", "specs")
_RUN_RANGES = {
    "first_batch": (0, SAMPLE_END),
    "first_sample": (0, SAMPLE_END),
    "end_sample": (1, SAMPLE_END + 1),
    "batch_size": (1, BATCH_SIZE_MAX + 1),
    "world_size": (1, WORLD_SIZE_MAX + 1),
}
"""The integers of a run, except the last, each in [first, end)."""


def write_state(
    sample: int,
    parts: StreamParts,
    history: History = _NOTHING,
    planes: Planes | None = None,
) -> dict[str, Any]:
    """Return a position as plain values for JSON, torch.save and torch.distributed.checkpoint.

    sample: the next sample of row 0 of rank 0, in [0, 2^63].  history: before that sample.  planes:
    those that mask targets.
    """
    specs = dict.fromkeys(run.spec for run in history.runs)
    indices = {spec: index for index, spec in enumerate(specs)}
    streams = [*specs]
    base = version = max(map(_version_of, (parts, *specs)))
    if any(spec.redactions for spec in (parts, *specs)):
        version, streams = STATE_VERSION, [*specs, parts]
    return {
        "version": version,
        "sample": sample,
        **dict(zip(_names(base), _plain(parts, base), strict=True)),
        "history_from": history.first_batch,
        "history": [[*numbers, indices[spec]] for *numbers, spec in history.runs],
        "specs": [_plain(spec, version) for spec in streams],
        "planes": [[*key, value] for key, value in (planes or {}).items()],
    }


def _version_of(parts: StreamParts) -> int:
    """Return the least version of a state that has this stream, without redactions."""
    if parts.pieces or any(source.pieces for source in parts.sources):
        return _WITHOUT_REDACTIONS
    return _WITHOUT_DOCUMENTS if parts.stages else _WITHOUT_MIXTURE


def _plain(parts: StreamParts, version: int) -> list[Any]:
    """Return the parts of a stream as lists and numbers."""
    values: dict[str, Any] = {name: getattr(parts, name) for name in COMPARED}
    values["sources"] = [list(source)[: _source_length(version)] for source in parts.sources]
    values["stages"] = [
        [stage.first_sample, list(stage.weights), stage.origin, stage.asked]
        for stage in parts.stages
    ]
    values[_REDACTIONS] = [list(redaction) for redaction in parts.redactions]
    return [values[name] for name in _names(version)]


def _source_length(version: int) -> int:
    """Return how many values a source has in a state of this version."""
    length = len(SourceValues._fields)
    return length if version > _WITHOUT_DOCUMENTS else length - len(_DOCUMENTS)


def read_state(state: Any) -> tuple[int, StreamParts]:
    """Return the sample and the stream of a state.  Raises: InvalidRequest if it is not valid."""
    if not isinstance(state, dict):
        raise InvalidRequest(
            "state", f"is {type(state).__name__}, not a dict; pass what state_dict() returned"
        )
    version = state.get("version")
    if type(version) is not int or not 1 <= version <= STATE_VERSION:
        is_later = type(version) is int and version > STATE_VERSION
        cure = "; pass what state_dict() returned, which may be a part of your checkpoint"
        if is_later:
            cure = "; a later release wrote it, so upgrade tokenfeed"
        raise InvalidRequest(
            "state",
            f"has version {shown(version)}, but this client reads 1 to {STATE_VERSION}{cure}",
        )
    names = _names(version) if version < STATE_VERSION else ()
    required = ("sample", *names, *(_HISTORY if version > 1 else ()))
    missing = [name for name in required if name not in state]
    if missing:
        raise InvalidRequest("state", f"lacks {', '.join(missing)}")
    sample = _number("state.sample", state["sample"], 0, SAMPLE_END + 1)
    if names:
        return sample, _read_spec("state", [state[name] for name in names], names)
    specs = _list("state.specs", state["specs"])
    if not specs:
        raise InvalidRequest("state.specs", "is empty, but its last one is the stream")
    return sample, _read_spec(f"state.specs[{len(specs) - 1}]", specs[-1], _names(version))


def _names(version: int) -> tuple[str, ...]:
    """Return the parts of a stream in a state of this version."""
    if version > _WITHOUT_REDACTIONS:
        return (*_names(_WITHOUT_REDACTIONS), _REDACTIONS)
    if version > _WITHOUT_DOCUMENTS:
        return (*PARTS, *_MIXTURE, *_DOCUMENTS)
    return (*PARTS, *_MIXTURE) if version > _WITHOUT_MIXTURE else PARTS


def read_history(state: dict[str, Any]) -> History:
    """Return the history of a state that `read_state` accepts; empty for version 1.

    Raises: InvalidRequest, naming the damaged place: a wrong history is worse than none.
    """
    if state["version"] == 1:
        _LOG.info(
            "state of version 1 has no history, the batch at its sample is now batch 0 sample=%d",
            state["sample"],
        )
        return History()
    specs = [
        _read_spec(f"state.specs[{index}]", values, _names(state["version"]))
        for index, values in enumerate(_list("state.specs", state["specs"]))
    ]
    end_batch = _number("state.history_from", state["history_from"], 0, SAMPLE_END)
    runs: list[Run] = []
    for index, values in enumerate(_list("state.history", state["history"])):
        name = f"state.history[{index}]"
        run = _read_run(name, values, specs)
        if run.first_batch != end_batch:
            raise InvalidRequest(
                f"{name}.first_batch",
                f"{run.first_batch} has to be {end_batch}, the end of the run before it",
            )
        end_batch = run.end_batch
        runs.append(run)
    if end_batch and not runs:
        raise InvalidRequest("state.history", f"is empty, but has to begin with batch {end_batch}")
    return history_of(runs)


def read_planes(state: dict[str, Any]) -> Planes:
    """Return the planes of a state that `read_state` accepts; none if an earlier release wrote it.

    Raises: InvalidRequest, naming the damaged place.
    """
    planes: dict[tuple[str, int], str] = {}
    for index, values in enumerate(_list("state.planes", state.get("planes", []))):
        name = f"state.planes[{index}]"
        _require_length(name, values, 3)
        dataset, kind, fingerprint = values
        key = text(f"{name}.dataset", dataset), _number(f"{name}.kind", kind, 1, 1 << 31)
        planes[key] = _read_hash(f"{name}.fingerprint", fingerprint)
    return planes


def _read_run(name: str, values: Any, specs: list[StreamParts]) -> Run:
    """Return a run.  Raises: InvalidRequest, naming the wrong value."""
    _require_length(name, values, len(Run._fields))
    numbers = {
        field: _number(f"{name}.{field}", value, first, end)
        for (field, (first, end)), value in zip(_RUN_RANGES.items(), values, strict=False)
    }
    if numbers["end_sample"] <= numbers["first_sample"]:
        raise InvalidRequest(
            f"{name}.end_sample",
            f"{numbers['end_sample']} is not above first_sample {numbers['first_sample']}",
        )
    return Run(**numbers, spec=specs[_number(f"{name}.spec", values[-1], 0, len(specs))])


def _read_spec(name: str, values: Any, names: Sequence[str]) -> StreamParts:
    """Return a stream.  Raises: InvalidRequest."""
    _require_length(name, values, len(names))
    given = dict(zip(names, values, strict=True))
    documents = [given[key] for key in _DOCUMENTS if key in given]
    length = len(SourceValues._fields) - (0 if documents else len(_DOCUMENTS))
    found = tuple(
        _read_source(f"{name}.sources[{index}]", source, length)
        for index, source in enumerate(_list(f"{name}.sources", given.get("sources", ())))
    )
    long_documents, pieces = _read_documents(name, documents)
    parts = StreamParts(
        *_read_order(name, given["order"], given["seed"]),
        context_length=_number(f"{name}.context_length", given["context_length"], 1, SAMPLE_END),
        fingerprint=_read_hash(f"{name}.fingerprint", given["fingerprint"]),
        sources=found,
        stages=tuple(
            _read_stage(f"{name}.stages[{index}]", stage, len(found))
            for index, stage in enumerate(_list(f"{name}.stages", given.get("stages", ())))
        ),
        long_documents=long_documents,
        pieces=pieces,
        redactions=_read_redactions(name, given.get(_REDACTIONS, ()), max(len(found), 1)),
    )
    if found or parts.stages:
        _require_consistent(name, parts)
    return parts


def _read_redactions(name: str, values: Any, source_count: int) -> tuple[RedactionValues, ...]:
    found = []
    for index, redaction in enumerate(_list(f"{name}.{_REDACTIONS}", values)):
        own = f"{name}.{_REDACTIONS}[{index}]"
        _require_length(own, redaction, len(RedactionValues._fields))
        first_sample, source, list_hash = redaction
        found.append(
            RedactionValues(
                _number(f"{own}.first_sample", first_sample, 0, SAMPLE_END),
                _number(f"{own}.source", source, 0, source_count),
                _read_hash(f"{own}.list", list_hash).lower(),
            )
        )
        if index and found[index - 1] >= found[index]:
            raise InvalidRequest(own, "has to be above the one before it")
    return tuple(found)


def _require_consistent(name: str, parts: StreamParts) -> None:
    """Raise InvalidRequest unless the sources of a mixture have different names, each stage begins
    where the blocks of the one before it end, and the identity is that of these sources and stages.
    """
    names = [source.dataset for source in parts.sources]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"{name}.sources", f"have a name twice: {', '.join(names)}")
    asked = [AskedStage(stage.asked, stage.weights, stage.origin) for stage in parts.stages]
    try:
        stages = scheduled(asked, len(names))
    except RequestError as error:
        raise InvalidRequest(f"{name}.stages", f"are no schedule: {error}") from None
    for index, (stage, begun) in enumerate(zip(parts.stages, stages, strict=True)):
        if stage.first_sample != begun.first_sample:
            problem = f"{stage.first_sample} is no end of a block; the next one is"
            raise InvalidRequest(
                f"{name}.stages[{index}].first_sample", f"{problem} {begun.first_sample}"
            )
    if any(source.order not in orders.ORDERS for source in parts.sources):
        return  # of a later release
    spec = StreamSpec(parts.context_length, sources_of(parts), Mixture(parts.seed, stages))
    identity = spec.identity([source.corpus for source in parts.sources])
    if (parts.order, parts.fingerprint) != (spec.order_name, identity.hex()):
        problem = f"{parts.fingerprint} is not the identity of these sources and stages"
        raise InvalidRequest(f"{name}.fingerprint", f"{problem}, {identity.hex()}")


def _read_source(name: str, values: Any, length: int) -> SourceValues:
    _require_length(name, values, length)
    dataset, order, seed, fingerprint, *documents = values
    return SourceValues(
        text(f"{name}.dataset", dataset),
        *_read_order(name, order, seed),
        _read_hash(f"{name}.fingerprint", fingerprint),
        *_read_documents(name, documents),
    )


def _read_documents(name: str, values: Sequence[Any]) -> tuple[str, str]:
    """Return what an order does with long documents, and the hash of their pieces, or "" both."""
    if not values:
        return "", ""
    long_documents, pieces = values
    long_documents = text(f"{name}.long_documents", long_documents)
    if not long_documents and not pieces:
        return "", ""
    return long_documents, _read_hash(f"{name}.pieces", pieces)


def _read_stage(name: str, values: Any, source_count: int) -> StageValues:
    _require_length(name, values, len(StageValues._fields))
    first_sample, weights, origin, asked = values
    _require_length(f"{name}.weights", weights, source_count)
    return StageValues(
        _number(f"{name}.first_sample", first_sample, 0, SAMPLE_END),
        tuple(_number(f"{name}.weights", weight, 0, BLOCK_MAX + 1) for weight in weights),
        _number(f"{name}.origin", origin, 0, (CHANGED | RESUMED) + 1),
        _number(f"{name}.asked", asked, 0, SAMPLE_END),
    )


def _read_order(name: str, order: Any, seed: Any) -> tuple[str, int]:
    if not text(f"{name}.order", order):
        raise InvalidRequest(f"{name}.order", "is empty")
    return order, _number(f"{name}.seed", seed, 0, SEED_END)


def _read_hash(name: str, value: Any) -> str:
    if hash_digits(name, value) is None:
        raise InvalidRequest(name, "is missing")
    return str(value)


def _require_length(name: str, values: Any, length: int) -> None:
    if len(_list(name, values)) != length:
        raise InvalidRequest(name, f"has {len(values)} values, not {length}")


def _list(name: str, values: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list or tuple unchanged.  Raises: InvalidRequest for other types."""
    if not isinstance(values, (list, tuple)):
        raise InvalidRequest(name, f"is {type(values).__name__}, not a list")
    return values


def _number(name: str, value: Any, first: int, end: int) -> int:
    """Return an integer in [first, end).  Raises: InvalidRequest."""
    if isinstance(value, bool):
        raise InvalidRequest(name, f"{value} is not an integer")
    number = integer(name, value)
    require_range(name, number, first, end)
    return number
