"""deploy/kubernetes as kubectl builds it."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
OBJECT_STORE = "overlays/object-store"
VOLUMES = ["overlays/shared-volume", "overlays/node-disk"]
"""Overlays whose servers mount the corpus."""
OVERLAYS = [*VOLUMES, OBJECT_STORE]
JOBS = ["jobs/ingest", "jobs/pack"]
ONCE = ["namespace.yaml", "claim.yaml"]
"""Applied once, by themselves."""

Manifest = dict[str, Any]


def build(folder: Path) -> list[Manifest]:
    """What `kubectl apply -k` would send."""
    # From the same environment as Python. The command asks no cluster.
    kubectl = Path(sys.executable).with_name("kubectl")
    made = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, timeout=15
    )
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


@functools.cache
def built(name: str) -> list[Manifest]:
    """The manifests of a folder, or of a file, of deploy/kubernetes."""
    path = KUBERNETES / name
    return list(yaml.safe_load_all(path.read_text())) if path.is_file() else build(path)


def with_component(folder: Path, overlay: str, component: str) -> list[Manifest]:
    """An overlay and a component, put together in a kustomization of one's own in folder."""
    (folder / "tokenfeed").symlink_to(ROOT)
    own = folder / "own"
    own.mkdir()
    text = {
        "resources": [f"../tokenfeed/deploy/kubernetes/{overlay}"],
        "components": [f"../tokenfeed/deploy/kubernetes/components/{component}"],
    }
    (own / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return build(own)


def namespaces(manifests: list[Manifest]) -> set[str | None]:
    """Where the objects are; None is wherever kubectl happens to be."""
    return {each["metadata"].get("namespace") for each in manifests}


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """The one manifest of a kind."""
    (found,) = of_kind(manifests, kind)
    return found


def workload(name: str) -> Manifest:
    """The one manifest of a folder that makes pods."""
    (found,) = [each for each in built(name) if "template" in each.get("spec", {})]
    return found


def pod(name: str) -> Manifest:
    """Labels and spec of the pods of a folder, as `metadata` and `spec`."""
    template: Manifest = workload(name)["spec"]["template"]
    return template


def container(name: str) -> Manifest:
    """The one container of these pods."""
    (found,) = pod(name)["spec"]["containers"]
    return dict(found)


def mounted(name: str) -> dict[str, tuple[Manifest, Manifest]]:
    """What a container mounts: path -> the mount, and its volume."""
    volumes = {volume["name"]: volume for volume in pod(name)["spec"]["volumes"]}
    mounts = container(name)["volumeMounts"]
    assert volumes.keys() == {mount["name"] for mount in mounts}, "a volume that nobody mounts"
    return {mount["mountPath"]: (mount, volumes[mount["name"]]) for mount in mounts}


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Whether labels are those of a selector, which has nothing but matchLabels."""
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def size_bytes(quantity: str) -> int:
    """A quantity of memory, which ends in Mi or Gi."""
    return int(quantity[:-2]) << {"Mi": 20, "Gi": 30}[quantity[-2:]]
