"""What a server says of itself, asked for again and again over one connection."""

from __future__ import annotations

import itertools
from functools import partial

from tokenfeed.errors import NotATokenfeedServer, TokenfeedError, Unauthenticated, Unreachable
from tokenfeed.v1 import status_pb2 as pb

from ..runtime.threads import Outcome, start_thread
from .addresses import require_address
from .channel import Channel
from .credentials import Credentials

TOKEN_VARIABLE = "TOKENFEED_STATUS_TOKEN"
_CLOSE_SECONDS = 1.0


class ServerStatus:
    """Asks one server for its status."""

    def __init__(self, target: str, credentials: Credentials, timeout_seconds: float) -> None:
        """Remember the address; does no I/O.  timeout_seconds: of one call.

        Raises: InvalidRequest if it is no address.
        """
        require_address(target)
        self.target = target
        self._credentials = credentials
        self._timeout_seconds = timeout_seconds
        self._generations = itertools.count()
        self._channel: Channel | None = None
        self._has_answered = False

    def ask(self) -> Outcome[pb.GetStatusResponse]:
        """Ask, and return the outcome: a status or a TokenfeedError. One call at a time."""
        # Not in the caller's thread, where a Ctrl-C could leave a lock of gRPC locked for ever.
        outcome: Outcome[pb.GetStatusResponse] = Outcome()
        start_thread(partial(outcome.run, self._ask), "tokenfeed-status")
        return outcome

    def close(self) -> None:
        """Close the connection."""
        closed: Outcome[bool] = Outcome()
        start_thread(partial(closed.run, self._close), "tokenfeed-status-close")
        closed.wait_for(_CLOSE_SECONDS)

    def _ask(self) -> pb.GetStatusResponse:
        if self._channel is None:
            self._channel = Channel(self.target, next(self._generations), self._credentials)
        try:
            call = self._channel.get_status(pb.GetStatusRequest(), self._timeout_seconds)
            answer = call.result(is_first_contact=not self._has_answered)
        except TokenfeedError as error:
            # A new connection is tried at once, and not after gRPC's growing pauses.
            self._close()
            raise _explained(error, self.target) from None
        self._has_answered = True
        return answer

    def _close(self) -> bool:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        return True


def _explained(error: TokenfeedError, target: str) -> TokenfeedError:
    """Return an error with the cure that is one here."""
    if isinstance(error, NotATokenfeedServer):
        what = "does not know tokenfeed.v1.Status"
        return NotATokenfeedServer(
            target, f"{what}: it is an older tokenfeed server, or another program"
        )
    if isinstance(error, Unauthenticated):
        cure = f"set {TOKEN_VARIABLE} or {TOKEN_VARIABLE}_FILE"
        return Unauthenticated(error.subject, f"{error.problem}; {cure}")
    if isinstance(error, Unreachable) and "UNAVAILABLE: failed to connect" in error.problem:
        return Unreachable(target, "no server answers")
    return error
