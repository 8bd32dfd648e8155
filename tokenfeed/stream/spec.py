"""The specification of a stream: everything that determines the tokens of a sample.

The only definition of order, seed, context length, sources, stages and planes; the request, the
saved state, the plan and the identity are made from it. Position, batch size and ranks are not part
of it: they select samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest
from .identity import stream_identity
from .order import Order
from .planes import require_known
from .position import require_range

SEED_END = 1 << 64
_CONTEXT_LENGTH_END = 1 << 64


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset of a stream, and the order of its windows. Always valid once constructed.

    dataset: its name, only for the lookup; "" is the only dataset of a server.  seed: in [0, 2^64).
    Raises: InvalidRequest, naming the field and its limit.
    """

    dataset: str
    order: Order
    seed: int

    def __post_init__(self) -> None:
        """Check the range."""
        require_range("seed", self.seed, 0, SEED_END)

    @property
    def seed_used(self) -> int:
        """The seed in the identity: 0 if the order ignores it."""
        return self.seed if self.order.USES_SEED else 0


@dataclass(frozen=True, slots=True)
class Stage:
    """The proportions of the sources from a sample on.

    first_sample: in [0, 2^63).  weights: samples of each source in a block, in the order of the
    sources.
    """

    first_sample: int
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamParts:
    """The parts of the identity of a stream as plain values of a saved state. They may come from a
    release with other orders.

    order: with its version.  seed: 0 if the order ignores it.  context_length: T.  fingerprint:
    of the corpus, 64 hexadecimal digits.
    """

    order: str
    seed: int
    context_length: int
    fingerprint: str


_ALONE = (Stage(0, (1,)),)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The specification of a stream. Always valid once constructed.

    context_length: T, at least 1; a row has T + 1 tokens.  sources: one; mixtures of several are
    not served yet.  stages: in order.  planes: kinds (planes.py), ascending.
    Raises: InvalidRequest, naming the field and its limit.
    """

    context_length: int
    sources: tuple[Source, ...]
    stages: tuple[Stage, ...] = _ALONE
    planes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every range."""
        # The upper limit depends on the corpus.
        if not 1 <= self.context_length < _CONTEXT_LENGTH_END:
            raise InvalidRequest(
                "context_length",
                f"{self.context_length} is not in [1, tokens of the longest file)",
            )
        if len(self.sources) != 1 or self.stages != _ALONE:
            raise InvalidRequest("stage", "has to have one dataset; mixtures are not served yet")
        require_known(self.planes)

    @classmethod
    def of_dataset(
        cls,
        dataset: str,
        order: Order,
        seed: int,
        context_length: int,
        planes: Sequence[int] = (),
    ) -> StreamSpec:
        """Return the stream over one dataset: one source, one stage."""
        return cls(context_length, (Source(dataset, order, seed),), planes=tuple(sorted(planes)))

    def parts(self, fingerprint: bytes) -> StreamParts:
        """Return the parts of `identity` as plain values.  fingerprint: of the corpus."""
        return StreamParts(
            self.order.NAME, self.source.seed_used, self.context_length, fingerprint.hex()
        )

    def plain(self) -> dict[str, Any]:
        """Return plain values, the same in every process, that distinguish specifications while
        their corpora are unknown.
        """
        return {
            "context_length": self.context_length,
            "sources": [(each.dataset, each.order.NAME, each.seed) for each in self.sources],
            "stages": [(stage.first_sample, stage.weights) for stage in self.stages],
            "planes": self.planes,
        }

    @property
    def source(self) -> Source:
        """The only source."""
        return self.sources[0]

    @property
    def order(self) -> Order:
        """The order of the samples."""
        return self.source.order

    @property
    def row_tokens(self) -> int:
        """Tokens of a row: T inputs and T targets share all but one token."""
        return self.context_length + 1

    @property
    def identity_version(self) -> int:
        """Version of the canonical form that `identity` hashes."""
        return 1

    def identity(self, fingerprints: Sequence[bytes]) -> bytes:
        """Return the identity of this stream, the same everywhere, 32 bytes (identity.py).

        fingerprints: of the corpus of each source, 32 bytes each.
        """
        (fingerprint,) = fingerprints
        return stream_identity(self.order, self.source.seed, self.context_length, fingerprint)
