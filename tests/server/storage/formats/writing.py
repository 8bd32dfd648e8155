"""Headers and indices in the layout of their writers, for tests, the fuzzer and the benchmark."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

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


def litgpt_header(count: int, *, version: int = 1, code: int = 8) -> bytes:
    """As packed_dataset.py of lit-gpt writes it.  code: of the type of tokens."""
    return struct.pack("<7sQBQ", b"LITPKDS", version, code, count)


def litdata_chunk(items: list[npt.NDArray[np.integer]]) -> bytes:
    """As writer.py of LitData writes it."""
    ends = np.cumsum([0, *(item.nbytes for item in items)]) + 4 * (len(items) + 2)
    header = np.array([len(items), *ends], "<u4").tobytes()
    return header + b"".join(item.tobytes() for item in items)


def litdata_index(writer: str, token_counts: Mapping[str, int | None]) -> bytes:
    """The index.json beside chunks.

    writer: of their items, such as "no_header_tensor:16".  token_counts: of chunks, by their names;
    None as PyTreeLoader writes it, whose items begin with their size.
    """
    config = {"compression": None, "data_format": [writer]}
    chunks = [{"filename": name, "dim": count} for name, count in token_counts.items()]
    return json.dumps({"chunks": chunks, "config": config}).encode()
