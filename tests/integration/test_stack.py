"""`docker-compose up` on a machine with nothing, and what may happen while a trainer reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.conftest import Note
from tests.integration.engine import Container, docker, wait_until
from tests.integration.stack import Offline, Reading, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]


STEP = re.compile(r"step (\d+): ([\d,]+) tokens, waited [\d.]+ s, reconnected \d+ times; (.+)")


def gap(reading: Reading) -> str:
    return f"longest gap {reading.longest_gap():.2f} s, {reading.reconnects()} reconnects"


def steps(container: Container) -> list[tuple[int, int, str]]:
    """What a trainer has said: step, tokens so far, and what it has got."""
    found = [match.groups() for match in STEP.finditer(container.log())]
    return [(int(step), int(tokens.replace(",", "")), seen) for step, tokens, seen in found]


def test_the_stack_makes_a_corpus_and_its_trainer_gets_batches(images: None, note: Note) -> None:
    """What somebody sees who knows nothing yet; and a second time, when there is a corpus."""
    made = Stack("plain", "docker-compose.yml")
    try:
        made.up()
        trainer, corpus = made.container("trainer"), made.container("corpus")
        wait_until(lambda: len(steps(trainer)) > 0, "a batch in the trainer's log")
        note(f"the first batch came {made.up_seconds():.1f} s after up")
        wait_until(lambda: len(steps(trainer)) > 2, "more of them")

        assert "made /data/train.bin" in corpus.log()
        assert [replica.health() for replica in made.replicas] == ["healthy"] * 2
        for step, tokens, seen in steps(trainer):
            assert tokens == (step + 1) * 32 * 1024
            assert seen[0] in "'\""
        docker("stop", trainer.name)
        assert trainer.state()["ExitCode"] == 0
        assert re.search(r"took [\d,]+ batches$", trainer.log())

        before = made.read_data("/data/train.bin")
        made.up("corpus")
        wait_until(lambda: corpus.state()["Status"] == "exited", "the end of the one-shot service")
        assert "/data/train.bin exists" in corpus.log()
        assert made.read_data("/data/train.bin") == before
    finally:
        made.down()


def test_the_stack_serves_a_folder_of_its_user(images: None, folder: Path) -> None:
    """With tokens alone in it, and nothing is written to it."""
    made = Stack("folder", "docker-compose.yml", data=folder)
    try:
        made.up()
        trainer = made.container("trainer")
        wait_until(lambda: len(steps(trainer)) > 1, "batches in the trainer's log")
        assert re.match(r"\[\d+, \d+, ", steps(trainer)[0][2])
    finally:
        made.down()

    assert [path.name for path in folder.iterdir()] == ["train.bin"]


def require_nothing_lost(reading: Reading, offline: Offline, reconnects: int) -> None:
    """The trainer went on, had to reconnect since then, and got every batch as it should be."""
    reading.wait_for(50)
    reading.require_exact(offline)
    assert reading.reconnects() > reconnects


def test_a_replica_that_is_killed_costs_no_batch(
    replicas: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    serving, before = replicas.serving(), reading.reconnects()
    began = time.monotonic()
    docker("kill", "--signal", "KILL", serving.name)

    try:
        state = serving.state()
        assert (state["Status"], state["ExitCode"]) == ("exited", 137)
        reading.wait_for(100)
        during = reading.batches_since(began)
    finally:
        docker("start", serving.name)
    require_nothing_lost(reading, offline, before)
    note(f"killed: exited, 137; {during} batches without it, {gap(reading)}")


def test_a_replica_that_is_paused_costs_no_batch(
    replicas: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    """Its connections stay open, and nothing comes."""
    serving, before = replicas.serving(), reading.reconnects()
    began = time.monotonic()
    docker("pause", serving.name)

    try:
        assert serving.state()["Status"] == "paused"
        reading.wait_for(100)
        during = reading.batches_since(began)
        assert serving.state()["Status"] == "paused"
    finally:
        docker("unpause", serving.name)
    require_nothing_lost(reading, offline, before)
    note(f"paused: {during} batches without it, {gap(reading)}")


class Packets:
    """Counts packets between a container and an address, by rules in the container's network."""

    def __init__(self, container: Container, address: str) -> None:
        self._enter = ["nsenter", "--net", "--target", str(container.state()["Pid"]), "iptables"]
        self._run("--append", "OUTPUT", "--destination", address)
        self._run("--append", "INPUT", "--source", address)

    def _run(self, *words: str) -> str:
        answer = subprocess.run([*self._enter, *words], capture_output=True, text=True, timeout=20)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def sent_and_received(self) -> tuple[int, int]:
        """Packets."""
        listed = [
            self._run("--list", chain, "--numeric", "--verbose", "--exact")
            for chain in ("OUTPUT", "INPUT")
        ]
        sent, received = (int(text.splitlines()[-1].split()[0]) for text in listed)
        return sent, received


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nsenter") or not shutil.which("iptables"),
    reason="needs root, nsenter and iptables to count packets in a container's network",
)
def test_a_replica_that_loses_its_network_costs_no_batch(
    replicas: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    """What is sent to it gets no answer, not even a refusal."""
    serving, before = replicas.serving(), reading.reconnects()
    attached = serving.inspect()["NetworkSettings"]["Networks"][replicas.network]
    packets = Packets(reading.container, attached["IPAddress"])
    reading.wait_for(10)
    assert min(packets.sent_and_received()) > 0
    began = time.monotonic()
    docker("network", "disconnect", replicas.network, serving.name)

    try:
        assert serving.inspect()["NetworkSettings"]["Networks"] == {}
        sent, received = packets.sent_and_received()
        reading.wait_for(100)
        during = reading.batches_since(began)
        sent_in_vain, answered = (
            now - then
            for now, then in zip(packets.sent_and_received(), (sent, received), strict=True)
        )
        assert sent_in_vain > 0
        assert answered == 0
    finally:
        aliases = [word for alias in attached["Aliases"] for word in ("--alias", alias)]
        docker("network", "connect", *aliases, replicas.network, serving.name)
    require_nothing_lost(reading, offline, before)
    note(
        f"disconnected: {sent_in_vain} packets to it, {answered} from it, "
        f"{during} batches without it, {gap(reading)}"
    )


def test_replicas_that_are_restarted_in_turn_cost_no_batch(
    replicas: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    """As an upgrade does it."""
    during, reconnects = [], reading.reconnects()
    for replica in replicas.replicas:
        before, began = replica.state()["StartedAt"], time.monotonic()
        docker("restart", replica.name)
        wait_until(lambda replica=replica: replica.health() == "healthy", "health")  # type: ignore[misc]
        assert replica.state()["StartedAt"] > before
        during.append(reading.batches_since(began))

    require_nothing_lost(reading, offline, reconnects)
    assert all(during)
    note(f"restarted in turn: {during} batches meanwhile, {gap(reading)}")
