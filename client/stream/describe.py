"""Asks all servers of a feed at once what they have, so that one with another corpus is named at
the start and not in an outage.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tokenfeed.errors import ServerUnavailable, Unreachable
from tokenfeed.v1 import tokenfeed_pb2 as pb

from ..runtime.threads import start_thread, without_frames
from ..transport.channel import Channel
from ..transport.replicas import Replica
from ..transport.tls_check import TLS_CHECK_SECONDS

_STRAGGLER_SECONDS = 1.0
"""For how long after the first answer the other servers are waited for, and all of them after they
should have answered."""


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """What a server has, and the connection on which it said so."""

    replica: Replica
    channel: Channel
    described: pb.DescribeResponse


def describe_all(
    replicas: Sequence[Replica],
    ask: Callable[[Channel], pb.DescribeResponse],
    timeout_seconds: float,
) -> list[ReplicaDescription]:
    """Return what the servers say, in their order, at least one of them; those that come long after
    the first one are left out.

    replicas: at least one.  ask: waits for the answer on a connection, for timeout_seconds; called
    by several threads.
    Raises: what one of them raised where none answers; if possible a ServerUnavailable, which may
    heal.
    """
    came: queue.SimpleQueue[ReplicaDescription | BaseException] = queue.SimpleQueue()

    def ask_one(replica: Replica) -> None:
        try:
            with replica.connected() as channel:
                came.put(ReplicaDescription(replica, channel, ask(channel)))
        except BaseException as error:  # noqa: BLE001 - raised below, where it was asked
            came.put(without_frames(error))

    for replica in replicas:
        start_thread(partial(ask_one, replica), "tokenfeed-survey")
    answers: list[ReplicaDescription] = []
    errors: list[BaseException] = []
    end = time.monotonic() + timeout_seconds + TLS_CHECK_SECONDS + _STRAGGLER_SECONDS
    for _ in replicas:
        try:
            answer = came.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, BaseException):
            errors.append(answer)
        else:
            answers.append(answer)
            end = min(end, time.monotonic() + _STRAGGLER_SECONDS)
    if not (answers or errors):
        raise Unreachable(replicas[0].address, "did not say that it does not answer")
    if not answers:
        raise _one_of(errors)
    return sorted(answers, key=lambda answer: replicas.index(answer.replica))


def _one_of(errors: Sequence[BaseException]) -> BaseException:
    """Return one that stands for all: if possible one that may heal, with what will not."""
    away = [error for error in errors if isinstance(error, ServerUnavailable)]
    if not away or len(away) == len(errors):
        return (away or errors)[0]
    refused = [str(error) for error in errors if not isinstance(error, ServerUnavailable)]
    return Unreachable(away[0].subject, "; ".join((away[0].problem, *refused)))
