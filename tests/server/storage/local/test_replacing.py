"""A file takes the place of another one on the disk, or nothing has happened."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, WriteTokens
from tests.support.redacted_corpora import ERASE, has_attributes, redact
from tokenfeed.tools.redact import erasing
from tokenfeed.tools.redact.__main__ import main


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_owner_mode_and_attributes_stay(write_tokens: WriteTokens) -> None:
    """Else a server could not read the file after its restart."""
    path = write_tokens(np.arange(1, 300))
    os.chown(path, 1234, 2345)
    path.chmod(0o2640)
    with suppress(OSError):  # of a file system without them
        os.setxattr(path, "user.from", b"ticket")
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    redact(path, "--range=0:5:9", *ERASE)
    status = path.stat()

    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 2345, 0o2640)
    after = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    assert after.items() >= attributes.items()
    assert after.keys() - attributes.keys() <= {"user.tokenfeed.erased"}


def test_the_copy_that_a_killed_process_has_left_is_removed(write_tokens: WriteTokens) -> None:
    """It has the tokens, even where the file itself came from another replica meanwhile."""
    path = write_tokens(np.arange(1, 300))
    original = path.read_bytes()
    redact(path, "--range=0:5:9", *ERASE)
    copy = path.parent / f".{path.name}.tokenfeed-erasing"
    copy.write_bytes(original)
    redact(path, *ERASE)

    assert not copy.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_stops_it_before_it_begins(tmp_path: Path) -> None:
    """Nothing is lost, and the same command goes on once there is room."""
    code = (
        "import os, sys, numpy; from pathlib import Path; "
        "from tokenfeed.tools.redact.__main__ import main; "
        "path = Path(sys.argv[1]) / 'a.bin'; numpy.arange(1, 20_000).astype('<u2').tofile(path); "
        "words = [str(path), '--range=0:5:9', '--erase', '--no-delimiter']; "
        "before = path.read_bytes(); assert main(words) == 1; assert path.read_bytes() == before; "
        "os.unlink(Path(sys.argv[1]) / 'filler'); assert main(words) == 0; "
        "assert numpy.fromfile(path, '<u2')[5:9].tolist() == [0] * 4"
    )
    script = f"""
        mount -t tmpfs -o size=128k none {tmp_path}
        head -c 60000 /dev/zero > {tmp_path}/filler
        exec {sys.executable} -c "{code}" {tmp_path}
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", script], cwd=ROOT, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "a copy of 39,998 bytes does not fit into" in done.stderr


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder where other users can come: pytest closes its own one whenever a run begins."""
    with tempfile.TemporaryDirectory(prefix="tokenfeed-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def given_to_nobody(open_folder: Path, folder_owner: int = 65534) -> Path:
    """A token file in a folder, both of another user, who can come there."""
    path = open_folder / "s" / "a.bin"
    path.parent.mkdir()
    np.arange(1, 300).astype("<u2").tofile(path)
    for each, owner in ((path.parent, folder_owner), (path, 65534)):
        os.chown(each, owner, owner)
    return path


def redact_as_nobody(*words: object, dies: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `tokenfeed redact` as another user; dies: at the third rename."""
    code = (
        "import os, sys; from tokenfeed.tools.redact.__main__ import main;"
        " from tests.support.dying import die_at;"
        " os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        f" {dies} and die_at('replace', 3, ('replace',)); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_owner_of_files_that_can_only_be_read_goes_on(open_folder: Path) -> None:
    """Root could do anything; others can open only what its mode says."""
    path = given_to_nobody(open_folder)
    path.chmod(0o444)
    words = [path, "--range=0:5:9", *ERASE]
    died = redact_as_nobody(*words, dies=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert len(list(path.parent.glob("*.tokenfeed-erasing"))) == 1
    done = redact_as_nobody(*words)

    assert done.returncode == 0, done.stderr
    assert np.flatnonzero(np.fromfile(path, "<u2") == 0).tolist() == [5, 6, 7, 8]
    assert path.stat().st_mode & 0o777 == 0o444
    assert not list(path.parent.glob("*.tokenfeed-erasing"))
    if has_attributes(open_folder):
        assert b"[[5, 9]]" in os.getxattr(path, "user.tokenfeed.erased")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("owner", "mode"), [(0, 0o1777), (65534, 0o700)])
def test_another_user_goes_on_after_root(open_folder: Path, owner: int, mode: int) -> None:
    """The owner of the files, who may write to the folder. The umask of root is often narrow."""
    path = given_to_nobody(open_folder, owner)
    path.parent.chmod(mode)
    path.chmod(0o600)
    before = os.umask(0o077)
    try:
        redact(path, "--range=0:5:9", *ERASE)
    finally:
        os.umask(before)
    done = redact_as_nobody(path, "--range=0:50:60", *ERASE)

    assert done.returncode == 0, done.stderr
    assert np.flatnonzero(np.fromfile(path, "<u2") == 0).tolist() == [*range(5, 9), *range(50, 60)]


def test_a_file_that_another_process_replaces_is_left_alone(
    write_tokens: WriteTokens, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders that are one, by links or mounts, have one record each, but the copy has one name."""
    path = write_tokens(np.arange(1, 300))
    before = path.read_bytes()
    copy = path.parent / f".{path.name}.tokenfeed-erasing"
    with copy.open("wb") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        assert main([str(path), "--range=0:5:9", *ERASE]) == 1
    assert "another tokenfeed redact replaces it now" in capsys.readouterr().err
    assert path.read_bytes() == before
    redact(path, "--range=0:5:9", *ERASE)
    assert not copy.exists()


def test_a_file_that_cannot_be_replaced_is_named_before_the_list_says_it(
    write_tokens: WriteTokens, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else its rows would be refused, and their tokens would be on the disk."""
    paths = [write_tokens(np.arange(n, 300), f"s/{n}.bin") for n in (1, 2)]
    redact(*paths, "--range=0:5:9", "--range=1:5:9")
    (listed,) = paths[0].parent.glob(".*-redactions.jsonl")
    before, flags = listed.read_bytes(), fcntl.ioctl

    def immutable(descriptor: int, request: int, argument: Any) -> Any:
        is_other = os.fstat(descriptor).st_ino == paths[1].stat().st_ino
        reads_flags = request == 0x80086601
        return (
            bytes([0x10, *bytes(7)])
            if is_other and reads_flags
            else flags(descriptor, request, argument)
        )

    with monkeypatch.context() as context:
        context.setattr(fcntl, "ioctl", immutable)
        assert main([*map(str, paths), *ERASE]) == 1
    assert "2.bin: cannot be replaced: it is immutable" in capsys.readouterr().err
    with monkeypatch.context() as context:
        context.setattr(erasing, "mount_points", lambda: frozenset({str(paths[1])}))
        assert main([*map(str, paths), *ERASE]) == 1
    assert "2.bin: is mounted by itself" in capsys.readouterr().err
    assert listed.read_bytes() == before
    assert [0 in np.fromfile(path, "<u2") for path in paths] == [False, False]


@pytest.mark.parametrize("shares", [True, False])
def test_a_copy_needs_room_unless_it_shares_the_blocks_of_its_file(
    write_tokens: WriteTokens,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shares: bool,
) -> None:
    """XFS and btrfs copy a shard of 100 GB at once, and write only what is erased."""
    path = write_tokens(np.arange(1, 300))
    before, ioctl = path.read_bytes(), fcntl.ioctl

    def clone(descriptor: int, request: int, argument: Any) -> Any:
        if request != 0x40049409:
            return ioctl(descriptor, request, argument)
        if not shares:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        assert os.pread(argument, len(before), 0) == before
        return os.pwrite(descriptor, before, 0)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=0, f_frsize=4096))
        full.setattr(shutil, "copyfileobj", None)
        assert main([str(path), "--range=0:5:9", *ERASE]) == (0 if shares else 1)
    assert ("does not fit into 0 free ones" in capsys.readouterr().err) is not shares
    assert (path.read_bytes() == before) is not shares

    redact(path, "--range=0:5:9", *ERASE)
    assert np.flatnonzero(np.fromfile(path, "<u2") == 0).tolist() == [5, 6, 7, 8]
