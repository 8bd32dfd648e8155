"""What a stream is: one value from which rows, identity, request and saved state follow.

A stream reads sources, in stages. A stage says how long rows are, and which share of the samples
each source has, from a sample on. Whatever makes later rows another function of the sample begins a
stage: other weights, another context length, another corpus, order or seed. Redactions replace
tokens, and begin none. A stream over one dataset begins with one stage, of one source with weight
1.

Planes, positions and batch sizes are no part of a stream: they say which rows to send, and what
with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from ..errors import InvalidRequest
from .identity import redacted_identity, stage_identity
from .order import Order
from .position import require_range
from .stage import (
    FIRST_PREVIOUS,
    MIXTURE,
    SEED_END,
    Corpus,
    Redaction,
    Redactions,
    Share,
    Source,
    Stage,
    require_ascending,
)


@dataclass(frozen=True, slots=True)
class Stream:
    """What is read, as one value. Always valid once constructed.

    A stream is *known* once its sources have their corpora and its stages their `previous`: see
    `known`. Before that it has no identity.
    seed: permutes the samples of blocks of more than one, in [0, 2^64).  sources: by ascending
    number; at least those with a share.  stages: at least one, with ascending first samples and
    consecutive indices; the first index is above 0 if earlier stages were dropped.  redactions: by
    ascending first sample, source and list hash, each once.
    Raises: InvalidRequest, naming the field and the problem.
    """

    seed: int
    sources: tuple[Source, ...]
    stages: tuple[Stage, ...]
    redactions: Redactions = ()

    def __post_init__(self) -> None:
        """Check what its parts have in common."""
        require_range("seed", self.seed, 0, SEED_END)
        if not self.sources or not self.stages:
            raise InvalidRequest("stream", "has to have a source and a stage")
        require_ascending("sources", [source.number for source in self.sources])
        for one, following in pairwise(self.stages):
            if one.first_sample >= following.first_sample:
                problem = f"first_sample {following.first_sample} is not above {one.first_sample}"
                raise InvalidRequest("stages", f"{problem}, the one before it")
            if one.index + 1 != following.index:
                problem = f"index {following.index} does not follow {one.index}"
                raise InvalidRequest("stages", problem)
        numbers = {source.number for source in self.sources}
        for stage in self.stages:
            for share in stage.shares:
                if share.source not in numbers:
                    problem = f"{share.source} is not the number of a source of this stream"
                    raise InvalidRequest("share.source", problem)
        for source in self.sources:
            if source.order.BLOCK_TOKENS:
                _require_divides(self.stages, source)
        _require_redactions(self.redactions)
        for redaction in self.redactions:
            if redaction.source not in numbers:
                problem = f"{redaction.source} is not the number of a source of this stream"
                raise InvalidRequest("redactions.source", problem)

    @classmethod
    def of_dataset(
        cls,
        dataset: str,
        order: Order,
        seed: int,
        context_length: int,
        long_documents: str = "",
        redactions: Redactions = (),
        group_blocks: int = 0,
    ) -> Stream:
        """Return the stream over one dataset: source 0 with weight 1, in one stage from sample 0
        on.

        dataset, order, long_documents, group_blocks: as for Source.  seed: of the source and of
        the stream.  context_length: T, at least 1.  redactions: of source 0, as for Stream.
        Raises: InvalidRequest, naming the field and its limit.
        """
        source = Source(
            dataset, order, seed, long_documents=long_documents, group_blocks=group_blocks
        )
        stage = Stage(0, 0, context_length, (Share(0, 1, 0),), FIRST_PREVIOUS)
        return cls(seed, (source,), (stage,), redactions)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of each source."""
        return tuple(source.number for source in self.sources)

    @property
    def source(self) -> Source:
        """The source of a stream that has one.  Raises: ValueError if there are several."""
        (source,) = self.sources
        return source

    @property
    def stage(self) -> Stage:
        """The stage of a stream that has one, such as `at` returns.  Raises: ValueError if there
        are several.
        """
        (stage,) = self.stages
        return stage

    @property
    def is_plain(self) -> bool:
        """Whether all stages have blocks of one sample: one source at a time, in its own order."""
        return all(stage.is_plain for stage in self.stages)

    @property
    def reads_documents(self) -> bool:
        """Whether a source has rows of pieces of documents."""
        return any(source.reads_documents for source in self.sources)

    @property
    def order_name(self) -> str:
        """The name of the order of the samples, for people: that of the only source if the stream
        is plain, else MIXTURE.
        """
        is_one = self.is_plain and len(self.sources) == 1
        return self.sources[0].order.NAME if is_one else MIXTURE

    @property
    def context_length(self) -> int:
        """The context length of the last stage."""
        return self.stages[-1].context_length

    @property
    def row_tokens(self) -> int:
        """Tokens of a row of the last stage: one more than its context length."""
        return self.context_length + 1

    def place_of(self, sample: int) -> int:
        """Return which of `stages` a sample belongs to: an index of this tuple, not Stage.index. It
        is 0 for a sample before the first stage.
        """
        at = bisect_right(self.stages, sample, key=lambda stage: stage.first_sample)
        return max(at - 1, 0)

    def end_of(self, place: int) -> int | None:
        """Return the first sample behind a stage; None for the last stage.  place: index of the
        stage in `stages`, as from `place_of`.
        """
        following = self.stages[place + 1 : place + 2]
        return following[0].first_sample if following else None

    def sample_at(self, tokens: int) -> int:
        """Return the sample before which there are that many tokens of x, rounded up to a whole
        one.
        """
        begin = sample = 0
        for place, stage in enumerate(self.stages):
            sample, end = begin - -tokens // stage.context_length, self.end_of(place)
            if end is None or sample <= end:
                break
            tokens -= (end - begin) * stage.context_length
            begin = end
        return sample

    def tokens_before(self, sample: int) -> int:
        """Return how many tokens of x there are before a sample."""
        tokens = begin = 0
        for place, stage in enumerate(self.stages):
            end = min(sample, self.end_of(place) or sample)
            tokens += max(0, end - begin) * stage.context_length
            begin = end
        return tokens

    def at(self, sample: int) -> tuple[Stream, int | None]:
        """Return the part of the stream that one request can ask for at a sample, and the sample
        where that part ends.

        The part has the stage of the sample alone, its sources that do not pause, and those of
        their redactions that are in force. It ends where the next stage begins, or the next
        redaction of these sources; None if there is neither.
        """
        place = self.place_of(sample)
        end, stage = self.end_of(place), self.stages[place]
        numbers = {share.source for share in stage.active}
        own = [each for each in self.redactions if each.source in numbers]
        begin = next((each.first_sample for each in own if each.first_sample > sample), None)
        in_force = tuple(each for each in own if each.first_sample <= sample)
        alone = _alone(self.seed, self.sources, stage, in_force)
        return alone, min((each for each in (begin, end) if each is not None), default=None)

    def rest(self, sample: int) -> Stream:
        """Return the part of the stream that rows from a sample on depend on: the stage of the
        sample and all later ones, the sources with a weight above 0 in them, and all redactions of
        these sources.
        """
        stages = self.stages[self.place_of(sample) :]
        numbers = {number for stage in stages for number in stage.weights}
        return Stream(
            self.seed,
            tuple(each for each in self.sources if each.number in numbers),
            tuple(
                replace(stage, shares=tuple(s for s in stage.shares if s.source in numbers))
                for stage in stages
            ),
            tuple(each for each in self.redactions if each.source in numbers),
        )

    def readings(self, sample: int) -> Iterator[tuple[Source, int]]:
        """Yield each source that rows from a sample on come from, with the context length, stage by
        stage.
        """
        by_number = {source.number: source for source in self.sources}
        for stage in self.stages[self.place_of(sample) :]:
            for number in stage.weights:
                yield by_number[number], stage.context_length

    def known(self, corpora: Mapping[int, Corpus]) -> Stream:
        """Return the stream with the corpora of its sources, and with `previous` in every stage. A
        `previous` that is set already is kept.

        corpora: by the numbers of the sources; a source that is missing keeps its corpus, which has
        to be set. If earlier stages were dropped, the first stage has to have its `previous`.
        """
        sources = tuple(
            source
            if (corpus := corpora.get(source.number, source.corpus)) == source.corpus
            else replace(source, corpus=corpus)
            for source in self.sources
        )
        stages: list[Stage] = []
        for stage in self.stages:
            if not stage.previous:
                assert stages or not stage.index, "the identity before the first stage is unknown"
                before = _hash_of(self.seed, stages[-1], sources) if stages else FIRST_PREVIOUS
                stage = replace(stage, previous=before)
            stages.append(stage)
        return replace(self, sources=sources, stages=tuple(stages))

    def identity(self, sample: int) -> bytes:
        """Return the identity of the row of a sample, 32 bytes: a hash of its stage and of the
        redactions in force there. It is the same on every server, and for all samples of the stage
        at which the same redactions are in force. The stream has to be known.
        """
        stage = self.stages[self.place_of(sample)]
        found = _hash_of(self.seed, stage, self.sources)
        numbers = {share.source for share in stage.active}
        redactions = [
            (each.first_sample, each.source, each.list_hash)
            for each in self.redactions
            if each.first_sample <= sample and each.source in numbers
        ]
        return redacted_identity(found, redactions) if redactions else found

    def with_stages(self, stages: Iterable[Stage]) -> Stream:
        """Return the stream with other stages."""
        return replace(self, stages=tuple(stages))


@lru_cache(64)
def _alone(seed: int, sources: tuple[Source, ...], stage: Stage, redactions: Redactions) -> Stream:
    """Return one stage alone; the calls of a stream have the same one."""
    numbers = set(stage.weights)
    own = tuple(source for source in sources if source.number in numbers)
    own_seed = 0 if stage.is_plain else seed
    return Stream(own_seed, own, (replace(stage, shares=stage.active),), redactions)


@lru_cache(256)
def _hash_of(seed: int, stage: Stage, sources: tuple[Source, ...]) -> bytes:
    """Return the identity of a stage without redactions."""
    return stage_identity(seed, stage, {source.number: source for source in sources})


def _require_divides(stages: Sequence[Stage], source: Source) -> None:
    """Raise InvalidRequest if a source is read at a context length that does not divide its
    blocks.
    """
    size = source.order.BLOCK_TOKENS
    for stage in stages:
        if size % stage.context_length and source.number in stage.weights:
            problem = f"{stage.context_length} does not divide {size}, the tokens of a block of"
            cure = f"use a power of two of up to {size}, or another order"
            raise InvalidRequest("context_length", f"{problem} {source.order.NAME}; {cure}")


def _require_redactions(redactions: Sequence[Redaction]) -> None:
    """Raise InvalidRequest unless they ascend by first sample, source and list, each once."""
    for one, following in pairwise(redactions):
        if one >= following:
            problem = (
                f"list {following.list_hash.hex()} of source {following.source} from sample "
                f"{following.first_sample} on follows list {one.list_hash.hex()} of source "
                f"{one.source} from sample {one.first_sample} on; they must ascend, each once"
            )
            raise InvalidRequest("redactions", problem)
