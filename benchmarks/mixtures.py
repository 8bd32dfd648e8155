"""What does a mixture cost, against one dataset of the same size?

Batches of 32 x 2048 as int64 (x, y), one client and one server on this machine. A corpus is served
as one dataset, cut into 3, and cut into 100, with weights of 0.7, 0.2 and 0.1, and log-normal ones.
Each run is a fresh client of a fresh server; the settings alternate. Ratios refer to one dataset.
Then the time from a new feed to its first batch, at sample 0 and at sample 10^14 of a mixture with
1,000 stages of the 100 sources, and the size of the request.
Run: python -m benchmarks.mixtures [--rounds 5] [--seconds 2] [--order random]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.contender import fresh_run, measure, serving
from benchmarks.delivered import by_round, verdict
from benchmarks.report import print_load, print_table
from benchmarks.rows import BATCH_SIZE, CONTEXT_LENGTH, write_corpus
from client import Mixture, RemoteBatches
from tokenfeed.stream.position import Position
from tokenfeed.stream.stage import Corpus
from tokenfeed.wire.request import Expected, Hints, Request, to_message

TOKENS = 1 << 28
TARGETS = {"3 sources": 0.95, "100 sources": 0.90}
FAR_SAMPLE = 10**14
STAGES = 1000


def main() -> None:
    """Print the rates and the targets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="after the first")
    parser.add_argument("--order", default="random", help="of all sources")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="in the corpus")
    parser.add_argument("--run", nargs=2, metavar=("FOLDER", "SETTING"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(Path(arguments.run[0]), arguments.run[1], arguments)))
        return
    print_load("before")
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder), arguments.tokens)
        rates: dict[str, list[float]] = {}
        firsts: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for setting in ("one dataset", *TARGETS):
                found = fresh_run("mixtures", folder, setting, arguments)
                rates.setdefault(setting, []).append(found["after"] / 1e6)
            for setting in ("first batch at 0", f"first batch at {FAR_SAMPLE:.0e}"):
                found = fresh_run("mixtures", folder, setting, arguments)
                firsts.setdefault(setting, []).append(found["first_ms"])
        print_table(f"delivered, {arguments.order}", "Mtok/s", rates)
        print()
        print_table(f"until the first batch, {STAGES} stages of 100 sources", "ms", firsts)
    for setting, target in TARGETS.items():
        ratios = [ours / base for ours, base in zip(rates[setting], rates["one dataset"])]  # noqa: B905
        ratio = median(rates[setting]) / median(rates["one dataset"])
        aim = verdict(ratio >= target, f"{target:g}")
        print(f"{setting} / one dataset: {ratio:.2f} ({aim}; {by_round(ratios)})")
    print(f"a request has {request_bytes()} bytes (target below 16384)")
    print_load("after")


def run(folder: Path, setting: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a setting."""
    is_far = setting.startswith("first batch")
    count = {"one dataset": 1, "3 sources": 3}.get(setting, 100)
    names = [f"s{index:03}" for index in range(count)]
    data = [part for name in names for part in ("--data", str(folder / str(count) / f"{name}.bin"))]
    weights = dict(zip(names, weights_of(count), strict=True))
    options = {"dataset": names[0]} if count == 1 else {"mixture": Mixture(weights)}
    if is_far:
        options = {"mixture": far_mixture(names)}
    command = ("server", *data, "--host", "127.0.0.1", "--port", "0", "--log-level", "warning")
    with serving(*command) as address:
        start = FAR_SAMPLE if setting.endswith("+14") else 0
        begun = time.perf_counter()
        with RemoteBatches(
            address,
            BATCH_SIZE,
            CONTEXT_LENGTH,
            order=arguments.order,
            start_sample=start,
            **options,  # type: ignore[arg-type]
        ) as feed:
            if not is_far:
                return measure(feed, arguments.seconds)[0]
            next(feed)
            return {"first_ms": 1e3 * (time.perf_counter() - begun)}


def weights_of(count: int) -> list[float]:
    """Return the weights of this many sources."""
    if count == 3:
        return [0.7, 0.2, 0.1]
    return np.random.default_rng(0).lognormal(0, 1, count).tolist()


def far_mixture(names: list[str]) -> Mixture:
    """Return a mixture whose weights have changed often before sample 10^14."""
    stages = [
        {
            "first_sample": FAR_SAMPLE // STAGES * index,
            "weights": dict(zip(names, range(1 + index % 2, 2 + index % 2 + len(names)))),  # noqa: B905
        }
        for index in range(STAGES)
    ]
    return Mixture(stages=stages)


def request_bytes() -> int:
    """Return the size of the request of a batch at sample 10^14."""
    names = [f"a-dataset-of-{index:03}" for index in range(100)]
    stream = far_mixture(names).definition(CONTEXT_LENGTH, "shuffled-1", 1337).stream
    stream = stream.known({number: Corpus(bytes(32)) for number in stream.numbers})
    part = Request(stream, Position(FAR_SAMPLE, BATCH_SIZE), num_batches=16).part(0, 512)
    expected = Expected(bytes(32), (bytes(32),) * 100)
    return len(to_message(part, expected, Hints("run-17 rank 3")).SerializeToString()) + 34


def write_sources(folder: Path, tokens: int) -> None:
    """Write the corpus whole and in parts, each of which has its share of the tokens."""
    whole = folder / "corpus.bin"
    write_corpus(whole, tokens)
    content = np.fromfile(whole, dtype="<u2")
    whole.unlink()
    for count in (1, 3, 100):
        (folder / str(count)).mkdir()
        for index, part in enumerate(np.array_split(content, count)):
            part.tofile(folder / str(count) / f"s{index:03}.bin")


if __name__ == "__main__":
    main()
