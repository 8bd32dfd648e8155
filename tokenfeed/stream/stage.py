"""What a stream is made of: sources, stages in which they have shares, and redactions.

The samples of a stage come in blocks. Each block has of every source as many samples as its weight
says, permuted. Each source counts its own samples from 0, whatever comes between them.

Values are integers and hashes, and the names by which servers find datasets: no file, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ..errors import InvalidRequest, SamplesExhausted, shortened
from .order import Order
from .position import SAMPLE_END, require_range

MIXTURE = "mixture-1"
"""Name of the order of blocks of more than one sample; sampling/mixture_v1.py is its algorithm."""
BLOCK_MAX = 1 << 20
"""Maximum number of samples in a block: the sum of the weights of a stage."""
SEED_END = 1 << 64
STAGE_END = SOURCES_END = 1 << 32
HASH_BYTES = 32
FIRST_PREVIOUS = bytes(HASH_BYTES)
"""What the identity of stage 0 has in place of a stage before it."""
DEFINED, CHANGED, RESUMED, LENGTH = 0, 1, 2, 4
"""Bits that say where a stage comes from: none, the feed's definition; CHANGED, a change while the
feed ran; RESUMED, a feed of another definition that continued with this stage. Both may be set.
LENGTH says what changes: the context length, and the weights are those of the stage before it. A
stage without this bit has the context length of the stage before it.
"""
FACTS: dict[str, type] = {"order": str, "seed": int}
"""Fields of a source that decide at which place of its corpus each of its samples is, by their
names in the contract -> their types there. Identity, request, state and history take them from
here. Of an order with groups, group_blocks is one more.
"""
GROUP_BLOCKS, GROUP_BLOCKS_MIN, GROUP_BLOCKS_MAX = 1 << 10, 1 << 4, 1 << 20
"""Blocks of a group of an order with groups: the default, and the range. A fixed part of the
contract.
"""
_CONTEXT_LENGTH_END = 1 << 64


def require_ascending(name: str, numbers: Sequence[int]) -> None:
    """Raise InvalidRequest, naming the field, unless numbers of sources ascend, each once."""
    # One pair is named: a list of thousands would not fit into a refusal.
    for one, following in pairwise(numbers):
        if one >= following:
            problem = f"number {following} follows {one}; numbers must ascend"
            raise InvalidRequest(name, problem)


class Corpus(NamedTuple):
    """What identifies the rows of a dataset, as a server describes it.

    fingerprint: of the corpus (identity.py), 32 bytes.  pieces: for an order over documents,
    (context length, hash of the pieces) of each context length that is known, ascending; else
    empty.
    """

    fingerprint: bytes
    pieces: tuple[tuple[int, bytes], ...] = ()

    def pieces_at(self, context_length: int) -> bytes:
        """Return the hash of the pieces at a context length; b"" if it is not known."""
        return dict(self.pieces).get(context_length, b"")


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset of a stream, and the order of its rows. Always valid once constructed.

    dataset: its name, only for the lookup; "" is the only dataset of a server.  seed: in [0, 2^64);
    0 if the order ignores it.  number: the same in all stages, in [0, 2^32).  long_documents: what
    the order does with documents longer than a row, one of order.LONG_DOCUMENTS; "" stands for the
    default, and is the only value for windows.  corpus: None until a server has described it.
    group_blocks: blocks of a group, a power of two in [2^4, 2^20]; 0 stands for the default, 1024,
    and is the only value for an order without groups. It is chosen when the source first gets a
    weight, and never changes.
    Raises: InvalidRequest, naming the field and its limit.
    """

    dataset: str
    order: Order
    seed: int
    number: int = 0
    long_documents: str = ""
    corpus: Corpus | None = None
    group_blocks: int = 0

    def __post_init__(self) -> None:
        """Check the values, and set the defaults."""
        require_range("seed", self.seed, 0, SEED_END)
        require_range("number", self.number, 0, SOURCES_END)
        if not self.order.USES_SEED:
            object.__setattr__(self, "seed", 0)
        object.__setattr__(self, "long_documents", _long(self.order, self.long_documents))
        object.__setattr__(self, "group_blocks", _group_blocks(self.order, self.group_blocks))

    @property
    def facts(self) -> dict[str, Any]:
        """The values of FACTS; of an order, its name. Of an order with groups also group_blocks."""
        found = {name: getattr(self, name) for name in FACTS} | {"order": self.order.NAME}
        return found | {"group_blocks": self.group_blocks} if self.group_blocks else found

    @property
    def reads_documents(self) -> bool:
        """Whether its rows are pieces of documents."""
        return bool(self.order.LONG_DOCUMENTS)


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


def _group_blocks(order: Order, group_blocks: int) -> int:
    """Return how many blocks a group has, 0 without groups.  Raises: InvalidRequest."""
    if not order.BLOCK_TOKENS:
        if group_blocks:
            problem = f"is {group_blocks}, but {order.NAME} has no groups of blocks; omit it"
            raise InvalidRequest("group_blocks", problem)
        return 0
    found = group_blocks or GROUP_BLOCKS
    if not GROUP_BLOCKS_MIN <= found <= GROUP_BLOCKS_MAX or found & (found - 1):
        limits = f"[{GROUP_BLOCKS_MIN}, {GROUP_BLOCKS_MAX}]"
        raise InvalidRequest("group_blocks", f"{found} is not a power of two in {limits}")
    return found


class Share(NamedTuple):
    """The part of one source in a stage.

    source: number of the source.  weight: its samples in each block, in [0, 2^20]; 0 pauses it.
    base: the first (lowest) of its own samples in the stage, in [0, 2^63).
    """

    source: int
    weight: int
    base: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The length of rows and the shares of the sources from a sample on. Always valid once
    constructed.

    index: in the stream, in [0, 2^32).  first_sample: where the stage begins, in [0, 2^63).
    context_length: T, at least 1; a row has T + 1 tokens.  shares: by ascending number of the
    source; their weights have a sum in [1, 2^20].  previous: the identity of the stage before it,
    32 bytes, FIRST_PREVIOUS for stage 0; b"" while it is not known.

    On the following no row depends.  asked: the sample that the stage was asked for at.  origin:
    who asked for what: bits of DEFINED, CHANGED, RESUMED and LENGTH.  defined: (number of a source,
    weight) of the last stage that a definition, and no change, has made, if a saved state has
    dropped that stage; else empty. A feed that loads the state compares its own definition with
    these weights.
    Raises: InvalidRequest or SamplesExhausted, naming the field and its limit.
    """

    index: int
    first_sample: int
    context_length: int
    shares: tuple[Share, ...]
    previous: bytes = b""
    asked: int = field(default=0, compare=False)
    origin: int = field(default=DEFINED, compare=False)
    defined: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Check every range."""
        require_range("stage.index", self.index, 0, STAGE_END)
        if not 0 <= self.first_sample < SAMPLE_END:
            raise SamplesExhausted("stage.first_sample", f"{self.first_sample} is not in [0, 2^63)")
        # The upper limit depends on the corpus.
        if not 1 <= self.context_length < _CONTEXT_LENGTH_END:
            problem = f"{self.context_length} is not in [1, tokens of the longest file)"
            raise InvalidRequest("context_length", problem)
        if self.previous and len(self.previous) != HASH_BYTES:
            problem = f"has {len(self.previous)} bytes; it has to have {HASH_BYTES}"
            raise InvalidRequest("previous_identity", problem)
        for source, weight, base in self.shares:
            require_range("number", source, 0, SOURCES_END)
            require_range("weight", weight, 0, BLOCK_MAX + 1)
            if not 0 <= base < SAMPLE_END:
                raise SamplesExhausted("base", f"{base} is not in [0, 2^63)")
        if not 1 <= self.block_size <= BLOCK_MAX:
            problem = f"the sum of all sources, {self.block_size}, is not in [1, {BLOCK_MAX}]"
            raise InvalidRequest("weight", problem)
        require_ascending("stage.shares", [share.source for share in self.shares])

    @property
    def block_size(self) -> int:
        """Samples of a block."""
        return sum(share.weight for share in self.shares)

    @property
    def is_plain(self) -> bool:
        """Whether blocks have one sample, so that nothing is permuted within them."""
        return self.block_size == 1

    @property
    def is_change(self) -> bool:
        """Whether a change while a feed ran, and no definition, has made it."""
        return self.origin & ~LENGTH == CHANGED

    @property
    def weights(self) -> dict[int, int]:
        """Number of a source -> its weight, for all sources that do not pause."""
        return {share.source: share.weight for share in self.shares if share.weight}

    @property
    def active(self) -> tuple[Share, ...]:
        """The shares of the sources that are not paused."""
        return tuple(share for share in self.shares if share.weight)

    def blocks_before(self, sample: int) -> int:
        """Return how many blocks of the stage begin before a sample.  sample: at least
        first_sample.
        """
        return -(-(sample - self.first_sample) // self.block_size)


@dataclass(frozen=True, slots=True, order=True)
class Redaction:
    """From a sample on, the tokens of a list of ranges of a source are replaced, and are no
    targets. No row moves, so it is no stage. Always valid once constructed.

    first_sample: from which on it is in force, in [0, 2^63).  source: number of the source.
    list_hash: of the list of ranges, 32 bytes.
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
"""Of a stream: ascending, each once. Two lists of a source may come into force together."""
