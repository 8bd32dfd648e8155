"""deploy/Dockerfile, as it is written; tests/integration builds it."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def stages() -> dict[str, tuple[str, str]]:
    """What each stage is made from, and its lines, by its name."""
    found = {}
    for part in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        base, name, lines = re.match(r"(\S+) AS (\S+)\n(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        found[name] = (base, lines)
    return found


@pytest.mark.parametrize("name", ["server", "ingest", "trainer", "certificates", "store"])
def test_no_image_runs_as_root(name: str) -> None:
    """By a number, because the kubelet knows no names."""
    base, lines = stages()[name]

    assert "USER" not in lines
    assert base == "runtime"
    assert re.findall(r"^USER (.*)$", stages()["runtime"][1], re.MULTILINE) == ["65532:65532"]
