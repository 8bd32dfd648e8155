"""Raw TCP: the same bytes through a socket, not gathered, checked or widened.

Source: Python's Socket Programming HOWTO and the `socket` module's reference
(docs.python.org/3/howto/sockets.html): `sendall` of prepared frames, `recv_into` a buffer that is
reused. Frames of 8 batches, like ours.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.contender import ONE_SETTING, main, serving
from benchmarks.rows import BATCH_SIZE, FRAME_BATCHES, ROW_TOKENS, Rows, prepared_rows
from benchmarks.widen import widen

SETTINGS = ONE_SETTING


@contextmanager
def batches(path: Path) -> Iterator[Iterator[Rows]]:
    """Yield an iterator over uint16 [B, T + 1]; each is overwritten by a later one."""
    with serving("benchmarks.peers.tcp", "--serve", "--data", str(path)) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            yield _received(connection)


def _received(connection: socket.socket) -> Iterator[Rows]:
    rows = np.empty((FRAME_BATCHES, BATCH_SIZE, ROW_TOKENS), dtype=np.uint16)
    room = memoryview(rows.reshape(-1).view(np.uint8))
    while True:
        filled = 0
        while filled < len(room):
            filled += connection.recv_into(room[filled:])
        yield from rows


def serve(path: Path) -> None:
    """Send frames to the first client for as long as it reads."""
    frames = [memoryview(rows).cast("B") for rows in prepared_rows(path, FRAME_BATCHES)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        connection, _ = listener.accept()
        try:
            for frame in itertools.cycle(frames):
                connection.sendall(frame)
        except ConnectionError:
            pass


def to_pair(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Widen one batch, for the check."""
    return widen(rows)


if __name__ == "__main__":
    main(batches, SETTINGS, serve=serve, to_pair=to_pair)
