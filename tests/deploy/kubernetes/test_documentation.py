"""The YAML of docs/kubernetes.md, which people copy."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.conftest import ROOT
from tests.deploy.kubernetes.manifests import Manifest, build, namespaces, of_kind, only
from tests.deploy.kubernetes.test_network import TRAINERS, admitted
from tests.deploy.kubernetes.test_schemas import VERSIONS
from tokenfeed.server.cli.serve_options import build_parser as serve_parser

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def example(kind: str) -> str:
    blocks: list[str] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if f"\nkind: {kind}\n" in f"\n{block}"]
    return found


def build_own(folder: Path, text: str) -> list[Manifest]:
    """What own/kustomization.yaml beside the checkout builds."""
    (folder / "tokenfeed").symlink_to(ROOT)
    (folder / "own").mkdir()
    (folder / "own" / "kustomization.yaml").write_text(text)
    return build(folder / "own")


@pytest.fixture
def own(tmp_path: Path) -> list[Manifest]:
    """What it builds as the page has it."""
    return build_own(tmp_path, example("Kustomization"))


def test_a_folder_of_ones_own_changes_what_the_page_says(own: list[Manifest]) -> None:
    """Patches go by place and by name, and change nothing if they meet nothing."""
    spec = only(own, "Deployment")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    taken = serve_parser().parse_args(container["args"])

    assert taken.data == [["web=/data/web/train.bin"]]
    assert taken.vocab_size == "50257"
    assert taken.tls_cert == "/secrets/tls/tls.crt"
    assert container["image"] == "registry.your-company.com/tokenfeed-server:0.1.0"
    assert container["resources"]["limits"]["memory"] == "120Gi"
    assert container["resources"]["requests"] == {
        "cpu": "2", "memory": "120Gi", "ephemeral-storage": "5Gi",
    }  # fmt: skip
    assert spec["replicas"] == 3
    assert len(of_kind(own, "PodMonitor")) == 1


def test_all_objects_of_ones_own_folder_are_in_the_same_namespace(own: list[Manifest]) -> None:
    """A PodMonitor elsewhere watches pods that nobody has, and no one is told."""
    assert namespaces(own) == {"tokenfeed"}


def test_the_namespace_of_ones_own_folder_is_that_of_all_objects(tmp_path: Path) -> None:
    """After a change as the page says, the PodMonitor follows the servers."""
    text = example("Kustomization")
    assert text.count("\nnamespace: tokenfeed") == 1
    own = build_own(tmp_path, text.replace("\nnamespace: tokenfeed", "\nnamespace: feeds"))

    assert of_kind(own, "PodMonitor")
    assert namespaces(own) == {"feeds"}


def test_the_trainer_of_the_page_reaches_the_servers_and_trusts_them(own: list[Manifest]) -> None:
    """By its label, and by the name that its target has."""
    trainer = yaml.safe_load(example("Pod"))
    for version in VERSIONS:
        kubernetes_validate.validate(trainer, version, strict=True)
    (container,) = trainer["spec"]["containers"]
    namespace = TRAINERS | {"kubernetes.io/metadata.name": trainer["metadata"]["namespace"]}
    (service,) = of_kind(own, "Service")

    labels = trainer["metadata"]["labels"]
    assert admitted("overlays/shared-volume", namespace, labels) == [50051]
    names = ".".join(service["metadata"][key] for key in ("name", "namespace"))
    assert container["command"][-1] == f"dns:///{names}.svc:50051"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {entry["value"].rpartition("/")[0] for entry in container["env"]} == mounts
    assert not any("subPath" in mount for mount in container["volumeMounts"])
