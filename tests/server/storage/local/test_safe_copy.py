"""Copies out of maps: straight to the target, or through a file in memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support import seccomp
from tokenfeed.server.storage.local import mapped_bytes, safe_copy
from tokenfeed.server.storage.local.safe_copy import FILES_AT_ONCE, Copier, DirectCopier, FileCopier
from tokenfeed.server.storage.local.syscalls import IOVECS_MAX, Ranges

BYTES = 8 << 20


@pytest.fixture(params=[DirectCopier, FileCopier])
def copier(request: pytest.FixtureRequest) -> Iterator[Copier]:
    made: Copier = request.param()
    yield made
    made.close()


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A file, and its map, which only the kernel may read once the file is cut."""
    path = tmp_path / "tokens.bin"
    np.random.default_rng(1).integers(0, 256, BYTES, dtype=np.uint8).tofile(path)
    with path.open("rb") as file:
        return path, np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=np.uint8)


def ranges_of(content: np.ndarray, firsts: np.ndarray, sizes: np.ndarray) -> Ranges:
    addresses = content.ctypes.data + firsts
    return np.stack([addresses, sizes], axis=1).astype(np.uint64)


def test_ranges_arrive_end_to_end(copier: Copier, mapped: tuple[Path, np.ndarray]) -> None:
    """Also more of them than one system call takes, of any length and place."""
    _, content = mapped
    random = np.random.default_rng(2)
    sizes = random.integers(1, 3000, 2 * IOVECS_MAX + 5)
    firsts = random.integers(0, BYTES - 3000, sizes.size)
    target = np.empty(int(sizes.sum()), dtype=np.uint8)

    assert copier.copy(ranges_of(content, firsts, sizes), target) is None

    expected = [content[first : first + size] for first, size in zip(firsts, sizes, strict=True)]
    np.testing.assert_array_equal(target, np.concatenate(expected))


def test_nothing_is_copied_where_there_is_nothing(copier: Copier) -> None:
    assert copier.copy(np.empty((0, 2), dtype=np.uint64), np.empty(0, dtype=np.uint8)) is None


@pytest.mark.parametrize("unread", [0, 1, 700, IOVECS_MAX, IOVECS_MAX + 9])
def test_the_first_range_that_cannot_be_read_is_named(
    copier: Copier, mapped: tuple[Path, np.ndarray], unread: int
) -> None:
    """A partial copy reports how far it came, in bytes."""
    path, content = mapped
    firsts = np.arange(IOVECS_MAX + 10) * 100
    firsts[unread] = BYTES - 5000
    os.truncate(path, BYTES // 2)
    sizes = np.full(firsts.size, 100)

    assert copier.copy(ranges_of(content, firsts, sizes), np.empty(sizes.sum(), np.uint8)) == unread


def test_many_threads_copy_at_once(copier: Copier, mapped: tuple[Path, np.ndarray]) -> None:
    """More than there may be files in memory; each gets its own bytes."""
    _, content = mapped
    begin = threading.Barrier(FILES_AT_ONCE + 8)

    def copy(index: int) -> bool:
        firsts = index * 1000 + np.arange(100) * 37
        sizes = np.full(100, 50)
        target = np.empty(5000, dtype=np.uint8)
        begin.wait(10)
        assert copier.copy(ranges_of(content, firsts, sizes), target) is None
        return bool((target.reshape(100, 50) == content[firsts[:, None] + np.arange(50)]).all())

    with ThreadPoolExecutor(begin.parties) as threads:
        assert all(threads.map(copy, range(begin.parties)))


def test_a_copier_that_is_let_go_of_in_the_middle_of_a_copy_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    copier = FileCopier()
    with copier._lend(1000):
        assert len(os.listdir("/proc/self/fd")) > before
        copier.close()
    del copier

    assert len(os.listdir("/proc/self/fd")) == before


def test_forks_share_no_file_that_they_copy_through(
    mapped: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainers that one process has forked would get each other's rows."""
    _, content = mapped
    monkeypatch.setattr(safe_copy, "_may_copy_directly", lambda: False)
    mapped_bytes._common_copier.cache_clear()
    found = np.empty(1000, dtype=np.uint8)

    def copy(first: int) -> FileCopier:
        copier = mapped_bytes._common_copier()
        assert isinstance(copier, FileCopier)
        ranges = ranges_of(content, np.array([first]), np.array([found.size]))
        assert copier.copy(ranges, found) is None
        return copier

    (file,) = copy(0)._free
    process = os.fork()
    if not process:
        copy(5000)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    mapped_bytes._common_copier.cache_clear()

    assert os.waitstatus_to_exitcode(status) == 0
    np.testing.assert_array_equal(file.content[: found.size], found)


def test_copies_go_straight_to_their_target_where_that_is_permitted() -> None:
    assert isinstance(safe_copy.best_copier(), DirectCopier)


def test_a_profile_that_forbids_it_is_found_out_and_said_once() -> None:
    """Old container engines have such a profile. The stores then behave the same."""
    code = (
        "import logging; logging.basicConfig(level='INFO'); "
        "from tokenfeed.server.storage.local.safe_copy import best_copier; "
        "print([type(best_copier()).__name__ for _ in range(2)])"
    )
    command = [*seccomp.PREFIX, sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "['FileCopier', 'FileCopier']\n"
    assert done.stderr.count("process_vm_writev cannot be used here: Operation not permitted") == 1


def test_the_mapped_store_behaves_the_same_under_such_a_profile(tmp_path: Path) -> None:
    """All of its tests, once more."""
    folder = Path(__file__).parent
    tests = [folder / "test_local_stores.py", folder / "test_watched_bytes.py"]
    options = ["-q", "-k", "map", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    command = [*seccomp.PREFIX, sys.executable, "-m", "pytest", *options, *map(str, tests)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rsplit(" passed", 1)[0].split()[-1]) > 50
