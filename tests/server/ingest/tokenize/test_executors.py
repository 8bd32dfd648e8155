"""Executors: processes of this machine, or nodes of a Ray cluster, which may die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT
from tests.server.ingest.corpus import END, documents, tree, write_jsonl, write_parquet
from tests.server.ingest.running import ingest, ingested, slow_ingest
from tests.support.ray_cluster import Cluster, ray_cluster, status
from tests.support.waiting import eventually
from tokenfeed.server.runtime.threads import executors

pytestmark = pytest.mark.slow


def has_begun(worker: int, shard: Path) -> bool:
    return True


def has_encoded_something(worker: int, shard: Path) -> bool:
    return shard.exists()


def has_encoded_a_quarter(worker: int, shard: Path) -> bool:
    """Of 200 MB: a token for each byte, and two bytes for each token."""
    return shard.exists() and shard.stat().st_size > 50_000_000


def hands_over(worker: int, shard: Path) -> bool:
    """Its parent is stopped and takes nothing: what does not fit into the pipe is left to write."""
    process = Path(f"/proc/{worker}")
    parent = status(process)[1]
    if shard.exists() and status(Path(f"/proc/{parent}"))[0] != "T":
        os.kill(int(parent), signal.SIGSTOP)
        return False
    return shard.exists() and status(process)[0] == "S"


@pytest.mark.parametrize("workers", [1, 16, 64])
def test_each_worker_has_the_largest_of_units_before_one_is_awaited(workers: int) -> None:
    """Whatever the memory that they take together: else most of 64 processors would have none."""
    begun: list[int] = []
    units = (SimpleNamespace(size_bytes=8 << 20, number=number) for number in range(1000))

    def begin(unit: SimpleNamespace) -> int:
        begun.append(unit.number)
        return unit.number

    assert next(executors._in_order(units, begin, lambda number: number, workers, None)) == 0
    assert workers < len(begun) <= max(17, 2 * workers + 1)


@pytest.mark.parametrize(
    ("disturbance", "ends_with"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt"),
        ("raise BlockingIOError(11, 'no more processes')", "no more processes"),
    ],
)
def test_workers_that_have_started_are_killed_if_the_start_ends_early(
    disturbance: str, ends_with: str
) -> None:
    """Otherwise the end of the command would wait for them for ever."""
    code = f"""
        import os, signal
        from multiprocessing.popen_fork import Popen
        from tokenfeed.server.runtime.threads.executors import make_executor

        launch, started = Popen._launch, []

        def disturbed(self, process):
            if len(started) == 2:
                started.append(None)
                {disturbance}
            launch(self, process)
            started.append(self.pid)
            print(self.pid, flush=True)

        Popen._launch = disturbed
        with make_executor("local", 4, max):
            print("began")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert ends_with in done.stderr.splitlines()[-1]
    pids = done.stdout.split()
    assert len(pids) >= 2
    assert "began" not in pids
    assert not any(Path("/proc", pid).exists() for pid in pids)


@pytest.mark.parametrize(
    ("moment", "workers"),
    [
        (has_begun, 2),
        (has_encoded_something, 2),
        (has_encoded_a_quarter, 2),
        (hands_over, 1),
    ],
)
def test_a_killed_worker_is_reported_and_finished_work_is_kept(
    tmp_path: Path, moment: Callable[[int, Path], bool], workers: int
) -> None:
    """As the kernel does when memory is short, also during the start: it must not hang."""
    path = write_jsonl(tmp_path / "x.jsonl", ({"text": "word " * 200_000} for _ in range(100)))
    words = [str(path), "--out", str(tmp_path / "out"), "--tokenizer", "bytes"]
    words += ["--workers", str(workers)]
    with subprocess.Popen(
        slow_ingest(*words), cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as running:
        assert eventually(lambda: workers_of(running) != [])
        worker, shard = workers_of(running)[0], tmp_path / "out" / ".ingest/train/000000.ds"
        assert eventually(lambda: moment(worker, shard), 60)
        os.kill(worker, signal.SIGKILL)
        running.send_signal(signal.SIGCONT)
        try:
            _, said = running.communicate(timeout=20)
        finally:
            running.kill()

    assert running.returncode == 1
    assert "error: --workers: a worker process was killed, maybe because memory ran out;" in said
    ingested(*words)


def workers_of(running: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return list(map(int, children))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ray_cluster() as made:
        yield made


def test_without_a_ray_cluster_the_option_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """The one that is lent has no nodes."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "abc"}])
    words = (path, "--tokenizer", "bytes", "--out", tmp_path / "out")

    done = ingest(*words, "--executor", "ray")

    assert done.returncode == 1
    assert done.stderr.startswith("error: --executor: found no Ray cluster; run `ray start")
    assert len(done.stderr.splitlines()) == 1


def test_a_ray_cluster_makes_the_same_bytes(
    cluster: Cluster, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of the next one, of parquet: other machines do not have the file."""
    path = write_parquet(tmp_path / "x.parquet", {"text": documents(500)})
    words = [str(path), "--tokenizer", str(tokenizer), "--append-token", END]
    ingested(*words, "--out", tmp_path / "local")
    cluster.add()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    ingested(*words, "--out", tmp_path / "ray", "--executor", "ray")

    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


@pytest.mark.proof
@pytest.mark.timeout(700)
def test_a_ray_cluster_makes_the_same_bytes_though_a_node_dies(
    cluster: Cluster, tokenizer: Path, tmp_path: Path
) -> None:
    """Killed with work in flight, which the other node does again: on a machine that is busy with
    other things Ray takes minutes to notice.
    """
    texts = documents(5000, words_max=1500)
    path = write_jsonl(tmp_path / "x.jsonl", ({"text": text} for text in texts))
    words = [str(path), "--tokenizer", str(tokenizer), "--append-token", END]
    words += ["--shuffle-buffer", "100"]
    ingested(*words, "--out", tmp_path / "local")
    cluster.add()
    other = cluster.add()

    command = [sys.executable, "-m", "tokenfeed.server.ingest", *words, "--executor", "ray"]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path / "ray")],
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with running:
        try:
            deadline = time.monotonic() + 120
            first = tmp_path / "ray" / ".ingest" / "train" / "000000.ds"
            while not (first.exists() and cluster.stop_at_work(other)):
                assert time.monotonic() < deadline
                assert running.poll() is None, running.communicate()[0]
                time.sleep(0.01)
            cluster.kill(other)
            said, _ = running.communicate(timeout=500)
        finally:
            running.kill()

    assert running.returncode == 0, said
    lost = r"Task read_and_encode failed.*node it was running on is dead|recover \d+ lost objects"
    assert re.search(lost, said), f"nothing was in flight: {said}"
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")
