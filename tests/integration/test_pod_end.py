"""How a pod ends: the kubelet's part of it, with containers, while a job reads an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Note
from tests.integration.pods import EPOCH_STEPS, GRACE_SECONDS, PRE_STOP_SECONDS, RANKS, Cluster, Pod
from tests.integration.stack import Offline, Reading

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture
def servers(cluster: Cluster) -> list[Pod]:
    """Two, which the Service names."""
    started = cluster.start(2)
    cluster.publish(*started)
    return started


@pytest.fixture
def job(cluster: Cluster, servers: list[Pod]) -> Iterator[Reading]:
    """It reads one epoch. Half of its ranks begin with each server."""
    with cluster.reading("--epoch") as started:
        started.wait_for(10 * RANKS)
        yield started


def require_whole_epoch(job: Reading, offline: Offline) -> None:
    """The job went on, and its ranks together got each row once."""
    job.wait_for(25 * RANKS)
    assert job.reconnects() > 0
    job.finish("USR1")
    job.require_exact(offline)
    assert len(job.arrived) == EPOCH_STEPS * RANKS


def test_a_pod_that_is_deleted_serves_until_sigterm_and_costs_no_row(
    cluster: Cluster, servers: list[Pod], job: Reading, note: Note
) -> None:
    """Meanwhile those are answered too who do not know yet that it goes."""
    leaving, staying = servers
    began = time.monotonic()
    with leaving.pre_stop():
        cluster.publish(staying)
        assert "dataset corpus" in cluster.describe(leaving)
        sent_bytes = leaving.sent_bytes()
        job.wait_for(10 * RANKS)
        assert leaving.sent_bytes() > sent_bytes
        assert job.reconnects() == 0
    assert time.monotonic() - began >= PRE_STOP_SECONDS
    seconds = leaving.terminate()

    assert leaving.state()["ExitCode"] == 0
    assert time.monotonic() - began < GRACE_SECONDS
    require_whole_epoch(job, cluster.offline)
    note(
        f"a pod ended {seconds:.2f} s after SIGTERM; {len(job.arrived):,} batches of an epoch, "
        f"longest gap {job.longest_gap():.2f} s, {job.reconnects()} reconnects"
    )


def test_a_pod_that_gets_sigterm_at_once_costs_no_row(
    cluster: Cluster, servers: list[Pod], job: Reading
) -> None:
    """As in a cluster without preStop: the Service still names it when it has ended."""
    leaving, staying = servers
    leaving.terminate()

    assert leaving.state()["ExitCode"] == 0
    assert "dataset corpus" in cluster.describe(leaving, staying)
    cluster.publish(staying)
    require_whole_epoch(job, cluster.offline)
