"""An index is made once by all processes of a machine that open the same files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tokenfeed.server.storage.documents import document_search, rows_builder

RANKS = 8

# Ranks of a node, forks from one process that has imported what they need, start together. Each
# prints a line for each index that it makes, and what it has found.
SCRIPT = """
import errno, os, sys
from tests.support.opened_files import described_sources
from tokenfeed.sampling.orders import packed_v1
from tokenfeed.server import open_local
from tokenfeed.server.storage.documents import index_file, document_search
from tokenfeed.server.storage.documents.index_builder import IndexBuilder
from tokenfeed.stream.stream import Stream

target, ranks, *words = sys.argv[1:]
made = IndexBuilder.make

def counted(builder, *arguments):
    os.write(1, f"made {builder.what}\\n".encode())
    return made(builder, *arguments)

IndexBuilder.make = counted
if "in the background" in words:
    document_search.BACKGROUND_BYTES_MIN = 1 << 20
if "read-only" in words or "full" in words:
    new_file = index_file._new_file

    def refuse(path):
        if path and ("full" in words or "/cache/" not in path):
            raise OSError(errno.EROFS, "read-only")
        return new_file(path)

    index_file._new_file = refuse
begin, go = os.pipe()
for rank in range(int(ranks)):
    if os.fork() == 0:
        os.close(go)
        os.read(begin, 1)
        path, _, options = target.partition("?")
        options = dict([options.split("=")]) if options else {}
        opened = open_local.open_local([[path]], [""], options)
        stream = Stream.of_dataset("", packed_v1, 0, 64)
        (described,) = described_sources(opened, stream)
        planes = [plane.fingerprint.hex() for plane in described.planes]
        os.write(1, f"found {planes} {described.rows[-1].pieces_hash.hex()}\\n".encode())
        os._exit(0)
os.close(go)
assert not any([os.wait()[1] for _ in range(int(ranks))])
"""
STARTS = "made document borders"
ROWS = "made rows of packed-1 for context length 64"


def made_by_ranks(tmp_path: Path, target: str, *words: str, ranks: int = RANKS) -> Counter[str]:
    """How often ranks that open a corpus at once make what; they all find the same."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, target, str(ranks), *words],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = Counter(done.stdout.splitlines())
    (found,) = [line for line in lines if line.startswith("found ")]
    assert lines.pop(found) == ranks
    return lines


def write_indexed(folder: Path) -> Path:
    """A corpus of enough documents, which its format knows."""
    lengths = np.full(rows_builder._ALONE_DOCUMENTS_MAX, 3)
    path = folder / "train.ds"
    np.zeros(int(lengths.sum()), "<u2").tofile(path)
    np.cumsum(lengths, dtype="<u8").tofile(f"{path}.index")
    return path


def test_the_ranks_of_a_node_pack_a_corpus_once(tmp_path: Path) -> None:
    """Eight would take eight times the memory, and the processors of the trainer."""
    made = made_by_ranks(tmp_path, str(write_indexed(tmp_path)))
    assert made == {STARTS: 1, ROWS: 1}


@pytest.mark.parametrize("words", [[], ["in the background"]], ids=["small", "large"])
def test_the_ranks_of_a_node_search_a_corpus_once(tmp_path: Path, words: list[str]) -> None:
    """Eight would each read a terabyte. A few documents are kept too."""
    tokens = np.zeros(document_search._ALONE_BYTES_MAX // 2 + 1, "<u2")
    tokens[999::10_000] = 7
    tokens.tofile(tmp_path / "train.bin")
    made = made_by_ranks(tmp_path, f"{tmp_path / 'train.bin'}?document-end-token=7", *words)

    assert made[STARTS] == 1
    assert len(list(tmp_path.glob(".*.tokenfeed-documents-*"))) == 1


def test_the_ranks_of_a_node_share_what_lies_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Corpora are often mounted read-only. Later starts find it too, beside the lock."""
    path = str(write_indexed(tmp_path))
    assert made_by_ranks(tmp_path, path, "read-only") == {STARTS: 1, ROWS: 1}
    assert made_by_ranks(tmp_path, path, "read-only", ranks=2) == {}
    assert len(list((tmp_path / "cache").glob("tokenfeed/*.index"))) == 2


def test_ranks_that_can_keep_no_index_do_not_wait_for_each_other_in_turn(tmp_path: Path) -> None:
    """Each makes its own, if no folder takes its file."""
    made = made_by_ranks(tmp_path, str(write_indexed(tmp_path)), "full", ranks=4)
    assert made == {STARTS: 4, ROWS: 4}
