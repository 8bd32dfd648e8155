"""Encodes the units of an ingest, here or in other processes (runtime/threads/executors.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...runtime.threads.executors import Executor
from ..units import Unit
from .encoding import EncodedUnit
from .recipe import Recipe

Encoder = Executor[Unit, Recipe, EncodedUnit]


def encoded(
    encoder: Encoder, units: Iterable[Unit], recipe: Recipe
) -> Iterator[tuple[Unit, EncodedUnit]]:
    """Yield each unit, without its content, and its tokens, in order."""
    begun: deque[Unit] = deque()

    def sent() -> Iterator[Unit]:
        for unit in units:
            # The other process has the text; it is not needed here any more.
            begun.append(replace(unit, content=None))
            yield unit

    for found in encoder(sent(), recipe):
        yield begun.popleft(), found
