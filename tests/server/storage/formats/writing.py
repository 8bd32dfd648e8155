"""Headers and indices in the layout of their writers, for tests, the fuzzer and the benchmark."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt


def llmc_header(count: int, *, magic: int = 20240520, version: int = 1, beyond: int = 0) -> bytes:
    """As dev/data/data_common.py of llm.c writes it.  beyond: the first number after the count."""
    header = np.zeros(256, "<i4")
    header[:4] = magic, version, count, beyond
    return header.tobytes()


def megatron_index(
    lengths: npt.ArrayLike, pointers: npt.ArrayLike, places: npt.ArrayLike, code: int = 8
) -> bytes:
    """As indexed_dataset.py of Megatron-LM writes it.

    lengths: of sequences, in tokens.  pointers: where they begin, in bytes.  places: of documents,
    in sequences, with the end of the last.  code: of their type.
    """
    parts = np.array(lengths, "<i4"), np.array(pointers, "<i8"), np.array(places, "<i8")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, parts[0].size, parts[2].size)
    return header + b"".join(part.tobytes() for part in parts)
