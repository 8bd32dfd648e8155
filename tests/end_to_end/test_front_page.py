"""The code of the README, of the quickstart, and of the first task of each page of docs/, run as it
stands there: only addresses, the device and an endless loop are those of a test.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import ROOT, Serve, WriteTokens, serving
from tests.support.commands import ENVIRONMENT
from tests.support.ports import free_port
from tokenfeed.commands import COMMANDS
from tokenfeed.tools import bench as _bench  # noqa: F401  (binds its stderr before any capture)

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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Other tests have the other cores, and torch's threads would spin while they wait for one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_shell(script: str, folder: Path) -> None:
    """Run a script in a folder, which is the working directory. Our commands, and scripts beside
    the corpus, run in this process, which has imported torch; bash runs the rest.
    """
    other = ""
    for line in script.replace("\\\n", " ").splitlines():
        if not line.startswith(("tokenfeed ", "python quickstart-data/")):
            other += f"{line}\n"
            continue
        _run_bash(other, folder)
        other = ""
        if line.startswith("tokenfeed "):
            _run_command(line, folder)
        else:
            runpy.run_path(line.partition(" ")[2])
    _run_bash(other, folder)


def _run_bash(script: str, folder: Path) -> None:
    if not script.strip():
        return
    python = f'python() {{ "{sys.executable}" "$@"; }}'
    done = subprocess.run(
        ["bash", "-ec", f"{python}\n{script}"],
        cwd=folder,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)


def _run_command(line: str, folder: Path) -> None:
    typed, _, target = line.partition(" > ")
    name, *words = shlex.split(typed)[1:]
    command = COMMANDS[name]
    module = importlib.import_module(f"tokenfeed.{command.module}")
    with ExitStack() as exits:
        if target:
            printed = exits.enter_context((folder / target.strip()).open("w"))
            exits.enter_context(redirect_stdout(printed))
        assert module.main([*command.arguments, *words]) == 0, line


def without(step: str, *beginnings: str) -> str:
    """Return the lines of a step, but those that begin so."""
    return "\n".join(line for line in step.splitlines() if not line.startswith(beginnings))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_quickstart_runs_step_by_step(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Who follows it must not have to think."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    install, inspect, look, train, own_text = STEPS
    environment = ("python3 -m venv", ". .venv", "pip install")

    def printed_by(step: str) -> str:
        capfd.readouterr()
        run_shell(step, tmp_path)
        return capfd.readouterr().out

    printed = printed_by(f"{without(install, *environment).strip()} --seconds 0.5")
    assert re.search(r"made quickstart-data/train.bin: [\d,]+ tokens from \d+ pages", printed)
    assert re.search(r"tokenfeed \S+ listening on 127.0.0.1:\d+", printed)
    assert re.search(r"\d+ million tokens/s", printed)
    x, y = re.search(r"x\[0\]: \[(.*)\] ...\ny\[0\]: \[(.*)\] ...", printed).groups()
    assert x.split(", ")[1:] == y.split(", ")[:-1]

    assert "uint16" in printed_by(without(inspect, "tokenfeed serve"))
    data = re.search(r"tokenfeed serve --data (\S+) --port 50051", inspect)[1]
    address = serve("--data", tmp_path / data).address

    found = printed_by(without(look, *environment).replace("localhost:50051", address))
    assert "sample 0:" in found

    trained = printed_by(train.replace("localhost:50051", address))
    assert re.findall(r"begins at sample (\d+)", trained) == ["0", "160"]
    assert re.findall(r"ends at sample (\d+)", trained) == ["160", "320"]

    run_shell(without(own_text, "tokenfeed serve"), tmp_path)
    corpus = re.search(r"tokenfeed serve --data (\S+) --port 50052", own_text)[1]
    own = serve("--data", tmp_path / corpus).address
    assert "sample 0:" in printed_by(f"tokenfeed show {own} --tokenizer bytes")


PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
NOT_RUN = {
    "start": "test_the_quickstart_runs_step_by_step runs all of it",
    "compatibility": "it has no task; tests/recordings compares it with the code",
    "ingest": "its first task makes the corpus of the other pages, in `workshop`",
    "comparison": "it has no task; its tables name the benchmarks that made them",
    "faults": "it injects faults for a minute; the tests of tests/faults run it",
    "finetuning": "it needs transformers and a model; tests/adapters runs examples/sft.py",
    "frameworks": "it needs the frameworks; tests/adapters runs them",
    "growing-context": "a group of blocks is long; examples/growing_context.py runs it",
    "kubernetes": "it needs a cluster; tests/deploy builds and checks its manifests",
    "object-stores": "it needs a bucket; corpora/test_object_stores.py runs a store",
    "protocol": "it is the contract; test_protocol_examples.py computes its examples",
}
"""Why the first task of a page is not run by the test of first tasks."""
PRINTED = {
    "documents-and-packing": r"torch.Size\(\[4, 512\]\) [12]\d{3}\n(.|\n)*sample 1:.* \| ",
    "explain": r"document [\d,]+ page-\d+(.|\n)*seen in [1-9]\d* row",
    "formats": r"uint16(.|\n)*sample 0: ",
    "local-files": r"uint16(.|\n)*million tokens/s",
    "mixtures": r"stage 1(.|\n)*web \d+(.|\n)*code \d+(.|\n)*math \d+",
    "observability": r"DATASET(.|\n)*tokenfeed_start_time_seconds \d",
    "operate": r"verdict: healthy(.|\n)*digest",
    "pretrain": r"samples=3200",
    "redact": r"^64$",
    "resume-and-ranks": r"'end_sample': 336",
    "secure": r"torch.Size\(\[32, 512\]\)",
    "serve": r"fingerprint(.|\n)*sample 0:(.|\n)*SERVING",
}
"""What a first task prints, at least."""


def first_task(page: str) -> list[tuple[str, str]]:
    """The blocks of a page's first section, in order: language and code."""
    section = re.split(r"^## ", PAGES[page], flags=re.MULTILINE)[1]
    return re.findall(r"^```(sh|python)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


class Workshop:
    """The folder and the servers in which first tasks are run. A server of one command is started
    once: the pages share it.
    """

    def __init__(self, folder: Path, serve: Serve) -> None:
        self.folder = folder
        self._serve = serve
        self._addresses: dict[str, dict[str, str]] = {}

    def run(self, page: str) -> None:
        """Run the first task of a page in the folder, which is the working directory."""
        addresses: dict[str, str] = {}
        for language, code in first_task(page):
            if language == "python":
                script = self.folder / "block.py"
                script.write_text(_with(addresses, code))
                runpy.run_path(str(script))
                continue
            before, server, behind = _around_server(code)
            run_shell(_with(addresses, before), self.folder)
            if server:
                addresses |= self._addresses_of(server)
            run_shell(_with(addresses, behind), self.folder)

    def _addresses_of(self, command: str) -> dict[str, str]:
        """Start the server of a command, and return its addresses by those of the page."""
        if command not in self._addresses:
            metrics = f"localhost:{free_port()}"
            words = command.replace("9464", metrics.partition(":")[2]).split()[2:]
            at = words.index("--port")
            paths = [
                self.folder / word if (self.folder / word).exists() else word for word in words
            ]
            address = self._serve(*paths[:at], *paths[at + 2 :]).address
            self._addresses[command] = {"localhost:50051": address, "localhost:9464": metrics}
        return self._addresses[command]


def _with(addresses: dict[str, str], code: str) -> str:
    for name, address in addresses.items():
        code = code.replace(name, address)
    return code


def _around_server(code: str) -> tuple[str, str, str]:
    """Split a block into what comes before its server, the command of that, and the rest."""
    found = re.search(r"^tokenfeed serve .*$", code, re.MULTILINE)
    if found is None:
        return code, "", ""
    return code[: found.start()], found[0], code[found.end() :]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """A folder with a few token files and the corpus of docs/ingest.md, and servers of them."""
    folder = tmp_path_factory.mktemp("pages")
    for number, name in enumerate(("web", "code", "math")):
        tokens_of_documents(300_000, number).astype("<u2").tofile(folder / f"{name}.bin")
    with serving(folder) as serve:
        workshop = Workshop(folder, serve)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            workshop.run("ingest")
        yield workshop


@pytest.mark.parametrize("page", sorted(PAGES.keys() - NOT_RUN.keys()))
def test_the_first_task_of_a_page_runs(
    page: str,
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is what a reader pastes first, and what the rest of the page builds upon."""
    assert page in PRINTED, "say in PRINTED what its first task prints, or in NOT_RUN why not"
    monkeypatch.chdir(workshop.folder)

    workshop.run(page)

    assert re.search(PRINTED[page], capfd.readouterr().out, re.MULTILINE)


def test_a_page_that_is_not_run_exists() -> None:
    """A reason that names no page hides one that is new."""
    assert NOT_RUN.keys() <= PAGES.keys()
