"""tokenfeed itself: the pieces of all rows of packed-1, as a server finds them."""

from __future__ import annotations

import numpy as np

from benchmarks.packing_run import ONE_SETTING, Numbers, Packed, main
from tokenfeed.sampling.packing import histogram, places
from tokenfeed.sampling.packing import pack as pack_histogram

SETTINGS = ONE_SETTING


def pack(lengths: Numbers, context_length: int) -> Packed:
    """Find where every piece begins, and which ones each row has."""
    packing = pack_histogram(histogram(lengths, context_length))
    begins = places(np.cumsum(lengths) - lengths, lengths, context_length)
    first_pieces, _, sizes = packing.pieces(np.arange(packing.row_count))
    rows = np.repeat(np.arange(packing.row_count), np.diff(first_pieces))
    # The pieces of a document overlap by one token.
    overlaps = begins.size - int(np.count_nonzero(lengths > 1))
    return Packed(rows, sizes, context_length + 1, overlaps)


if __name__ == "__main__":
    main(pack, SETTINGS)
