"""The last release and the tree: servers and clients of the one with those of the other, and a
rolling upgrade of servers under jobs of both.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.integration.reader import BATCH_SIZE, CONTEXT_LENGTH, SEED
from tests.support.installing import build, environment, install, run, serving
from tests.support.offline import offline_rows
from tests.support.ports import free_port
from tests.support.releases import extract, last_release
from tests.support.waiting import eventually

CLIENT = """
import json, sys
from client import RemoteBatches
with RemoteBatches(sys.argv[1], 3, 64, order=sys.argv[2], seed=7, num_batches=4) as feed:
    print(json.dumps([(x.tolist(), y.tolist()) for x, y in feed]))
"""
READER = ROOT / "tests" / "integration" / "reader.py"
_PACE_SECONDS = 0.02


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed wheel of the last release."""
    folder = tmp_path_factory.mktemp("released")
    source = extract(last_release(), folder / "source")
    return install(build(source, folder), folder / "packages")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    np.random.default_rng(0).integers(0, 50257, 500_000).astype("<u2").tofile(path)
    return path


class Job:
    """Ranks that read in step, in a process of one version."""

    def __init__(self, packages: Path, log: Path, words: list[str]) -> None:
        """Start it.  packages: of its version.  log: takes what it prints; its errors go to a file
        beside that.
        """
        self._log, self._errors = log, log.with_suffix(".errors")
        with log.open("w") as printed, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(READER), *words],
                cwd=log.parent,
                env=environment(packages),
                stdout=printed,
                stderr=errors,
            )

    def wait_for(self, more: int) -> None:
        """Wait for more batches."""
        goal = len(self.batches()) + more
        eventually(lambda: len(self.batches()) >= goal or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self._errors.read_text()[-3000:]

    def finish(self) -> str:
        """End it, and return its state as JSON."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self._errors.read_text()[-3000:]
        return self._log.read_text().rpartition("state ")[2].strip()

    def batches(self) -> list[tuple[int, str, int]]:
        """Return number and hash of each batch, and how often streams had been resumed by then."""
        # The last line may be half written.
        lines = self._log.read_text().split("\n")[:-1]
        found = [line.split() for line in lines if not line.startswith("state ")]
        return [(int(number), digest, int(resumed)) for number, digest, resumed in found]


@contextmanager
def reading(packages: Path, log: Path, *words: str | int) -> Iterator[Job]:
    """Lend a job, and end it."""
    job = Job(packages, log, ["--numpy", "--order=shuffled", *map(str, words)])
    try:
        yield job
    finally:
        job.process.kill()
        job.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.proof)])
def test_two_replicas_are_upgraded_under_jobs_of_both_versions_and_no_row_is_lost(
    ranks: int, released: Path, corpus: Path
) -> None:
    """Servers and trainers are not upgraded on the same day. Both jobs begin at old servers and
    end at new ones; then each goes on by the code of the other.
    """
    folder, ports = corpus.parent, [free_port(), free_port()]
    jobs, states = [], []
    with ExitStack() as opened:

        def serve(packages: Path, port: int) -> ExitStack:
            own = opened.enter_context(ExitStack())
            words = ("-m", "server", "--data", "train.bin")
            own.enter_context(serving(packages, folder, sys.executable, *words, port=port))
            return own

        def start(packages: Path, *words: str) -> Job:
            log = folder / f"job-{len(jobs)}.log"
            targets = [f"127.0.0.1:{port}" for port in ports]
            words = (f"--ranks={ranks}", *words, str(_PACE_SECONDS), *targets)
            jobs.append(opened.enter_context(reading(packages, log, *words)))
            return jobs[-1]

        old = [serve(released, port) for port in ports]
        for packages in (released, ROOT):
            start(packages)
        for port, leaving in zip(ports, old, strict=True):
            for job in jobs:
                job.wait_for(10 * ranks)
            leaving.close()
            serve(ROOT, port)
        for job in jobs:
            job.wait_for(10 * ranks)
            states.append(job.finish())
            assert job.batches()[-1][2] > 0, "it has met no other server"
        for packages, state in zip((ROOT, released), states, strict=True):
            start(packages, f"--state={state}").wait_for(10 * ranks)

    for before, after in zip(jobs[:2], jobs[2:], strict=True):
        arrived = before.batches() + after.batches()
        assert len(arrived) >= 50 * ranks
        assert [number for number, *_ in arrived] == list(range(len(arrived)))
        assert [digest for _, digest, _ in arrived] == expected(corpus, len(arrived))


def expected(corpus: Path, batches: int) -> list[str]:
    """The hashes of the batches from sample 0 on, by the second implementation."""
    rows = offline_rows(
        [corpus], "shuffled-1", SEED, CONTEXT_LENGTH, range(batches * BATCH_SIZE)
    ).astype("<u2")
    return [hashlib.sha256(each.tobytes()).hexdigest() for each in np.split(rows, batches)]


@pytest.mark.proof
@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
@pytest.mark.parametrize("server", ["released", "tree"])
def test_a_released_client_and_this_server_agree_and_the_other_way_round(
    server: str, order: str, released: Path, corpus: Path
) -> None:
    """With torch, and in every order that has needed no documents since the first version."""
    serves, asks = (released, ROOT) if server == "released" else (ROOT, released)
    folder = corpus.parent
    command = (sys.executable, "-m", "server", "--data", "train.bin")

    with serving(serves, folder, *command) as address:
        mixed = run(asks, folder, sys.executable, "-c", CLIENT, address, order)
        same = run(serves, folder, sys.executable, "-c", CLIENT, address, order)

    assert mixed == same
