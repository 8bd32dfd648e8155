"""explain, find and manifest of a run with redactions: what was replaced, and what is gone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.seen_runs import MIXTURE, T, Texts
from tests.support.waiting import eventually
from tests.tokenfeed.tools.provenance.conftest import Ask
from tokenfeed.client.batches.arrays import NumpyBatches
from tokenfeed.client.transport.channel import describe
from tokenfeed.tools.__main__ import main

DOCUMENT = 3


def redact(texts: Texts, *words: str) -> str:
    """Run `tokenfeed redact`, and return the hash of the list."""
    command = [sys.executable, "-m", "tokenfeed", "redact", *map(str, texts.paths), *words]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    match = re.search("[0-9a-f]{64}", found.stdout)
    assert match is not None
    return match[0]


def rows_of(ask: Ask, target: str, state: Path, steps: int) -> list[dict[str, Any]]:
    """All rows of a run."""
    words = ("explain", target, "--state", state, "--tokenizer", "bytes", "--rows-max", 1000)
    return [row for step in range(steps) for row in ask(*words, "--step", step)["rows"]]


def knows(target: str, hashed: str) -> bool:
    """Whether a server has seen that the list has changed; local files are opened later."""
    if target.startswith("file:"):
        return True
    datasets = describe(target, dataset="code").datasets
    return bytes.fromhex(hashed) in datasets[0].redaction_lists


def has_document(row: dict[str, Any]) -> bool:
    return row["dataset"] == "code" and any(
        each["document"]["number"] == DOCUMENT for each in row["ranges"]
    )


def test_rows_say_what_was_redacted_and_what_was_deleted(
    target: str,
    texts: dict[str, Texts],
    tmp_path: Path,
    ask: Ask,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the redaction, after it, and once its tokens are erased."""
    hashed = redact(texts["code"], "--document", str(DOCUMENT), "--fill", "42")
    assert eventually(lambda: knows(target, hashed))
    state = tmp_path / "state.json"
    with NumpyBatches(target, 3, T, mixture=MIXTURE) as feed:
        for step in range(24):
            if step == 12:
                begin = feed.redact(hashed, dataset="code")
            next(feed)
        state.write_text(json.dumps(feed.state_dict()))
    assert begin == 36

    rows = rows_of(ask, target, state, 24)
    held = [row for row in rows if has_document(row)]
    assert {row["sample"] < begin for row in held} == {True, False}
    for row in rows:
        is_replaced = has_document(row) and row["sample"] >= begin
        assert bool(row["redacted"]) == is_replaced
        assert ("[redacted]" in "".join(each["text"] for each in row["ranges"])) == is_replaced
    found = ask("find", target, "--dataset", "code", "--document", DOCUMENT, "--state", state)[
        "rows"
    ]
    for row in found:
        assert bool(row["redacted"]) == (row["sample"] >= begin)
    assert {row["sample"] for row in found if row["when"] == "seen"} == {
        row["sample"] for row in held
    }

    wait = () if target.startswith("file:") else ("--wait", target)
    redact(texts["code"], "--erase", *wait)

    for row, before in zip(rows_of(ask, target, state, 24), rows, strict=True):
        is_gone = has_document(row) and row["sample"] < begin
        assert row["is_deleted"] == is_gone
        if not is_gone:
            assert row == before
        assert bool(row["deleted"]) == is_gone
        assert [each["tokens"] for each in row["ranges"]] == [
            each["tokens"] for each in before["ranges"]
        ]
    gone = next(row["sample"] for row in held if row["sample"] < begin)
    step = ("explain", target, "--state", state, "--step", gone // 3, "--row", gone % 3)
    (row,) = ask(*step)["rows"]
    assert row["is_deleted"]
    (span,) = row["deleted"]
    for words in (step, (*step, "--tokenizer", "bytes")):
        assert main([*map(str, words)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].endswith(f", tokens [{span[0]}, {span[1]}) of the row are deleted")
        assert lines[-1] == "    deleted"
    found = ["find", target, "--dataset", "code", "--document", str(DOCUMENT)]
    assert main([*found, "--state", str(state)]) == 0
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("seen: "):
            sample = int(re.findall("sample ([0-9]+)", line)[0])
            assert line.endswith(", redacted" if sample >= begin else ", deleted")
