"""One dataset on one server, or on several that stand in for each other.

Whatever asks servers runs in threads that no signal interrupts: a consumer's thread waits for what
they find (threads.py).
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar

from tokenfeed.errors import (
    InvalidRequest,
    NotATokenfeedServer,
    NotFound,
    RequestError,
    Unreachable,
    listed,
)
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import Expected, StreamRequest

from ..runtime.notifier import Notifier
from ..runtime.supervisor import Supervisor, Task
from ..runtime.threads import Outcome, start_thread, without_frames
from ..transport.channel import Channel, DescribeCall
from ..transport.credentials import CREDENTIAL_FIELDS, PLAINTEXT, Credentials
from ..transport.replicas import Replica, ReplicaSet, Targets
from ..transport.timeouts import Timeouts
from .describe import describe_all
from .failover import Failover
from .usable import plane_fingerprint, require_usable

_LOG = logging.getLogger("tokenfeed.client")

Result = TypeVar("Result")
Ask = Callable[[float, set[DescribeCall]], Result]
"""Asks servers, with so many seconds for it; the set holds the calls that are waited for."""


class Agreement(Protocol):
    """What the ranks of a feed have in common."""

    def require_same(self, dataset: str, fingerprint: bytes) -> None:
        """Compare the corpus with that of other ranks.  Raises: StreamMismatch."""


class DatasetClient:
    """Where streams of one dataset come from. They all share its connections."""

    def __init__(
        self,
        targets: Targets,
        request: StreamRequest,
        *,
        timeouts: Timeouts,
        credentials: Credentials = PLAINTEXT,
        client_name: str = "",
        fingerprint: bytes | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        """Remember where to ask; does no I/O.

        targets: as for Replicas.  request: what streams are of; they differ from it by their place
        alone. Its rank says which server they ask first, modulo their number, and stands in the
        log.  timeouts: as for Tour.
        credentials: used as they are, without the environment.  client_name: by which servers' logs
        name this client; "" is none.
        fingerprint: that the corpus has to have; None believes the first server that answers, and
        then agreement, which compares what ranks believe.
        Raises: InvalidRequest if a target is no address.
        """
        self._targets = targets
        self._credentials = credentials
        self.client_name = client_name
        self._request = request
        self._fingerprint = fingerprint
        self._agreement = agreement
        self._timeouts = timeouts
        self._process = 0
        self._owner: weakref.ref[object] | None = None
        self._described: pb.Dataset | None = None
        self._connect()

    def _connect(self) -> None:
        """Make all that has a lock, or a thread: none of that is kept where one does not end."""
        self._replicas = ReplicaSet(self._targets, self._credentials)
        self._supervisor = Supervisor(self._replicas.close)
        if self._owner is not None and (owner := self._owner()) is not None:
            self._supervisor.end_with(owner)
        # Never taken by a thread that a signal may interrupt.
        self._surveying = threading.Lock()
        self._accepted: weakref.WeakSet[Channel] = weakref.WeakSet()

    def end_with(self, owner: object) -> None:
        """Close it when an object is let go of."""
        self._owner = weakref.ref(owner)
        self._supervisor.end_with(owner)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._supervisor.closed

    @property
    def forked(self) -> bool:
        """Whether this is the copy that a fork made of one in use: its connections and threads
        stayed with the parent.
        """
        return self._process not in (0, os.getpid())

    def failover(self, awaited_since: Callable[[], float | None]) -> Failover:
        """Return in which order the servers are asked, and how patiently, from now on.

        awaited_since: as for Tour.
        """
        return Failover(
            self._replicas,
            rank=self._request.position.rank,
            timeouts=self._timeouts,
            awaited_since=awaited_since,
        )

    @contextmanager
    def connected(
        self, replica: Replica, timeout_seconds: float, asked: set[DescribeCall]
    ) -> Iterator[Channel]:
        """Lend the connection to a server, once it has said that it serves the same corpus as the
        others.

        asked: holds the calls that are waited for, so that another thread can cancel them.
        Raises: ServerUnavailable; StreamMismatch, naming it; RequestError.
        """
        reference = self.described(timeout_seconds, asked)
        try:
            with replica.connected() as channel:
                if channel not in self._accepted:
                    answer = self._ask(channel, self._own_length, timeout_seconds, asked)
                    self._require_usable(replica, answer, reference)
                    self._learn_digest(answer.datasets[0])
                    self._accepted.add(channel)
                yield channel
        except InvalidRequest as error:
            if error.subject not in CREDENTIAL_FIELDS:
                raise
            # They were good before: somebody is renewing them.
            raise Unreachable(replica.address, str(error)) from None
        except NotATokenfeedServer as error:
            if not replica.has_served:
                raise
            # It is one: this is what a proxy says while the server behind it is replaced.
            raise Unreachable(replica.address, str(error)) from None

    def described(self, timeout_seconds: float, asked: set[DescribeCall]) -> pb.Dataset:
        """Return what the servers say of the dataset: fingerprint, tokens, rows of each order.

        Asks all of them, once, from whatever thread comes first; the first in order that answers is
        believed, unless it is known which corpus it has to be.
        Raises: ServerUnavailable, RequestError where none answers; StreamMismatch where none has
        that corpus; InvalidRequest where several datasets are served and none was named, or once it
        is closed.
        """
        with self._surveying:
            if self._described is None:
                if self.closed:
                    raise _closed_unused()
                described = self._survey(self._own_length, timeout_seconds, asked)
                if self._agreement is not None and self._fingerprint is None:
                    self._agreement.require_same(described.name, described.fingerprint)
                self._described = described
            return self._described

    def expected(self, timeout_seconds: float, asked: set[DescribeCall]) -> Expected:
        """As `described`, but return what a request says of it."""
        described = self.described(timeout_seconds, asked)
        spec = self._request.spec
        return Expected(
            spec.identity([described.fingerprint]),
            spec.identity_version,
            described.digest,
            tuple((kind, plane_fingerprint(described, kind)) for kind in spec.planes),
        )

    def await_described(self) -> pb.Dataset:
        """As `described`, but wait for servers that are away; for a consumer's thread.  Raises:
        RequestError, CorpusError; Unreachable after reconnect_seconds.
        """
        return self._described or self._await(self.described)

    def _await(self, ask: Ask[Result]) -> Result:
        """Return what servers answer, as soon as there is one that does.

        ask: asks all of them.  Raises: as `await_described`.
        """
        self.require_own_process()
        return _Question(self, ask).answer()

    def begin_use(self) -> Supervisor:
        """Return what looks after tasks of this process, and of no fork of it."""
        self._process = os.getpid()
        return self._supervisor

    def leave_behind(self, task: Task) -> None:
        """Have nothing more to do with a task that does not end, nor with its connections: the next
        one has its own.
        """
        if not self.closed:
            _LOG.warning("left a connection behind: what was cancelled on it does not end")
            left = self._supervisor
            self._connect()
            left.retire(task)

    def rows_of(self, order: str, context_length: int | None = None) -> int:
        """Return the rows of an order, those of an epoch where it has them, waiting as
        `await_described`.

        context_length: another one than the request's.
        Raises: NotFound if servers do not know the order; StreamMismatch if they have another
        corpus by now; as `await_described`.
        """
        described = self.await_described()
        if context_length is not None:
            described = self._await(partial(self._survey, context_length))
        for counted in described.rows:
            if counted.order == order:
                return counted.rows
        raise NotFound("order", f"{order} is not known to the servers of this feed")

    def require_own_process(self) -> None:
        """Raise InvalidRequest in the copy that a fork made of one in use."""
        if self.forked:
            raise InvalidRequest(
                "RemoteBatches",
                f"was started in process {self._process} and does not survive its fork "
                f"{os.getpid()}; make it in the process that uses it",
            )

    def close(self) -> None:
        """End the connections and all calls on them, also one that nobody answers. May be called
        twice, from any thread, and by a signal handler.
        """
        if self.forked:
            self._supervisor.closed = True
        else:
            self._supervisor.close()

    def _survey(
        self, context_length: int, timeout_seconds: float, asked: set[DescribeCall]
    ) -> pb.Dataset:
        """Ask all servers, accept those that have the same corpus, and name the others.

        context_length: for which windows are counted.
        """
        replicas = self._replicas.known()
        answers = describe_all(
            replicas,
            lambda channel: self._ask(channel, context_length, timeout_seconds, asked),
            timeout_seconds,
        )
        reference = self._described
        if reference is None and self._fingerprint is not None:
            reference = pb.Dataset(fingerprint=self._fingerprint)
        found: pb.Dataset | None = None
        refused: list[RequestError] = []
        for answer in answers:
            try:
                self._require_usable(answer.replica, answer.described, reference)
            except RequestError as error:  # noqa: PERF203 - the others may do
                refused.append(without_frames(error))
            else:
                self._accepted.add(answer.channel)
                dataset = answer.described.datasets[0]
                # The first one that knows a digest says which one all others have to have.
                if found is None or (dataset.digest and not found.digest):
                    found = dataset
                # What knows no digest does not take the place of what does.
                if reference is None or found.digest or not reference.digest:
                    reference = found
        if found is None:
            if len(answers) == len(replicas):
                raise refused[0]
            # One that is away may have it.
            raise Unreachable(refused[0].subject, refused[0].problem)
        for refusal in refused:
            _LOG.error("refused %s", refusal)
        self._learn_digest(found)
        return found

    def _learn_digest(self, dataset: pb.Dataset) -> None:
        """Go by its digest from now on, where none was known."""
        known = self._described
        if known is not None and dataset.digest and not known.digest:
            learned = pb.Dataset()
            learned.CopyFrom(known)
            learned.digest = dataset.digest
            self._described = learned

    def _ask(
        self,
        channel: Channel,
        context_length: int,
        timeout_seconds: float,
        asked: set[DescribeCall],
    ) -> pb.DescribeResponse:
        name = self._request.spec.source.dataset
        request = pb.DescribeRequest(dataset=name, context_length=context_length)
        try:
            call = channel.describe(request, timeout_seconds)
        except ValueError:  # the channel was closed meanwhile
            raise Unreachable(channel.target, "was not asked any more") from None
        asked.add(call)
        try:
            described = call.result(is_first_contact=self._described is None)
        finally:
            asked.discard(call)
        if len(described.datasets) != 1:
            names = listed([one.name for one in described.datasets]) or "there are none"
            raise InvalidRequest("dataset", f"has to name one of those served: {names}")
        return described

    def _require_usable(
        self, replica: Replica, described: pb.DescribeResponse, reference: pb.Dataset | None
    ) -> None:
        require_usable(replica.address, described, self._request, self.client_name, reference)

    @property
    def _own_length(self) -> int:
        return self._request.spec.context_length


class _Question(Generic[Result]):
    """What a consumer's thread asks servers, and waits for."""

    def __init__(self, remote: DatasetClient, ask: Ask[Result]) -> None:
        """ask: asks all servers."""
        self._remote = remote
        self._supervisor = remote.begin_use()
        self._ask = ask
        self._asked: set[DescribeCall] = set()
        self._outcome: Outcome[Result] = Outcome()
        self._notifier = Notifier()
        self._given_up = False
        self._begun = False
        began = time.monotonic()
        self._failover = remote.failover(lambda: began)
        self.ended = False

    def answer(self) -> Result:
        """Return the answer; for one waiter.  Raises: what asking raises; InvalidRequest if the
        feed is closed before there is an answer; Unreachable where nobody comes back from asking.
        """
        try:
            self._supervisor.add(self)
            start_thread(self._run, "tokenfeed-describe")
            return self._outcome.wait(self._require_in_time)
        finally:
            self._given_up = True
            self._supervisor.wake()

    def due_seconds(self, now: float) -> float:
        """Return when to cancel: once nobody waits any more; for the supervisor."""
        if not self._is_over():
            return math.inf
        if not self._begun:
            self.ended = True  # its thread never began, or finds that it is over
        self._notifier.notify()
        return 0.0

    def cancel(self) -> None:
        """Cancel all that is under way; for the supervisor."""
        for call in tuple(self._asked):
            call.cancel()

    def _is_over(self) -> bool:
        return self._given_up or self._remote.closed

    def _run(self) -> None:
        self._begun = True
        self._outcome.run(self._ask_all)
        self.ended = True
        self._supervisor.wake()

    def _require_in_time(self) -> None:
        self._failover.require_in_time(0.0)
        if self._remote.closed:
            raise _closed_unused()

    def _ask_all(self) -> Result:
        answer = self._failover.run(
            lambda _: self._ask(self._failover.read_seconds, self._asked),
            pause=self._notifier.wait,
            is_over=self._is_over,
            asks_all=True,
        )
        if answer is None:
            raise _closed_unused()
        return answer


def _closed_unused() -> InvalidRequest:
    return InvalidRequest("RemoteBatches", "is closed, and was never in use before")
