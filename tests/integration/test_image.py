"""The server's image: what it carries, who it runs as, how it starts and ends, and its health; and
that of ingest, which makes what it serves.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.integration.conftest import Note, RunServer
from tests.integration.engine import BUILD_SECONDS, Container, docker, wait_until
from tests.integration.stack import SERVER_IMAGE, TRAINER_IMAGE
from tests.server.ingest import corpus
from tests.server.ingest.running import ingested

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
MIB = 1 << 20
OFTEN = ("--health-interval=0.5s", "--health-retries=1")


def wait_until_listening(container: Container) -> None:
    wait_until(lambda: "listening on" in container.log(), "a server that listens")


def test_the_image_is_small_and_carries_neither_torch_nor_the_client(
    images: None, note: Note
) -> None:
    """The client's image carries the client and no server."""
    base = docker("inspect", "--format={{.Size}}", _base())
    server, trainer = (
        docker("inspect", "--format={{.Size}}", image) for image in (SERVER_IMAGE, TRAINER_IMAGE)
    )
    names = ("server", "client", "torch", "pip")
    look = f"from importlib.util import find_spec; print([bool(find_spec(n)) for n in {names}])"
    inside = [
        docker("run", "--rm", "--entrypoint=python", image, "-c", look)
        for image in (SERVER_IMAGE, TRAINER_IMAGE)
    ]

    assert inside == ["[True, False, False, False]", "[False, True, True, False]"]
    sizes = [int(size) / 1e6 for size in (base, server, trainer)]
    note("base {:.0f} MB, server {:.0f} MB, trainer {:.0f} MB".format(*sizes))
    # 17 of them are obstore, which reads object stores.
    assert sizes[1] - sizes[0] < 110


def test_the_other_builder_builds_it_too(images: None) -> None:
    """Compose here builds by whichever builder is asked for; the other may be theirs."""
    other = "0" if os.environ.get("DOCKER_BUILDKIT") == "1" else "1"
    answer = subprocess.run(
        ["docker", "build", "--quiet", "--file", DOCKERFILE, "--target", "server", ROOT],
        env=os.environ | {"DOCKER_BUILDKIT": other},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
    )
    if "buildx" in answer.stderr:
        pytest.skip("needs a docker that has BuildKit")

    assert answer.returncode == 0, answer.stderr
    image = answer.stdout.strip()
    assert docker("run", "--rm", image, "--version").startswith("tokenfeed ")
    docker("rmi", image)


def _base() -> str:
    found = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_text_becomes_in_its_image_what_it_becomes_outside(
    ingest_image: str, run_server: RunServer, folder: Path
) -> None:
    """As whoever owns the folder, and writing nowhere else."""
    corpus.make_tokenizer(folder / "tokenizer.json")
    texts = corpus.documents(300)
    corpus.write_parquet(folder / "0.parquet", {"text": texts[:200]})
    corpus.write_jsonl(folder / "1.jsonl.zst", [{"text": text} for text in texts[200:]])
    options = ["--append-token", corpus.END, "--val-fraction", "0.1"]
    words = ["--out", "/data/inside", "--tokenizer", "/data/tokenizer.json", *options]
    limits = ["--read-only", "--cap-drop=ALL", f"--user={os.getuid()}:{os.getgid()}"]

    sources = ["/data/*.parquet", "/data/1.jsonl.zst"]
    docker("run", "--rm", *limits, f"--volume={folder}:/data", ingest_image, *sources, *words)
    outside = ["--out", folder / "outside", "--tokenizer", folder / "tokenizer.json", *options]
    ingested(folder / "0.parquet", folder / "1.jsonl.zst", *outside)

    for split in ("train", "val"):
        made = corpus.tree(folder / "inside" / split)
        assert made == corpus.tree(folder / "outside" / split)
        assert sum(map(len, made.values())) > 1000
    server = run_server(folder, "--data", "/data/inside")
    wait_until_listening(server)
    assert "dataset=val" in server.log()


def test_one_process_runs_as_nobody_and_can_write_nowhere(
    run_server: RunServer, folder: Path
) -> None:
    server = run_server(folder, "--data", "/data/train.bin", options=("--no-healthcheck",))
    wait_until_listening(server)

    titles, *processes = docker("top", server.name, "-eo", "pid,uid,args").splitlines()
    assert titles.split() == ["PID", "UID", "COMMAND"]
    assert [line.split()[1:5] for line in processes] == [["65532", "python", "-m", "server"]]
    for folder_inside in ("/", "/data", "/tokenfeed", "/tmp"):
        touch = f"touch {folder_inside}/file 2>&1 || true"
        assert "Read-only file system" in server.execute("sh", "-c", touch)


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_the_first_process_of_a_container_stops_in_time(
    run_server: RunServer, folder: Path, name: str
) -> None:
    """The kernel keeps a signal from a process 1 that has not asked for it. Best of three tries."""
    seconds = []
    for _ in range(3):
        server = run_server(folder, "--data", "/data/train.bin")
        wait_until_listening(server)
        began = time.monotonic()
        docker("kill", "--signal", name, server.name)
        docker("wait", server.name)
        seconds.append(time.monotonic() - began)
        assert server.state()["ExitCode"] == 0

    assert min(seconds) < 2


@pytest.mark.parametrize("forbids", [False, True])
def test_rows_are_copied_twice_only_where_a_profile_forbids_more(
    run_server: RunServer, folder: Path, tmp_path: Path, forbids: bool
) -> None:
    """The profiles of container engines differ in that, by age."""
    rule = {"names": ["process_vm_writev"], "action": "SCMP_ACT_ERRNO"}
    rules = [rule] if forbids else []
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}))
    options = ("--security-opt", f"seccomp={profile}")
    server = run_server(folder, "--data", "/data/train.bin", options=options)
    wait_until_listening(server)

    assert ("rows are copied twice" in server.log()) is forbids


def test_a_replica_starts_within_seconds(run_server: RunServer, folder: Path, note: Note) -> None:
    """From `docker run` to the line that says that it listens. Best of three tries."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        wait_until_listening(run_server(folder, "--data", "/data/train.bin"))
        seconds.append(time.monotonic() - began)

    note("a replica starts in " + ", ".join(f"{second:.2f} s" for second in seconds))
    assert min(seconds) < 5


def test_what_the_command_line_lacks_ends_the_container_with_a_word(
    run_server: RunServer, folder: Path
) -> None:
    server = run_server(folder, "--data", "/data/nothing.bin")

    assert docker("wait", server.name) == "1"
    assert "error: /data/nothing.bin: cannot be read" in server.log()


def test_health_is_what_the_server_says(run_server: RunServer, folder: Path) -> None:
    """Whatever port it listens on: it is asked over its socket."""
    server = run_server(folder, "--data", "/data/train.bin", "--port", "6000", options=OFTEN)
    wait_until(lambda: server.health() == "healthy", "health")

    docker("kill", "--signal", "STOP", server.name)
    wait_until(lambda: server.health() == "unhealthy", "a stopped process")
    docker("kill", "--signal", "CONT", server.name)
    wait_until(lambda: server.health() == "healthy", "a process that goes on")

    os.truncate(folder / "train.bin", 100)
    wait_until(lambda: server.health() == "unhealthy", "a file cut short")
    state = server.state()
    assert "NOT_SERVING" in [look["Output"].strip() for look in state["Health"]["Log"]]
    assert state["Status"] == "running"


def test_eight_trainers_and_two_replicas_share_one_page_cache(
    run_server: RunServer, folder: Path, note: Note
) -> None:
    """What the cgroups account for: the first replica's has the corpus, once, and nobody else's."""
    corpus_bytes = 192 * MIB
    path = folder / "train.bin"
    with path.open("wb") as file:
        file.write(np.random.default_rng(1).bytes(corpus_bytes))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    servers = []
    for _ in range(2):
        servers.append(run_server(folder, "--data", "/data/train.bin"))
        wait_until(lambda: "reason=complete" in servers[-1].log(), "the end of the warm-up")
    figures = {0: [server.memory() for server in servers]}
    for count in (1, 8):
        with ExitStack() as opened:
            trainers = []
            for index in range(count):
                trainers.append(_trainer(servers[index % 2 :] + servers[: index % 2]))
                opened.callback(trainers[-1].remove)
            for trainer in trainers:
                wait_until(lambda t=trainer: _steps(t) > 100, "batches")  # type: ignore[misc]
            figures[count] = [member.memory() for member in (*servers, *trainers)]
    assert all(server.sent_bytes() > 100_000 for server in servers), "one of them served nobody"

    for count, members in figures.items():
        note(f"two replicas and {count} trainers: {_table(members)}")
        files = [member["files"] for member in members]
        assert 0.95 * corpus_bytes < files[0] < corpus_bytes + 32 * MIB
        assert sum(files[:2]) < corpus_bytes + 48 * MIB
    for few, many in zip(figures[1][:2], figures[8][:2], strict=True):
        assert many["anonymous"] - few["anonymous"] < 64 * MIB


def _trainer(servers: list[Container]) -> Container:
    """A trainer that may read from any, the first one to begin with."""
    reader = Path(__file__).with_name("reader.py")
    addresses = [server.inspect()["NetworkSettings"]["IPAddress"] for server in servers]
    targets = [f"{address}:50051" for address in addresses]
    words = ["--read-only", f"--volume={reader}:/reader.py:ro", TRAINER_IMAGE, "python"]
    words += ["/reader.py", "--numpy", "0.01", *targets]
    return Container(docker("run", "--detach", *words))


def _steps(trainer: Container) -> int:
    return len(trainer.log().splitlines())


def _table(members: list[dict[str, int]]) -> str:
    kinds = {
        name: " + ".join(f"{member[name] / MIB:.0f}" for member in members)
        for name in ("files", "anonymous")
    }
    return "; ".join(f"{name} {figures} MiB" for name, figures in kinds.items())
