"""Does the file layout matter? One stream of 32 x 2048 from each layout, warm, alternately.

The same tokens as one raw file, as 1,000 raw files, as ten shards of llm.c, as 1,000 pairs of
Megatron and as one file of int32 that is narrowed. The servers run at the same time, and the
streams one after the other. Run: python -m benchmarks.shards [--shards 1000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
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
from tests.server.storage.formats.writing import llmc_header, megatron_index

CORPUS_BYTES = 1 << 30
LLMC_SHARDS = 10
NARROWED = "one file of int32"
SECONDS = 1.5
SETTLE_SECONDS = 0.3


def main() -> None:
    """Print the rate of each layout, for random-1 and for shuffled-1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {}
    with folder_on_disk() as folder, ExitStack() as servers_open:
        whole = write_corpus(folder / "whole.bin", CORPUS_BYTES)
        servers = {}
        for name, data in ways(whole, folder, arguments.shards).items():
            server = servers_open.enter_context(served("--data", *data))
            server.wait_for_log("warm-up ended")
            servers[name] = server
        for number in range(arguments.rounds):
            for order in ("random-1", "shuffled-1"):
                for name, server in servers.items():
                    request = stream(seed=number, order=order)
                    rates.setdefault(f"{order}, {name}", []).append(
                        million_tokens_per_second(server.address, request, SECONDS, SETTLE_SECONDS)
                    )
                    time.sleep(0.1)
    for order in ("random-1", "shuffled-1"):
        of_order = {name: found for name, found in rates.items() if name.startswith(order)}
        print_table("one stream of 32 x 2048", "Mtok/s", of_order)
        one, *others = of_order
        for name in others:
            paired = np.median(np.array(of_order[name]) / np.array(of_order[one]))
            goal = "" if name.endswith(NARROWED) else " (goal 0.9)"
            print(f"{name} / one file, median of the rounds: {paired:.2f}{goal}")


def ways(whole: Path, folder: Path, shards: int) -> dict[str, list[str]]:
    """Write the tokens of a file in each layout.  Returns: the values of --data, by a name."""
    tokens = np.memmap(whole, dtype=np.uint16, mode="r")
    folders = {name: folder / name for name in ("raw", "llmc", "megatron")}
    for made in folders.values():
        made.mkdir()
    for index, part in enumerate(np.array_split(tokens, shards)):
        part.tofile(folders["raw"] / f"{index:06}.bin")
        write_megatron(folders["megatron"] / f"{index:06}.bin", part)
    for index, part in enumerate(np.array_split(tokens, LLMC_SHARDS)):
        with (folders["llmc"] / f"{index:06}.bin").open("wb") as file:
            file.write(llmc_header(part.size))
            part.tofile(file)
    wide = folder / "int32.npy"
    np.save(wide, tokens.astype("<i4"))
    return {
        "one file": [f"train={whole}"],
        f"{shards:,} files": [f"train={folders['raw']}"],
        f"{LLMC_SHARDS} shards of llm.c": [f"train={folders['llmc']}"],
        f"{shards:,} of Megatron": [f"train={folders['megatron']}"],
        NARROWED: [f"train={wide}"],
    }


def write_megatron(path: Path, tokens: np.ndarray, sequence_tokens: int = 1000) -> None:
    """Write tokens and an index in which each sequence is a document."""
    tokens.tofile(path)
    begins = np.arange(0, tokens.size, sequence_tokens)
    lengths = np.diff(np.append(begins, tokens.size))
    index = megatron_index(lengths, 2 * begins, np.arange(begins.size + 1))
    path.with_suffix(".idx").write_bytes(index)


if __name__ == "__main__":
    main()
