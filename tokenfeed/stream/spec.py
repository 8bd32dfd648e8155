"""The specification of a stream: everything that determines the tokens of a sample.

The only definition of order, seed, context length, sources, stages and planes; the request, the
saved state, the plan and the identity are made from it. Position, batch size and ranks are not part
of it: they select samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..errors import InvalidRequest, shortened
from .identity import (
    Corpus,
    SourceParts,
    mixture_identity,
    redacted_identity,
    stage_identity,
    stream_identity,
)
from .order import Order
from .parts import RedactionValues, SourceValues, StageValues, StreamParts
from .planes import require_known
from .position import require_range
from .redactions import SOURCES_END, Redactions, end_of, in_force, require_ascending
from .stages import MIXTURE, Stage

SEED_END = 1 << 64
_CONTEXT_LENGTH_END = 1 << 64


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset of a stream, and the order of its windows. Always valid once constructed.

    dataset: its name, only for the lookup; "" is the only dataset of a server.  seed: in [0, 2^64).
    number: in a mixture, in [0, 2^32).  long_documents: one of order.LONG_DOCUMENTS; "" is the
    default, and the only value for windows.
    Raises: InvalidRequest, naming the field and its limit.
    """

    dataset: str
    order: Order
    seed: int
    number: int = 0
    long_documents: str = ""

    def __post_init__(self) -> None:
        """Check the values, and set the default."""
        require_range("seed", self.seed, 0, SEED_END)
        require_range("number", self.number, 0, SOURCES_END)
        object.__setattr__(self, "long_documents", _long(self.order, self.long_documents))

    @property
    def reads_documents(self) -> bool:
        """Whether its rows are pieces of documents."""
        return bool(self.order.LONG_DOCUMENTS)

    @property
    def seed_used(self) -> int:
        """The seed in the identity: 0 if the order ignores it."""
        return self.seed if self.order.USES_SEED else 0


def _long(order: Order, long_documents: str) -> str:
    """Return what an order does with long documents.  Raises: InvalidRequest."""
    known = order.LONG_DOCUMENTS
    if not known:
        if long_documents:
            problem = f"is set, but {order.NAME} does not read documents; omit it"
            raise InvalidRequest("long_documents", problem)
        return ""
    if long_documents and long_documents not in known:
        problem = f"{shortened(long_documents)!r} is not one of {', '.join(known)} ({order.NAME})"
        raise InvalidRequest("long_documents", problem)
    return long_documents or known[0]


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
    mixture: None for a stream of one dataset.  planes: kinds (planes.py), ascending.  redactions:
    ascending; a request has those that are in force.
    Raises: InvalidRequest, naming the field and its limit.
    """

    context_length: int
    sources: tuple[Source, ...]
    mixture: Mixture | None = None
    planes: tuple[int, ...] = ()
    redactions: Redactions = ()

    def __post_init__(self) -> None:
        """Check every range."""
        # The upper limit depends on the corpus.
        if not 1 <= self.context_length < _CONTEXT_LENGTH_END:
            are_pieces = all(source.reads_documents for source in self.sources)
            limit = "16777215" if are_pieces else "tokens of the longest file"
            raise InvalidRequest("context_length", f"{self.context_length} is not in [1, {limit})")
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
        require_ascending(self.redactions)
        for redaction in self.redactions:
            if redaction.source not in self.numbers:
                problem = f"{redaction.source} is not the number of a source of this stream"
                raise InvalidRequest("redactions.source", problem)

    @classmethod
    def of_dataset(
        cls,
        dataset: str,
        order: Order,
        seed: int,
        context_length: int,
        planes: Sequence[int] = (),
        long_documents: str = "",
        redactions: Redactions = (),
    ) -> StreamSpec:
        """Return the stream over one dataset: one source, no mixture."""
        source = Source(dataset, order, seed, long_documents=long_documents)
        return cls(context_length, (source,), planes=tuple(sorted(planes)), redactions=redactions)

    def parts(self, corpora: Sequence[Corpus]) -> StreamParts:
        """Return the parts of `identity` as plain values.  corpora: of each source."""
        redactions = tuple(
            RedactionValues(each.first_sample, each.source, each.list_hash.hex())
            for each in self.redactions
        )
        if self.mixture is None:
            ((fingerprint, pieces),) = corpora
            return StreamParts(
                self.order.NAME,
                self.source.seed_used,
                self.context_length,
                fingerprint.hex(),
                long_documents=self.source.long_documents,
                pieces=pieces.hex(),
                redactions=redactions,
            )
        return StreamParts(
            MIXTURE,
            self.mixture.seed,
            self.context_length,
            self.chain(corpora)[-1].hex(),
            tuple(
                SourceValues(
                    each.dataset,
                    each.order.NAME,
                    each.seed_used,
                    corpus.fingerprint.hex(),
                    each.long_documents,
                    corpus.pieces.hex(),
                )
                for each, corpus in zip(self.sources, corpora, strict=True)
            ),
            tuple(
                StageValues(each.first_sample, each.weights, each.origin, each.asked)
                for each in self.mixture.stages
            ),
            redactions=redactions,
        )

    def plain(self) -> dict[str, Any]:
        """Return plain values, the same in every process, that distinguish specifications while
        their corpora are unknown. Neither mixtures nor redactions are distinguished: their
        identities are compared.
        """
        of_dataset: tuple[object, ...] = ()
        if not self.mixture:
            of_dataset = (self.source.dataset, self.order.NAME, self.seed)
            of_dataset += (self.source.long_documents,) * self.reads_documents
        return {
            "context_length": self.context_length,
            "dataset": of_dataset,
            "planes": self.planes,
        }

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each source."""
        return tuple(source.number for source in self.sources)

    @property
    def reads_documents(self) -> bool:
        """Whether a source has rows of pieces of documents."""
        return any(source.reads_documents for source in self.sources)

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
        return 3 if self.redactions else 2 if self.mixture else 1

    def identity(self, corpora: Sequence[Corpus]) -> bytes:
        """Return the identity of this stream, the same everywhere, 32 bytes (identity.py); of the
        last stage of a mixture, and with all redactions.

        corpora: of each source.
        """
        return self.redacted(self.chain(corpora)[-1])

    def redacted(self, identity: bytes) -> bytes:
        """Return the identity of the same rows with all redactions of this stream.  identity: of
        the rows without them.
        """
        if not self.redactions:
            return identity
        return redacted_identity(
            identity, [(each.first_sample, each.source, each.list_hash) for each in self.redactions]
        )

    def chain(self, corpora: Sequence[Corpus]) -> list[bytes]:
        """Return the chain of identities of a mixture, 32 bytes each: what comes before the first
        stage, and then the identity of each stage, without redactions. A stream of one dataset is
        like a stage before which there is nothing.

        corpora: as for `identity`.
        """
        if self.mixture is None:
            (corpus,) = corpora
            alone = stream_identity(self.order, self.source.seed, self.context_length, *corpus)
            return [b"", alone]
        stages = self.mixture.stages
        chain = [stages[0].previous or self.start_identity]
        for stage in stages:
            parts = [
                SourceParts(
                    each.number,
                    corpus.fingerprint,
                    each.order.NAME,
                    each.seed_used,
                    base,
                    weight,
                    corpus.pieces,
                )
                for each, corpus, base, weight in zip(
                    self.sources, corpora, stage.bases, stage.weights, strict=True
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
        numbers = {source.number for source in sources}
        return replace(
            self,
            sources=sources,
            mixture=Mixture(self.mixture.seed, (alone,)),
            redactions=tuple(each for each in self.redactions if each.source in numbers),
        )

    def part_at(
        self, sample: int, of_stage: Callable[[int], StreamSpec] | None = None
    ) -> tuple[StreamSpec, int | None]:
        """Return the part of this stream that one request can ask for at a sample, and the sample
        where it ends, None if it does not: a stage alone, with the redactions in force.

        of_stage: returns a stage alone, by its place; by default without the identity before it.
        """
        spec, end = self, None
        if self.mixture is not None:
            place = self.mixture.stage_of(sample)
            spec, end = (of_stage or self.of_stage)(place), self.mixture.end_of(place)
        if spec.redactions:
            begin = end_of(spec.redactions, sample)
            end = min(filter(None, (begin, end)), default=None)
            spec = replace(spec, redactions=in_force(spec.redactions, sample))
        return spec, end
