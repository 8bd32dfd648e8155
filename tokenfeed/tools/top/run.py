"""The loop of `tokenfeed top`: ask, show, wait; and what it asks: a status, which --json prints."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from google.protobuf.message import Message

from tokenfeed.client.runtime.arguments import seconds
from tokenfeed.client.runtime.threads import Outcome
from tokenfeed.client.source.file_target import is_local_target
from tokenfeed.client.transport.credentials import with_environment
from tokenfeed.commands.status import words
from tokenfeed.commands.status.attention import judge
from tokenfeed.commands.status.states import Level
from tokenfeed.errors import (
    InvalidRequest,
    NotATokenfeedServer,
    ServerUnavailable,
    TokenfeedError,
    Unauthenticated,
    Unreachable,
)
from tokenfeed.v1 import status_pb2 as pb

from .. import WAIT_SECONDS
from ..one_server import OneServer
from .screen import Screen, encodable
from .text import Line, status_lines, wrapped

_STEP_SECONDS = 0.1
"""How soon a key, an answer, and another size of the terminal are noticed."""
_RESTART_SHOWN_MS = 60_000
_PROBLEM_SHOWN = 500
"""Characters of an error, which a server may have written."""
TOKEN_VARIABLE = "TOKENFEED_STATUS_TOKEN"


def run_top(arguments: argparse.Namespace) -> None:
    """Show what a server does, until the command is ended."""
    pause_seconds = seconds("seconds", arguments.seconds, zero=False)
    count = arguments.count
    if count is not None and count < 1:
        raise InvalidRequest("count", f"{count} is not at least 1")
    if is_local_target(arguments.target):
        raise InvalidRequest("target", "is not a server")
    source = OneServer(
        arguments.target,
        with_environment(token=TOKEN_VARIABLE),
        thread_name="tokenfeed-status",
        explain=lambda error: _explained(error, arguments.target),
    )
    try:
        if count is None and not arguments.json and sys.stdout.isatty():
            _watch(source, pause_seconds)
        else:
            _print(source, pause_seconds, count or 1, as_json=arguments.json)
    except KeyboardInterrupt:
        return  # the usual end
    except TokenfeedError as error:
        raise TokenfeedError(
            error.subject, words.printable(error.problem, _PROBLEM_SHOWN)
        ) from None
    finally:
        source.close()


def _print(source: OneServer, pause_seconds: float, count: int, *, as_json: bool) -> None:
    """Print a status several times.  Raises: TokenfeedError if the last try failed."""
    for left in reversed(range(count)):
        begun = time.monotonic()
        try:
            status = _ask(source).wait()
        except ServerUnavailable as error:
            if not left:
                raise
            problem = words.printable(error.problem, _PROBLEM_SHOWN)
            print(f"{source.target}: {problem}; trying again", file=sys.stderr)
        else:
            print(_text(status, source.target, as_json=as_json), flush=True)
            if left and not as_json:
                print()
        if left:
            time.sleep(max(0.0, begun + pause_seconds - time.monotonic()))


def _text(status: pb.GetStatusResponse, target: str, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(record(status))
    return encodable("\n".join(line.text for line in status_lines(status, target)))


class _View:
    """What is shown: the last status, and what is to be said of it."""

    def __init__(self, target: str) -> None:
        """Begin without a status."""
        self._target = target
        self._status: pb.GetStatusResponse | None = None
        self._received = 0
        self._first_started_ms = 0
        self._problem = ""
        self._failing_since = 0.0
        self._drawn: tuple[object, ...] = ()

    def received(self, status: pb.GetStatusResponse) -> None:
        """Show this from now on."""
        if self._status is None:
            self._first_started_ms = status.started_ms
        self._status, self._problem = status, ""
        self._received += 1

    def failed(self, error: TokenfeedError, now: float) -> None:
        """Show that there is no newer status.  now: by time.monotonic."""
        if not self._problem:
            self._failing_since = now
        self._problem = error.problem

    def draw(self, screen: Screen, now: float) -> None:
        """Draw it, unless that is what the screen shows."""
        size = screen.size
        failing_seconds = int(now - self._failing_since) if self._problem else 0
        wanted = (self._received, self._problem, failing_seconds, size)
        if wanted == self._drawn:
            return
        self._drawn = wanted
        lines = self._notices(failing_seconds, size.columns)
        if self._status is not None:
            height = size.lines - len(lines)
            lines += status_lines(self._status, self._target, size.columns, height)
        screen.draw(lines)

    def _notices(self, failing_seconds: int, width: int) -> list[Line]:
        target = words.printable(self._target)
        if self._problem:
            problem = words.printable(self._problem, _PROBLEM_SHOWN)
            since = f"No answer from {target} for {failing_seconds} s, trying again: {problem}"
            return [Line(text, Level.PROBLEM) for text in wrapped(since, width, 2)]
        status = self._status
        if status is None:
            return [Line(f"Asking {target} ...")]
        is_young = status.now_ms - status.started_ms < _RESTART_SHOWN_MS
        if is_young and status.started_ms != self._first_started_ms:
            return [Line("The server was restarted.", Level.WARNING)]
        return []


def _watch(source: OneServer, pause_seconds: float) -> None:
    """Show the status in place until the user ends it.  Raises: TokenfeedError if another try does
    not help.
    """
    view = _View(source.target)
    pending: Outcome[pb.GetStatusResponse] | None = None
    due = time.monotonic()
    with Screen() as screen:
        while True:
            now = time.monotonic()
            if pending is None and now >= due:
                pending, due = _ask(source), now + pause_seconds
            try:
                status = pending.wait_for(0.0) if pending else None
            except ServerUnavailable as error:
                view.failed(error, now)
                pending = None
            else:
                if status is not None:
                    view.received(status)
                    pending = None
            view.draw(screen, now)
            if screen.wait(_STEP_SECONDS):
                return


def _ask(server: OneServer) -> Outcome[pb.GetStatusResponse]:
    """Ask a server for its status, and return the outcome: a status or a TokenfeedError."""
    request = pb.GetStatusRequest()
    return server.ask(lambda channel: channel.ask(request, pb.GetStatusResponse, WAIT_SECONDS))


def _explained(error: TokenfeedError, target: str) -> TokenfeedError:
    """Return an error with the cure that is one here."""
    if isinstance(error, NotATokenfeedServer):
        what = "does not know tokenfeed.v1.Status"
        return NotATokenfeedServer(
            target, f"{what}: it is an older tokenfeed server, or another program"
        )
    if isinstance(error, Unauthenticated):
        cure = f"set {TOKEN_VARIABLE} or {TOKEN_VARIABLE}_FILE"
        return Unauthenticated(error.subject, f"{error.problem}; {cure}")
    if isinstance(error, Unreachable) and "UNAVAILABLE: failed to connect" in error.problem:
        return Unreachable(target, "no server answers")
    return error


def record(status: pb.GetStatusResponse) -> dict[str, Any]:
    """Return a status, and what is made of it: "attention", and "state" and "run" of streams, which
    are sorted as they are shown.
    """
    judgement = judge(status)
    streams = [
        {**_values(seen.status), "state": seen.state.name, "run": seen.run}
        for seen in judgement.streams
    ]
    points = [{"level": point.level.name.lower(), "text": point.text} for point in judgement.points]
    return {**_values(status), "streams": streams, "attention": points}


def _values(message: Message) -> dict[str, Any]:
    """Return the fields of a message: bytes as hexadecimal digits, and None for one that is not
    set and need not be.
    """
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            value = None
        elif field.type == field.TYPE_BYTES:
            value = value.hex()
        elif isinstance(value, Message):
            value = _values(value)
        elif field.message_type is not None:
            value = [_values(each) for each in value]
        elif not isinstance(value, (bool, int, float, str)):
            value = list(value)
        found[field.name] = value
    return found
