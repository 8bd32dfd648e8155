"""Sizes beyond 2^31 bytes and counts beyond 2^32 tokens, in every format that allows them.

The files are holes; what is compared is where their tokens lie.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.storage.formats.reading import ends, read
from tests.server.storage.formats.writing import llmc_header, megatron_index

COUNT = 2**32 + 100


def sparse(path: Path, head: bytes, size_bytes: int) -> Path:
    path.write_bytes(head)
    os.truncate(path, len(head) + size_bytes)
    return path


def raw(folder: Path) -> tuple[Path, int]:
    return sparse(folder / "x.bin", b"", 2 * COUNT), 0


def llmc(folder: Path) -> tuple[Path, int]:
    """Its count is an int32."""
    return sparse(folder / "x.bin", llmc_header(2**31 - 1), 2 * (2**31 - 1)), 1024


def megatron(folder: Path) -> tuple[Path, int]:
    lengths, pointers = [2**31 - 1, 2**31 - 1, 102], [0, 2**32 - 2, 2**33 - 4]
    (folder / "x.idx").write_bytes(megatron_index(lengths, pointers, [0, 2, 3]))
    return sparse(folder / "x.bin", b"", 2 * COUNT), 0


def datatrove(folder: Path) -> tuple[Path, int]:
    (folder / "x.ds.index").write_bytes(struct.pack("<2Q", 2**32 - 2, COUNT))
    (folder / "x.ds.metadata").write_text(f"gpt2|2\n{COUNT}")
    return sparse(folder / "x.ds", b"", 2 * COUNT), 0


def npy(folder: Path) -> tuple[Path, int]:
    text = f"{{'descr': '<u2', 'fortran_order': False, 'shape': (4, {COUNT // 4}), }}"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n"
    return sparse(folder / "x.npy", header, 2 * COUNT), 128


def safetensors(folder: Path) -> tuple[Path, int]:
    entry = {"dtype": "U16", "shape": [COUNT], "data_offsets": [0, 2 * COUNT]}
    header = json.dumps({"ids": entry}).encode()
    path = sparse(folder / "x.safetensors", struct.pack("<Q", len(header)) + header, 2 * COUNT)
    return path, 8 + len(header)


@pytest.mark.parametrize("write", [raw, llmc, megatron, datatrove, npy, safetensors])
def test_all_tokens_are_counted(tmp_path: Path, write: Callable[[Path], tuple[Path, int]]) -> None:
    path, first_byte = write(tmp_path)

    layout = read(path)

    assert layout.first_byte == first_byte
    assert layout.token_count == (2**31 - 1 if write is llmc else COUNT)


@pytest.mark.parametrize("write", [megatron, datatrove])
def test_documents_end_beyond_32_bits(
    tmp_path: Path, write: Callable[[Path], tuple[Path, int]]
) -> None:
    path, _ = write(tmp_path)

    assert ends(read(path)) == [2**32 - 2, COUNT]
