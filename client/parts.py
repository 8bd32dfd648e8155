"""What makes a stream the same stream, as plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass


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
