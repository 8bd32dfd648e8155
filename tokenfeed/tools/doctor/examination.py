"""Examines one server, layer by layer, up to the rows of its datasets.

A layer that fails explains itself and ends the examination, since those above it cannot work.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from tokenfeed.client.transport.channel import Channel
from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.errors import InvalidRequest, NotFound, TokenfeedError
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .findings import Diagnosis, Finding
from .network import Server, connect, resolve, shown, unresolved
from .proxy import explained
from .report import ServerReport
from .rpc import Answer, ask, refused
from .speed import read_rows, slowness
from .tls import check_plaintext, check_tls

_DATASETS_MAX = 16
"""Datasets of a server that are shown, and of which a batch is read."""
_HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for on the command line, and what the environment has."""

    credentials: Credentials
    environment: Mapping[str, str]
    dataset: str
    seconds: float
    timeout_seconds: float
    tokens_per_second: float


def servers_of(target: str, settings: Settings) -> list[Server] | ServerReport:
    """Return the servers of a target; or, if its name is not known, what the report has of it."""
    try:
        return resolve(target, settings.timeout_seconds)
    except Diagnosis as diagnosis:
        return ServerReport(
            target, findings=[_explained(diagnosis.finding, unresolved(target), settings)]
        )


def examine(server: Server, settings: Settings) -> ServerReport:
    """Examine a server up to its answer to Describe."""
    report = ServerReport(server.name, server=server)
    try:
        _examine(server, report, settings)
    except Diagnosis as diagnosis:
        report.findings.append(diagnosis.finding)
    return report


def _explained(finding: Finding, server: Server, settings: Settings) -> Finding:
    return explained(finding, server, settings.environment, settings.timeout_seconds)


def _examine(server: Server, report: ServerReport, settings: Settings) -> None:
    if not server.is_unix:
        addresses = [shown(place) for place in server.places]
        report.add("address", ", ".join(addresses), addresses=addresses)
    try:
        connection = connect(server, settings.timeout_seconds)
    except Diagnosis as diagnosis:
        raise Diagnosis(_explained(diagnosis.finding, server, settings)) from None
    place = connection.place
    report.add(
        "connects",
        f"{shown(place)} in {1000 * connection.seconds:.2f} ms",
        connect_seconds=connection.seconds,
    )
    if settings.credentials.tls_ca is None or isinstance(place, str):
        check_plaintext(server, place, settings.timeout_seconds)
        report.add("speaks", "HTTP/2 in plaintext")
    else:
        certificate = check_tls(server, place, settings.credentials, settings.timeout_seconds)
        report.add("speaks", f"TLS; {certificate or 'its certificate is accepted'}")
    try:
        channel = Channel(server.target, 0, settings.credentials, server.authority)
    except TokenfeedError as error:
        raise Diagnosis(refused(server, settings.credentials, error)) from None
    with closing(channel):
        report.answer = ask(channel, server, settings.credentials, settings.timeout_seconds)
    report.connection = connection
    _show_answer(report, report.answer)


def read(report: ServerReport, settings: Settings) -> None:
    """Read a batch of each dataset of a server that answers, and measure the speed of one."""
    server, connection, answer = report.server, report.connection, report.answer
    if server is None or connection is None or answer is None:
        return
    described, dataset, timeout = answer.described, "", settings.timeout_seconds
    of_server = (server, connection, settings.credentials, described)
    rows_of = partial(read_rows, *of_server, timeout_seconds=timeout)
    try:
        for dataset in _readable(described)[:_DATASETS_MAX]:
            rows_of(dataset, seconds=0.0)
        dataset = settings.dataset or _largest(described)
        if settings.dataset and all(dataset != each.name for each in described.datasets):
            raise NotFound("--dataset", f"{dataset!r} is not served")
        if settings.dataset and dataset not in _readable(described):
            raise InvalidRequest("--dataset", f"{dataset!r} has no row of one token")
        if settings.seconds == 0 or dataset not in _readable(described):
            return
        load = rows_of(dataset, seconds=settings.seconds)
    except TokenfeedError as error:
        report.findings.append(refused(server, settings.credentials, error, dataset))
        return
    report.add(
        "speed",
        f"{load.tokens_per_second / 1e6:.1f} million tokens/s of {dataset} "
        f"({load.mbit_per_second:.0f} Mbit/s), first rows after {1000 * load.first_seconds:.0f} ms",
        tokens_per_second=load.tokens_per_second,
        mbit_per_second=load.mbit_per_second,
        first_rows_seconds=load.first_seconds,
    )
    if load.tokens_per_second < settings.tokens_per_second:
        needed = settings.tokens_per_second
        report.findings.append(slowness(server.name, load, connection.seconds, needed))


def _show_answer(report: ServerReport, answer: Answer) -> None:
    described, clock = answer.described, answer.clock_seconds
    report.add(
        "answers",
        f"tokenfeed {described.server_version or 'of an unknown version'} in "
        f"{1000 * answer.seconds:.1f} ms; its clock: {round(clock, 2) + 0.0:+.2f} s",
        server_version=described.server_version,
        answer_seconds=answer.seconds,
        clock_seconds=clock,
    )
    for dataset in described.datasets[:_DATASETS_MAX]:
        report.add(
            "dataset",
            f"{dataset.name}: {dataset.token_count:,} tokens, fingerprint "
            f"{dataset.fingerprint.hex()[:_HASH_DIGITS]}...",
        )
    if (left := len(described.datasets) - _DATASETS_MAX) > 0:
        report.add("dataset", f"and {left} more")
    report.facts["datasets"] = {
        dataset.name: dataset.fingerprint.hex() for dataset in described.datasets
    }


def _readable(described: pb.DescribeResponse) -> list[str]:
    """Return the names of the datasets that have a row of one token."""
    return [each.name for each in described.datasets if each.longest_file_tokens > 1]


def _largest(described: pb.DescribeResponse) -> str:
    sizes = [(dataset.token_count, dataset.name) for dataset in described.datasets]
    return max(sizes, default=(0, ""))[1]
