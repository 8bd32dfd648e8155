"""Failover: which server to try next, after what backoff, and when to give up.

A round tries each server once, in an order of each rank. A frame resets it. After a round without a
frame the client backs off and raises its read timeout.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tokenfeed.errors import (
    BeingMade,
    Busy,
    ListMissing,
    ServerUnavailable,
    TokenfeedError,
    Unreachable,
)

from ..runtime.threads import without_traceback
from ..transport.channel import CHECK_SERVER
from ..transport.replicas import Replica, ReplicaSet
from ..transport.timeouts import Timeouts

_LOG = logging.getLogger("tokenfeed.client")

_READ_SECONDS_MAX = 60.0
_READ_SECONDS_MIN = 1.0
_TIMEOUT_FACTOR = 3.0
"""Timeout on a slow link, as a multiple of the time of its last frame: frames grow at the start,
and the frames of two calls share the link.
"""
_TIMEOUT_DECAY = 0.95
"""Factor by which each frame that arrives quickly lowers that timeout."""
_HOME_SECONDS = 30.0
"""A server that failed is not gone back to before: it may fail after each frame."""
_BACKOFF_SECONDS_FIRST = 0.1
_BACKOFF_SECONDS_MAX = 2.0
_PUSHBACK_SECONDS_MAX = 30.0
_JITTER = (1.0, 1.5)
"""Pauses are multiplied by a random factor in this range. Otherwise all clients that lost a server
together would return to it together."""
_LOG_INTERVAL_SECONDS = 30.0
_ATTEMPT_GRACE_SECONDS = 5.0
"""How long an attempt may exceed its timeout: stragglers among the servers, a TLS check."""
_REFUSALS = 2
"""How often every server has to refuse, each time on a new connection, before the error is raised:
a bit flipped on the way to a server looks like a wrong request.
"""
_LIST_SECONDS = 3.0
"""How long to ask again for a list of redactions that no server has: each looks for new ones once a
second, and on the file system of a network a new file takes longer to appear."""
_LIST_PAUSE_SECONDS = 0.25
_FALLS_MAX = 8
"""How often the progress of one thing may fall. It falls where a server was restarted, and where
work that had to wait shows the progress of the work before it. A server that is killed at each try
has to be given up."""

Result = TypeVar("Result")


class _Level(NamedTuple):
    """The progress of something that is being made, as of the answers so far."""

    last: float
    greatest: float
    falls: int


class Failover:
    """Retries over several servers. Each frame resets the time until it gives up."""

    def __init__(
        self,
        replicas: ReplicaSet,
        *,
        rank: int,
        timeouts: Timeouts,
        awaited_since: Callable[[], float | None],
    ) -> None:
        """Try replicas in turn. Rank r begins at replica r % count. The ranks of one replica go on
        to different ones, and come back at a later break.

        rank: is that of the feed, and appears in the log.
        timeouts: how long one of them may send nothing, and how long all of them while the consumer
        waits.  awaited_since: returns the start of that wait, of time.monotonic; None if there is
        no wait.
        """
        self._replicas = replicas
        self._rank = rank
        self._next = 0  # in the order of this rank, modulo their number
        self._last_away = 0  # the last one of these that was not its first
        self._tried: set[int] = set()  # of these, in this round
        self._left_home_at = math.inf
        self._timeouts = timeouts
        self._awaited_since = awaited_since
        self._logged = -math.inf
        self._growth: dict[str, _Level] = {}
        self._grown_at = -math.inf
        self.broken_by = ""
        """Name of the error that came first after the last frame."""
        self._timeout_seconds = self._base_seconds = timeouts.read_seconds
        self.record_progress()

    @property
    def read_seconds(self) -> float:
        """Timeout for the current server: doubled after each round in which a server timed out, up
        to 60 s or what is left of reconnect_seconds.
        """
        if self._timeouts.reconnect_seconds is None:
            return self._timeout_seconds
        left = self._timeouts.reconnect_seconds - (self._awaited_seconds() or 0.0)
        shortest = min(self._timeouts.read_seconds, _READ_SECONDS_MIN)
        return max(min(self._timeout_seconds, left), shortest)

    def record_progress(self, waited_seconds: float = 0.0) -> None:
        """Reset the round and the backoff: a server has sent a frame, after waited_seconds."""
        if self._timeout_seconds > self._timeouts.read_seconds:
            self._adapt_timeout(_TIMEOUT_FACTOR * waited_seconds)
        self._log_recovery()
        self._timeout_seconds = self._base_seconds
        self._progress_at = time.monotonic()
        self._failures: list[TokenfeedError] = []
        self._waits_seconds: list[float] = []
        self._refusals = 0
        self._list_missed_at: float | None = None
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
        """Try one server after the other until an attempt succeeds, and return its result; None
        once is_over returns True.

        pause: waits this many seconds, or less.  is_over: whether the result is not needed any
        more.  asks_all: one attempt asks all servers, and so is a whole round.
        Raises: the refusal, if all servers have refused twice, for want of a list of redactions
        after 3 s; Unreachable after reconnect_seconds.
        """
        while not is_over():
            count = 1
            began, timeout_seconds = time.monotonic(), self.read_seconds
            try:
                replicas = self._replicas.all(timeout_seconds, is_over)
                count = 1 if asks_all else len(replicas)
                replica = replicas[_place(self._rank, self._next, len(replicas))]
                result = attempt(replica)
                self._log_recovery()
                return result
            except TokenfeedError as error:
                failure = without_traceback(error)
            if is_over():
                break
            now = time.monotonic()
            if isinstance(failure, BeingMade) and self._gets_on(failure):
                self._progress_at = self._grown_at = now  # the wait begins again
            # No request may have been open for hours: only the wait for this attempt counts.
            waited_seconds = min(now - max(began, self._progress_at), timeout_seconds)
            if self._away_since is None:
                self._away_since = now - waited_seconds
                self.broken_by = type(failure).__name__
                if count > 1:
                    _LOG.warning(
                        "failing over rank=%d from=%s reason=%s",
                        *(self._rank, replica.address, failure),
                    )
            self._move_on(count, now)
            self._failures.append(failure)
            self._waits_seconds.append(waited_seconds)
            if len(self._failures) >= count:
                pause(self._end_round())
        return None

    def _move_on(self, count: int, now: float) -> None:
        """Choose the next server: the first one of the rank, if it left that long ago and the one
        that it was sent to instead has broken; else the next one that this round has not tried.

        count: of the servers.  now: of time.monotonic.
        """
        place = self._next % count
        if not self._failures:
            self._tried.clear()
        self._tried.add(place)
        if place:
            self._last_away = place
            if not self._failures and now - self._left_home_at >= _HOME_SECONDS:
                self._next = 0
                return
        else:
            self._left_home_at = now
        # Behind the last one: who always began at the first ones would not reach the others, where
        # each of these breaks after some frames.
        self._next = self._last_away + 1
        while self._next % count in self._tried and len(self._tried) < count:
            self._next += 1

    def _gets_on(self, failure: BeingMade) -> bool:
        """Return whether anything that servers are making gets on, such as the rows of a corpus.

        Any change is such a sign. Once a share has fallen too often, only a share above all before
        is one.
        """
        gets_on = False
        for name, share in failure.progress.items():
            last, greatest, falls = self._growth.get(name, _Level(-1.0, -1.0, 0))
            falls += share < last
            gets_on |= share > greatest or (share != last and falls <= _FALLS_MAX)
            self._growth[name] = _Level(share, max(share, greatest), falls)
        return gets_on

    def require_in_time(self, grace_seconds: float) -> None:
        """Raise Unreachable if the consumer has waited for longer than reconnect_seconds and no
        attempt has ended: it hangs in a file or in user code, where no timeout applies.

        grace_seconds: additional time, for a long row.  For the waiting thread; all other methods
        are for the thread that makes the attempts.
        """
        since = self._awaited_since()
        if self._timeouts.reconnect_seconds is None or since is None:
            return
        waited_seconds = time.monotonic() - max(since, self._progress_at)
        grace_seconds += self.read_seconds + _ATTEMPT_GRACE_SECONDS
        if waited_seconds > self._timeouts.reconnect_seconds + grace_seconds:
            raise Unreachable(
                str(self._replicas),
                f"no batches for {waited_seconds:.0f} s, and the request for them hangs; check the "
                "credential files and the token function",
            )

    def _end_round(self) -> float:
        """Return how long to pause before the next round.  Raises: like `run`."""
        failures, self._failures = self._failures, []
        self._adapt_timeout(2 * min(self._waits_seconds))
        # A server that refuses at once does not show how long another one takes.
        longest_seconds = max(self._timeout_seconds, 2 * max(self._waits_seconds))
        self._timeout_seconds = self._bounded(longest_seconds)
        self._waits_seconds = []
        self._replicas.refresh()
        if not any(isinstance(failure, ServerUnavailable) for failure in failures):
            if self._awaits_list(failures):
                return _LIST_PAUSE_SECONDS
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
                f"no batches for {awaited_seconds:.0f} s ({reason}). {CHECK_SERVER}",
            ) from failures[-1]
        if time.monotonic() - self._logged >= _LOG_INTERVAL_SECONDS:
            self._logged = time.monotonic()
            _LOG.warning(
                "waiting for server rank=%d target=%s seconds_left=%.0f reason=%s",
                self._rank,
                self._replicas,
                min(left_seconds, self._timeouts.reconnect_seconds or math.inf),
                reason,
            )
        busy = [failure.retry_seconds for failure in failures if isinstance(failure, Busy)]
        pause_seconds = self._backoff_seconds
        self._backoff_seconds = min(2 * pause_seconds, _BACKOFF_SECONDS_MAX)
        if len(busy) == len(failures):
            pause_seconds = max(_BACKOFF_SECONDS_FIRST, min(*busy, _PUSHBACK_SECONDS_MAX))
        return min(pause_seconds * random.uniform(*_JITTER), left_seconds)

    def _awaits_list(self, failures: Sequence[TokenfeedError]) -> bool:
        """Return whether a server lacks only a list of redactions, and may soon have it."""
        if not any(isinstance(failure, ListMissing) for failure in failures):
            return False
        now = time.monotonic()
        if self._list_missed_at is None:
            self._list_missed_at = now
        longest_seconds = _LIST_SECONDS
        if self._timeouts.reconnect_seconds is not None:
            longest_seconds = min(longest_seconds, self._timeouts.reconnect_seconds)
        return now - self._list_missed_at < longest_seconds

    def _log_recovery(self) -> None:
        """Log the end of an outage, if its start was logged."""
        if self._logged > -math.inf and self._away_since is not None:
            away_seconds = time.monotonic() - self._away_since
            _LOG.warning(
                "server is back rank=%d target=%s seconds=%.1f",
                *(self._rank, self._replicas, away_seconds),
            )
            self._logged = -math.inf

    def _adapt_timeout(self, needed_seconds: float) -> None:
        """Raise the base timeout to what a slow link needs, or lower it slowly: a frame may be late
        and the next one directly behind it.
        """
        seconds = max(needed_seconds, _TIMEOUT_DECAY * self._base_seconds)
        self._base_seconds = self._bounded(seconds)

    def _bounded(self, seconds: float) -> float:
        return max(self._timeouts.read_seconds, min(seconds, _READ_SECONDS_MAX))

    def _awaited_seconds(self) -> float | None:
        """Return how long the consumer has waited without a frame; None if it does not wait, as
        during a pause of the trainer: an outage that ends during the pause does no harm.
        """
        # Each is read once: a frame may arrive, or the wait may end, while another thread calls.
        since, away_since = self._awaited_since(), self._away_since
        if since is None:
            return None
        if away_since is None:
            return 0.0
        return time.monotonic() - max(away_since, since, self._grown_at)


def _place(rank: int, attempt: int, count: int) -> int:
    """Return which of the servers a rank tries.  attempt: counts from 0, its own one.  count: of
    the servers.
    """
    home, place = rank % count, attempt % count
    if not place:
        return home
    return (home + 1 + (rank // count + place - 1) % (count - 1)) % count
