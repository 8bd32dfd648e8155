"""TLS and tokens: nobody without the right credentials gets a byte, and none of them shows."""

from __future__ import annotations

import datetime
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client import RemoteBatches
from tests.conftest import Serve, Server, WriteTokens
from tokenfeed.errors import InvalidRequest, NotAllowed, Unreachable

TOKEN = "correct-horse-battery-staple"
OTHER = "another-token"


@dataclass(frozen=True)
class Papers:
    """PEM files: of a server for localhost, of a client, and of authorities, one of them wrong."""

    ca: str
    wrong_ca: str
    cert: str
    key: str
    client_cert: str
    client_key: str
    expired_cert: str
    expired_key: str
    other_host_cert: str
    other_host_key: str


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("papers")
    authority, wrong = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    wrong.cert_pem.write_to_path(str(folder / "wrong.pem"))
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    for name, leaf in {
        "server": authority.issue_cert("localhost"),
        "client": authority.issue_cert("trainer@example.org"),
        "expired": authority.issue_cert("localhost", not_after=long_ago),
        "elsewhere": authority.issue_cert("elsewhere.example.org"),
    }.items():
        leaf.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        leaf.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    paths = ["ca.pem", "wrong.pem"]
    paths += [
        f"{name}.{kind}"
        for name in ("server", "client", "expired", "elsewhere")
        for kind in ("pem", "key")
    ]
    return Papers(*(str(folder / path) for path in paths))


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 20_000))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.txt"
    path.write_text(f"{TOKEN}\n\nsecond-token\n")
    return path


def tls(cert: str, key: str) -> list[str]:
    return ["--tls-cert", cert, "--tls-key", key]


def read(server: Server, **options: Any) -> int:
    """How many batches a client with these credentials gets."""
    settings = {"rank": 0, "world_size": 1, "num_batches": 3, "deadline_seconds": 1.0} | options
    with RemoteBatches(server.address, 4, 64, **settings) as feed:
        return sum(1 for _ in feed)


def test_only_the_right_credentials_get_a_byte(
    serve: Serve, corpus: Path, papers: Papers, token_file: Path
) -> None:
    """Of a server with TLS, client certificates and tokens."""
    server = serve(
        "--data", corpus, *tls(papers.cert, papers.key),
        "--tls-client-ca", papers.ca, "--token-file", token_file,
    )  # fmt: skip
    mine = {"tls_cert": papers.client_cert, "tls_key": papers.client_key}
    right = {"tls_ca": papers.ca, "token": TOKEN} | mine

    for wrong, error in (
        ({}, Unreachable),
        ({"token": TOKEN}, Unreachable),
        ({"tls_ca": papers.wrong_ca, "token": TOKEN} | mine, Unreachable),
        ({"tls_ca": papers.ca, "token": TOKEN}, Unreachable),
        ({"tls_ca": papers.ca} | mine, NotAllowed),
        ({"tls_ca": papers.ca, "token": OTHER} | mine, NotAllowed),
        ({"tls_ca": papers.ca, "token": TOKEN[:-1]} | mine, NotAllowed),
        ({"tls_ca": papers.ca, "token": TOKEN.upper()} | mine, NotAllowed),
    ):
        with pytest.raises(error) as caught:
            read(server, **wrong)
        assert TOKEN not in str(caught.value)
    assert read(server, **right) == 3
    assert read(server, **right | {"token": lambda: "second-token"}) == 3
    for secret in (TOKEN, OTHER, "second-token", "PRIVATE", papers.key, str(token_file)):
        assert secret not in server.stderr


@pytest.mark.parametrize("papers_of", ["expired", "other_host"])
def test_a_server_that_is_not_who_it_says_is_not_believed(
    serve: Serve, corpus: Path, papers: Papers, papers_of: str
) -> None:
    cert, key = (getattr(papers, f"{papers_of}_{kind}") for kind in ("cert", "key"))
    server = serve("--data", corpus, *tls(cert, key))

    with pytest.raises(Unreachable):
        read(server, tls_ca=papers.ca, token=TOKEN)


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
    token_file.write_text(f"{OTHER}\n")
    if by_signal:
        server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 5
    while "read tokens count=1" not in server.stderr and time.monotonic() < end:
        time.sleep(0.05)

    assert read(server, token=OTHER) == 3
    with pytest.raises(NotAllowed):
        read(server, token=TOKEN)
    token_file.write_text("\n")
    time.sleep(1.5)
    assert read(server, token=OTHER) == 3


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
