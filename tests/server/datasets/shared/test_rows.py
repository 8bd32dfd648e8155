"""Rows over documents, made once by all processes of a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.conftest import ROOT
from tokenfeed.server.datasets.shared import rows as shared_rows

RANKS = """
import errno, os, sys
from tokenfeed.server import open_local
from tokenfeed.server.storage.kept import spool
from tokenfeed.server.storage.rows import RowsJob
from tokenfeed.sampling.orders import packed_v1
from tokenfeed.stream.stage import Source

made = RowsJob.made

def counted(*arguments, **options):
    os.write(1, b"made\\n")
    return made(*arguments, **options)

RowsJob.made = counted
if sys.argv[2:]:
    new_file = spool._new_file

    def temporary_only(path):
        if path:
            raise OSError(errno.EROFS, "read-only")
        return new_file(path)

    spool._new_file = temporary_only
begin, go = os.pipe()
for rank in range(4):
    if os.fork() == 0:
        os.close(go)
        os.read(begin, 1)
        opened = open_local.open_local([[sys.argv[1]]], [""], {})
        (described,) = opened.described(64, [Source("", packed_v1, 0)])
        os.write(1, described.rows[-1].pieces_hash.hex().encode() + b"\\n")
        os._exit(0)
os.close(go)
assert not any([os.wait()[1] for _ in range(4)])
"""


def lines_of_ranks(tmp_path: Path, path: Path, *words: str) -> list[str]:
    """What four ranks say that open a corpus at once."""
    done = subprocess.run(
        [sys.executable, "-c", RANKS, str(path), *words],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    hashes = [line for line in lines if line != "made"]
    assert (len(hashes), len(set(hashes)), len(hashes[0])) == (4, 1, 64)
    return lines


def write(folder: Path) -> Path:
    """A corpus of enough documents."""
    lengths = np.full(shared_rows._DOCUMENTS_MIN, 3)
    path = folder / "train.ds"
    np.zeros(int(lengths.sum()), "<u2").tofile(path)
    np.cumsum(lengths, dtype="<u8").tofile(f"{path}.index")
    return path


def test_the_ranks_of_a_node_pack_a_corpus_once(tmp_path: Path) -> None:
    """Eight would take eight times the memory, and the processors of the trainer."""
    assert lines_of_ranks(tmp_path, write(tmp_path)).count("made") == 1


def test_ranks_that_can_keep_no_rows_do_not_wait_for_each_other_in_turn(tmp_path: Path) -> None:
    """Each makes its own, if no folder takes them."""
    assert lines_of_ranks(tmp_path, write(tmp_path), "refuse").count("made") == 4
