"""tokenfeed doctor: what no healthy server does, and what it makes of measurements."""

from __future__ import annotations

import base64
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from tests.client.conftest import (
    Message,
    Script,
    ScriptedServer,
    StartScripted,
    honest_frames,
)
from tests.conftest import ROOT
from tokenfeed.tools.__main__ import main
from tokenfeed.tools.doctor.findings import EXIT_CODES
from tokenfeed.tools.doctor.proxy import proxy_for
from tokenfeed.tools.doctor.replicas import compare
from tokenfeed.tools.doctor.rpc import Answer, clock_difference
from tokenfeed.tools.doctor.speed import Load, slowness
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire.request import CONTRACT_REVISION

Captured = pytest.CaptureFixture[str]
Diagnose = Callable[..., tuple[int, list[dict[str, Any]]]]
FAST = Load(50e6, 100e6, 0.01, 0.0002, 0.5)


@pytest.fixture
def diagnose(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    """Run doctor, and return its exit code and findings."""
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> tuple[int, list[dict[str, Any]]]:
        code = main(["doctor", "--json", "--timeout-seconds", "2", *words])
        return code, json.loads(capsys.readouterr().out)["findings"]

    return run


@contextmanager
def peer(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A peer that reads something on each connection, answers, and closes it.  Yields: its address,
    and what it read.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                heard.append(connection.recv(1000))
                connection.sendall(answer if heard[-1] else b"")

    thread = threading.Thread(target=run)
    thread.start()
    with closing(listener):
        yield f"127.0.0.1:{listener.getsockname()[1]}", heard
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("revisions", "kind"),
    [((), "old-server"), ((CONTRACT_REVISION - 1,), "old-server"), ((99,), "old-client")],
)
def test_a_server_of_another_contract_is_named_with_who_has_to_be_upgraded(
    scripted: ScriptedServer, diagnose: Diagnose, revisions: tuple[int, ...], kind: str
) -> None:
    """A feed leaves it out, and says so only in its log."""
    scripted.contract_revisions = revisions

    code, (finding,) = diagnose(scripted.address)

    assert (code, finding["kind"], finding["server"]) == (15, kind, scripted.address)


def test_a_grpc_server_without_the_contract_is_named(diagnose: Diagnose) -> None:
    """The port of another service, or a server from before the contract."""
    server = grpc.server(ThreadPoolExecutor(1), options=(("grpc.so_reuseport", 0),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        code, (finding,) = diagnose(address)
    finally:
        server.stop(0).wait()

    assert (code, finding["kind"]) == (15, "not-tokenfeed")


def test_a_web_server_is_no_grpc_server(diagnose: Diagnose) -> None:
    """The wrong port, or a proxy that does not pass HTTP/2 through."""
    with peer(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (address, _):
        code, (finding,) = diagnose(address)

    assert (code, finding["kind"]) == (15, "not-grpc")
    assert "HTTP/1" in finding["evidence"]


def test_a_clock_that_is_off_is_named(scripted: ScriptedServer, diagnose: Diagnose) -> None:
    """Certificates are refused by it, and logs cannot be read side by side."""
    scripted.clock_ahead_seconds = -3600

    code, (finding,) = diagnose(scripted.address)

    assert (code, finding["kind"]) == (17, "clock-differs")
    assert "its clock is 3,600.0 s behind this machine's" in finding["problem"]


def test_where_all_servers_agree_the_clock_of_this_machine_is_off(
    start_scripted: StartScripted, diagnose: Diagnose
) -> None:
    """Nobody should set the clocks of ten servers."""
    pair = [start_scripted(), start_scripted()]
    for server in pair:
        server.clock_ahead_seconds = 3600

    _, findings = diagnose(*(server.address for server in pair))

    assert [finding["kind"] for finding in findings] == ["clock-differs"] * 2
    assert all("set the clock of this machine" in finding["cure"] for finding in findings)


@pytest.mark.parametrize("clock", [0.0, 0.5])
def test_a_server_with_a_good_clock_is_no_problem(
    scripted: ScriptedServer, diagnose: Diagnose, clock: float
) -> None:
    """It need not be exact."""
    scripted.clock_ahead_seconds = clock

    assert diagnose(scripted.address) == (0, [])


def test_only_what_the_time_of_the_call_does_not_explain_is_a_difference_of_clocks() -> None:
    """A slow answer must not look like a wrong clock."""
    assert clock_difference(1000.0, 4.0, 1003.9) == 0.0
    assert clock_difference(1000.0, 4.0, 1006.0) == 2.0
    assert clock_difference(1000.0, 4.0, 998.0) == -2.0


def refuse(code: grpc.StatusCode) -> Script:
    """A script that ends a call with a status."""

    def run(request: Message, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(code, "as the test says")
        yield b""

    return run


def damage(request: Message, context: grpc.ServicerContext) -> Iterator[bytes]:
    """A script that flips a bit of each frame."""
    for _, message in honest_frames(request):
        yield message[:-1] + bytes([message[-1] ^ 1])


@pytest.mark.parametrize(
    ("script", "code", "kind"),
    [
        (refuse(grpc.StatusCode.RESOURCE_EXHAUSTED), 12, "busy"),
        (damage, 11, "damaged-frames"),
        (refuse(grpc.StatusCode.DATA_LOSS), 16, "dataset-refused"),
    ],
)
def test_why_rows_do_not_arrive_is_told_apart(
    scripted: ScriptedServer, diagnose: Diagnose, script: Script, code: int, kind: str
) -> None:
    """A full server needs another cure than a bad network card, or a damaged file."""
    scripted.longest_file_tokens = 100
    scripted.scripts = [script] * 9

    found, (finding,) = diagnose(scripted.address)

    assert (found, finding["kind"]) == (code, kind)


def test_planes_and_digests_are_compared_as_far_as_both_sides_know_them(
    start_scripted: StartScripted, diagnose: Diagnose
) -> None:
    """A digest that is being computed is no difference."""
    first, second = start_scripted(), start_scripted()
    first.digest = b"a" * 32
    assert diagnose(first.address, second.address) == (0, [])

    second.digest = b"b" * 32
    code, (finding,) = diagnose(first.address, second.address)
    assert (code, finding["kind"], finding["server"]) == (16, "other-corpus", second.address)
    assert "digest" in finding["evidence"]


def described(orders: list[str], **datasets: bytes | None) -> Answer:
    """What a server with these orders says. datasets: by name, the fingerprint of their mask, which
    is empty while it is being made; None if they have no mask.
    """
    served = [
        pb.Dataset(
            name=name,
            fingerprint=b"f" * 32,
            planes=[] if mask is None else [pb.DatasetPlane(kind=51, fingerprint=mask)],
        )
        for name, mask in datasets.items()
    ]
    return Answer(pb.DescribeResponse(orders=orders, datasets=served), 0.001, 0.0)


def test_a_dataset_an_order_and_a_mask_that_one_replica_lacks_are_named() -> None:
    """A failover to it would end the run."""
    full = described(["random-1", "packed-1"], train=b"1" * 32, val=b"1" * 32)
    answers = {
        "a:1": full,
        "b:1": described(["random-1"], train=b"1" * 32, val=b"1" * 32),
        "c:1": described(["random-1", "packed-1"], train=b"1" * 32),
        "d:1": described(["random-1", "packed-1"], train=b"2" * 32, val=b""),
        "e:1": full,
        "f:1": described(["random-1", "packed-1"], train=None, val=b"1" * 32),
    }

    assert [(found.server, found.kind) for found in compare(answers)] == [
        ("b:1", "orders-differ"),
        ("d:1", "other-corpus"),
        ("f:1", "other-corpus"),
        ("c:1", "dataset-missing"),
    ]


def test_a_proxy_that_reaches_what_this_machine_does_not_is_the_explanation(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """curl works, and tokenfeed does not: its clients use no proxy."""
    with peer(b"HTTP/1.1 200 Connection established\r\n\r\n") as (proxy, heard):
        monkeypatch.setenv("http_proxy", f"http://user:secret@{proxy}")
        code, (finding,) = diagnose("corpus.invalid:50051")

    assert (code, finding["kind"]) == (11, "only-through-proxy")
    assert "secret" not in json.dumps(finding)
    login = base64.b64encode(b"user:secret")
    assert heard == [
        b"CONNECT corpus.invalid:50051 HTTP/1.1\r\nHost: corpus.invalid:50051\r\n"
        b"Proxy-Authorization: Basic " + login + b"\r\n\r\n"
    ]


def test_a_proxy_that_does_not_reach_it_either_is_not_blamed(
    diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peer(b"HTTP/1.1 403 Forbidden\r\n\r\n") as (proxy, heard):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        code, (finding,) = diagnose("corpus.invalid:50051")
        assert (code, finding["kind"]) == (10, "name-not-resolved")
        assert "HTTP/1.1 403 Forbidden" in finding["evidence"]

        monkeypatch.setenv("NO_PROXY", "example.org,.invalid")
        _, (finding,) = diagnose("corpus.invalid:50051")
        assert "proxy" not in json.dumps(finding)
        assert len(heard) == 1


@pytest.mark.parametrize(
    ("exceptions", "is_exception"),
    [
        ("", False),
        ("*", True),
        ("10.1.2.3", True),
        ("10.1.0.0/16", True),
        ("10.2.0.0/16, example.org", False),
        ("2.3", False),
    ],
)
def test_exceptions_of_a_proxy_are_names_addresses_and_networks(
    exceptions: str, is_exception: bool
) -> None:
    """As gRPC and curl read no_proxy."""
    found = proxy_for("10.1.2.3", {"GRPC_PROXY": "http://p:8080", "no_proxy": exceptions})

    assert (found is None) is is_exception


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ({"connect_seconds": 0.05}, "slow-line"),
        ({"connect_seconds": 0.05, "processor_share": 0.95}, "slow"),
        ({}, "slow"),
        ({"connect_seconds": None}, "slow"),
    ],
)
def test_the_line_is_blamed_only_as_far_as_it_shows(seen: dict[str, float], kind: str) -> None:
    """A faster line is expensive, if it was the processor."""
    found = slowness("a:1", replace(FAST, **seen), 0.0002, 80e6)

    assert found.kind == kind
    assert found.problem.startswith(
        "50.0 million tokens/s arrive, less than the 80.0 million asked for: "
    )


def test_the_report_for_people_names_problem_evidence_and_cure(
    scripted: ScriptedServer, capsys: Captured
) -> None:
    """It is read by a person who was called at night."""
    scripted.contract_revisions = ()

    assert main(["doctor", scripted.address]) == 15

    shown = capsys.readouterr().out
    assert "  PROBLEM    the server speaks another contract than this client" in shown
    assert "    change   upgrade the server\n" in shown
    assert shown.splitlines()[-1] == (
        f"verdict: 1 problem, 0 of 1 servers without one: {scripted.address}: old-server "
        "(exit code 15)"
    )


def test_credentials_that_cannot_be_read_are_said_once_before_any_server_is_asked(
    scripted: ScriptedServer, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENFEED_TLS_CA", "/nowhere/ca.pem")

    code, (finding,) = diagnose(scripted.address)

    assert (code, finding["kind"], finding["server"]) == (14, "files-unusable", "")
    assert scripted.described == 0


def test_a_token_that_a_feed_would_not_send_is_said_and_not_sent(
    start_scripted: StartScripted, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plaintext to what may be another machine, as 0.0.0.0 is for all that the name says."""
    server = start_scripted("0.0.0.0:0")
    monkeypatch.setenv("TOKENFEED_TOKEN", "secret-token")

    code, (finding,) = diagnose(server.address)

    assert (code, finding["kind"]) == (14, "token-unusable")
    assert "plaintext" in finding["evidence"]
    assert server.described == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["localhost"], "write HOST:PORT"),
        (["file:train.bin"], "is not a server"),
        (["localhost:1", "--seconds", "-1"], "--seconds: has to be in"),
        (["localhost:1", "--timeout-seconds", "0"], "--timeout-seconds: has to be in"),
        (["localhost:1", "--tokens-per-second", "nan"], "--tokens-per-second: nan is not"),
    ],
)
def test_what_cannot_be_examined_ends_in_one_line(
    words: list[str], problem: str, capsys: Captured
) -> None:
    """And by exit code 1, which no finding has."""
    assert main(["doctor", *words]) == 1

    assert problem in capsys.readouterr().err
    assert 1 not in EXIT_CODES.values()


def test_the_manual_has_every_kind_with_its_exit_code() -> None:
    """Scripts are written by it."""
    manual = (ROOT / "docs" / "operate.md").read_text()
    rows = re.findall(r"^\| (1\d) \| (.*?) \|", manual, re.MULTILINE)

    documented = {kind: int(code) for code, kinds in rows for kind in re.findall("`(.*?)`", kinds)}

    assert documented == EXIT_CODES
