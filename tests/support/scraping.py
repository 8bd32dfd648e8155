"""Reads the metrics of a server that runs, as Prometheus does."""

from __future__ import annotations

import re
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import Server
from tests.support.waiting import eventually

Labels = frozenset[tuple[str, str]]
SCRAPED = ("--metrics-port", "0")


def metrics_address(server: Server) -> str:
    """Return "host:port" of the metrics of a server that was started with SCRAPED."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = re.findall(r"metrics address=http://(\S+)/metrics", server.stderr)
        return bool(found)

    assert eventually(is_there)
    return found[0]


def fetch(server: Server, path: str = "/metrics") -> str:
    """Return the page of a path."""
    url = f"http://{metrics_address(server)}{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def samples(server: Server) -> dict[str, dict[Labels, float]]:
    """Return every sample, by its name and its labels."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(fetch(server)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def labels(**values: str) -> Labels:
    """Return labels as `samples` has them."""
    return frozenset(values.items())
