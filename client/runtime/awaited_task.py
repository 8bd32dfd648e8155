"""Work in a thread whose result a consumer waits for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from .supervisor import Supervisor
from .threads import Outcome, start_thread

Result = TypeVar("Result")


class AwaitedTask(ABC, Generic[Result]):
    """Work with one result, which the supervisor cancels when it is not waited for any more."""

    thread_name = "tokenfeed-task"

    def __init__(self, supervisor: Supervisor) -> None:
        """Start nothing yet."""
        self._supervisor = supervisor
        self._outcome: Outcome[Result] = Outcome()
        self._abandoned = False
        self._begun = False
        self.ended = False

    @abstractmethod
    def _work(self) -> Result:
        """Return the result, in the thread.  Raises: an error for the consumer."""

    @abstractmethod
    def _check_wait(self) -> None:
        """Raise an error if the consumer should wait no longer; called often."""

    @abstractmethod
    def cancel(self) -> None:
        """Make the work end soon; for the supervisor."""

    def result(self) -> Result:
        """Do the work and return its result; for one waiter.  Raises: what the work or the check
        of the wait raises.
        """
        try:
            self._supervisor.add(self)
            start_thread(self._run, self.thread_name)
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
        return 0.0

    def _is_over(self) -> bool:
        return self._abandoned or self._supervisor.closed

    def _run(self) -> None:
        self._begun = True
        self._outcome.run(self._work)
        self.ended = True
        self._supervisor.wake()
