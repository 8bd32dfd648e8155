"""Where the documents of a file end: what indices beside token files say, checked and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import BadCorpus

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


def require_ascending(path: str, blocks: Iterable[Ends], last: int, *, all_of_it: bool) -> int:
    """Return how many ends there are.

    last: none may lie beyond it.  all_of_it: and one has to lie there.
    Raises: BadCorpus, naming path, if each is not at or after the one before, and within last.
    """
    count = end = 0
    for ends in blocks:
        if ends[0] < end or (ends[1:] < ends[:-1]).any() or ends[-1] > last:
            raise BadCorpus(path, f"documents do not end one after the other within {last}")
        count, end = count + ends.size, int(ends[-1])
    if all_of_it and end != last:
        raise BadCorpus(path, f"the last document ends at {end}, and there are {last}")
    return count
