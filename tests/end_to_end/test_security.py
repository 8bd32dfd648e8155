"""TLS and tokens: nobody without the right credentials gets a byte, and none of them shows."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client import RemoteBatches
from tests.conftest import Serve, Server, WriteTokens
from tests.faults.credentials import (
    OTHER_TOKEN,
    SECOND_TOKEN,
    TOKEN,
    Papers,
    write_papers,
    write_token_file,
)
from tokenfeed.errors import InvalidRequest, NotAllowed, Unreachable


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return write_papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 20_000))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return write_token_file(tmp_path / "tokens.txt")


def tls(cert: str, key: str) -> list[str]:
    return ["--tls-cert", cert, "--tls-key", key]


def read(server: Server, **options: Any) -> int:
    """How many batches a client with these credentials gets."""
    settings = {"rank": 0, "world_size": 1, "num_batches": 3, "deadline_seconds": 1.0} | options
    with RemoteBatches(server.address, 4, 64, **settings) as feed:
        return sum(1 for _ in feed)


def test_any_token_of_the_file_may_be_said_or_made_for_each_call(
    serve: Serve, corpus: Path, papers: Papers, token_file: Path
) -> None:
    """Who may not is one of tests/faults."""
    server = serve("--data", corpus, *tls(papers.cert, papers.key), "--token-file", token_file)

    assert read(server, tls_ca=papers.ca, token=TOKEN) == 3
    assert read(server, tls_ca=papers.ca, token=lambda: SECOND_TOKEN) == 3


def test_nothing_but_health_is_answered_without_a_token(
    serve: Serve, corpus: Path, papers: Papers, token_file: Path
) -> None:
    server = serve("--data", corpus, *tls(papers.cert, papers.key), "--token-file", token_file)
    credentials = grpc.ssl_channel_credentials(Path(papers.ca).read_bytes())
    with grpc.secure_channel(server.address, credentials) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        assert check(health_pb2.HealthCheckRequest(), timeout=5).status == 1
        for method in ("tokenfeed.v1.TokenFeed/Describe", "tokenfeed.v1.TokenFeed/No", "a/b"):
            for metadata in ((), (("authorization", TOKEN),), (("authorization", "Bearer "),)):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(f"/{method}")(b"", timeout=5, metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("by_signal", [True, False])
def test_tokens_are_read_anew(
    serve: Serve, corpus: Path, token_file: Path, by_signal: bool
) -> None:
    """A leaked one is taken back without a restart; streams under way go on."""
    server = serve("--data", corpus, "--host", "127.0.0.1", "--token-file", token_file)
    assert read(server, token=TOKEN) == 3
    token_file.write_text(f"{OTHER_TOKEN}\n")
    if by_signal:
        server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 5
    while "read tokens count=1" not in server.stderr and time.monotonic() < end:
        time.sleep(0.05)

    assert read(server, token=OTHER_TOKEN) == 3
    with pytest.raises(NotAllowed):
        read(server, token=TOKEN)
    token_file.write_text("\n")
    time.sleep(1.5)
    assert read(server, token=OTHER_TOKEN) == 3


def test_a_renewed_certificate_serves_the_next_handshake(
    serve: Serve, corpus: Path, papers: Papers, tmp_path: Path
) -> None:
    cert, key = tmp_path / "live.pem", tmp_path / "live.key"
    cert.write_bytes(Path(papers.expired_cert).read_bytes())
    key.write_bytes(Path(papers.expired_key).read_bytes())
    server = serve("--data", corpus, *tls(str(cert), str(key)))
    with pytest.raises(Unreachable):
        read(server, tls_ca=papers.ca)

    key.write_bytes(Path(papers.key).read_bytes())
    cert.write_bytes(Path(papers.cert).read_bytes())

    assert read(server, tls_ca=papers.ca, deadline_seconds=10.0) == 3


def test_a_token_never_travels_in_plaintext_to_another_machine() -> None:
    with RemoteBatches("192.0.2.1:50051", 4, 64, rank=0, world_size=1, token=TOKEN) as feed:
        with pytest.raises(InvalidRequest, match=r"token: would travel to 192\.0\.2\.1"):
            next(feed)


def test_a_server_with_tokens_and_without_tls_does_not_listen_to_the_network(
    corpus: Path, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from server.__main__ import main

    arguments = ["--data", str(corpus), "--port", "0", "--token-file", str(token_file)]
    assert main(arguments) == 1
    assert "error: --token-file: needs --tls-cert" in capsys.readouterr().err


def test_it_does_where_that_is_allowed(serve: Serve, corpus: Path, token_file: Path) -> None:
    server = serve("--data", corpus, "--token-file", token_file, "--allow-plaintext-token")

    assert read(server, token=TOKEN) == 3


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, papers: Papers) -> None:
    monkeypatch.setenv("TOKENFEED_TLS_CA", papers.ca)
    monkeypatch.setenv("TOKENFEED_TOKEN", TOKEN)


@pytest.mark.usefixtures("environment")
def test_the_environment_may_hold_the_credentials(
    serve: Serve, corpus: Path, papers: Papers, token_file: Path
) -> None:
    server = serve("--data", corpus, *tls(papers.cert, papers.key), "--token-file", token_file)

    assert read(server) == 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tls-cert", "CERT"], "--tls-key: is missing"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", "KEY"], "--tls-cert: cannot be read"),
        (["--tls-cert", "KEY", "--tls-key", "KEY"], "--tls-cert: holds no CERTIFICATE"),
        (["--tls-cert", "CERT", "--tls-key", "CERT"], "--tls-key: holds no PRIVATE KEY"),
        (["--token-file", "/nowhere.txt"], "--token-file: cannot be read"),
        (["--token-file", "/dev/null"], "--token-file: holds no token"),
    ],
)
def test_credentials_that_are_none_are_an_error_at_the_start(
    corpus: Path,
    papers: Papers,
    options: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from server.__main__ import main

    named = {"CERT": papers.cert, "KEY": papers.key}
    given = [named.get(option, option) for option in options]

    assert main(["--data", str(corpus), "--port", "0", *given]) == 1
    assert f"error: {problem}" in capsys.readouterr().err
