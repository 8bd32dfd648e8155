"""How much memory there is: the machine's, and what every cgroup leaves of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tokenfeed.server.runtime.process.memory_limit import available_bytes, cgroups

GIB = 1 << 30
V1_MOUNT = "32 31 0:29 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
V2_MOUNT = "31 23 0:28 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 64 GiB available, and no cgroup yet."""
    (tmp_path / "proc/self").mkdir(parents=True)
    text = "MemTotal:  99999999 kB\nMemFree:  1000 kB\nMemAvailable:   67108864 kB\n"
    (tmp_path / "proc/meminfo").write_text(text)
    return tmp_path


def member_of(root: Path, member: str, mount: str, mounted_root: str = "/") -> None:
    (root / "proc/self/cgroup").write_text(f"5:cpu:/elsewhere\n{member}\n")
    other = "22 27 0:21 / /proc rw,relatime - proc proc rw"
    (root / "proc/self/mountinfo").write_text(f"{other}\n{mount.format(root=mounted_root)}\n")


def write(folder: Path, files: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def v2(limit: object, used: int, cached: int = 0, high: object = "max") -> dict[str, object]:
    stat = f"anon {used - cached}\nactive_file {cached}\ninactive_file 0\nactive_files 7"
    return {
        "memory.max": limit, "memory.high": high, "memory.current": used, "memory.stat": stat,
    }  # fmt: skip


def v1(limit: int, used: int, cached: int = 0) -> dict[str, object]:
    stat = f"cache 5\nactive_file 1\ntotal_active_file 0\ntotal_inactive_file {cached}"
    return {
        "memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat,
    }  # fmt: skip


def test_without_cgroups_there_is_what_the_machine_has(root: Path) -> None:
    """A plain machine, or one whose cgroups are not mounted."""
    assert available_bytes(root) == 64 * GIB


def test_a_container_s_limit_counts_and_what_files_occupy_is_room(root: Path) -> None:
    """The page cache of yesterday's run is given up for today's corpus."""
    member_of(root, "0::/", V2_MOUNT)
    write(root / "sys/fs/cgroup", v2(8 * GIB, used=7 * GIB, cached=5 * GIB))

    assert available_bytes(root) == 6 * GIB


def test_a_cgroup_without_a_limit_takes_nothing_away(root: Path) -> None:
    """A unit of systemd has the files, and "max" in them; the outermost cgroup has none."""
    member_of(root, "0::/system.slice/feed.service", V2_MOUNT)
    write(root / "sys/fs/cgroup/system.slice/feed.service", v2("max", used=GIB))
    write(root / "sys/fs/cgroup/system.slice", {})

    assert available_bytes(root) == 64 * GIB


@pytest.mark.parametrize("limited", ["a", "a/b", "a/b/c"])
def test_the_tightest_level_decides(root: Path, limited: str) -> None:
    """A pod has a limit, its container another one, and the node's slice a third."""
    member_of(root, "0::/a/b/c", V2_MOUNT)
    for level in ("a", "a/b", "a/b/c"):
        limit = (4 if level == limited else 32) * GIB
        write(root / "sys/fs/cgroup" / level, v2(limit, used=GIB))

    assert available_bytes(root) == 3 * GIB


def test_where_the_kernel_begins_to_throttle_is_a_limit_too(root: Path) -> None:
    """Beyond memory.high every allocation waits for reclaim."""
    member_of(root, "0::/", V2_MOUNT)
    write(root / "sys/fs/cgroup", v2("max", used=GIB, high=4 * GIB))

    assert available_bytes(root) == 3 * GIB


def test_a_limit_of_version_1_counts(root: Path) -> None:
    """Older machines, and sandboxes that imitate them."""
    member_of(root, "9:memory:/job", V1_MOUNT)
    write(root / "sys/fs/cgroup/memory", v1((1 << 63) - 4096, used=9 * GIB))
    write(root / "sys/fs/cgroup/memory/job", v1(4 * GIB, used=2 * GIB, cached=GIB))

    assert available_bytes(root) == 3 * GIB


def test_a_container_that_sees_the_host_s_path_finds_its_own_cgroup(root: Path) -> None:
    """Without a namespace of its own, what is mounted begins at the container's cgroup."""
    member_of(root, "9:memory:/docker/abc", V1_MOUNT, mounted_root="/docker/abc")
    write(root / "sys/fs/cgroup/memory", v1(2 * GIB, used=GIB))

    assert available_bytes(root) == GIB


def test_a_cgroup_outside_of_the_mount_is_not_read(root: Path) -> None:
    """A process that was moved after the namespace was made has a path with ".."."""
    member_of(root, "0::/../other", V2_MOUNT)
    write(root / "sys/fs/cgroup", v2(2 * GIB, used=GIB))

    assert [folder for _, folder in cgroups(root)] == [root / "sys/fs/cgroup"]
    assert available_bytes(root) == GIB


def test_a_full_cgroup_has_nothing_available(root: Path) -> None:
    """Usage may exceed a limit that was lowered; a negative number would be nonsense."""
    member_of(root, "0::/", V2_MOUNT)
    write(root / "sys/fs/cgroup", v2(GIB, used=2 * GIB))

    assert available_bytes(root) == 0


def test_this_machine_has_room() -> None:
    """The files of a real kernel can be read too."""
    assert 0 < available_bytes() < 1 << 60
