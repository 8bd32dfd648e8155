"""What a user asks a feed for, by the names of datasets -> the sources and stages of a stream.

What is kept here beside the stream changes no row of it: the options of sources that a later change
adds, the maximum size of the blocks of such a change, and max_epochs, which only ends the stream.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any

from tokenfeed.errors import InvalidRequest, NotFound
from tokenfeed.sampling import orders
from tokenfeed.stream.order import Order
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.stream.schedule import (
    Exhausted,
    first_exhausted,
    first_stage,
    planned_stage,
    scheduled,
)
from tokenfeed.stream.stage import (
    BLOCK_MAX,
    GROUP_BLOCKS_MAX,
    GROUP_BLOCKS_MIN,
    SEED_END,
    Redaction,
    Source,
    Stage,
)
from tokenfeed.stream.stream import Stream

from ...runtime.arguments import hash_digits, integer, optional_integer, shown, text
from ..lengths import Begin, Length
from .samples_per_block import proportions, samples_per_block

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same library, before it became a part of Python
    import tomli as tomllib

_LOG = logging.getLogger("tokenfeed.client")

_TOP_KEYS = ("order", "seed", "block", "weights", "stages", "sources", "redaction")
_STAGE_KEYS = ("first_sample", "first_tokens", "weights")
_SOURCE_KEYS = ("order", "seed", "max_epochs", "long")
_REDACTION_KEYS = ("dataset", "list", "first_sample", "first_tokens")

GROUP_TOKENS = 1 << 29
"""Tokens of the groups of all sources together: 1 GiB of uint16. Windows of one group are as far
apart as chance has it from 1,024 blocks on: docs/decisions/0022-blocks.md.
"""
_GROUP_TOKENS_MIN, _GROUP_TOKENS_MAX = 1 << 23, 1 << 39
"""16 and 2^20 blocks, the limits of a group."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a source may have of its own; None is that of the mixture.

    max_epochs: the stream ends before the source would begin another epoch; None is endless.  long:
    what its order does with documents longer than a row; with an order of its own, None is that
    order's default.
    """

    order: str | None = None
    seed: int | None = None
    max_epochs: int | None = None
    long: str | None = None


@dataclass(frozen=True, slots=True)
class MixtureStage:
    """Weights from a sample on.

    weights: samples of each source in a block, by name.  asked: integers in exactly the proportions
    that were asked for; equal to weights if these were given as integers.
    """

    begin: Begin
    weights: Mapping[str, int]
    asked: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MixtureRedaction:
    """A list of ranges of a dataset whose tokens are replaced from a sample on, and are no targets.

    list_hash: 32 bytes.
    """

    dataset: str
    list_hash: bytes
    begin: Begin


@dataclass(frozen=True, slots=True)
class Definition:
    """What a feed is asked for.

    stream: as the user asked for it, with a source for each dataset that the user named, also of
    weight 0. Redactions that are made during the run are added to it, with their datasets; other
    weights are not.  order, long_documents: for datasets that a change or a redaction during the
    run is the first to name.  is_mixture: whether the user wrote a mixture, even of one dataset.
    max_epochs: of some sources, by the names of their datasets; the stream ends before one of them
    would begin another epoch.  block: maximum number of samples in a block of later weights; None
    is that of `samples_per_block`.  group_tokens: as for `group_blocks`, of sources that a change
    is the first to give a weight.  lengths: context lengths behind that of the stream; where they
    begin depends on the corpora.  tokens_end: the last sample that a mixture has as first_tokens,
    which are counted at the context length of the stream; 0 if there is none.
    """

    stream: Stream
    order: str
    long_documents: str
    is_mixture: bool
    max_epochs: Mapping[str, int] = field(default_factory=dict)
    block: int | None = None
    group_tokens: int = GROUP_TOKENS
    lengths: tuple[Length, ...] = ()
    tokens_end: int = 0

    def with_sources(self, stream: Stream, weights: Mapping[str, int]) -> Stream:
        """Return a stream with a source for each of some datasets: those that it lacks are added
        with the options of this definition. Sources that had no weight yet get the groups of
        blocks that theirs give them.

        weights: samples of each of them in a block, by the name of the dataset; 0 for none.
        """
        own = {source.dataset: source for source in self.stream.sources}
        known = {source.dataset for source in stream.sources}
        sources = list(stream.sources)
        for name in weights:
            if name not in known:
                source = own.get(name) or Source(
                    name,
                    orders.latest(self.order),
                    self.stream.seed,
                    long_documents=self.long_documents,
                )
                sources.append(replace(source, number=len(sources)))
        begun = {share.source for stage in stream.stages for share in stage.shares}
        total = sum(weights.values())
        for number, source in enumerate(sources):
            if number not in begun and (weight := weights.get(source.dataset)):
                blocks = group_blocks(source.order, self.group_tokens, weight, total)
                sources[number] = replace(source, group_blocks=blocks)
        return replace(stream, sources=tuple(sources))

    def with_redaction(self, dataset: str, first_sample: int, list_hash: bytes) -> Definition:
        """Return this definition with a redaction; a dataset that it lacks becomes a source of it.

        dataset: whose tokens are replaced.  first_sample: from which on.  list_hash: 32 bytes.
        """
        stream = self.with_sources(self.stream, {dataset: 0})
        number = next(each.number for each in stream.sources if each.dataset == dataset)
        redactions = {*stream.redactions, Redaction(first_sample, number, list_hash)}
        return replace(self, stream=replace(stream, redactions=tuple(sorted(redactions))))

    def dataset_named(self, rest: Stream, value: str | None) -> str:
        """Return the name of the dataset that a user means.

        rest: the stream that has to have it.  value: as passed; None is the dataset of a feed
        without a mixture.
        Raises: InvalidRequest if the stream does not have it, or for None with a mixture, even of
        one dataset.
        """
        names = list(dict.fromkeys(source.dataset for source in rest.sources))
        if value is None and not self.is_mixture:
            return names[0]
        if value is None:
            raise InvalidRequest("dataset", f"is required with a mixture of {', '.join(names)}")
        if text("dataset", value) not in names:
            known = ", ".join(filter(None, names)) or "one without a name, so omit it"
            raise InvalidRequest("dataset", f"{shown(value)} is not in this stream, only {known}")
        return value


class Mixture:
    """A mixture of several datasets, its sources, in given proportions. The proportions can change
    at given samples (rows).

        Mixture({"web": 0.7, "code": 0.2, "math": 0.1})
        Mixture.load("mixture.toml")

    The samples of a mixture come in blocks, which have a fixed number of samples. Each source has a
    weight: the number of samples of each block that come from this source. Within a block, the
    sources alternate in an order that depends only on the seed, the stage and the sample index. A
    stage is the part of a run in which the weights stay the same. Each source continues its own
    order from block to block and from stage to stage: within an epoch, no row of a source is lost
    or repeated.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        *,
        stages: Sequence[Mapping[str, Any]] | None = None,
        sources: Mapping[str, Mapping[str, Any]] | None = None,
        order: str | None = None,
        seed: int | None = None,
        block: int | None = None,
        redactions: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Check all values; does no I/O.

        weights: the weight of each dataset, by its name. Integers are numbers of samples in a
        block. If one weight is not an integer, all weights are shares of a block of up to 1,000,000
        samples; the log names a share that cannot be kept within 1 %. A weight of 0 pauses a
        source.
        stages: is given instead of weights, as one mapping for each stage with its "weights" and
        "first_sample" or "first_tokens" (tokens of x, rounded up to a whole sample). The first
        stage begins at 0. A later stage begins at the first end of a block at or after its
        first_sample.
        sources: gives some datasets an "order", "seed", "max_epochs" and "long" of their own.
        order, seed: are the order and seed of the other sources, and the seed of the mixture; None
        takes those of the feed.
        block: is the maximum number of samples in a block, in [1, 2^20]. With small blocks a stage
        begins soon after its first_sample, but small shares are not possible.
        redactions: has one mapping for each redaction, with its "dataset", its "list" (64
        hexadecimal digits, as `tokenfeed redact` prints them), and "first_sample" or
        "first_tokens". From that sample on the tokens of the list are replaced, as `redact` of a
        feed does.
        Raises: InvalidRequest or NotFound (order), naming the value and its limit.
        """
        self.block = optional_integer("block", block, 1, BLOCK_MAX + 1)
        self.order = None if order is None else orders.latest(text("order", order)).NAME
        self.seed = optional_integer("seed", seed, 0, SEED_END)
        if (weights is None) == (stages is None):
            raise InvalidRequest("mixture", "has to have either weights or stages")
        if stages is None:
            stages = [{"first_sample": 0, "weights": weights}]
        elif isinstance(stages, str) or not isinstance(stages, Sequence) or not stages:
            raise InvalidRequest("stages", f"{shown(stages)} is not a list of stages")
        self.stages = tuple(
            self._stage("" if weights is not None else f"stages[{index}].", index, stage)
            for index, stage in enumerate(stages)
        )
        named = dict.fromkeys(name for stage in self.stages for name in stage.weights)
        self.sources: dict[str, SourceOptions] = dict.fromkeys(named, SourceOptions())
        for name, options in _mapping("sources", sources or {}).items():
            if name not in named:
                raise InvalidRequest(f"sources.{name}", "has no weight in any stage")
            self.sources[name] = _source_options(f"sources.{name}", options)
        self.redactions = self._redactions(redactions)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Mixture:
        """Read a mixture from a TOML file. The keys of the file are the arguments of the
        constructor; each table [[redaction]] is one element of redactions.

        Raises: InvalidRequest if the file cannot be read or a value is not valid; NotFound for an
        unknown order. The error names the file, the value and its limit.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise InvalidRequest(str(path), f"cannot be read: {error.strerror}") from None
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: bytes, name: str) -> Mixture:
        """Read a mixture from the content of a TOML file, as `load` does.  name: is the name of the
        file, which errors mention.

        Raises: InvalidRequest if it is no TOML or a value is not valid; NotFound for an unknown
        order.
        """
        try:
            values = tomllib.loads(content.decode())
        except ValueError as error:  # tomllib's error, or not UTF-8
            raise InvalidRequest(name, f"is not TOML: {error}") from None
        try:
            _require_keys("mixture", values, _TOP_KEYS)
            redactions = values.pop("redaction", ())
            return cls(**values, redactions=redactions)
        except (InvalidRequest, NotFound) as error:
            raise type(error)(error.subject, f"{error.problem} ({name})") from None

    def definition(
        self,
        context_length: int,
        order: str,
        seed: int,
        long_documents: str = "",
        group_tokens: int = GROUP_TOKENS,
    ) -> Definition:
        """Return the definition of the stream of a feed with this mixture.

        context_length: is the number of tokens of x in a row.
        order, seed, long_documents: are those of the feed, and are used where the mixture has none
        of its own; long_documents "" is the default of the order.
        group_tokens: is the number of tokens of a group of the order "blocks", of all sources.
        Raises: InvalidRequest if the first stage does not begin at 0, a stage is asked for at or
        before the begin of the stage before it, a source has max_epochs but an order without
        epochs, or long_documents does not fit the order.
        """
        own_order, own_seed = self.order or order, seed if self.seed is None else self.seed
        own_long = long_argument(own_order, long_documents or None)
        sources = tuple(
            self._source(number, name, own_order, own_seed, own_long, group_tokens)
            for number, name in enumerate(self.sources)
        )
        numbers = {source.dataset: source.number for source in sources}

        def sample_at(tokens: int) -> int:
            return -(-tokens // context_length)

        begins = [each.begin for each in self.stages] + [each.begin for each in self.redactions]
        redactions = sorted(
            Redaction(each.begin.sample(sample_at), numbers[each.dataset], each.list_hash)
            for each in self.redactions
        )
        return Definition(
            Stream(own_seed, sources, self._placed(context_length, numbers), tuple(redactions)),
            own_order,
            own_long,
            is_mixture=True,
            max_epochs=self.max_epochs,
            block=self.block,
            group_tokens=group_tokens,
            tokens_end=max(
                (each.sample(sample_at) for each in begins if each.first_tokens is not None),
                default=0,
            ),
        )

    def _source(
        self, number: int, name: str, order: str, seed: int, long: str, group_tokens: int
    ) -> Source:
        """Return a source.  order, seed, long: of the mixture.  The others: as for `definition`."""
        own = self.sources[name]
        named = orders.latest(own.order or order)
        if own.max_epochs is not None and not named.HAS_EPOCHS:
            problem = f"is {own.max_epochs}, but {named.NAME} is endless and has no epochs"
            raise InvalidRequest(f"sources.{name}.max_epochs", problem)
        # Its groups are those of the first weight that it has.
        weights = next((each.weights for each in self.stages if each.weights.get(name)), None)
        long_value = own.long or (None if own.order else long or None)
        return Source(
            name,
            named,
            seed if own.seed is None else own.seed,
            number,
            long_argument(named.NAME, long_value, f"sources.{name}.long"),
            group_blocks=0
            if weights is None
            else group_blocks(named, group_tokens, weights[name], sum(weights.values())),
        )

    def _placed(self, context_length: int, numbers: Mapping[str, int]) -> tuple[Stage, ...]:
        """Return the stages where they begin.  numbers: of the sources, by their datasets."""
        stages = [
            (
                stage.begin.sample(lambda tokens: -(-tokens // context_length)),
                {numbers[name]: weight for name, weight in stage.weights.items() if weight},
            )
            for stage in self.stages
        ]
        if begin := stages[0][0]:
            problem = f"{begin} is not 0, where the first stage has to begin"
            raise InvalidRequest("stages[0].first_sample", problem)
        found = scheduled(
            [first_stage(context_length, stages[0][1])],
            [planned_stage(context_length, *stage) for stage in stages[1:]],
        )
        for stage in found:
            if stage.asked != stage.first_sample:
                message = "stage begins at the end of a block stage=%d asked=%d sample=%d"
                _LOG.info(message, stage.index, stage.asked, stage.first_sample)
        return found

    @property
    def max_epochs(self) -> dict[str, int]:
        """The maximum number of epochs of each source that has one, by the name of its dataset."""
        return {
            name: options.max_epochs
            for name, options in self.sources.items()
            if options.max_epochs is not None
        }

    def _redactions(self, redactions: Any) -> tuple[MixtureRedaction, ...]:
        if isinstance(redactions, str) or not isinstance(redactions, Sequence):
            raise InvalidRequest("redaction", f"{shown(redactions)} is not a list of redactions")
        found: dict[tuple[str, bytes], MixtureRedaction] = {}
        for index, values in enumerate(redactions):
            one = self._redaction(f"redaction[{index}]", values)
            if (one.dataset, one.list_hash) in found:
                problem = f"{one.list_hash.hex()} is given twice for {one.dataset}"
                raise InvalidRequest(f"redaction[{index}].list", problem)
            found[one.dataset, one.list_hash] = one
        return tuple(found.values())

    def _redaction(self, name: str, values: Any) -> MixtureRedaction:
        values = _mapping(name, values)
        _require_keys(name, values, _REDACTION_KEYS)
        dataset = text(f"{name}.dataset", values.get("dataset"))
        if dataset not in self.sources:
            known = ", ".join(self.sources)
            problem = f"{shown(dataset)} has no weight in any stage, only {known}"
            raise InvalidRequest(f"{name}.dataset", problem)
        list_hash = read_list(f"{name}.list", values.get("list"))
        return MixtureRedaction(dataset, list_hash, _begin(name, f"{name}.", values))

    def _stage(self, prefix: str, index: int, values: Any) -> MixtureStage:
        values = _mapping(f"stages[{index}]", values)
        _require_keys(f"stages[{index}]", values, _STAGE_KEYS)
        is_first = index == 0 and not any(values.get(key) is not None for key in _STAGE_KEYS[:2])
        begin = Begin(0) if is_first else _begin(f"stages[{index}]", prefix, values)
        try:
            given = values.get("weights", {})
            weights = checked_weights(given, self.block)
            asked = weights if weights == given else proportions(given)
            return MixtureStage(begin, weights, asked)
        except InvalidRequest as error:
            raise InvalidRequest(f"{prefix}{error.subject}", error.problem) from None


def _begin(name: str, prefix: str, values: Mapping[str, Any]) -> Begin:
    """Return where something is asked for.  Raises: InvalidRequest."""
    found = {}
    for key in _STAGE_KEYS[:2]:
        found[key] = optional_integer(f"{prefix}{key}", values.get(key), 0, SAMPLE_END)
    if sum(value is not None for value in found.values()) != 1:
        raise InvalidRequest(name, "has to have either first_sample or first_tokens")
    return Begin(**found)


def group_tokens_argument(name: str, value: int) -> int:
    """Return a number of tokens that a user passed for `group_blocks`.  Raises: InvalidRequest."""
    return integer(name, value, _GROUP_TOKENS_MIN, _GROUP_TOKENS_MAX + 1)


def group_blocks(order: Order, group_tokens: int, weight: int = 1, block_size: int = 1) -> int:
    """Return how many blocks a source reads together: its share of a budget, rounded down to a
    power of two, but at least 16; 0 for an order without groups of blocks.

    group_tokens: of all sources together.  weight, block_size: samples of the source, and of all
    sources, in a block of the first stage in which the source has a weight.
    """
    if not order.BLOCK_TOKENS:
        return 0
    share = group_tokens * weight // (block_size * order.BLOCK_TOKENS)
    share = min(max(share, GROUP_BLOCKS_MIN), GROUP_BLOCKS_MAX)
    return 1 << (share.bit_length() - 1)


def dataset_stream(
    dataset: str,
    order: str,
    seed: int,
    context_length: int,
    long: str | None,
    group_tokens: int | None,
) -> Stream:
    """Return the stream over one dataset that a user asks for.

    dataset: is its name; "" is the only one of a server.  order: is the name of its order.
    seed, context_length: are those of the stream.  long: is what a user passed, as for
    `long_argument`.  group_tokens: is what a user passed; None is the default.
    Raises: InvalidRequest; NotFound for an unknown order.
    """
    named, long_documents = orders.latest(order), long_argument(order, long)
    given = GROUP_TOKENS if group_tokens is None else group_tokens
    blocks = group_blocks(named, group_tokens_argument("group_tokens", given))
    return Stream.of_dataset(
        dataset, named, seed, context_length, long_documents, group_blocks=blocks
    )


def long_argument(order: str, long: str | None, name: str = "long") -> str:
    """Return what an order does with documents longer than a row; "" for an order of windows.

    order: its name.  long: what a user passed; None is the default of the order.  name: of the
    argument, for errors.
    Raises: InvalidRequest if the order does not know that value; NotFound for an unknown order.
    """
    known = orders.latest(order).LONG_DOCUMENTS
    if long is None:
        return known[0] if known else ""
    if text(name, long) in known:
        return long
    choices = f"is not one of {', '.join(known)}" if known else "is for orders over documents"
    raise InvalidRequest(name, f"{shown(long)} {choices}; the order is {order}")


def checked_weights(weights: Any, block: int | None) -> dict[str, int]:
    """Check weights that a user passed, and return what `samples_per_block` makes of them.

    weights, block: as for `samples_per_block`.
    Raises: InvalidRequest if weights is no mapping from names, or empty; like `samples_per_block`.
    """
    if not _mapping("weights", weights):
        raise InvalidRequest("weights", "are missing; name at least one dataset")
    return samples_per_block(weights, block)


def lists_by_dataset(
    names: Sequence[str], given: str | Mapping[str, str] | None
) -> Mapping[str, str]:
    """Return the hash of a list of redactions for each dataset that has one, by its name.

    names: of the datasets; "" for the only one of a server.  given: by a user.
    Raises: InvalidRequest.
    """
    if given is None:
        return {}
    if isinstance(given, str) and len(names) == 1:
        return {names[0]: given}
    if not isinstance(given, Mapping):
        problem = f"{shown(given)} is not a dict of hashes by the names of datasets"
        raise InvalidRequest("redactions", problem)
    for name in given:
        if name not in names:
            known = ", ".join(names) or "which has no name here: pass the hash alone"
            problem = f"{shown(name)} is not one of the datasets, {known}"
            raise InvalidRequest("redactions", problem)
    return given


def read_list(name: str, value: str | None) -> bytes:
    """Return the 32 bytes of the hash of a redaction list that a user passed.

    name: of the argument, for errors.  value: 64 hexadecimal digits.
    Raises: InvalidRequest if value is None or something else.
    """
    found = hash_digits(name, value)
    if found is None:
        raise InvalidRequest(name, "is missing; pass what `tokenfeed redact` printed")
    return found


def _source_options(name: str, values: Any) -> SourceOptions:
    values = _mapping(name, values)
    _require_keys(name, values, _SOURCE_KEYS)
    order, long = values.get("order"), values.get("long")
    return SourceOptions(
        None if order is None else orders.latest(text(f"{name}.order", order)).NAME,
        optional_integer(f"{name}.seed", values.get("seed"), 0, SEED_END),
        optional_integer(f"{name}.max_epochs", values.get("max_epochs"), 1, SAMPLE_END),
        None if long is None else text(f"{name}.long", long),
    )


def _mapping(name: str, values: Any) -> Mapping[str, Any]:
    """Return a mapping from names unchanged.  Raises: InvalidRequest for other types."""
    if not isinstance(values, Mapping):
        raise InvalidRequest(name, f"{shown(values)} is not a mapping from names")
    for key in values:
        if not text(f"a key of {name}", key):
            raise InvalidRequest(name, "has an empty name")
    return values


def _require_keys(name: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in values:
        if key not in known:
            raise InvalidRequest(
                f"{name}.{shown(key)}", f"is unknown; there are {', '.join(known)}"
            )


def first_end(
    stream: Stream,
    max_epochs: Mapping[str, int],
    rows: Callable[[int], Mapping[int, int]],
    sample: int,
) -> Exhausted | None:
    """Return where the first source of a stream ends, None if none does.

    max_epochs: as for `limits_of`.  rows: returns those of an epoch of each source at a context
    length.  sample: the position.
    Raises: as `limits_of`; what rows raises.
    """
    ahead = stream.stages[stream.place_of(sample) :] if max_epochs else ()
    for length, same in groupby(ahead, lambda stage: stage.context_length):
        stages = list(same)
        begins = sample == 0 and stages[0] is stream.stages[0]
        limits = limits_of(stream, max_epochs, rows(length), begins=begins)
        end = first_exhausted(stages, limits, sample)
        end_sample = stream.end_of(stages[-1].index - stream.stages[0].index)
        if end is not None and (end_sample is None or end.sample < end_sample):
            return end
    return None


def limits_of(
    stream: Stream, max_epochs: Mapping[str, int], rows: Mapping[int, int], *, begins: bool
) -> dict[int, int]:
    """Return the samples that sources may contribute, by their numbers; others are endless.

    max_epochs: by the names of datasets.  rows: of an epoch of each source, by its number.  begins:
    whether the first block is still to come.
    Raises: InvalidRequest if a source has not even enough for that.
    """
    limits = {
        source.number: max_epochs[source.dataset] * rows[source.number]
        for source in stream.sources
        if source.dataset in max_epochs and source.number in rows
    }
    first = stream.stages[0]
    for number, weight in first.weights.items() if begins else ():
        if limits.get(number, weight) < weight:
            name = stream.sources[number].dataset
            raise InvalidRequest(
                f"sources.{name}.max_epochs",
                f"is {max_epochs[name]}, which are {limits[number]} samples, but the first block "
                f"of {first.block_size} samples needs {weight} of them; pass block= for smaller "
                "blocks, or a smaller weight",
            )
    return limits
