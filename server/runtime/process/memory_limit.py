"""How much memory this process may still use, by the machine and by every cgroup it is in.

/proc/meminfo does not show the limit of a container, and the kernel evicts page cache beyond that
limit as fast as it is filled. Page cache counts as available, because the kernel can reclaim it.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple


class CgroupFiles(NamedTuple):
    """The file names of a cgroup version, and the memory.stat fields of cached files."""

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
    """Return how many bytes of files fit into memory, including those already cached.

    root: the folder that contains proc/.  Raises: OSError if there is no proc/meminfo.
    """
    available = [number_of((root / "proc/meminfo").read_text(), "MemAvailable:") * 1024]
    for files, folder in cgroups(root):
        within = _available_within(folder, files)
        if within is not None:
            available.append(within)
    return max(0, min(available))


def limit_bytes() -> int:
    """Return the least memory limit of the cgroups of this process; without one, the memory of the
    machine.  Raises: OSError if there is no proc/meminfo.
    """
    machine = number_of(Path("/proc/meminfo").read_text(), "MemTotal:") * 1024
    limits = [limit for files, folder in cgroups() for limit in _limits(folder, files)]
    return min([machine, *limits])


def cgroups(root: Path = Path("/")) -> list[tuple[CgroupFiles, Path]]:
    """Return the folders of the cgroups that account for this process' memory, innermost first.

    Every level may have its own limit.  Inside a container only some levels are mounted.
    """
    try:
        member = (root / "proc/self/cgroup").read_text()
        mounts = (root / "proc/self/mountinfo").read_text()
    except OSError:
        return []
    found = []
    for files, mounted_root, mount_point in _mounts(mounts):
        path = _membership(member, files)
        if path is None:
            continue
        # A container without its own cgroup namespace sees the host's path, but its own mount.
        seen = path.is_relative_to(mounted_root) and ".." not in path.parts
        within = path.relative_to(mounted_root) if seen else PurePosixPath()
        folder = root / mount_point.lstrip("/")
        found += [(files, folder / level) for level in (within, *within.parents)]
    return found


def _mounts(mountinfo: str) -> list[tuple[CgroupFiles, PurePosixPath, str]]:
    """Return the version of each mounted cgroup hierarchy, its mounted root and mount point."""
    found = []
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        fields, (filesystem, _, options, *_) = place.split(), [*kind.split(), "", "", ""]
        if filesystem == "cgroup2":
            found.append((V2, PurePosixPath(fields[3]), fields[4]))
        elif filesystem == "cgroup" and "memory" in options.split(","):
            found.append((V1, PurePosixPath(fields[3]), fields[4]))
    return found


def _membership(member: str, files: CgroupFiles) -> PurePosixPath | None:
    """Return the cgroup of this process, of one version."""
    for line in member.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if (hierarchy == "0") if files is V2 else ("memory" in controllers.split(",")):
            return PurePosixPath(path)
    return None


def _available_within(folder: Path, files: CgroupFiles) -> int | None:
    """Return how many bytes of files fit into one cgroup; None if it has no limit."""
    limits = _limits(folder, files)
    if not limits:
        return None
    stat = _text(folder / "memory.stat")
    cached_bytes = sum(number_of(stat, name) for name in files.cached)
    return min(limits) - int(_text(folder / files.usage) or 0) + cached_bytes


def _limits(folder: Path, files: CgroupFiles) -> list[int]:
    texts = [_text(folder / name) for name in files.limits]
    return [int(text) for text in texts if text not in ("", "max")]


def _text(path: Path) -> str:
    """Return the content of a kernel file; "" if the cgroup or an old kernel does not have it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def number_of(text: str, name: str) -> int:
    """Return the number after a name at the beginning of a line; 0 if there is none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return int(words[1])
    return 0
