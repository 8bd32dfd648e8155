"""A TCP proxy that delivers every byte later by a fixed time, in both directions.

A real delay line: bytes wait in a ring until they are due, and bytes behind them are read
meanwhile, so that the delay does not limit the rate. Reading stops while the ring is full. TCP
itself sees no delay, since each of its connections ends here; HTTP/2 and whatever is above it do.
This is not a benchmark itself.
Run: python -m benchmarks.delay_line --target localhost:50051 --delay-ms 5
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections import deque
from contextlib import suppress

RING_BYTES = 64 << 20  # of each direction: at 5 ms, enough for 13 GB/s
READ_BYTES_MAX = 1 << 18


def main() -> None:
    """Forward connections until terminated, after one line that ends in the address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="HOST:PORT")
    parser.add_argument("--delay-ms", type=float, required=True, help="of each direction")
    arguments = parser.parse_args()
    host, _, port = arguments.target.rpartition(":")
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            client, _ = listener.accept()
            server = socket.create_connection((host, int(port)))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((client, server), (server, client)):
                DelayLine(source, sink, arguments.delay_ms / 1e3).start()


class DelayLine:
    """One direction of a connection: a thread that reads and a thread that writes.

    The ring is indexed by bytes since the beginning, modulo its size. The reader owns [written,
    read + room), the writer [sent, read).
    """

    def __init__(self, source: socket.socket, sink: socket.socket, delay_seconds: float) -> None:
        """Allocate the ring."""
        self._source, self._sink = source, sink
        self._delay_seconds = delay_seconds
        self._ring = memoryview(bytearray(RING_BYTES))
        self._read_bytes = 0
        self._sent_bytes = 0
        self._due: deque[tuple[float, int]] = deque()
        self._ended = False
        self._changed = threading.Condition()

    def start(self) -> None:
        """Start both threads."""
        for run in (self._read, self._write):
            threading.Thread(target=run, daemon=True).start()

    def _read(self) -> None:
        """Read into the ring until the source ends, or the sink is gone."""
        with suppress(OSError):
            while (room := self._room()) and (count := self._source.recv_into(room)):
                due = time.monotonic() + self._delay_seconds
                with self._changed:
                    self._read_bytes += count
                    self._due.append((due, self._read_bytes))
                    self._changed.notify_all()
        self._end()

    def _room(self) -> memoryview | None:
        """Wait until the ring has room, and return a piece of it; None after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._free_bytes() > 0)
            if self._ended:
                return None
            first = self._read_bytes % RING_BYTES
            return self._ring[first : first + min(READ_BYTES_MAX, self._free_bytes())]

    def _free_bytes(self) -> int:
        return RING_BYTES - (self._read_bytes - self._sent_bytes)

    def _write(self) -> None:
        """Send what is due, until everything is sent after the end."""
        with suppress(OSError):
            while (due := self._next_due()) is not None:
                time.sleep(max(0.0, due - time.monotonic()))
                self._send_due()
            self._sink.shutdown(socket.SHUT_WR)
            return
        # The sink is gone: the source must notice.
        self._end()
        with suppress(OSError):
            self._source.shutdown(socket.SHUT_RDWR)

    def _next_due(self) -> float | None:
        """Wait for bytes, and return when they are due; None if there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._due)
            return self._due[0][0] if self._due else None

    def _send_due(self) -> None:
        """Send all bytes that are due, one piece of the ring after the other."""
        now = time.monotonic()
        end = self._sent_bytes
        while self._due and self._due[0][0] <= now:
            end = self._due.popleft()[1]
        while self._sent_bytes < end:
            first = self._sent_bytes % RING_BYTES
            count = min(end - self._sent_bytes, RING_BYTES - first, READ_BYTES_MAX)
            self._sink.sendall(self._ring[first : first + count])
            with self._changed:
                self._sent_bytes += count
                self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


if __name__ == "__main__":
    main()
