"""deploy/observability: metrics, alerts, dashboard and docs name the same things, and promtool is
content with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from client import Mixture, NumpyBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.prometheus import FOLDER, promtool
from tests.support.scraping import fetch
from tokenfeed.v1 import tokenfeed_pb2 as pb

PAGE = ROOT / "docs" / "observability.md"
SUFFIXES = ("_bucket", "_sum", "_count")
"""What a histogram's name has behind it in samples."""


@pytest.fixture
def exported(serve: Serve, write_tokens: WriteTokens) -> str:
    """The metrics of a server that has sent rows of a dataset and of a mixture, and has refused a
    call.
    """
    web = write_tokens(np.arange(4000), "web.bin")
    code = write_tokens(np.arange(4000), "code.bin")
    server = serve("--data", web, "--data", code, "--metrics-port", 0)
    with NumpyBatches(server.address, 4, 8, dataset="web") as feed:
        next(feed)
    with NumpyBatches(server.address, 4, 8, mixture=Mixture({"web": 1, "code": 1})) as feed:
        next(feed)
    stream = pb.Stream(sources=[pb.Source(dataset="nothing")])
    refused = pb.GetBatchRequest(stream=stream).SerializeToString()
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/tokenfeed.v1.TokenFeed/GetBatch")(refused, timeout=10)
    return fetch(server)


@pytest.fixture
def names(exported: str) -> set[str]:
    """The names of all metrics; of a histogram without what its samples have behind it."""
    return set(re.findall(r"^# TYPE (\w+)", exported, re.MULTILINE))


@pytest.fixture(scope="session")
def alerts() -> str:
    return (FOLDER / "alerts.yml").read_text()


@pytest.fixture(scope="session")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def test_promtool_finds_nothing_wrong_with_the_metrics(exported: str) -> None:
    """Units, names and help are as every Prometheus expects them."""
    promtool("check", "metrics", stdin=exported)


def test_promtool_accepts_configuration_and_rules() -> None:
    """Prometheus would not start with others."""
    said = promtool("check", "config", FOLDER / "prometheus.yml")

    assert "1 rule files found" in said
    assert "16 rules found" in said


def test_each_alert_fires_and_stays_silent_as_it_should() -> None:
    """An alert that never fires is found in the incident that it was made for."""
    promtool("test", "rules", FOLDER / "alerts.test.yml")


def test_the_rule_tests_let_each_alert_fire(alerts: str) -> None:
    """A new alert without a test would not be noticed by promtool."""
    tested = (FOLDER / "alerts.test.yml").read_text()
    fires = re.findall(r"- alertname: (\w+)\n\s+eval_time: \w+\n\s+exp_alerts:\n", tested)
    silent = re.findall(r"\{alertname: (\w+), eval_time: \w+, exp_alerts: \[\]\}", tested)

    assert set(fires) == set(alert_names(alerts)) == set(silent)


def test_alerts_and_dashboard_name_only_metrics_that_exist(
    alerts: str, dashboard: dict[str, Any], names: set[str]
) -> None:
    """A misspelled metric is no error for Prometheus: there is just nothing."""
    recorded = set(re.findall(r"- record: (\S+)", alerts))
    used = set(re.findall(r"\btokenfeed[:_][\w:]+", "\n".join(expressions_of(alerts))))
    shown = set(re.findall(r"\btokenfeed_\w+", json.dumps([targets(dashboard), dashboard])))

    assert {base(name, names) for name in used - recorded} <= names
    assert {base(name, names) for name in shown} <= names


def test_the_dashboard_shows_every_metric(dashboard: dict[str, Any], names: set[str]) -> None:
    """What nobody sees need not be counted."""
    shown = re.findall(r"\btokenfeed_\w+", json.dumps(targets(dashboard)))

    assert {base(name, names) for name in shown} == names


def test_the_docs_have_every_metric_and_no_other(exported: str, names: set[str]) -> None:
    """With its type, and the labels that it has."""
    rows = re.findall(r"^\| `(tokenfeed_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.M)
    documented = {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)", exported, re.MULTILINE))

    assert len(rows) == len(documented)
    assert {name: kind for name, (kind, _) in documented.items()} == kinds
    assert set(documented) == names
    for line in exported.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)(.*)", line).groups()  # type: ignore[union-attr]
            found = set(re.findall(r'(\w+)="', labels)) - {"le"}
            assert found == documented[base(name, names)][1], line


def test_each_alert_names_where_it_is_and_what_to_do(alerts: str) -> None:
    """A person who is woken by it reads nothing else at first."""
    sections = anchors(PAGE.read_text())
    blocks = re.split(r"(?=- alert: )", alerts)[1:]
    for block in blocks:
        name = alert_names(block)[0]
        description = block.partition("description: >-")[2].partition("runbook_url:")[0]
        assert re.search(r"for: \d+[sm]\n", block), name
        assert re.search(r"severity: (critical|warning|info)\}", block), name
        assert "summary: " in block, name
        assert "$labels.instance" in description or "$labels.job" in description, name
        assert "dataset" in description, name
        assert f"runbook_url: docs/observability.md#{name.lower()}\n" in block, name
        assert name.lower() in sections, name
    assert len(blocks) == 13


def test_each_panel_says_what_it_shows(dashboard: dict[str, Any]) -> None:
    """With a unit, and from the data source that its user chooses."""
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    for panel in panels:
        title = panel["title"]
        assert len(panel["description"]) > 20, title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        for target in panel["targets"]:
            assert "$instance" in target["expr"], title
    assert len(panels) == 33
    assert len({panel["title"] for panel in panels}) == len(panels)
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps(dashboard["panels"]))
    assert set(sources) == {"${datasource}"}
    variables = [each["name"] for each in dashboard["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "dataset"]


def test_no_two_panels_overlap(dashboard: dict[str, Any]) -> None:
    """Grafana would move them, each time in another way."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def alert_names(rules: str) -> list[str]:
    return re.findall(r"- alert: (\w+)", rules)


def expressions_of(rules: str) -> Iterator[str]:
    """The expressions of rules, in one line or in several that are indented further."""
    for found in re.finditer(r"^( +)expr: (.*)\n((?:\1 +.*\n)*)", rules, re.MULTILINE):
        yield found[2] + found[3]


def targets(dashboard: dict[str, Any]) -> list[str]:
    """The queries of all panels."""
    return [each["expr"] for panel in dashboard["panels"] for each in panel.get("targets", [])]


def base(name: str, names: set[str]) -> str:
    """The metric that a sample belongs to."""
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in names:
            return name.removesuffix(suffix)
    return name


def anchors(page: str) -> set[str]:
    """Where a link into a page may lead."""
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
