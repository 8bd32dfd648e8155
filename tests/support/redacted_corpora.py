"""Datasets with lists of redacted tokens beside them, and with erased tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from server.datasets.dataset import Dataset
from server.datasets.redactions.erased_files import names_of
from server.datasets.redactions.list_content import Erasure, ListContent
from server.datasets.redactions.list_file import read_list
from server.datasets.redactions.opening import list_path
from server.datasets.redactions.ranges import TokenRanges

Ranges = Sequence[tuple[int, int, int]]

_WHEN = "2026-11-01T00:00:00Z"


def write_lists(dataset: Dataset, fill: int, *additions: Ranges) -> list[bytes]:
    """Write the lists of a dataset, one after each addition, and return their hashes."""
    content = ListContent(dataset.fingerprint, fill, ())
    for ranges in additions:
        content = content.with_addition(TokenRanges.of(ranges), _WHEN)
    _write(list_path(dataset.store), content)
    return list(content.hashes)


def begin_erasure(dataset: Dataset) -> None:
    """Note that all tokens of the latest list are being erased; erase nothing."""
    path = list_path(dataset.store)
    content = read_list(path)
    assert content is not None
    ranges = content.list_of(len(content.additions)).ranges
    erasure = Erasure(
        is_done=False,
        list_hash=content.hashes[-1],
        ranges=ranges,
        fingerprint=bytes(32),
        digest=b"",
        original_digest=b"",
        token_max=0,
        delimiters=(),
        files=(),
        when=_WHEN,
        names=names_of(dataset.store, ranges),
    )
    _write(path, ListContent(content.fingerprint, content.fill, content.additions, erasure))


def _write(path: str, content: ListContent) -> None:
    """Replace a file at once, as its readers may look at any time."""
    new = Path(f"{path}.new")
    new.write_bytes(content.to_bytes())
    os.replace(new, path)
