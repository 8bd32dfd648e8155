"""What gRPC is told is seen by what it does: it ignores an option that is misspelt, in silence.

A connection that answers no ping is closed: slow-loris of tests/faults. A port in use is refused:
tests/server/cli/test_serve.py. A server that is not there yet is waited for: test_resume.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from client import RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens

ROW_TOKENS = 3 << 20
"""6 MiB; gRPC refuses messages above 4 MiB unless told otherwise."""


def test_a_row_may_be_longer_than_grpc_takes_by_default(
    serve: Serve, write_tokens: WriteTokens
) -> None:
    tokens = np.random.default_rng(1).integers(1, 1 << 16, 2 * ROW_TOKENS + 1)
    server = serve("--data", write_tokens(tokens))

    with RemoteBatches(
        server.address, 2, ROW_TOKENS, order="sequential", rank=0, world_size=1
    ) as f:
        x, y = next(f)

    assert np.array_equal(x.numpy().ravel(), tokens[:-1])
    assert np.array_equal(y.numpy().ravel(), tokens[1:])


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_a_proxy_for_the_web_is_not_asked(
    serve: Serve, write_tokens: WriteTokens, variable: str
) -> None:
    """It is set on many clusters, and knows no feed."""
    server = serve("--data", write_tokens(np.arange(1, 100)))
    environment = os.environ | {variable: "http://127.0.0.1:9", "no_proxy": "", "no_grpc_proxy": ""}

    done = subprocess.run(
        [sys.executable, "-m", "client", "describe", server.address],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
