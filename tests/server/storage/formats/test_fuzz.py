"""Damaged files of every format: an error that names the file, never a crash, a hang or a lie."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]


def fuzz(*options: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.server.storage.formats.fuzz", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)


@pytest.mark.parametrize(
    ("examples", "seconds"),
    [
        (600, 600),
        pytest.param(60_000, 1400, marks=[pytest.mark.proof, pytest.mark.timeout(1500)]),
    ],
)
def test_any_content_gives_a_layout_within_the_file_or_a_clear_error(
    examples: int, seconds: float
) -> None:
    """With little memory."""
    answer = fuzz("--examples", str(examples), "--seed", "7", seconds=seconds)

    assert answer.returncode == 0, answer.stdout + answer.stderr
    outcomes = ast.literal_eval(answer.stdout.partition(": ")[2])
    formats = {"raw", "llm.c", "megatron", "npy", "safetensors", "datatrove", "olmo", "refused"}
    formats |= {"litgpt", "litdata"}
    assert set(outcomes) == formats
    assert outcomes["refused"] > examples / 6


def test_a_header_that_is_not_checked_is_found() -> None:
    """A planted bug: or the test above could not fail."""
    answer = fuzz("--examples", "3000", "--plant", "belief")

    assert answer.returncode == 1
    assert "FOUND with --seed 1: AssertionError" in answer.stdout
    assert "llmc.bin" in answer.stdout


def test_a_header_that_is_read_for_ever_is_found() -> None:
    """With the input, so that the cause can be found."""
    answer = fuzz("--examples", "3000", "--plant", "hang", "--seconds", "3")

    assert answer.returncode == 1
    assert "FOUND with --seed 1: Hung: still reading Seeds(name='llmc.bin'" in answer.stdout
