"""Raw TCP: sendall and recv_into of as many bytes, a batch a message, neither gathered nor widened.

The ceiling of a socket between two Python processes (https://docs.python.org/3/howto/sockets.html).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from benchmarks.peers.batch import BATCH_BYTES, B, T


def serve(path: str) -> None:
    """Send the same batch for as long as somebody takes it."""
    batch = bytes(BATCH_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"ready {listener.getsockname()[1]}", flush=True)
        while True:
            peer, _ = listener.accept()
            with peer:
                try:
                    while True:
                        peer.sendall(batch)
                except OSError:
                    continue


def take(source: str) -> Iterator[int]:
    """Receive whole batches into the same memory."""
    batch = memoryview(bytearray(BATCH_BYTES))
    with socket.create_connection(("127.0.0.1", int(source))) as server:
        while True:
            received = 0
            while received < BATCH_BYTES:
                received += server.recv_into(batch[received:])
            yield B * T
