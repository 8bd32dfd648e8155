"""Sends Describe to all servers of a feed at once, so that a server with another corpus is reported
at the start and not during an outage.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tokenfeed.errors import ServerUnavailable, Unreachable
from tokenfeed.v1 import tokenfeed_pb2 as pb

from ..runtime.threads import start_thread, without_traceback
from ..transport.channel import Channel
from ..transport.replicas import Replica
from ..transport.tls_check import TLS_CHECK_SECONDS

_STRAGGLER_SECONDS = 1.0
"""How long to wait for the other servers after the first answer, and for all of them after their
timeout."""


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """The answer of a server, and the connection that it arrived on."""

    replica: Replica
    channel: Channel
    described: pb.DescribeResponse


def describe_all(
    replicas: Sequence[Replica],
    describe: Callable[[Channel], pb.DescribeResponse],
    timeout_seconds: float,
) -> list[ReplicaDescription]:
    """Return the servers' answers in the order of replicas, at least one. Servers that answer long
    after the first one are omitted.

    replicas: at least one.  describe: waits for the answer on a connection, for timeout_seconds;
    called by several threads.
    Raises: the error of one server if none answers; a ServerUnavailable, if there is one, since a
    retry may help.
    """
    results: queue.SimpleQueue[ReplicaDescription | BaseException] = queue.SimpleQueue()

    def describe_one(replica: Replica) -> None:
        try:
            with replica.connected() as channel:
                results.put(ReplicaDescription(replica, channel, describe(channel)))
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            results.put(without_traceback(error))

    for replica in replicas:
        start_thread(partial(describe_one, replica), "tokenfeed-describe-one")
    answers: list[ReplicaDescription] = []
    errors: list[BaseException] = []
    end = time.monotonic() + timeout_seconds + TLS_CHECK_SECONDS + _STRAGGLER_SECONDS
    for _ in replicas:
        try:
            answer = results.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, BaseException):
            errors.append(answer)
        else:
            answers.append(answer)
            end = min(end, time.monotonic() + _STRAGGLER_SECONDS)
    if not (answers or errors):
        raise Unreachable(replicas[0].address, "the Describe call did not end")
    if not answers:
        raise _representative(errors)
    return sorted(answers, key=lambda answer: replicas.index(answer.replica))


def _representative(errors: Sequence[BaseException]) -> BaseException:
    """Return one error for all: if possible one that a retry may fix, plus the other reasons."""
    away = [error for error in errors if isinstance(error, ServerUnavailable)]
    if not away or len(away) == len(errors):
        return (away or errors)[0]
    refused = [str(error) for error in errors if not isinstance(error, ServerUnavailable)]
    return Unreachable(away[0].subject, "; ".join((away[0].problem, *refused)))
