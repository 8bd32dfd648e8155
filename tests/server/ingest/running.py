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


def slow_ingest(*words: str | Path) -> list[str]:
    """Return a command that ingests with a pause after each part that it writes: a test finds it at
    work. A shell that starts the tests in the background has Ctrl-C ignored in all that they start,
    but not in this one.
    """
    code = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tokenfeed.server.ingest.__main__ import main
from tokenfeed.server.ingest.output.shard_writer import SplitWriter
def add_slowly(self, part, add=SplitWriter.add):
    add(self, part)
    time.sleep(0.03)
SplitWriter.add = add_slowly
sys.exit(main())
"""
    return [sys.executable, "-c", code, *map(str, words)]


def ingested(*words: str | Path, **options: float) -> str:
    """Run it, require success, and return its stdout."""
    done = ingest(*words, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout
