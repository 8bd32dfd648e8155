"""python -m tokenfeed.server.ingest as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.support import forked


def ingest(
    *words: str | Path, module: str = "tokenfeed.server.ingest", timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run it until it ends.  module: to run another module instead, which starts from nothing."""
    if module == "tokenfeed.server.ingest":
        return forked.run(module, *words, timeout=timeout)
    command = [sys.executable, "-m", module, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def ingested(*words: str | Path, **options: float) -> str:
    """Run it, require success, and return its stdout."""
    done = ingest(*words, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout
