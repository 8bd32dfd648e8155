"""Pods of deploy/kubernetes as containers: started with what their manifest grants them, stopped as
the kubelet stops them, and found by a name as a headless Service gives it.

The name is in a file of hosts that the trainers share. Docker's own names do not do: a container
loses its name only together with its network.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import trustme

from tests.deploy.kubernetes.manifests import OVERLAYS, container, mounted, pod, size_bytes
from tests.integration.engine import Container, docker, wait_until
from tests.integration.reader import BATCH_SIZE, CONTEXT_LENGTH
from tests.integration.stack import READER, SERVER_IMAGE, TRAINER_IMAGE, Offline, Reading

OVERLAY = OVERLAYS[0]
SERVICE = "tokenfeed-headless.tokenfeed.svc"
TARGET = f"dns:///{SERVICE}:50051"
ARGUMENTS: list[str] = container(OVERLAY)["args"]
PRE_STOP_SECONDS: int = container(OVERLAY)["lifecycle"]["preStop"]["sleep"]["seconds"]
GRACE_SECONDS: int = pod(OVERLAY)["spec"]["terminationGracePeriodSeconds"]
RANKS = 4
# An epoch takes half a minute.
STEPS_A_SECOND, EPOCH_STEPS = 25, 800
CORPUS = "corpus/train.bin"
# Longer than any list of addresses here, so that it is replaced by one write.
_HOSTS_BYTES = 512


def write_corpus(volume: Path) -> Path:
    """Return its file. It has some windows more than an epoch of all ranks takes."""
    token_count = (EPOCH_STEPS * RANKS * BATCH_SIZE + 5) * CONTEXT_LENGTH + 1
    path = volume / CORPUS
    path.parent.mkdir()
    np.random.default_rng(2).integers(0, 50_000, token_count).astype("<u2").tofile(path)
    for each in (volume, path.parent):
        each.chmod(0o755)
    return path


class Pod(Container):
    """A server."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name)
        self.address = address
        self._killed_at = 0.0  # of time.monotonic(); 0 until it is being deleted

    def is_ready(self) -> bool:
        """Whether its readiness probe says so."""
        probe = container(OVERLAY)["readinessProbe"]["exec"]["command"]
        command = ["docker", "exec", self.name, *probe]
        return subprocess.run(command, capture_output=True, timeout=30).returncode == 0

    @contextmanager
    def pre_stop(self) -> Iterator[None]:
        """The pause before SIGTERM. What is done meanwhile does not make it longer."""
        began = time.monotonic()
        self._killed_at = began + GRACE_SECONDS
        yield
        time.sleep(max(0.0, began + PRE_STOP_SECONDS - time.monotonic()))

    def terminate(self) -> float:
        """Send SIGTERM, and SIGKILL at the end of the grace period, which the pause has shortened.
        Return how long it took to end, in seconds.
        """
        began = time.monotonic()
        left_seconds = int(self._killed_at - began) if self._killed_at else GRACE_SECONDS
        docker("stop", f"--time={left_seconds}", self.name, seconds=GRACE_SECONDS + 30)
        return time.monotonic() - began


class Cluster:
    """A network, a corpus, Secrets, and servers and trainers that share them."""

    def __init__(self, folder: Path, offline: Offline) -> None:
        """folder: for Secrets and hosts.  offline: of what `write_corpus` made."""
        self.offline, self._folder = offline, folder
        self._name = f"tokenfeed-pods-{os.getpid()}"
        self._opened = ExitStack()
        self._hosts = folder / "hosts"
        authority = trustme.CA()
        pair = authority.issue_cert(SERVICE)
        secrets = {
            "tokenfeed-tls/tls.crt": pair.cert_chain_pems[0].bytes(),
            "tokenfeed-tls/tls.key": pair.private_key_pem.bytes(),
            "tokenfeed-tokens/tokens": b"a-token\n",
            "trainer/ca.crt": authority.cert_pem.bytes(),
            "trainer/token": b"a-token\n",
        }
        for name, content in secrets.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o444)
        self._addresses = self._create_network()
        self._opened.callback(docker, "network", "rm", self._name)

    def _create_network(self) -> Iterator[str]:
        """Return addresses of it, none of them twice: the engine gives a new container the address
        of one that has ended, and a trainer would find a server where there should be none.
        """
        docker("network", "create", self._name)
        (settings,) = json.loads(docker("network", "inspect", self._name))[0]["IPAM"]["Config"]
        # Addresses can be chosen only if the subnet was.
        docker("network", "rm", self._name)
        docker("network", "create", f"--subnet={settings['Subnet']}", self._name)
        subnet = ipaddress.ip_network(settings["Subnet"])
        return (str(subnet[number]) for number in range(100, 200))

    def close(self) -> None:
        self._opened.close()

    def start(
        self, count: int, image: str = SERVER_IMAGE, arguments: Sequence[str] = ARGUMENTS
    ) -> list[Pod]:
        """Start servers, and wait until they are ready."""
        started = []
        for address in islice(self._addresses, count):
            words = ["--detach", f"--ip={address}", *self._limits(), image, *arguments]
            started.append(Pod(self._run(*words), address))
            self._opened.callback(started[-1].remove)
        for each in started:
            wait_until(each.is_ready, "a server that is ready")
        return started

    def _run(self, *words: str) -> str:
        return docker("run", f"--network={self._name}", "--no-healthcheck", *words)

    def _limits(self) -> list[str]:
        """What the manifest says of rights, memory and files, as the engine's options."""
        spec, of = pod(OVERLAY)["spec"]["securityContext"], container(OVERLAY)
        rights, memory = of["securityContext"], of["resources"]["limits"]["memory"]
        assert rights["readOnlyRootFilesystem"]
        assert not rights["allowPrivilegeEscalation"]
        words = ["--read-only", "--security-opt=no-new-privileges"]
        words += [f"--user={spec['runAsUser']}:{spec['runAsGroup']}"]
        words += [f"--cap-drop={name}" for name in rights["capabilities"]["drop"]]
        words += [f"--memory={size_bytes(memory)}"]
        for path, (_, volume) in mounted(OVERLAY).items():
            if "emptyDir" in volume:
                size = size_bytes(volume["emptyDir"]["sizeLimit"])
                words += [f"--tmpfs={path}:mode=1777,size={size}"]
            elif "secret" in volume:
                secret = self._folder / volume["secret"]["secretName"]
                words += [f"--volume={secret}:{path}:ro"]
            else:
                words += [f"--volume={self.offline.path.parents[1]}:{path}:ro"]
        return words

    def publish(self, *ready: Pod) -> None:
        """Have the Service name these servers, and no others."""
        _write_hosts(self._hosts, ready)

    def describe(self, *stale: Pod) -> str:
        """What a trainer that begins now is told, by the servers that its cache of DNS names."""
        hosts = self._folder / "stale"
        _write_hosts(hosts, stale)
        command = ["python", "-m", "client", "describe", TARGET]
        return self._run("--rm", *self._trainer(hosts), TRAINER_IMAGE, *command)

    def _trainer(self, hosts: Path) -> list[str]:
        """As the trainer of docs/kubernetes.md has them."""
        return [
            "--read-only",
            f"--volume={hosts}:/etc/hosts:ro",
            f"--volume={self._folder}/trainer:/secrets:ro",
            "--env=TOKENFEED_TLS_CA=/secrets/ca.crt",
            "--env=TOKENFEED_TOKEN_FILE=/secrets/token",
        ]

    @contextmanager
    def reading(
        self, *options: str, image: str = TRAINER_IMAGE, after: Reading | None = None
    ) -> Iterator[Reading]:
        """A job of several ranks that takes shuffled rows.

        options: of reader.py.  after: a job that has ended, of which it takes the state.
        """
        name = f"{self._name}-reader-{time.monotonic_ns()}"
        if after is not None:
            options += ("--state", after.state)
        command = [
            "docker", "run", "--rm", f"--name={name}", f"--network={self._name}",
            *self._trainer(self._hosts), f"--volume={READER}:/reader.py:ro", image,
            "python", "/reader.py", "--numpy", f"--ranks={RANKS}", "--order=shuffled", *options,
            str(1 / STEPS_A_SECOND), TARGET,
        ]  # fmt: skip
        started = Reading(name, command, first_batch=after.next_batch if after else 0)
        try:
            yield started
        finally:
            started.close()


def _write_hosts(path: Path, pods: Sequence[Pod]) -> None:
    """In place: a container has the file, and not its name."""
    text = "".join(f"{each.address} {SERVICE}\n" for each in pods)
    with path.open("r+b" if path.exists() else "wb", buffering=0) as file:
        file.write(text.ljust(_HOSTS_BYTES, "\n").encode())
