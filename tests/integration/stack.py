"""deploy/docker-compose.yml, brought up under a name of its own, and trainers beside it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.integration.engine import (
    BUILD_SECONDS,
    Container,
    compose_command,
    docker,
    docker_bytes,
    wait_until,
)
from tests.integration.reader import BATCH_BYTES, BATCH_SIZE, CONTEXT_LENGTH, SEED
from tests.support.offline import offline_rows

READER = Path(__file__).with_name("reader.py")
IMAGES = {
    "TOKENFEED_SERVER_IMAGE": "tokenfeed-server:test",
    "TOKENFEED_TRAINER_IMAGE": "tokenfeed-trainer:test",
    "TOKENFEED_CERTIFICATES_IMAGE": "tokenfeed-certificates:test",
    "TOKENFEED_STORE_IMAGE": "tokenfeed-store:test",
    "TOKENFEED_PROMETHEUS_IMAGE": "tokenfeed-prometheus:test",
}
SERVER_IMAGE, TRAINER_IMAGE = list(IMAGES.values())[:2]
TARGETS = ["server-a:50051", "server-b:50051"]
# 50 batches a second.
SECONDS_PER_BATCH = 0.02
# Any free port of this machine.
PORTS = dict.fromkeys(("TOKENFEED_PORT_A", "TOKENFEED_PORT_B", "TOKENFEED_PROMETHEUS_PORT"), "0")


class Stack:
    """What the compose files describe, as a project of its own."""

    def __init__(self, name: str, *files: str, data: Path | None = None) -> None:
        """name: of the project, this process' id apart.  files: of deploy/.  data: a folder to
        serve instead of the volume.
        """
        self._data = {} if data is None else {"TOKENFEED_DATA": str(data)}
        self._name = f"tokenfeed-{name}-{os.getpid()}"
        words = [word for file in files for word in ("--file", str(ROOT / "deploy" / file))]
        self._up_at = 0.0
        self._command = [*compose_command(), "--project-name", self._name, *words]

    def compose(self, *words: str, seconds: float = 120) -> bytes:
        """Run a command of compose's and return what it prints."""
        answer = subprocess.run(
            [*self._command, *words], capture_output=True, env=self._environment, timeout=seconds
        )
        assert answer.returncode == 0, f"{' '.join(words)}: {answer.stderr.decode()}"
        return answer.stdout

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | IMAGES | PORTS | self._data

    def build(self, *services: str) -> None:
        self.compose("build", *services, seconds=BUILD_SECONDS)

    def up(self, *services: str) -> None:
        self._up_at = time.monotonic()
        self.compose("up", "--detach", *services)

    def up_seconds(self) -> float:
        """How long ago it was brought up."""
        return time.monotonic() - self._up_at

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "3")

    def container(self, service: str) -> Container:
        """The one container of a service, running or not."""
        label = "label=com.docker.compose"
        filters = [f"{label}.project={self._name}", f"{label}.service={service}"]
        filters += [f"{label}.oneoff=False"]
        words = [word for text in filters for word in ("--filter", text)]
        return Container(docker("ps", "--all", "--quiet", *words))

    @property
    def replicas(self) -> list[Container]:
        return [self.container(name) for name in ("server-a", "server-b")]

    @property
    def network(self) -> str:
        return f"{self._name}_default"

    def wait_until_healthy(self) -> None:
        for replica in self.replicas:
            wait_until(lambda replica=replica: replica.health() == "healthy", "a healthy replica")  # type: ignore[misc]

    def serving(self) -> Container:
        """The replica that sends batches just now."""
        before = [replica.sent_bytes() for replica in self.replicas]
        time.sleep(1.0)
        sent = [now.sent_bytes() - then for now, then in zip(self.replicas, before, strict=True)]
        # Nobody else reads from them, and a batch is some kilobytes.
        assert max(sent) > 10 * (min(sent) + 1_000), f"nobody serves, or both do: {sent}"
        return self.replicas[sent.index(max(sent))]

    def run(
        self, *command: str, environment: dict[str, str] | None = None, options: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a trainer of its own."""
        pairs = (environment or {}).items()
        words = [*options, *(word for pair in pairs for word in ("-e", "=".join(pair)))]
        return subprocess.run(
            [*self._command, "run", "--rm", "-T", "--no-deps", *words, "trainer", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=180,
        )

    def read_data(self, path: str) -> bytes:
        """A file of the data volume."""
        return docker_bytes("exec", self.replicas[0].name, "cat", path)

    def reading(self, *options: str) -> Reading:
        """Start a trainer of its own.  options: of reader.py."""
        name = f"{self._name}-reader-{time.monotonic_ns()}"
        command = [
            *self._command, "run", "--rm", "-T", "--no-deps", "--name", name,
            "--volume", f"{READER}:/reader.py:ro", "trainer",
            "python", "/reader.py", *options, str(SECONDS_PER_BATCH), *TARGETS,
        ]  # fmt: skip
        return Reading(name, command, self._environment)


class Arrived(NamedTuple):
    """A batch: when it was handed out, in seconds, what it was, and how often the stream had been
    taken up again by then.
    """

    at: float
    step: int
    digest: str
    reconnects: int


class Reading:
    """A trainer in a container of its own that takes batches in step with the clock."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str] | None = None,
        first_batch: int = 0,
    ) -> None:
        """first_batch: number of the first one that it has to get, if it resumes."""
        self.container = Container(name)
        self.arrived: list[Arrived] = []
        self.state = ""
        """JSON, after SIGTERM."""
        self._first_batch = first_batch
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # its container was removed while it wrote this line
            if line.startswith("state "):
                self.state = line.removeprefix("state ").strip()
                continue
            step, digest, reconnects = line.split()
            self.arrived.append(Arrived(time.monotonic(), int(step), digest, int(reconnects)))

    def wait_for(self, more: int, seconds: float = 60) -> None:
        """Wait until so many more batches are there."""
        goal = len(self.arrived) + more
        wait_until(
            lambda: len(self.arrived) >= goal or self._process.poll() is not None,
            f"{more} more batches",
            seconds,
        )
        assert len(self.arrived) >= goal, self._said()

    def _said(self) -> str:
        """What it has said of errors, once it has ended."""
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def require_exact(self, offline: Offline) -> None:
        """Every batch was there, once, in order, and byte for byte what the file holds."""
        arrived, first = list(self.arrived), self._first_batch
        end = first + len(arrived)
        assert [batch.step for batch in arrived] == list(range(first, end))
        assert [batch.digest for batch in arrived] == offline.digests(end)[first:]

    @property
    def next_batch(self) -> int:
        """The number of the batch after the last one that arrived."""
        return self._first_batch + len(self.arrived)

    def reconnects(self) -> int:
        """How often its stream broke and was taken up again, so far."""
        return self.arrived[-1].reconnects

    def batches_since(self, moment: float) -> int:
        """How many were handed out since then."""
        return sum(batch.at >= moment for batch in list(self.arrived))

    def longest_gap(self) -> float:
        """Seconds between two batches, at most."""
        times = [batch.at for batch in list(self.arrived)]
        return max(after - before for before, after in pairwise(times))

    def finish(self, signal: str) -> None:
        """Send it a signal, and wait until it has ended without an error."""
        docker("kill", "--signal", signal, self.container.name)
        code = self._process.wait(timeout=60)
        assert code == 0, f"exit code {code}: {self._said()}"
        self._thread.join()

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self.container.remove()
        self._process.wait(timeout=60)
        self._thread.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class Offline:
    """The stream that trainers have to get, computed by support/reference.py."""

    def __init__(self, path: Path, order: str = "random-1") -> None:
        self.path, self._order = path, order
        self._digests: list[str] = []

    def digests(self, num_batches: int) -> list[str]:
        """SHA-256 of each batch."""
        more = range(len(self._digests), num_batches)
        samples = range(more.start * BATCH_SIZE, more.stop * BATCH_SIZE)
        rows = offline_rows([self.path], self._order, SEED, CONTEXT_LENGTH, samples).astype("<u2")
        batches = rows.reshape(len(more), BATCH_BYTES // 2)
        self._digests += [hashlib.sha256(batch.tobytes()).hexdigest() for batch in batches]
        return self._digests[:num_batches]
