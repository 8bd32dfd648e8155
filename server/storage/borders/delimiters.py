"""Where documents begin in files whose format knows nothing of them: at a token that separates
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ..formats import Stored
from ..narrowing import UINT32
from ..store import PIECE_BYTES, StoredShard
from .known import Part

END_OPTION = "--document-end-token"
START_OPTION = "--document-start-token"


@dataclass(frozen=True, slots=True)
class Delimiters:
    """Tokens that separate documents; None if there is none.

    end: the last token of each document.  start: the first one.  With both, a document begins
    behind each end and at each start.  are_general: they were given for several datasets, and are
    ignored where the format knows the documents.
    """

    end: int | None = None
    start: int | None = None
    are_general: bool = False

    @property
    def options(self) -> dict[str, int]:
        """The options that are set, with their tokens."""
        both = {END_OPTION: self.end, START_OPTION: self.start}
        return {option: token for option, token in both.items() if token is not None}

    def require_fit(
        self, shards: Sequence[StoredShard], stored: Stored, vocab_size: int | None
    ) -> None:
        """Raise InvalidCorpus unless the tokens can occur and no file knows its documents.

        stored: type of the tokens.  vocab_size: None if it is unknown.
        """
        for option, token in self.options.items():
            for shard in shards:
                if (documents := shard.layout.documents) is not None:
                    cure = f"omit {option}"
                    unknown = [one.path for one in shards if one.layout.documents is None]
                    if unknown:
                        cure = f"those of {unknown[0]} are not: serve them as two datasets"
                    problem = f"its documents are known from {documents.path}; {cure}"
                    raise InvalidCorpus(shard.path, problem)
            greatest = min(np.iinfo(stored).max, np.iinfo(UINT32).max)
            if not 0 <= token <= greatest:
                problem = f"has {stored.name} tokens, so {option} {token} is not in 0..{greatest}"
                raise InvalidCorpus(shards[0].path, problem)
            if vocab_size is not None and token >= vocab_size:
                problem = f"{option} {token} is not below --vocab-size {vocab_size}"
                raise InvalidCorpus(shards[0].path, problem)


def delimited_parts(
    shards: Sequence[StoredShard],
    delimiters: Delimiters,
    read: Callable[[int, int, int], bytes],
    stopped: Callable[[], bool],
) -> Iterator[Part]:
    """Read all tokens in order, and yield where documents begin: at the first token of each file,
    behind each end and at each start.

    read: `read` or `read_served` of the store.  stopped: whether to stop.
    Raises: what `read` raises; InvalidCorpus once stopped() is true.
    """
    for file, shard in enumerate(shards):
        stored, content_bytes = shard.layout.dtype, shard.layout.content_bytes
        begins_next = True
        for first_byte in range(0, content_bytes, PIECE_BYTES):
            if stopped():
                raise InvalidCorpus(shard.path, "was closed while its documents were searched")
            content = read(file, first_byte, min(PIECE_BYTES, content_bytes - first_byte))
            tokens = np.frombuffer(content, stored)
            begins = np.zeros(tokens.size + 1, dtype=np.bool_)
            begins[0] = begins_next
            if delimiters.end is not None:
                begins[1:] = tokens == stored.type(delimiters.end)
            if delimiters.start is not None:
                begins[:-1] |= tokens == stored.type(delimiters.start)
            begins_next = bool(begins[-1])
            first_token = first_byte // stored.itemsize
            starts = np.flatnonzero(begins[:-1]) + first_token
            yield Part(file, starts, first_token + tokens.size)
