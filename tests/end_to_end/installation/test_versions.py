"""What was released, and what is in the tree: a server of the one with a client of the other."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support.installing import build, install, run, serving

CLIENT = """
import json, sys
from client import RemoteBatches
with RemoteBatches(sys.argv[1], 3, 64, order=sys.argv[2], seed=7, num_batches=4) as feed:
    print(json.dumps([(x.tolist(), y.tolist()) for x, y in feed]))
"""


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed wheel of the last release; as long as there is none, of the commit before."""
    folder = tmp_path_factory.mktemp("released")
    if (
        not (ROOT / ".git").exists()
        or not git("rev-list", "--max-count=2", "HEAD").count(b"\n") > 1
    ):
        pytest.skip("needs the history of the repository: git fetch --unshallow")
    version = git("tag", "--list", "v*", "--sort=-version:refname").split()
    archive = git("archive", version[0].decode() if version else "HEAD^")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(folder / "source", filter="data")
    return install(build(folder / "source", folder), folder / "packages")


@pytest.mark.parametrize(
    ("server", "order"),
    [
        ("released", "shuffled"),
        ("tree", "shuffled"),
        *(
            pytest.param(server, order, marks=pytest.mark.proof)
            for server in ("released", "tree")
            for order in ("random", "sequential")
        ),
    ],
)
def test_a_released_client_and_this_server_agree_and_the_other_way_round(
    server: str, order: str, released: Path, tmp_path: Path
) -> None:
    """Servers and trainers are not upgraded on the same day."""
    np.random.default_rng(0).integers(0, 50257, 5000).astype("<u2").tofile(tmp_path / "train.bin")
    serves, asks = (released, ROOT) if server == "released" else (ROOT, released)

    with serving(
        serves, tmp_path, sys.executable, "-m", "server", "--data", "train.bin"
    ) as address:
        mixed = run(asks, tmp_path, sys.executable, "-c", CLIENT, address, order)
        same = run(serves, tmp_path, sys.executable, "-c", CLIENT, address, order)

    assert mixed == same
