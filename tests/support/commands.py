"""Commands run as a user would run them: bounded in time, and nothing outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.conftest import ROOT

# torchrun gives its ranks 30 seconds to end before it kills them; each leads a group of its own,
# so that nobody else would.
END_SECONDS = 35


def run(*command: str | Path, cwd: Path = ROOT, seconds: float = 60) -> str:
    """Run a Python command, and return what it prints.

    command: what follows the interpreter.  seconds: its limit.
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
            # First what lets it end its own, then the whole group: an example's server must not
            # outlive a test that ran out of time.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, stderr + stdout
    return stdout


def torchrun(ranks: int, *command: str | Path, cwd: Path = ROOT, seconds: float = 100) -> str:
    """Run a script on some ranks of this machine, and return what they print."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
    return run(*launcher, "--nproc-per-node", str(ranks), *command, cwd=cwd, seconds=seconds)
