"""Changes of what a running feed reads: on all of its ranks, or on none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tokenfeed.errors import InvalidRequest

from ..ranks.agreement import RankAgreement
from .feed_stream import FeedStream

Changed = tuple[FeedStream, int]
"""A stream, and the sample from which on a change of it is in force."""


def change_together(
    stream: Callable[[], FeedStream],
    change: Callable[[], Changed],
    *,
    name: str,
    at_sample: int | None,
    agreement: RankAgreement | None,
    install: Callable[[FeedStream], None],
) -> Changed:
    """Change a stream, and wait until all ranks of a process group have done the same.

    stream: returns that of the feed.  change: returns the changed one, or the same.  name: of what
    is changed.  at_sample: as a user passed it; required with several ranks.  agreement: of the
    ranks, if they compare.  install: is called with the changed stream if all ranks go on, also if
    this one is interrupted meanwhile.
    Raises: InvalidRequest; what change raises; like RankAgreement.await_all_ranks.
    """
    try:
        if at_sample is None and stream().request.position.world_size > 1:
            raise InvalidRequest("at_sample", "is required with several ranks")
        changed, begin = change()
        ranks_compare = None if agreement is None else changed.compared()
    except BaseException as error:
        if agreement is not None:
            agreement.refuse(str(error) or repr(error))
        raise
    if agreement is None:
        install(changed)
        return changed, begin
    before = stream()
    try:
        agreement.await_all_ranks(
            name,
            ranks_compare,
            agreed=partial(install, changed),
            is_over=lambda: before.dataset.closed,
        )
    except BaseException:
        changed.close_unless(stream())  # which may be the changed one
        raise
    return changed, begin
