"""One server that is asked again and again, over one connection."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from tokenfeed.client.runtime.threads import Outcome, start_thread
from tokenfeed.client.transport.addresses import require_address
from tokenfeed.client.transport.channel import Channel, UnaryCall
from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.errors import TokenfeedError

_CLOSE_SECONDS = 1.0

Answer = TypeVar("Answer", bound=Message)


class OneServer:
    """Asks one server. One call at a time.  target: its address."""

    def __init__(
        self,
        target: str,
        credentials: Credentials,
        *,
        thread_name: str,
        explain: Callable[[TokenfeedError], TokenfeedError],
    ) -> None:
        """Remember the address; does no I/O.

        thread_name: of the threads that ask.  explain: returns an error with the cure that is one
        here.  Raises: InvalidRequest if it is no address.
        """
        require_address(target)
        self.target = target
        self._credentials = credentials
        self._thread_name = thread_name
        self._explain = explain
        self._generations = itertools.count()
        self._channel: Channel | None = None
        self._has_answered = False

    def ask(self, begin: Callable[[Channel], UnaryCall[Answer]]) -> Outcome[Answer]:
        """Begin a call, and return its outcome: an answer or a TokenfeedError."""
        # Not in the caller's thread, where a Ctrl-C could leave a lock of gRPC locked for ever.
        outcome: Outcome[Answer] = Outcome()
        start_thread(partial(outcome.run, partial(self._ask, begin)), self._thread_name)
        return outcome

    def close(self) -> None:
        """Close the connection."""
        closed: Outcome[None] = Outcome()
        start_thread(partial(closed.run, self._disconnect), f"{self._thread_name}-close")
        closed.wait_for(_CLOSE_SECONDS)

    def _ask(self, begin: Callable[[Channel], UnaryCall[Answer]]) -> Answer:
        if self._channel is None:
            self._channel = Channel(self.target, next(self._generations), self._credentials)
        try:
            answer = begin(self._channel).result(is_first_contact=not self._has_answered)
        except TokenfeedError as error:
            # A new connection is tried at once, and not after gRPC's growing pauses.
            self._disconnect()
            raise self._explain(error) from None
        self._has_answered = True
        return answer

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
