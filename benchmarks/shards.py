"""Are 1,000 shards as fast as one file? One stream of 32 x 2048 from each, warm, in turn.

The same tokens, whole or cut into files of equal size, from two servers that run side by side and
are asked one after the other. Run: python -m benchmarks.shards [--shards 1000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.report import print_table
from benchmarks.serving import (
    folder_on_disk,
    million_tokens_per_second,
    served,
    stream,
    write_corpus,
)

CORPUS_BYTES = 1 << 30
SECONDS = 1.5
SETTLE_SECONDS = 0.3


def main() -> None:
    """Print the rate of each, for an order that draws windows and for one that permutes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {}
    with folder_on_disk() as folder:
        whole = write_corpus(folder / "whole.bin", CORPUS_BYTES)
        cut(whole, folder / "shards", arguments.shards)
        with (
            served("--data", f"train={whole}") as one,
            served("--data", f"train={folder / 'shards'}") as many,
        ):
            for server in (one, many):
                server.wait_for_log("warm-up ended")
            servers = {"one file": one, f"{arguments.shards:,} shards": many}
            for number in range(arguments.rounds):
                for order in ("random-1", "shuffled-1"):
                    for name, server in servers.items():
                        request = stream(seed=number, order=order)
                        rates.setdefault(f"{order}, {name}", []).append(
                            million_tokens_per_second(
                                server.address, request, SECONDS, SETTLE_SECONDS
                            )
                        )
                        time.sleep(0.1)
    for order in ("random-1", "shuffled-1"):
        of_order = {name: found for name, found in rates.items() if name.startswith(order)}
        print_table("one stream of 32 x 2048", "Mtok/s", of_order)
        whole_rates, cut_rates = of_order.values()
        paired = np.median(np.array(cut_rates) / np.array(whole_rates))
        print(f"shards / one file, median of the rounds: {paired:.2f} (goal 0.9)")


def cut(whole: Path, folder: Path, count: int) -> None:
    """Write the tokens of a file as so many shards."""
    folder.mkdir()
    tokens = np.memmap(whole, dtype=np.uint16, mode="r")
    for index, part in enumerate(np.array_split(tokens, count)):
        part.tofile(folder / f"{index:06}.bin")


if __name__ == "__main__":
    main()
