"""The error of a call becomes its gRPC status, and is counted.

Every method of every service runs within `abort_on_error`. tokenfeed/errors.py has the errors and
their statuses; docs/faults.md follows one from a file to a client.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from tokenfeed.errors import Busy, ServerUnavailable, TokenfeedError

from ..runtime.exceptions import log_exception
from .fair_scheduler import CallEnded

_LOG = logging.getLogger("tokenfeed.server")

_JITTER = (0.5, 1.5)


class CallDrained(ServerUnavailable):
    """A call that was ended after a frame, since the server shuts down."""


class CallCounts:
    """Calls that ended for another reason than that they were done, since the start.

    refusals: by name of the status, and kind of error.  evictions: calls whose client did nothing,
    by the name of the timer.  drained: calls that were ended after a frame by the shutdown.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.evictions: Counter[str] = Counter()
        self.drained = 0

    def refused(self, error: TokenfeedError) -> None:
        """Count a call that ends with an error."""
        with self._lock:
            if isinstance(error, CallDrained):
                self.drained += 1
            else:
                self.refusals[error.status, type(error).__name__] += 1

    def failed(self) -> None:
        """Count a call that ends with an unexpected error."""
        with self._lock:
            self.refusals[grpc.StatusCode.UNAVAILABLE.name, "unexpected"] += 1

    def evicted(self, timer: str) -> None:
        """Count a call that is cancelled by a timer."""
        with self._lock:
            self.evictions[timer] += 1

    def copy(self) -> CallCounts:
        """Return a copy."""
        other = CallCounts()
        with self._lock:
            other.refusals, other.evictions = self.refusals.copy(), self.evictions.copy()
            other.drained = self.drained
        return other


@contextmanager
def abort_on_error(context: grpc.ServicerContext, counts: CallCounts) -> Iterator[None]:
    """End a call with the status of the error raised in the with block, and count it. Only the text
    of a TokenfeedError reaches the caller.
    """
    try:
        yield
    except TokenfeedError as error:
        counts.refused(error)
        _LOG.debug("call refused peer=%s status=%s: %s", context.peer(), error.status, error)
        if isinstance(error, Busy):
            # With jitter, or all clients that were refused together retry together.
            milliseconds = int(1000 * error.retry_seconds * random.uniform(*_JITTER))
            # The pushback of gRPC's retry design, A6.
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(milliseconds)),))
        context.abort(grpc.StatusCode[error.status], str(error))
    except (grpc.RpcError, CallEnded):
        pass  # the client went away before it sent a request, or before there was a frame
    except Exception:  # noqa: BLE001 - its text must not reach the caller
        counts.failed()
        log_exception(logging.ERROR, "call failed peer=%s", context.peer())
        context.abort(
            grpc.StatusCode.UNAVAILABLE, "server: failed to answer this request; see the server log"
        )
