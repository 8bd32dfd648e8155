"""Redactions of a stream: from a sample on, the tokens of a list of ranges are replaced, and are no
targets. Pure.

A redaction is no stage: no row moves, and no block, base or other row changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import InvalidRequest, SamplesExhausted
from .position import SAMPLE_END, require_range

HASH_BYTES = 32
SOURCES_END = 1 << 32


@dataclass(frozen=True, slots=True, order=True)
class Redaction:
    """One redaction. Always valid once constructed.

    first_sample: from which on it is in force, in [0, 2^63).  source: number of the source, 0 for a
    stream of one dataset.  list_hash: of the list of ranges, 32 bytes.
    Raises: InvalidRequest or SamplesExhausted, naming the field and its limit.
    """

    first_sample: int
    source: int
    list_hash: bytes

    def __post_init__(self) -> None:
        """Check every range."""
        if not 0 <= self.first_sample < SAMPLE_END:
            problem = f"{self.first_sample} is not in [0, 2^63)"
            raise SamplesExhausted("redactions.first_sample", problem)
        require_range("redactions.source", self.source, 0, SOURCES_END)
        if len(self.list_hash) != HASH_BYTES:
            what = f"has {len(self.list_hash)} bytes" if self.list_hash else "is missing"
            raise InvalidRequest("list_hash", f"{what}; it has to have {HASH_BYTES} bytes")


Redactions = tuple[Redaction, ...]
"""Of a stream, ascending."""


def require_ascending(redactions: Sequence[Redaction]) -> None:
    """Raise InvalidRequest unless they ascend by first sample, source and list, each once. Two
    lists of a source may come into force at the same sample.
    """
    for one, following in pairwise(redactions):
        if one >= following:
            problem = (
                f"list {following.list_hash.hex()} of source {following.source} from sample "
                f"{following.first_sample} on follows list {one.list_hash.hex()} of source "
                f"{one.source} from sample {one.first_sample} on; they must ascend, each once"
            )
            raise InvalidRequest("redactions", problem)


def in_force(redactions: Redactions, sample: int) -> Redactions:
    """Return those that are in force at a sample."""
    return tuple(each for each in redactions if each.first_sample <= sample)


def end_of(redactions: Redactions, sample: int) -> int | None:
    """Return the first sample above this one from which on another one is in force; None if there
    is none.
    """
    return next((each.first_sample for each in redactions if each.first_sample > sample), None)
