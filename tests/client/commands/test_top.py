"""tokenfeed top: what it shows, when it goes on, when it ends, and how it leaves a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from client.__main__ import main
from client.commands.top.columns import Column, columns_of, cut, spark, table, wrapped
from client.commands.top.text import status_lines
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.ports import free_port
from tests.support.statuses import HOSTILE_NAMES, dataset, status, stream
from tests.support.terminal import ENTER, LEAVE, terminal
from tests.support.waiting import eventually
from tokenfeed.v1 import status_pb2 as pb

Captured = pytest.CaptureFixture[str]


@dataclass
class ScriptedStatus:
    """Answers GetStatus with what it was told, on the real wire.  tokens: those it was sent."""

    answer: pb.GetStatusResponse = field(default_factory=status)
    refusal: grpc.StatusCode | None = None
    problem: str = "authorization: the status needs a token of operators"
    tokens: list[str] = field(default_factory=list)
    address: str = ""

    def get_status(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = dict(context.invocation_metadata())
        self.tokens.append(str(metadata.get("authorization", "")))
        if self.refusal is not None:
            context.abort(self.refusal, self.problem)
        return self.answer.SerializeToString()


Start = Callable[..., tuple[ScriptedStatus, grpc.Server]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start servers that answer GetStatus as they are told; stopped after the test."""
    servers: list[grpc.Server] = []

    def start_one(port: int = 0) -> tuple[ScriptedStatus, grpc.Server]:
        scripted = ScriptedStatus()
        method = grpc.unary_unary_rpc_method_handler(scripted.get_status)
        handlers = [
            grpc.method_handlers_generic_handler("tokenfeed.v1.Status", {"GetStatus": method})
        ]
        server = grpc.server(ThreadPoolExecutor(2), handlers, options=(("grpc.so_reuseport", 0),))
        scripted.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        server.start()
        servers.append(server)
        return scripted, server

    yield start_one
    for server in servers:
        server.stop(0).wait()


@pytest.fixture
def scripted(start: Start) -> ScriptedStatus:
    """A server with five clients, one of them stalled."""
    found, _ = start()
    found.answer = status(
        datasets=[dataset("web"), dataset("code", resident_share=0.5)],
        streams=[
            *(stream("llama", rank, 4) for rank in range(4)),
            stream("stuck", idle_seconds=17.0, waits_for_client=1.0, tokens_per_second=0.0),
        ],
        second_bytes=[1 << 20] * 60,
        streams_open=5,
    )
    return found


def test_a_snapshot_is_printed_where_there_is_no_terminal(
    serve: Serve, write_tokens: WriteTokens, capsys: Captured
) -> None:
    """For a log, a bug report, a pipe: of a real server."""
    server = serve("--data", write_tokens(range(1000)))

    assert main(["top", server.address]) == 0

    shown = capsys.readouterr().out
    assert f"at {server.address}   serving" in shown
    assert "train    served" in shown
    assert "No client has read yet." in shown
    assert "\x1b" not in shown


def test_what_is_wrong_comes_first(scripted: ScriptedStatus, capsys: Captured) -> None:
    """As on the page."""
    assert main(["top", scripted.address]) == 0

    shown = capsys.readouterr().out
    assert "!! stuck (10.0.0.0:41234) does not read: a frame has been ready for 17 s." in shown
    lines = [line for line in shown.splitlines() if "shuffled-1" in line]
    assert len(lines) == 5
    assert lines[0].split()[:5] == ["!!", "does", "not", "read", "stuck"]
    assert "sends 1.00 MiB/s   streams 5 of 512   memory 100 MiB of 4.00 GiB" in shown


def test_json_has_everything_in_a_line(scripted: ScriptedStatus, capsys: Captured) -> None:
    """For jq, and for people's own tools."""
    arguments = ["top", scripted.address, "--json", "--count", "2", "--seconds", "0.1"]
    assert main(arguments) == 0

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["streams_open"] == 5
    assert [each["resident_share"] for each in first["datasets"]] == [None, 0.5]
    assert first["datasets"][0]["fingerprint"] == bytes(range(32)).hex()
    assert first["streams"][0]["client_name"] == "stuck"
    assert first["streams"][0]["state"] == "STALLED"
    assert first["streams"][0]["datasets"] == ["web"]
    assert [each["level"] for each in first["attention"]] == ["problem"]
    assert first["second_bytes"] == [1 << 20] * 60


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_names_cannot_act_on_a_terminal(
    scripted: ScriptedStatus, capsys: Captured, extra: list[str]
) -> None:
    """A client names itself, and an operator's terminal shows it."""
    for name in HOSTILE_NAMES:
        scripted.answer.streams.append(stream(name, order=name, datasets=[name], address=name))
        scripted.answer.datasets.append(dataset(name, format=name, lost=name))
    scripted.answer.server_version = HOSTILE_NAMES[3]

    assert main(["top", scripted.address, *extra]) == 0

    shown = capsys.readouterr().out
    assert all(sign.isprintable() or sign in "\n\ufffd" for sign in shown)
    if not extra:
        assert max(map(len, shown.splitlines())) < 500


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


def test_it_goes_on_trying_while_there_is_no_server(start: Start, tmp_path: Path) -> None:
    """A restart must not end what watches it."""
    port = free_port()
    command = ["-m", "client", "top", f"127.0.0.1:{port}", "--count", "1000", "--seconds", "0.1"]
    path = tmp_path / "shown"
    with path.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        assert eventually(lambda: "no server answers; trying again" in path.read_text())
        _, server = start(port)
        assert eventually(lambda: "serving" in path.read_text())
        server.stop(0).wait()
        assert eventually(lambda: "trying again" in path.read_text().rpartition("serving")[2])
        start(port)
        assert eventually(lambda: "serving" in path.read_text().rpartition("trying again")[2])
    finally:
        process.kill()
        process.wait()


def test_a_terminal_is_refreshed_in_place_and_left_as_it_was(scripted: ScriptedStatus) -> None:
    """It is a tool for long looks."""
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        before = shown.settings()
        assert shown.shows("stuck (10.0.0.0:41234) does not read")
        assert shown.settings() != before
        scripted.answer.streams[4].idle_seconds = 0.1
        scripted.answer.streams[4].waits_for_client = 0.0
        assert shown.read_until(lambda: "ATTENTION" not in "".join(shown.screens[-1]))
        shown.press("q")

        assert shown.ended() == 0
        assert shown.settings() == before

    assert shown.written.startswith(ENTER)
    assert LEAVE in shown.written
    assert shown.written.rindex(LEAVE) > shown.written.rindex("\x1b[J")


@pytest.mark.parametrize(("columns", "lines"), [(200, 50), (80, 24), (40, 10), (10, 3), (1, 1)])
def test_a_terminal_of_any_size_is_not_overrun(
    scripted: ScriptedStatus, columns: int, lines: int
) -> None:
    """Also after it was resized."""
    for number in range(300):
        scripted.answer.streams.append(stream(f"客户 {number} " + "x" * 90, datasets=["d" * 64]))
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}, columns=133, lines=37) as shown:
        assert shown.shows("more clients")
        shown.resize(columns, lines)
        drawn = len(shown.screens)
        assert shown.read_until(lambda: len(shown.screens) >= drawn + 3)

        for screen in shown.screens[:drawn]:
            assert len(screen) <= 37
            assert max(map(columns_of, screen)) <= 133
        for screen in shown.screens[-2:]:
            assert len(screen) <= lines
            assert max(map(columns_of, screen)) <= columns


def test_a_terminal_says_that_the_server_is_away_and_back(start: Start) -> None:
    """What is shown meanwhile is old."""
    port = free_port()
    first, server = start(port)
    first.answer.streams.append(stream("llama"))
    command = ["-m", "client", "top", first.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        assert shown.shows("llama")
        server.stop(0).wait()
        assert shown.shows(f"No answer from {first.address} for ")
        assert shown.shows("llama")
        second, _ = start(port)
        second.answer = status(started_ms=1_795_003_590_000)
        assert shown.shows("The server was restarted.")
        assert shown.shows("No client has read yet.")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_signals_leave_a_clean_terminal(
    scripted: ScriptedStatus, number: signal.Signals, code: int
) -> None:
    """Ctrl-C is how most people end it."""
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        before = shown.settings()
        assert shown.shows("llama")
        if number is signal.SIGINT:
            shown.press("\x03")
        else:
            os.kill(shown.process.pid, number)

        assert shown.ended() == code
        assert shown.settings() == before
    assert "Traceback" not in shown.written
    assert shown.written.rstrip().endswith(LEAVE)


def test_a_stopped_command_gives_the_terminal_back(scripted: ScriptedStatus) -> None:
    """Ctrl-Z, a look at something else, fg."""
    command = ["-m", "client", "top", scripted.address, "--seconds", "0.2"]
    with terminal(command, {}) as shown:
        before = shown.settings()
        assert shown.shows("llama")
        os.kill(shown.process.pid, signal.SIGTSTP)
        assert shown.read_until(lambda: LEAVE in shown.written)
        assert eventually(
            lambda: Path(f"/proc/{shown.process.pid}/stat").read_text().split()[2] == "T"
        )
        assert shown.settings() == before
        os.kill(shown.process.pid, signal.SIGCONT)
        assert shown.read_until(lambda: shown.written.count(ENTER) == 2)
        drawn = len(shown.screens)
        scripted.answer.streams.append(stream("newcomer"))
        assert shown.shows("newcomer")
        assert len(shown.screens) > drawn


def test_a_refusal_in_a_terminal_is_readable_afterwards(scripted: ScriptedStatus) -> None:
    """Not on the screen that has just been left."""
    scripted.refusal = grpc.StatusCode.UNAUTHENTICATED
    with terminal(["-m", "client", "top", scripted.address], {}) as shown:
        assert shown.ended() == 1
    assert "TOKENFEED_STATUS_TOKEN" in shown.written.rpartition(LEAVE)[2]


@pytest.mark.parametrize("height", range(24))
@pytest.mark.parametrize("width", [1, 20, 79])
def test_lines_fit(width: int, height: int) -> None:
    """Whatever is to be said, the first line says how the server is."""
    names = [f"d{number}" for number in range(40)]
    found = status(
        datasets=[dataset(name, lost="gone") for name in names],
        streams=[stream(name, waits_for_server=1.0) for name in names],
        streams_omitted=5,
    )

    lines = status_lines(found, "host:50051", width, height)

    assert len(lines) <= height
    assert all(columns_of(line.text) <= width for line in lines)
    if height:
        assert lines[0].text[:9] == "tokenfeed"[: width - 1] + "…" * (width < 9)


def test_columns_that_matter_least_are_left_out_first() -> None:
    """A narrow terminal shows who has a problem."""
    columns = [Column("A", 0), Column("B", 2), Column("C", 1, is_right=True)]
    rows = [("aa", "bbbb", "1"), ("a", "b", "22")]

    assert table(columns, rows, None) == ["A   B      C", "aa  bbbb   1", "a   b     22"]
    assert table(columns, rows, 11) == ["A    C", "aa   1", "a   22"]
    assert table(columns, rows, 5) == ["A", "aa", "a"]
    assert table(columns, rows, 1) == ["A", "…", "a"]


def test_wide_signs_take_two_columns() -> None:
    """Otherwise a table with Chinese names is ragged."""
    assert columns_of("語e\u0301a") == 4
    assert cut("語語語", 5) == "語語…"
    assert cut("語語語", 6) == "語語語"
    assert cut("abc", 0) == ""


def test_sentences_are_broken_at_spaces() -> None:
    """And what is longer than a line is cut."""
    assert wrapped("!  one two three", 8, 3) == ["!  one", "   two", "   three"]
    assert wrapped("one", None, 3) == ["one"]
    assert wrapped("a bbbbbbbb", 5, 2) == ["a", "  bb…"]


def test_a_minute_is_drawn_in_the_columns_there_are() -> None:
    """The latest second at the right end."""
    assert spark([], 20) == ""
    assert spark([0, 0], 60) == ""
    assert spark([1, 2], 60).endswith(" ▅█")
    assert len(spark([5] * 60, 20)) == 20
    assert len(spark([5] * 60, 60)) == 60
