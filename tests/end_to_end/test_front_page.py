"""The code of the README and of the quickstart, run as it stands there: only addresses, the device
and an endless loop are those of a test.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import ROOT, Serve, WriteTokens

README = (ROOT / "README.md").read_text()
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
QUICKSTART = (
    (ROOT / "docs" / "start.md").read_text().partition("## Quickstart\n")[2].partition("\n## ")[0]
)
STEPS = re.findall(r"```sh\n(.*?)```", QUICKSTART, re.DOTALL)
DOCUMENT_END = 0


def tokens_of_documents(count: int, seed: int) -> np.ndarray:
    """Random tokens, with an end of a document at every 50th or so."""
    return np.random.default_rng(seed).integers(DOCUMENT_END, 50, count)


@pytest.fixture
def servers(serve: Serve, write_tokens: WriteTokens) -> dict[str, str]:
    """The server of the first command, a replica of it, and one with the datasets of a mixture."""
    command = re.search(r"python -m server (--data \S+) --port 50051", README)
    assert command is not None
    words = shlex.split(command[1])
    path = write_tokens(tokens_of_documents(400_000, 0), name=words[1])
    datasets = [
        word
        for number, name in enumerate(("web", "code", "math"), 1)
        for word in ("--data", write_tokens(tokens_of_documents(200_000, number), f"{name}.bin"))
    ]
    ends = ["--document-end-token", str(DOCUMENT_END)]
    one, other = (serve("--data", path, *ends).address for _ in range(2))
    mixed = serve(*datasets).address
    return {"host:50051": one, "host-a:50051": one, "host-b:50051": other, "mixture": mixed}


def run_block(block: str, servers: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run a block with the addresses of the test, and return its names."""
    kind = "mixture" if "mixture=" in block else "host:50051"
    code = block.replace('"host:50051"', repr(servers[kind]))
    for name in ("host-a:50051", "host-b:50051"):
        code = code.replace(f'"{name}"', repr(servers[name]))
    code = code.replace('"cuda:0"', '"cpu"').replace("    ...", "    break")
    if not code.startswith("from"):
        code = f"from tokenfeed import RemoteBatches\n{code}"
    script = folder / "block.py"
    script.write_text(code)
    return runpy.run_path(str(script))


def test_the_code_of_the_readme_runs(servers: dict[str, str], tmp_path: Path) -> None:
    """It is the first thing that anybody tries."""
    loop, pretraining, tuning, mixture = (
        run_block(block, servers, tmp_path) for block in PYTHON_BLOCKS
    )
    try:
        assert loop["x"].shape == (32, 2048)
        assert torch.equal(loop["x"][:, 1:], loop["y"][:, :-1])
        # The state is that behind one batch.
        assert pretraining["feed"].position.samples == 32
        assert tuning["kwargs"]["shift_labels"].shape == (8, 4096)
        assert (tuning["kwargs"]["position_ids"] == 0).sum() > 8
        batches = mixture["feed"].batches()
        sources = torch.cat([next(batches).source for _ in range(10)])
        # A block has 100 rows, and the change begins with the second one.
        assert torch.bincount(sources[:100]).tolist() == [70, 20, 10]
        assert torch.bincount(sources[100:300]).tolist() == [100, 60, 40]
    finally:
        for names in (pretraining, tuning, mixture):
            names["feed"].close()


def shell(script: str, folder: Path) -> str:
    """Run a script in a folder where the package is installed, and return what it prints."""
    tokenfeed = f'tokenfeed() {{ "{sys.executable}" -m tokenfeed "$@"; }}'
    python = f'python() {{ "{sys.executable}" "$@"; }}'
    done = subprocess.run(
        ["bash", "-ec", f"{tokenfeed}\n{python}\n{script}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def without(step: str, *beginnings: str) -> str:
    """Return the lines of a step, but those that begin so."""
    return "\n".join(line for line in step.splitlines() if not line.startswith(beginnings))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_quickstart_runs_step_by_step(serve: Serve, tmp_path: Path) -> None:
    """Who follows it must not have to think."""
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    install, inspect, look, train, own_text = STEPS
    environment = ("python3 -m venv", ". .venv", "pip install")

    printed = shell(f"{without(install, *environment).strip()} --seconds 0.5", tmp_path)
    assert re.search(r"made quickstart-data/train.bin: [\d,]+ tokens from \d+ pages", printed)
    assert re.search(r"tokenfeed \S+ listening on 127.0.0.1:\d+", printed)
    assert re.search(r"\d+ million tokens/s", printed)
    x, y = re.search(r"x\[0\]: \[(.*)\] ...\ny\[0\]: \[(.*)\] ...", printed).groups()
    assert x.split(", ")[1:] == y.split(", ")[:-1]

    assert "uint16" in shell(without(inspect, "tokenfeed serve"), tmp_path)
    data = re.search(r"tokenfeed serve --data (\S+) --port 50051", inspect)[1]
    address = serve("--data", tmp_path / data).address

    found = shell(without(look, *environment).replace("localhost:50051", address), tmp_path)
    assert "sample 0:" in found

    trained = shell(train.replace("localhost:50051", address), tmp_path)
    assert re.findall(r"begins at sample (\d+)", trained) == ["0", "160"]
    assert re.findall(r"ends at sample (\d+)", trained) == ["160", "320"]

    ingested = without(own_text, "tokenfeed serve")
    shell(ingested, tmp_path)
    corpus = re.search(r"tokenfeed serve --data (\S+) --port 50052", own_text)[1]
    own = serve("--data", tmp_path / corpus).address
    assert "sample 0:" in shell(f"tokenfeed show {own} --tokenizer bytes", tmp_path)
