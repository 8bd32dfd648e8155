"""What is known of a token file, above all its end."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from tokenfeed.server.storage.door import open_file
from tokenfeed.server.storage.formats import FormatOptions, read_layout
from tokenfeed.server.storage.local.shard import Shard, Tail

PAGE_BYTES = 4096


def tail(path: Path) -> Tail:
    with open_file(str(path)) as file:
        return Shard.describe(file, partial(read_layout, options=FormatOptions())).tail


def write(path: Path, zeros_bytes: int, *, are_written: bool) -> Path:
    path.write_bytes(bytes([7]) * 20 * PAGE_BYTES + bytes(zeros_bytes if are_written else 0))
    os.truncate(path, 20 * PAGE_BYTES + zeros_bytes)
    return path


def refuse(*_: object) -> int:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.mark.parametrize("are_written", [True, False])
@pytest.mark.parametrize("zeros_pages", [0, 1 / 2048, 1, 15, 200])
def test_the_sentinel_is_the_last_byte_that_is_not_0(
    tmp_path: Path, zeros_pages: float, are_written: bool
) -> None:
    """Behind it are a hole, or zeros that were written."""
    zeros_bytes = int(zeros_pages * PAGE_BYTES)
    found = tail(write(tmp_path / "x.bin", zeros_bytes, are_written=are_written))

    assert (found.sentinel_byte, found.sentinel_value) == (20 * PAGE_BYTES - 1, 7)


@pytest.mark.parametrize("are_written", [True, False])
def test_behind_a_mib_of_zeros_there_is_none(tmp_path: Path, are_written: bool) -> None:
    found = tail(write(tmp_path / "x.bin", 257 * PAGE_BYTES, are_written=are_written))

    assert (found.sentinel_value, found.sha256) == (0, b"")


def test_of_a_long_hole_only_one_page_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise 10 GB of ten thousand sparse files would be searched."""
    read_bytes = []
    right = os.pread

    def counted(descriptor: int, size_bytes: int, first_byte: int) -> bytes:
        read_bytes.append(size_bytes)
        return right(descriptor, size_bytes, first_byte)

    monkeypatch.setattr(os, "pread", counted)
    tail(write(tmp_path / "x.bin", 300 * PAGE_BYTES, are_written=False))

    assert max(read_bytes) == PAGE_BYTES


def test_a_file_system_that_knows_no_holes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "lseek", refuse)

    found = tail(write(tmp_path / "x.bin", 2 * PAGE_BYTES, are_written=True))

    assert (found.sentinel_byte, found.sentinel_value) == (20 * PAGE_BYTES - 1, 7)


@pytest.mark.parametrize("are_written", [True, False])
def test_a_file_of_zeros_is_known_to_be_one(tmp_path: Path, are_written: bool) -> None:
    """Whatever is cut off, or grown again, is zeros too, so that no gather asks for its times."""
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(100 * PAGE_BYTES if are_written else 0))
    os.truncate(path, 100 * PAGE_BYTES)
    found = tail(path)

    assert (found.first_byte, found.sentinel_value) == (0, 0)
