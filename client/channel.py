"""The way to a server: address, channel options, and the two calls of the contract as bytes ->
bytes.

Responses are not deserialized by grpc: a frame is sliced, not parsed (tokenfeed.frame).
"""

from __future__ import annotations

import os

# gRPC's core logs to the trainer's stderr when a server goes away or the trainer forks; what is
# worth a line is said by `retry`. It reads this once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from collections.abc import Iterator
from typing import Protocol

import grpc
from grpc.experimental import ChannelOptions

from tokenfeed.errors import InvalidRequest, TokenfeedError, Unreachable, from_status
from tokenfeed.v1 import tokenfeed_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["TokenFeed"].full_name

_OPTIONS = (
    # One row may be longer than the default limit of 4 MiB; otherwise no frame is.
    ("grpc.max_receive_message_length", -1),
    # A proxy set for the web would make every feed unreachable.
    ("grpc.enable_http_proxy", 0),
    # The default windows and frames of HTTP/2 are made for small messages: steadier from the first
    # second.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    # No thread of grpc's own between the socket and the receiving thread.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
    # Look again soon after a server went away; by default grpc waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class Call(Protocol):
    """A call of GetBatch under way: an iterator of encoded frames."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the frames as they arrive.  Raises: grpc.RpcError while iterating."""

    def cancel(self) -> bool:
        """End the call, from any thread."""


class Channel:
    """A connection to one server. Channels to the same server share one connection of this
    process.
    """

    def __init__(self, target: str) -> None:
        """Remember where to connect; does no I/O.

        target: "HOST:PORT", or a name that gRPC resolves ("dns:///host:port").  Raises:
        InvalidRequest if it has no port.
        """
        require_address(target)
        self.target = target
        self._channel = grpc.insecure_channel(target, _OPTIONS)
        self._get_batch: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            f"/{_SERVICE}/GetBatch"
        )
        self._describe: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{_SERVICE}/Describe"
        )

    def get_batch(self, request: pb.GetBatchRequest) -> Call:
        """Send a request and return the call: an iterator of encoded frames."""
        return self._get_batch(request.SerializeToString())

    def describe(self, request: pb.DescribeRequest, timeout_seconds: float) -> pb.DescribeResponse:
        """Ask what is served.  Raises: grpc.RpcError."""
        return pb.DescribeResponse.FromString(
            self._describe(request.SerializeToString(), timeout=timeout_seconds)
        )

    def close(self) -> None:
        """Cancel all calls and let go of the connection."""
        self._channel.close()


def require_address(target: str) -> None:
    """Raise InvalidRequest unless target has a port."""
    if not isinstance(target, str) or (":" not in target.rpartition("]")[2]):
        raise InvalidRequest("target", f"{target!r} is no address; write HOST:PORT")


def final_error(error: grpc.RpcError) -> TokenfeedError | None:
    """Return the exception for a refusal that asking again does not heal, else None."""
    if retry_after_seconds(error) is not None:
        return None
    return from_status(error.code().name, error.details() or "")


def retry_after_seconds(error: grpc.RpcError) -> float | None:
    """Return how long the server asks us to stay away, or None if it does not say."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    for entry in error.trailing_metadata() or ():
        if entry.key == "grpc-retry-pushback-ms" and str(entry.value).isdecimal():
            return int(entry.value) / 1000
    return None


def describe(
    target: str,
    dataset: str | None = None,
    context_length: int | None = None,
    *,
    timeout_seconds: float = 10.0,
) -> pb.DescribeResponse:
    """Return what the server at target serves, in one call.

    dataset: only this one.  context_length: T for which windows are counted.  Raises: RequestError,
    Unreachable.
    """
    channel = Channel(target)
    try:
        return channel.describe(
            pb.DescribeRequest(dataset=dataset or "", context_length=context_length),
            timeout_seconds,
        )
    except grpc.RpcError as error:
        raise final_error(error) or Unreachable(
            target, f"{error.details()} (waited up to {timeout_seconds:.0f} s)"
        ) from None
    finally:
        channel.close()
