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
from tests.support import forked

# torchrun gives its ranks 30 seconds to end before it kills them. Each rank leads its own process
# group, so a kill of torchrun's group would not reach it.
END_SECONDS = 35
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(*command: str | Path, cwd: Path = ROOT, seconds: float = 60, has_torch: bool = True) -> str:
    """Run a Python command, and return what it prints.

    command: the arguments of the interpreter.  seconds: the time limit.  has_torch: allows that a
    script is run by a fork of a process that has imported torch, see tests.support.forked.
    """
    if has_torch and str(command[0]).endswith(".py") and forked.COLD not in os.environ:
        done = forked.run(*command, timeout=seconds, cwd=cwd, environment=ENVIRONMENT)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=os.environ | ENVIRONMENT,
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
    commands: Sequence[Sequence[str | Path]], cwd: Path = ROOT, seconds: float = 250
) -> list[str]:
    """Run Python commands that wait for each other, and return what each of them prints."""

    def start(command: Sequence[str | Path]) -> str:
        return run(*command, cwd=cwd, seconds=seconds, has_torch=False)

    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(start, commands))


def run_ranks(ranks: int, script: Path, *words: str | Path) -> str:
    """Run a script as torchrun does, by forks of a process that has imported torch, and return what
    they print. Should one fail, the others end after a while.
    """
    from torch.distributed import TCPStore

    # As torchrun has it: it is there until the last rank has ended.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def run_rank(rank: int) -> str:
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        environment |= {"LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
        environment |= {"TORCHELASTIC_RESTART_COUNT": 0}
        variables = {name: str(value) for name, value in environment.items()}
        done = forked.run(script, *words, timeout=250, environment=variables)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    with ThreadPoolExecutor(ranks) as pool:
        return "".join(pool.map(run_rank, range(ranks)))


def torchrun(ranks: int, *command: str | Path, cwd: Path = ROOT, seconds: float = 250) -> str:
    """Run a script on several ranks of this machine, and return what they print."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nnodes", "1"]
    return run(*launcher, "--nproc-per-node", str(ranks), *command, cwd=cwd, seconds=seconds)
