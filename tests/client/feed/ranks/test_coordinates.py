"""Which data-parallel rank of how many: never a guess."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_together
from tests.support.ports import free_port
from tokenfeed.client.feed.ranks.coordinates import DataParallel, data_parallel
from tokenfeed.errors import InvalidRequest


def test_arguments_come_before_the_environment() -> None:
    """A tensor-parallel pair passes the same coordinates although its global ranks differ."""
    assert data_parallel(1, 2, environment={"RANK": "5", "WORLD_SIZE": "8"}) == DataParallel(
        1, 2, "arguments"
    )


def test_the_environment_of_torchrun_is_understood() -> None:
    """Under torchrun no argument is needed."""
    assert data_parallel(None, None, environment={"RANK": "5", "WORLD_SIZE": "8"}) == DataParallel(
        5, 8, "RANK and WORLD_SIZE"
    )


def test_alone_is_rank_0_of_1() -> None:
    """A notebook has no ranks."""
    for environment in ({}, {"SLURM_NTASKS": "1"}):
        found = data_parallel(None, None, environment=environment)
        assert found == DataParallel(0, 1, "default")


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_several_processes_without_a_rank_are_an_error(name: str) -> None:
    """Else every one of them would train on the data of rank 0."""
    with pytest.raises(InvalidRequest, match=f"{name}.*rank= and world_size="):
        data_parallel(None, None, environment={name: "4"})


# A process of jax.distributed: a feed without rank=, then one with it.
JAX_PROCESS = """
import os
import sys
import jax
from client import InvalidRequest, NumpyBatches
jax.config.update("jax_platforms", "cpu")
# Asking JAX for its devices too early would make initialize() impossible.
print(NumpyBatches("localhost:1", 4, 8))
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
# Slurm's own variable does not hide what to pass.
for environment in ({}, {"SLURM_NTASKS": "2"}):
    os.environ.update(environment)
    try:
        print(NumpyBatches("localhost:1", 4, 8))
    except InvalidRequest as error:
        print(error)
jax.config.update("jax_num_cpu_devices", 2)  # possible until JAX's devices are started
print(NumpyBatches(
    "localhost:1", 4, 8, rank=jax.process_index(), world_size=jax.process_count()
))
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_processes_of_jax_have_to_say_whether_they_share_the_batch(tmp_path: Path) -> None:
    """Both would train on the rows of rank 0, and the loss would not say so."""
    script, port = tmp_path / "process.py", str(free_port())
    script.write_text(JAX_PROCESS)

    printed = run_together([(script, port, process) for process in ("0", "1")])

    for process, text in enumerate(printed):
        lines = [line for line in text.splitlines() if "Gloo" not in line]
        before, *refused, accepted = lines
        assert "rank 0 of 1" in before
        assert len(refused) == 2
        for line in refused:
            assert line.startswith("rank: is unknown: jax.distributed is initialized, ")
            assert "rank=jax.process_index() and world_size=jax.process_count()" in line
        assert f"rank {process} of 2" in accepted


@pytest.mark.parametrize(
    ("rank", "world_size", "environment"),
    [
        (1, None, {}),
        (None, 2, {}),
        (None, None, {"RANK": "1"}),
        (None, None, {"WORLD_SIZE": "2"}),
        (None, None, {"RANK": "one", "WORLD_SIZE": "2"}),
        (1, None, {"RANK": "1", "WORLD_SIZE": "2"}),
    ],
)
def test_half_an_answer_is_an_error(
    rank: int | None, world_size: int | None, environment: dict[str, str]
) -> None:
    """Rank 1 of how many?"""
    with pytest.raises(InvalidRequest):
        data_parallel(rank, world_size, environment=environment)


def test_empty_variables_are_none() -> None:
    """As templates of jobs pass them on."""
    assert data_parallel(None, None, environment={"RANK": "", "WORLD_SIZE": ""}).source == "default"


@pytest.mark.parametrize(
    ("rank", "world_size", "name"),
    [("-1", "2", "RANK"), ("2", "2", "RANK"), ("0", "0", "WORLD_SIZE")],
)
def test_a_variable_out_of_range_is_named_as_it_is_spelled(
    rank: str, world_size: str, name: str
) -> None:
    """rank= and world_size= were not passed."""
    with pytest.raises(InvalidRequest) as caught:
        data_parallel(None, None, environment={"RANK": rank, "WORLD_SIZE": world_size})

    assert caught.value.subject == name


def test_torch_distributed_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """An initialized process group knows best."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        found = data_parallel(None, None, environment={"RANK": "5", "WORLD_SIZE": "8"})
        assert found == DataParallel(0, 1, "torch.distributed", members=(0,))
        found = data_parallel(None, None, dist.group.WORLD)
        assert found == DataParallel(0, 1, "group", members=(0,))
    finally:
        dist.destroy_process_group()


def test_a_group_without_torch_is_refused_with_what_to_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mesh of JAX is not one of torch."""
    monkeypatch.setitem(sys.modules, "torch.distributed", None)

    with pytest.raises(InvalidRequest, match=r"group: needs torch .*; pass rank= and world_size="):
        data_parallel(None, None, object())


def test_one_line_says_which_was_taken_and_from_where(caplog: pytest.LogCaptureFixture) -> None:
    """The first thing to look at when ranks see the same data."""
    with caplog.at_level(logging.INFO, "tokenfeed.client"):
        data_parallel(None, None, environment={"RANK": "5", "WORLD_SIZE": "8"})

    assert caplog.messages == ["data-parallel rank=5 world_size=8 from=RANK and WORLD_SIZE"]
