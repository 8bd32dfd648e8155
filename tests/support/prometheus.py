"""A real Prometheus beside a test, and its promtool: those of Debian's package `prometheus`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT, Server
from tests.support.ports import free_port
from tests.support.scraping import metrics_address
from tests.support.waiting import eventually

FOLDER = ROOT / "deploy" / "observability"
INTERVAL = "200ms"
SHORT = "2s"
"""What durations of the rules become: ten scrapes."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name of a metric, and its labels with their values."""


class Sample(NamedTuple):
    """An element of an answer."""

    labels: dict[str, str]
    value: float


def require_installed() -> None:
    """Skip the test where there is no Prometheus."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("needs prometheus and promtool, of Debian's package prometheus")


def promtool(*words: str | Path, stdin: str = "") -> str:
    """Run promtool, which has to succeed, and return what it says."""
    require_installed()
    answer = subprocess.run(
        ["promtool", *map(str, words)], input=stdin, capture_output=True, text=True, timeout=15
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


class Prometheus:
    """A process that scrapes, as its HTTP interface shows it."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}"

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[Sample]:
        """What an expression has for elements now."""
        found = self._get("query", query=expression)["result"]
        return [Sample(each["metric"], float(each["value"][1])) for each in found]

    def firing(self) -> list[dict[str, str]]:
        """The labels of the alerts that fire."""
        alerts = self._get("alerts")["alerts"]
        return [each["labels"] for each in alerts if each["state"] == "firing"]

    def alerting_rules(self) -> list[str]:
        """The names of the alerts that it has rules of."""
        groups = self._get("rules", type="alert")["groups"]
        return [rule["name"] for group in groups for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


@contextmanager
def watching(folder: Path, *servers: Server, interval: str = INTERVAL) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes servers five times a second, with the rules of deploy/, for the
    duration of a with block, which begins after the first scrapes.  interval: of the scrapes.
    """
    require_installed()
    address = f"127.0.0.1:{free_port()}"
    (folder / "alerts.yml").write_text(hastened((FOLDER / "alerts.yml").read_text()))
    targets = json.dumps([metrics_address(server) for server in servers])
    config = (FOLDER / "prometheus.yml").read_text()
    config = re.sub(r"_interval: \w+", f"_interval: {interval}", config)
    config = re.sub(r"targets: .*", f"targets: {targets}", config)
    (folder / "prometheus.yml").write_text(config)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/prometheus",
                f"--web.listen-address={address}",
                "--query.lookback-delta=10s",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        prometheus = Prometheus(address)
        assert eventually(prometheus.is_ready), (folder / "prometheus.log").read_text()
        assert eventually(lambda: len(prometheus.query("up == 1")) == len(servers))
        # Before the first scrape, there was no server.
        assert eventually(lambda: prometheus.firing() == [])
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def hastened(rules: str) -> str:
    """The same rules with short durations, so that a test need not wait for minutes."""
    ranges = re.sub(r"\[\w+\]", f"[{SHORT}]", rules)
    return re.sub(r"\b(offset|for:) \w+", rf"\1 {SHORT}", ranges)
