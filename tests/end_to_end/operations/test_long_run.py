"""The long run of everything at once, for two minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_happens_at_once_every_row_arrives_once_and_right(tmp_path: Path) -> None:
    """Nobody should find out after 90 minutes that the run of hours does not run."""
    command = ["tests.long_run", "--hours", "0.03", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout.decode()
