"""One dataset on one server: the connection, and what the server says of the dataset."""

from __future__ import annotations

import os
import threading

from tokenfeed.errors import InvalidRequest
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .channel import Channel, require_address
from .retry import Retry

_DESCRIBE_SECONDS = 5.0


class RemoteDataset:
    """Where streams of one dataset come from. They all share its connection."""

    def __init__(
        self, target: str, dataset: str, context_length: int, *, deadline_seconds: float | None
    ) -> None:
        """Remember where to ask; does no I/O.

        dataset: "" is the only one served.  deadline_seconds: how long to wait for a server that is
        away; None is for ever.  Raises: InvalidRequest if target is no address.
        """
        require_address(target)
        self._target = target
        self._request = pb.DescribeRequest(dataset=dataset, context_length=context_length)
        self._deadline_seconds = deadline_seconds
        self._opening = threading.Lock()
        self._channel: Channel | None = None
        self._process = 0
        self._asking = threading.Lock()
        self._described: pb.Dataset | None = None
        self._closed = threading.Event()

    @property
    def channel(self) -> Channel:
        """The connection, made when it is first needed."""
        with self._opening:
            if self._channel is None:
                self._channel = Channel(self._target)
                self._process = os.getpid()
            return self._channel

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed.is_set()

    @property
    def forked(self) -> bool:
        """Whether this is the copy that a fork made of one in use: its connection and threads
        stayed with the parent.
        """
        return self._process not in (0, os.getpid())

    def patience(self) -> Retry:
        """Return how long its server may be away, from now on."""
        return Retry(self._target, self._deadline_seconds)

    def described(self) -> pb.Dataset:
        """Return what the server says of the dataset: fingerprint, tokens, windows per epoch.

        Asks once, from whatever thread comes first.  Raises: grpc.RpcError; InvalidRequest where
        several datasets are served and none was named, or once it is closed.
        """
        with self._asking:
            if self._described is None:
                if self.closed:
                    raise InvalidRequest("RemoteBatches", "is closed, and was never in use before")
                described = self.channel.describe(self._request, _DESCRIBE_SECONDS)
                if len(described.datasets) != 1:
                    names = ", ".join(dataset.name for dataset in described.datasets)
                    raise InvalidRequest("dataset", f"has to name one of those served: {names}")
                self._described = described.datasets[0]
            return self._described

    def await_described(self) -> pb.Dataset:
        """As `described`, but wait for a server that is away.  Raises: RequestError, CorpusError;
        Unreachable past the deadline.
        """
        if self._described is not None:
            return self._described
        self.require_own_process()
        return self.patience().until_done(self.described, self._closed.wait)

    def require_own_process(self) -> None:
        """Raise InvalidRequest in the copy that a fork made of one in use."""
        if self.forked:
            raise InvalidRequest(
                "RemoteBatches",
                f"was started in process {self._process} and does not survive its fork "
                f"{os.getpid()}; make it in the process that uses it",
            )

    def close(self) -> None:
        """End the connection and all calls on it, also one that nobody answers. May be called
        twice, and from any thread.
        """
        self._closed.set()
        if self._channel is not None and not self.forked:
            self._channel.close()
