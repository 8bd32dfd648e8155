"""python -m server.ingest as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def ingest(
    *words: str | Path, module: str = "server.ingest", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run it until it ends, whatever comes of it."""
    command = [sys.executable, "-m", module, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def ingested(*words: str | Path, **how: float) -> str:
    """Run it until it has made everything; what it said on stdout."""
    done = ingest(*words, **how)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout
