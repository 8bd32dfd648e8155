"""First-fit decreasing on the pieces of packed-1: each into the first row that has room for it.

A textbook rule, written for this benchmark: a tree of the largest room among ranges of rows.
"""

from __future__ import annotations

import numpy as np

from benchmarks.packing_run import ONE_SETTING, Numbers, Packed, main
from tokenfeed.sampling.packing import histogram

SETTINGS = ONE_SETTING


def pack(lengths: Numbers, context_length: int) -> Packed:
    """Place the pieces, longest first."""
    counts = histogram(lengths, context_length)
    sizes = np.repeat(np.arange(counts.size)[::-1], counts[::-1])
    overlaps = sizes.size - int(np.count_nonzero(lengths > 1))
    rows = np.array(first_fit(sizes.tolist(), context_length + 1), np.int64)
    return Packed(rows, sizes, context_length + 1, overlaps)


def first_fit(sizes: list[int], row_tokens: int) -> list[int]:
    """Return the row of each piece, in the order given."""
    leaves = 1 << (len(sizes) - 1).bit_length()
    room = [row_tokens] * (2 * leaves)
    rows = []
    for size in sizes:
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < size:
                node += 1
        rows.append(node - leaves)
        room[node] -= size
        while node > 1:
            node //= 2
            left, right = room[2 * node], room[2 * node + 1]
            room[node] = left if left > right else right
    return rows


if __name__ == "__main__":
    main(pack, SETTINGS)
