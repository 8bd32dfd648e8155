"""Which store a dataset has: as the command line says, or by the file system that its files lie on.

A map is right on local disks. On network file systems page tables, faults one at a time and errors
differ, so files there are read by pread. Where the file system is not known here, it is a map.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..runtime.poll_rate import PollRate
from .formats import FormatOptions
from .local.mapped_store import MapStore
from .local.pread_store import PreadStore
from .store import TokenStore

STORES: dict[str, Callable[[str, Sequence[str], FormatOptions, PollRate], TokenStore]] = {
    MapStore.kind: MapStore,
    PreadStore.kind: PreadStore,
}
"""By what --read calls them: WAYS."""

_READ_BY_PREAD = frozenset(
    (
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3",
        "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
    )
)  # fmt: skip
"""As /proc/self/mountinfo calls them; "fuse.NAME" is one too."""


@dataclass(frozen=True, slots=True)
class Storing:
    """How a dataset is stored, as far as somebody said.

    read: one of STORES; None: as its file system needs it.  looks: the turns to look at files.
    """

    read: str | None = None
    poll_rate: PollRate = field(default_factory=PollRate)


def open_store(
    name: str, paths: Sequence[str], options: FormatOptions, storing: Storing
) -> tuple[TokenStore, str]:
    """Open a dataset's files; return their store, and why it is that one.  Raises:
    InvalidCorpus.
    """
    kind, why = choose(paths, storing.read)
    return STORES[kind](name, paths, options, storing.poll_rate), why


def choose(paths: Sequence[str], read: str | None) -> tuple[str, str]:
    """Return the kind of store for some files, and why: "--read", or their file system.

    One file of each folder is looked at.
    """
    if read is not None:
        return read, "--read"
    of_folder = {os.path.dirname(path): path for path in paths}
    systems = file_systems(of_folder.values())
    by_pread = [system for system in systems if is_read_by_pread(system)]
    return (PreadStore.kind, by_pread[0]) if by_pread else (MapStore.kind, systems[0])


def is_read_by_pread(system: str) -> bool:
    """Say whether files on a file system are read by pread, by the name of its type."""
    return system in _READ_BY_PREAD or system.startswith("fuse.")


def file_systems(paths: Iterable[str], mountinfo: str = "/proc/self/mountinfo") -> list[str]:
    """Return the types of the file systems that files lie on, at least one; "unknown" where nobody
    tells.
    """
    try:
        of_device = {os.stat(path).st_dev: path for path in paths}
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            mounts = _mounts(file.read())
    except (OSError, ValueError):
        return ["unknown"]
    return [_type(mounts, *found) for found in of_device.items()] or ["unknown"]


class _Mount(NamedTuple):
    """device: "MAJOR:MINOR".  folder: where it is mounted.  system: the type of it."""

    device: str
    folder: str
    system: str


def _mounts(mountinfo: str) -> list[_Mount]:
    found = []
    for line in mountinfo.splitlines():
        mount, _, system = line.partition(" - ")
        words = mount.split()
        if len(words) > 4 and system.split():
            folder = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
            found.append(_Mount(words[2], folder, system.split()[0]))
    return found


def _type(mounts: Sequence[_Mount], device: int, path: str) -> str:
    """Return the type of the file system of a file: by its device, or by the mount that it lies in
    where files have devices of their own, as those of btrfs and overlayfs.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    of_device = [mount.system for mount in mounts if mount.device == number]
    if of_device:
        return of_device[-1]
    real = os.path.realpath(path)
    around = [mount for mount in mounts if real.startswith(mount.folder.rstrip("/") + "/")]
    if not around:
        return "unknown"
    # Of mounts on the same folder the last one is seen.
    return max(reversed(around), key=lambda mount: len(mount.folder)).system
