"""States of feeds that nobody has run, and what states say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenfeed.client.feed.history import History, Run, history_of
from tokenfeed.client.feed.state import Planes, packed_stream, read_state, write_state
from tokenfeed.stream.stream import Stream


def state_of(
    stream: Stream,
    sample: int = 0,
    history: History | Sequence[Run] = (),
    planes: Planes | None = None,
) -> dict[str, Any]:
    """The state of a feed of a known stream at a sample."""
    known = history if isinstance(history, History) else history_of([*history])
    return write_state(sample, packed_stream(stream), known, planes or {})


def fingerprint_of(state: dict[str, Any]) -> str:
    """The corpus of the source that came last, in hexadecimal digits."""
    corpus = read_state(state).stream.sources[-1].corpus
    assert corpus is not None
    return corpus.fingerprint.hex()
