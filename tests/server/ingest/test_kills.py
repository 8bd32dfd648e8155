"""Killed at any moment and started again, an ingest makes what it would have made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.ingest.kills import check


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "engine"),
    [
        (4, "tokenizers"),
        pytest.param(20, "tokenizers", marks=[pytest.mark.proof, pytest.mark.timeout(1200)]),
        pytest.param(20, "fastokens", marks=[pytest.mark.proof, pytest.mark.timeout(1200)]),
    ],
)
def test_kills_leave_no_trace(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    engine: str,
) -> None:
    """In a write, before a sync, before a rename: of documents that are permuted, of text in
    passages, of pairs, of chats; with their ids.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check(tmp_path, number, 3, engine)

    assert capsys.readouterr().out.count("the same bytes") == number
