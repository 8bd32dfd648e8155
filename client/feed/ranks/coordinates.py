"""Arguments, torch.distributed or the environment -> data-parallel rank and world size.

The ranks of one tensor-, pipeline- or context-parallel group have to pass the same data-parallel
coordinates, and then get identical bytes. With the global rank they would silently train on
different data.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tokenfeed.errors import InvalidRequest
from tokenfeed.stream.position import Position

_LOG = logging.getLogger("tokenfeed.client")

Group: TypeAlias = Any
"""A torch.distributed ProcessGroup or a DeviceMesh with one dimension; torch may be missing."""

_LAUNCHERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Data-parallel coordinates and their source.

    rank: in [0, world_size).  source: as the log names it.  members: the global ranks of the
    process group they come from, in its order; empty if they come from another source.
    """

    rank: int
    world_size: int
    source: str
    members: tuple[int, ...] = ()


def data_parallel(
    rank: int | None,
    world_size: int | None,
    group: Group | None = None,
    environment: Mapping[str, str] = os.environ,
) -> DataParallel:
    """Return rank and world size, from the first of these that is there: rank and world_size;
    group; torch.distributed; RANK and WORLD_SIZE of the environment; else rank 0 of one rank.

    group: a ProcessGroup or a DeviceMesh with one dimension.  environment: variables by name.
    Raises: InvalidRequest if rank or world_size is given without the other, or together with group;
    if group is not valid or lacks this process; if RANK or WORLD_SIZE is missing or not valid; or
    if a launcher started several processes, and no source has the rank of this one.
    """
    if group is not None and (rank is not None or world_size is not None):
        raise InvalidRequest(
            "group", "is given together with rank= or world_size=; pass only one of them"
        )
    if rank is not None or world_size is not None:
        ranks = DataParallel(*_both("rank=", rank, "world_size=", world_size), "arguments")
    elif group is not None:
        ranks = _in_group(group)
    elif (distributed := _torch_distributed()) is not None:
        ranks = distributed
    elif environment.get("RANK") or environment.get("WORLD_SIZE"):
        ranks = _launched(environment)
    else:
        _require_single_process(environment)
        ranks = DataParallel(0, 1, "default")
    _LOG.info(
        "data-parallel rank=%d world_size=%d from=%s", ranks.rank, ranks.world_size, ranks.source
    )
    return ranks


def _in_group(group: Group) -> DataParallel:
    """Return the coordinates of this process in a ProcessGroup or a DeviceMesh."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise InvalidRequest(
            "group", f"needs torch ({error}); pass rank= and world_size= instead"
        ) from error

    if hasattr(group, "get_group") and group.ndim != 1:
        raise InvalidRequest(
            "group",
            f"is a mesh with {group.ndim} dimensions; pass only the data-parallel one, "
            'such as mesh["dp"]',
        )
    try:
        if hasattr(group, "get_group"):
            group = group.get_group()
        rank = dist.get_rank(group)
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        raise InvalidRequest(
            "group", f"{group!r} is not an initialized ProcessGroup or DeviceMesh: {error}"
        ) from error
    if rank < 0:
        raise InvalidRequest(
            "group", "does not contain this process; pass the group that it belongs to"
        )
    members = tuple(dist.get_process_group_ranks(group))
    return DataParallel(rank, dist.get_world_size(group), "group", members)


def _torch_distributed() -> DataParallel | None:
    """Return the coordinates of torch.distributed, None if it is not initialized."""
    if not has_process_group():
        return None
    import torch.distributed as dist

    world_size = dist.get_world_size()
    return DataParallel(dist.get_rank(), world_size, "torch.distributed", tuple(range(world_size)))


def has_process_group() -> bool:
    """Return whether torch.distributed is initialized; does not import it."""
    # Missing in a torch that was built without it, and while another thread imports torch.
    is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _launched(environment: Mapping[str, str]) -> DataParallel:
    """Return the coordinates of RANK and WORLD_SIZE; errors name these variables."""
    rank, world_size = _both(
        "RANK", _integer("RANK", environment), "WORLD_SIZE", _integer("WORLD_SIZE", environment)
    )
    try:
        Position(0, 1, rank, world_size)
    except InvalidRequest as error:
        raise InvalidRequest(error.subject.upper(), error.problem) from None
    return DataParallel(rank, world_size, "RANK and WORLD_SIZE")


def _both(
    rank_name: str, rank: int | None, size_name: str, world_size: int | None
) -> tuple[int, int]:
    if rank is None:
        raise InvalidRequest("rank", f"{size_name} is given without {rank_name}")
    if world_size is None:
        raise InvalidRequest("world_size", f"{rank_name} is given without {size_name}")
    return rank, world_size


def _integer(name: str, environment: Mapping[str, str]) -> int | None:
    value = environment.get(name)
    if not value:
        return None
    if not (value.isascii() and value.removeprefix("-").isdecimal()):
        raise InvalidRequest(name, f"{value!r} is not an integer")
    return int(value)


def _require_single_process(environment: Mapping[str, str]) -> None:
    if _has_jax_processes():
        raise InvalidRequest(
            "rank",
            "is unknown: jax.distributed is initialized, so there may be several processes; pass "
            "rank=jax.process_index() and world_size=jax.process_count() if they share the batch, "
            "the same to all if they do not",
        )
    for name in _LAUNCHERS:
        if (_integer(name, environment) or 1) > 1:
            raise InvalidRequest(
                "rank",
                f"is unknown: {name} is {environment[name]}, so there are several processes; "
                "pass rank= and world_size=",
            )


def _has_jax_processes() -> bool:
    """Return whether jax.distributed is initialized; does not import JAX.

    To ask for the number of processes would start JAX's devices, which waits for all of them.
    """
    distributed = getattr(sys.modules.get("jax"), "distributed", None)
    is_initialized = getattr(distributed, "is_initialized", None)  # since JAX 0.5
    return is_initialized is not None and bool(is_initialized())
