"""Runs trainers in processes of their own that may end in any way: forks of one that has imported
torch, which takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from tests.conftest import ROOT

# Each case is a fork. It prints what `run` returns in one line, and the parent prints the status of
# a fork that ended otherwise.
_FORKS = """
import json, os, sys, traceback
from client import RemoteBatches
{code}
def tell(case, result):
    os.write(1, (json.dumps([case, result]) + "\\n").encode())
processes = {{}}
for case in json.loads(sys.argv[1]):
    process = os.fork()
    if process == 0:
        try:
            tell(case, run(*case))
        except BaseException as error:
            tell(case, f"{{type(error).__name__}}: {{error}}")
            traceback.print_exc()
        finally:
            os._exit(0)
    processes[process] = case
for _ in range(len(processes)):
    process, status = os.wait()
    if status:
        tell(processes[process], f"ended with status {{os.waitstatus_to_exitcode(status)}}")
"""


def start_forks(
    code: str, cases: Iterable[Sequence[object]], wrapper: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start a fork for each case.

    code: defines `run`, which is called with a case and returns what JSON can hold.  cases: the
    arguments, which JSON can hold.  wrapper: the beginning of the command line.
    """
    command = [*wrapper, sys.executable, "-c", _FORKS.format(code=code)]
    return subprocess.Popen(
        [*command, json.dumps([list(case) for case in cases])],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(process: subprocess.Popen[str]) -> dict[tuple[object, ...], object]:
    """Wait for all forks, and return their results by their cases."""
    try:
        stdout, stderr = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, stderr
    return {tuple(case): result for case, result in map(json.loads, stdout.splitlines())}
