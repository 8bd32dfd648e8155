"""Datasets on one server, or on several replicas: one dataset, or those of a mixture.

All requests run in threads that no signal interrupts. A consumer's thread waits for their results
(threads.py).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tokenfeed.errors import (
    InvalidRequest,
    NotATokenfeedServer,
    RequestError,
    Unauthenticated,
    Unreachable,
)
from tokenfeed.stream.stage import Redactions
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import AnyRequest, Hints, Request

from ..runtime.awaited_task import AwaitedTask
from ..runtime.counters import Counters
from ..runtime.notifier import Notifier
from ..runtime.supervisor import Task
from ..runtime.threads import without_traceback
from ..transport.addresses import Targets
from ..transport.channel import Channel, DescribeCall
from ..transport.credentials import CREDENTIAL_FIELDS, PLAINTEXT, Credentials
from ..transport.replicas import Replica, ReplicaSet
from ..transport.timeouts import Timeouts
from .calls import Calls
from .datasets import Datasets, Requirements
from .describe import describe_all, describe_sources, refusal_of_all
from .failover import Failover
from .row_stream import RowStream
from .server_check import Descriptions, require_server, with_hashes

if TYPE_CHECKING:
    from typing import Unpack

_LOG = logging.getLogger("tokenfeed.client")

_Accepted = weakref.WeakKeyDictionary[Channel, Redactions]
"""Connections to servers that were found usable, and the redactions whose lists these have."""
Ask = Callable[[float, set[DescribeCall]], Descriptions]
"""Asks servers, with a timeout in seconds; the set holds the open calls, to be cancelled."""


class Servers(Datasets):
    """Datasets on one server, or on several replicas. All streams share its connections."""

    def __init__(
        self,
        targets: Targets,
        request: Request,
        *,
        timeouts: Timeouts,
        credentials: Credentials = PLAINTEXT,
        client_name: str = "",
        is_tool: bool = False,
        authority: str | None = None,
        **required: Unpack[Requirements],
    ) -> None:
        """Remember the servers; does no I/O.

        targets: as for ReplicaSet.  request: its rank selects the first server, modulo their
        number, and appears in the log.  timeouts: as for Failover.  credentials: used as they are,
        without the environment.  is_tool: whether it is a command that trains nothing.
        authority: as for ReplicaSet.  required:
        without a fingerprint, that of the first server that answers is accepted.
        Raises: InvalidRequest if a target is not an address.
        """
        super().__init__(request, **required)
        self._targets = targets
        self._credentials = credentials
        self._authority = authority
        self.hints = Hints(client_name, is_tool=is_tool)
        self._timeouts = timeouts
        self._connect()

    def _connect(self) -> None:
        """Create all locks and threads: none is reused after a task that did not end."""
        self._replicas = ReplicaSet(self._targets, self._credentials, self._authority)
        self._supervise(self._replicas.close)
        # Never taken by a thread that a signal may interrupt.
        self._describe_lock = threading.Lock()
        self._accepted = _Accepted()

    def failover(self, awaited_since: Callable[[], float | None]) -> Failover:
        """Return a new Failover over the servers.  awaited_since: as for Failover."""
        return Failover(
            self._replicas,
            rank=self._request.position.rank,
            timeouts=self._timeouts,
            awaited_since=awaited_since,
        )

    @contextmanager
    def connected(
        self,
        replica: Replica,
        request: AnyRequest,
        timeout_seconds: float,
        open_calls: set[DescribeCall],
    ) -> Iterator[tuple[Channel, Calls]]:
        """Lend the connection to a server, after a check that it serves the same corpus, with the
        lists of a request; and the calls for its rows.

        open_calls: holds the calls in progress, so that another thread can cancel them.
        Raises: ServerUnavailable; StreamMismatch, naming the server; RequestError.
        """
        reference = self.described(timeout_seconds, open_calls)
        redactions = request.stream.redactions
        try:
            with replica.connected() as channel:
                if not self._is_accepted(channel, redactions):
                    answer = self._describe(
                        channel, self._context_length, timeout_seconds, open_calls
                    )
                    self._require_usable(replica.address, answer, reference, redactions)
                    self._learn_hashes(tuple(answer.datasets))
                    self._accepted[channel] = redactions
                described = self.described(timeout_seconds, open_calls)
                yield channel, Calls(self.planes.request(request, described), described)
        except (InvalidRequest, Unauthenticated) as error:
            if not _is_of_credentials(error):
                raise
            # They were valid before: a renewal may be in progress.
            raise Unreachable(replica.address, str(error)) from None
        except NotATokenfeedServer as error:
            if not replica.has_served:
                raise
            # It has sent rows before: a proxy answers like this while its server is replaced.
            raise Unreachable(replica.address, error.problem) from None

    def described(self, timeout_seconds: float, open_calls: set[DescribeCall]) -> Descriptions:
        """Return the description of each source: fingerprint, tokens, rows of each order.

        The first thread that calls this asks all servers, once. Without a required corpus, that of
        the first server in order that answers is accepted.
        Raises: ServerUnavailable or RequestError if none answers; StreamMismatch if none has the
        required corpus; InvalidRequest if servers have several datasets and none was named, or
        after `close`.
        """
        with self._describe_lock:
            if self._described is None:
                if self.closed:
                    raise _closed_unused()
                redactions = self._request.stream.redactions
                described = self._describe_all(
                    self._context_length, redactions, timeout_seconds, open_calls
                )
                self._begin(described)
            assert self._described is not None
            return self._described

    def await_described(self) -> Descriptions:
        """Like `described`, but wait for unavailable servers; for a consumer's thread.  Raises:
        RequestError, CorpusError; Unreachable after reconnect_seconds.
        """
        return self._described or self._await(self.described)

    def _await(self, ask: Ask) -> Descriptions:
        """Return the result of ask; retries until a server answers.

        ask: asks all servers.  Raises: like `await_described`.
        """
        self.require_own_process()
        open_calls: set[DescribeCall] = set()
        notifier, began = Notifier(), time.monotonic()
        failover = self.failover(lambda: began)

        def work(is_over: Callable[[], bool]) -> Descriptions:
            result = failover.run(
                lambda _: ask(failover.read_seconds, open_calls),
                pause=notifier.wait,
                is_over=is_over,
                asks_all=True,
            )
            if result is None:
                raise _closed_unused()
            return result

        def check_wait() -> None:
            failover.require_in_time(0.0)
            if self.closed:
                raise _closed_unused()

        def cancel() -> None:
            notifier.notify()
            for call in tuple(open_calls):
                call.cancel()

        return AwaitedTask(
            self.begin_use(), "tokenfeed-describe", work, check_wait=check_wait, cancel=cancel
        ).result()

    def abandon(self, task: Task) -> None:
        """Abandon a task that does not end, and its connections. Later tasks use new ones."""
        if not self.closed:
            _LOG.warning("connection abandoned, a cancelled call on it does not end")
            abandoned = self._supervisor
            self._connect()
            if abandoned.closed:  # meanwhile, since the feed is gone or the process ends
                self._supervisor.begin_to_close()
            abandoned.retire(task)

    def read_documents(self) -> None:
        """Read document starts too from now on. Servers that were accepted without a look at them
        are checked again.
        """
        super().read_documents()
        self._accepted = _Accepted()

    def open_rows(
        self, request: AnyRequest, *, prefetch_bytes: int, counters: Counters
    ) -> RowStream:
        """Return the rows of a stream, which does not receive before `start`."""
        return RowStream(
            self,
            request,
            connect=self.connected,
            failover=self.failover,
            hints=self.hints,
            prefetch_bytes=prefetch_bytes,
            counters=counters,
        )

    def _describe_again(self, context_length: int, redactions: Redactions) -> Descriptions:
        """Ask all servers; ListMissing if after 3 s none has all lists."""
        return self._await(partial(self._describe_all, context_length, redactions))

    def _describe_all(
        self,
        context_length: int,
        redactions: Redactions,
        timeout_seconds: float,
        open_calls: set[DescribeCall],
    ) -> Descriptions:
        """Ask all servers, accept those with the same corpus, and log the others.

        context_length, redactions: as for `_describe_again`.
        """
        replicas = self._replicas.known()
        describe = partial(
            self._describe,
            context_length=context_length,
            timeout_seconds=timeout_seconds,
            open_calls=open_calls,
        )
        try:
            answers = describe_all(replicas, describe, timeout_seconds)
        except (InvalidRequest, Unauthenticated, NotATokenfeedServer) as error:
            may_pass = isinstance(error, NotATokenfeedServer) or _is_of_credentials(error)
            if self._described is None or not may_pass:
                raise
            # As in `connected`.
            raise Unreachable(str(self._replicas), str(error)) from None
        reference = self._reference(context_length)
        found: Descriptions | None = None
        refused: list[tuple[str, RequestError]] = []
        not_ready: list[Unreachable] = []
        for replica, channel, described in answers:
            try:
                self._require_usable(replica.address, described, reference, redactions)
            except RequestError as error:  # noqa: PERF203 - another server may fit
                refused.append((replica.address, without_traceback(error)))
            except Unreachable as error:
                not_ready.append(without_traceback(error))
            else:
                if not self._is_accepted(channel, redactions):
                    self._accepted[channel] = redactions
                # The first known digest is required of all others.
                found = with_hashes(found, tuple(described.datasets))
                is_known = reference is not None and reference[0].name
                reference = with_hashes(reference if is_known else None, found)
        if found is None:
            errors = [error for _, error in refused]
            raise refusal_of_all(errors, not_ready, have_all_answered=len(answers) == len(replicas))
        for address, refusal in refused:
            _LOG.error("server rejected address=%s reason=%s", address, refusal.problem)
        for away in not_ready:
            _LOG.warning("server left out for now address=%s reason=%s", away.subject, away.problem)
        self._learn_hashes(found)
        return found

    def _require_usable(
        self,
        address: str,
        described: pb.DescribeResponse,
        reference: Descriptions | None,
        redactions: Redactions,
    ) -> None:
        """Raise what `require_server` does."""
        stream = replace(self._request.stream, redactions=redactions)
        request, name = replace(self._request, stream=stream), self.hints.client_name
        require_server(address, described, request, name, reference, self.planes)

    def _learn_hashes(self, datasets: Descriptions) -> None:
        """Store the hashes that were not known yet. Later checks compare them."""
        if self._described is not None:
            self._described = with_hashes(self._described, datasets)

    def _describe(
        self,
        channel: Channel,
        context_length: int,
        timeout_seconds: float,
        open_calls: set[DescribeCall],
    ) -> pb.DescribeResponse:
        def answer(request: pb.DescribeRequest) -> pb.DescribeResponse:
            try:
                call = channel.ask(request, pb.DescribeResponse, timeout_seconds)
            except ValueError:  # the channel was closed meanwhile
                raise Unreachable(channel.target, "its connection was closed") from None
            open_calls.add(call)
            try:
                return call.result(is_first_contact=self._described is None)
            finally:
                open_calls.discard(call)

        return describe_sources(self._request.stream, context_length, channel.target, answer)

    def _is_accepted(self, channel: Channel, redactions: Redactions) -> bool:
        """Return whether a server was found usable, with the lists of these redactions."""
        accepted = self._accepted.get(channel)
        return accepted is not None and set(redactions) <= set(accepted)


def _closed_unused() -> InvalidRequest:
    return InvalidRequest(
        "feed", "is closed, and had no answer from a server before; create a new one"
    )


def _is_of_credentials(error: RequestError) -> bool:
    """Return whether an error is of a token or a certificate, which may be being renewed: trainers
    and servers do not get a new one at the same moment.
    """
    return isinstance(error, Unauthenticated) or error.subject in CREDENTIAL_FIELDS
