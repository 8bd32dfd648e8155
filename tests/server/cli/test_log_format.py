"""python -m server --log-format json: all that it logs, from the start to the exit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conftest import ROOT, Serve, Server, WriteTokens
from tests.server.requests import batches

JSON = ("--log-format", "json")


def entries(stderr: str) -> list[dict[str, Any]]:
    """Every line, as JSON."""
    return [json.loads(line) for line in stderr.splitlines()]


def ask(server: Server, client_name: str) -> str:
    """Request a batch under a name.  Returns: the name of the status."""
    request = batches(
        batch_size=2, context_length=8, order="sequential-1", num_batches=1, client_name=client_name
    )
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")(
            request.SerializeToString(), timeout=10
        )
        try:
            list(call)
        except grpc.RpcError:
            pass
        return str(call.code().name)


def test_each_line_of_the_log_is_an_object(serve: Serve, write_tokens: WriteTokens) -> None:
    """A collector takes it without a pattern, and numbers are numbers."""
    server = serve("--data", write_tokens(range(1000)), *JSON)
    server.stop()

    found = entries(server.stderr)

    events = [entry["event"] for entry in found]
    opened = found[events.index("dataset opened")]
    assert (opened["dataset"], opened["tokens"], opened["dtype"]) == ("train", 1000, "uint16")
    assert opened["message"].startswith("dataset opened dataset=train format=raw files=1 ")
    assert (opened["level"], opened["logger"]) == ("INFO", "tokenfeed.server")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", e["time"]) for e in found)
    assert "stopping" in events


def test_what_a_client_calls_itself_forges_no_line(serve: Serve, write_tokens: WriteTokens) -> None:
    """Its name is in the log, and any client that reaches the port chooses one."""
    server = serve("--data", write_tokens(range(1000)), *JSON, "--log-level", "debug")
    names = ['","level":"ERROR","x":"', "run <script> \u2028 naïve", "a\nb\x00", "x" * 10_000]
    statuses = [ask(server, name) for name in names]
    server.stop()

    found = entries(server.stderr)
    assert statuses[0] == "OK"
    clients = [entry["client"] for entry in found if "client" in entry]
    assert names[0] in clients
    assert {entry["level"] for entry in found} <= {"DEBUG", "INFO", "WARNING"}


@pytest.mark.parametrize("name", ["nothing.bin", "no\nthing.bin"])
def test_an_error_at_the_start_is_an_object_too(tmp_path: Path, name: str) -> None:
    """It is the line that an operator looks for."""
    path = tmp_path / name
    command = [sys.executable, "-m", "server", "--data", f"web={path}", "--port", "0", *JSON]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=15)

    assert (done.returncode, done.stdout) == (1, "")
    last = entries(done.stderr)[-1]
    assert (last["event"], last["level"]) == ("start failed", "ERROR")
    assert last["what"] == str(path)
    assert last["why"] == "cannot be read: No such file or directory"
