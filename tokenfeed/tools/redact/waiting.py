"""Waits until servers have taken up files without their erased tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tokenfeed.errors import (
    ContractMismatch,
    Forbidden,
    InvalidRequest,
    TokenfeedError,
    Unauthenticated,
    Unreachable,
    listed,
)
from tokenfeed.server.runtime.threads.parallel import map_in_threads

_LOG = logging.getLogger("tokenfeed.server")

_PAUSE_SECONDS = 1.0
_CALL_SECONDS = 5.0
_CALLS = 16
"""At once."""
_RESOLVE_SECONDS = 10.0
"""After which a name is resolved again: meanwhile a replica may have been added."""
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


class _Replica(NamedTuple):
    """A server to ask.

    name: as errors and the log show it.  target: its address.  authority: as for `describe`.
    """

    name: str
    target: str
    authority: str | None


def wait_for_servers(
    servers: Sequence[str], fingerprint: bytes, list_hash: bytes, seconds: float
) -> None:
    """Log when each of some servers has no token of a list mapped or open any more.

    servers: HOST:PORT of each; each address of a name is a server.  fingerprint: of the dataset.
    list_hash: of what was erased.
    Raises: Unreachable if some have not taken the files up after these seconds; then it logs why.
    """
    from tokenfeed.client.transport.addresses import DNS, is_local
    from tokenfeed.client.transport.resolver import TargetResolver

    began = time.monotonic()
    # Every address of this machine is the same server.
    names = {
        each: TargetResolver(each if is_local(each) else DNS + each.removeprefix(DNS))
        for each in servers
    }
    known: dict[_Replica, str] = {}  # and why it has not taken them up; "" if it has
    while True:
        problems: dict[str, str] = {}
        for server, name in names.items():
            name.resolve(age_seconds=_RESOLVE_SECONDS)
            name.wait(_until(began + seconds))
            for address in name.addresses:
                shown = f"{server} ({address})" if name.authority else server
                known.setdefault(_Replica(shown, address, name.authority), "was not asked")
            if not name.addresses:
                problems[server] = name.problem
        left = [each for each, problem in known.items() if problem]
        ask = partial(_problem_of, fingerprint, list_hash, began + seconds)
        known |= zip(left, map_in_threads(ask, left, _CALLS, "tokenfeed-wait"), strict=True)
        for each in left:
            if not known[each]:
                _LOG.info("%s has taken it up, after %.1f s", each.name, time.monotonic() - began)
        problems |= {each.name: problem for each, problem in known.items() if problem}
        if not problems:
            return
        if time.monotonic() - began > seconds:
            for server, problem in problems.items():
                _LOG.warning("%s %s", server, problem)
            problem = f"not taken up after {seconds:g} s by {listed(list(problems))}"
            raise Unreachable("--wait", f"{problem}; {_AGAIN}")
        time.sleep(_PAUSE_SECONDS)


def _until(end: float) -> float:
    """Return how long a call may take, in seconds.  end: of the wait, by time.monotonic."""
    return max(0.1, min(_CALL_SECONDS, end - time.monotonic()))


def _problem_of(fingerprint: bytes, list_hash: bytes, end: float, replica: _Replica) -> str:
    """Return why a server may still have tokens of a list; "" if it has none.

    fingerprint: of the dataset.  end: of the wait.  Asked with TLS or a token as the environment
    says (client).  Raises: Unreachable if it will not answer later either.
    """
    from tokenfeed.client.transport.channel import describe
    from tokenfeed.client.transport.credentials import with_environment

    _, target, authority = replica
    try:
        found = describe(
            target,
            timeout_seconds=_until(end),
            credentials=with_environment(),
            authority=authority,
        )
    except (Unauthenticated, Forbidden, ContractMismatch) as error:
        raise Unreachable("--wait", f"{replica.name}: {error}; {_AGAIN}") from error
    except TokenfeedError as error:
        return f"cannot be asked: {error}"
    own = [each for each in found.datasets if each.fingerprint == fingerprint]
    if not own:
        return "does not serve this dataset"
    for each in own:
        places = {hashed: place for place, hashed in enumerate(each.redaction_lists)}
        if list_hash not in places:
            return "does not have this list"
        # That of a later list has these tokens too.
        if places.get(each.erased_list, -1) < places[list_hash]:
            return "still has tokens that are erased"
    return ""
