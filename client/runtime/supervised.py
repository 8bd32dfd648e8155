"""What a feed reads from: in use by one process, until it is closed or the feed is gone."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from tokenfeed.errors import InvalidRequest

from .supervisor import Supervisor


class Supervised:
    """Has a supervisor for its tasks. A fork's copy of it can only be let go of."""

    def __init__(self) -> None:
        """Begin unused; `_supervise` has to follow."""
        self._process = 0
        self._owner: weakref.ref[object] | None = None

    def _supervise(self, close_resources: Callable[[], None]) -> None:
        """Use a new supervisor.  close_resources: called in its thread, after all tasks."""
        self._supervisor = Supervisor(close_resources)
        if self._owner is not None and (owner := self._owner()) is not None:
            self._supervisor.end_with(owner)

    def end_with(self, owner: object) -> None:
        """Close this when an object is garbage-collected."""
        self._owner = weakref.ref(owner)
        self._supervisor.end_with(owner)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._supervisor.closed

    @property
    def forked(self) -> bool:
        """Whether this is a fork's copy of one that was in use: its connections and threads exist
        only in the parent.
        """
        return self._process not in (0, os.getpid())

    def begin_use(self) -> Supervisor:
        """Mark this as used by this process, and return its supervisor."""
        self._process = os.getpid()
        return self._supervisor

    def require_own_process(self) -> None:
        """Raise InvalidRequest in a fork's copy of one that was in use."""
        if self.forked:
            raise InvalidRequest(
                "feed",
                f"was started in process {self._process} and cannot be used in its fork "
                f"{os.getpid()}; create it in the process that uses it",
            )

    def close(self) -> None:
        """End all tasks, and release everything. May be called twice, from any thread and by a
        signal handler.
        """
        if self.forked:
            self._supervisor.closed = True
        else:
            self._supervisor.close()
