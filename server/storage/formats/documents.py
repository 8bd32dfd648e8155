"""Where the documents of a file end: what indices beside token files say, checked and kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus

_LOG = logging.getLogger("tokenfeed.server")
_PROGRESS_SECONDS = 5.0

Ends = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Documents:
    """What a file is known to hold by whole documents.

    count: of them.  path: of the file that says so.  ends: reads it once more and yields where they
    end, exclusive, in tokens, ascending, in blocks.
    """

    count: int
    path: str
    ends: Callable[[], Iterator[Ends]]


def require_ascending(
    path: str, blocks: Iterable[Ends], last: int, *, first: int | None = None, all_of_it: bool
) -> int:
    """Return how many ends there are; says in the log how far it is.

    last: none may lie beyond it.  first: where the first one has to lie, None for anywhere.
    all_of_it: the last one has to lie at last.
    Raises: InvalidCorpus, naming path, if each is not at or after the one before, and within last.
    """
    count = end = 0
    said = time.monotonic()
    for ends in blocks:
        if first not in (None, int(ends[0])) and not count:
            raise InvalidCorpus(path, f"documents begin at {ends[0]}, not at {first}")
        if ends[0] < end or (ends[1:] < ends[:-1]).any() or ends[-1] > last:
            raise InvalidCorpus(path, f"documents do not end one after the other within {last}")
        if count > last:  # Of empty ones there could be any number.
            raise InvalidCorpus(path, f"has more than {count} documents, and there are {last}")
        count, end = count + ends.size, int(ends[-1])
        if time.monotonic() - said >= _PROGRESS_SECONDS:
            said = time.monotonic()
            _LOG.info("reading documents of file=%s done=%.1f%%", path, 100 * end / max(last, 1))
    if all_of_it and end != last:
        raise InvalidCorpus(path, f"the last document ends at {end}, and there are {last}")
    return count
