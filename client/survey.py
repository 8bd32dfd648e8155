"""Asks all servers of a feed at once what they have, so that one with another corpus is named at
the start and not in an outage.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenfeed.errors import ServerAway
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .channel import Channel
from .replicas import Replica

_OTHERS_SECONDS = 1.0
"""For how long after the first answer the other servers are waited for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has, and the connection on which it said so."""

    replica: Replica
    channel: Channel
    described: pb.Dataset


def survey(replicas: Sequence[Replica], ask: Callable[[Channel], pb.Dataset]) -> list[Answer]:
    """Return what the servers say, in their order, at least one of them; those that come long after
    the first one are left out.

    replicas: at least one.  ask: waits for the answer on a connection; called by several threads.
    Raises: what one of them raised where none answers; if possible a ServerAway, which may heal.
    """
    came: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()

    def ask_one(replica: Replica) -> None:
        try:
            with replica.connected() as channel:
                came.put(Answer(replica, channel, ask(channel)))
        except Exception as error:  # noqa: BLE001 - raised below, where it was asked
            came.put(error)

    for replica in replicas:
        threading.Thread(target=ask_one, args=(replica,), daemon=True).start()
    answers: list[Answer] = []
    errors: list[Exception] = []
    end: float | None = None
    for _ in replicas:
        try:
            answer = came.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, Exception):
            errors.append(answer)
        else:
            answers.append(answer)
            end = end or time.monotonic() + _OTHERS_SECONDS
    if not answers:
        raise min(errors, key=lambda error: not isinstance(error, ServerAway))
    return sorted(answers, key=lambda answer: replicas.index(answer.replica))
