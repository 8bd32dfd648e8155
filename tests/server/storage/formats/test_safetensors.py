"""Tensors of tokens, written by safetensors."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.storage.formats.reading import read, tokens
from tokenfeed.errors import InvalidCorpus

TYPES = {"U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4"}
TYPES |= {"U64": "<u8", "I64": "<i8"}


def save(path: Path, **arrays: np.ndarray) -> Path:
    library = pytest.importorskip("safetensors.numpy", exc_type=ImportError)
    library.save_file(arrays, path, metadata={"tokenizer": "gpt2"})
    return path


@pytest.mark.parametrize("dtype", TYPES.values())
@pytest.mark.parametrize("shape", [(12,), (3, 4)])
def test_the_only_tensor_of_integers_is_taken(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    content = np.arange(100, 112).astype(dtype).reshape(shape)
    path = save(tmp_path / "x.bin", tokens=content, scores=np.zeros(7, "<f4"))

    layout = read(path)

    assert (layout.format, layout.dtype) == ("safetensors", np.dtype(dtype))
    assert tokens(path, layout) == list(range(100, 112))


def test_one_of_several_has_to_be_named(tmp_path: Path) -> None:
    two = {"a/ids": np.arange(3, dtype="<u2"), "b": np.arange(9, dtype="<i4")}
    path = save(tmp_path / "x.safetensors", **two)

    with pytest.raises(
        InvalidCorpus, match=r"2 integer tensors \('a/ids', 'b'\); name one: .*#NAME"
    ):
        read(path)
    assert tokens(path, read(path, tensor="a/ids")) == [0, 1, 2]
    assert tokens(path, read(path, tensor="b")) == list(range(9))
    with pytest.raises(InvalidCorpus, match="no integer tensor 'c'; it has 'a/ids', 'b'"):
        read(path, tensor="c")


def test_a_tensor_can_be_named_only_where_there_are_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(100))

    with pytest.raises(InvalidCorpus, match="has no tensor 'a'"):
        read(path, tensor="a")


def test_a_file_truncated_in_its_header_is_not_taken_for_raw_tokens(tmp_path: Path) -> None:
    path = save(tmp_path / "x.safetensors", tokens=np.arange(40, dtype="<u2"))
    path.write_bytes(path.read_bytes()[:40])

    with pytest.raises(InvalidCorpus, match="is truncated"):
        read(path)


@pytest.mark.parametrize("length", [200_000_000, 2**63, 2**64 - 1])
def test_a_file_with_an_impossible_length_is_not_taken_for_raw_tokens(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw(GOOD, length=length))

    with pytest.raises(InvalidCorpus, match=f"a header of {length} bytes, and is truncated"):
        read(path)


@pytest.mark.parametrize("spaces", [" ", "\n  ", "\t"])
def test_a_header_may_have_spaces(tmp_path: Path, spaces: str) -> None:
    """The library reads such a header too."""
    header = json.dumps({"tokens": GOOD}).replace("{", "{" + spaces, 1).encode()
    path = tmp_path / "train.bin"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(6))

    assert read(path).format == "safetensors"


def raw(entry: Any, data: bytes = bytes(6), length: int | None = None) -> bytes:
    header = json.dumps({"tokens": entry} if isinstance(entry, dict) else entry).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


GOOD: dict[str, Any] = {"dtype": "U16", "shape": [3], "data_offsets": [0, 6]}


def test_a_header_written_by_hand_is_read_like_the_library_s(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw(GOOD))

    assert tokens(path, read(path)) == [0, 0, 0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (raw(GOOD, bytes(5)), "beyond the file's end; it may be truncated"),
        (raw(GOOD | {"data_offsets": [0, 4]}), "cannot have 4 bytes"),
        (raw(GOOD | {"data_offsets": [4, 0]}), "beyond the file's end"),
        (raw(GOOD | {"data_offsets": [-6, 0]}), "beyond the file's end"),
        (raw(GOOD | {"data_offsets": [2**64, 2**64 + 6]}), "beyond the file's end"),
        (raw(GOOD | {"data_offsets": [0]}), "tokens are 1-D"),
        (raw(GOOD | {"data_offsets": "no"}), "needs a shape and data_offsets"),
        (raw(GOOD | {"data_offsets": [False, 6]}), "needs a shape and data_offsets"),
        (raw(GOOD | {"shape": [2**40, 2**40]}), "cannot have 6 bytes"),
        (raw(GOOD | {"shape": [-3, -1]}), "beyond the file's end"),
        (raw(GOOD | {"shape": []}), "tokens are 1-D, or 2-D rows"),
        (raw(GOOD | {"shape": [1, 1, 3]}), "tokens are 1-D, or 2-D rows"),
        (raw(GOOD | {"shape": [0], "data_offsets": [0, 0]}), "cannot have 0 bytes"),
        (raw(GOOD | {"dtype": "F32"}), "has no tensor of integers"),
        (raw({"dtype": 5}), "has no tensor of integers"),
        (raw({"a": 1}), "invalid safetensors header"),
        (raw({}, bytes(60)), "invalid safetensors header"),
        (raw(GOOD, length=200), "a header of 200 bytes, and is truncated"),
        (raw(GOOD, bytes(2_000_000), length=1_500_000), "the limit is 1048576"),
        (raw(GOOD, length=30), "invalid safetensors header"),
        (struct.pack("<Q", 4000) + b'{"a":' + b"[" * 3995, "invalid safetensors header"),
        (struct.pack("<Q", 6000) + b'{"a":' + b"9" * 5995, "invalid safetensors header"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)

    with pytest.raises(InvalidCorpus, match=rf"x\.safetensors: .*{problem}"):
        read(path, form="safetensors")
