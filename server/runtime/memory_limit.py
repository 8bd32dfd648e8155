"""How much memory this process may still use: of the machine, and of every cgroup it is in.

A container's limit is invisible in /proc/meminfo, and a page cache beyond it is thrown out as fast
as it is filled. What files occupy by now counts as room: the kernel gives it to whoever needs it.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple


class CgroupFiles(NamedTuple):
    """What the files of one kind of cgroup are called, and what their cached files count as."""

    limits: tuple[str, ...]
    usage: str
    cached: tuple[str, ...]


V2 = CgroupFiles(("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file"))
V1 = CgroupFiles(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


def available_bytes(root: Path = Path("/")) -> int:
    """Return how many bytes of files fit into memory beside everything else, those there included.

    root: where proc/ is found.  Raises: OSError where there is no proc/meminfo.
    """
    rooms = [_number((root / "proc/meminfo").read_text(), "MemAvailable:") * 1024]
    for accounts, folder in cgroups(root):
        room = _room_within(folder, accounts)
        if room is not None:
            rooms.append(room)
    return max(0, min(rooms))


def cgroups(root: Path = Path("/")) -> list[tuple[CgroupFiles, Path]]:
    """Return the folders of the cgroups that account for this process' memory, innermost first.

    Every level may have a limit of its own.  Within a container only some levels are mounted.
    """
    try:
        member = (root / "proc/self/cgroup").read_text()
        mounts = (root / "proc/self/mountinfo").read_text()
    except OSError:
        return []
    found = []
    for accounts, mounted_root, mount_point in _mounts(mounts):
        path = _membership(member, accounts)
        if path is None:
            continue
        # Without a namespace of its own a container sees the host's path, and its cgroup mounted.
        seen = path.is_relative_to(mounted_root) and ".." not in path.parts
        within = path.relative_to(mounted_root) if seen else PurePosixPath()
        folder = root / mount_point.lstrip("/")
        found += [(accounts, folder / level) for level in (within, *within.parents)]
    return found


def _mounts(mountinfo: str) -> list[tuple[CgroupFiles, PurePosixPath, str]]:
    """Return which kind of cgroup is mounted, from which of its levels on, and where."""
    found = []
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        fields, (filesystem, _, options, *_) = place.split(), [*kind.split(), "", "", ""]
        if filesystem == "cgroup2":
            found.append((V2, PurePosixPath(fields[3]), fields[4]))
        elif filesystem == "cgroup" and "memory" in options.split(","):
            found.append((V1, PurePosixPath(fields[3]), fields[4]))
    return found


def _membership(member: str, accounts: CgroupFiles) -> PurePosixPath | None:
    """Return the cgroup that this process is in, of one kind."""
    for line in member.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if (hierarchy == "0") if accounts is V2 else ("memory" in controllers.split(",")):
            return PurePosixPath(path)
    return None


def _room_within(folder: Path, accounts: CgroupFiles) -> int | None:
    """Return how many bytes of files fit into one cgroup; None where it has no limit."""
    texts = [_text(folder / name) for name in accounts.limits]
    limits = [int(text) for text in texts if text not in ("", "max")]
    if not limits:
        return None
    stat = _text(folder / "memory.stat")
    cached_bytes = sum(_number(stat, name) for name in accounts.cached)
    return min(limits) - int(_text(folder / accounts.usage) or 0) + cached_bytes


def _text(path: Path) -> str:
    """Return what a file of the kernel says; the outermost cgroup, and old kernels, lack some."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str, name: str) -> int:
    """Return the number behind a name at the beginning of a line, 0 where there is none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return int(words[1])
    return 0
