"""What does it save, and cost, if one rank of a tensor-parallel group reads for all of them?

tp x dp = 2 x 2 under torchrun with gloo. Each rank reads the rows of its data-parallel rank; or the
first of each group does, and broadcasts them, as docs/resume-and-ranks.md says. Prints the tokens
that the server has sent, the time that a rank waits for a batch, and the processor time of all
ranks and of the server. Exits with an error unless the ranks of a group have identical rows, and
other groups have other ones.
Run: python -m benchmarks.shared_rows [--batches 200] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.processor_time import tree_seconds
from benchmarks.report import print_load, print_table
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, write_corpus
from benchmarks.serving import ROOT, Server, served
from client import RemoteBatches

GROUPS, GROUP_RANKS = 2, 2
TOKENS = 1 << 26
WAYS = ("each rank reads", "one reads and broadcasts")
RUN_SECONDS_MAX = 300.0


def main() -> None:
    """Print the figures of both ways; or be a rank, and print its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        first, second = arguments.rank
        be_rank(first, second, arguments.batches)
        return
    print_load("before")
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        write_corpus(path, TOKENS)
        with served("--data", path, "--metrics-port", "0") as server:
            server.wait_for_log("warm-up ended")
            for _ in range(arguments.rounds):
                for way in WAYS:
                    for name, figure in measured(way, server, arguments.batches).items():
                        figures.setdefault(name, {}).setdefault(way, []).append(figure)
    for name, rounds in figures.items():
        title, _, unit = name.rpartition(", ")
        print_table(f"{title}, {arguments.batches} batches", unit, rounds)
    print_load("after")


def measured(way: str, server: Server, batches: int) -> dict[str, float]:
    """Return the figures of a run of all ranks, by their names.

    Exits unless rows are identical within a group, and differ between groups.
    """
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
    command = [*launcher, str(GROUPS * GROUP_RANKS), "-m", "benchmarks.shared_rows"]
    words = [*command, "--batches", str(batches), "--rank", way, server.address]
    sent, used = sent_bytes(server), tree_seconds(server.pid)
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=RUN_SECONDS_MAX,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    ranks: list[dict[str, Any]] = sorted(map(json.loads, lines), key=lambda each: each["rank"])
    rows = [each["rows"] for each in ranks]
    groups = [rows[first : first + GROUP_RANKS] for first in range(0, len(rows), GROUP_RANKS)]
    if len(set(rows)) != GROUPS or any(len(set(group)) != 1 for group in groups):
        sys.exit(f"{way}: rows of the ranks are {groups}")
    return {
        "tokens sent by the server, MB": (sent_bytes(server) - sent) / 1e6,
        "wait for a batch, ms": 1e3 * median(each["wait"] for each in ranks),
        "processor time of the ranks, s": sum(each["used"] for each in ranks),
        "processor time of the server, s": tree_seconds(server.pid) - used,
    }


def sent_bytes(server: Server) -> float:
    """Return how many bytes of tokens a server has sent since its start."""
    found = re.search(r"metrics address=(\S+)", server.log)
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=10) as answer:
        page = answer.read().decode()
    return sum(map(float, re.findall(r"^tokenfeed_token_bytes_sent_total\S* (\S+)", page, re.M)))


def be_rank(way: str, address: str, batches: int) -> None:
    """Take some batches, and print a checksum of their rows, the median wait for one in seconds,
    and the processor time of this process from the first one on.
    """
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (GROUPS, GROUP_RANKS), mesh_dim_names=("dp", "tp"))
    group = mesh["tp"].get_group()
    source = dist.get_global_rank(group, 0)
    feed = None
    if way == WAYS[0] or dist.get_rank() == source:
        feed = RemoteBatches(
            address,
            BATCH_SIZE,
            CONTEXT_LENGTH,
            order="shuffled",
            group=mesh["dp"],
            num_batches=batches,
        )
    shape = BATCH_SIZE, CONTEXT_LENGTH
    rows, waits = 0, []
    dist.barrier()
    used = time.process_time()
    for _ in range(batches):
        began = time.perf_counter()
        x, y = next(feed) if feed else (torch.empty(shape, dtype=torch.int64) for _ in "xy")
        if way != WAYS[0]:
            dist.broadcast(x, source, group)
            dist.broadcast(y, source, group)
        waits.append(time.perf_counter() - began)
        rows = zlib.crc32(y.numpy(), zlib.crc32(x.numpy(), rows))
    used = time.process_time() - used
    own = {"rank": dist.get_rank(), "rows": rows, "wait": median(waits), "used": used}
    print(f"{json.dumps(own)}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
