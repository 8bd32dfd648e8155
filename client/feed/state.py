"""Saved positions: plain values, versioned, and checked before they are used.

Pure. A state names its stream by the parts of the identity: the hash alone would not show what
differs. It contains the history of the batches that were delivered before.

    version         2; a state of version 1 ends with the fingerprint
    sample          the next sample of row 0 of rank 0
    order, seed, context_length, fingerprint        the stream of that sample
    history_from    the first batch of the history: above 0 if the oldest runs were dropped
    history         a list of runs, each a list of six integers: first batch, first sample, end
                    sample, batch size, world size, and the index of its stream in specs
    specs           a list of streams, each a list: order, seed, context length, fingerprint

All keys are always present, and runs are lists: torch.distributed.checkpoint flattens lists that
contain dicts, and would then refuse a state whose number of runs differs from the loading feed's.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, astuple, fields
from typing import Any

from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.stream.position import BATCH_SIZE_MAX, SAMPLE_END, WORLD_SIZE_MAX, require_range
from tokenfeed.stream.spec import SEED_END, StreamParts

from ..validation import hash_digits, integer, shown, text
from .history import History, Run, history_of

_LOG = logging.getLogger("tokenfeed.client")

STATE_VERSION = 2

PARTS = tuple(field.name for field in fields(StreamParts))
MID_EPOCH = "mid_epoch"
"""Not a part of a stream, but a permission to change the context length in the middle of an epoch
(client/feed/rescale.py).
"""

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


def write_state(sample: int, parts: StreamParts, history: History = _NOTHING) -> dict[str, Any]:
    """Return a position as plain values for JSON, torch.save and torch.distributed.checkpoint.

    sample: the next sample of row 0 of rank 0, in [0, 2^63].  history: before that sample.
    """
    runs: list[list[int]] = []
    indices: dict[StreamParts, int] = {}
    for run in history.runs:
        *numbers, spec = run
        runs.append([*numbers, indices.setdefault(spec, len(indices))])
    return {
        "version": STATE_VERSION,
        "sample": sample,
        **asdict(parts),
        "history_from": history.first_batch,
        "history": runs,
        "specs": [list(astuple(spec)) for spec in indices],
    }


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
    required = ("sample", *PARTS, *(_HISTORY if version > 1 else ()))
    missing = [name for name in required if name not in state]
    if missing:
        raise InvalidRequest("state", f"lacks {', '.join(missing)}")
    sample = _number("state.sample", state["sample"], 0, SAMPLE_END + 1)
    return sample, _read_spec("state", [state[name] for name in PARTS])


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
        _read_spec(f"state.specs[{index}]", values)
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


def _read_run(name: str, values: Any, specs: list[StreamParts]) -> Run:
    """Return a run.  Raises: InvalidRequest, naming the wrong value."""
    if len(_list(name, values)) != len(Run._fields):
        raise InvalidRequest(name, f"has {len(values)} values, not {len(Run._fields)}")
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


def _read_spec(name: str, values: Any) -> StreamParts:
    """Return the stream of a run.  Raises: InvalidRequest."""
    if len(_list(name, values)) != len(PARTS):
        raise InvalidRequest(name, f"has {len(values)} values, not {len(PARTS)}")
    order, seed, context_length, fingerprint = values
    if not text(f"{name}.order", order):
        raise InvalidRequest(f"{name}.order", "is empty")
    if hash_digits(f"{name}.fingerprint", fingerprint) is None:
        raise InvalidRequest(f"{name}.fingerprint", "is missing")
    return StreamParts(
        order=order,
        seed=_number(f"{name}.seed", seed, 0, SEED_END),
        context_length=_number(f"{name}.context_length", context_length, 1, SAMPLE_END),
        fingerprint=fingerprint,
    )


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


def require_same_stream(saved: StreamParts, own: StreamParts, allow: Collection[str]) -> None:
    """Compare the stream of a state with the feed's own.

    allow: parts that may differ, and MID_EPOCH.  Raises: StreamMismatch, naming what differs;
    InvalidRequest if allow contains anything else.
    """
    known = (*PARTS, MID_EPOCH)
    is_collection = isinstance(allow, (tuple, list, set, frozenset))
    if not is_collection or not all(part in known for part in allow):
        raise InvalidRequest("allow", f"{shown(allow)} is not a collection of {', '.join(known)}")
    for name in PARTS:
        before, now = getattr(saved, name), getattr(own, name)
        if before != now and name not in allow:
            cure = f"Pass {name}={before!r}"
            if name == "fingerprint":
                cure = "Pass a server and a dataset with that corpus"
            raise StreamMismatch(
                name,
                f"the state was saved with {before}, but this stream has {now}, so its samples "
                f"differ. {cure}, or allow=({name!r},) to go on with other samples",
            )


def log_differences(saved: StreamParts, own: StreamParts) -> None:
    """Log how the resumed stream differs from the saved one."""
    for name in PARTS:
        before, now = getattr(saved, name), getattr(own, name)
        if before != now:
            _LOG.warning("resumed on another stream part=%s saved=%s now=%s", name, before, now)
