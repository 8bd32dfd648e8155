"""Runs commands like a user, with a time limit; none of their processes outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.conftest import ROOT

# torchrun gives its ranks 30 seconds to end before it kills them. Each rank leads its own process
# group, so a kill of torchrun's group would not reach it.
END_SECONDS = 35


def run(*command: str | Path, cwd: Path = ROOT, seconds: float = 60) -> str:
    """Run a Python command, and return what it prints.

    command: the arguments of the interpreter.  seconds: the time limit.
    """
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except BaseException:
            # First SIGTERM, so that it can end its children, then SIGKILL for the group: an
            # example's server must not outlive a test that timed out.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, stderr + stdout
    return stdout


def run_together(
    commands: Sequence[Sequence[str | Path]], cwd: Path = ROOT, seconds: float = 100
) -> list[str]:
    """Run Python commands that wait for each other, and return what each of them prints."""
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda command: run(*command, cwd=cwd, seconds=seconds), commands))


def torchrun(ranks: int, *command: str | Path, cwd: Path = ROOT, seconds: float = 100) -> str:
    """Run a script on several ranks of this machine, and return what they print."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
    return run(*launcher, "--nproc-per-node", str(ranks), *command, cwd=cwd, seconds=seconds)
