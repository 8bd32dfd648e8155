"""Sends Describe to all servers of a feed at once, so that a server with another corpus is reported
at the start and not during an outage.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from functools import partial

from tokenfeed.errors import (
    BeingMade,
    InvalidRequest,
    ListMissing,
    NotFound,
    RequestError,
    ServerUnavailable,
    TokenfeedError,
    Unreachable,
    listed,
)
from tokenfeed.stream.stream import Stream
from tokenfeed.v1 import tokenfeed_pb2 as pb

from ..runtime.threads import start_thread, without_traceback
from ..transport.channel import Channel
from ..transport.replicas import Replica
from ..transport.tls_check import TLS_CHECK_SECONDS
from .server_check import require_order

_STRAGGLER_SECONDS = 1.0
"""How long to wait for the other servers after the first answer, and for all of them after their
timeout."""


Answer = tuple[Replica, Channel, pb.DescribeResponse]
"""What a server said, and the connection that it arrived on."""


def describe_all(
    replicas: Sequence[Replica],
    describe: Callable[[Channel], pb.DescribeResponse],
    timeout_seconds: float,
) -> list[Answer]:
    """Return the servers' answers in the order of replicas, at least one. Servers that answer long
    after the first one are omitted.

    replicas: at least one.  describe: waits for the answer on a connection, for timeout_seconds;
    called by several threads.
    Raises: the error of one server if none answers; a ServerUnavailable, if there is one, since a
    retry may help.
    """
    results: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()

    def describe_one(replica: Replica) -> None:
        try:
            with replica.connected() as channel:
                results.put((replica, channel, describe(channel)))
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            results.put(without_traceback(error))

    for replica in replicas:
        start_thread(partial(describe_one, replica), "tokenfeed-describe-one")
    answers: list[Answer] = []
    errors: list[BaseException] = []
    end = time.monotonic() + timeout_seconds + TLS_CHECK_SECONDS + _STRAGGLER_SECONDS
    for _ in replicas:
        try:
            answer = results.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(answer, BaseException):
            errors.append(answer)
        else:
            answers.append(answer)
            end = min(end, time.monotonic() + _STRAGGLER_SECONDS)
    if not (answers or errors):
        raise Unreachable(replicas[0].address, "the Describe call did not end")
    if not answers:
        raise _representative(errors)
    return sorted(answers, key=lambda answer: replicas.index(answer[0]))


def describe_sources(
    stream: Stream,
    context_length: int,
    target: str,
    answer: Callable[[pb.DescribeRequest], pb.DescribeResponse],
) -> pb.DescribeResponse:
    """Return what one server says of the sources of a stream, in their order.

    context_length: for the number of windows.  target: the server, for errors.  answer: asks it.
    Raises: NotFound or InvalidRequest if it does not serve them, or not with their orders.
    """
    is_one = len(stream.sources) == 1
    name = stream.source.dataset if is_one else ""
    request = pb.DescribeRequest(dataset=name, context_length=context_length)
    described = answer(request)
    served = {dataset.name: dataset for dataset in described.datasets}
    names = listed(list(served)) or "there are none"
    if not is_one:
        missing = [each.dataset for each in stream.sources if each.dataset not in served]
        if missing:
            problem = f"{missing[0]!r} is not served by {target}, only {names}"
            cure = "all sources of a mixture have to be on the same servers"
            raise NotFound("mixture", f"{problem}; {cure}")
        del described.datasets[:]
        described.datasets.extend(served[each.dataset] for each in stream.sources)
    elif len(described.datasets) != 1:
        raise InvalidRequest("dataset", f"has to name one of the served datasets: {names}")
    for source, dataset in zip(stream.sources, described.datasets, strict=True):
        if source.reads_documents:
            require_order(described, source.order.NAME)
            request = pb.DescribeRequest(
                dataset=dataset.name,
                context_length=context_length,
                long_documents=source.long_documents,
                order=source.order.NAME,
            )
            dataset.CopyFrom(answer(request).datasets[0])
    return described


def refusal_of_all(
    refused: Sequence[RequestError], away: Sequence[Unreachable], *, have_all_answered: bool
) -> TokenfeedError:
    """Return the error of servers of which none can be used: if possible one that time may cure.

    refused, away: of those that answered, one at least.  have_all_answered: else another one may
    have the corpus.
    """
    if away:
        return _not_ready(away)
    first = next((each for each in refused if isinstance(each, ListMissing)), refused[0])
    return first if have_all_answered else Unreachable(first.subject, first.problem)


def _not_ready(away: Sequence[Unreachable]) -> Unreachable:
    """Return the error of the first of several servers, with what any of them is making."""
    making = [error for error in away if isinstance(error, BeingMade)]
    if not making:
        return away[0]
    progress = {name: share for error in making for name, share in error.progress.items()}
    return BeingMade(making[0].subject, making[0].problem, progress)


def _representative(errors: Sequence[BaseException]) -> BaseException:
    """Return one error for all: if possible one that a retry may fix, plus the other reasons."""
    away = [error for error in errors if isinstance(error, ServerUnavailable)]
    if not away or len(away) == len(errors):
        return (away or errors)[0]
    refused = [str(error) for error in errors if not isinstance(error, ServerUnavailable)]
    return Unreachable(away[0].subject, "; ".join((away[0].problem, *refused)))
