"""Files of this machine are found and opened as a user would: with links, pipes and odd names."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.runtime import small_files
from tokenfeed.server.storage import door
from tokenfeed.server.storage.door import absolute, common_folder, door_of, is_missing, scheme_of
from tokenfeed.server.storage.local.door import DOOR


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.bin").write_bytes(b"0123456789")
    (tmp_path / "sub").mkdir()
    (tmp_path / "to-a").symlink_to("a.bin")
    (tmp_path / "to-sub").symlink_to("sub")
    (tmp_path / "to-nothing").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff.bin")).write_bytes(b"x")
    return tmp_path


def test_a_path_names_a_file_a_folder_or_nothing(folder: Path) -> None:
    """A link is what it leads to; one that leads nowhere is a file, which says why when opened."""
    kinds = {
        name: None if (found := DOOR.entry(str(folder / name))) is None else found.is_folder
        for name in ("a.bin", "sub", "to-a", "to-sub", "to-nothing", "pipe", "gone", "a.bin/x")
    }

    assert kinds == {
        "a.bin": False, "sub": True, "to-a": False, "to-sub": True, "to-nothing": False,
        "pipe": False, "gone": None, "a.bin/x": None,
    }  # fmt: skip
    assert [DOOR.exists(str(folder / name)) for name in kinds] == [
        kind is not None for kind in kinds.values()
    ]
    assert not DOOR.exists("a\0b")


def test_a_folder_has_its_entries_and_those_with_a_suffix(folder: Path) -> None:
    """Without a call for each of the others."""
    assert {each.name for each in DOOR.entries(str(folder))} == set(os.listdir(folder))
    assert {each.name: each.is_folder for each in DOOR.entries(str(folder), ("sub", ".bin"))} == {
        "a.bin": False, os.fsdecode(b"\xff.bin"): False, "sub": True, "to-sub": True,
    }  # fmt: skip
    with pytest.raises(InvalidCorpus, match="cannot be read: Not a directory"):
        DOOR.entries(str(folder / "a.bin"))


def test_what_cannot_be_opened_says_whether_there_is_nothing(folder: Path) -> None:
    """A manifest that cannot be read is not taken for none."""
    for name, missing in (("gone", True), ("to-nothing", True), ("pipe", False), ("sub", False)):
        with pytest.raises(InvalidCorpus) as caught:
            DOOR.open(str(folder / name))
        assert is_missing(caught.value) is missing
    with DOOR.open(str(folder / "to-a")) as file:
        assert (file.size_bytes, file.read(2, 3), file.head) == (10, b"234", b"0123456789")
        with file.stream() as stream:
            assert stream.read(4) + stream.read() == b"0123456789"


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_file_system_that_fails_does_not_say_that_there_is_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A file without the index beside it would be read as one of another format."""

    def fail(path: str) -> os.stat_result:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "lstat", fail)
    with pytest.raises(InvalidCorpus, match="cannot be read: "):
        DOOR.exists(str(folder / "a.bin"))


def test_small_files_are_read_whole_and_written_whole(folder: Path) -> None:
    """In a folder that is made, if need be, and never through a link."""
    path = str(folder / "new" / "small")
    DOOR.put(path, b"one")
    DOOR.put(path, b"two")

    assert DOOR.content(path, 3) == b"two"
    assert os.listdir(folder / "new") == ["small"]
    assert DOOR.content(str(folder / "new" / "gone"), 3) is None
    with pytest.raises(ValueError, match="at most 2 bytes"):
        DOOR.content(path, 2)
    with pytest.raises(OSError, match="symbolic links"):
        DOOR.content(str(folder / "to-a"), 100)
    small_files.replace_file(path, b"three", like=[str(folder / "a.bin")])
    assert DOOR.content(path, 5) == b"three"


def test_paths_of_another_storage_keep_their_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are joined and compared as those of this machine."""
    monkeypatch.setitem(door.DOORS, "toy", DOOR)

    assert absolute("toy://host/a/../b") == "toy://host/b"
    assert common_folder(["toy://host/b/c", "toy://host/b/d"]) == "toy://host/b"
    assert common_folder(["/a/b", "/a/c"]) == "/a"
    assert (scheme_of("toy://x"), scheme_of("ftp://x"), scheme_of("/x")) == ("toy", "", "")
    assert door_of("ftp://x") is DOOR
