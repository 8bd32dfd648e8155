"""tokenfeed doctor against planted problems: each is named, with its exit code, in bounded time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Serve, WriteTokens
from tests.faults.credentials import (
    OTHER_TOKEN,
    TOKEN,
    Papers,
    write_papers,
    write_token_file,
)
from tests.support.far_side import far_side
from tests.support.ports import free_port
from tests.support.redacting import redact
from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.errors import TokenfeedError
from tokenfeed.tools.__main__ import main
from tokenfeed.tools.doctor.network import Connection, Server
from tokenfeed.tools.doctor.speed import read_rows
from tokenfeed.v1 import tokenfeed_pb2 as pb

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root, and tc of iproute2"
)


@dataclass
class Diagnosis:
    """What doctor said.  report: its JSON.  seconds: how long it took."""

    code: int
    report: dict[str, Any]
    seconds: float

    @property
    def named(self) -> list[tuple[str, str]]:
        """Server and kind of each finding."""
        return [(finding["server"], finding["kind"]) for finding in self.report["findings"]]

    @property
    def only(self) -> dict[str, Any]:
        """The only finding."""
        (finding,) = self.report["findings"]
        return dict(finding)


class Doctor:
    """Runs the command with short measurements, and an environment of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._patch = patch
        for name in tuple(os.environ):
            if name.startswith("TOKENFEED_T") or name.lower().endswith("_proxy"):
                patch.delenv(name)

    def setenv(self, **variables: str) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def __call__(self, *words: str, slow_is: str = "0") -> Diagnosis:
        """slow_is: tokens per second; by default no rate is too slow on a busy machine."""
        began = time.monotonic()
        options = ["--seconds", "0.2", "--timeout-seconds", "2", "--tokens-per-second", slow_is]
        code = main(["doctor", *options, "--json", *words])
        seconds = time.monotonic() - began
        report = json.loads(self._capsys.readouterr().out)
        assert report["exit_code"] == code
        return Diagnosis(code, report, seconds)


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    return Doctor(capsys, monkeypatch)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return write_papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def corpus(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.arange(1, 60_000))


def tls(cert: str, key: str) -> list[str]:
    return ["--tls-cert", cert, "--tls-key", key]


def test_a_healthy_pair_of_replicas_is_called_healthy_and_nothing_else(
    serve: Serve, corpus: Path, write_tokens: WriteTokens, doctor: Doctor
) -> None:
    """A false alarm costs an evening, and the next true one is not believed."""
    val = write_tokens(range(9), "val.bin")
    mask = write_tokens([0, 1] * 4 + [1], "val.mask", "u1")
    options = ["--data", val, "--loss-mask", f"val={mask}", "--document-end-token", "train=9"]
    pair = [serve("--data", corpus, *options).address for _ in range(2)]

    found = doctor(*pair, slow_is="10000")

    assert (found.code, found.named) == (0, [])
    for server in found.report["servers"]:
        assert server["datasets"].keys() == {"train", "val"}
        assert server["tokens_per_second"] > 10_000
        assert abs(server["clock_seconds"]) < 1
        assert server["connect_seconds"] < 2

    missing = doctor(pair[0], "--dataset", "test", "--seconds", "0")
    assert (missing.code, missing.named) == (16, [(pair[0], "dataset-missing")])


def test_a_healthy_pair_with_tls_and_tokens_and_a_proxy_is_healthy(
    serve: Serve, corpus: Path, papers: Papers, tmp_path: Path, doctor: Doctor
) -> None:
    """Every layer is in use. The proxy, where nothing listens, is set on many machines."""
    tokens = write_token_file(tmp_path / "tokens.txt")
    options = [*tls(papers.cert, papers.key), "--tls-client-ca", papers.ca, "--token-file", tokens]
    pair = [serve("--data", corpus, *options).address for _ in range(2)]
    doctor.setenv(
        TOKENFEED_TLS_CA=papers.ca,
        TOKENFEED_TLS_CERT=papers.client_cert,
        TOKENFEED_TLS_KEY=papers.client_key,
        TOKENFEED_TOKEN=TOKEN,
        http_proxy=f"http://127.0.0.1:{free_port()}",
        grpc_proxy=f"http://127.0.0.1:{free_port()}",
    )

    found = doctor(*pair)

    assert (found.code, found.named) == (0, [])


def test_plaintext_against_tls_is_named(
    serve: Serve, corpus: Path, papers: Papers, doctor: Doctor
) -> None:
    """gRPC says only that it failed to connect."""
    server = serve("--data", corpus, *tls(papers.cert, papers.key))

    found = doctor(server.address)

    assert (found.code, found.named) == (13, [(server.address, "server-speaks-tls")])
    assert "TOKENFEED_TLS_CA" in found.only["cure"]
    assert "certificate for localhost, 127.0.0.1" in found.only["evidence"]


def test_tls_against_plaintext_is_named(
    serve: Serve, corpus: Path, papers: Papers, doctor: Doctor
) -> None:
    server = serve("--data", corpus)
    doctor.setenv(TOKENFEED_TLS_CA=papers.ca)

    found = doctor(server.address)

    assert (found.code, found.named) == (13, [(server.address, "server-speaks-plaintext")])


@pytest.mark.parametrize(
    ("which", "kind", "evidence"),
    [
        (
            "other_host",
            "certificate-name",
            r"elsewhere\.example\.org, valid .*; the address is localhost",
        ),
        ("expired", "certificate-expired", r"to 2020-01-01 00:00 UTC, .*this machine's clock says"),
    ],
)
def test_a_wrong_name_and_an_expired_certificate_are_named_with_what_it_says(
    serve: Serve,
    corpus: Path,
    papers: Papers,
    doctor: Doctor,
    which: str,
    kind: str,
    evidence: str,
) -> None:
    """The reader has to see which address would work, and since when it does not."""
    files = (getattr(papers, f"{which}_{part}") for part in ("cert", "key"))
    server = serve("--data", corpus, *tls(*files))
    doctor.setenv(TOKENFEED_TLS_CA=papers.ca)

    found = doctor(server.address)

    assert (found.code, found.named) == (13, [(server.address, kind)])
    assert re.search(evidence, found.only["evidence"])


def test_a_replica_of_a_name_is_read_under_that_name(
    serve: Serve, corpus: Path, papers: Papers
) -> None:
    """Its certificate has the name, and not the address that the name led to."""
    server = serve("--data", corpus, *tls(papers.other_host_cert, papers.other_host_key))
    dataset = pb.Dataset(name="train", longest_file_tokens=50_000, token_bytes=2)
    described = pb.DescribeResponse(datasets=[dataset])
    credentials = Credentials(tls_ca=papers.ca)

    def read(authority: str | None) -> None:
        address = Server("", server.address, authority, "", 0, ())
        connection = Connection("", 0.0)
        read_rows(
            address, connection, credentials, described, "train", seconds=0, timeout_seconds=5.0
        )

    read("elsewhere.example.org")
    with pytest.raises(TokenfeedError, match="Hostname mismatch"):
        read(None)


def test_an_unknown_authority_and_a_missing_client_certificate_are_named(
    serve: Serve, corpus: Path, papers: Papers, doctor: Doctor
) -> None:
    """Both look alike to gRPC."""
    options = [*tls(papers.cert, papers.key), "--tls-client-ca", papers.ca]
    server = serve("--data", corpus, *options)
    doctor.setenv(TOKENFEED_TLS_CA=papers.wrong_ca)
    assert doctor(server.address).named == [(server.address, "certificate-not-trusted")]

    doctor.setenv(TOKENFEED_TLS_CA=papers.ca)
    assert doctor(server.address).named == [(server.address, "client-certificate-refused")]


def test_another_corpus_on_one_replica_is_named(
    serve: Serve, corpus: Path, write_tokens: WriteTokens, doctor: Doctor
) -> None:
    """By what two of three have."""
    other = write_tokens(np.arange(2, 60_001), "other/train.bin")
    first, odd, last = (serve("--data", path).address for path in (corpus, other, corpus))

    found = doctor(first, odd, last)

    assert (found.code, found.named) == (16, [(odd, "other-corpus")])
    assert f"2 servers, such as {first}" in found.only["evidence"]


def test_a_truncated_dataset_is_named(serve: Serve, corpus: Path, doctor: Doctor) -> None:
    """Describe still lists it: only reading shows it."""
    server = serve("--data", corpus)
    os.truncate(corpus, 1000)

    found = doctor(server.address)

    assert (found.code, found.named) == (16, [(server.address, "dataset-refused")])


def test_erased_tokens_are_no_problem(serve: Serve, corpus: Path, doctor: Doctor) -> None:
    """A feed that replaces them gets all rows, and so does doctor."""
    redact([corpus], (0, 100, 900), (0, 30_000, 31_000), fill=9, erase=True)
    server = serve("--data", corpus)

    assert doctor(server.address).code == 0


def test_a_server_of_small_batches_is_healthy(serve: Serve, corpus: Path, doctor: Doctor) -> None:
    """Also if no row of 2,048 tokens is allowed."""
    server = serve("--data", corpus, "--max-batch-bytes", "1000")

    assert doctor(server.address).code == 0


def test_a_dataset_without_a_row_that_is_asked_for_is_named(
    serve: Serve, corpus: Path, write_tokens: WriteTokens, doctor: Doctor
) -> None:
    """Else it would be called healthy without a look."""
    server = serve("--data", corpus, "--data", write_tokens([7], "one.bin"))

    assert doctor(server.address).code == 0
    found = doctor(server.address, "--dataset", "one")
    assert (found.code, found.named) == (16, [(server.address, "dataset-refused")])
    assert "'one' has no row of one token" in found.only["evidence"]


@needs_namespaces
def test_a_filtered_port_is_named_in_bounded_time(doctor: Doctor) -> None:
    """Nothing answers at all: the kernel would try for two minutes."""
    doctor.setenv(https_proxy=f"http://127.0.0.1:{free_port()}")
    with far_side(answers=False) as line:
        found = doctor(f"{line.far}:50051", "--timeout-seconds", "0.5")

    assert (found.code, found.named) == (11, [(f"{line.far}:50051", "port-filtered")])
    # The proxy is looked at, and does not get the blame.
    assert "of https_proxy does not reach it either (Connection refused)" in found.only["evidence"]
    assert found.seconds < 5


def test_a_closed_port_is_told_from_a_filtered_one(doctor: Doctor) -> None:
    """One is for the operator of the server, the other for that of the network."""
    address = f"127.0.0.1:{free_port()}"

    found = doctor(address)

    assert (found.code, found.named) == (11, [(address, "port-closed")])


@needs_namespaces
@pytest.mark.slow
def test_a_line_of_50_mbit_is_named_as_the_limit_with_its_tokens_per_second(
    serve: Serve, write_tokens: WriteTokens, doctor: Doctor
) -> None:
    """Who waits for data wants to know whether a faster server would help."""
    big = write_tokens(np.arange(3_000_000) % 60_000)
    with far_side(rate="50mbit") as line:
        server = serve("--data", big, "--host", line.far, wrapper=line.on_far_side)
        address = server.address.replace("localhost", line.far)
        rates = []
        for _ in range(3):
            found = doctor(address, "--seconds", "2", slow_is="5000000")
            assert (found.code, found.named) == (18, [(address, "slow-line")])
            rate = re.match(
                r"([\d.]+) million tokens/s arrive, .* the line is the limit, with (\d+) Mbit",
                found.only["problem"],
            )
            assert rate is not None
            rates.append((float(rate[1]), int(rate[2])))
            if rates[-1] > (2.0, 35):
                break
        server.stop()

    # The best of three: other work of this machine may pause the line for a while.
    tokens, megabits = max(rates)
    assert 2.0 < tokens < 3.2
    assert 35 < megabits <= 52


@pytest.mark.parametrize("protected", [False, True])
def test_a_stopped_server_is_named_in_bounded_time(
    serve: Serve, corpus: Path, papers: Papers, doctor: Doctor, protected: bool
) -> None:
    """Its kernel still accepts connections, so that it looks alive."""
    server = serve("--data", corpus, *(tls(papers.cert, papers.key) if protected else ()))
    if protected:
        doctor.setenv(TOKENFEED_TLS_CA=papers.ca)
    server.process.send_signal(signal.SIGSTOP)

    found = doctor(server.address, "--timeout-seconds", "0.5")

    assert (found.code, found.named) == (12, [(server.address, "no-answer")])
    assert found.seconds < 5


def test_a_wrong_token_is_told_from_a_missing_one_and_never_shown(
    serve: Serve, corpus: Path, tmp_path: Path, doctor: Doctor
) -> None:
    """The report goes into tickets."""
    tokens = write_token_file(tmp_path / "tokens.txt")
    server = serve("--data", corpus, "--host", "127.0.0.1", "--token-file", tokens)
    missing = doctor(server.address)
    doctor.setenv(TOKENFEED_TOKEN=OTHER_TOKEN)

    wrong = doctor(server.address)

    assert (missing.code, missing.named) == (14, [(server.address, "token-missing")])
    assert (wrong.code, wrong.named) == (14, [(server.address, "token-refused")])
    assert OTHER_TOKEN not in json.dumps(wrong.report)


def test_one_bad_replica_does_not_hide_what_the_others_are(
    serve: Serve, corpus: Path, doctor: Doctor
) -> None:
    """The exit code is that of the lowest layer with a problem; the healthy one is measured."""
    good, stopped = serve("--data", corpus), serve("--data", corpus)
    stopped.process.send_signal(signal.SIGSTOP)
    closed = f"127.0.0.1:{free_port()}"

    found = doctor(good.address, stopped.address, closed)

    assert found.code == 11
    assert found.named == [(stopped.address, "no-answer"), (closed, "port-closed")]
    assert found.report["servers"][0]["tokens_per_second"] > 0


def test_each_address_of_a_name_and_a_unix_socket_are_examined(
    serve: Serve, corpus: Path, tmp_path: Path, doctor: Doctor
) -> None:
    """As a feed does it: each address of dns:/// is a replica."""
    socket = tmp_path / "feed.sock"
    server = serve("--data", corpus, "--host", "127.0.0.1", "--unix", socket)
    port = server.address.rpartition(":")[2]

    found = doctor(f"dns:///{server.address}", f"unix:{socket}", f"unix:{socket}x")

    names = [one["server"] for one in found.report["servers"]]
    assert f"127.0.0.1:{port}" in names
    assert f"unix:{socket}" in names
    # localhost may be ::1 too, where this server does not listen.
    assert {(f"unix:{socket}x", "port-closed")} <= set(found.named)
    assert {name for name, _ in found.named} <= {f"unix:{socket}x", f"[::1]:{port}"}
