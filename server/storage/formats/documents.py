"""Where the documents of a token file end: reads and checks the index beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from tokenfeed.errors import InvalidCorpus

from ..layout import Ends

_LOG = logging.getLogger("tokenfeed.server")
_PROGRESS_SECONDS = 5.0


def require_ascending(
    path: str, blocks: Iterable[Ends], last: int, *, first: int | None = None, all_of_it: bool
) -> int:
    """Return how many ends there are; logs progress.

    last: the maximum of all ends.  first: what the first end has to be, None for anything.
    all_of_it: whether the last end has to be `last`.
    Raises: InvalidCorpus, naming path, if an end is below the one before it or above `last`.
    """
    count = end = 0
    logged_at = time.monotonic()
    for ends in blocks:
        if first not in (None, int(ends[0])) and not count:
            raise InvalidCorpus(path, f"the first document begins at {ends[0]}, not at {first}")
        if ends[0] < end or (ends[1:] < ends[:-1]).any() or ends[-1] > last:
            raise InvalidCorpus(path, f"document ends have to ascend and be at most {last}")
        if count > last:  # Empty documents alone would make this unlimited.
            raise InvalidCorpus(path, f"has more than {count} documents; the limit is {last}")
        count, end = count + ends.size, int(ends[-1])
        if time.monotonic() - logged_at >= _PROGRESS_SECONDS:
            logged_at = time.monotonic()
            _LOG.info("reading documents file=%s done=%.1f%%", path, 100 * end / max(last, 1))
    if all_of_it and end != last:
        problem = f"the last document ends at {end}, not at {last}"
        raise InvalidCorpus(path, f"{problem}; the index or the tokens may be truncated")
    return count
