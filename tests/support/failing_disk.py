"""A file system that fails or is slow on request, for a real server process: failing_disk.c, which
the first test that needs it compiles.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

SOURCE = Path(__file__).with_suffix(".c")
WORDS = 1 << 18
(
    _STATS,
    _STAT_MICROSECONDS,
    _STAT_ERRNO,
    _READ_ERRNO,
    _READS_FAILED,
    _READ_MICROSECONDS,
    _OUR_STATS,
) = range(7)
_FIRST_STAT = 16


class FailingDisk:
    """Controls a server's file system, for files whose paths contain some words.

    wrapper: the beginning of the server's command line.
    """

    def __init__(self, library: Path, control: Path, words: str) -> None:
        """Begin with a healthy file system."""
        np.zeros(WORDS, dtype=np.uint64).tofile(control)
        self._words = np.memmap(control, dtype=np.uint64, mode="r+")
        self.wrapper = (
            "env",
            f"LD_PRELOAD={library}",
            f"FAILING_DISK={control}",
            f"FAILING_DISK_FILE={words}",
        )

    def fail_reads(self, code: int) -> None:
        """Make all reads of the files fail from now on, and all pages of their maps."""
        self._words[_READ_ERRNO] = code

    def slow_reads(self, seconds: float) -> None:
        """Make each read of the files take at least this long."""
        self._words[_READ_MICROSECONDS] = int(seconds * 1e6)

    def fail_stats(self, code: int) -> None:
        """Make all stat calls of the files fail from now on."""
        self._words[_STAT_ERRNO] = code

    def slow_stats(self, seconds: float) -> None:
        """Make each stat call of the files take at least this long."""
        self._words[_STAT_MICROSECONDS] = int(seconds * 1e6)

    def heal(self) -> None:
        """End all failures and delays."""
        self._words[_STAT_MICROSECONDS : _READ_ERRNO + 1] = 0
        self._words[_READ_MICROSECONDS] = 0

    @property
    def reads_failed(self) -> int:
        """How many reads have failed so far."""
        return int(self._words[_READS_FAILED])

    @property
    def stat_count(self) -> int:
        """How many stat calls of the files the process has made so far."""
        return int(self._words[_OUR_STATS])

    def stat_seconds(self) -> npt.NDArray[np.float64]:
        """Times of all stat calls of the process, of any file, in order, in seconds of
        time.monotonic().
        """
        count = int(self._words[_STATS])
        assert count <= WORDS - _FIRST_STAT, "too many to be recorded"
        found = self._words[_FIRST_STAT : _FIRST_STAT + count]
        return np.sort(np.array(found)) / 1e9


def compiled(folder: Path) -> Path:
    """Return the library; skips the test if there is no compiler."""
    library = folder / "failing_disk.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wno-builtin-declaration-mismatch"]
    try:
        subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
    except FileNotFoundError:
        pytest.skip("needs gcc")
    return library
