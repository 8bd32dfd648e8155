"""Lists of redactions beside corpora of tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from server.datasets.dataset import PlaneOptions, TokenChecks, open_dataset
from server.datasets.redactions.list_content import ListContent
from server.datasets.redactions.list_file import read_list
from server.datasets.redactions.ranges import TokenRanges
from server.datasets.sources import DatasetSource
from server.storage.formats import FormatOptions
from server.storage.choice import Storing


def redact(paths: Sequence[Path], *ranges: tuple[int, int, int], fill: int = 0) -> str:
    """Add ranges of (file, first token, end token) to the list of a corpus, and return its hash."""
    source = DatasetSource("", tuple(map(str, paths)))
    dataset = open_dataset(
        source, FormatOptions.parse(None, "uint16", None), TokenChecks(), Storing()
    )
    try:
        assert dataset.redactions is not None
        content = read_list(dataset.redactions.path) or ListContent(dataset.fingerprint, fill, ())
        content = content.with_addition(TokenRanges.of(ranges), "2026-11-25T00:00:00Z")
        Path(dataset.redactions.path).write_bytes(content.to_bytes())
        return content.hashes[-1].hex()
    finally:
        dataset.close()
