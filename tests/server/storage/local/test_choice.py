"""Which store a dataset has, by the file system that its files lie on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Serve, WriteTokens
from tokenfeed.server.storage.local import choice
from tokenfeed.server.storage.local.choice import KINDS, choose, file_systems, is_read_by_pread
from tokenfeed.server.storage.store import WAYS

NETWORK = (
    "nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "fuse", "fuse.sshfs", "fuse.gcsfuse", "gpfs",
    "9p", "beegfs",
)  # fmt: skip
LOCAL = ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "squashfs", "unknown", "")


def test_the_command_line_knows_each_store_there_is() -> None:
    """The values of --read are listed in a module that imports no store."""
    local = "tokenfeed.server.storage.local"
    loaded = f"{{'{local}.mapped_bytes', '{local}.pread_bytes'}} & set(sys.modules)"
    code = f"import sys, tokenfeed.server.storage.store; raise SystemExit(bool({loaded}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
    assert tuple(KINDS) == WAYS
    assert all(open_store.kind == kind for kind, open_store in KINDS.items())  # type: ignore[attr-defined]


@pytest.mark.parametrize("system", NETWORK)
def test_files_on_a_network_file_system_are_read_by_pread(system: str) -> None:
    """Their errors go away, and a map cannot report errors that go away."""
    assert is_read_by_pread(system)


@pytest.mark.parametrize("system", LOCAL)
def test_files_on_a_local_or_unknown_one_are_mapped(system: str) -> None:
    assert not is_read_by_pread(system)


def mountinfo(folder: Path, system: str) -> str:
    """What /proc/self/mountinfo would say if a folder lay on such a file system."""
    device = folder.stat().st_dev
    path = folder / "mountinfo"
    path.write_text(
        "22 1 0:21 / /proc rw,relatime shared:12 - proc proc rw\n"
        f"30 1 {os.major(device)}:{os.minor(device)} / {folder} rw shared:1 master:2 - {system} "
        "host:/volume rw,vers=4.2\n"
        "nonsense\n"
    )
    return str(path)


def test_the_file_system_is_found_by_the_device_of_the_files(tmp_path: Path) -> None:
    """A path does not tell: its links may lead anywhere."""
    (tmp_path / "a.bin").write_bytes(b"12")
    paths = [str(tmp_path / "a.bin")]

    assert file_systems(paths, mountinfo(tmp_path, "nfs4")) == ["nfs4"]
    assert file_systems(paths, str(tmp_path / "none")) == ["unknown"]
    assert file_systems([str(tmp_path / "none")]) == ["unknown"]
    assert file_systems(paths) != ["unknown"]


def test_files_with_a_device_of_their_own_are_on_what_is_mounted_around_them(
    tmp_path: Path,
) -> None:
    """btrfs and overlayfs give them one that is in no list of mounts."""
    folder = tmp_path / "a b"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "a bc").mkdir()
    for name in ("a b/1.bin", "a b/inner/2.bin", "a bc/3.bin"):
        (tmp_path / name).write_bytes(b"12")
    (tmp_path / "link.bin").symlink_to(folder / "1.bin")
    escaped = str(folder).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 1 0:991 / / rw - btrfs /dev/sda rw\n"
        f"2 1 0:992 / {escaped} rw - ext4 /dev/sdb rw\n"
        f"3 1 0:993 / {escaped} rw - nfs4 host:/volume rw\n"
        f"4 1 0:994 / {escaped}/inner rw - lustre host:/other rw\n"
    )

    def system(name: str) -> list[str]:
        return file_systems([str(tmp_path / name)], str(mounts))

    assert system("a b/1.bin") == ["nfs4"]
    assert system("link.bin") == ["nfs4"]
    assert system("a b/inner/2.bin") == ["lustre"]
    assert system("a bc/3.bin") == ["btrfs"]


def test_one_folder_on_a_network_file_system_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset has one store."""
    monkeypatch.setattr(choice, "file_systems", lambda paths: ["ext4", "lustre"])

    assert choose(["/a/1.bin", "/b/2.bin"], None) == ("pread", "lustre")
    assert choose(["/a/1.bin", "/b/2.bin"], "map") == ("map", "--read")


def test_the_log_says_how_files_are_read_and_why(serve: Serve, write_tokens: WriteTokens) -> None:
    """Operators need it to compare two machines."""
    one, two = write_tokens(range(100), "one.bin"), write_tokens(range(100), "two.bin")
    server = serve("--data", one, "--data", two, "--read", "two=pread")
    (system,) = file_systems([str(one)])
    way = "pread" if is_read_by_pread(system) else "map"

    lines = [line for line in server.stderr.splitlines() if "dataset opened" in line]
    assert lines[0].endswith(f"read={way} because={system}")
    assert lines[1].endswith("read=pread because=--read")
