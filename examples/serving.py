"""Shared by the examples: the address of a given server, or of one started for the example.

The server of an example serves the documentation that comes with every Python, one token per byte.
It ends with the example.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

BYTE_VALUES = 256


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options for an existing server."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument(
        "--target", metavar="HOST:PORT", help="a running server; by default one is started"
    )
    options.add_argument("--dataset", help="dataset name; optional if --target has only one")
    options.add_argument(
        "--vocab-size",
        type=int,
        default=BYTE_VALUES,
        help="number of token ids at --target (default: %(default)s)",
    )
    return options


@contextmanager
def server_at(target: str | None) -> Iterator[str]:
    """Lend the address of a server: target, or a server started here.

    If torch.distributed is initialized, rank 0 starts one server for all ranks, and it runs until
    the last rank is done.
    """
    if target is not None:
        yield target
        return
    import torch.distributed as dist

    with ExitStack() as own:
        address = [None]
        if not dist.is_initialized():
            address = [own.enter_context(documentation_server())]
        else:
            if dist.get_rank() == 0:
                address = [own.enter_context(documentation_server())]
            dist.broadcast_object_list(address)
        yield address[0]
        if dist.is_initialized():
            dist.barrier()


@contextmanager
def documentation_server() -> Iterator[str]:
    """Serve Python's documentation, one token per byte, and lend the address."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.frombuffer(documentation().encode(), np.uint8).astype("<u2").tofile(path)
        with serving(path) as address:
            yield address


def documentation() -> str:
    """Return the documentation that comes with every Python, as one text."""
    return "".join(topics[name] for name in sorted(topics))


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """Serve token files, each as a dataset, on a free port of this machine; lend the address."""
    # By default SIGTERM ends Python without `finally`, and the server would keep running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = [sys.executable, "-m", "tokenfeed", "serve", "--host", "127.0.0.1", "--port", "0"]
    datasets = [word for path in paths for word in ("--data", str(path))]
    server = subprocess.Popen(
        [*command, *datasets, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline().strip()
        if not line:
            raise SystemExit("error: the server did not start; its error is above")
        print(line, flush=True)
        yield line.split()[-1]
    finally:
        server.terminate()
        server.wait()
