"""tokenfeed top where it is refused: tokens, and errors that are one sentence."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.conftest import Serve, WriteTokens
from tests.tokenfeed.tools.top.conftest import ScriptedStatus
from tokenfeed.tools.__main__ import main

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED])
def test_errors_of_a_server_cannot_act_on_a_terminal(
    scripted: ScriptedStatus, capsys: Captured, status: grpc.StatusCode
) -> None:
    """Another program may listen there."""
    scripted.refusal, scripted.problem = status, "\x1b]0;owned\x07\x1b[2J" + "x" * 2000

    assert main(["top", scripted.address, "--count", "2", "--seconds", "0.1"]) == 1

    shown = capsys.readouterr().err
    assert all(sign.isprintable() or sign in "\n\ufffd" for sign in shown)
    assert max(map(len, shown.splitlines())) < 600


def test_an_operators_token_is_sent_and_no_other(
    scripted: ScriptedStatus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tokens of datasets are the trainers'."""
    monkeypatch.setenv("TOKENFEED_TOKEN", "for-trainers")
    assert main(["top", scripted.address]) == 0
    path = tmp_path / "token"
    path.write_text("from-a-file\n")
    monkeypatch.setenv("TOKENFEED_STATUS_TOKEN_FILE", str(path))
    assert main(["top", scripted.address]) == 0
    monkeypatch.setenv("TOKENFEED_STATUS_TOKEN", "given")
    assert main(["top", scripted.address]) == 0

    assert scripted.tokens == ["", "Bearer from-a-file", "Bearer given"]


def test_a_token_is_never_sent_in_plaintext_to_another_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """As by a feed."""
    monkeypatch.setenv("TOKENFEED_STATUS_TOKEN", "a-secret")

    assert main(["top", "192.0.2.1:50051"]) == 1

    shown = capsys.readouterr().err
    assert "would be sent to 192.0.2.1:50051 in plaintext" in shown
    assert "a-secret" not in shown


@pytest.mark.parametrize(
    ("refusal", "sentence"),
    [
        (
            grpc.StatusCode.UNAUTHENTICATED,
            "error: authorization: the status needs a token of operators; set "
            "TOKENFEED_STATUS_TOKEN or TOKENFEED_STATUS_TOKEN_FILE\n",
        ),
        (
            grpc.StatusCode.PERMISSION_DENIED,
            "error: authorization: the status needs a token of operators\n",
        ),
        (
            grpc.StatusCode.UNIMPLEMENTED,
            "error: {address}: does not know tokenfeed.v1.Status: it is an older tokenfeed "
            "server, or another program\n",
        ),
    ],
)
def test_a_refusal_is_one_sentence(
    scripted: ScriptedStatus, capsys: Captured, refusal: grpc.StatusCode, sentence: str
) -> None:
    """Another try does not help, whatever --count says."""
    scripted.refusal = refusal

    assert main(["top", scripted.address, "--count", "3"]) == 1

    assert capsys.readouterr().err == sentence.format(address=scripted.address)
    assert len(scripted.tokens) == 1


def test_a_server_that_asks_for_a_token_gets_one(
    serve: Serve,
    write_tokens: WriteTokens,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--status-token-file of a real server, and the token of its operators."""
    path = tmp_path / "operators"
    path.write_text("operator-1\n")
    corpus = write_tokens(range(100))
    server = serve("--data", corpus, "--host", "127.0.0.1", "--status-token-file", path)

    assert main(["top", server.address]) == 1
    assert "TOKENFEED_STATUS_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("TOKENFEED_STATUS_TOKEN_FILE", str(path))
    assert main(["top", server.address]) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere"], "error: target: 'nowhere' is not an address"),
        (["127.0.0.1:1"], "error: 127.0.0.1:1: no server answers"),
        (["127.0.0.1:1", "--seconds", "0"], "error: --seconds: has to be in (0,"),
        (["127.0.0.1:1", "--count", "0"], "error: --count: 0 is not at least 1"),
    ],
)
def test_what_cannot_be_shown_ends_in_one_line(
    arguments: list[str], problem: str, capsys: Captured
) -> None:
    """No traceback for a typing error."""
    assert main(["top", *arguments]) == 1

    shown = capsys.readouterr().err
    assert shown.startswith(problem)
    assert shown.count("\n") == 1
