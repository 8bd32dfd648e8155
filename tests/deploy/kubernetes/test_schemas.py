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
    matches,
    of_kind,
    only,
    pod,
    with_component,
)

# The oldest that has the preStop handler `sleep` by default, and the newest that the validator knows.
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


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["base", *OVERLAYS, *JOBS, *ONCE])
def test_each_manifest_has_the_fields_of_its_kind_and_no_others(name: str, version: str) -> None:
    """A cluster drops a misspelled field, or refuses the whole manifest."""
    for manifest in built(name):
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


@pytest.mark.parametrize("name", ["base", *OVERLAYS, *JOBS])
def test_every_selector_finds_the_pods_that_it_is_for(name: str) -> None:
    """One that finds none is valid, and silent."""
    labels = pod(name)["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "tokenfeed"
    manifests = built(name)
    for service in of_kind(manifests, "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
    for kind in ("Deployment", "DaemonSet", "PodDisruptionBudget"):
        for manifest in of_kind(manifests, kind):
            assert matches(manifest["spec"]["selector"], labels)
    for spread in pod(name)["spec"].get("topologySpreadConstraints", []):
        assert matches(spread["labelSelector"], labels)
    for policy in of_kind(manifests, "NetworkPolicy"):
        assert matches(policy["spec"]["podSelector"], labels)


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_who_asks_for_it_gets_a_pod_monitor(name: str, tmp_path: Path) -> None:
    """A cluster without the operator refuses a kind that it does not know."""
    assert not of_kind(built(name), "PodMonitor")

    manifests = with_component(tmp_path, name, "pod-monitor")

    monitor = only(manifests, "PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["name"] == "tokenfeed"
    jsonschema.validate(monitor["spec"], POD_MONITOR)
    assert len(manifests) == len(built(name)) + 1


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_pod_monitor_reads_the_port_of_the_metrics(name: str, tmp_path: Path) -> None:
    """All servers, under one job name, and no scrape that lasts longer than to the next."""
    manifests = with_component(tmp_path, name, "pod-monitor")
    monitor = only(manifests, "PodMonitor")
    labels = pod(name)["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert matches(monitor["spec"]["selector"], labels)
    assert set(monitor["spec"]["selector"]["matchLabels"]) == set(labels)
    assert labels[monitor["spec"]["jobLabel"]] == "tokenfeed"
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    assert ports[endpoint["port"]] == 9464
    assert endpoint["path"] == "/metrics"
    assert int(endpoint["scrapeTimeout"][:-1]) < int(endpoint["interval"][:-1])
