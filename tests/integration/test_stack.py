"""`docker-compose up` on a machine with nothing, and what may happen while a trainer reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time

import pytest

from tests.integration.conftest import Note
from tests.integration.engine import Container, docker, wait_until
from tests.integration.stack import Offline, Reading, Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def _built(images: None) -> None:
    """Building has no share in the time of the first test."""


def gap(reading: Reading) -> str:
    return f"longest gap {reading.longest_gap():.2f} s"


def test_the_stack_makes_a_corpus_and_its_trainer_gets_batches(stack: Stack, note: Note) -> None:
    """What somebody sees who knows nothing yet."""
    trainer = stack.container("trainer")
    wait_until(lambda: "step 0:" in trainer.log(), "a batch in the trainer's log")
    note(f"the first batch came {stack.up_seconds():.1f} s after up")
    wait_until(lambda: "step 20:" in trainer.log(), "batches in the trainer's log")

    log = trainer.log()
    assert re.search(r"step 20: 688,128 tokens, waited \d\.\d\d s, reconnected 0 times; ['\"]", log)
    assert "made /data/train.bin" in stack.container("corpus").log()
    assert [replica.health() for replica in stack.replicas] == ["healthy"] * 2
    docker("stop", trainer.name)
    assert trainer.state()["ExitCode"] == 0
    assert re.search(r"took \d+ batches$", trainer.log())


def test_a_second_up_keeps_the_corpus(stack: Stack) -> None:
    before = stack.read_data("/data/train.bin")
    stack.up("corpus")
    corpus = stack.container("corpus")
    wait_until(lambda: corpus.state()["Status"] == "exited", "the end of the one-shot service")

    assert "/data/train.bin is there" in corpus.log()
    assert stack.read_data("/data/train.bin") == before


def test_a_replica_that_is_killed_costs_no_batch(
    stack: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    serving = stack.serving()
    began = time.monotonic()
    docker("kill", "--signal", "KILL", serving.name)

    state = serving.state()
    assert (state["Status"], state["ExitCode"]) == ("exited", 137)
    reading.wait_for(100)
    during = reading.batches_since(began)
    docker("start", serving.name)
    reading.wait_for(50)
    reading.require_exact(offline)
    note(f"killed: exited, 137; {during} batches without it, {gap(reading)}")


def test_a_replica_that_is_paused_costs_no_batch(
    stack: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    """Its connections stay open, and nothing comes."""
    serving = stack.serving()
    began = time.monotonic()
    docker("pause", serving.name)

    try:
        assert serving.state()["Status"] == "paused"
        reading.wait_for(100)
        during = reading.batches_since(began)
        assert serving.state()["Status"] == "paused"
    finally:
        docker("unpause", serving.name)
    reading.wait_for(50)
    reading.require_exact(offline)
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
            self._run("--list", chain, "--verbose", "--exact") for chain in ("OUTPUT", "INPUT")
        ]
        sent, received = (int(text.splitlines()[-1].split()[0]) for text in listed)
        return sent, received


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nsenter") or not shutil.which("iptables"),
    reason="needs root, nsenter and iptables to count packets in a container's network",
)
def test_a_replica_that_loses_its_network_costs_no_batch(
    stack: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    """What is sent to it gets no answer, not even a refusal."""
    serving = stack.serving()
    attached = serving.inspect()["NetworkSettings"]["Networks"][stack.network]
    packets = Packets(reading.container, attached["IPAddress"])
    reading.wait_for(10)
    assert packets.sent_and_received() > (0, 0)
    began = time.monotonic()
    docker("network", "disconnect", stack.network, serving.name)

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
        docker("network", "connect", *aliases, stack.network, serving.name)
    reading.wait_for(50)
    reading.require_exact(offline)
    note(
        f"disconnected: {sent_in_vain} packets to it, {answered} from it, "
        f"{during} batches without it, {gap(reading)}"
    )


def test_replicas_that_are_restarted_in_turn_cost_no_batch(
    stack: Stack, offline: Offline, reading: Reading, note: Note
) -> None:
    """As an upgrade does it."""
    during = []
    for replica in stack.replicas:
        before, began = replica.state()["StartedAt"], time.monotonic()
        docker("restart", replica.name)
        wait_until(lambda replica=replica: replica.health() == "healthy", "health")  # type: ignore[misc]
        assert replica.state()["StartedAt"] > before
        during.append(reading.batches_since(began))

    reading.wait_for(50)
    reading.require_exact(offline)
    assert all(during)
    note(f"restarted in turn: {during} batches meanwhile, {gap(reading)}")
