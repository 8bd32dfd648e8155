"""How servers are found, watched, stopped and replaced."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.deploy.kubernetes.manifests import (
    OVERLAYS,
    VOLUMES,
    Manifest,
    built,
    container,
    of_kind,
    only,
    pod,
    workload,
)
from tokenfeed.server.cli.serve_options import build_parser as serve_parser

SHARED_VOLUME, NODE_DISK = VOLUMES
STARTS_SECONDS = 600
"""How long a server may read before it listens, as docs/kubernetes.md says."""


def service(name: str, of: str) -> Manifest:
    (found,) = [each for each in of_kind(built(of), "Service") if each["metadata"]["name"] == name]
    return dict(found["spec"])


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_a_headless_service_names_each_ready_server(name: str) -> None:
    """For dns:/// of clients, which choose by themselves."""
    spec = service("tokenfeed-headless", name)

    assert spec["clusterIP"] == "None"
    assert not spec.get("publishNotReadyAddresses")
    assert spec["ports"] == [{"name": "grpc", "port": 50051, "targetPort": "grpc"}]


def test_trainers_have_an_address_for_the_server_of_their_own_node() -> None:
    """Only where each node has one: elsewhere nothing would answer."""
    spec = service("tokenfeed-local", NODE_DISK)

    assert spec["internalTrafficPolicy"] == "Local"
    assert spec["type"] == "ClusterIP"
    assert "clusterIP" not in spec
    assert spec["ports"] == [{"name": "grpc", "port": 50051, "targetPort": "grpc"}]
    assert len(of_kind(built(SHARED_VOLUME), "Service")) == 1


def test_health_is_asked_by_grpc_where_the_port_speaks_plaintext() -> None:
    """Of the whole server, whose name is empty."""
    for probe in ("startupProbe", "readinessProbe"):
        assert container("base")[probe]["grpc"] == {"port": 50051}
        assert "exec" not in container("base")[probe]


@pytest.mark.parametrize("name", OVERLAYS)
def test_health_is_asked_by_grpc_over_the_socket_where_the_port_speaks_tls(name: str) -> None:
    """The kubelet speaks no TLS to gRPC. It is what the image does under Docker."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    (command,) = re.findall(
        r'CMD \["python", "-m", "tokenfeed.tools.probe", "([^"]+)"\]', dockerfile
    )
    for kind in ("startupProbe", "readinessProbe"):
        probe = container(name)[kind]
        assert "grpc" not in probe
        *words, timeout = probe["exec"]["command"]
        assert words == ["python", "-m", "tokenfeed.tools.probe", command]
        own_seconds = int(timeout.removeprefix("--timeout-seconds="))
        assert own_seconds < probe["timeoutSeconds"], "an answer of its own, in the events"
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_a_server_may_take_minutes_to_open_its_datasets(name: str) -> None:
    """Until then no other probe runs."""
    probe = container(name)["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] == STARTS_SECONDS
    assert probe["timeoutSeconds"] >= 5


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_a_server_that_lost_its_datasets_gets_no_new_clients(name: str) -> None:
    """Within seconds; a single late answer is no loss."""
    probe = container(name)["readinessProbe"]

    assert probe["failureThreshold"] == 2
    assert 5 <= probe["periodSeconds"] <= 10
    assert probe["timeoutSeconds"] >= 5
    assert "initialDelaySeconds" not in probe


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_only_a_process_that_hangs_is_restarted(name: str) -> None:
    """A server that lost a dataset or drains is not healthy: health must not decide. The metrics
    are answered by Python in the same process, and not by the kernel, as a TCP connection would be.
    """
    probe = container(name)["livenessProbe"]

    assert not {"grpc", "exec", "tcpSocket"} & probe.keys()
    assert probe["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 120
    assert probe["timeoutSeconds"] == 10


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_a_server_serves_until_nodes_know_that_it_goes_and_then_drains_in_time(name: str) -> None:
    """The kubelet stops a pod and the cluster removes its address at the same time. After the grace
    period it is killed, wherever it is.
    """
    taken = serve_parser().parse_args(container(name)["args"])
    sleep_seconds = container(name)["lifecycle"]["preStop"]["sleep"]["seconds"]

    assert sleep_seconds == 10
    spare_seconds = 10
    needed_seconds = sleep_seconds + taken.drain_seconds + spare_seconds
    assert pod(name)["spec"]["terminationGracePeriodSeconds"] >= needed_seconds


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_clients_have_time_to_reach_another_server_before_the_next_one_is_stopped(
    name: str,
) -> None:
    spec = workload(name)["spec"]

    assert spec["minReadySeconds"] == 10
    assert spec["revisionHistoryLimit"] == 3


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_new_server_is_ready_before_an_old_one_is_stopped(name: str) -> None:
    """One at a time."""
    spec = workload(name)["spec"]
    strategy = spec["updateStrategy"] if name == NODE_DISK else spec["strategy"]

    assert strategy == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }


def test_an_update_is_not_given_up_while_a_server_starts() -> None:
    spec = workload(SHARED_VOLUME)["spec"]

    assert spec["progressDeadlineSeconds"] >= STARTS_SECONDS + spec["minReadySeconds"] + 60


def test_the_loss_of_a_node_or_a_zone_leaves_a_server() -> None:
    """As far as there are several; an update counts only new pods."""
    assert workload(SHARED_VOLUME)["kind"] == "Deployment"
    assert workload(SHARED_VOLUME)["spec"]["replicas"] == 2
    spreads = pod(SHARED_VOLUME)["spec"]["topologySpreadConstraints"]

    keys = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert [spread["topologyKey"] for spread in spreads] == keys
    for spread in spreads:
        assert spread["maxSkew"] == 1
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
        assert spread["matchLabelKeys"] == ["pod-template-hash"]


def test_a_drain_of_nodes_stops_one_server_at_a_time() -> None:
    """And is not held up by one that serves nobody."""
    budget = only(built(SHARED_VOLUME), "PodDisruptionBudget")["spec"]

    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_each_node_with_a_corpus_has_one_server() -> None:
    """Also a node with GPUs, which others have to tolerate. A budget would count for nothing: a
    drain leaves pods of a DaemonSet alone.
    """
    found = workload(NODE_DISK)

    assert found["kind"] == "DaemonSet"
    assert not found["spec"].keys() & {"replicas", "strategy", "progressDeadlineSeconds"}
    assert pod(NODE_DISK)["spec"]["nodeSelector"] == {"tokenfeed-corpus": "true"}
    assert pod(NODE_DISK)["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert "topologySpreadConstraints" not in pod(NODE_DISK)["spec"]
    assert not of_kind(built(NODE_DISK), "PodDisruptionBudget")
