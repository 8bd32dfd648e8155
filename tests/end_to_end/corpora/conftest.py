"""Object stores for tests of corpora in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.object_server import ObjectServer, object_server


@pytest.fixture
def store() -> Iterator[ObjectServer]:
    """An empty store that fails on purpose; s3:// leads there."""
    with object_server() as found:
        yield found


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process, and those that it starts, keep what they find out in a folder of the
    test.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
