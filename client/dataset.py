"""One dataset on one server, or on several that stand in for each other."""

from __future__ import annotations

import copy
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenfeed.errors import InvalidRequest, StreamMismatch, Unreachable
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .channel import CREDENTIALS, PLAINTEXT, Channel, DescribeCall, Security
from .replicas import Replica, Replicas, Targets
from .survey import survey
from .tour import PROGRESS_SECONDS, Tour

_LOG = logging.getLogger("tokenfeed.client")


class RemoteDataset:
    """Where streams of one dataset come from. They all share its connections."""

    def __init__(
        self,
        targets: Targets,
        dataset: str,
        context_length: int,
        *,
        deadline_seconds: float | None,
        progress_seconds: float = PROGRESS_SECONDS,
        first_replica: int = 0,
        security: Security = PLAINTEXT,
    ) -> None:
        """Remember where to ask; does no I/O.

        targets: as for Replicas.  dataset: "" is the only one served.  deadline_seconds: how long
        to wait for servers that are away; None is for ever.  progress_seconds: how long to wait for
        one of them.  first_replica: which one a stream asks first, modulo their number.
        Raises: InvalidRequest if a target is no address.
        """
        self._replicas = Replicas(targets, security)
        self._request = pb.DescribeRequest(dataset=dataset, context_length=context_length)
        self._deadline_seconds = deadline_seconds
        self._progress_seconds = progress_seconds
        self._first_replica = first_replica
        self._process = 0
        self._closed = threading.Event()
        self._pending: set[DescribeCall] = set()
        self._surveying = threading.RLock()  # a signal handler may ask while it is asked
        self._described: pb.Dataset | None = None
        self._accepted: weakref.WeakSet[Channel] = weakref.WeakSet()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed.is_set()

    @property
    def forked(self) -> bool:
        """Whether this is the copy that a fork made of one in use: its connections and threads
        stayed with the parent.
        """
        return self._process not in (0, os.getpid())

    def tour(self, awaited_since: Callable[[], float | None] = lambda: -math.inf) -> Tour:
        """Return in which order the servers are asked, and how patiently, from now on.

        awaited_since: as for Tour.
        """
        return Tour(
            self._replicas,
            first=self._first_replica,
            progress_seconds=self._progress_seconds,
            deadline_seconds=self._deadline_seconds,
            awaited_since=awaited_since,
        )

    @contextmanager
    def connected(self, replica: Replica, timeout_seconds: float) -> Iterator[Channel]:
        """Lend the connection to a server, once it has said that it serves the same corpus as the
        others.

        Raises: ServerAway; StreamMismatch, naming it; RequestError.
        """
        reference = self.described(timeout_seconds)
        try:
            with replica.connected() as channel:
                if channel not in self._accepted:
                    _require_same(replica, self._ask(channel, timeout_seconds), reference)
                    self._accepted.add(channel)
                yield channel
        except InvalidRequest as error:
            if error.subject not in CREDENTIALS:
                raise
            # They were good before: somebody is renewing them.
            raise Unreachable(replica.address, str(error)) from None

    def described(self, timeout_seconds: float) -> pb.Dataset:
        """Return what the servers say of the dataset: fingerprint, tokens, windows per epoch.

        Asks all of them, once, from whatever thread comes first; the first in order that answers is
        believed.  Raises: ServerAway, RequestError where none answers; InvalidRequest where several
        datasets are served and none was named, or once it is closed.
        """
        with self._surveying:
            if self._described is None:
                if self.closed:
                    raise _closed_unused()
                self._process = os.getpid()
                self._described = self._survey(timeout_seconds)
            return self._described

    def await_described(self) -> pb.Dataset:
        """As `described`, but wait for servers that are away.  Raises: RequestError, CorpusError;
        Unreachable past the deadline.
        """
        if self._described is not None:
            return self._described
        self.require_own_process()
        tour = self.tour()
        described = tour.until_done(
            lambda _: self.described(tour.progress_seconds),
            pause=self._closed.wait,
            is_over=self._closed.is_set,
            asks_all=True,
        )
        if described is None:
            raise _closed_unused()
        return described

    def windows_per_epoch(self, context_length: int) -> int:
        """Return the windows of an epoch at another context length, waiting as `await_described`.

        Raises: StreamMismatch if whoever answers now has another corpus; as `await_described`.
        """
        corpus = self.await_described()
        other = copy.copy(self)  # with the same servers, and closed together with this one
        other._request = pb.DescribeRequest(
            dataset=self._request.dataset, context_length=context_length
        )
        other._described = None
        other._surveying = threading.RLock()
        other._accepted = weakref.WeakSet()
        described = other.await_described()
        if described.fingerprint != corpus.fingerprint:
            raise StreamMismatch(
                str(self._replicas),
                f"serves another corpus by now: fingerprint {described.fingerprint.hex()}, "
                f"not {corpus.fingerprint.hex()}",
            )
        return described.windows_per_epoch

    def require_own_process(self) -> None:
        """Raise InvalidRequest in the copy that a fork made of one in use."""
        if self.forked:
            raise InvalidRequest(
                "RemoteBatches",
                f"was started in process {self._process} and does not survive its fork "
                f"{os.getpid()}; make it in the process that uses it",
            )

    def interrupt(self) -> None:
        """Have whoever waits for a description wait no longer; it may ask again."""
        for call in list(self._pending):
            call.cancel()

    def close(self) -> None:
        """End the connections and all calls on them, also one that nobody answers. May be called
        twice, and from any thread.
        """
        self._closed.set()
        if not self.forked:
            self.interrupt()
            self._replicas.close()

    def _survey(self, timeout_seconds: float) -> pb.Dataset:
        """Ask all servers, accept those that have the same corpus, and name the others."""
        answers = survey(
            self._replicas.known(), lambda channel: self._ask(channel, timeout_seconds)
        )
        reference = answers[0].described
        for answer in answers:
            try:
                _require_same(answer.replica, answer.described, reference)
                self._accepted.add(answer.channel)
            except StreamMismatch as error:  # noqa: PERF203 - the others may have the same
                _LOG.error("refused %s", error)
        return reference

    def _ask(self, channel: Channel, timeout_seconds: float) -> pb.Dataset:
        call = channel.describe(self._request, timeout_seconds)
        self._pending.add(call)
        try:
            described = call.result()
        finally:
            self._pending.discard(call)
        if len(described.datasets) != 1:
            names = ", ".join(dataset.name for dataset in described.datasets) or "there are none"
            raise InvalidRequest("dataset", f"has to name one of those served: {names}")
        return described.datasets[0]


def _closed_unused() -> InvalidRequest:
    return InvalidRequest("RemoteBatches", "is closed, and was never in use before")


def _require_same(replica: Replica, described: pb.Dataset, reference: pb.Dataset) -> None:
    """Raise StreamMismatch unless a server has the corpus that the stream began with: by the
    fingerprint, and by the digest where both have one.
    """
    for name in ("fingerprint", "digest"):
        theirs, ours = getattr(described, name), getattr(reference, name)
        known = name == "fingerprint" or (theirs and ours)
        if known and theirs != ours:
            raise StreamMismatch(
                replica.address, f"serves another corpus: {name} {theirs.hex()}, not {ours.hex()}"
            )
