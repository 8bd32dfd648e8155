"""The contract is the contract: a client that has only the .proto reads the same tokens."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client import RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.offline import received_rows

# Runs outside the repository, on a stub that was generated next to it, with default channel limits.
FOREIGN_CLIENT = """
import hashlib, sys
sys.path = [p for p in sys.path if p not in ("", {root!r})]
sys.path.insert(0, {stubs!r})
for ours in ("server", "client", "tokenfeed.plan", "tokenfeed.frame"):
    try:
        __import__(ours)
    except ImportError:
        continue
    raise SystemExit(ours + " is on the path")
import grpc
from tokenfeed.v1 import tokenfeed_pb2 as pb, tokenfeed_pb2_grpc
target, order, batch_size, context_length, num_batches = sys.argv[1:]
channel = grpc.insecure_channel(target)
stub = tokenfeed_pb2_grpc.TokenFeedStub(channel)
request = pb.GetBatchRequest(batch_size=int(batch_size), context_length=int(context_length),
                             seed=11, order=order, num_batches=int(num_batches))
digest, rows, frames = hashlib.sha256(), 0, 0
for frame in stub.GetBatch(request, timeout=60):
    digest.update(frame.tokens)
    rows += frame.row_count
    frames += 1
assert rows == int(batch_size) * int(num_batches), rows
print(digest.hexdigest(), frames)
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stub generated from proto/ alone, with the compiler that anybody would use today."""
    folder = tmp_path_factory.mktemp("stubs")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto")]
    command += [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([*command, "tokenfeed/v1/tokenfeed.proto"], check=True)
    return folder


@pytest.mark.parametrize(
    ("order", "batch_size", "context_length", "num_batches", "frames_min"),
    [
        ("random-1", 4, 32, 50, 1),
        ("shuffled-1", 3, 100, 200, 1),
        ("sequential-1", 1, 1, 1, 1),
        ("random-1", 768, 2047, 1, 3),  # 3 MiB
        ("shuffled-1", 1024, 8300, 1, 5),  # 17 MB
        ("random-1", 1, 1_600_000, 2, 2),  # rows of 3.2 MB
    ],
)
def test_a_stub_generated_from_the_contract_reads_the_tokens_that_remote_batches_reads(
    serve: Serve,
    write_tokens: WriteTokens,
    stubs: Path,
    tmp_path: Path,
    order: str,
    batch_size: int,
    context_length: int,
    num_batches: int,
    frames_min: int,
) -> None:
    """Default channel limits, none of our packages: any language could do it."""
    path = write_tokens(np.random.default_rng(3).integers(0, 50_000, 10_000_000))
    server = serve("--data", path)
    script = tmp_path / "foreign_client.py"
    script.write_text(FOREIGN_CLIENT.format(root=str(ROOT), stubs=str(stubs)))
    numbers = map(str, (batch_size, context_length, num_batches))

    command = [sys.executable, "-P", str(script), server.address, order, *numbers]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert answer.returncode == 0, answer.stderr
    digest, frames = answer.stdout.split()
    with RemoteBatches(
        server.address,
        batch_size,
        context_length,
        order=order,
        seed=11,
        num_batches=num_batches,
    ) as feed:
        rows = received_rows(feed)
    assert hashlib.sha256(rows.astype("<u2").tobytes()).hexdigest() == digest
    assert int(frames) >= frames_min
