"""A Docker engine, as its command line has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

# What makes an engine wait: pulling and building.
BUILD_SECONDS = 1500
# An engine of .ci/engine answers when it has what images are made from.
ENGINE_SECONDS = float(os.environ.get("TOKENFEED_TEST_ENGINE_SECONDS", "60"))


def missing() -> str | None:
    """What lacks for these tests; None if nothing does."""
    if shutil.which("docker") is None:
        return "there is no docker"
    try:
        subprocess.run(["docker", "info"], capture_output=True, timeout=ENGINE_SECONDS, check=True)
    except subprocess.SubprocessError:
        return "no Docker engine answers"
    try:
        compose_command()
    except FileNotFoundError:
        return "there is neither docker-compose nor docker compose"
    return None


def compose_command() -> list[str]:
    """Version 1 where it is installed, else version 2.  Raises: FileNotFoundError."""
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    if subprocess.run([*plugin, "version"], capture_output=True, timeout=60).returncode != 0:
        raise FileNotFoundError
    return plugin


def docker(*words: str, seconds: float = 60) -> str:
    """Run a command of docker's and return what it prints, stripped."""
    answer = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=seconds)
    assert answer.returncode == 0, f"docker {' '.join(words)}: {answer.stderr}"
    return answer.stdout.strip()


def docker_bytes(*words: str) -> bytes:
    """As `docker`, for what is no text."""
    return subprocess.run(["docker", *words], capture_output=True, timeout=60, check=True).stdout


class Container:
    """One container, by its name or id."""

    def __init__(self, name: str) -> None:
        self.name = name

    def inspect(self) -> dict[str, Any]:
        """What the engine knows of it."""
        found: dict[str, Any] = json.loads(docker("inspect", self.name))[0]
        return found

    def state(self) -> dict[str, Any]:
        """Of which: Status, Paused, ExitCode, OOMKilled, StartedAt, Health."""
        return dict(self.inspect()["State"])

    def health(self) -> str:
        """starting, healthy or unhealthy."""
        return str(self.state()["Health"]["Status"])

    def execute(self, *command: str) -> str:
        """Run a command in it, and return what it prints."""
        return docker("exec", self.name, *command)

    def log(self) -> str:
        """What it has printed so far, on either stream."""
        command = ["docker", "logs", self.name]
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        ).stdout

    def sent_bytes(self) -> int:
        """Bytes that it has sent over its network."""
        lines = self.execute("cat", "/proc/net/dev").splitlines()[2:]
        figures = dict(line.strip().split(":") for line in lines)
        return sum(int(text.split()[8]) for name, text in figures.items() if name != "lo")

    def memory(self) -> dict[str, int]:
        """What its cgroup accounts for, in bytes: cached files, and anonymous memory."""
        version_2 = "if [ -e memory.stat ]; then cat memory.stat; else cat memory/memory.stat; fi"
        lines = self.execute("sh", "-c", f"cd /sys/fs/cgroup && {version_2}").splitlines()
        figures = {name: int(number) for name, number in map(str.split, lines)}
        if "total_cache" in figures:
            return {"files": figures["total_cache"], "anonymous": figures["total_rss"]}
        return {"files": figures["file"], "anonymous": figures["anon"]}

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", self.name)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> float:
    """Wait until something holds and return how long it took, in seconds; fail after so many."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - began
