"""What does a gather without SIGBUS cost? Per frame of 256 rows of 2,049 uint16 tokens, warm.

Decides docs/decisions/0003-gather.md. Run: python -m benchmarks.gather
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import print_table
from tests.support.stores import map_store, pread_store
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.local.mapped_bytes import MappedBytes
from tokenfeed.server.storage.local.safe_copy import FileCopier
from tokenfeed.server.storage.store import TokenStore
from tokenfeed.stream.position import Position
from tokenfeed.wire.draft import drafts
from tokenfeed.wire.frame import Frames

TOKENS = 200_000_000
ROWS = 256
ROW_TOKENS = 2049
FRAMES = 300
ROUNDS = 5

Gather = Callable[[np.ndarray], bytes]


def main() -> None:
    """Print median microseconds per frame, best and worst round, and the ratio to memcpy."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.random.default_rng(0).integers(0, 50_257, TOKENS, dtype=np.uint16).tofile(path)
        ways = gathers(path)
        starts = np.random.default_rng(1).integers(0, TOKENS - ROW_TOKENS, (FRAMES, ROWS))
        medians: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, gather in ways.items():
                medians[name].append(microseconds(gather, starts))
    print_table("a frame of 256 x 2,049 uint16 tokens as bytes", "us", medians)


def microseconds(gather: Gather, starts: np.ndarray) -> float:
    """Return the median time of a frame."""
    taken = []
    for offsets in starts:
        begun = time.perf_counter()
        gather(offsets)
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken)) * 1e6


def gathers(path: Path) -> dict[str, Gather]:
    """Return all ways, each from token offsets to one bytes object."""
    tokens = np.memmap(path, np.uint16, "r")
    tokens.sum()
    windows = np.lib.stride_tricks.sliding_window_view(tokens, ROW_TOKENS)
    direct = map_store("train", [str(path)], FormatOptions())
    by_file = map_store("train", [str(path)], FormatOptions())
    assert isinstance(by_file.files, MappedBytes)
    by_file.files.copier = FileCopier()
    by_pread = pread_store("train", [str(path)], FormatOptions())
    shard = np.zeros(ROWS, dtype=np.int64)
    frames = Frames(ROW_TOKENS, Position(0, ROWS), bytes(32), {})
    descriptor = os.open(path, os.O_RDONLY)
    block = np.empty((ROWS, ROW_TOKENS), dtype=np.uint16)
    flat = memoryview(block.reshape(-1).view(np.uint8))
    rows = [flat[2 * ROW_TOKENS * i : 2 * ROW_TOKENS * (i + 1)] for i in range(ROWS)]
    process_vm = ProcessVm(block, tokens.ctypes.data)

    def by_store(store: TokenStore) -> Gather:
        """Return the way of a store: into a message, as the server does."""

        def gather(offsets: np.ndarray) -> bytes:
            (message,) = drafts(frames, 0, ROWS, store.dtype)
            store.gather(Spans.of_windows(ROW_TOKENS, shard, offsets), message.tokens)
            return message.sealed()

        return gather

    def preadv(offsets: np.ndarray) -> bytes:
        for row, offset in zip(rows, offsets.tolist(), strict=True):
            os.preadv(descriptor, [row], 2 * offset)
        return b"".join((block.data,))

    return {
        "memcpy of as many bytes": lambda _: b"".join((block.data,)),
        "fancy index (SIGBUS)": lambda offsets: b"".join((windows[offsets].data,)),
        "process_vm_writev into the message, with header and checksum (ours)": by_store(direct),
        "the same through a memfd (ours where that is forbidden)": by_store(by_file),
        "process_vm_readv": process_vm.read,
        "process_vm_writev": process_vm.write,
        "preadv a row": preadv,
        "preadv a row into the message (ours)": by_store(by_pread),
    }


class ProcessVm:
    """Copies between maps of this process by the kernel."""

    def __init__(self, block: np.ndarray, address: int) -> None:
        """Copy into block from the map at address."""
        self._block = block
        self._address = address
        self._libc = ctypes.CDLL(None, use_errno=True)
        kinds = [ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]
        for call in (self._libc.process_vm_readv, self._libc.process_vm_writev):
            call.argtypes = kinds
            call.restype = ctypes.c_ssize_t
        self._target = np.array([[block.ctypes.data, block.nbytes]], dtype=np.uint64)
        self._rows = np.full((ROWS, 2), 2 * ROW_TOKENS, dtype=np.uint64)

    def read(self, offsets: np.ndarray) -> bytes:
        """Pin the pages of the map and copy from them."""
        self._rows[:, 0] = self._address + 2 * offsets
        rows, target = self._rows.ctypes.data, self._target.ctypes.data
        self._libc.process_vm_readv(os.getpid(), target, 1, rows, ROWS, 0)
        return b"".join((self._block.data,))

    def write(self, offsets: np.ndarray) -> bytes:
        """Pin the pages of the target and copy to them."""
        self._rows[:, 0] = self._address + 2 * offsets
        rows, target = self._rows.ctypes.data, self._target.ctypes.data
        self._libc.process_vm_writev(os.getpid(), rows, ROWS, target, 1, 0)
        return b"".join((self._block.data,))


if __name__ == "__main__":
    main()
