"""Where documents begin in files whose format knows them: read from the index beside each file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ...runtime.threads.parallel import map_in_threads
from ..bytes import StoredShard
from ..door import open_file
from ..formats import Documents
from .numbers import Numbers

_OPENERS = 32
_ENTRIES_AT_ONCE = 1 << 20
"""Of indices that are read side by side: 8 MiB."""


class Part(NamedTuple):
    """Where documents begin in a part of a file.

    file: its index.  starts: int64[n], ascending, each in the part; there may be none.  end_token:
    where the part ends; it begins where the one before it ends.
    """

    file: int
    starts: Numbers
    end_token: int


def all_known(shards: Sequence[StoredShard]) -> list[Documents] | None:
    """Return the documents of each file; None if those of a file are unknown."""
    known = [shard.layout.documents for shard in shards]
    found = [documents for documents in known if documents is not None]
    return found if len(found) == len(known) else None


def count_max(known: Sequence[Documents]) -> int:
    """Return how many entries there are at most."""
    return sum(1 + (1 if one.pairs is None else 2) * one.count for one in known)


def known_parts(
    shards: Sequence[StoredShard], known: Sequence[Documents], stopped: Callable[[], bool]
) -> Iterator[Part]:
    """Yield where documents begin, of all files in order; documents without a token do not begin.

    Tokens that belong to no document are one: those before the first, between two, behind the last.
    stopped: whether to stop.  Raises: InvalidCorpus, also if an index has changed since it was
    checked.
    """
    for file, (shard, documents, blocks) in enumerate(
        zip(shards, known, _borders(known), strict=True)
    ):
        yield Part(file, np.zeros(1, dtype=np.int64), 0)
        token_count = shard.layout.token_count
        border, begun, found = 0, 0, 0
        for borders in blocks:
            if stopped():
                raise InvalidCorpus(shard.path, "was closed while it was being opened")
            found += borders.size
            steps = np.diff(borders, prepend=border)
            if steps.min(initial=0) < 0 or borders[-1] > token_count:
                problem = f"document ends have to ascend and be at most {token_count}"
                raise InvalidCorpus(documents.path, problem)
            border = int(borders[-1])
            if documents.pairs is not None:
                # Without documents that have no token: between two others they begin nothing.
                pairs = borders.reshape(-1, 2)
                borders = pairs[pairs[:, 0] < pairs[:, 1]].reshape(-1)
                steps = np.diff(borders, prepend=begun)
                begun = int(borders[-1]) if borders.size else begun
            yield Part(file, borders[(steps > 0) & (borders < token_count)], border)
        expected = documents.count if documents.pairs is None else 2 * documents.count
        if found != expected:
            problem = "changed while it was being opened; start again when it is complete"
            raise InvalidCorpus(documents.path, problem)
        yield Part(file, np.empty(0, dtype=np.int64), token_count)


def _borders(known: Sequence[Documents]) -> Iterator[Iterable[Numbers]]:
    """Yield the blocks of each index; small ones are read side by side, since each may be a round
    trip, and a large one block by block.
    """
    first = 0
    while first < len(known):
        count, end = known[first].count, first + 1
        while end < len(known) and count + known[end].count <= _ENTRIES_AT_ONCE:
            count, end = count + known[end].count, end + 1
        if end == first + 1:
            yield (known[first].pairs or known[first].ends)()
        else:
            yield from map_in_threads(_all_borders, known[first:end], _OPENERS, "tokenfeed-index")
        first = end


def _all_borders(documents: Documents) -> list[Numbers]:
    return list((documents.pairs or documents.ends)())


def index_facts(paths: Sequence[str]) -> list[list[object]]:
    """Return what changes when the index of a file is written to, of each one; many are opened at
    once, since each may be a round trip.

    Raises: InvalidCorpus if one is gone.
    """

    def facts(path: str) -> list[object]:
        with open_file(path) as file:
            return [file.name, file.size_bytes, file.modified_ns, *file.tags]

    return list(map_in_threads(facts, paths, _OPENERS, "tokenfeed-index"))
