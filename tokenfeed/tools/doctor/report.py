"""What doctor found, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .findings import Finding, exit_code
from .network import Connection, Server
from .rpc import Answer


@dataclass(slots=True)
class ServerReport:
    """What is known of one server, or of this machine.

    name: as it is shown.  lines: label and text of what is known about it, layer by layer; a layer
    that failed has a finding instead.  facts: the same for programs.  server, connection, answer:
    what it is examined by, as far as the layers work.
    """

    name: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    server: Server | None = None
    connection: Connection | None = None
    answer: Answer | None = None

    def add(self, label: str, text: str, **facts: object) -> None:
        """Add what is known of a layer."""
        self.lines.append((label, text))
        self.facts.update(facts)


def text(machine: ServerReport, servers: Sequence[ServerReport]) -> str:
    """Return all of it for people.  machine: what is wrong with this machine, and its settings."""
    lines: list[str] = []
    for report in (machine, *servers):
        lines.append(report.name)
        lines += [f"  {label:<10} {shown}" for label, shown in report.lines]
        for finding in report.findings:
            lines += [
                f"  PROBLEM    {finding.problem}  [{finding.kind}]",
                f"    seen     {finding.evidence}",
                f"    change   {finding.cure}",
            ]
    return "\n".join([*lines, "", _verdict(machine, servers)])


def as_json(machine: ServerReport, servers: Sequence[ServerReport]) -> dict[str, Any]:
    """Return all of it for programs."""
    findings = _findings(machine, servers)
    return {
        "exit_code": exit_code(findings),
        "machine": machine.facts,
        "servers": [{"server": one.name, **one.facts} for one in servers],
        "findings": [{**asdict(one), "exit_code": one.exit_code} for one in findings],
    }


def _findings(machine: ServerReport, servers: Sequence[ServerReport]) -> list[Finding]:
    return [finding for one in (machine, *servers) for finding in one.findings]


def _verdict(machine: ServerReport, servers: Sequence[ServerReport]) -> str:
    findings = _findings(machine, servers)
    if not findings:
        agree = "1 server works" if len(servers) == 1 else f"{len(servers)} servers work and agree"
        return f"verdict: healthy: {agree}"
    count = "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
    usable = sum(not one.findings for one in servers)
    named = "; ".join(f"{one.server or 'this machine'}: {one.kind}" for one in findings)
    return (
        f"verdict: {count}, {usable} of {len(servers)} servers without one: {named} "
        f"(exit code {exit_code(findings)})"
    )
