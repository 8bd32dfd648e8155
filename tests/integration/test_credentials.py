"""The stack with TLS and a token: certificates made where there are none, and who is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.integration.engine import wait_until
from tests.integration.stack import Offline, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

DESCRIBE = ("python", "-m", "client", "describe", "server-b:50051")


@pytest.fixture(scope="module")
def secured(images: None) -> Iterator[Stack]:
    made = Stack("tls", "docker-compose.yml", "docker-compose.tls.yml")
    try:
        made.up("server-a", "server-b")
        made.wait_until_healthy()
        yield made
    finally:
        made.down()


def test_a_trainer_with_certificate_and_token_gets_the_same_batches(
    secured: Stack, tmp_path: Path
) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(secured.read_data("/data/train.bin"))
    reading = secured.reading()
    try:
        reading.wait_for(100)
        reading.require_exact(Offline(path))
    finally:
        reading.close()


def test_only_the_right_credentials_are_served(secured: Stack, tmp_path: Path) -> None:
    """Each of them wrong or missing by itself."""
    other = tmp_path / "other.crt"
    trustme.CA().cert_pem.write_to_path(str(other))
    other.chmod(0o644)
    mounted = ("-v", f"{other}:/other.crt:ro")
    assert "dataset train" in secured.run(*DESCRIBE).stdout

    for wrong, problem in [
        ({"TOKENFEED_TOKEN_FILE": ""}, "error: authorization: "),
        ({"TOKENFEED_TOKEN": "wrong"}, "error: authorization: "),
        ({"TOKENFEED_TOKEN_FILE": "/nowhere"}, "error: token: cannot be read"),
        ({"TOKENFEED_TLS_CA": ""}, "error: token: would be sent to server-b:50051 in plaintext"),
        (
            {"TOKENFEED_TLS_CA": "", "TOKENFEED_TOKEN_FILE": ""},
            "error: tls_ca: is missing, but server-b:50051 speaks TLS",
        ),
        (
            {"TOKENFEED_TLS_CA": "/other.crt"},
            "error: tls_ca: does not verify the certificate of server-b:50051",
        ),
    ]:
        answer = secured.run(*DESCRIBE, environment=wrong, options=mounted)
        assert (answer.returncode, answer.stdout) == (1, "")
        assert problem in answer.stderr

    assert "dataset train" in secured.run(*DESCRIBE, options=mounted).stdout


def test_a_trainer_sees_no_key_and_a_server_no_more_than_it_needs(secured: Stack) -> None:
    seen = secured.run("ls", "/secrets/server", "/secrets/trainer").stdout
    assert seen.split() == ["/secrets/server:", "/secrets/trainer:", "ca.crt", "token"]

    server = secured.replicas[0]
    assert server.execute("ls", "/secrets/server", "/secrets/trainer").split() == [
        "/secrets/server:", "server.crt", "server.key", "tokens", "/secrets/trainer:",
    ]  # fmt: skip


def test_a_second_up_keeps_certificates_and_token(secured: Stack) -> None:
    show = ("cat", "/secrets/trainer/token", "/secrets/trainer/ca.crt")
    before = secured.run(*show).stdout
    assert "CERTIFICATE" in before
    secured.up("certificates")
    certificates = secured.container("certificates")
    wait_until(lambda: certificates.state()["Status"] == "exited", "the end of the service")

    assert certificates.state()["ExitCode"] == 0
    assert secured.run(*show).stdout == before


def test_secrets_that_do_not_fit_are_made_anew_under_running_servers(secured: Stack) -> None:
    """The token that was valid is for a while: a trainer may still have it."""
    show = ("cat", "/secrets/trainer/token")
    before = secured.run(*show).stdout
    damage = ("run", "--rm", "-T", "--entrypoint", "sh", "certificates", "-c")
    secured.compose(*damage, ": > /secrets/server/server.key")
    secured.compose("run", "--rm", "-T", "certificates")

    assert secured.run(*show).stdout not in (before, "")
    wait_until(lambda: "dataset train" in secured.run(*DESCRIBE).stdout, "the new token to be read")
    assert (
        "dataset train"
        in secured.run(*DESCRIBE, environment={"TOKENFEED_TOKEN": before.strip()}).stdout
    )
