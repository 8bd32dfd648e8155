"""Is text tokenized at the speed of the tokenizer? The same parquet on the same cores, in rounds.

`tokenizers.encode_batch` alone on text in memory, datatrove's tokenizer step, and `tokenfeed
ingest`: the whole command, from its start until its shards are on the disk. The text is paragraphs
of tiny Shakespeare in random order. Needs datatrove.
Run: python -m benchmarks.ingest DATA_FOLDER [--mebibytes 20] [--rounds 5] [--skip-datatrove]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.report import print_table
from benchmarks.serving import folder_on_disk

TOKENIZER = "gpt2-tokenizer.json"
END = "<|endoftext|>"
FILES = 4


def main() -> None:
    """Print the tokens per second and the memory of each."""
    if sys.argv[1:2] == ["--peer"]:
        print(json.dumps(PEERS[sys.argv[2]](*map(Path, sys.argv[3:]))))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="with tinyshakespeare.txt and gpt2-tokenizer.json")
    parser.add_argument("--mebibytes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-datatrove", action="store_true")
    arguments = parser.parse_args()
    tokenizer = arguments.data / TOKENIZER
    names = [name for name in PEERS if name != "datatrove" or not arguments.skip_datatrove]
    speeds: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    with folder_on_disk() as folder:
        pages = folder / "pages"
        text = arguments.data / "tinyshakespeare.txt"
        # In a separate process: a child's peak memory starts from the memory of its parent.
        with get_context("spawn").Pool(1) as one:
            one.apply(write_pages, (pages, text, arguments.mebibytes))
        for _ in range(arguments.rounds):
            for name in names:
                out = folder / "out"
                command = [sys.executable, "-m", "benchmarks.ingest", "--peer", name]
                command += [str(pages), str(tokenizer), str(out)]
                environment = os.environ | {"PYTHONWARNINGS": "ignore"}
                done = subprocess.run(command, capture_output=True, check=True, env=environment)
                found = json.loads(done.stdout.splitlines()[-1])
                speeds.setdefault(name, []).append(found["tokens"] / found["seconds"] / 1e3)
                memory.setdefault(name, []).append(found["mebibytes"])
                shutil.rmtree(out, ignore_errors=True)
    print_table(f"{arguments.mebibytes} MiB of text in {FILES} parquet files", "ktok/s", speeds)
    print_table("memory of the largest process", "MiB", memory)
    ours = np.array(speeds["tokenfeed"])
    for name, goal in (("encode_batch", 0.85), ("datatrove", 1.0)):
        if name in speeds:
            ratio = np.median(ours / np.array(speeds[name]))
            print(f"tokenfeed / {name}, median of the rounds: {ratio:.2f} (goal {goal})")


def write_pages(folder: Path, source: Path, mebibytes: int) -> None:
    """Write this much text, in documents of ten paragraphs."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    choose = random.Random(1)
    paragraphs = source.read_text().split("\n\n")
    for number in range(FILES):
        documents, size = [], 0
        while size < mebibytes * (1 << 20) // FILES:
            documents.append("\n\n".join(choose.choices(paragraphs, k=10)))
            size += len(documents[-1])
        table = pyarrow.table({"text": documents})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=1000)


def _used_mebibytes() -> float:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in who) / 1024


def encode_batch(pages: Path, tokenizer: Path, out: Path) -> dict[str, float]:
    """The tokenizer alone, in its own threads, a thousand documents per call."""
    import pyarrow.parquet
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(tokenizer))
    texts = pyarrow.parquet.read_table(pages).column("text").to_pylist()
    begun = time.perf_counter()
    tokens = 0
    for first in range(0, len(texts), 1000):
        found = made.encode_batch(texts[first : first + 1000], add_special_tokens=False)
        tokens += sum(map(len, found))
    seconds = time.perf_counter() - begun
    return {"tokens": tokens, "seconds": seconds, "mebibytes": _used_mebibytes()}


def tokenfeed(pages: Path, tokenizer: Path, out: Path) -> dict[str, float]:
    """The whole command."""
    command = [sys.executable, "-m", "server.ingest", str(pages), "--out", str(out)]
    command += ["--tokenizer", str(tokenizer), "--append-token", END]
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begun
    made = json.loads((out / "manifest.json").read_text())["splits"]["train"]
    tokens = made["tokens"] - made["documents"]
    return {"tokens": tokens, "seconds": seconds, "mebibytes": _used_mebibytes()}


def datatrove(pages: Path, tokenizer: Path, out: Path) -> dict[str, float]:
    """Its tokenizer step, with one process per core, without the time of its import."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    cores = len(os.sched_getaffinity(0))
    steps = [
        ParquetReader(str(pages)),
        DocumentTokenizer(
            str(out / "tokens"),
            local_working_dir=str(out / "work"),
            tokenizer_name_or_path=str(tokenizer),
            eos_token=END,
            shuffle_documents=False,
        ),
    ]
    begun = time.perf_counter()
    LocalPipelineExecutor(
        steps, tasks=cores, workers=cores, logging_dir=str(out / "logs"), skip_completed=False
    ).run()
    seconds = time.perf_counter() - begun
    size = sum(path.stat().st_size for path in (out / "tokens").glob("*.ds"))
    ends = sum(path.stat().st_size for path in (out / "tokens").glob("*.ds.index"))
    tokens = size / 2 - ends / 8
    return {"tokens": tokens, "seconds": seconds, "mebibytes": _used_mebibytes()}


PEERS = {"encode_batch": encode_batch, "datatrove": datatrove, "tokenfeed": tokenfeed}


if __name__ == "__main__":
    main()
