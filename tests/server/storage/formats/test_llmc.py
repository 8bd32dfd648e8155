"""llm.c's shards: tokens behind a header of 1,024 bytes, which says how many there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.reading import read, tokens
from tests.server.storage.formats.writing import llmc_header
from tokenfeed.errors import InvalidCorpus

GPT2, LLAMA3 = (20240520, 1, "<u2"), (20240801, 7, "<u4")


def write(path: Path, kind: tuple[int, int, str], content: list[int], **wrong: int) -> Path:
    """As llm.c writes it, but for what is wrong."""
    magic, version, dtype = kind
    facts = {"count": len(content), "magic": magic, "version": version} | wrong
    path.write_bytes(llmc_header(**facts) + np.array(content, dtype).tobytes())
    return path


@pytest.mark.parametrize("kind", [GPT2, LLAMA3])
def test_the_header_is_not_served_as_tokens(tmp_path: Path, kind: tuple[int, int, str]) -> None:
    """GPT-2's in uint16; Llama 3's, with a magic of their own, in uint32."""
    content = [50256, 0, 7, 65535 if kind is GPT2 else 128_000]
    path = write(tmp_path / "fineweb_train_000001.bin", kind, content)

    layout = read(path)

    assert (layout.format, layout.first_byte, layout.dtype) == ("llm.c", 1024, np.dtype(kind[2]))
    assert tokens(path, layout) == content
    assert read(path, kind[2]) == layout


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"version": 2}, r"version 2, not 1 \(pass --format raw if all of it is tokens\)"),
        ({"beyond": 5}, "more than zeros after the token count"),
        ({"count": 5}, "records 5 uint16 tokens, but 8 bytes follow"),
        ({"count": 3}, "records 3 uint16 tokens, but 8 bytes follow"),
        ({"count": 0}, "records 0 uint16 tokens"),
        ({"count": -1}, "records -1 uint16 tokens"),
        ({"magic": 20240522}, "evaluation examples"),
        ({"magic": 20240527}, "a training state"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    tmp_path: Path, wrong: dict[str, int], problem: str
) -> None:
    """A truncated file and a file without a header: nothing is guessed."""
    path = write(tmp_path / "x.bin", GPT2, [1, 2, 3, 4], **wrong)

    with pytest.raises(InvalidCorpus, match=rf"x\.bin: .*{problem}"):
        read(path)
    assert read(path, form="raw").token_count == 512 + 4


@pytest.mark.parametrize("cut", [1, 2, 1024, 1030])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "x.bin", GPT2, list(range(100)))
    path.write_bytes(path.read_bytes()[: max(4, 1224 - cut)])

    with pytest.raises(InvalidCorpus, match=r"x\.bin"):
        read(path)


def test_another_magic_is_not_a_header_even_with_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin", GPT2, [1, 2], magic=20240521)

    assert read(path).format == "raw"
    with pytest.raises(InvalidCorpus, match="begins with 20240521, not with llm"):
        read(path, form="llm.c")


def test_another_dtype_than_the_header_s_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin", GPT2, [1, 2])

    with pytest.raises(InvalidCorpus, match="has uint16 tokens, not --dtype uint32"):
        read(path, "<u4")


def test_a_file_without_tokens_is_to_be_left_out(tmp_path: Path) -> None:
    """Not to be served as raw tokens, which would be its header."""
    path = tmp_path / "x.bin"
    path.write_bytes(llmc_header(0))

    with pytest.raises(InvalidCorpus) as caught:
        read(path)

    assert caught.value.problem == "has llm.c's header and no tokens; leave it out"
