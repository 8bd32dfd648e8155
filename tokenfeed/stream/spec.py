"""What a stream is, as a value: everything that decides which tokens a sample has.

Order, seed, context length, sources, stages and planes are said here once; the request, the saved
state, the plan and the identity are made from it. Position, batch size and ranks are no part of it:
they say which samples are wanted.
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
    """One dataset of a stream, and in which order its windows come. What exists is valid.

    dataset: its name, for looking it up only; "" is the only one that a server has.  seed: in [0,
    2^64).
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
        """The seed as the identity has it: 0 where the order ignores it."""
        return self.seed if self.order.USES_SEED else 0


@dataclass(frozen=True, slots=True)
class Stage:
    """From which sample on the sources are mixed in which proportion.

    first_sample: in [0, 2^63).  weights: samples of each source in a block, in the order of the
    sources.
    """

    first_sample: int
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamParts:
    """What makes a stream over a corpus the same stream, as plain values that a saved state holds;
    they may come from a release that knows other orders.

    order: with its version.  seed: 0 where the order ignores it.  context_length: T.  fingerprint:
    of the corpus, 64 hexadecimal digits.
    """

    order: str
    seed: int
    context_length: int
    fingerprint: str


_ALONE = (Stage(0, (1,)),)


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """What is asked for. What exists is valid.

    context_length: T, at least 1; a row has T + 1 tokens.  sources: one; a mixture of several is
    not served yet.  stages: in order.  planes: kinds of what comes beside the tokens (planes.py),
    ascending.
    Raises: InvalidRequest, naming the field and its limit.
    """

    context_length: int
    sources: tuple[Source, ...]
    stages: tuple[Stage, ...] = _ALONE
    planes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every range."""
        # How long it may be is for the corpus to say.
        if not 1 <= self.context_length < _CONTEXT_LENGTH_END:
            raise InvalidRequest(
                "context_length",
                f"{self.context_length} is not in [1, tokens of the longest file)",
            )
        if len(self.sources) != 1 or self.stages != _ALONE:
            raise InvalidRequest("stage", "a stream is of one dataset; mixtures are not served yet")
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
        """Return what `identity` is made of, as plain values.  fingerprint: of the corpus."""
        return StreamParts(
            self.order.NAME, self.source.seed_used, self.context_length, fingerprint.hex()
        )

    def plain(self) -> dict[str, Any]:
        """Return it as plain values, the same in every process: what tells streams apart that were
        asked for, before anybody knows their corpora.
        """
        return {
            "context_length": self.context_length,
            "sources": [(one.dataset, one.order.NAME, one.seed) for one in self.sources],
            "stages": [(stage.first_sample, stage.weights) for stage in self.stages],
            "planes": self.planes,
        }

    @property
    def source(self) -> Source:
        """The only source."""
        return self.sources[0]

    @property
    def order(self) -> Order:
        """Of the samples of the stream."""
        return self.source.order

    @property
    def row_tokens(self) -> int:
        """Tokens of a row: inputs and targets overlap in all but one."""
        return self.context_length + 1

    @property
    def identity_version(self) -> int:
        """Of the canonical form that `identity` hashes."""
        return 1

    def identity(self, fingerprints: Sequence[bytes]) -> bytes:
        """Return what makes this stream the same stream everywhere, 32 bytes (identity.py).

        fingerprints: of the corpus of each source, 32 bytes each.
        """
        (fingerprint,) = fingerprints
        return stream_identity(self.order, self.source.seed, self.context_length, fingerprint)
