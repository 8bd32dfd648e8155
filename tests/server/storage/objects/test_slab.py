"""The file of the cache: what is read out of it was written into it, whatever happened to it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tokenfeed.server.storage.local.mapped_bytes import byte_ranges
from tokenfeed.server.storage.objects import slab as slab_module
from tokenfeed.server.storage.objects.slab import (
    FILE,
    FOLDER,
    SLOT_BYTES,
    Slab,
    UnusableFolder,
    open_slab,
    size_of,
    slots_of,
)

SIZE = size_of(16)
OWNER = (5, 6)
CONTENT = memoryview(np.random.default_rng(1).bytes(10_000))


@pytest.fixture
def slab(tmp_path: Path) -> Slab:
    found = open_slab(str(tmp_path), SIZE)
    assert found.take_lease()
    return found


def read(slab: Slab, slot: int) -> bytes:
    target = np.empty(len(CONTENT), dtype=np.uint8)
    first = np.array([slab.first_address + slot * SLOT_BYTES])
    assert slab.copy(byte_ranges(first, target.size), target)
    return target.tobytes()


def known(slab: Slab) -> list[tuple[int, int]]:
    """The slots that hold something, and the blocks there."""
    used = np.flatnonzero(slab.entries["stamp"]).tolist()
    return [(slot, int(slab.entries[slot]["block"])) for slot in used]


def test_what_was_committed_is_there_later(slab: Slab, tmp_path: Path) -> None:
    """A process that is killed before has written to slots that hold nothing."""
    slab.write(3, OWNER, 7, CONTENT)
    slab.commit()
    slab.write(4, OWNER, 8, CONTENT)

    other = open_slab(str(tmp_path), None)
    assert known(other) == [(3, 7)]
    assert read(other, 3) == CONTENT
    assert other.is_intact(3)
    assert tuple(other.entries[3]["object"].tolist()) == OWNER


def test_a_reader_hears_of_a_slot_that_gets_another_block(slab: Slab, tmp_path: Path) -> None:
    """What it has copied meanwhile may be of the other block."""
    slab.write(3, OWNER, 7, CONTENT)
    slab.commit()
    reader = open_slab(str(tmp_path), None)
    assert not reader.has_news
    assert not reader.take_lease()
    assert reader.evictions == reader.known_evictions

    slab.write(5, OWNER, 9, CONTENT)
    slab.commit()
    assert reader.has_news
    assert reader.evictions == reader.known_evictions
    slab.evict(np.array([3]))
    assert reader.evictions != reader.known_evictions
    reader.refresh()
    assert known(reader) == [(5, 9)]

    slab.end_lease()
    assert reader.take_lease()
    assert not slab.take_lease()


def test_a_writer_that_died_before_it_said_what_it_did_misleads_no_other(
    slab: Slab, tmp_path: Path
) -> None:
    """It has emptied a slot that a reader still knows, or filled one that others take for free."""
    slab.write(3, OWNER, 7, CONTENT)
    slab.commit()
    reader, following = (open_slab(str(tmp_path), None) for _ in range(2))
    slab.write(4, OWNER, 8, CONTENT)
    slab.entries[[3]] = 0
    slab._write_entries([3, 4])
    slab.end_lease()
    assert reader.evictions == reader.known_evictions
    assert not following.has_news
    assert known(following) == [(3, 7)]

    assert following.take_lease()
    assert following.begin_writes()
    assert reader.evictions != reader.known_evictions
    assert known(following) == [(4, 8)]
    assert not following.begin_writes()
    following.end_lease()
    assert slab.take_lease()
    assert slab.begin_writes()


def test_an_entry_of_which_a_part_was_written_is_nothing(slab: Slab, tmp_path: Path) -> None:
    """A machine that loses power may leave such a one."""
    slab.write(3, OWNER, 7, CONTENT)
    slab.write(4, OWNER, 8, CONTENT)
    slab.commit()
    at = slab_module._HEADER_BYTES + 3 * slab_module._ENTRY.itemsize
    for byte in range(40):
        with (tmp_path / FOLDER / FILE).open("r+b") as file:
            file.seek(at + byte)
            before = file.read(1)
            file.seek(at + byte)
            file.write(bytes([before[0] ^ 1]))
        slab.refresh()
        assert known(slab) == [(4, 8)], byte
        with (tmp_path / FOLDER / FILE).open("r+b") as file:
            file.seek(at + byte)
            file.write(before)


def test_a_changed_byte_is_found_by_the_checksum(slab: Slab, tmp_path: Path) -> None:
    """Disks err."""
    slab.write(3, OWNER, 7, CONTENT)
    slab.commit()
    with (tmp_path / FOLDER / FILE).open("r+b") as file:
        file.seek(SIZE - 13 * SLOT_BYTES + 5000)
        file.write(bytes([CONTENT[5000] ^ 1]))
    assert read(slab, 3) != CONTENT
    assert not slab.is_intact(3)


def test_a_truncated_file_is_an_error_and_no_signal(slab: Slab, tmp_path: Path) -> None:
    """Also once it is long again: its holes are zeros, which are tokens."""
    slab.write(3, OWNER, 7, CONTENT)
    slab.commit()
    path = tmp_path / FOLDER / FILE
    os.truncate(path, 0)
    target = np.empty(100, dtype=np.uint8)
    assert not slab.copy(byte_ranges(np.array([slab.first_address]), 100), target)
    assert slab.evictions == -1
    assert slab.is_gone
    os.truncate(path, SIZE)
    assert slab.evictions != slab.known_evictions
    with pytest.raises(UnusableFolder, match="no file of a cache, or truncated; delete it"):
        open_slab(str(tmp_path), None)


def test_a_deleted_file_is_noticed(slab: Slab, tmp_path: Path) -> None:
    """Its blocks take room on the disk for as long as it is open."""
    assert not slab.is_gone
    (tmp_path / FOLDER / FILE).unlink()
    assert slab.is_gone


def test_the_disk_has_never_more_than_was_allowed(tmp_path: Path) -> None:
    """Neither while it is made, nor when it is made again; nor are there left-overs."""
    (tmp_path / FOLDER).mkdir(mode=0o700)
    left = tmp_path / FOLDER / f"{FILE}.left"
    left.write_bytes(b"x")
    for allowed in (SIZE, SIZE + SLOT_BYTES - 1, 3 * SIZE, SIZE):
        slab = open_slab(str(tmp_path), allowed)
        status = (tmp_path / FOLDER / FILE).stat()
        assert status.st_size == slab.size_bytes <= allowed
        assert status.st_blocks * 512 >= status.st_size, "allocated, so that it is never full"
        assert os.listdir(tmp_path / FOLDER) == [FILE]
        del slab
    for size in range(SIZE, SIZE + 3 * SLOT_BYTES, 4321):
        assert size_of(slots_of(size)) <= size
        assert slots_of(size_of(slots_of(size))) == slots_of(size)


def test_a_file_in_use_keeps_its_size(slab: Slab, tmp_path: Path) -> None:
    """Two servers with other options share it."""
    slab.write(3, OWNER, 7, CONTENT)
    slab.commit()
    other = open_slab(str(tmp_path), 2 * SIZE)
    assert other.slot_count == 16
    assert known(other) == [(3, 7)]


def test_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """Else the first block would find out, or another program."""
    too_much = shutil.disk_usage(tmp_path).total + (1 << 30)
    with pytest.raises(UnusableFolder, match=r"has no room for \d+ bytes, only for \d+"):
        open_slab(str(tmp_path), too_much)
    assert os.listdir(tmp_path / FOLDER) == []


def test_a_folder_of_others_is_refused(
    slab: Slab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could put other tokens there."""
    own = tmp_path / FOLDER
    own.chmod(0o777)
    with pytest.raises(UnusableFolder, match="can be written to by others"):
        open_slab(str(tmp_path), SIZE)
    own.chmod(0o700)
    (own / FILE).chmod(0o666)
    with pytest.raises(UnusableFolder, match="can be written to by others"):
        open_slab(str(tmp_path), SIZE)
    (own / FILE).chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnusableFolder, match=re.escape(f"belongs to user {os.getuid()}")):
        open_slab(str(tmp_path), SIZE)


def test_a_link_is_no_folder(tmp_path: Path) -> None:
    """It may lead to a file of others, or to one that matters."""
    (tmp_path / "other").mkdir()
    (tmp_path / FOLDER).symlink_to(tmp_path / "other")
    with pytest.raises(UnusableFolder, match="cannot be used"):
        open_slab(str(tmp_path), SIZE)
