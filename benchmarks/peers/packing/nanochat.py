"""nanochat's rule, written again on lengths from its nanochat/dataloader.py.

Documents are read into a buffer of a thousand, 128 at a time. A row of T + 1 tokens takes the
longest document of the buffer that fits, again and again. If none fits, the shortest one is cropped
to what is left of the row. Here the data ends once, and the buffer is used up; nanochat goes on
with the next epoch. The time is that of this version, which keeps the buffer sorted.
"""

from __future__ import annotations

from bisect import bisect_right, insort

import numpy as np

from benchmarks.packing_run import ONE_SETTING, Numbers, Packed, main

SETTINGS = ONE_SETTING
BUFFER = 1000
READ = 128


def pack(lengths: Numbers, context_length: int) -> Packed:
    """Fill row after row."""
    documents = lengths.tolist()
    buffer: list[int] = []
    rows, sizes = [], []
    row, room, read = 0, context_length + 1, 0
    while buffer or read < len(documents):
        while len(buffer) < BUFFER and read < len(documents):
            for length in documents[read : read + READ]:
                insort(buffer, length)
            read += READ
        place = bisect_right(buffer, room) - 1
        size = min(buffer.pop(max(place, 0)), room)
        rows.append(row)
        sizes.append(size)
        room -= size
        if not room:
            row, room = row + 1, context_length + 1
    return Packed(np.array(rows), np.array(sizes), context_length + 1)


if __name__ == "__main__":
    main(pack, SETTINGS)
