"""What doctor finds: a problem, what was seen, and what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

EXIT_CODES = {
    "name-not-resolved": 10,
    "port-filtered": 11,
    "port-closed": 11,
    "no-route": 11,
    "only-through-proxy": 11,
    "damaged-frames": 11,
    "no-answer": 12,
    "busy": 12,
    "unavailable": 12,
    "server-speaks-tls": 13,
    "server-speaks-plaintext": 13,
    "certificate-name": 13,
    "certificate-expired": 13,
    "certificate-not-yet-valid": 13,
    "certificate-not-trusted": 13,
    "client-certificate-refused": 13,
    "tls-fails": 13,
    "files-unusable": 14,
    "token-unusable": 14,
    "token-missing": 14,
    "token-refused": 14,
    "not-grpc": 15,
    "refused": 15,
    "not-tokenfeed": 15,
    "old-server": 15,
    "old-client": 15,
    "orders-differ": 15,
    "other-corpus": 16,
    "dataset-missing": 16,
    "dataset-refused": 16,
    "clock-differs": 17,
    "slow-line": 18,
    "slow": 18,
}
"""Exit code of each kind of problem, by its layer. docs/operate.md has them too."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem.

    kind: one of EXIT_CODES.  server: its address as doctor shows it; "" is this machine.
    problem, evidence, cure: what is wrong, what was seen, what to change; a line or two each.
    """

    kind: str
    server: str
    problem: str
    evidence: str
    cure: str

    @property
    def exit_code(self) -> int:
        """The exit code of the command if there is no other problem."""
        return EXIT_CODES[self.kind]


class Diagnosis(Exception):
    """Ends the examination of a server: a layer failed, so those above it cannot work."""

    def __init__(self, finding: Finding) -> None:
        """finding: why."""
        super().__init__(finding.problem)
        self.finding = finding


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code: that of the lowest layer that has a problem; 0 without one."""
    return min((finding.exit_code for finding in findings), default=0)
