"""OLMo-core's InstancePacker: best-fit decreasing on rows of T tokens, a power of two.

Documents of more than T tokens are truncated, which is the default of OLMo-core, or fragmented.
The chunks are made before, as its `iter_document_indices_with_max_sequence_length` makes them.
"""

from __future__ import annotations

import numpy as np
from olmo_core.data.utils import InstancePacker

from benchmarks.packing_run import Numbers, Packed, main

SETTINGS = {"truncate": {"is_cut": False}, "fragment": {"is_cut": True}}


def pack(lengths: Numbers, context_length: int, *, is_cut: bool) -> Packed:
    """Place the chunks."""
    ends = np.cumsum(lengths)
    counts = -(-lengths // context_length) if is_cut else np.ones_like(lengths)
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.repeat(ends - lengths, counts) + numbers * context_length
    chunks = np.minimum(np.repeat(ends, counts), firsts + context_length)
    instances, placed, _ = InstancePacker(context_length).pack_documents(
        np.stack([firsts, chunks], axis=1).astype(np.uint64)
    )
    sizes = (placed[:, 1] - placed[:, 0]).astype(np.int64)
    order = np.array([chunk for instance in instances for chunk in instance], np.int64)
    rows = np.repeat(np.arange(len(instances)), [len(instance) for instance in instances])
    return Packed(rows, sizes[order], context_length)


if __name__ == "__main__":
    main(pack, SETTINGS)
