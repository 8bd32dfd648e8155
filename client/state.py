"""What a saved position is: plain values, versioned, and checked before they are trusted.

Pure. A state says which stream it belongs to by the parts of the identity: by the hash alone it
could not say what differs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from typing import Any

from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.position import SAMPLE_END, require_range

from .arguments import integer

_LOG = logging.getLogger("tokenfeed.client")

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamParts:
    """What makes a stream the same stream (tokenfeed.identity).

    order: with its version.  seed: 0 where the order ignores it.  context_length: T.  fingerprint:
    of the corpus, 64 hexadecimal digits.
    """

    order: str
    seed: int
    context_length: int
    fingerprint: str


PARTS = tuple(field.name for field in fields(StreamParts))
MID_EPOCH = "mid_epoch"
"""A permission that is no part of a stream: to change the context length in the middle of an epoch
(client/rescale.py).
"""


def write_state(sample: int, parts: StreamParts) -> dict[str, Any]:
    """Return a position as what JSON, torch.save and torch.distributed.checkpoint take.

    sample: the next one of row 0 of rank 0, in [0, 2^63].
    """
    return {"version": STATE_VERSION, "sample": sample, **asdict(parts)}


def read_state(state: Any) -> tuple[int, StreamParts]:
    """Return the sample and the stream of a state.  Raises: InvalidRequest if it is none."""
    if not isinstance(state, dict):
        raise InvalidRequest("state", f"is no dict but {type(state).__name__}")
    version = state.get("version")
    if not isinstance(version, int) or version != STATE_VERSION:
        raise InvalidRequest(
            "state", f"has version {version!r}, and this client reads {STATE_VERSION}"
        )
    missing = [name for name in ("sample", *PARTS) if name not in state]
    if missing:
        raise InvalidRequest("state", f"lacks {', '.join(missing)}")
    numbers = {
        name: integer(f"state.{name}", state[name]) for name in ("sample", "seed", "context_length")
    }
    require_range("state.sample", numbers["sample"], 0, SAMPLE_END + 1)
    require_range("state.context_length", numbers["context_length"], 1, SAMPLE_END)
    return numbers["sample"], StreamParts(
        order=str(state["order"]),
        seed=numbers["seed"],
        context_length=numbers["context_length"],
        fingerprint=str(state["fingerprint"]),
    )


def require_same_stream(saved: StreamParts, own: StreamParts, allow: Collection[str]) -> None:
    """Compare the stream that a state belongs to with one's own.

    allow: parts that may differ, and MID_EPOCH.  Raises: StreamMismatch,
    naming what differs; InvalidRequest if allow names no part.
    """
    known = (*PARTS, MID_EPOCH)
    if not isinstance(allow, (tuple, list, set, frozenset)) or not set(allow) <= set(known):
        raise InvalidRequest("allow", f"{allow!r} is no collection of {', '.join(known)}")
    for name in PARTS:
        before, now = getattr(saved, name), getattr(own, name)
        if before != now and name not in allow:
            raise StreamMismatch(
                name,
                f"the state was saved with {before}, and this stream has {now}: its samples are "
                f"others. allow=({name!r},) resumes all the same",
            )


def log_differences(saved: StreamParts, own: StreamParts) -> None:
    """Say in what the stream that is resumed is another one."""
    for name in PARTS:
        before, now = getattr(saved, name), getattr(own, name)
        if before != now:
            _LOG.warning("resumed on another stream: %s was %s, is %s", name, before, now)
