"""Credentials that cannot be had: refused at the start, waited for once they were good."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from client import Credentials, RemoteBatches, Timeouts
from tests.client.conftest import ScriptedServer, StartScripted
from tests.conftest import Serve, WriteTokens
from tests.faults.credentials import Papers, write_papers
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tokenfeed.client.transport.channel import Channel
from tokenfeed.client.transport.credentials import with_environment
from tokenfeed.errors import InvalidRequest
from tokenfeed.v1 import tokenfeed_pb2 as pb

B, T = 3, 5
SECRET = "correct-horse"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return write_papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """The log of a client that tries again soon, with a line for each failed round."""
    monkeypatch.setattr("tokenfeed.client.source.failover._LOG_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("tokenfeed.client.source.failover._BACKOFF_SECONDS_MAX", 0.2)
    return caplog


def going_away(_: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
    context.abort(grpc.StatusCode.UNAVAILABLE, "server: is being stopped")
    yield b""


def feed_from(target: str, credentials: Credentials, **options: Any) -> RemoteBatches:
    options = {"rank": 0, "world_size": 1} | options
    timeouts = Timeouts(reconnect_seconds=10.0)
    return RemoteBatches(target, B, T, timeouts=timeouts, credentials=credentials, **options)


class Maker:
    """Makes tokens. bad_calls: which of its calls raise an error that shows the token."""

    def __init__(self, bad_calls: range) -> None:
        self.bad_calls = bad_calls
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls in self.bad_calls:
            raise RuntimeError(f"{SECRET} has expired")
        return SECRET


def test_a_token_that_cannot_be_made_for_a_moment_is_waited_for(
    scripted: ScriptedServer, log: pytest.LogCaptureFixture
) -> None:
    """The service that makes them is restarted, while a run of a week goes on."""
    scripted.scripts = [going_away]
    token = Maker(range(3, 6))

    with feed_from(scripted.address, Credentials(token=token), num_batches=20) as feed:
        assert len(list(feed)) == 20

    assert token.calls > 6
    assert "token: the token function raised RuntimeError" in log.text
    assert SECRET not in log.text


def test_a_token_that_cannot_be_made_at_the_start_is_an_error_that_does_not_show_it(
    scripted: ScriptedServer,
) -> None:
    token = Maker(range(100))

    with feed_from(scripted.address, Credentials(token=token)) as feed:
        with pytest.raises(InvalidRequest, match="token: the token function raised") as caught:
            next(feed)

    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERT"])
def test_an_authority_that_cannot_be_read_for_a_moment_is_waited_for(
    serve: Serve,
    write_tokens: WriteTokens,
    papers: Papers,
    tmp_path: Path,
    log: pytest.LogCaptureFixture,
    content: str | None,
) -> None:
    """It is being renewed just when the feed has to reconnect."""
    arguments = ["--data", write_tokens(np.arange(1, 1000))]
    arguments += ["--tls-cert", papers.cert, "--tls-key", papers.key]
    port, ca = free_port(), tmp_path / "live-ca.pem"
    server = serve(*arguments, port=port)
    shutil.copy(papers.ca, ca)
    with feed_from(server.address, Credentials(tls_ca=str(ca)), prefetch_bytes=0) as feed:
        next(feed)
        server.stop()
        if content is None:
            ca.unlink()
        else:
            ca.write_text(content)
        with ThreadPoolExecutor(1) as thread:
            batches = thread.submit(lambda: [next(feed) for _ in range(10)])
            # It has to reconnect while there is no server, and still fails once there is one.
            assert eventually(lambda: log.text.count("tls_ca: ") > 0)
            serve(*arguments, port=port)
            asked_in_vain = log.text.count("tls_ca: ")
            assert eventually(lambda: log.text.count("tls_ca: ") > asked_in_vain)
            shutil.copy(papers.ca, ca)

            assert len(batches.result()) == 10

    assert str(tmp_path) not in log.text


def test_a_unix_socket_has_no_tls(
    start_scripted: StartScripted, papers: Papers, tmp_path: Path
) -> None:
    """So it may be listed with servers that do."""
    server = start_scripted(f"unix:{tmp_path}/feed.sock")
    credentials = Credentials(tls_ca=papers.ca, token=SECRET)

    with feed_from(server.address, credentials, num_batches=2) as feed:
        assert len(list(feed)) == 2


@pytest.mark.parametrize(
    "target", ["localhost:1", "dns:///localhost:1", "dns:///127.0.0.1:1", "[::1]:1", "unix:/a"]
)
def test_a_token_may_travel_in_plaintext_on_this_machine(target: str) -> None:
    assert Credentials(token=SECRET).metadata(target) == (("authorization", f"Bearer {SECRET}"),)


@pytest.mark.parametrize("target", ["dns:///feed:1", "feed:1", "ipv4:192.0.2.1:1"])
def test_a_token_does_not_travel_in_plaintext_to_another_machine(target: str) -> None:
    with pytest.raises(InvalidRequest, match="in plaintext"):
        Credentials(token=SECRET).metadata(target)


@pytest.mark.parametrize(
    ("empty", "problem"),
    [
        ("tls_ca", "CERTIFICATE"),
        ("tls_cert", "CERTIFICATE"),
        ("tls_key", "PRIVATE KEY"),
    ],
)
def test_an_empty_file_is_no_credential(papers: Papers, empty: str, problem: str) -> None:
    """gRPC takes no authorities for all public ones, and an empty key aborts the process."""
    files = {"tls_ca": papers.ca, "tls_cert": papers.client_cert, "tls_key": papers.client_key}

    with pytest.raises(InvalidRequest, match=f"{empty}: contains no {problem} in PEM format"):
        Channel("localhost:1", credentials=Credentials(**files | {empty: "/dev/null"}))


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ({"tls_ca": "ca", "tls_cert": "client_cert"}, "tls_cert"),
        ({"tls_ca": "ca", "tls_key": "client_key"}, "tls_cert"),
        ({"tls_cert": "client_cert", "tls_key": "client_key"}, "tls_ca"),
    ],
)
def test_half_of_a_pair_is_refused_before_anything_is_sent(
    papers: Papers, given: dict[str, str], subject: str
) -> None:
    """A certificate without its key would abort the process in gRPC's core."""
    files = {name: getattr(papers, paper) for name, paper in given.items()}
    credentials = Credentials(**files)

    for ask in (
        lambda: with_environment(credentials, {}),
        lambda: Channel("localhost:1", credentials=credentials),
        lambda: feed_from("localhost:1", credentials),
    ):
        with pytest.raises(InvalidRequest) as caught:
            ask()
        assert caught.value.subject == subject


ENVIRONMENT = {
    "TOKENFEED_TLS_CA": "/env/ca.pem",
    "TOKENFEED_TLS_CERT": "/env/client.pem",
    "TOKENFEED_TLS_KEY": "/env/client.key",
    "TOKENFEED_TOKEN": "of-the-environment",
    "TOKENFEED_TOKEN_FILE": "/env/token",
}
FROM_ENVIRONMENT = Credentials(
    tls_ca="/env/ca.pem",
    tls_cert="/env/client.pem",
    tls_key="/env/client.key",
    token="of-the-environment",
)


def test_each_field_that_is_left_out_comes_from_the_environment() -> None:
    """A cluster sets what is the same for all jobs, and a job passes a token of its own."""
    assert with_environment(None, ENVIRONMENT) == FROM_ENVIRONMENT
    assert with_environment(Credentials(), ENVIRONMENT) == FROM_ENVIRONMENT
    for name in ("tls_ca", "tls_cert", "tls_key", "token"):
        mine = with_environment(Credentials(**{name: "mine"}), ENVIRONMENT)
        assert mine == replace(FROM_ENVIRONMENT, **{name: "mine"})
    assert with_environment(None, {}) == Credentials()


def test_what_goes_together_is_looked_at_once_the_environment_was_asked() -> None:
    """The authority comes from there, the certificate from the caller."""
    mine = Credentials(tls_cert="/my/client.pem", tls_key="/my/client.key")

    found = with_environment(mine, {"TOKENFEED_TLS_CA": "/env/ca.pem"})

    assert found == replace(mine, tls_ca="/env/ca.pem")


def test_a_token_of_the_environment_comes_before_its_file() -> None:
    without = {name: path for name, path in ENVIRONMENT.items() if name != "TOKENFEED_TOKEN"}

    assert with_environment(None, ENVIRONMENT).token == "of-the-environment"
    assert with_environment(None, without).token == Path("/env/token")


def test_nothing_that_prints_credentials_shows_the_token() -> None:
    """Neither a log of arguments, nor the error for a token that is passed alone."""
    with pytest.raises(InvalidRequest, match="credentials") as caught:
        RemoteBatches("localhost:1", B, T, credentials=SECRET)  # type: ignore[arg-type]

    shown = f"{Credentials(token=SECRET)!r} {caught.value}"
    assert "Credentials(tls_ca=None" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("value", ["", [], b""])
@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_key", "token"])
def test_an_empty_credential_is_none_that_was_left_out(name: str, value: Any) -> None:
    """It would silently be a plaintext connection."""
    with pytest.raises(InvalidRequest, match="is empty") as caught:
        RemoteBatches("localhost:1", 1, 1, credentials=Credentials(**{name: value}))

    assert caught.value.subject == name


@pytest.mark.parametrize("value", [5, True, b"ca.pem", "a\0b", 1.5])
def test_a_credential_that_is_no_path_is_refused_and_nothing_is_closed(value: Any) -> None:
    """Python opens a number as a descriptor of the process, and closes it behind itself."""
    with pytest.raises(InvalidRequest, match="is not a path") as caught:
        Credentials(tls_ca=value).read_pems()

    assert caught.value.subject == "tls_ca"
    os.fstat(1)
