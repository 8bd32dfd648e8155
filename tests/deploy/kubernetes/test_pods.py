"""What each pod may do, and what it has: servers and jobs alike."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.deploy.kubernetes.manifests import (
    JOBS,
    OBJECT_STORE,
    OVERLAYS,
    VOLUMES,
    Manifest,
    built,
    container,
    mounted,
    of_kind,
    pod,
    size_bytes,
)
from tokenfeed.server.cli.serve_options import build_parser as serve_parser
from tokenfeed.server.ingest.__main__ import build_parser as ingest_parser
from tokenfeed.tools.pack import build_parser as pack_parser

ALL = ["base", *OVERLAYS, *JOBS]
USER = 65532
MIB, GIB = 1 << 20, 1 << 30


def target(stage: str) -> str:
    """The part of deploy/Dockerfile that makes an image."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    found = re.search(rf"^FROM \S+ AS {stage}$(.*?)(^FROM |\Z)", dockerfile, re.M | re.S)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", ALL)
def test_a_pod_runs_as_the_user_of_the_image(name: str) -> None:
    """The kubelet refuses runAsNonRoot for a user that it knows only by name."""
    security = pod(name)["spec"]["securityContext"]

    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == USER
    assert f"USER {USER}:{USER}" in target("runtime")


@pytest.mark.parametrize("name", ALL)
def test_a_pod_has_no_more_rights_than_the_standard_restricted_allows(name: str) -> None:
    """What clusters enforce by the label pod-security.kubernetes.io/enforce."""
    security = container(name)["securityContext"]

    assert pod(name)["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod(name)["spec"].keys()
    assert not {"privileged", "procMount"} & security.keys()
    assert not any("hostPort" in port for port in container(name).get("ports", []))
    allowed = {"emptyDir", "persistentVolumeClaim", "secret", "hostPath"}
    kinds = {kind for _, volume in mounted(name).values() for kind in volume.keys() - {"name"}}
    assert kinds <= allowed
    # The one exception: the disk of the node, which docs/kubernetes.md names.
    assert ("hostPath" in kinds) is (name == "overlays/node-disk")


@pytest.mark.parametrize("name", ALL)
def test_the_root_file_system_is_read_only(name: str) -> None:
    assert container(name)["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", ALL)
def test_a_pod_gets_no_credentials_of_the_cluster(name: str) -> None:
    """And no environment variable for each Service of the namespace."""
    assert pod(name)["spec"]["automountServiceAccountToken"] is False
    assert pod(name)["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", ALL)
def test_memory_is_requested_up_to_its_limit(name: str) -> None:
    """Page cache counts for the pod that reads: above its request a pod is evicted first, and
    without a limit it fills the node.
    """
    resources = container(name)["resources"]

    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert size_bytes(resources["limits"]["memory"]) >= GIB
    assert int(resources["requests"]["cpu"]) >= 1
    assert "cpu" not in resources["limits"]


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_the_cache_of_a_server_fits_into_its_disk(name: str) -> None:
    """A pod above its ephemeral-storage is evicted, and so is one above a volume's sizeLimit."""
    resources = container(name)["resources"]
    volume = mounted(name)["/cache"][1]["emptyDir"]

    assert size_bytes(volume["sizeLimit"]) >= GIB
    room = size_bytes(resources["limits"]["ephemeral-storage"]) - size_bytes(volume["sizeLimit"])
    assert room >= GIB, "logs count too"
    assert resources["requests"]["ephemeral-storage"] == resources["limits"]["ephemeral-storage"]
    assert "medium" not in volume, "memory would count twice"


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_the_socket_of_the_image_has_a_folder_in_memory(name: str) -> None:
    """The image passes --unix; without a folder that can be written the server does not start."""
    (path,) = re.findall(r'"--unix", "([^"]+)"', target("server"))
    mount, volume = mounted(name)[path.rpartition("/")[0]]

    assert volume["emptyDir"]["medium"] == "Memory"
    assert size_bytes(volume["emptyDir"]["sizeLimit"]) == MIB
    assert not mount.get("readOnly")


def test_servers_of_an_object_store_have_its_credentials_and_a_cache_with_room_to_spare() -> None:
    """The cache is allocated when a server starts; rows and borders of documents lie beside it."""
    taken = serve_parser().parse_args(container(OBJECT_STORE)["args"])
    mounts = mounted(OBJECT_STORE)

    assert taken.object_cache == taken.cache_dir == "/cache"
    room = size_bytes(mounts["/cache"][1]["emptyDir"]["sizeLimit"]) - taken.object_cache_bytes
    assert room >= 4 * GIB
    assert "/data" not in mounts
    secret = {"secretRef": {"name": "tokenfeed-object-store"}}
    assert container(OBJECT_STORE)["envFrom"] == [secret]


@pytest.mark.parametrize("name", VOLUMES)
def test_servers_cannot_write_to_the_corpus(name: str) -> None:
    mount, volume = mounted(name)["/data"]

    assert mount["readOnly"] is True
    if "persistentVolumeClaim" in volume:
        # Else the kubelet may change the group of each file, which servers see as a change.
        assert volume["persistentVolumeClaim"] == {
            "claimName": claim()["metadata"]["name"],
            "readOnly": True,
        }
    else:
        assert volume["hostPath"] == {"path": "/var/lib/tokenfeed", "type": "Directory"}


@pytest.mark.parametrize("name", ALL)
def test_the_kubelet_changes_no_file_that_has_the_right_group(name: str) -> None:
    """A job that mounts a volume for writing would make running servers read their files again."""
    assert pod(name)["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("name", OVERLAYS)
def test_each_path_of_the_command_line_is_mounted(name: str) -> None:
    arguments = container(name)["args"]
    paths = [word.partition("=")[2] for word in arguments if "=/" in word]

    assert len(paths) == 5
    for path in paths:
        assert any(path == mount or path.startswith(f"{mount}/") for mount in mounted(name))


@pytest.mark.parametrize("name", ["base", *OVERLAYS])
def test_the_server_takes_its_command_line(name: str) -> None:
    """An option that it does not know would end each pod with code 2."""
    arguments = container(name)["args"]
    # docs/kubernetes.md replaces it by its place.
    corpus = "s3://bucket/corpus" if name == OBJECT_STORE else "/data/corpus"
    assert arguments[0] == f"--data={corpus}"
    assert "--cache-dir=/cache" in arguments
    assert {"--metrics-port=9464", "--metrics-host=0.0.0.0"} <= set(arguments)
    taken = serve_parser().parse_args(arguments)
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    assert ports == {"grpc": taken.port, "metrics": taken.metrics_port}
    assert "command" not in container(name), "the entry point has the socket"


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_client_needs_a_token_and_speaks_tls(name: str) -> None:
    taken = serve_parser().parse_args(container(name)["args"])

    assert taken.tls_cert == "/secrets/tls/tls.crt"
    assert taken.tls_key == "/secrets/tls/tls.key"
    assert taken.token_file == "/secrets/tokens/tokens"
    assert not taken.allow_plaintext_token


@pytest.mark.parametrize("name", OVERLAYS)
def test_secrets_are_whole_folders_that_only_the_pod_can_read(name: str) -> None:
    """A file that is mounted by subPath is never renewed; one of mode 0400 belongs to root."""
    secrets = {
        path: (mount, volume["secret"])
        for path, (mount, volume) in mounted(name).items()
        if "secret" in volume
    }

    assert secrets.keys() == {"/secrets/tls", "/secrets/tokens"}
    for path, (mount, secret) in secrets.items():
        assert mount.keys() == {"name", "mountPath", "readOnly"}
        assert mount["readOnly"] is True
        assert secret == {
            "secretName": f"tokenfeed-{path.rpartition('/')[2]}",
            "defaultMode": 0o440,
        }


@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS])
def test_an_image_has_a_registry_and_a_version(name: str) -> None:
    """An overlay is where both are set; a node keeps an image of a version."""
    image = container(name)["image"]
    stage = "ingest" if name == "jobs/ingest" else "server"

    assert image == f"registry.example.com/tokenfeed-{stage}:0.1.0"
    assert container(name)["imagePullPolicy"] == "IfNotPresent"


def claim() -> Manifest:
    """The claim of the volume with the corpus."""
    (found,) = built("claim.yaml")
    return found


@pytest.mark.parametrize("name", JOBS)
def test_jobs_write_to_the_volume_that_servers_read(name: str) -> None:
    mount, volume = mounted(name)["/data"]

    assert not mount.get("readOnly")
    assert volume["persistentVolumeClaim"] == {"claimName": claim()["metadata"]["name"]}
    assert claim()["spec"]["accessModes"] == ["ReadWriteMany"]
    assert size_bytes(claim()["spec"]["resources"]["requests"]["storage"]) >= 100 * GIB
    assert len(mounted(name)) == 1


@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS])
def test_all_of_it_is_in_one_namespace(name: str) -> None:
    """Which has a label for what its pods may do, and outlives `kubectl delete -k`, as the volume
    does.
    """
    (namespace,) = built("namespace.yaml")
    named = namespace["metadata"]["name"]

    assert {each["metadata"]["namespace"] for each in built(name)} == {named}
    assert claim()["metadata"]["namespace"] == named
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"
    assert not of_kind(built(name), "PersistentVolumeClaim")
    assert not of_kind(built(name), "Namespace")


@pytest.mark.parametrize("name", JOBS)
def test_a_job_goes_on_after_its_node_and_gives_up_on_a_wrong_command_line(name: str) -> None:
    """It resumes, or begins again, by the same command."""
    (job,) = built(name)
    spec = job["spec"]

    assert job["kind"] == "Job"
    assert pod(name)["spec"]["restartPolicy"] == "Never", "podFailurePolicy needs it"
    assert spec["backoffLimit"] == 3
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}},
    ]
    assert pod(name)["spec"]["terminationGracePeriodSeconds"] >= 60
    # Else a second run needs the first one to be deleted for ever.
    assert 86_400 <= spec["ttlSecondsAfterFinished"] <= 30 * 86_400


def test_ingest_makes_what_servers_serve_with_as_many_workers_as_it_has_cores() -> None:
    """By default it starts one for each core of the node."""
    taken = ingest_parser().parse_args(container("jobs/ingest")["args"])
    resources = container("jobs/ingest")["resources"]

    assert f"--data={taken.out}" == container("base")["args"][0]
    assert "command" not in container("jobs/ingest")
    assert taken.workers == int(resources["requests"]["cpu"])
    assert size_bytes(resources["limits"]["memory"]) >= (160 + 90 * taken.workers) * MIB
    assert taken.append_token == "<|endoftext|>", "documents end somewhere"
    for path in (*taken.sources, taken.tokenizer):
        assert path.startswith("/data/")


def test_packing_is_of_what_servers_serve_by_the_image_of_the_server() -> None:
    """And beside the tokens, where servers look too, whatever their --cache-dir."""
    packs = container("jobs/pack")
    taken = pack_parser().parse_args(packs["args"])

    assert packs["command"] == ["python", "-m", "tokenfeed.tools.pack"]
    assert taken.data == [f"{container('base')['args'][0].partition('=')[2]}/train"]
    assert taken.cache_dir is None
    assert taken.context_length == 2048
