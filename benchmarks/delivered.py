"""How fast do batches arrive, compared with other data loaders?

Batches of 32 x 2048 as int64 (x, y), one client on this machine, on the CPU. Each run is a fresh
process; the contenders alternate. The first second of a run, with its start-up, is reported
separately. For contenders with several settings, a sweep finds the best one for the rounds.
Run: python -m benchmarks.delivered [--rounds 5] [--seconds 3] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.report import print_table
from benchmarks.rows import write_corpus

CORPUS_TOKENS = 1 << 28  # 512 MiB: in the page cache of any machine, and in no other cache
SWEEP_SECONDS = 1.0
RUN_SECONDS_MAX = 120.0  # in addition to the measurement: some copy the corpus first
LOG_SHOWN = 2000
STEADY_TARGET = 0.8


@dataclass(frozen=True, slots=True)
class Contender:
    """A data loader to compare with.

    name: the module in benchmarks/peers.  needs: what it imports, and the name of its package.
    target: our figure must be at least this multiple of its figure; None if there is no target.
    """

    name: str
    title: str
    needs: tuple[str, str]
    target: float | None = None


CONTENDERS = (
    Contender("tcp", "raw TCP, not widened", ("torch", "torch"), 0.8),
    Contender("tokenfeed", "tokenfeed", ("torch", "torch")),
    Contender("bare_grpc", "bare gRPC stream", ("grpc", "grpcio")),
    Contender("flight", "Arrow Flight", ("pyarrow", "pyarrow"), 1.2),
    Contender("nanogpt", "nanoGPT get_batch", ("torch", "torch"), 5.0),
    Contender("dataloader", "DataLoader", ("torch", "torch"), 3.0),
    Contender("grain_peer", "grain", ("grain", "grain")),
    Contender("litdata_peer", "litdata", ("litdata", "litdata")),
    Contender("mosaicml", "MosaicML streaming", ("streaming", "mosaicml-streaming")),
    Contender("tfdata", "tf.data service", ("tensorflow", "tensorflow-cpu")),
)
OURS = "tokenfeed"

Figures = dict[str, float]


def main() -> None:
    """Sweep, run the rounds, print two tables and a line for each target."""
    # By default SIGTERM ends Python without running `finally`, so a run would outlive us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    arguments = parse_arguments()
    contenders = installed([one for one in CONTENDERS if one.name in arguments.only])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        write_corpus(path, arguments.tokens)
        chosen = best_settings(contenders, path)
        contenders = [one for one in contenders if one.name in chosen]
        rounds: dict[str, list[Figures]] = {one.name: [] for one in contenders}
        for _ in range(arguments.rounds):
            for one in contenders:
                rounds[one.name].append(run(one, path, chosen[one.name], arguments.seconds))
    report(contenders, chosen, rounds)


def parse_arguments() -> argparse.Namespace:
    """Return the arguments."""
    names = [one.name for one in CONTENDERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="after the first (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=CORPUS_TOKENS, help="in the corpus")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    return parser.parse_args()


def installed(contenders: Iterable[Contender]) -> list[Contender]:
    """Return those that can run; print how to install the others."""
    here = []
    for one in contenders:
        module, package = one.needs
        if importlib.util.find_spec(module) is not None:
            here.append(one)
        else:
            print(f"{one.title} is not installed: pip install {package}")
    return here


def best_settings(contenders: Iterable[Contender], path: Path) -> dict[str, str]:
    """Return the fastest setting of each, by name, without those that fail with all settings."""
    chosen = {}
    for one in contenders:
        settings = list(importlib.import_module(f"benchmarks.peers.{one.name}").SETTINGS)
        if len(settings) == 1:
            chosen[one.name] = settings[0]
            continue
        figures = sweep(one, settings, path)
        if figures:
            chosen[one.name] = max(figures, key=figures.__getitem__)
            rows = {name: [figure / 1e6] for name, figure in figures.items()}
            print_table(f"{one.title}: a sweep", "Mtok/s", rows)
            print()
    return chosen


def sweep(one: Contender, settings: Iterable[str], path: Path) -> dict[str, float]:
    """Return the figure of each setting that works."""
    figures = {setting: attempt(one, setting, path) for setting in settings}
    return {setting: figure for setting, figure in figures.items() if figure is not None}


def attempt(one: Contender, setting: str, path: Path) -> float | None:
    """Return the figure of a setting; None if it does not work here."""
    try:
        return run(one, path, setting, SWEEP_SECONDS)["after"]
    except ContenderFailed as error:
        print(f"{error}\nleft out: {titled(one.title, setting)}")
        return None


class ContenderFailed(Exception):
    """A run ended without figures."""


def run(one: Contender, path: Path, setting: str, seconds: float) -> Figures:
    """Return what a fresh process measures.  Raises: ContenderFailed."""
    command = [sys.executable, "-m", f"benchmarks.peers.{one.name}", "--data", str(path)]
    command += ["--setting", setting, "--seconds", str(seconds)]
    # In its own session, so that it can be killed together with its servers and workers.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, log = process.communicate(timeout=RUN_SECONDS_MAX + seconds)
    except subprocess.TimeoutExpired:
        raise ContenderFailed(f"{one.title} had not ended in time") from None
    finally:
        end_session(process.pid)
    if process.returncode != 0:
        raise ContenderFailed(f"{one.title} failed: {log[-LOG_SHOWN:]}")
    figures: Figures = json.loads(output.splitlines()[-1])
    return figures


def end_session(leader: int) -> None:
    """Kill the remaining processes of a run."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def report(
    contenders: list[Contender], chosen: dict[str, str], rounds: dict[str, list[Figures]]
) -> None:
    """Print the tables and the targets."""
    titles = {one.name: titled(one.title, chosen[one.name]) for one in contenders}
    for key, title in (("after", "delivered"), ("first_second", "in the first second")):
        columns = {
            titles[name]: [figures[key] / 1e6 for figures in rounds[name]] for name in titles
        }
        print_table(f"{title}, 32 x 2048 as int64 (x, y)", "Mtok/s", columns)
        print()
    if OURS not in rounds:
        return
    ours = [figures["after"] for figures in rounds[OURS]]
    for one in contenders:
        if one.name != OURS:
            theirs = [figures["after"] for figures in rounds[one.name]]
            print(f"tokenfeed / {titles[one.name]}: {compared(ours, theirs, one.target)}")
    steady = min(ours) / median(ours)
    print(
        f"lowest / median of {len(ours)} fresh processes: {steady:.2f}"
        f" ({verdict(steady, STEADY_TARGET)})"
    )


def compared(ours: list[float], theirs: list[float], target: float | None) -> str:
    """Return the ratio of the medians, the target, and the range of the rounds' ratios."""
    ratio = median(ours) / median(theirs)
    by_round = [our / their for our, their in zip(ours, theirs, strict=True)]
    spread = f"by round {min(by_round):.2f} to {max(by_round):.2f}"
    if target is None:
        return f"{ratio:.2f} (no target; {spread})"
    return f"{ratio:.2f} ({verdict(ratio, target)}; {spread})"


def verdict(ratio: float, target: float) -> str:
    """Return the target and whether it is met."""
    return f"target {target:.1f}: {'met' if ratio >= target else 'MISSED'}"


def titled(title: str, setting: str) -> str:
    """Return a contender's name with its setting, if it has a choice."""
    return f"{title} ({setting})" if setting else title


if __name__ == "__main__":
    main()
