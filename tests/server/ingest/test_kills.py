"""Killed at any moment and started again, an ingest makes what it would have made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.ingest.kills import check


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_kills_leave_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a write, before a sync, before a rename: of documents that are permuted, of text in
    passages, of pairs, of chats; with their ids. The long run is
    `python -m tests.server.ingest.kills`.
    """
    check(tmp_path, number=8, seed=3)

    assert capsys.readouterr().out.count("the same bytes") == 8
