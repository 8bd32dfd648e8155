"""What is recorded of the wire: every request of a client of a few rows, and every answer."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from client import NumpyBatches
from tests.recordings.corpora import LIST
from tests.recordings.states import opened
from tokenfeed.v1 import tokenfeed_pb2 as pb

SERVICE = "tokenfeed.v1.TokenFeed"
REQUESTS: dict[str, Any] = {
    "Describe": pb.DescribeRequest,
    "GetBatch": pb.GetBatchRequest,
    "GetRows": pb.GetRowsRequest,
}
"""The message of a request, by the name of the rpc."""
HINTS_FROM = 100
"""Fields of a request from here on change no row, and may differ."""
MAY_DIFFER = ("server_version", "server_time_ms", "limits", "orders", "contract_revisions")
"""Fields of DescribeResponse that a later server answers otherwise."""


class Call(NamedTuple):
    """An rpc: its name, the request without hints, and the answers, all as bytes."""

    rpc: str
    request: bytes
    answers: Sequence[bytes]

    def plain(self) -> list[Any]:
        """Return it as text, for JSON."""
        return [self.rpc, _text(self.request), [_text(each) for each in self.answers]]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Call:
        """Return what `plain` returned as text."""
        rpc, request, answers = plain
        return cls(rpc, base64.b64decode(request), [base64.b64decode(each) for each in answers])


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def without_hints(rpc: str, request: bytes) -> bytes:
    """Return a request as what it says of rows."""
    message = REQUESTS[rpc].FromString(request)
    for known, _ in message.ListFields():
        if known.number >= HINTS_FROM:
            message.ClearField(known.name)
    return bytes(message.SerializeToString(deterministic=True))


def asked(channel: grpc.Channel, rpc: str, request: bytes) -> list[bytes]:
    """Return all answers of a server to a request."""
    return list(channel.unary_stream(f"/{SERVICE}/{rpc}")(request, timeout=30))


def comparable(rpc: str, answers: Sequence[bytes]) -> list[bytes]:
    """Return answers without the fields that may differ."""
    if rpc != "Describe":
        return [*answers]
    described = pb.DescribeResponse.FromString(answers[0])
    for name in MAY_DIFFER:
        described.ClearField(name)
    return [described.SerializeToString(deterministic=True)]


class _Calls(grpc.GenericRpcHandler):
    """Answers by a function of rpc and request."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def service(self, details: Any) -> Any:
        """Return what handles a call."""
        _, service, rpc = details.method.split("/")
        if service != SERVICE:
            return None
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: self._answer(rpc, request, context)
        )


@contextmanager
def _listening(answer: Any) -> Iterator[str]:
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[_Calls(answer)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait(10)


@contextmanager
def recording(address: str, calls: list[Call]) -> Iterator[str]:
    """Lend the address of a server that passes every call on, and appends it to a list."""

    def pass_on(rpc: str, request: bytes, context: Any) -> Iterator[bytes]:
        answers = asked(channel, rpc, request)
        calls.append(Call(rpc, without_hints(rpc, request), answers))
        yield from answers

    with grpc.insecure_channel(address) as channel, _listening(pass_on) as own:
        yield own


@contextmanager
def replaying(calls: Sequence[Call]) -> Iterator[str]:
    """Lend the address of a server that has recorded answers, and refuses other requests."""
    known = {(call.rpc, call.request): call.answers for call in calls}

    def answer(rpc: str, request: bytes, context: Any) -> Iterator[bytes]:
        answers = known.get((rpc, without_hints(rpc, request)))
        if answers is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "request: was not recorded")
        else:
            yield from answers

    with _listening(answer) as own:
        yield own


FEEDS: dict[str, dict[str, Any]] = {
    "shuffled": {"dataset": "code", "seed": 7},
    "redacted": {"dataset": "web", "redactions": LIST, "order": "sequential"},
    "masked": {"dataset": "chat", "seed": 7, "mask_borders": True, "order": "random"},
    "packed": {"dataset": "code", "order": "packed", "rank": 1, "world_size": 2},
    "mixture": {
        "mixture": {
            "stages": [
                {"weights": {"web": 3, "code": 2}},
                {"first_sample": 5, "weights": {"code": 1, "chat": 4}},
            ],
            "sources": {"code": {"order": "packed"}, "chat": {"order": "padded", "long": "drop"}},
            "redactions": [{"dataset": "web", "list": LIST, "first_sample": 0}],
            "seed": 4,
        },
    },
}
"""Arguments of the feeds whose requests are recorded."""


def read(address: str) -> str:
    """Read a few batches of each feed, and single rows, and return the SHA-256 of all of them."""
    digest = hashlib.sha256()
    for arguments in FEEDS.values():
        with opened(NumpyBatches, address, arguments | {"num_batches": 3}) as feed:
            for batch in feed:
                for each in batch:
                    digest.update(each.astype("<i8").tobytes())
    with opened(NumpyBatches, address, FEEDS["shuffled"]) as feed:
        for row in feed.as_dataset().__getitems__([5, 0, 80]):
            for each in row:
                digest.update(each.astype("<i8").tobytes())
    return digest.hexdigest()
