"""A rolling upgrade of servers, then of trainers, under jobs of both versions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.conftest import Note
from tests.integration.engine import BUILD_SECONDS, docker
from tests.integration.pods import ARGUMENTS, RANKS, Cluster
from tests.integration.stack import SERVER_IMAGE, TRAINER_IMAGE
from tests.support.releases import extract, last_release

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

# On the packages of the tree's images, so that nothing differs but the code.
DOCKERFILE = """
FROM {image}
WORKDIR /old
ENV PYTHONPATH=/old
COPY code .
"""


class Images(NamedTuple):
    server: str
    trainer: str


@pytest.fixture(scope="module")
def old(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """Those of the last release."""
    commit = last_release()
    folder = tmp_path_factory.mktemp("old")
    server = build(folder / "server", SERVER_IMAGE, commit, "tokenfeed", "server")
    trainer = build(folder / "trainer", TRAINER_IMAGE, commit, "tokenfeed", "client")
    yield Images(server, trainer)
    docker("rmi", server, trainer)


def build(context: Path, image: str, commit: str, *folders: str) -> str:
    """An image of the tree with folders of a commit, by its id."""
    extract(commit, context / "code", *folders)
    (context / "Dockerfile").write_text(DOCKERFILE.format(image=image))
    return docker("build", "--quiet", str(context), seconds=BUILD_SECONDS)


def test_servers_and_then_trainers_are_upgraded_and_no_row_is_lost(
    cluster: Cluster, old: Images, note: Note
) -> None:
    """Servers are replaced without the pauses of a real update. Then each job goes on with the code
    of the other.
    """
    named = cluster.start(2, old.server)
    cluster.publish(*named)
    with ExitStack() as opened:
        images = [old.trainer, TRAINER_IMAGE]
        jobs = [opened.enter_context(cluster.reading(image=image)) for image in images]
        for job in jobs:
            job.wait_for(10 * RANKS)
        for leaving in named[:]:
            named += cluster.start(1)
            cluster.publish(*named)
            named.remove(leaving)
            cluster.publish(*named)
            leaving.terminate()
            assert leaving.state()["ExitCode"] == 0
            leaving.remove()
        for job in jobs:
            job.wait_for(25 * RANKS)
            assert job.reconnects() > 0
            job.finish("TERM")
            job.require_exact(cluster.offline)
            note(f"upgraded: longest gap {job.longest_gap():.2f} s, {job.reconnects()} reconnects")

        resumed = [
            opened.enter_context(cluster.reading(image=image, after=job))
            for job, image in zip(jobs, reversed(images), strict=True)
        ]
        for job in resumed:
            job.wait_for(10 * RANKS)
            job.require_exact(cluster.offline)


def test_a_server_refuses_the_arguments_of_a_later_one(images: None) -> None:
    """So image and arguments are changed together, and a rollback takes back both."""
    words = ["docker", "run", "--rm", SERVER_IMAGE, *ARGUMENTS, "--of-a-later-release=1"]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert answer.returncode == 2
    assert "unrecognized arguments: --of-a-later-release" in answer.stderr
