"""The states of feeds in the checkpoint of a trainer, whatever has written it.

A state is found by its shape, at any depth. Nothing in a checkpoint is trusted: no code in it is
run, and no tensor is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FoundState:
    """A state of a feed, as `read_state` accepts it.

    where: its dotted path within the checkpoint, printable; "" for the whole of it.
    """

    where: str
    state: dict[str, Any]


def read_states(path: str | Path) -> list[FoundState]:
    """Return the states in a checkpoint, at least one.

    path: a file of JSON, torch.save or safetensors, a folder of torch.distributed.checkpoint, or
    one with such files.
    Raises: InvalidRequest, naming the path, if it cannot be read, is refused, or has no state.
    """
    raise NotImplementedError


def chosen(states: Sequence[FoundState], where: str | None) -> FoundState:
    """Return the state at a place, or the only one if the place is None.

    Raises: InvalidRequest, listing the places.
    """
    raise NotImplementedError
