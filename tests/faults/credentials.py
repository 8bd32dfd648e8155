"""Access control: clients without the right credentials get no byte, and no secret is shown."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme

from client import Credentials, Timeouts
from tokenfeed.errors import InvalidRequest, TokenfeedError, Unauthenticated, Unreachable

from .lab import Report, Sentinel, replicas

TOKEN = "correct-horse-battery-staple"
OTHER_TOKEN = "another-token"
SECOND_TOKEN = "second-token"


@dataclass(frozen=True)
class Papers:
    """PEM files of servers, a client, and two authorities, one of them wrong."""

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


def write_papers(folder: Path) -> Papers:
    """Create the files."""
    authority, wrong = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    wrong.cert_pem.write_to_path(str(folder / "wrong.pem"))
    long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    for name, leaf in {
        "server": authority.issue_cert("localhost", "127.0.0.1"),
        "client": authority.issue_cert("trainer@example.org"),
        "expired": authority.issue_cert("localhost", "127.0.0.1", not_after=long_ago),
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


def write_token_file(path: Path) -> Path:
    """Write two tokens."""
    path.write_text(f"{TOKEN}\n\n{SECOND_TOKEN}\n")
    return path


def wrong_credentials(papers: Papers) -> dict[str, tuple[Credentials, type[TokenfeedError]]]:
    """Return insufficient credentials, and the error that each of them raises."""
    mine = {"tls_cert": papers.client_cert, "tls_key": papers.client_key}
    trusting = {"tls_ca": papers.ca}
    trusted = mine | trusting
    return {
        "none": (Credentials(), InvalidRequest),
        "a token in plaintext": (Credentials(token=TOKEN), InvalidRequest),
        "wrong CA": (Credentials(**mine, tls_ca=papers.wrong_ca, token=TOKEN), InvalidRequest),
        "no certificate": (Credentials(**trusting, token=TOKEN), Unreachable),
        "no token": (Credentials(**trusted), Unauthenticated),
        "wrong token": (Credentials(**trusted, token=OTHER_TOKEN), Unauthenticated),
        "a token too short": (Credentials(**trusted, token=TOKEN[:-1]), Unauthenticated),
        "a token in capitals": (Credentials(**trusted, token=TOKEN.upper()), Unauthenticated),
    }


def matrix(folder: Path, times: int, seed: int) -> Report:
    """Wrong credentials of every kind, servers with wrong certificates, and the right ones."""
    report = Report("TLS and tokens: none, wrong CA, expired, wrong host, wrong token")
    papers, tokens = write_papers(folder), write_token_file(folder / "tokens.txt")
    sentinel = Sentinel(folder, 50)
    right = Credentials(
        tls_ca=papers.ca, tls_cert=papers.client_cert, tls_key=papers.client_key, token=TOKEN
    )
    timeouts = Timeouts(reconnect_seconds=0.5)

    def attempt(address: str, given: Credentials, expected: type[TokenfeedError]) -> None:
        report.injected += 1
        try:
            with sentinel.feed(address, timeouts=timeouts, credentials=given) as feed:
                for _ in feed:
                    report.corrupted += 1  # this client must get no batch
        except expected as error:
            report.hits += 1
            report.require(TOKEN not in str(error), "no token in an error")

    def options(cert: str, key: str) -> list[str | Path]:
        tls = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", papers.ca]
        return ["--data", sentinel.corpus, *tls, "--token-file", tokens]

    with replicas(folder, 1, *options(papers.cert, papers.key)) as (server,):
        for _ in range(times):
            for given, expected in wrong_credentials(papers).values():
                attempt(server.address, given, expected)
        with sentinel.feed(server.address, credentials=right) as feed:
            sentinel.watch(feed, report)
        secrets = (TOKEN, OTHER_TOKEN, SECOND_TOKEN, "PRIVATE", papers.key, str(tokens))
        leaks = any(secret in server.stderr for secret in secrets)
        report.require(not leaks, "no secret in the log")
    for cert, key in (
        (papers.expired_cert, papers.expired_key),
        (papers.other_host_cert, papers.other_host_key),
    ):
        with replicas(folder, 1, *options(cert, key)) as (server,):
            attempt(server.address, right, InvalidRequest)
    report.require_exact()
    return report
