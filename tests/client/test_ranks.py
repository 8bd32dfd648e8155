"""Which data-parallel rank of how many: never a guess."""

from __future__ import annotations

import logging

import pytest

from client.ranks import data_parallel
from tokenfeed.errors import InvalidRequest


def test_arguments_come_before_the_environment() -> None:
    """A tensor-parallel pair passes the same coordinates although its global ranks differ."""
    assert data_parallel(1, 2, environment={"RANK": "5", "WORLD_SIZE": "8"}) == (1, 2)


def test_the_environment_of_torchrun_is_understood() -> None:
    """Under torchrun nobody has to pass anything."""
    assert data_parallel(None, None, environment={"RANK": "5", "WORLD_SIZE": "8"}) == (5, 8)


def test_alone_is_rank_0_of_1() -> None:
    """A notebook has no ranks."""
    assert data_parallel(None, None, environment={}) == (0, 1)
    assert data_parallel(None, None, environment={"SLURM_NTASKS": "1"}) == (0, 1)


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_several_processes_without_a_rank_are_an_error(name: str) -> None:
    """Else every one of them would train on the data of rank 0."""
    with pytest.raises(InvalidRequest, match=f"{name}.*rank= and world_size="):
        data_parallel(None, None, environment={name: "4"})


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


def test_torch_distributed_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """An initialized process group knows best."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        assert data_parallel(None, None, environment={"RANK": "5", "WORLD_SIZE": "8"}) == (0, 1)
    finally:
        dist.destroy_process_group()


def test_one_line_says_which_was_taken_and_from_where(caplog: pytest.LogCaptureFixture) -> None:
    """The first thing to look at when ranks see the same data."""
    with caplog.at_level(logging.INFO, "tokenfeed.client"):
        data_parallel(None, None, environment={"RANK": "5", "WORLD_SIZE": "8"})

    assert caplog.messages == ["data-parallel rank=5 world_size=8 from=RANK and WORLD_SIZE"]
