"""Waits until servers have taken up files without their erased tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from tokenfeed.errors import (
    ContractMismatch,
    Forbidden,
    InvalidRequest,
    TokenfeedError,
    Unauthenticated,
    Unreachable,
    listed,
)
from tokenfeed.v1 import tokenfeed_pb2 as pb

_LOG = logging.getLogger("tokenfeed.server")

_PAUSE_SECONDS = 1.0
_CALL_SECONDS = 5.0
_AGAIN = "the files are erased, run it again to wait"
_WAIT_SECONDS_MAX = 86_400.0


def require_wait(servers: Sequence[str], seconds: float, *, erases: bool) -> None:
    """Raise InvalidRequest unless servers can be waited for: before anything is erased.

    servers: HOST:PORT of each; none is valid.  seconds: how long.  erases: whether tokens will be.
    """
    if not 0 < seconds <= _WAIT_SECONDS_MAX:
        raise InvalidRequest("--wait-seconds", f"{seconds:g} is not in (0, {_WAIT_SECONDS_MAX:g}]")
    if not servers:
        return
    if not erases:
        raise InvalidRequest("--wait", "waits for an erasure; pass --erase too")
    try:
        from tokenfeed.client.transport.addresses import require_address
        from tokenfeed.client.transport.credentials import with_environment
    except ModuleNotFoundError as error:
        problem = "asks servers as a client does, which is not installed here"
        raise InvalidRequest("--wait", f"{problem} ({error.name})") from None
    for server in servers:
        require_address(server)
    with_environment()  # whose files may be wrong


def wait_for_servers(
    servers: Sequence[str], fingerprint: bytes, list_hash: bytes, seconds: float
) -> None:
    """Log when each of some servers has no token of a list mapped or open any more.

    servers: HOST:PORT of each; with TLS or a token as the environment says (client).  fingerprint:
    of the dataset.  list_hash: of what was erased.
    Raises: Unreachable, naming the servers that have not taken the files up after these seconds.
    """
    from tokenfeed.client.transport.channel import describe
    from tokenfeed.client.transport.credentials import with_environment

    credentials, began = with_environment(), time.monotonic()
    left = dict.fromkeys(servers, "")
    while True:
        for server in list(left):
            timeout = max(0.1, min(_CALL_SECONDS, began + seconds - time.monotonic()))
            try:
                found = describe(server, timeout_seconds=timeout, credentials=credentials).datasets
            except (Unauthenticated, Forbidden, ContractMismatch) as error:
                raise Unreachable("--wait", f"{server}: {error}; {_AGAIN}") from error
            except TokenfeedError as error:
                left[server] = f"{server}: {error}"
                continue
            own = [each for each in found if each.fingerprint == fingerprint]
            if problem := _problem_of(own, list_hash):
                left[server] = f"{server} {problem}"
            else:
                del left[server]
                _LOG.info("%s has taken it up, after %.1f s", server, time.monotonic() - began)
        if not left:
            return
        if time.monotonic() - began > seconds:
            problem = f"{listed(list(left.values()))}, after {seconds:g} s"
            raise Unreachable("--wait", f"{problem}; {_AGAIN}")
        time.sleep(_PAUSE_SECONDS)


def _problem_of(datasets: Sequence[pb.Dataset], list_hash: bytes) -> str:
    """Return why a server may still have tokens of a list; "" if it has none.

    datasets: what it serves with these files.
    """
    if not datasets:
        return "does not serve this dataset"
    for each in datasets:
        places = {hashed: place for place, hashed in enumerate(each.redaction_lists)}
        if list_hash not in places:
            return "does not have this list"
        # That of a later list has these tokens too.
        if places.get(each.erased_list, -1) < places[list_hash]:
            return "still has tokens that are erased"
    return ""
