"""nanochat's rule, written again on lengths from its nanochat/dataloader.py.

Documents are read into a buffer of a thousand, 128 at a time. A row of T + 1 tokens takes the
longest document of the buffer that fits, again and again. If none fits, the shortest one is cropped
to what is left of the row.

"ten epochs": the data is read ten times, and what is in the buffer then is left out. So the longest
documents stay in the buffer for good, as they do in nanochat, and do not count as cropped.  "one
epoch": the data is read once, and the buffer is used up.
The time is that of this version, which keeps the buffer sorted.
"""

from __future__ import annotations

from bisect import bisect_right, insort

import numpy as np

from benchmarks.packing_run import Numbers, Packed, main

SETTINGS = {"ten epochs": {"epochs": 10}, "one epoch": {"epochs": 1}}
BUFFER = 1000
READ = 128


def pack(lengths: Numbers, context_length: int, *, epochs: int) -> Packed:
    """Fill row after row."""
    unread = np.tile(lengths, epochs).tolist()
    unread.reverse()
    buffer: list[int] = []
    documents, rows, sizes = [], [], []
    row, room = 0, context_length + 1
    while unread or (buffer and epochs == 1):
        while len(buffer) < BUFFER and unread:
            for length in unread[-READ:]:
                insort(buffer, length)
            del unread[-READ:]
        place = bisect_right(buffer, room) - 1
        documents.append(buffer.pop(max(place, 0)))
        rows.append(row)
        sizes.append(min(documents[-1], room))
        room -= sizes[-1]
        if not room:
            row, room = row + 1, context_length + 1
    return Packed(
        np.array(rows), np.array(sizes), context_length + 1, documents=np.array(documents)
    )


if __name__ == "__main__":
    main(pack, SETTINGS)
