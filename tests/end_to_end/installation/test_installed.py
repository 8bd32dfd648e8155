"""What is installed, in folders where others have a client.py and a server/ of their own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.server.ingest.corpus import make_tokenizer
from tests.support.installing import build, finished, install, run, serving
from tests.support.releases import unpack

NAMES = ("client", "server")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the sdist makes."""
    from hatchling.builders.sdist import SdistBuilder

    folder = tmp_path_factory.mktemp("dist")
    sdist = next(iter(SdistBuilder(str(ROOT)).build(directory=str(folder))))
    with tarfile.open(sdist) as archive:
        unpack(archive, folder)
    return build(Path(sdist.removesuffix(".tar.gz")), folder)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with nothing but it."""
    return install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A trainer's folder, with modules of its own that are called as ours are."""
    (tmp_path / "server").mkdir()
    for path in ("client.py", "server/__init__.py", "server/ingest.py"):
        (tmp_path / path).write_text("raise RuntimeError('a foreign module was imported')\n")
    return tmp_path


def test_a_wheel_by_way_of_the_sdist_is_that_of_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """`client` and `server` are generic names: what is installed as them must never grow."""
    direct = build(ROOT, tmp_path)

    with zipfile.ZipFile(direct) as archive, zipfile.ZipFile(wheel) as other:
        names = sorted(archive.namelist())
        assert names == sorted(other.namelist())
        for name in names:
            assert archive.read(name) == other.read(name), name
    ours = [name for name in names if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in ours} == {*NAMES, "tokenfeed"}
    for package in NAMES:
        door = [f"{package}/{name}" for name in ("__init__.py", "__main__.py", "py.typed")]
        assert [name for name in ours if name.startswith(f"{package}/")] == door
        modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert {f"tokenfeed/{name}" for name in modules} <= set(ours)
    assert {"tokenfeed/py.typed", "tokenfeed/v1/tokenfeed_pb2_grpc.py"} <= set(ours)


def test_an_index_would_take_what_is_built(wheel: Path) -> None:
    """Its description is the README, which has to render there."""
    sdist = next(wheel.parent.glob("*.tar.gz"))
    command = [sys.executable, "-m", "twine", "check", "--strict", wheel, sdist]

    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_a_whole_run_where_client_and_server_are_other_people_s_modules(
    installed: Path, hostile: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Text becomes tokens, is served, trained on, and gone on with from a state."""
    command = installed / "bin" / "tokenfeed"
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")
    text = " ".join(f"word{number % 97}" for number in range(20_000))
    (hostile / "pages.txt").write_text(text)
    (hostile / "train.py").write_text(
        "import json, sys\n"
        "from tokenfeed import RemoteBatches\n"
        "address, path = sys.argv[1:]\n"
        "with RemoteBatches(address, 2, 64, order='shuffled', num_batches=6) as feed:\n"
        "    if path != '-':\n"
        "        feed.load_state_dict(json.load(open(path)))\n"
        "    for index, (x, y) in enumerate(feed):\n"
        "        print(x.tolist(), y.tolist())\n"
        "        if path == '-' and index == 2:\n"
        "            json.dump(feed.state_dict(), open('state.json', 'w'))\n"
    )

    run(
        installed,
        hostile,
        *(sys.executable, command, "ingest", "pages.txt", "--out", "corpus"),
        *("--tokenizer", tokenizer, "--workers", "2"),
    )
    with serving(installed, hostile, sys.executable, command, "serve", "--data", "corpus") as where:
        described = run(installed, hostile, sys.executable, "-m", "tokenfeed", "describe", where)
        whole = run(installed, hostile, sys.executable, "train.py", where, "-").splitlines()
        rest = run(installed, hostile, sys.executable, "train.py", where, "state.json").splitlines()

    assert "contract: 3" in described
    assert len(whole) == 6
    assert rest[:3] == whole[3:]


def test_a_shell_completes_commands_and_their_options(installed: Path, hostile: Path) -> None:
    """As bash asks for it: by the words of the line, of which the last one is not complete."""
    command = (sys.executable, installed / "bin" / "tokenfeed")
    (hostile / "completion.bash").write_text(
        run(installed, hostile, *command, "completion", "bash")
    )

    for words, completed in (
        ("tokenfeed in", ["ingest", "inspect"]),
        ("tokenfeed serve --warm", ["--warm-up-bytes"]),
        ("tokenfeed show --tok", ["--tokenizer"]),
        ("tokenfeed completion ba", ["bash"]),
        ("tokenfeed inspect compl", ["completion.bash"]),
        ("tokenfeed plan --global", ["--global-batch-size"]),
        ("tokenfeed plan compl", ["completion.bash"]),
        ("tokenfeed plan --state compl", ["completion.bash"]),
        ("tokenfeed explain --wor", ["--world-size"]),
        ("tokenfeed manifest --output compl", ["completion.bash"]),
        ("tokenfeed serve --data compl", ["completion.bash"]),
    ):
        asked = (
            "source completion.bash; read -r _ _ _ _ complete _ < <(complete -p tokenfeed); "
            f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
            '"$complete"; echo "${COMPREPLY[@]}"'
        )
        assert run(installed, hostile, "bash", "-c", asked).split() == completed

    found = finished(installed, hostile, "sh", "-c", '"$@" completion bash | head -1', "", *command)
    assert (len(found.stdout.splitlines()), found.stderr) == (1, "")


def test_text_is_ingested_by_what_is_installed(installed: Path, hostile: Path) -> None:
    """The server starts a process for it, and the folder has other people's modules."""
    (hostile / "pages.txt").write_text("word " * 5_000)
    for name in ("queue.py", "socket.py", "tokenfeed.py"):
        (hostile / name).write_text("raise RuntimeError('a foreign module was imported')\n")
    words = ("serve", "--data", "pages.txt", "--tokenizer", "bytes", "--cache-dir", "cache")
    command = (sys.executable, installed / "bin" / "tokenfeed")

    with serving(installed, hostile, *command, *words) as where:
        described = run(installed, hostile, *command, "describe", where)

    assert "tokens: 25,000 uint16" in described


@pytest.mark.parametrize(
    ("command", "missing"), [("serve", "grpc_health"), ("probe", "grpc_health")]
)
def test_help_needs_no_extra(command: str, missing: str, installed: Path, tmp_path: Path) -> None:
    """A user reads it to find out what to install."""
    words = (sys.executable, "-m", "tokenfeed", command, "--help")

    assert (
        f"usage: tokenfeed {command}"
        in finished(installed, tmp_path, *words, missing=missing).stdout
    )


@pytest.mark.parametrize(
    ("missing", "extra", "command"),
    [
        ("grpc_health", "server", "python -m server --data train.bin"),
        ("grpc_health", "server", "python -m tokenfeed.tools.probe localhost:1"),
        ("grpc_reflection", "server", "tokenfeed serve --data train.bin"),
        ("torch", "torch", "tokenfeed bench localhost:1"),
        ("pyarrow", "ingest", "tokenfeed ingest . --out out --tokenizer bytes"),
        ("jinja2", "metrics", "tokenfeed serve --data t.bin --metrics-port 0 --status"),
        (
            "jinja2",
            "chat",
            "tokenfeed ingest . --out out --tokenizer bytes --messages-column m "
            "--chat-template /dev/null",
        ),
        ("tokenizers", "tokenizer", "tokenfeed show localhost:1 --tokenizer tokenizer.json"),
        ("shtab", "completion", "tokenfeed completion bash"),
        ("pyarrow", "parquet", "tokenfeed manifest x:1 --state s --format parquet --output o"),
    ],
)
def test_a_command_says_what_to_install_for_it(
    missing: str, extra: str, command: str, installed: Path, tmp_path: Path
) -> None:
    """A machine that trains has no need of what a server does."""
    words = command.replace("tokenfeed ", "python -m tokenfeed ").split()[1:]

    found = finished(installed, tmp_path, sys.executable, *words, missing=missing)

    assert found.returncode == 1
    cure = (
        rf"{missing} is missing: pip install 'tokenfeed\[{extra}\]' \(in a clone, '.\[{extra}\]'\)"
    )
    assert re.fullmatch(rf"error: \S+: {cure}\n", found.stderr)
    assert f'\n{extra} = ["' in (ROOT / "pyproject.toml").read_text()


def test_a_wrong_option_is_answered_by_the_usage_of_that_command(
    installed: Path, tmp_path: Path
) -> None:
    """Not by that of three."""
    for command in ("tokenfeed show", "client show"):
        words = (sys.executable, "-m", *command.split(), "localhost:1", "--wrong")
        found = finished(installed, tmp_path, *words)

        assert found.returncode == 2
        assert re.match(r"usage: (tokenfeed|python -m client) show \[-h\]", found.stderr)
        assert found.stderr.endswith(" show: error: unrecognized arguments: --wrong\n")


@pytest.mark.parametrize("packages", ["wheel", "editable", "checkout"])
def test_the_two_lines_of_the_readme_in_an_empty_folder(
    packages: str, installed: Path, tmp_path: Path
) -> None:
    """By their short names, however it was installed."""
    where = {"wheel": installed, "editable": None, "checkout": ROOT}[packages]
    np.arange(5000, dtype="<u2").tofile(tmp_path / "train.bin")
    lines = (
        "import sys\n"
        "from client import RemoteBatches\n"
        "for x, y in RemoteBatches(sys.argv[1], 2, 64, num_batches=1):\n"
        "    print(tuple(x.shape), bool((x[:, 1:] == y[:, :-1]).all()))\n"
    )

    command = (sys.executable, "-m", "server", "--data", "train.bin")
    with serving(where, tmp_path, *command) as address:
        printed = run(where, tmp_path, sys.executable, "-c", lines, address)

    assert printed == "(2, 64) True\n"


@pytest.mark.parametrize("packages", ["wheel", "checkout"])
def test_every_module_is_there_once_by_its_long_name(
    packages: str, installed: Path, tmp_path: Path
) -> None:
    """Of two classes of one name, `except` catches only one."""
    code = (
        "import client, importlib, server, sys, tokenfeed\n"
        "for module in ('client.source', 'client.source.row_stream', 'server.datasets'):\n"
        "    importlib.import_module(f'tokenfeed.{module}')\n"
        "    try:\n"
        "        importlib.import_module(module)\n"
        "    except ModuleNotFoundError:\n"
        "        continue\n"
        "    sys.exit(f'{module} was imported')\n"
        "assert client.RemoteBatches is tokenfeed.RemoteBatches\n"
        "assert client.RemoteBatches.__module__ == 'tokenfeed.client.batches.remote'\n"
        "for name in client.__all__:\n"
        "    assert getattr(client, name) is getattr(tokenfeed.client, name), name\n"
        "short = {name for name in sys.modules if name.partition('.')[0] in ('client', 'server')}\n"
        "assert short == {'client', 'server'}, short\n"
    )

    where = installed if packages == "wheel" else ROOT
    run(where, tmp_path, sys.executable, "-W", "error", "-c", code)


@pytest.mark.parametrize("packages", ["wheel", "checkout"])
def test_threads_that_import_at_the_same_moment_get_the_same_names(
    packages: str, installed: Path, tmp_path: Path
) -> None:
    """A pool of threads begins with the same two lines in each of them."""
    code = (
        "import importlib, threading\n"
        "found, together = [], threading.Barrier(20)\n"
        "def work(number):\n"
        "    together.wait()\n"
        "    name = 'client' if number % 2 else 'tokenfeed.client'\n"
        "    found.append(importlib.import_module(name).Timeouts)\n"
        "threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]\n"
        "for thread in threads:\n"
        "    thread.start()\n"
        "for thread in threads:\n"
        "    thread.join(20)\n"
        "assert len(found) == 20 and len(set(found)) == 1, found\n"
    )

    where = installed if packages == "wheel" else ROOT
    for _ in range(5):
        run(where, tmp_path, sys.executable, "-W", "error", "-c", code)


def test_a_thread_that_imports_the_short_name_waits_for_the_long_one(tmp_path: Path) -> None:
    """Python locks a module before its package, so each could wait for what the other has locked.

    The second thread begins when the first has locked tokenfeed.client and not yet entered it into
    sys.modules.
    """
    code = (
        "import importlib, threading\n"
        "from importlib.machinery import SourceFileLoader\n"
        "found = []\n"
        "def work(name):\n"
        "    found.append(importlib.import_module(name).Timeouts)\n"
        "def create_module(loader, spec):\n"
        "    if spec.name == 'tokenfeed.client':\n"
        "        second.start()\n"
        "        second.join(0.5)\n"
        "SourceFileLoader.create_module = create_module\n"
        "names = ('tokenfeed.client', 'client')\n"
        "first, second = (threading.Thread(target=work, args=(name,)) for name in names)\n"
        "first.start()\n"
        "first.join(20)\n"
        "second.join(20)\n"
        "assert len(found) == 2 and len(set(found)) == 1, found\n"
    )

    run(ROOT, tmp_path, sys.executable, "-W", "error", "-c", code)


def test_a_foreign_module_of_a_short_name_stays_what_it_is(installed: Path, hostile: Path) -> None:
    """It is the trainer's own, and ours is still there by the long name."""
    (hostile / "client.py").write_text("MINE = 1\n")
    code = "import client, tokenfeed.client; print(client.MINE, tokenfeed.client.Timeouts.__name__)"

    assert run(installed, hostile, sys.executable, "-c", code) == "1 Timeouts\n"


def test_a_stub_in_the_place_of_the_client_is_left_there(installed: Path, hostile: Path) -> None:
    """Test suites put stubs where modules were."""
    code = (
        "import sys, types, tokenfeed\n"
        "stub = sys.modules['tokenfeed.client'] = types.ModuleType('stub')\n"
        "stub.RemoteBatches = 5\n"
        "print(tokenfeed.RemoteBatches)\n"
    )

    assert run(installed, hostile, sys.executable, "-c", code) == "5\n"


def test_links_that_were_written_as_text_files_are_named(tmp_path: Path) -> None:
    """So does git where core.symlinks is false, and so does Python's zipfile."""
    checkout = tmp_path / "checkout"
    for name in ("client", "server", "tokenfeed"):
        shutil.copytree(
            ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("*.pyc")
        )
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in NAMES:
        (checkout / "tokenfeed" / name).unlink()
        (checkout / "tokenfeed" / name).write_text(f"../{name}")

    problem = "tokenfeed/client has to be a symbolic link to ../client"
    for target in ("sdist", "wheel"):
        command = ("-m", "hatchling", "build", "--target", target)
        built = finished(None, checkout, sys.executable, *command)
        assert built.returncode == 1
        assert built.stderr.startswith(f"error: {problem}")
    imported = finished(checkout, tmp_path, sys.executable, "-c", "import client")
    assert re.search(f"^ImportError: .*{problem}", imported.stderr, re.MULTILINE)
    called = finished(checkout, tmp_path, sys.executable, "-m", "tokenfeed", "describe", "x:1")
    assert re.fullmatch(f"error: describe: .*{problem}.*\n", called.stderr)


def test_help_needs_no_torch(installed: Path, hostile: Path) -> None:
    """It touches every name that dir() knows."""
    for module in ("tokenfeed", "tokenfeed.client"):
        words = (sys.executable, "-m", "pydoc", module)
        shown = finished(installed, hostile, *words, missing="torch")
        assert "class Timeouts" in shown.stdout, shown.stderr


def test_nothing_is_imported_before_it_is_needed(installed: Path, hostile: Path) -> None:
    """A launcher asks for the version; a machine without torch describes a server."""
    for name, needless in (
        ("__version__", {"numpy", "grpc", "torch"}),
        ("Timeouts", {"grpc", "torch"}),
    ):
        code = f"import sys, tokenfeed; tokenfeed.{name}; print({needless} & set(sys.modules))"
        assert run(installed, hostile, sys.executable, "-c", code) == "set()\n"
    command = (sys.executable, "-m", "tokenfeed", "describe", "--help")

    assert "TARGET" in finished(installed, hostile, *command, missing="torch").stdout


def test_one_command_has_all_of_them(installed: Path, hostile: Path) -> None:
    """And its help names each."""
    from tokenfeed.commands import COMMANDS

    command = (sys.executable, installed / "bin" / "tokenfeed")
    overview = run(installed, hostile, *command, "--help")

    for name in COMMANDS:
        assert re.search(rf"^ +{name}\s+\S", overview, re.MULTILINE)
        usage = run(installed, hostile, *command, name, "--help").split("\n", 1)[0]
        assert usage.startswith(f"usage: tokenfeed {name} ")


def test_a_user_s_type_checker_finds_the_short_names_too(installed: Path, tmp_path: Path) -> None:
    """What `client` has is imported from tokenfeed.client."""
    (tmp_path / "train.py").write_text(
        "from client import RemoteBatches\n"
        "from tokenfeed import RemoteBatches as Same\n\n"
        'feed: Same = RemoteBatches("host:50051", 32, 2048)\n'
        "reveal_type(feed)\n"
        "from client import RemoteBatchs\n"
    )
    config = tmp_path / "mypy.ini"
    # Neither all of torch nor all of ours is looked through for that.
    packages = ("torch", "numpy", "google", "grpc", "tokenfeed.server", "tokenfeed.sampling")
    packages += ("tokenfeed.stream", "tokenfeed.wire", "tokenfeed.tools", "tokenfeed.v1")
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in packages)
    config.write_text(f"[mypy]\nstrict = True\nfollow_imports_for_stubs = True\n{skipped}")
    command = ("-m", "mypy", "--config-file", config, "train.py")

    printed = finished(installed, tmp_path, sys.executable, *command, seconds=250).stdout

    assert 'Revealed type is "tokenfeed.client.batches.remote.RemoteBatches"' in printed
    assert 'has no attribute "RemoteBatchs"' in printed
    assert "Found 1 error in 1 file" in printed
