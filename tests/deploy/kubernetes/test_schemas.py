"""Whether a cluster would take what kubectl builds."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest

from tests.deploy.kubernetes.manifests import (
    JOBS,
    ONCE,
    OVERLAYS,
    built,
    container,
    namespaces,
    of_kind,
    only,
    pod,
    with_component,
)

# The oldest with the preStop handler `sleep` by default, and the newest that the validator knows.
VERSIONS = ["1.30", "1.37"]

# The fields of monitoring.coreos.com/v1 PodMonitor that are used here, from the definition that the
# Prometheus operator publishes (0.91). The validator knows only what Kubernetes itself has.
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": "^[0-9]+(s|m)$"}
POD_MONITOR = {
    "type": "object",
    "required": ["selector"],
    "additionalProperties": False,
    "properties": {
        "jobLabel": {"type": "string"},
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"matchLabels": LABELS},
        },
        "podMetricsEndpoints": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string"},
                    "interval": DURATION,
                    "scrapeTimeout": DURATION,
                },
            },
        },
    },
}


@pytest.mark.parametrize(
    "version",
    [
        *VERSIONS,
        *(pytest.param(f"1.{minor}", marks=pytest.mark.proof) for minor in range(31, 37)),
    ],
)
@pytest.mark.parametrize("name", ["base", *OVERLAYS, *JOBS, *ONCE])
def test_each_manifest_has_the_fields_of_its_kind_and_no_others(name: str, version: str) -> None:
    """A cluster drops a misspelled field, or refuses the whole manifest."""
    for manifest in built(name):
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS])
def test_each_manifest_has_the_name_and_the_label_of_the_project(name: str) -> None:
    """What a cluster lists by `-l app.kubernetes.io/name=tokenfeed` is all of it."""
    for manifest in built(name):
        assert manifest["metadata"]["name"].startswith("tokenfeed")
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "tokenfeed"
        if manifest["kind"] in ("Service", "Deployment", "DaemonSet", "Job"):
            assert labels == pod(name)["metadata"]["labels"]


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_selectors_find_servers_and_no_jobs(name: str) -> None:
    """One that finds none is valid, and silent; one that finds jobs sends clients to them."""
    labels = pod(name)["metadata"]["labels"]
    manifests = built(name)
    selectors = [each["spec"]["selector"] for each in of_kind(manifests, "Service")]
    selectors += [
        each["spec"]["selector"]["matchLabels"]
        for kind in ("Deployment", "DaemonSet", "PodDisruptionBudget")
        for each in of_kind(manifests, kind)
    ]
    spreads = pod(name)["spec"].get("topologySpreadConstraints", [])
    selectors += [spread["labelSelector"]["matchLabels"] for spread in spreads]

    assert labels == {
        "app.kubernetes.io/name": "tokenfeed",
        "app.kubernetes.io/component": "server",
    }
    assert all(selector == labels for selector in selectors)
    for job in JOBS:
        component = job.partition("/")[2]
        own = {"app.kubernetes.io/component": component}
        assert pod(job)["metadata"]["labels"] == labels | own


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_who_asks_for_it_gets_a_pod_monitor(name: str, tmp_path: Path) -> None:
    """A cluster without the operator refuses a kind that it does not know."""
    assert not of_kind(built(name), "PodMonitor")

    manifests = with_component(tmp_path, name, "pod-monitor")

    monitor = only(manifests, "PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["name"] == "tokenfeed"
    assert monitor["metadata"]["labels"] == {"app.kubernetes.io/name": "tokenfeed"}
    jsonschema.validate(monitor["spec"], POD_MONITOR)
    assert len(manifests) == len(built(name)) + 1


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_pod_monitor_is_where_the_servers_are(name: str, tmp_path: Path) -> None:
    """It watches its own namespace alone, and an overlay's does not apply to what is beside it."""
    manifests = with_component(tmp_path, name, "pod-monitor")

    assert of_kind(manifests, "PodMonitor")
    assert namespaces(manifests) == {"tokenfeed"} == namespaces(built(name))


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_pod_monitor_reads_the_port_of_the_metrics(name: str, tmp_path: Path) -> None:
    """All servers, under one job name, and no scrape that lasts longer than to the next."""
    manifests = with_component(tmp_path, name, "pod-monitor")
    monitor = only(manifests, "PodMonitor")
    labels = pod(name)["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert monitor["spec"]["selector"] == {"matchLabels": labels}
    assert labels[monitor["spec"]["jobLabel"]] == "tokenfeed"
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    assert ports[endpoint["port"]] == 9464
    assert endpoint["path"] == "/metrics"
    assert int(endpoint["scrapeTimeout"][:-1]) < int(endpoint["interval"][:-1])
