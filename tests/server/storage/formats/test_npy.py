"""NumPy's arrays, written by numpy.save."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import read, tokens
from tokenfeed.errors import InvalidCorpus

TYPES = ["|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(12,), (3, 4), (1, 12)])
def test_rows_are_laid_end_to_end(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(100, 112, dtype=dtype).reshape(shape))

    layout = read(path)

    assert (layout.format, layout.dtype) == ("npy", np.dtype(dtype))
    assert layout.first_byte == 128
    assert tokens(path, layout) == list(range(100, 112))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "renamed.bin"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.arange(5, dtype="<u2"), version)

    assert tokens(path, read(path)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.arange(6, dtype=">u2"), "big-endian"),
        (np.asfortranarray(np.arange(6, dtype="<u2").reshape(2, 3)), "in Fortran order"),
    ],
)
def test_what_has_to_be_converted_first_comes_with_the_command_that_does(
    tmp_path: Path, array: np.ndarray, problem: str
) -> None:
    path = tmp_path / "some $HOME 'tokens\".npy"
    np.save(path, array)

    with pytest.raises(InvalidCorpus, match=problem) as caught:
        read(path)
    command = sys.executable + caught.value.problem.partition("python")[2]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True, timeout=20)
    converted = tmp_path / "converted.npy"
    assert tokens(converted, read(converted)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.arange(6, dtype="<f4"), "float32; tokens are integers"),
        (np.array([None, 1], dtype=object), "object; tokens are integers"),
        (np.zeros(3, dtype=[("a", "<u2")]), "tokens are integers"),
        (np.zeros(3, dtype="?"), "tokens are integers"),
        (np.array(5, dtype="<u2"), r"shape \(\); tokens are 1-D"),
        (np.zeros((2, 2, 2), "<u2"), "tokens are 1-D, or 2-D rows"),
        (np.zeros(0, "<u2"), "no tokens"),
        (np.zeros((3, 0), "<u2"), "no tokens"),
    ],
)
def test_an_array_of_something_else_is_refused(
    tmp_path: Path, array: np.ndarray, problem: str
) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, array)

    with pytest.raises(InvalidCorpus, match=rf"tokens\.npy: .*{problem}"):
        read(path)


FORM = "{'descr': '<u2', 'fortran_order': False, 'shape': %s, }\n"


def header(text: str, size: int | None = None, version: int = 1) -> bytes:
    length = (size or len(text)).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode()


def shaped(shape: str, version: int = 1) -> bytes:
    text = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}\n"
    return header(text, version=version) + bytes(6)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (shaped("(3,)")[:-2], "6 bytes"),
        (shaped("(3,)") + bytes(2), "6 bytes"),
        (shaped("(3,)", version=9), r"version \(9, 0\)"),
        (shaped("(-3,)"), "2\\^63"),
        (shaped("(True,)"), "2\\^63"),
        (shaped(f"(0x{'f' * 6000},)"), "2\\^63"),
        (shaped(f"({'9' * 18}, {'9' * 18})"), "6 bytes follow"),
        (shaped("(2**99,)"), "numpy cannot"),
        (header("{'descr': '<u2', 'shape': (3,), }\n") + bytes(6), "numpy cannot read"),
        (header("(" * 9000), "numpy cannot read"),
        (header("[" * 500 + "]" * 500), "numpy cannot read"),
        (header("{}", 60_000) + bytes(70_000), "numpy cannot read"),
        (b"\x93NUMPY", "numpy cannot read"),
    ],
)
def test_an_invalid_header_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "tokens.npy"
    path.write_bytes(content)

    with pytest.raises(InvalidCorpus, match=rf"tokens\.npy: .*{problem}"):
        read(path)
