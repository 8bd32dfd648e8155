"""How long to go on asking a server that is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from tokenfeed.errors import ServerAway, Unreachable

from .channel import final_error, retry_after_seconds

_LOG = logging.getLogger("tokenfeed.client")

_BACKOFF_SECONDS_FIRST = 0.1
_BACKOFF_SECONDS_MAX = 2.0
_PAUSE_SECONDS_MAX = 30.0
_LOG_AGAIN_SECONDS = 30.0

Result = TypeVar("Result")


class Retry:
    """Patience with one server, up to a deadline that begins anew with each sign of life."""

    def __init__(self, target: str, deadline_seconds: float | None) -> None:
        """Be patient for so many seconds; None is for ever."""
        self._target = target
        self._deadline_seconds = deadline_seconds
        self._logged = float("-inf")
        self.alive()

    def alive(self) -> None:
        """Begin anew: the server has answered."""
        self._away_since: float | None = None
        self._pause_seconds = _BACKOFF_SECONDS_FIRST

    def until_done(self, attempt: Callable[[], Result], pause: Callable[[float], object]) -> Result:
        """Return what attempt returns, trying again whenever asking again may help.

        pause: waits for so many seconds, or less.  Raises: what no further attempt would heal;
        Unreachable past the deadline.
        """
        while True:
            try:
                return attempt()
            except grpc.RpcError as error:
                if final := final_error(error):
                    raise final from None
                reason = f"{error.code().name}: {error.details()}"
                asked_seconds = retry_after_seconds(error)
            except ServerAway as error:
                reason, asked_seconds = str(error), None
            pause(self._next_pause(reason, asked_seconds))

    def _next_pause(self, reason: str, asked_seconds: float | None) -> float:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away_seconds = now - self._away_since
        if self._deadline_seconds is not None and away_seconds >= self._deadline_seconds:
            raise Unreachable(
                self._target,
                f"no answer for {away_seconds:.0f} s ({reason}). "
                "Is the server up, and the address right?",
            )
        if now - self._logged >= _LOG_AGAIN_SECONDS:
            self._logged = now
            _LOG.warning("waiting for server target=%s reason=%s", self._target, reason)
        pause_seconds = self._pause_seconds if asked_seconds is None else asked_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _BACKOFF_SECONDS_MAX)
        return min(pause_seconds, _PAUSE_SECONDS_MAX)
