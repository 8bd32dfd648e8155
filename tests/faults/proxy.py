"""A TCP proxy that injects faults into connections by a script, and counts them.

A fault strikes at a byte of one direction of one connection, so the proxy knows how much that
connection had delivered before.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["cut", "reset", "black hole", "flip", "dribble", "delay"]
Direction = Literal["up", "down"]

_CHUNK_BYTES = 1 << 16
_DRIBBLE_BYTES = 64
DESCRIPTION_BYTES = 2000
"""More than a description of a server, so additional bytes are batches."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a connection.

    direction: "up" is from the client to the server.  at_byte: the first affected byte of that
    direction.  bit: of that byte, for a flip.  seconds: duration of a delay.
    """

    kind: Kind
    direction: Direction
    at_byte: int
    bit: int = 0
    seconds: float = 0.0


@dataclass
class Connection:
    """One connection through the proxy.  faults: its script.  up_bytes, down_bytes: delivered so
    far.
    """

    faults: list[Fault]
    client: socket.socket
    server: socket.socket
    up_bytes: int = 0
    down_bytes: int = 0
    dead: bool = False
    reset: bool = False
    late: dict[Direction, queue.SimpleQueue[tuple[float, bytes] | None]] = field(
        default_factory=lambda: {"up": queue.SimpleQueue(), "down": queue.SimpleQueue()}
    )


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that happened.  down_bytes: delivered to the client by its connection before."""

    fault: Fault
    connection: Connection
    down_bytes: int


@dataclass
class FaultProxy:
    """A proxy in front of a server.

    target: "localhost:PORT", may be changed while it runs.  script: the faults of connection n,
    counted from 0.  latency_seconds: added delay in each direction.
    """

    target: str
    script: Callable[[int], Sequence[Fault]] = lambda _: ()
    latency_seconds: float = 0.0
    connections: list[Connection] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Listen on a free port."""
        self._swallow = threading.Event()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def hits(self) -> int:
        """The number of faults that struck a connection which had delivered batches."""
        return sum(strike.down_bytes > DESCRIPTION_BYTES for strike in self.strikes)

    @property
    def down_bytes(self) -> int:
        """Bytes delivered to clients by all connections."""
        return sum(connection.down_bytes for connection in self.connections)

    def black_hole(self, on: bool) -> None:
        """Start or stop dropping all bytes of all connections."""
        if on:
            self._swallow.set()
        else:
            self._swallow.clear()

    def close(self) -> None:
        """Close all sockets."""
        self._closed = True
        self._listener.close()
        for connection in self.connections:
            _shut(connection.client)
            _shut(connection.server)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(list(self.script(len(self.connections))), client, server)
        self.connections.append(connection)
        for direction in ("up", "down"):
            threading.Thread(target=self._pump, args=(connection, direction), daemon=True).start()

    def _pump(self, connection: Connection, direction: Direction) -> None:
        source, sink = connection.client, connection.server
        if direction == "down":
            source, sink = sink, source
        if self.latency_seconds:
            late = (connection, direction, sink)
            threading.Thread(target=self._deliver_late, args=late, daemon=True).start()
        faults = sorted(
            (fault for fault in connection.faults if fault.direction == direction),
            key=lambda fault: fault.at_byte,
        )
        passed = 0
        try:
            while chunk := source.recv(_CHUNK_BYTES):
                while faults and passed + len(chunk) > faults[0].at_byte:
                    fault = faults.pop(0)
                    before = chunk[: fault.at_byte - passed]
                    self._send(connection, direction, sink, before)
                    self.strikes.append(Strike(fault, connection, connection.down_bytes))
                    rest = chunk[len(before) :]
                    chunk = self._harm(connection, fault, sink, rest)
                    passed += len(before) + len(rest) - len(chunk)
                if not (self._swallow.is_set() or connection.dead):
                    self._send(connection, direction, sink, chunk)
                passed += len(chunk)
        except OSError:
            pass
        connection.late[direction].put(None)
        # If one side closed, close the other side too.
        if not connection.reset:
            _shut(source)
            _shut(sink)

    def _harm(
        self, connection: Connection, fault: Fault, sink: socket.socket, rest: bytes
    ) -> bytes:
        """Inject a fault, and return the bytes of the rest that are still to be sent."""
        if fault.kind == "reset":
            connection.reset = True
            for end in (connection.client, connection.server):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Wakes the thread that reads from it. Without this the socket stays open.
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RD)
                end.close()
            raise ConnectionResetError
        if fault.kind == "cut":
            raise ConnectionAbortedError
        if fault.kind == "black hole":
            connection.dead = True
        elif fault.kind == "flip":
            return bytes([rest[0] ^ (1 << fault.bit)]) + rest[1:]
        elif fault.kind == "delay":
            time.sleep(fault.seconds)
        elif fault.kind == "dribble":
            for index in range(min(_DRIBBLE_BYTES, len(rest))):
                sink.sendall(rest[index : index + 1])
                time.sleep(0.0005)
            return rest[_DRIBBLE_BYTES:]
        return rest

    def _send(
        self, connection: Connection, direction: Direction, sink: socket.socket, data: bytes
    ) -> None:
        if data and self.latency_seconds:
            due = time.monotonic() + self.latency_seconds
            connection.late[direction].put((due, data))
        elif data:
            self._deliver(connection, direction, sink, data)

    def _deliver_late(
        self, connection: Connection, direction: Direction, sink: socket.socket
    ) -> None:
        """Deliver delayed bytes when they are due, in a thread."""
        with suppress(OSError):
            while (item := connection.late[direction].get()) is not None:
                due, data = item
                time.sleep(max(0.0, due - time.monotonic()))
                self._deliver(connection, direction, sink, data)

    def _deliver(
        self, connection: Connection, direction: Direction, sink: socket.socket, data: bytes
    ) -> None:
        sink.sendall(data)
        if direction == "up":
            connection.up_bytes += len(data)
        else:
            connection.down_bytes += len(data)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()
