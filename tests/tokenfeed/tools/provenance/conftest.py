"""A run whose rows are known one by one, and commands that are asked about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Serve
from tests.support.seen_runs import SeenRun, Texts, local, meddled_with, served, write_all
from tokenfeed.tools.__main__ import main
from tokenfeed.tools.provenance import find

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Texts]:
    """The datasets of the mixture, by name."""
    return write_all(tmp_path)


@pytest.fixture(params=["server", "file"])
def target(request: pytest.FixtureRequest, serve: Serve, texts: dict[str, Texts]) -> str:
    """A server of the datasets, or the same files."""
    return served(serve, texts).address if request.param == "server" else local(texts)


@pytest.fixture
def run(target: str) -> SeenRun:
    """The run."""
    return meddled_with(target)


@pytest.fixture
def checkpoint(run: SeenRun, tmp_path: Path) -> Path:
    """Its state, among other things."""
    path = tmp_path / "step.json"
    path.write_text(json.dumps({"step": run.steps, "trainer": {"feed": run.state}}))
    return path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command that prints a JSON object, and return it; a slow machine sees no progress."""
    monkeypatch.setattr(find, "_PROGRESS_SECONDS", 600.0)

    def run(*words: object) -> dict[str, Any]:
        code = main([*map(str, words), "--json"])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        found = json.loads(captured.out)
        assert isinstance(found, dict)
        return found

    return run
