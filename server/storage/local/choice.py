"""Chooses how the files of a dataset are read: by --read, or by their file system.

A map is right on local disks. On network file systems its page tables, single page faults and
errors cost too much, so files there are read by pread. On an unknown file system they are mapped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tokenfeed.errors import InvalidCorpus

from ...runtime.threads.poll_rate import PollRate
from ..bytes import Bytes
from ..door import ReadLayout, StorageOptions
from ..option_names import READ
from .mapped_bytes import MappedBytes
from .pread_bytes import PreadBytes

KINDS: dict[str, Callable[[str, Sequence[str], ReadLayout, PollRate], Bytes]] = {
    MappedBytes.kind: MappedBytes,
    PreadBytes.kind: PreadBytes,
}
"""By the values of --read, which are WAYS."""

_READ_BY_PREAD = frozenset(
    (
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3",
        "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
    )
)  # fmt: skip
"""Types as in /proc/self/mountinfo; "fuse.NAME" belongs to them too."""


_MAPS_SPARE = 2048
"""Maps left for stacks of threads, libraries and buffers."""


def open_bytes(
    name: str, paths: Sequence[str], read_layout: ReadLayout, storage: StorageOptions
) -> tuple[Bytes, str]:
    """Open the files of a dataset; the arguments and the result are those of `Door.bytes_of`."""
    kind, why = choose(paths, storage.read)
    if not storage.are_beside or storage.read or fit_into_maps(len(paths)):
        return KINDS[kind](name, paths, read_layout, storage.poll_rate), why
    try:
        return PreadBytes(name, paths, read_layout, storage.poll_rate), "no room for maps"
    except InvalidCorpus as error:
        # Maps are what there is no room for.
        problem = error.problem.replace(f"pass {READ.to('map')}", "raise vm.max_map_count")
        raise InvalidCorpus(error.subject, problem, *error.options) from None


def choose(paths: Sequence[str], read: str | None) -> tuple[str, str]:
    """Return how to read some files, a value of --read, and why: "--read", or their file system.

    One file of each folder is checked.
    """
    if read is not None:
        return read, "--read"
    of_folder = {os.path.dirname(path): path for path in paths}
    systems = file_systems(of_folder.values())
    by_pread = [system for system in systems if is_read_by_pread(system)]
    return (PreadBytes.kind, by_pread[0]) if by_pread else (MappedBytes.kind, systems[0])


def fit_into_maps(file_count: int) -> bool:
    """Return whether this many more files can be mapped, with room for other maps. The kernel has a
    limit for each process (vm.max_map_count).
    """
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            maps_max = int(file.read())
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps) + file_count + _MAPS_SPARE <= maps_max
    except (OSError, ValueError):
        return True


def is_read_by_pread(system: str) -> bool:
    """Return whether files on a file system of this type are read by pread."""
    return system in _READ_BY_PREAD or system.startswith("fuse.")


def file_systems(paths: Iterable[str], mountinfo: str = "/proc/self/mountinfo") -> list[str]:
    """Return the types of the file systems of files, at least one; "unknown" if they cannot be
    found out.
    """
    try:
        of_device = {os.stat(path).st_dev: path for path in paths}
    except (OSError, ValueError):
        return ["unknown"]
    mounts = _mounts(mountinfo)
    return [_type(mounts, *found) for found in of_device.items()] or ["unknown"]


def mount_points(mountinfo: str = "/proc/self/mountinfo") -> frozenset[str]:
    """Return the paths at which file systems, or single files, are mounted; none if unknown."""
    return frozenset(mount.folder for mount in _mounts(mountinfo))


class _Mount(NamedTuple):
    """device: "MAJOR:MINOR".  folder: the mount point.  system: its type."""

    device: str
    folder: str
    system: str


def _mounts(mountinfo: str) -> list[_Mount]:
    """Return what is mounted; nothing if that is unknown."""
    found = []
    try:
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return []
    for line in lines:
        mount, _, system = line.partition(" - ")
        words = mount.split()
        if len(words) > 4 and system.split():
            folder = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
            found.append(_Mount(words[2], folder, system.split()[0]))
    return found


def _type(mounts: Sequence[_Mount], device: int, path: str) -> str:
    """Return the type of a file's file system: by its device number, or by the enclosing mount if
    files have device numbers of their own, as on btrfs and overlayfs.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    of_device = [mount.system for mount in mounts if mount.device == number]
    if of_device:
        return of_device[-1]
    real = os.path.realpath(path)
    around = [mount for mount in mounts if real.startswith(mount.folder.rstrip("/") + "/")]
    if not around:
        return "unknown"
    # Of several mounts on one folder, the last one is visible.
    return max(reversed(around), key=lambda mount: len(mount.folder)).system
