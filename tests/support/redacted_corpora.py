"""Datasets with lists of redacted tokens beside them, and with erased tokens."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.gathering import gather_block
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.redactions.list_file import read_list
from tokenfeed.server.datasets.redactions.list_format import ListContent
from tokenfeed.server.datasets.redactions.list_writing import locked
from tokenfeed.server.datasets.redactions.opening import list_path
from tokenfeed.server.datasets.redactions.ranges import TokenRanges
from tokenfeed.tools.redact.__main__ import main
from tokenfeed.tools.redact.erasing import begin

Ranges = Sequence[tuple[int, int, int]]

ERASE = ("--erase", "--no-delimiter")
"""Words of a command that erases."""
_WHEN = "2026-11-01T00:00:00Z"


def redact(*words: object) -> None:
    """Run `tokenfeed redact` in this process."""
    assert main([*map(str, words)]) == 0


def has_attributes(folder: Path) -> bool:
    """Whether files of a folder can have attributes."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.name, "user.test", b"1")
        except OSError:
            return False
    return True


def write_lists(dataset: Dataset, fill: int, *additions: Ranges) -> list[bytes]:
    """Write the lists of a dataset, one after each addition, and return their hashes."""
    content = ListContent(dataset.fingerprint, fill, ())
    for ranges in additions:
        content = content.with_addition(TokenRanges.of(ranges), _WHEN)
    _write(list_path(dataset.store), content)
    return list(content.hashes)


def begin_erasure(dataset: Dataset) -> ListContent:
    """Write to the list of a dataset that its tokens are erased, and return it; replace no file."""
    path = list_path(dataset.store)
    content = read_list(path)
    assert content is not None
    with locked(path):
        return begin(path, content, dataset.store, dataset.digest, ())


def tokens_of(dataset: Dataset, file: int, first: int, end: int) -> list[int]:
    """Tokens of a file as they are served now."""
    spans = Spans(end - first, *(np.array([number]) for number in (0, file, first)))
    return gather_block(dataset.store, spans).tokens[0].tolist()


def _write(path: str, content: ListContent) -> None:
    """Replace a file at once, as its readers may look at any time."""
    new = Path(f"{path}.new")
    new.write_bytes(content.to_bytes())
    os.replace(new, path)
