"""The first calls to a server: does it accept the token, speak this contract, tell the time?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tokenfeed.client.source.server_check import require_contract
from tokenfeed.client.transport.channel import Channel
from tokenfeed.client.transport.credentials import CREDENTIAL_FIELDS, Credentials
from tokenfeed.errors import (
    BadFrame,
    Busy,
    ContractMismatch,
    InvalidRequest,
    NotATokenfeedServer,
    NotFound,
    RequestError,
    TokenfeedError,
    Unauthenticated,
    Unreachable,
)
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import CONTRACT_REVISION

from .findings import Diagnosis, Finding
from .network import Server

_CALLS = 5
"""Calls whose fastest one shows the round trip, and compares the clocks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server says.

    seconds: the time of its fastest answer on an open connection.  clock_seconds: how far its clock
    is ahead of this machine's, at least; 0.0 if the answer is not exact enough to tell.
    """

    described: pb.DescribeResponse
    seconds: float
    clock_seconds: float


def ask(
    channel: Channel, server: Server, credentials: Credentials, timeout_seconds: float
) -> Answer:
    """Ask a server what it serves, several times.  Raises: Diagnosis."""
    try:
        answers = [_ask_once(channel, timeout_seconds) for _ in range(_CALLS)]
    except TokenfeedError as error:
        raise Diagnosis(refused(server, credentials, error)) from None
    # The first one includes the connection.
    fastest = min(answers[1:], key=lambda answer: answer.seconds)
    _require_contract(server, fastest.described)
    return fastest


def refused(
    server: Server, credentials: Credentials, error: TokenfeedError, dataset: str = ""
) -> Finding:
    """Return the problem of a call that failed.  dataset: whose rows it asked for; "" is none."""
    # Where a feed has given up, the last failure says why.
    if isinstance(error.__cause__, TokenfeedError):
        error = error.__cause__
    kind, problem, cure = _texts(credentials, error, dataset)
    return Finding(kind, server.name, problem, f"{error.subject}: {error.problem}", cure)


def _texts(credentials: Credentials, error: TokenfeedError, dataset: str) -> tuple[str, str, str]:
    """Return kind, problem and cure of a call that failed."""
    if isinstance(error, Unauthenticated):
        if credentials.token is None:
            problem = "the server requires a token, and none is set"
            return "token-missing", problem, "set TOKENFEED_TOKEN or TOKENFEED_TOKEN_FILE"
        return (
            "token-refused",
            "the server does not accept this machine's token",
            "set TOKENFEED_TOKEN or TOKENFEED_TOKEN_FILE to a token of the server's --token-file",
        )
    if isinstance(error, InvalidRequest) and error.subject in CREDENTIAL_FIELDS:
        kind = "token-unusable" if error.subject == "token" else "files-unusable"
        problem = f"the credentials of this machine cannot be used: {error.subject}"
        return kind, problem, "correct TOKENFEED_TOKEN, TOKENFEED_TOKEN_FILE and TOKENFEED_TLS_*"
    if isinstance(error, NotATokenfeedServer):
        return (
            "not-tokenfeed",
            "a gRPC server answers, but none that knows tokenfeed.v1",
            "check address and port; if it is a tokenfeed server, upgrade it",
        )
    if isinstance(error, Busy):
        problem = "the server is at a limit, and asks to retry later"
        return "busy", problem, "raise --max-streams or --max-streams-per-peer, or add a server"
    if isinstance(error, Unreachable) and error.problem.startswith("DEADLINE_EXCEEDED"):
        problem = "the server accepts connections, but does not answer calls in time"
        return "no-answer", problem, "look at its load and its log; restart it if it hangs"
    if isinstance(error, BadFrame):
        cure = "look for what changes bytes: a proxy, a network card, memory"
        return "damaged-frames", "rows arrive, but their checksum is wrong", cure
    if isinstance(error, NotFound) and dataset:
        cure = "correct --dataset, or the server's --data"
        return "dataset-missing", f"dataset {dataset!r} is not served there", cure
    if dataset:
        problem = f"rows of dataset {dataset!r} cannot be read"
        return "dataset-refused", problem, "look at the server's log; restart it on complete files"
    if isinstance(error, RequestError):
        cure = "look at the server's log, and at proxies in between"
        return "refused", "the server refuses the call", cure
    return "unavailable", "the server ends the call with an error", "look at the server's log"


def _ask_once(channel: Channel, timeout_seconds: float) -> Answer:
    began, began_at = time.perf_counter(), time.time()
    described = channel.ask(pb.DescribeRequest(), pb.DescribeResponse, timeout_seconds).result()
    seconds = time.perf_counter() - began
    clock_seconds = clock_difference(began_at, seconds, described.server_time_ms / 1000)
    return Answer(described, seconds, clock_seconds)


def clock_difference(began_at: float, seconds: float, server_time: float) -> float:
    """Return how far a server's clock is ahead, at least, and negative if it is behind.

    began_at: when the call began, on this machine's clock.  seconds: how long it took.  The server
    read its clock somewhere in between, so only what lies outside is a difference.
    """
    if server_time < began_at:
        return server_time - began_at
    return max(0.0, server_time - (began_at + seconds))


def _require_contract(server: Server, described: pb.DescribeResponse) -> None:
    """Raise Diagnosis unless a server speaks this client's revision of the contract."""
    try:
        require_contract(server.name, described)
    except ContractMismatch as error:
        spoken = max(described.contract_revisions, default=0)
        is_old = spoken <= CONTRACT_REVISION
        version = described.server_version or "of an unknown version"
        finding = Finding(
            "old-server" if is_old else "old-client",
            server.name,
            f"the server speaks another contract than this client: {error.problem}",
            f"its software is tokenfeed {version}; it lists the revisions "
            f"{list(described.contract_revisions)}",
            "upgrade the server" if is_old else "upgrade tokenfeed on this machine",
        )
        raise Diagnosis(finding) from None
