"""What a server says of itself, asked for again and again over one connection."""

from __future__ import annotations

from tokenfeed.client.runtime.threads import Outcome
from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.errors import NotATokenfeedServer, TokenfeedError, Unauthenticated, Unreachable
from tokenfeed.v1 import status_pb2 as pb

from ..one_server import OneServer

TOKEN_VARIABLE = "TOKENFEED_STATUS_TOKEN"


class ServerStatus:
    """Asks one server for its status."""

    def __init__(self, target: str, credentials: Credentials, timeout_seconds: float) -> None:
        """Remember the address; does no I/O.  timeout_seconds: of one call.

        Raises: InvalidRequest if it is no address.
        """
        self.target = target
        self._timeout_seconds = timeout_seconds
        self._server = OneServer(
            target,
            credentials,
            thread_name="tokenfeed-status",
            explain=lambda error: _explained(error, target),
        )

    def ask(self) -> Outcome[pb.GetStatusResponse]:
        """Ask, and return the outcome: a status or a TokenfeedError. One call at a time."""
        request, seconds = pb.GetStatusRequest(), self._timeout_seconds
        return self._server.ask(lambda channel: channel.ask(request, pb.GetStatusResponse, seconds))

    def close(self) -> None:
        """Close the connection."""
        self._server.close()


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
