"""One stream: what its calls do, how fast, and who waits for whom."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenfeed.stream.position import Position
from tokenfeed.v1 import status_pb2 as pb
from tokenfeed.wire.request import SampleList

from .counts import RATE_SECONDS

PAUSE_SECONDS = 5.0
"""A stream without a call for longer has paused: its client wanted nothing. Above the 2 s that a
client waits at most before it repeats a call that failed."""

_LOG = logging.getLogger("tokenfeed.server")

_NAMES_LOGGED = 8
_DATASETS_LISTED = 32


class Caller(NamedTuple):
    """Who calls.  address: of the connection, with its port.  client_name: that it gave itself."""

    address: str
    client_name: str


class StreamKey(NamedTuple):
    """What tells streams apart.

    address, client_name: those of Caller.  dataset: "" of a stage of a mixture, which may change.
    """

    address: str
    client_name: str
    rank: int
    world_size: int
    dataset: str
    order: str
    seed: int
    context_length: int


class _Reading(NamedTuple):
    """Totals of a stream at one time."""

    at: float
    tokens: int
    make_seconds: float
    send_seconds: float


@dataclass(eq=False, slots=True)
class Stream:
    """The calls of one rank of a feed over one connection.

    position, end_row: of the call that moved last, and its row behind the last one sent.
    began_at: when it began; all times are of time.monotonic.  moved_at: when a frame of it was
    sent.  left_at: when its latest call ended.  asked_at: when it asked for rows after its last
    pause.  datasets: of its latest call.  calls: open now; of these, making and sending make and
    send a frame.  make_seconds: time in which some call made a frame; send_seconds: time in which
    none did, and some had one ready.  since: when these two were last added to.  readings: of the
    last seconds.  has_first: whether a frame was made.  has_ended: whether its end was logged.
    trainer_sample: as in the hints of its latest call.  is_last: whether the client has said, in a
    call that was answered, that none follows.  is_listed: False for that of a tool, or of GetRows,
    which only counts its rows.
    """

    key: StreamKey
    position: Position | SampleList
    began_at: float
    since: float
    moved_at: float = field(init=False)
    left_at: float = field(init=False)
    asked_at: float = field(init=False)
    datasets: Sequence[str] = ()
    end_row: int = 0
    rows: int = 0
    calls: int = 0
    making: int = 0
    sending: int = 0
    make_seconds: float = 0.0
    send_seconds: float = 0.0
    readings: deque[_Reading] = field(default_factory=lambda: deque(maxlen=RATE_SECONDS + 1))
    has_first: bool = False
    has_ended: bool = False
    trainer_sample: int | None = None
    is_last: bool = False
    is_listed: bool = True

    def __post_init__(self) -> None:
        """Begin with a first call."""
        self.moved_at = self.left_at = self.asked_at = self.began_at

    @property
    def next_sample(self) -> int:
        """Sample of the row behind the last one that was sent."""
        return self.position.sample_of(self.end_row)

    @property
    def tokens(self) -> int:
        """Tokens of x that were sent."""
        return self.rows * self.key.context_length

    @property
    def active_at(self) -> float:
        """When it last had a call, or was sent a frame; of one without a call."""
        return max(self.moved_at, self.left_at)

    def resume(self, now: float) -> None:
        """It asks for rows and had no call: after a pause, that begins its wait."""
        if now - self.active_at > PAUSE_SECONDS:
            self.asked_at = now
        if self.readings and now - self.readings[-1].at > RATE_SECONDS:  # they had stopped
            totals = self.tokens, self.make_seconds, self.send_seconds
            for ago in range(RATE_SECONDS, -1, -1):
                self.readings.append(_Reading(now - ago, *totals))

    def pass_time(self, now: float) -> None:
        """Add the time since the last call of this to what the stream did in it."""
        if self.making:
            self.make_seconds += now - self.since
        elif self.sending:
            self.send_seconds += now - self.since
        self.since = now

    def read(self, now: float) -> None:
        """Keep a reading."""
        self.pass_time(now)
        self.readings.append(_Reading(now, self.tokens, self.make_seconds, self.send_seconds))

    def status(self, now: float) -> pb.StreamStatus:
        """Return what the status service tells of it; averages are those since the oldest reading,
        or since it began.  now: by time.monotonic.
        """
        self.pass_time(now)
        key, first = self.key, _Reading(self.began_at, 0, 0.0, 0.0)
        if len(self.readings) == self.readings.maxlen:
            first = self.readings[0]
        seconds = now - first.at
        share = 1 / seconds if seconds > 0 else 0.0
        return pb.StreamStatus(
            client_name=key.client_name,
            address=key.address,
            rank=key.rank,
            world_size=key.world_size,
            batch_size=self.position.batch_size,
            context_length=key.context_length,
            order=key.order,
            datasets=self.datasets[:_DATASETS_LISTED],
            datasets_omitted=max(0, len(self.datasets) - _DATASETS_LISTED),
            next_sample=self.next_sample,
            rows=self.rows,
            tokens=self.tokens,
            tokens_per_second=share * (self.tokens - first.tokens),
            waits_for_server=min(1.0, share * (self.make_seconds - first.make_seconds)),
            waits_for_client=min(1.0, share * (self.send_seconds - first.send_seconds)),
            calls=self.calls,
            age_seconds=now - self.began_at,
            idle_seconds=now - max(self.moved_at, self.asked_at),
            trainer_sample=self.trainer_sample,
            has_ended=self.is_last and not self.calls,
        )


def log_opened(stream: Stream, first_sample: int) -> None:
    """Log a stream that begins.  first_sample: of its first call."""
    key = stream.key
    _LOG.info(
        "stream opened peer=%s client=%r dataset=%s order=%s context_length=%d batch_size=%d "
        "rank=%d world_size=%d first_sample=%d",
        key.address,
        key.client_name,
        ",".join(stream.datasets[:_NAMES_LOGGED]),
        key.order,
        key.context_length,
        stream.position.batch_size,
        key.rank,
        key.world_size,
        first_sample,
    )


def log_ended(stream: Stream, reason: str) -> None:
    """Log a stream that has ended, and its average rate."""
    key = stream.key
    seconds = stream.moved_at - stream.began_at
    _LOG.info(
        "stream ended peer=%s client=%r rank=%d rows=%d seconds=%.1f tokens_per_second=%.0f "
        "next_sample=%d reason=%s",
        key.address,
        key.client_name,
        key.rank,
        stream.rows,
        seconds,
        stream.tokens / seconds if seconds > 0 else 0,
        stream.next_sample,
        reason,
    )
