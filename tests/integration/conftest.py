"""Containers on a real engine; skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import NOTE, ROOT
from tests.integration.engine import BUILD_SECONDS, Container, docker, missing
from tests.integration.pods import Cluster, write_corpus
from tests.integration.stack import SERVER_IMAGE, Offline, Reading, Stack

Note = Callable[[str], None]
RunServer = Callable[..., Container]


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    """Have a line said at the end of the run: what was measured, and is no test."""
    return partial(record_property, NOTE)


@pytest.fixture(scope="session")
def images() -> None:
    """The images, built as compose builds them."""
    lacking = missing()
    if lacking is not None:
        pytest.skip(f"needs a Docker engine and compose: {lacking}")
    added = [f"docker-compose.{name}.yml" for name in ("tls", "object-store")]
    Stack("build", "docker-compose.yml", *added).build(
        "server-a", "trainer", "certificates", "store"
    )


@pytest.fixture(scope="session")
def ingest_image(images: None) -> Iterator[str]:
    """The image that makes shards of text, which compose does not build."""
    words = ["build", "--quiet", f"--file={ROOT}/deploy/Dockerfile", "--target=ingest", str(ROOT)]
    image = docker(*words, seconds=BUILD_SECONDS)
    yield image
    docker("rmi", image)


@pytest.fixture(scope="session")
def replicas(images: None) -> Iterator[Stack]:
    """The two servers of the stack, and nobody who reads from them."""
    made = Stack("replicas", "docker-compose.yml")
    try:
        made.up("server-a", "server-b")
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def offline(replicas: Stack, tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """What its trainers have to get."""
    path = tmp_path_factory.mktemp("offline") / "train.bin"
    path.write_bytes(replicas.read_data("/data/train.bin"))
    return Offline(path)


@pytest.fixture
def reading(replicas: Stack) -> Iterator[Reading]:
    """A trainer in a container of its own that has got its first batches; ended after the test."""
    replicas.wait_until_healthy()
    started = replicas.reading("--numpy")
    try:
        started.wait_for(20)
        yield started
    finally:
        started.close()


@pytest.fixture(scope="session")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """What jobs have to get that read from pods."""
    volume = tmp_path_factory.mktemp("volume")
    return Offline(write_corpus(volume), "shuffled-1")


@pytest.fixture
def cluster(images: None, shuffled: Offline, tmp_path: Path) -> Iterator[Cluster]:
    """Without servers; ended after the test."""
    made = Cluster(tmp_path, shuffled)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Readable for everybody, as what is mounted into a container has to be."""
    for part in (tmp_path, *tmp_path.parents[:2]):
        part.chmod(0o755)
    np.arange(1, 20_000).astype("<u2").tofile(tmp_path / "train.bin")
    return tmp_path


@pytest.fixture
def run_server(images: None) -> Iterator[RunServer]:
    """Run the server's image as a user would, over a folder, and read-only; removed after the
    test.
    """
    with ExitStack() as opened:

        def start(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> Container:
            limits = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
            words = [*limits, f"--volume={folder}:/data:ro", *options, SERVER_IMAGE, *arguments]
            container = Container(docker("run", "--detach", *words))
            opened.callback(container.remove)
            return container

        yield start
