"""TLS and tokens: clients without the right credentials get no byte, and no secret is shown."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client import Credentials, RemoteBatches, Timeouts
from tests.conftest import Serve, Server, WriteTokens
from tests.faults.credentials import (
    OTHER_TOKEN,
    SECOND_TOKEN,
    TOKEN,
    Papers,
    write_papers,
    write_token_file,
)
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tokenfeed.client.transport.channel import describe
from tokenfeed.errors import InvalidRequest, Unauthenticated, Unreachable

GARBAGE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


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


def read(
    server: Server, credentials: Credentials | None = None, *, reconnect_seconds: float = 10.0
) -> int:
    """How many batches a client with these credentials gets."""
    timeouts = Timeouts(reconnect_seconds=reconnect_seconds)
    with RemoteBatches(
        server.address, 4, 64, rank=0, world_size=1, num_batches=3,
        timeouts=timeouts, credentials=credentials,
    ) as feed:  # fmt: skip
        return sum(1 for _ in feed)


def test_any_token_of_the_file_is_valid_as_text_or_from_a_function(
    serve: Serve, corpus: Path, papers: Papers, token_file: Path
) -> None:
    """Wrong credentials are tested in tests/faults."""
    server = serve("--data", corpus, *tls(papers.cert, papers.key), "--token-file", token_file)

    assert read(server, Credentials(tls_ca=papers.ca, token=TOKEN)) == 3
    assert read(server, Credentials(tls_ca=papers.ca, token=lambda: SECOND_TOKEN)) == 3


def test_a_container_probes_its_health_without_certificate_and_token(
    serve: Serve, corpus: Path, papers: Papers, token_file: Path, tmp_path: Path
) -> None:
    """Over a Unix socket of its own, whatever the network needs."""
    from tokenfeed.tools.probe import main

    socket = tmp_path / "feed.sock"
    secrets = [*tls(papers.cert, papers.key), "--token-file", token_file]
    server = serve("--data", corpus, "--unix", socket, *secrets)

    assert main([f"unix:{socket}"]) == 0
    assert main([server.address, "--timeout-seconds", "1"]) == 1


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
def test_tokens_are_reloaded(serve: Serve, corpus: Path, token_file: Path, by_signal: bool) -> None:
    """A leaked one is taken back without a restart; streams under way go on."""
    server = serve("--data", corpus, "--host", "127.0.0.1", "--token-file", token_file)
    assert read(server, Credentials(token=TOKEN)) == 3
    token_file.write_text(f"{OTHER_TOKEN}\n")
    if by_signal:
        server.process.send_signal(signal.SIGHUP)

    assert eventually(lambda: "bearer tokens reloaded count=1" in server.stderr)
    assert read(server, Credentials(token=OTHER_TOKEN)) == 3
    with pytest.raises(Unauthenticated):
        read(server, Credentials(token=TOKEN))
    token_file.write_text("\n")
    assert eventually(lambda: "bearer token reload failed" in server.stderr)
    assert read(server, Credentials(token=OTHER_TOKEN)) == 3


def test_a_hangup_reads_tokens_that_seem_to_be_as_they_were(
    serve: Serve, corpus: Path, token_file: Path
) -> None:
    """A clock of seconds, or a copy that puts the times back, must not keep a leaked one valid."""
    server = serve("--data", corpus, "--host", "127.0.0.1", "--token-file", token_file)
    time.sleep(0.5)
    server.process.send_signal(signal.SIGHUP)

    assert eventually(lambda: "bearer tokens reloaded count=2" in server.stderr)


def test_tokens_overwritten_with_their_time_set_back_are_reloaded(
    serve: Serve, corpus: Path, token_file: Path
) -> None:
    token_file.write_text("abcd\n")
    server = serve("--data", corpus, "--host", "127.0.0.1", "--token-file", token_file)
    status = token_file.stat()
    with token_file.open("r+") as file:
        file.write("efgh\n")
    os.utime(token_file, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert eventually(lambda: "bearer tokens reloaded count=1" in server.stderr)
    assert read(server, Credentials(token="efgh")) == 3


def test_a_byte_order_mark_is_not_part_of_a_token(
    serve: Serve, corpus: Path, token_file: Path
) -> None:
    """Windows' Notepad writes one."""
    token_file.write_bytes(b"\xef\xbb\xbf" + TOKEN.encode() + b"\r\n")
    server = serve("--data", corpus, "--host", "127.0.0.1", "--token-file", token_file)

    assert read(server, Credentials(token=TOKEN)) == 3


def test_a_missing_token_file_is_logged_once_and_a_pipe_in_its_place_does_not_block(
    serve: Serve, corpus: Path, token_file: Path
) -> None:
    server = serve("--data", corpus, "--host", "127.0.0.1", "--token-file", token_file)
    token_file.unlink()
    assert eventually(lambda: "bearer token reload failed" in server.stderr)
    time.sleep(2.5)
    assert server.stderr.count("bearer token reload failed") == 1
    os.mkfifo(token_file)
    assert eventually(lambda: "not a regular file" in server.stderr)
    token_file.unlink()
    token_file.write_text(f"{OTHER_TOKEN}\n")
    assert eventually(lambda: "bearer tokens reloaded count=1" in server.stderr)

    assert read(server, Credentials(token=OTHER_TOKEN)) == 3
    assert str(token_file) not in server.stderr


def test_tokens_may_come_through_a_pipe(serve: Serve, corpus: Path, token_file: Path) -> None:
    """`--token-file <(vault read ...)`: they never lie on a disk, and are read once."""
    shell = f'exec "$0" "$@" --token-file <(sleep 0.2; cat {token_file})'
    server = serve("--data", corpus, "--host", "127.0.0.1", wrapper=("bash", "-c", shell))
    time.sleep(2.5)

    assert read(server, Credentials(token=TOKEN)) == 3
    assert "bearer token reload failed" not in server.stderr


def copied(folder: Path, cert: str, key: str) -> tuple[Path, Path]:
    """Copies of a certificate and its key, to be renewed in place."""
    copies = folder / "live.pem", folder / "live.key"
    for copy, original in zip(copies, (cert, key), strict=True):
        copy.write_bytes(Path(original).read_bytes())
    return copies


def test_an_unusable_certificate_is_not_loaded_and_no_path_is_logged(
    serve: Serve, corpus: Path, papers: Papers, tmp_path: Path
) -> None:
    """A renewal that is half done, or went wrong."""
    cert, key = copied(tmp_path, papers.cert, papers.key)
    server = serve("--data", corpus, *tls(str(cert), str(key)))
    wrong = {
        "--tls-key: is not the key of --tls-cert": Path(papers.other_host_cert).read_bytes(),
        "--tls-cert: or --tls-key cannot be parsed": GARBAGE,
        "--tls-cert: cannot be read: No such file": None,
    }
    for problem, content in wrong.items():
        cert.unlink() if content is None else cert.write_bytes(content)
        assert read(server, Credentials(tls_ca=papers.ca)) == 3
        assert f"certificate reload failed, using the previous one: {problem}" in server.stderr
    assert "certificate reloaded" not in server.stderr
    assert str(tmp_path) not in server.stderr
    cert.write_bytes(Path(papers.cert).read_bytes())

    assert read(server, Credentials(tls_ca=papers.ca)) == 3
    assert server.stderr.count("certificate reloaded") == 1


def test_wrong_credentials_at_the_first_contact_are_an_error_at_once_that_says_the_cure(
    serve: Serve, corpus: Path, papers: Papers
) -> None:
    """A typing error in a path must not cost eight minutes."""
    plain = serve("--data", corpus)
    protected = serve("--data", corpus, *tls(papers.cert, papers.key))
    elsewhere = serve("--data", corpus, *tls(papers.other_host_cert, papers.other_host_key))
    seconds = []
    for server, ca, problem in (
        (protected, papers.wrong_ca, "tls_ca: does not verify .* pass the authority that signed"),
        (protected, None, "tls_ca: is missing, but .* speaks TLS"),
        (plain, papers.ca, "tls_ca: is given, but .* does not speak TLS"),
        (elsewhere, papers.ca, "tls_ca: .*ostname mismatch.* use a target with a name from"),
    ):
        began, given = time.monotonic(), Credentials(tls_ca=ca)
        with pytest.raises(InvalidRequest, match=problem):
            read(server, given, reconnect_seconds=60.0)
        with pytest.raises(InvalidRequest, match=problem):
            with RemoteBatches(
                server.address, 4, 64, rank=0, world_size=1, credentials=given
            ) as feed:
                feed.state_dict()
        with pytest.raises(InvalidRequest, match=problem):
            describe(server.address, credentials=given)
        seconds.append(time.monotonic() - began)
    assert max(seconds) < 10


def test_client_files_that_cannot_be_used_are_an_error_at_once(
    serve: Serve, corpus: Path, papers: Papers, tmp_path: Path
) -> None:
    server = serve("--data", corpus, *tls(papers.cert, papers.key), "--tls-client-ca", papers.ca)
    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(GARBAGE)
    mine = {"tls_ca": papers.ca, "tls_cert": papers.client_cert}
    for files, problem in (
        ({"tls_ca": str(garbage)}, "tls_ca: contains no readable certificate"),
        (mine | {"tls_key": papers.expired_key}, "tls_key: is not the key of tls_cert"),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            read(server, Credentials(**files), reconnect_seconds=60.0)


def test_a_server_that_hangs_up_after_the_handshake_is_waited_for_and_the_log_says_why_it_may(
    serve: Serve, corpus: Path, papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    """It wants a certificate; or it is a proxy, and the server behind it is still starting."""
    server = serve("--data", corpus, *tls(papers.cert, papers.key), "--tls-client-ca", papers.ca)

    with pytest.raises(
        Unreachable, match="closes the connection after the TLS handshake; it may require"
    ):
        read(server, Credentials(tls_ca=papers.ca), reconnect_seconds=1.0)
    assert "it may require another tls_cert" in caplog.text


def test_a_server_that_is_away_does_not_hide_wrong_credentials_for_another(
    serve: Serve, corpus: Path, papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    """The client waits for the first to return, but reports the wrong credentials."""
    protected = serve("--data", corpus, *tls(papers.cert, papers.key))
    both = [f"localhost:{free_port()}", protected.address]
    timeouts = Timeouts(reconnect_seconds=0.5)
    with RemoteBatches(both, 4, 64, rank=0, world_size=1, timeouts=timeouts) as feed:
        with pytest.raises(Unreachable, match="speaks TLS; pass the PEM file"):
            next(feed)


def test_credentials_that_were_good_before_are_waited_for(
    serve: Serve, corpus: Path, papers: Papers, tmp_path: Path
) -> None:
    """They are being renewed."""
    cert, key = copied(tmp_path, papers.cert, papers.key)
    port = free_port()
    first = serve("--data", corpus, *tls(str(cert), str(key)), port=port)
    with RemoteBatches(
        first.address, 4, 64, rank=0, world_size=1, credentials=Credentials(tls_ca=papers.ca),
        prefetch_bytes=0,
    ) as feed:  # fmt: skip
        next(feed)
        first.stop()
        second = serve("--data", corpus, *tls(papers.expired_cert, papers.expired_key), port=port)
        going_on = threading.Thread(target=lambda: [next(feed) for _ in range(20)])
        going_on.start()
        assert not eventually(lambda: not going_on.is_alive(), 1.0)
        second.stop()
        serve("--data", corpus, *tls(papers.cert, papers.key), port=port)
        going_on.join(20)
        assert not going_on.is_alive()


@pytest.mark.parametrize(
    "use",
    [
        lambda feed: [next(feed) for _ in range(20)],
        lambda feed: feed.change_context_length(32),
    ],
    ids=["rows", "change"],
)
def test_a_token_that_trainers_get_before_their_servers_is_waited_for(
    serve: Serve,
    corpus: Path,
    token_file: Path,
    tmp_path: Path,
    use: Callable[[RemoteBatches], object],
) -> None:
    """A Secret reaches the containers of a cluster within a minute, in any order."""
    words = ("--data", corpus, "--host", "127.0.0.1", "--token-file", token_file)
    servers, own = [serve(*words) for _ in range(2)], tmp_path / "token"
    own.write_text(TOKEN)
    with RemoteBatches(
        [each.address for each in servers], 4, 64, rank=0, world_size=1,
        credentials=Credentials(token=lambda: own.read_text()), prefetch_bytes=0, order="random",
    ) as feed:  # fmt: skip
        next(feed)
        own.write_text(OTHER_TOKEN)
        used: list[object] = []
        going_on = threading.Thread(target=lambda: used.append(use(feed)))
        going_on.start()
        assert not eventually(lambda: not going_on.is_alive(), 1.0)
        token_file.write_text(OTHER_TOKEN)
        going_on.join(20)
        assert not going_on.is_alive()
        assert len(used) == 1, "no error ended it"


def test_a_renewed_certificate_serves_the_next_handshake(
    serve: Serve, corpus: Path, papers: Papers, tmp_path: Path
) -> None:
    cert, key = copied(tmp_path, papers.expired_cert, papers.expired_key)
    server = serve("--data", corpus, *tls(str(cert), str(key)))
    with pytest.raises(InvalidRequest, match="certificate has expired; renew the server's"):
        read(server, Credentials(tls_ca=papers.ca))

    key.write_bytes(Path(papers.key).read_bytes())
    cert.write_bytes(Path(papers.cert).read_bytes())

    assert read(server, Credentials(tls_ca=papers.ca)) == 3


def test_a_token_never_travels_in_plaintext_to_another_machine() -> None:
    with RemoteBatches(
        "192.0.2.1:50051", 4, 64, rank=0, world_size=1, credentials=Credentials(token=TOKEN)
    ) as feed:
        with pytest.raises(InvalidRequest, match=r"token: would be sent to 192\.0\.2\.1"):
            next(feed)


def test_a_server_with_tokens_and_without_tls_does_not_listen_to_the_network(
    corpus: Path, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenfeed.server.cli.serve import main

    arguments = ["--data", str(corpus), "--port", "0", "--token-file", str(token_file)]
    assert main(arguments) == 1
    assert "error: --token-file: needs --tls-cert" in capsys.readouterr().err


def test_it_does_where_that_is_allowed(serve: Serve, corpus: Path, token_file: Path) -> None:
    server = serve("--data", corpus, "--token-file", token_file, "--allow-plaintext-token")

    assert read(server, Credentials(token=TOKEN)) == 3


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


@pytest.mark.usefixtures("environment")
def test_a_token_may_stand_in_a_file_that_is_read_for_each_call(
    serve: Serve,
    corpus: Path,
    papers: Papers,
    token_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As containers are given their secrets, which are renewed under them."""
    server = serve("--data", corpus, *tls(papers.cert, papers.key), "--token-file", token_file)
    secret = tmp_path / "secret"
    monkeypatch.delenv("TOKENFEED_TOKEN")
    monkeypatch.setenv("TOKENFEED_TOKEN_FILE", str(secret))

    with pytest.raises(InvalidRequest, match="token: cannot be read: No such file"):
        read(server)
    for words in ("", f"{TOKEN}\n{SECOND_TOKEN}\n"):
        secret.write_text(words)
        with pytest.raises(InvalidRequest, match=r"token: its file contains [02] words"):
            read(server)
    secret.write_text(OTHER_TOKEN + "\n")
    with pytest.raises(Unauthenticated):
        read(server)
    secret.write_text(TOKEN + "\n")
    assert read(server) == 3
    assert read(server, Credentials(token=secret)) == 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tls-cert", "CERT"], "--tls-key: is missing"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", "KEY"], "--tls-cert: cannot be read"),
        (["--tls-cert", "KEY", "--tls-key", "KEY"], "--tls-cert: contains no CERTIFICATE"),
        (["--tls-cert", "CERT", "--tls-key", "CERT"], "--tls-key: contains no PRIVATE KEY"),
        (["--tls-cert", "CERT", "--tls-key", "/nowhere.key"], "--tls-key: cannot be read"),
        (["--tls-cert", "CERT", "--tls-key", "OTHER"], "--tls-key: is not the key of --tls-cert"),
        (["--tls-cert", "GARBAGE", "--tls-key", "KEY"], "--tls-cert: or --tls-key cannot be pars"),
        (
            ["--tls-cert", "CERT", "--tls-key", "KEY", "--tls-client-ca", "GARBAGE"],
            "--tls-client-ca: cannot be parsed",
        ),
        (["--token-file", "/nowhere.txt"], "--token-file: cannot be read"),
        (["--token-file", "/dev/null"], "--token-file: contains no token"),
    ],
)
def test_credentials_that_are_none_are_an_error_at_the_start(
    corpus: Path,
    papers: Papers,
    options: list[str],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tokenfeed.server.cli.serve import main

    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(GARBAGE)
    named = {"CERT": papers.cert, "KEY": papers.key, "OTHER": papers.other_host_key}
    named["GARBAGE"] = str(garbage)
    given = [named.get(option, option) for option in options]

    assert main(["--data", str(corpus), "--port", "0", *given]) == 1
    assert f"error: {problem}" in capsys.readouterr().err
