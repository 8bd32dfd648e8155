"""python -m server: blocks the signals of the process, then serves (cli/serve.py)."""

from __future__ import annotations

import argparse
import os
import sys


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from .cli import serve_options

    return serve_options.build_parser()


if __name__ == "__main__":
    # gRPC's core logs what peers send, including line breaks, directly to stderr. It reads this
    # variable once, when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from tokenfeed.commands.extras import require_installed

    from .runtime.process.signals import Signals

    signals = Signals()
    # Before the next import, which starts threads.
    signals.install()
    build_parser().parse_args()  # --help needs no extra
    require_installed("serve", "server", "grpc_health", "grpc_reflection")
    from .cli.serve import main

    sys.exit(main(signals=signals))
