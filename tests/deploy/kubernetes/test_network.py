"""Who reaches whom, by the network policies."""

from __future__ import annotations

import pytest

from tests.deploy.kubernetes.manifests import (
    JOBS,
    OBJECT_STORE,
    OVERLAYS,
    VOLUMES,
    Manifest,
    built,
    matches,
    of_kind,
    pod,
)

OWN = {"kubernetes.io/metadata.name": "tokenfeed"}
OTHER = {"kubernetes.io/metadata.name": "training"}
TRAINERS = OTHER | {"tokenfeed-trainers": "true"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
TRAINER = {"tokenfeed-trainer": "true"}
GRPC, METRICS = 50051, 9464


def policies_for(labels: dict[str, str], overlay: str, kind: str) -> list[Manifest]:
    """The specs that decide about Ingress or Egress of a pod in our namespace."""
    specs = [each["spec"] for each in of_kind(built(overlay), "NetworkPolicy")]
    return [
        spec
        for spec in specs
        if kind in spec["policyTypes"] and matches(spec["podSelector"], labels)
    ]


def is_from(peer: Manifest, namespace: dict[str, str], labels: dict[str, str]) -> bool:
    """Whether a pod is one of a peer's. Without a namespaceSelector: of our namespace."""
    assert peer
    assert peer.keys() <= {"namespaceSelector", "podSelector"}
    namespaces = peer.get("namespaceSelector")
    is_there = namespace == OWN if namespaces is None else matches(namespaces, namespace)
    return is_there and matches(peer.get("podSelector", {}), labels)


def admitted(overlay: str, namespace: dict[str, str], labels: dict[str, str]) -> list[int]:
    """The ports of a server that a pod reaches."""
    policies = policies_for(pod(overlay)["metadata"]["labels"], overlay, "Ingress")
    assert len(policies) == 2, "what is for all pods of ours, and what is for servers"
    ports = []
    for spec in policies:
        for rule in spec.get("ingress", []):
            # An absent list is everybody, or every port.
            if any(is_from(peer, namespace, labels) for peer in rule["from"]):
                assert all(port["protocol"] == "TCP" for port in rule["ports"])
                ports += [port["port"] for port in rule["ports"]]
    return sorted(ports)


@pytest.mark.parametrize("overlay", ["base", *OVERLAYS])
@pytest.mark.parametrize(
    ("namespace", "labels", "ports"),
    [
        (OWN, TRAINER, [GRPC]),
        (TRAINERS, TRAINER, [GRPC]),
        (MONITORING, {"app": "prometheus"}, [METRICS]),
        (OWN, {}, []),
        (OWN, {"tokenfeed-trainer": "false"}, []),
        (OTHER, TRAINER, []),
        (TRAINERS, {}, []),
        (MONITORING, TRAINER, [METRICS]),
    ],
)
def test_trainers_reach_batches_monitoring_reaches_metrics_and_nobody_else_anything(
    overlay: str, namespace: dict[str, str], labels: dict[str, str], ports: list[int]
) -> None:
    """By numbers: not every network plugin follows the names of ports."""
    assert admitted(overlay, namespace, labels) == ports


@pytest.mark.parametrize(
    ("overlay", "name"),
    [(overlay, name) for overlay in ["base", *VOLUMES] for name in [*VOLUMES, *JOBS]]
    + [(OBJECT_STORE, job) for job in JOBS],
)
def test_servers_and_jobs_reach_nothing(overlay: str, name: str) -> None:
    """Not even DNS: they look up no name. Volumes are mounted by the node."""
    policies = policies_for(pod(name)["metadata"]["labels"], overlay, "Egress")

    assert policies
    assert not any(spec.get("egress") for spec in policies)


def test_servers_of_an_object_store_reach_names_and_https_alone() -> None:
    """A store may have any address, and is asked by TLS; of plain ports there is that of DNS alone."""
    policies = policies_for(pod(OBJECT_STORE)["metadata"]["labels"], OBJECT_STORE, "Egress")
    names, store = [rule for spec in policies for rule in spec.get("egress", [])]

    system = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    assert names["to"] == [{"namespaceSelector": system}, {"ipBlock": {"cidr": "169.254.20.10/32"}}]
    assert names["ports"] == [{"protocol": kind, "port": 53} for kind in ("UDP", "TCP")]
    assert store["to"] == [{"ipBlock": {"cidr": cidr}} for cidr in ("0.0.0.0/0", "::/0")]
    assert store["ports"] == [{"protocol": "TCP", "port": 443}]


@pytest.mark.parametrize("overlay", ["base", *OVERLAYS])
@pytest.mark.parametrize("name", JOBS)
def test_nobody_reaches_jobs(overlay: str, name: str) -> None:
    """They do not listen."""
    policies = policies_for(pod(name)["metadata"]["labels"], overlay, "Ingress")

    assert policies
    assert not any(spec.get("ingress") for spec in policies)


@pytest.mark.parametrize("overlay", ["base", *OVERLAYS])
@pytest.mark.parametrize("kind", ["Ingress", "Egress"])
def test_other_pods_of_the_namespace_are_left_alone(overlay: str, kind: str) -> None:
    """Trainers may be there, and need the network."""
    for labels in (TRAINER, {"app.kubernetes.io/component": "server"}):
        assert policies_for(labels, overlay, kind) == []
