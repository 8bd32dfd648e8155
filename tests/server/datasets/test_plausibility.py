"""Files that have no header and are no tokens are not served as tokens."""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.server.conftest import options
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.formats import FormatOptions

Random = np.random.Generator


def bfloat16(random: Random) -> npt.NDArray[np.uint16]:
    return (random.normal(0, 0.02, 100_000).astype("<f4").view("<u4") >> 16).astype("<u2")


FLOATS: dict[str, Callable[[Random], npt.NDArray[np.generic]]] = {
    "float32": lambda random: random.normal(0, 1, 50_000).astype("<f4"),
    "float64": lambda random: random.normal(0, 3, 50_000),
    "float16": lambda random: random.normal(0, 0.1, 100_000).astype("<f2"),
    "bfloat16": bfloat16,
}
POSITIVE: dict[str, Callable[[Random], npt.NDArray[np.generic]]] = {
    "float32": lambda random: random.random(50_000).astype("<f4"),
    "float64": lambda random: random.random(50_000),
    "float32 of float16": lambda random: random.normal(0, 1, 50_000).astype("<f2").astype("<f4"),
    "float64 of float32": lambda random: random.random(50_000).astype("<f4").astype("<f8"),
    "float32 with zeros": lambda random: np.maximum(random.normal(0, 1, 50_000), 0).astype("<f4"),
}


def open_files(*paths: Path, given: FormatOptions | None = None) -> None:
    source = DatasetSource("x", tuple(map(str, paths)))
    open_dataset(source, given or options(), TokenChecks()).close()


@pytest.mark.parametrize("name", ["x.bin", "x.dat"])
@pytest.mark.parametrize("kind", FLOATS)
def test_floats_are_refused_unless_the_user_says_raw(tmp_path: Path, kind: str, name: str) -> None:
    """Embeddings, weights, logits."""
    path = tmp_path / name
    FLOATS[kind](np.random.default_rng(1)).tofile(path)

    with pytest.raises(InvalidCorpus, match=f"holds {kind}; pass --format raw if it is tokens"):
        open_files(path)
    open_files(path, given=FormatOptions.parse("raw", None, None))


@pytest.mark.parametrize("name", ["x.bin", "x.npy", "x.ds"])
@pytest.mark.parametrize("kind", POSITIVE)
def test_floats_of_any_kind_are_refused_in_every_format_without_a_header(
    tmp_path: Path, kind: str, name: str
) -> None:
    """Probabilities, and numbers that were made from narrower ones."""
    path = tmp_path / name
    POSITIVE[kind](np.random.default_rng(1)).tofile(path)

    with pytest.raises(InvalidCorpus, match=f"holds {kind.split()[0]}; pass --format raw"):
        open_files(path)


@pytest.mark.parametrize("name", ["mask.bin", "mask.npy"])
@pytest.mark.parametrize("ones", [0.3, 1.0])
def test_a_mask_of_bytes_beside_wider_tokens_is_refused(
    tmp_path: Path, name: str, ones: float
) -> None:
    """Two of its bytes are one token: 0, 1, 256 or 257."""
    random = np.random.default_rng(1)
    tokens, mask = tmp_path / name.replace("mask", "tokens"), tmp_path / name
    random.integers(0, 50_000, 40_000).astype("<u2").tofile(tokens)
    (random.random(40_000) < ones).astype("u1").tofile(mask)

    with pytest.raises(InvalidCorpus, match=f"{name}: holds nothing but 0 and 1"):
        open_files(tokens, mask)
    open_files(tokens)


def test_noise_is_refused_unless_its_name_says_raw(tmp_path: Path) -> None:
    """A file that is compressed or encrypted."""
    content = gzip.compress(os.urandom(200_000))[10:200_010]
    (tmp_path / "x.dat").write_bytes(content)
    (tmp_path / "x.bin").write_bytes(content)

    with pytest.raises(InvalidCorpus, match="bytes like those of a compressed file; pass --format"):
        open_files(tmp_path / "x.dat")
    open_files(tmp_path / "x.bin")


def test_ids_above_any_vocabulary_are_refused(tmp_path: Path) -> None:
    """An index of offsets, say."""
    path = tmp_path / "offsets"
    (np.arange(5000) * 100_003).astype("<u4").tofile(path)

    with pytest.raises(InvalidCorpus, match="numbers up to 409,512,285, more than any vocabulary"):
        open_files(path, given=FormatOptions.parse(None, "uint32", None))


@pytest.mark.parametrize("high", [2, 300, 50_257, 65_000])
@pytest.mark.parametrize("name", ["x.bin", "x"])
def test_tokens_are_tokens_whatever_their_file_is_called(
    tmp_path: Path, name: str, high: int
) -> None:
    """Uniform ones, frequent ones, rows of padding, ids of uint32."""
    random = np.random.default_rng(high)
    frequent = np.minimum(random.zipf(1.2, 100_000), high - 1)
    padded = np.where(np.arange(100_000) % 512 < 400, random.integers(0, high, 100_000), 0)
    for tokens in (random.integers(0, high, 100_000), frequent, padded):
        tokens.astype("<u2").tofile(tmp_path / name)
        open_files(tmp_path / name)
        (tokens + high).astype("<u4").tofile(tmp_path / name)
        open_files(tmp_path / name, given=FormatOptions.parse(None, "uint32", None))


def test_a_file_of_0_and_1_beside_tokens_is_refused_by_name(tmp_path: Path) -> None:
    """A mask whose name no layout knows."""
    random = np.random.default_rng(0)
    random.integers(0, 2, 20_000).astype("<u2").tofile(tmp_path / "a-mask.bin")
    random.integers(0, 900, 20_000).astype("<u2").tofile(tmp_path / "b.bin")

    with pytest.raises(InvalidCorpus, match=r"a-mask\.bin: holds nothing but 0 and 1 .* mask"):
        open_files(tmp_path / "a-mask.bin", tmp_path / "b.bin")
    open_files(tmp_path / "a-mask.bin")


def test_a_long_run_of_one_value_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a file with holes."""
    tokens = np.random.default_rng(0).integers(0, 900, 100_000)
    tokens[40_000:] = 0
    tokens.astype("<u2").tofile(tmp_path / "x.bin")

    with caplog.at_level(logging.WARNING, "tokenfeed.server"):
        open_files(tmp_path / "x.bin")

    (record,) = caplog.records
    assert "one value dataset=x files=1 first=" in record.getMessage()
