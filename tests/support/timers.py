"""Runs `python -m server` with other timers than its own, so that a test does not wait for them.

Run: python -m tests.support.timers '{"MODULE.CONSTANT": SECONDS, ...}' [ARGUMENT ...]
"""

from __future__ import annotations

import importlib
import json
import runpy
import signal
import sys
from collections.abc import Mapping
from numbers import Real


def set_timers(timers: Mapping[str, float]) -> None:
    """Give constants of modules other values.

    timers: values by names of constants, as "tokenfeed.server.rpc.admission.REQUEST_SECONDS".
    Raises: AttributeError if there is no such constant, TypeError if it is not a number: a constant
    that was renamed would otherwise be waited for again.
    """
    for name, value in timers.items():
        module_name, _, constant = name.rpartition(".")
        module = importlib.import_module(module_name)
        if not isinstance(getattr(module, constant), Real):
            raise TypeError(f"{name} is not a number")
        setattr(module, constant, value)


if __name__ == "__main__":
    # As the server does, before an import starts threads.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    set_timers(json.loads(sys.argv.pop(1)))
    runpy.run_module("tokenfeed.server", run_name="__main__", alter_sys=True)
