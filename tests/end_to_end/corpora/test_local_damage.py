"""Local files that are cut short, rewritten or away while a feed reads them: what the trainer gets.

In processes of their own: the alternative to an error would be SIGBUS.
"""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteTokens
from tests.support.failing_disk import FailingDisk, compiled
from tests.support.forks import results, start_forks
from tests.support.waiting import eventually

T = 1023
READS = ("map", "pread")
PREFETCH = (0, 1 << 16)
MODES = list(itertools.product(READS, PREFETCH))

# In the corpus each token is one more than the one before; after 65,535 comes 1.
READING = """
import time
import torch
from client import CorpusChanged, Timeouts
T = 1023
WINDOWS = ((1 << 20) - 1) // T
torch.set_num_threads(1)

def feed_of(path, read, prefetch_bytes, **arguments):
    return RemoteBatches(f"file:{path}?read={read}", 8, T, order="sequential",
                         prefetch_bytes=prefetch_bytes, **arguments)

def take(feed, batches):
    for _ in range(batches):
        first = feed.position.samples
        x, y = next(feed)
        place = (torch.arange(first, first + 8) % WINDOWS * T)[:, None] + torch.arange(T)
        assert torch.equal(x, place % 65_535 + 1) and torch.equal(y, (place + 1) % 65_535 + 1)
"""

CHANGED = (
    READING
    + """
def cut(path):
    os.truncate(path, 100_001)

def cut_and_grow(path):
    os.truncate(path, 5000)
    os.truncate(path, 2 << 20)

def rewrite(path):
    with open(path, "r+b") as file:
        file.write(b"zz")

def replace(path):
    with open(path + ".new", "wb") as file:
        file.write(b"zz" * 100)
    os.replace(path + ".new", path)

def run(change, read, prefetch_bytes):
    path = f"{os.environ['CORPORA']}/{change}-{read}-{prefetch_bytes}.bin"
    with feed_of(path, read, prefetch_bytes) as feed:
        take(feed, 20)
        globals()[change](path)
        # One error is waited for; that there is none takes a time.
        end = time.monotonic() + (4.0 if change == "replace" else 60.0)
        try:
            while time.monotonic() < end:
                # Rows of the changed content may come until it is noticed.
                next(feed) if change == "rewrite" else take(feed, 1)
                time.sleep(0.01)
        except CorpusChanged as error:
            return str(error)
        return "goes on"
"""
)


@pytest.mark.slow
def test_a_file_that_is_cut_or_rewritten_is_an_error_and_one_that_is_replaced_is_read_on(
    write_tokens: WriteTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal, no zeros, and no rows of another corpus; however the file is read."""
    monkeypatch.setenv("CORPORA", str(tmp_path))
    tokens = np.arange(1 << 20) % 65_535 + 1
    changes = ("cut", "cut_and_grow", "rewrite", "replace")
    cases = [(change, *mode) for change in changes for mode in MODES]
    for change, read, prefetch_bytes in cases:
        write_tokens(tokens, f"{change}-{read}-{prefetch_bytes}.bin")

    found = results(start_forks(CHANGED, cases))

    assert found.keys() == set(cases)
    for (change, read, prefetch_bytes), result in found.items():
        name = f"{change}-{read}-{prefetch_bytes}"
        changed = f"dataset: '{name}' changed while it was read; start again with complete files"
        expected = "goes on" if change == "replace" else f"{changed}; the log names the file"
        assert result == expected, name


FAILING = (
    READING
    + """
from client import ServerUnavailable
def wait_for(step):
    while not os.path.exists(f"{os.environ['STEPS']}/{step}"):
        time.sleep(0.01)

def run(read, prefetch_bytes):
    path = os.environ["SICK"]
    with (feed_of(path, read, prefetch_bytes, timeouts=Timeouts(reconnect_seconds=60.0)) as patient,
          feed_of(path, read, prefetch_bytes, timeouts=Timeouts(reconnect_seconds=0.1)) as other):
        take(patient, 3)
        take(other, 3)
        os.write(1, b"[[], 0]\\n")
        wait_for("fails")
        try:
            take(other, 200)
        except ServerUnavailable as error:
            problem = f"{type(error).__name__}: {error}"
        os.write(1, b"[[], 1]\\n")
        take(patient, 200)
        take(other, 200)
    return problem
"""
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("failing-disk"))


@pytest.mark.slow
def test_a_disk_that_fails_for_a_while_costs_no_row_and_one_that_fails_for_long_is_an_error(
    write_tokens: WriteTokens, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system fails over; Timeouts(reconnect_seconds=...) says how long that may take. After
    the error, too, the feed can be read on.
    """
    path = write_tokens(np.arange(1 << 20) % 65_535 + 1, "sick.bin")
    disk = FailingDisk(library, tmp_path / "control", "sick")
    monkeypatch.setenv("SICK", str(path))
    monkeypatch.setenv("STEPS", str(tmp_path))
    process = start_forks(FAILING, MODES, disk.wrapper)
    assert process.stdout is not None
    for _ in MODES:
        assert process.stdout.readline() == "[[], 0]\n"

    disk.fail_reads(errno.EIO)
    (tmp_path / "fails").touch()
    for _ in MODES:
        assert process.stdout.readline() == "[[], 1]\n"
    before = disk.reads_failed
    assert eventually(lambda: disk.reads_failed > before + 4)
    disk.heal()

    problem = "'sick' has a file that cannot be read at the moment; the log names the file"
    assert results(process) == dict.fromkeys(MODES, f"Unreadable: dataset: {problem}")
