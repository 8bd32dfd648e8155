"""tokenfeed top without a terminal: plain lines, and JSON."""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import Serve, WriteTokens
from tests.support.statuses import HOSTILE_NAMES, dataset, stream
from tests.tokenfeed.tools.top.conftest import ScriptedStatus
from tokenfeed.tools.__main__ import main

Captured = pytest.CaptureFixture[str]


def test_a_snapshot_is_printed_where_there_is_no_terminal(
    serve: Serve, write_tokens: WriteTokens, capsys: Captured
) -> None:
    """For a log, a bug report, a pipe: of a real server."""
    server = serve("--data", write_tokens(range(1000)))

    assert main(["top", server.address]) == 0

    shown = capsys.readouterr().out
    assert f"at {server.address}   serving" in shown
    assert re.search("^train +served ", shown, re.MULTILINE)
    assert "No client has read yet." in shown
    assert "\x1b" not in shown


def test_what_is_wrong_comes_first(scripted: ScriptedStatus, capsys: Captured) -> None:
    """As on the page."""
    assert main(["top", scripted.address]) == 0

    shown = capsys.readouterr().out
    assert "!! stuck (10.0.0.0:41234) does not read: a frame has been ready for 17 s." in shown
    lines = [line for line in shown.splitlines() if "shuffled-1" in line]
    assert len(lines) == 5
    assert lines[0].split()[:5] == ["!!", "does", "not", "read", "stuck"]
    assert "sends 1.00 MiB/s   streams 5 of about 512   memory 100 MiB of 4.00 GiB" in shown


def test_json_has_everything_in_a_line(scripted: ScriptedStatus, capsys: Captured) -> None:
    """For jq, and for people's own tools."""
    arguments = ["top", scripted.address, "--json", "--count", "2", "--seconds", "0.1"]
    assert main(arguments) == 0

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["streams_open"] == 5
    assert [each["resident_share"] for each in first["datasets"]] == [None, 0.5]
    assert first["datasets"][0]["fingerprint"] == bytes(range(32)).hex()
    assert first["streams"][0]["client_name"] == "stuck"
    assert first["streams"][0]["state"] == "STALLED"
    assert first["streams"][0]["datasets"] == ["web"]
    assert [each["level"] for each in first["attention"]] == ["problem"]
    assert first["second_bytes"] == [2 << 20] * 60


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_names_cannot_act_on_a_terminal(
    scripted: ScriptedStatus, capsys: Captured, extra: list[str]
) -> None:
    """A client names itself, and an operator's terminal shows it."""
    for name in HOSTILE_NAMES:
        scripted.answer.streams.append(stream(name, order=name, datasets=[name], address=name))
        scripted.answer.datasets.append(dataset(name, format=name, lost=name))
    scripted.answer.server_version = HOSTILE_NAMES[3]

    assert main(["top", scripted.address, *extra]) == 0

    shown = capsys.readouterr().out
    assert all(sign.isprintable() or sign in "\n\ufffd" for sign in shown)
    if not extra:
        assert max(map(len, shown.splitlines())) < 500
