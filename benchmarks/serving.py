"""A server over a random corpus, for benchmarks: in a process of its own, gone afterwards."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

TOKENS = 250_000_000


@contextmanager
def served_corpus(target: str | None = None, token_count: int = TOKENS) -> Iterator[str]:
    """Lend the address of a server: target itself where it is given, else of one started here."""
    if target is not None:
        yield target
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        np.random.default_rng(0).integers(0, 50_257, token_count, dtype=np.uint16).tofile(path)
        command = [sys.executable, "-m", "server", "--data", str(path), "--port", "0"]
        with subprocess.Popen(
            [*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                yield f"localhost:{server.stdout.readline().rpartition(':')[2].strip()}"
            finally:
                server.terminate()
