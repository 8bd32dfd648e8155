"""Work in a thread whose result a consumer waits for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from .supervisor import Supervisor
from .threads import Outcome, start_thread

Result = TypeVar("Result")


class AwaitedTask(Generic[Result]):
    """Work with one result, which the supervisor cancels when it is not waited for any more."""

    def __init__(
        self,
        supervisor: Supervisor,
        thread_name: str,
        work: Callable[[Callable[[], bool]], Result],
        *,
        check_wait: Callable[[], None],
        cancel: Callable[[], None] | None = None,
    ) -> None:
        """Start nothing yet.

        work: returns the result, in the thread; is given what tells whether it is over, and raises
        an error for the consumer.  check_wait: raises an error if the consumer should wait no
        longer; called often.  cancel: makes the work end soon, for the supervisor; None leaves it
        to end by itself.
        """
        self._supervisor = supervisor
        self._thread_name = thread_name
        self._work = work
        self._check_wait = check_wait
        self._cancel = cancel
        self._outcome: Outcome[Result] = Outcome()
        self._abandoned = False
        self._begun = False
        self.ended = False

    def result(self) -> Result:
        """Do the work and return its result; for one waiter.  Raises: what the work or the check
        of the wait raises.
        """
        try:
            self._supervisor.add(self)
            start_thread(self._run, self._thread_name)
            return self._outcome.wait(self._check_wait)
        finally:
            self._abandoned = True
            self._supervisor.wake()

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: when the result is not waited for; for the supervisor."""
        if not self._is_over():
            return math.inf
        if not self._begun:
            self.ended = True  # its thread never ran, or will end at once
        return math.inf if self._cancel is None else 0.0

    def cancel(self) -> None:
        """Make the work end soon; for the supervisor."""
        if self._cancel is not None:
            self._cancel()

    def _is_over(self) -> bool:
        return self._abandoned or self._supervisor.closed

    def _run(self) -> None:
        self._begun = True
        self._outcome.run(lambda: self._work(self._is_over))
        self.ended = True
        self._supervisor.wake()
