"""The specification of a stream: everything that determines the tokens of a sample.

The only definition of order, seed, context length, sources, stages and planes; the request, the
saved state, the plan and the identity are made from it. Position, batch size and ranks are not part
of it: they select samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from ..errors import InvalidRequest
from .identity import SourceParts, mixture_identity, stage_identity, stream_identity
from .order import Order
from .planes import require_known
from .position import require_range
from .stages import MIXTURE, Stage

SEED_END = 1 << 64
_CONTEXT_LENGTH_END = 1 << 64
_SOURCES_END = 1 << 32


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset of a stream, and the order of its windows. Always valid once constructed.

    dataset: its name, only for the lookup; "" is the only dataset of a server.  seed: in [0, 2^64).
    number: in a mixture, in [0, 2^32).
    Raises: InvalidRequest, naming the field and its limit.
    """

    dataset: str
    order: Order
    seed: int
    number: int = 0

    def __post_init__(self) -> None:
        """Check the range."""
        require_range("seed", self.seed, 0, SEED_END)
        require_range("number", self.number, 0, _SOURCES_END)

    @property
    def seed_used(self) -> int:
        """The seed in the identity: 0 if the order ignores it."""
        return self.seed if self.order.USES_SEED else 0


class SourceValues(NamedTuple):
    """A source of a mixture as plain values: name of its dataset, order, seed (0 if the order
    ignores it), and fingerprint, 64 hexadecimal digits.
    """

    dataset: str
    order: str
    seed: int
    fingerprint: str


class StageValues(NamedTuple):
    """A stage of a mixture as plain values: where it begins, the weights of all sources, who asked
    for it (stages.py), and at which sample.
    """

    first_sample: int
    weights: tuple[int, ...]
    origin: int
    asked: int


@dataclass(frozen=True, slots=True)
class StreamParts:
    """The parts of the identity of a stream as plain values of a saved state. They may come from a
    release with other orders.

    order: with its version.  seed: 0 if the order ignores it.  context_length: T.  fingerprint:
    of the corpus, 64 hexadecimal digits; of a mixture the identity of its last stage.  sources,
    stages: of a mixture.
    """

    order: str
    seed: int
    context_length: int
    fingerprint: str
    sources: tuple[SourceValues, ...] = ()
    stages: tuple[StageValues, ...] = ()


@dataclass(frozen=True, slots=True)
class Mixture:
    """How a stream of several sources is made up. Always valid once constructed.

    seed: in [0, 2^64).  stages: in order, at least one; a request has only the one that it reads.
    Raises: InvalidRequest, naming the field and its limit.
    """

    seed: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        """Check the range."""
        require_range("seed", self.seed, 0, SEED_END)

    def stage_of(self, sample: int) -> int:
        """Return the place of a sample's stage in `stages`."""
        return bisect_right(self.stages, sample, key=lambda stage: stage.first_sample) - 1

    def end_of(self, place: int) -> int | None:
        """Return the first sample behind a stage; None if it is the last one."""
        following = self.stages[place + 1 : place + 2]
        return following[0].first_sample if following else None


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The specification of a stream. Always valid once constructed.

    context_length: T, at least 1; a row has T + 1 tokens.  sources: one, or those of a mixture.
    mixture: None for a stream of one dataset.  planes: kinds (planes.py), ascending.
    Raises: InvalidRequest, naming the field and its limit.
    """

    context_length: int
    sources: tuple[Source, ...]
    mixture: Mixture | None = None
    planes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every range."""
        # The upper limit depends on the corpus.
        if not 1 <= self.context_length < _CONTEXT_LENGTH_END:
            raise InvalidRequest(
                "context_length",
                f"{self.context_length} is not in [1, tokens of the longest file)",
            )
        if not self.sources or (self.mixture is None and len(self.sources) > 1):
            raise InvalidRequest("sources", "have to be one, or those of a mixture")
        for stage in self.mixture.stages if self.mixture else ():
            if not len(stage.weights) == len(stage.bases) == len(self.sources):
                found = f"{len(stage.weights)} weights and {len(stage.bases)} bases"
                problem = f"are {len(self.sources)}, but stage {stage.index} has {found}"
                raise InvalidRequest("sources", problem)
        # One pair is named: a list of thousands would not fit into a refusal.
        for source, following in pairwise(self.sources):
            if source.number >= following.number:
                problem = f"number {following.number} follows {source.number}; numbers must ascend"
                raise InvalidRequest("stage.sources", problem)
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
        """Return the stream over one dataset: one source, no mixture."""
        return cls(context_length, (Source(dataset, order, seed),), planes=tuple(sorted(planes)))

    def parts(self, fingerprints: Sequence[bytes]) -> StreamParts:
        """Return the parts of `identity` as plain values.

        fingerprints: of the corpus of each source, 32 bytes each.
        """
        if self.mixture is None:
            (fingerprint,) = fingerprints
            seed = self.source.seed_used
            return StreamParts(self.order.NAME, seed, self.context_length, fingerprint.hex())
        return StreamParts(
            MIXTURE,
            self.mixture.seed,
            self.context_length,
            self.identity(fingerprints).hex(),
            tuple(
                SourceValues(each.dataset, each.order.NAME, each.seed_used, fingerprint.hex())
                for each, fingerprint in zip(self.sources, fingerprints, strict=True)
            ),
            tuple(
                StageValues(each.first_sample, each.weights, each.origin, each.asked)
                for each in self.mixture.stages
            ),
        )

    def plain(self) -> dict[str, Any]:
        """Return plain values, the same in every process, that distinguish specifications while
        their corpora are unknown. Mixtures are not distinguished: their identities are compared.
        """
        of_dataset = (self.source.dataset, self.order.NAME, self.seed) if not self.mixture else ()
        return {
            "context_length": self.context_length,
            "dataset": of_dataset,
            "planes": self.planes,
        }

    @property
    def source(self) -> Source:
        """The only source of a stream of one dataset."""
        (source,) = self.sources
        return source

    @property
    def order(self) -> Order:
        """The order of the samples of a stream of one dataset."""
        return self.source.order

    @property
    def order_name(self) -> str:
        """Name of the order of the samples."""
        return MIXTURE if self.mixture else self.order.NAME

    @property
    def seed(self) -> int:
        """Seed of the mixture, or of the only source."""
        return self.mixture.seed if self.mixture else self.source.seed

    @property
    def row_tokens(self) -> int:
        """Tokens of a row: T inputs and T targets share all but one token."""
        return self.context_length + 1

    @property
    def identity_version(self) -> int:
        """Version of the canonical form that `identity` hashes."""
        return 2 if self.mixture else 1

    def identity(self, fingerprints: Sequence[bytes]) -> bytes:
        """Return the identity of this stream, the same everywhere, 32 bytes (identity.py); of the
        last stage of a mixture.

        fingerprints: of the corpus of each source, 32 bytes each.
        """
        if self.mixture is None:
            (fingerprint,) = fingerprints
            return stream_identity(self.order, self.source.seed, self.context_length, fingerprint)
        return self.chain(fingerprints)[-1]

    def chain(self, fingerprints: Sequence[bytes]) -> list[bytes]:
        """Return the chain of identities of a mixture, 32 bytes each: what comes before the first
        stage, and then the identity of each stage.

        fingerprints: as for `identity`.
        """
        assert self.mixture is not None
        stages = self.mixture.stages
        chain = [stages[0].previous or self.start_identity]
        for stage in stages:
            parts = [
                SourceParts(each.number, fingerprint, each.order.NAME, each.seed_used, base, weight)
                for each, fingerprint, base, weight in zip(
                    self.sources, fingerprints, stage.bases, stage.weights, strict=True
                )
                if weight
            ]
            chain.append(stage_identity(chain[-1], stage.index, stage.first_sample, parts))
        return chain

    @property
    def start_identity(self) -> bytes:
        """The identity of a mixture before its first stage, 32 bytes: of its seed and length."""
        return mixture_identity(MIXTURE, self.seed, self.context_length)

    def of_stage(self, place: int, previous: bytes = b"") -> StreamSpec:
        """Return the mixture of one stage alone, with the sources that it reads.

        place: of the stage in `stages`.  previous: the identity before it, from `chain`.
        """
        assert self.mixture is not None
        stage = self.mixture.stages[place]
        used = [number for number, weight in enumerate(stage.weights) if weight]
        alone = Stage(
            stage.index,
            stage.first_sample,
            tuple(stage.weights[number] for number in used),
            tuple(stage.bases[number] for number in used),
            previous,
        )
        sources = tuple(self.sources[number] for number in used)
        return replace(self, sources=sources, mixture=Mixture(self.mixture.seed, (alone,)))
