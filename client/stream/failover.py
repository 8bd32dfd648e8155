"""Which server to ask next, after what pause, and when to give up.

A tour asks each server once. Whoever sends a frame begins it anew; after one that brought nothing
there is a pause, and more patience with each server.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from tokenfeed.errors import Busy, ServerUnavailable, TokenfeedError, Unreachable

from ..runtime.threads import without_frames
from ..transport.replicas import Replica, ReplicaSet
from ..transport.timeouts import Timeouts

_LOG = logging.getLogger("tokenfeed.client")

_READ_SECONDS_MAX = 60.0
_READ_SECONDS_MIN = 1.0
_TIMEOUT_FACTOR = 3.0
"""Patience with a slow line, as a multiple of what its last frame took: frames grow at the start,
and those of two calls share the line.
"""
_TIMEOUT_DECAY = 0.95
"""What is left of that after a frame that came at once."""
_BACKOFF_SECONDS_FIRST = 0.1
_BACKOFF_SECONDS_MAX = 2.0
_ASKED_SECONDS_MAX = 30.0
_JITTER = (1.0, 1.5)
"""Pauses are varied by a factor in this range, or all that lost a server together come back to it
together."""
_LOG_AGAIN_SECONDS = 30.0
_ATTEMPT_GRACE_SECONDS = 5.0
"""By so much an attempt may outlast its timeout: the slowest of all servers, a check of TLS."""
_REFUSALS = 2
"""A bit flipped on the way to a server looks like a wrong request: so often a server has to refuse,
each time on a new connection.
"""

Result = TypeVar("Result")


class Failover:
    """Patience with some servers. The time until it gives up begins anew with each sign of life."""

    def __init__(
        self,
        replicas: ReplicaSet,
        *,
        rank: int,
        timeouts: Timeouts,
        awaited_since: Callable[[], float | None],
    ) -> None:
        """Ask replicas in turn.

        rank: says which one to begin with, modulo their number, and stands in the log.
        timeouts: how long one of them may bring nothing, and how long all of them while somebody
        waits.  awaited_since: returns when that began, by time.monotonic; None while nobody waits.
        """
        self._replicas = replicas
        self._rank = self._next = rank
        self._timeouts = timeouts
        self._awaited_since = awaited_since
        self._logged = -math.inf
        self._patience_seconds = self._usual_seconds = timeouts.read_seconds
        self.record_progress()

    @property
    def read_seconds(self) -> float:
        """How long to wait for the server that is asked now: doubled with each tour in which one
        was waited for in vain, up to 60 s or what is left of
        reconnect_seconds.
        """
        if self._timeouts.reconnect_seconds is None:
            return self._patience_seconds
        left = self._timeouts.reconnect_seconds - (self._awaited_seconds() or 0.0)
        shortest = min(self._timeouts.read_seconds, _READ_SECONDS_MIN)
        return max(min(self._patience_seconds, left), shortest)

    def record_progress(self, waited_seconds: float = 0.0) -> None:
        """Begin anew: a server has sent what was asked for, after so long."""
        if self._patience_seconds > self._timeouts.read_seconds:
            self._adapt_timeout(_TIMEOUT_FACTOR * waited_seconds)
        self._say_back()
        self._patience_seconds = self._usual_seconds
        self._alive_at = time.monotonic()
        self._failures: list[TokenfeedError] = []
        self._waits_seconds: list[float] = []
        self._refusals = 0
        self._away_since: float | None = None
        self._backoff_seconds = _BACKOFF_SECONDS_FIRST

    def run(
        self,
        attempt: Callable[[Replica], Result],
        *,
        pause: Callable[[float], object],
        is_over: Callable[[], bool],
        asks_all: bool = False,
    ) -> Result | None:
        """Return what attempt returns, trying one server after the other for as long as that may
        help; None once it is over.

        pause: waits for so many seconds, or less.  is_over: nobody wants the result any more.
        asks_all: one attempt asks all servers, and so is a tour.
        Raises: what all servers refuse, twice; Unreachable after reconnect_seconds.
        """
        while not is_over():
            count = 1
            began, patience_seconds = time.monotonic(), self.read_seconds
            try:
                replicas = self._replicas.all(patience_seconds, is_over)
                count = 1 if asks_all else len(replicas)
                result = attempt(replicas[self._next % len(replicas)])
                self._say_back()
                return result
            except TokenfeedError as error:
                failure = without_frames(error)
            if is_over():
                break
            now = time.monotonic()
            # Nothing may have been asked for during hours: it was silent for no longer than that.
            waited_seconds = min(now - max(began, self._alive_at), patience_seconds)
            if self._away_since is None:
                self._away_since = now - waited_seconds
                if count > 1:
                    _LOG.warning(
                        "went on to the next server rank=%d reason=%s", self._rank, failure
                    )
            self._failures.append(failure)
            self._waits_seconds.append(waited_seconds)
            self._next += 1
            if len(self._failures) >= count:
                pause(self._end_tour())
        return None

    def require_in_time(self, grace_seconds: float) -> None:
        """Raise Unreachable if somebody has waited for longer than reconnect_seconds and no attempt
        has ended: it hangs where no timeout reaches, in a file or in code of the caller's.

        grace_seconds: for a row so long that one may see nothing of it.  For who waits; all else is
        for who asks.
        """
        since = self._awaited_since()
        if self._timeouts.reconnect_seconds is None or since is None:
            return
        waited_seconds = time.monotonic() - max(since, self._alive_at)
        grace_seconds += self.read_seconds + _ATTEMPT_GRACE_SECONDS
        if waited_seconds > self._timeouts.reconnect_seconds + grace_seconds:
            raise Unreachable(
                str(self._replicas),
                f"no batches for {waited_seconds:.0f} s, and whoever asks for them does not come "
                "back: does a file of credentials, or a token function, hang?",
            )

    def _end_tour(self) -> float:
        """Return how long to pause before the next tour.  Raises: as `run`."""
        failures, self._failures = self._failures, []
        self._adapt_timeout(2 * min(self._waits_seconds))
        # A server that refuses at once says nothing of how long another one takes.
        longest_seconds = max(self._patience_seconds, 2 * max(self._waits_seconds))
        self._patience_seconds = self._bounded(longest_seconds)
        self._waits_seconds = []
        self._replicas.refresh()
        if not any(isinstance(failure, ServerUnavailable) for failure in failures):
            self._refusals += 1
            if self._refusals == _REFUSALS:
                raise failures[0]
            return 0.0
        self._refusals = 0
        reason = "; ".join(dict.fromkeys(map(str, failures)))
        awaited_seconds = self._awaited_seconds()
        left_seconds = math.inf
        if self._timeouts.reconnect_seconds is not None and awaited_seconds is not None:
            left_seconds = self._timeouts.reconnect_seconds - awaited_seconds
        if left_seconds <= 0:
            raise Unreachable(
                str(self._replicas),
                f"no batches for {awaited_seconds:.0f} s ({reason}). "
                "Is the server up, and the address right?",
            )
        if time.monotonic() - self._logged >= _LOG_AGAIN_SECONDS:
            self._logged = time.monotonic()
            _LOG.warning(
                "waiting for server rank=%d target=%s reason=%s", self._rank, self._replicas, reason
            )
        busy = [failure.retry_seconds for failure in failures if isinstance(failure, Busy)]
        pause_seconds = self._backoff_seconds
        self._backoff_seconds = min(2 * pause_seconds, _BACKOFF_SECONDS_MAX)
        if len(busy) == len(failures):
            pause_seconds = max(_BACKOFF_SECONDS_FIRST, min(*busy, _ASKED_SECONDS_MAX))
        return min(pause_seconds * random.uniform(*_JITTER), left_seconds)

    def _say_back(self) -> None:
        """End what the log says of waiting."""
        if self._logged > -math.inf and self._away_since is not None:
            away_seconds = time.monotonic() - self._away_since
            _LOG.warning(
                "back after %.1f s rank=%d target=%s", away_seconds, self._rank, self._replicas
            )
            self._logged = -math.inf

    def _adapt_timeout(self, needed_seconds: float) -> None:
        """Remember how patient one has to be on a slow line. That is forgotten slowly: one frame
        comes late, and the next one right behind it.
        """
        seconds = max(needed_seconds, _TIMEOUT_DECAY * self._usual_seconds)
        self._usual_seconds = self._bounded(seconds)

    def _bounded(self, seconds: float) -> float:
        return max(self._timeouts.read_seconds, min(seconds, _READ_SECONDS_MAX))

    def _awaited_seconds(self) -> float | None:
        """Return for how long somebody has waited in vain; None while nobody waits, as during a
        pause of the trainer: an outage that ends before it does harms nobody.
        """
        # Each is read once: a frame may arrive, or the wait end, while the watch asks.
        since, away_since = self._awaited_since(), self._away_since
        if since is None:
            return None
        return 0.0 if away_since is None else time.monotonic() - max(away_since, since)
