"""Processes with ranks, as torchrun starts them, forked of one that has imported the framework."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from tests.support.ports import free_port

SECONDS_MAX = 300.0
"""A training that takes longer hangs. It takes a few seconds on a machine that is not busy."""


def run_on_ranks(ranks: int, train: Callable[[], None]) -> None:
    """Call a function in a process for each rank, and wait for all of them.

    Raises: AssertionError if one of them fails, or takes longer than SECONDS_MAX; all end then.
    """
    port = free_port()
    started = [_forked(rank, ranks, port, train) for rank in range(ranks)]
    deadline, running, failed = time.monotonic() + SECONDS_MAX, set(started), False
    while running and not failed and time.monotonic() < deadline:
        for process in sorted(running):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                running.discard(process)
                failed |= status != 0
        time.sleep(0.02)
    for process in running:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert not failed, "a rank has failed; its error is above"
    assert not running, f"{len(running)} of {ranks} ranks hang"


def _forked(rank: int, ranks: int, port: int, train: Callable[[], None]) -> int:
    """Return the process of a rank."""
    process = os.fork()
    if process:
        return process
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "NUM_NODES": "1"})
    status = 1
    try:
        train()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
