"""The contract is the contract: a client that has only the .proto reads the same tokens."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from client import RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.offline import received_rows
from tokenfeed.v1 import tokenfeed_pb2 as pb

# Runs outside the repository, on a stub that was generated next to it, with default channel limits.
FOREIGN_CLIENT = """
import hashlib, sys
sys.path = [p for p in sys.path if p not in ("", {root!r})]
sys.path.insert(0, {stubs!r})
for ours in ("server", "client", "tokenfeed.sampling.plan", "tokenfeed.wire.frame"):
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
stream = pb.Stream(sources=[pb.Source(order=order, seed=11)],
                   stage=pb.Stage(context_length=int(context_length)))
request = pb.GetBatchRequest(stream=stream, batch_size=int(batch_size),
                             num_batches=int(num_batches))
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


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/node beside proto/, with what it depends on."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(ROOT / "proto", folder / "proto")
    ignored = shutil.ignore_patterns("node_modules")
    example = shutil.copytree(
        ROOT / "examples" / "node", folder / "examples" / "node", ignore=ignored
    )
    install = ["npm", "ci", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(install, cwd=example, check=True, timeout=100)
    return example / "client.js"


def run_node(client: Path, target: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["node", str(client), target, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_a_client_in_another_language_reads_what_remote_batches_reads(
    serve: Serve, write_tokens: WriteTokens, node_client: Path, dtype: str
) -> None:
    """The .proto and the published checksum are enough."""
    path = write_tokens(np.random.default_rng(3).integers(0, 50_000, 1_000_000), dtype=dtype)
    server = serve("--data", path, "--dtype", {"<u2": "uint16", "<u4": "uint32"}[dtype])
    seed, batch_size, context_length, num_batches = 2**63 + 1, 24, 700, 150

    answer = run_node(
        node_client, server.address, "shuffled-1", seed, batch_size, context_length, num_batches
    )

    assert answer.returncode == 0, answer.stderr
    with RemoteBatches(
        server.address,
        batch_size,
        context_length,
        order="shuffled",
        seed=seed,
        num_batches=num_batches,
    ) as feed:
        rows = received_rows(feed)
    assert answer.stdout.strip() == hashlib.sha256(rows.astype(dtype).tobytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["tokens", "identity", "first_row", "nothing"])
def test_a_client_in_another_language_finds_a_damaged_frame(
    serve: Serve, write_tokens: WriteTokens, node_client: Path, damage: str
) -> None:
    """By the checksum, which covers where the rows belong too."""
    server = serve("--data", write_tokens(np.arange(20_000)))

    def damaged(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for raw in upstream.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")(request, timeout=60):
            frame = pb.Frame.FromString(raw)
            if damage == "first_row":
                frame.first_row += 1
            elif damage != "nothing":
                content = bytearray(getattr(frame, damage))
                content[len(content) // 2] ^= 4
                setattr(frame, damage, bytes(content))
            yield frame.SerializeToString()

    def described(request: bytes, context: grpc.ServicerContext) -> bytes:
        answer: bytes = upstream.unary_unary("/tokenfeed.v1.TokenFeed/Describe")(request)
        return answer

    handlers = {
        "GetBatch": grpc.unary_stream_rpc_method_handler(damaged),
        "Describe": grpc.unary_unary_rpc_method_handler(described),
    }
    handler = grpc.method_handlers_generic_handler("tokenfeed.v1.TokenFeed", handlers)
    between = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = between.add_insecure_port("127.0.0.1:0")
    between.start()
    try:
        with grpc.insecure_channel(server.address) as upstream:
            answer = run_node(node_client, f"127.0.0.1:{port}", "random-1", 7, 4, 100, 5)
    finally:
        between.stop(None).wait()

    assert (answer.returncode == 0) == (damage == "nothing"), answer.stderr
    assert ("wrong checksum" in answer.stderr) == (damage != "nothing")
