"""What docs/compatibility.md promises of names: those that a version had, later ones have too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.recordings.names import commands, environment, names
from tests.recordings.states import CASES
from tokenfeed import __version__
from tokenfeed.sampling import orders

RECORDED = sorted((ROOT / "tests" / "recordings").glob("*/names.json"))
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


@pytest.fixture(scope="module")
def present() -> dict[str, Any]:
    return names()


def missing(recorded: Any, present: Any, place: str) -> list[str]:
    """The places of what was recorded and is no more, or is something else."""
    if isinstance(recorded, dict):
        return [
            lost
            for key, each in recorded.items()
            for lost in (
                missing(each, present[key], f"{place}, {key}")
                if key in present
                else [f"{place}, {key}"]
            )
        ]
    if isinstance(recorded, list):
        return [f"{place}, {each}" for each in recorded if each not in present]
    return [] if recorded == present else [f"{place}: {recorded}, now {present}"]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_every_name_of_an_earlier_version_is_still_there(
    path: Path, present: dict[str, Any]
) -> None:
    """Scripts, alerts, manifests and other clients have them. A name that goes is announced in the
    changelog; then it is left out of the recording too, with the version that took it away.
    """
    recorded = json.loads(path.read_text())

    assert missing(recorded, present, path.parent.name) == []
    assert len(recorded["commands"]["serve"]) > 40
    assert len(recorded["contract"]) > 15


def test_every_name_of_this_version_is_recorded(present: dict[str, Any]) -> None:
    """A name that is new is a promise from the release on: python -m tests.recordings."""
    (recorded,) = [path for path in RECORDED if path.parent.name == __version__]

    assert missing(present, json.loads(recorded.read_text()), "new") == []


def test_the_page_lists_what_there_is() -> None:
    """Whoever adds a name decides whether it is promised."""
    assert f"{len(CASES)} recorded states" in PAGE
    listed = PAGE[PAGE.index("Frozen for 0.1.0") : PAGE.index("Other variables")]

    assert re.findall(r"`([^`]+)`", listed) == [
        *orders.ORDERS,
        *commands(),
        *sorted(environment(), key=lambda name: "STATUS" in name),
    ]


@pytest.mark.parametrize("name", commands())
def test_a_wrong_command_line_ends_every_command_with_2(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And 0 is what --help ends with: a job script decides by it whether to try again."""
    for word, code in (("--of-a-later-release", 2), ("--help", 0)):
        with pytest.raises(SystemExit) as end:
            commands()[name].parse_args([word])
        assert end.value.code == code
    assert "usage: tokenfeed" in capsys.readouterr().out
