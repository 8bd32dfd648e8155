"""tokenfeed: stages in a file, as docs/mixtures.md shows them.

The run starts with a file of one stage. Where the weights change, a state is saved, a second stage
is added to the file, and new feeds load the state. Where the run stops, another state is saved,
while batches are prefetched, and feeds of other sizes load it. A stage begins at the end of a
block, so up to a block of rows still has the old weights: fewer if weights are small integers.
Orders: each source as a feed of it alone delivers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.contender import serving
from benchmarks.mixture_counts import Order
from benchmarks.mixture_run import (
    BATCH_SIZE,
    CHANGE_STEP,
    CHANGED,
    CONTEXT_LENGTH,
    RANKS,
    RESUMED_BATCH_SIZE,
    RESUMED_RANKS,
    SOURCES,
    STOP_STEP,
    TOTAL,
    Delivered,
    codes,
    concatenated,
    main,
    resumed_steps,
)
from client import Mixture, RemoteBatches

SETTINGS = {
    "shares": {
        "before": {"web": 0.7, "code": 0.2, "math": 0.1},
        "after": {"web": 0.3, "code": 0.3, "math": 0.4},
    },
    "integers": {
        "before": {"web": 7, "code": 2, "math": 1},
        "after": {"web": 3, "code": 3, "math": 4},
    },
}


def run(
    folder: Path, seed: int, *, before: Mapping[str, float], after: Mapping[str, float]
) -> Delivered:
    """Run a server, and the feeds of all ranks in this process."""
    data = [part for name in SOURCES for part in ("--data", str(folder / f"{name}.bin"))]
    options = ("--dtype", "uint16", "--host", "127.0.0.1", "--port", "0", "--log-level", "warning")
    stages = folder / "mixture.toml"
    with serving("server", *data, *options) as address:
        add_stage(stages, 0, before)
        rows, state = deliver(address, stages, seed, None, RANKS, BATCH_SIZE, CHANGE_STEP)
        add_stage(stages, CHANGED, after)
        steps = STOP_STEP - CHANGE_STEP
        more, state = deliver(address, stages, seed, state, RANKS, BATCH_SIZE, steps)
        rest, _ = deliver(
            address, stages, seed, state, RESUMED_RANKS, RESUMED_BATCH_SIZE, resumed_steps()
        )
        return Delivered(rows + more + rest, [alone(address, name, seed) for name in SOURCES])


def add_stage(path: Path, first_sample: int, weights: Mapping[str, float]) -> None:
    """Append a stage to the file."""
    shown = ", ".join(f"{name} = {weight}" for name, weight in weights.items())
    with path.open("a") as file:
        file.write(f"[[stages]]\nfirst_sample = {first_sample}\nweights = {{{shown}}}\n")


def deliver(
    address: str,
    stages: Path,
    seed: int,
    state: dict[str, Any] | None,
    ranks: int,
    batch_size: int,
    steps: int,
) -> tuple[list[int], dict[str, Any]]:
    """Return the rows of all ranks, and the state of one of them after the last step."""
    rows: list[int] = []
    with ExitStack() as stack:
        feeds = [
            stack.enter_context(
                RemoteBatches(
                    address,
                    batch_size,
                    CONTEXT_LENGTH,
                    mixture=Mixture.load(stages),
                    order="shuffled",
                    seed=seed,
                    rank=rank,
                    world_size=ranks,
                )
            )
            for rank in range(ranks)
        ]
        for feed in feeds:
            if state is not None:
                feed.load_state_dict(state)
        for _ in range(steps):
            rows += concatenated([codes(next(feed)[0]) for feed in feeds])
        return rows, feeds[-1].state_dict()


def alone(address: str, name: str, seed: int) -> Order:
    """Return the order of a source by itself."""
    with RemoteBatches(
        address,
        100,
        CONTEXT_LENGTH,
        dataset=name,
        order="shuffled",
        seed=seed,
        rank=0,
        world_size=1,
    ) as feed:
        return Order(0, TOTAL, [code for x, _ in feed.epoch(0) for code in codes(x).tolist()])


if __name__ == "__main__":
    main(run, SETTINGS)
