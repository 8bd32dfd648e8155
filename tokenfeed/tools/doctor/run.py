"""The command: examines all servers, compares them, and measures how fast rows arrive.

Each layer has a timeout, so the command ends in bounded time whatever a server does.
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Mapping, Sequence
from functools import partial

from tokenfeed import __version__
from tokenfeed.client.runtime.arguments import seconds
from tokenfeed.client.source.file_target import is_local_target
from tokenfeed.client.transport.addresses import UNIX, host_and_port, require_address
from tokenfeed.client.transport.credentials import Credentials, with_environment
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.wire.request import CONTRACT_REVISION

from .examination import Settings, examine, read, servers_of
from .findings import Finding, exit_code
from .network import Server, at_once
from .proxy import proxy_for
from .replicas import compare
from .report import ServerReport, as_json, text

_STEPS = 20
"""Steps of the examination of a server that have a timeout each, at most."""


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print what keeps this machine from its servers.  Returns: the exit code, by findings.py."""
    targets = list(dict.fromkeys(arguments.targets))
    for target in targets:
        if is_local_target(target):
            raise InvalidRequest("target", f"{target} is not a server; write HOST:PORT")
        require_address(target)
    if not arguments.tokens_per_second >= 0:  # NaN is not either
        problem = f"{arguments.tokens_per_second} is not a rate"
        raise InvalidRequest("tokens_per_second", problem)
    duration_seconds = seconds("seconds", arguments.seconds, zero=True)
    timeout_seconds = seconds("timeout_seconds", arguments.timeout_seconds, zero=False)
    machine = ServerReport("this machine")
    servers: list[ServerReport] = []
    credentials = _credentials(machine, arguments.environment, timeout_seconds)
    if credentials is not None:
        _show_machine(machine, targets, credentials, arguments.environment)
        settings = Settings(
            credentials,
            arguments.environment,
            arguments.dataset,
            duration_seconds,
            timeout_seconds,
            arguments.tokens_per_second,
        )
        # Not in this thread, where a Ctrl-C could leave a lock of gRPC locked for ever.
        (result,) = at_once([partial(_examine_all, targets, settings)], None)
        servers = result or []
    shown = as_json(machine, servers) if arguments.json else text(machine, servers)
    print(shown if isinstance(shown, str) else json.dumps(shown, indent=2))
    return exit_code(finding for one in (machine, *servers) for finding in one.findings)


def _credentials(
    machine: ServerReport, environment: Mapping[str, str], timeout_seconds: float
) -> Credentials | None:
    """Return the credentials of the environment; None, with a finding, if they cannot be used."""

    def read_them() -> Credentials:
        credentials = with_environment(environment=environment)
        credentials.read_pems()
        credentials.metadata("localhost:1")  # reads the file of the token
        return credentials

    try:
        (credentials,) = at_once([read_them], timeout_seconds)
        problem = f"the files cannot be read within {timeout_seconds:g} s"
    except TokenfeedError as error:
        credentials, problem = None, str(error)
    if credentials is None:
        finding = Finding(
            "files-unusable",
            "",
            "the credentials of this machine cannot be used, so no server was asked",
            problem,
            "correct TOKENFEED_TLS_CA, TOKENFEED_TLS_CERT and TOKENFEED_TLS_KEY, and "
            "TOKENFEED_TOKEN or TOKENFEED_TOKEN_FILE",
        )
        machine.findings.append(finding)
    return credentials


def _show_machine(
    machine: ServerReport,
    targets: Sequence[str],
    credentials: Credentials,
    environment: Mapping[str, str],
) -> None:
    machine.add(
        "software",
        f"tokenfeed {__version__}, contract revision {CONTRACT_REVISION}",
        version=__version__,
        contract_revision=CONTRACT_REVISION,
        host=socket.gethostname(),
    )
    sends = [
        "TLS" if credentials.tls_ca else "plaintext",
        "a client certificate" if credentials.tls_cert else "no client certificate",
        "a token" if credentials.token else "no token",
    ]
    machine.add("sends", ", ".join(sends), sends=sends)
    hosts = [host_and_port(target)[0] for target in targets if not target.startswith(UNIX)]
    proxies = {proxy.variable for host in hosts if (proxy := proxy_for(host, environment))}
    if proxies:
        names = ", ".join(sorted(proxies))
        machine.add("proxy", f"{names} is set and not used: tokenfeed connects directly")


def _examine_all(targets: Sequence[str], settings: Settings) -> list[ServerReport]:
    """Examine all servers at once, compare those that answer, and read from one after another."""
    limit_seconds = _STEPS * settings.timeout_seconds
    resolving = [partial(servers_of, target, settings) for target in targets]
    servers: list[Server | ServerReport] = []
    for target, found in zip(targets, at_once(resolving, limit_seconds), strict=True):
        servers += found if isinstance(found, list) else [found or _stuck(target, limit_seconds)]
    examining = [partial(examine, one, settings) for one in servers if isinstance(one, Server)]
    results = at_once(examining, limit_seconds)
    reports = [
        one if isinstance(one, ServerReport) else next(results) or _stuck(one.name, limit_seconds)
        for one in servers
    ]
    answers = {one.name: one.answer for one in reports if one.answer is not None}
    for finding in compare(answers):
        for one in reports:
            if one.name == finding.server:
                one.findings.append(finding)
    for one in reports:
        read(one, settings)
    return reports


def _stuck(name: str, limit_seconds: float) -> ServerReport:
    """Return the report of an examination that did not end by its timeouts."""
    finding = Finding(
        "no-answer",
        name,
        "the examination of this server does not end",
        f"it has taken {limit_seconds:g} s, although each step has a timeout",
        "check this machine's name service, and its files with certificates and tokens",
    )
    return ServerReport(name, findings=[finding])
