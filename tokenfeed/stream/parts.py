"""A stream as plain values: what saved states and histories have of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .identity import Corpus


class SourceValues(NamedTuple):
    """A source of a mixture as plain values: name of its dataset, order, seed (0 if the order
    ignores it), and fingerprint, 64 hexadecimal digits. For an order over documents also what it
    does with long ones, and the hash of its pieces, 64 hexadecimal digits.
    """

    dataset: str
    order: str
    seed: int
    fingerprint: str
    long_documents: str = ""
    pieces: str = ""

    @property
    def corpus(self) -> Corpus:
        """What an identity covers of the dataset."""
        return Corpus(bytes.fromhex(self.fingerprint), bytes.fromhex(self.pieces))


class StageValues(NamedTuple):
    """A stage of a mixture as plain values: where it begins, the weights of all sources, who asked
    for it (stages.py), and at which sample.
    """

    first_sample: int
    weights: tuple[int, ...]
    origin: int
    asked: int


class RedactionValues(NamedTuple):
    """A redaction as plain values: its first sample, the number of its source, and the hash of its
    list, 64 hexadecimal digits.
    """

    first_sample: int
    source: int
    list_hash: str


@dataclass(frozen=True, slots=True)
class StreamParts:
    """The parts of the identity of a stream as plain values of a saved state. They may come from a
    release with other orders.

    order: with its version.  seed: 0 if the order ignores it.  context_length: T.  fingerprint:
    of the corpus, 64 hexadecimal digits; of a mixture the identity of its last stage, without
    redactions.  sources, stages: of a mixture.  long_documents, pieces: of an order over documents,
    as in SourceValues.  redactions: ascending.
    """

    order: str
    seed: int
    context_length: int
    fingerprint: str
    sources: tuple[SourceValues, ...] = ()
    stages: tuple[StageValues, ...] = ()
    long_documents: str = ""
    pieces: str = ""
    redactions: tuple[RedactionValues, ...] = ()

    @property
    def each_source(self) -> tuple[SourceValues, ...]:
        """The sources; of a stream of one dataset the only one, whose name it does not have."""
        return self.sources or (
            SourceValues(
                "", self.order, self.seed, self.fingerprint, self.long_documents, self.pieces
            ),
        )
