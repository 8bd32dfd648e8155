"""Installs packages, and runs commands without the checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def build(source: Path, folder: Path) -> Path:
    """Build the wheel of a source folder into another folder."""
    from hatchling.builders.wheel import WheelBuilder

    return Path(next(iter(WheelBuilder(str(source)).build(directory=str(folder)))))


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel, without its dependencies, into a folder; return the folder."""
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", folder]
    subprocess.run([sys.executable, *command, wheel], check=True, timeout=60)
    return folder


def run(packages: Path | None, folder: Path, *command: str | Path, seconds: float = 60) -> str:
    """Run a command with `finished`, require exit code 0, and return its stdout."""
    found = finished(packages, folder, *command, seconds=seconds)
    assert found.returncode == 0, found.stderr
    return found.stdout


def finished(
    packages: Path | None,
    folder: Path,
    *command: str | Path,
    missing: str = "",
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, until it exits.

    packages: additional installed packages.  missing: a package that cannot be imported.
    """
    env = environment(packages)
    if missing:
        # Python imports this module when it starts.
        (folder / "missing").mkdir(exist_ok=True)
        code = f"import sys; sys.modules[{missing!r}] = None\n"
        (folder / "missing" / "sitecustomize.py").write_text(code)
        env["PYTHONPATH"] = f"{folder / 'missing'}{os.pathsep}{env.get('PYTHONPATH', '')}"
    return subprocess.run(
        [*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, timeout=seconds
    )


def environment(packages: Path | None) -> dict[str, str]:
    """The environment of a user's shell, in which modules of the checkout are not found."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return found | ({} if packages is None else {"PYTHONPATH": str(packages)})


@contextmanager
def serving(
    packages: Path | None, folder: Path, *command: str | Path, port: int = 0
) -> Iterator[str]:
    """Run a server in a folder, and yield its address; SIGTERM ends it."""
    process = subprocess.Popen(
        [*map(str, command), "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        env=environment(packages),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "listening on" in line
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
