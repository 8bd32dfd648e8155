"""How fast do batches arrive, and for how much processor time, compared with other data loaders?

Batches of 32 x 2048 as int64 (x, y), one client on this machine, on the CPU. Each run is a fresh
process; the contenders alternate, and all get the same memory (MALLOC). The first second of a run,
with its start-up, is reported separately. For contenders with several settings, a sweep finds the
best one for the rounds. Ratios refer to the first row, the limit: a bare gRPC stream, widened. The
last lines are the targets.
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

from benchmarks.report import print_columns, print_load, print_table
from benchmarks.rows import write_corpus

CORPUS_TOKENS = 1 << 28  # 512 MiB: in the page cache of any machine, and in no other cache
SWEEP_SECONDS = 1.0
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
"""Freed blocks stay in the process of every contender. With glibc's own thresholds those that do
not see to that themselves pay page faults with each batch, and look slower than they are."""
RUN_SECONDS_MAX = 120.0  # in addition to the measurement: some copy the corpus first
LOG_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class Contender:
    """A row of the tables: a data loader with the best of some settings.

    name: the module in benchmarks/peers.  needs: what it imports, and the name of its package.
    settings: only those of its settings that begin with this word compete for the row.
    """

    name: str
    title: str
    needs: tuple[str, str] = ("torch", "torch")
    settings: str = ""


BARE_GRPC = Contender("bare_grpc", "bare gRPC stream, widened", ("grpc", "grpcio"))
TOKENFEED = Contender("tokenfeed", "tokenfeed")
FLIGHT = Contender("flight", "Arrow Flight", ("pyarrow", "pyarrow"), settings="gathered")
FANCY_INDEX = Contender("fancy_index", "local file: numpy indexing, can fault")
LOCAL_AHEAD = Contender("tokenfeed_local", "local file: tokenfeed", settings="with its thread")
LOCAL = Contender("tokenfeed_local", "local file: tokenfeed", settings="without a thread")
DATALOADER = Contender("dataloader", "local file: DataLoader")
NANOGPT = Contender("nanogpt", "local file: nanoGPT get_batch")
CONTENDERS = (
    BARE_GRPC,
    TOKENFEED,
    FLIGHT,
    Contender("flight", "Arrow Flight", ("pyarrow", "pyarrow"), settings="prepared"),
    Contender("tcp", "raw TCP, not widened"),
    Contender("tfdata", "tf.data service", ("tensorflow", "tensorflow-cpu")),
    FANCY_INDEX,
    LOCAL_AHEAD,
    LOCAL,
    DATALOADER,
    NANOGPT,
    Contender("grain_peer", "local file: grain", ("grain", "grain")),
    Contender("litdata_peer", "local file: litdata", ("litdata", "litdata")),
    Contender("mosaicml", "local file: MosaicML streaming", ("streaming", "mosaicml-streaming")),
)
RATIO_TARGETS = (
    (TOKENFEED, BARE_GRPC, 0.55),
    (TOKENFEED, FLIGHT, 0.8),  # gathered: it does the work that we do
    (TOKENFEED, NANOGPT, 4.0),
    (LOCAL_AHEAD, DATALOADER, 1.3),
    (LOCAL_AHEAD, NANOGPT, 10.0),
    (LOCAL, FANCY_INDEX, 0.65),
)
"""Tokens per second: the first is at least this multiple of the second."""
MS_PER_MIB_TARGET = 2.0
"""Processor time of tokenfeed, server and client: at most this."""
STEADY_TARGET = 0.8
"""The slowest run of tokenfeed: at least this multiple of the median."""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """What the rounds of a contender measured.  title: with its setting, for the tables."""

    title: str
    rounds: list[Figures]

    def column(self, key: str, unit: float = 1.0) -> list[float]:
        """Return one figure of each round."""
        return [figures[key] / unit for figures in self.rounds]

    def ms_per_mib(self) -> list[float]:
        """Return the processor time of both sides of each round."""
        sides = (self.column("server_ms_per_mib"), self.column("client_ms_per_mib"))
        return [server + client for server, client in zip(*sides, strict=True)]


Results = dict[Contender, Result]


def main() -> None:
    """Sweep, run the rounds, print three tables and a line for each target."""
    # By default SIGTERM ends Python without running `finally`, so a run would outlive us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    arguments = parse_arguments()
    print_load("before")
    contenders = installed([one for one in CONTENDERS if one.name in arguments.only])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.bin"
        write_corpus(path, arguments.tokens)
        chosen = best_settings(contenders, path)
        results = {one: Result(titled(one.title, chosen[one]), []) for one in chosen}
        for _ in range(arguments.rounds):
            for one, result in results.items():
                result.rounds.append(run(one, path, chosen[one], arguments.seconds))
    if results:
        print_tables(results)
        print_targets(results)
    print_load("after")


def parse_arguments() -> argparse.Namespace:
    """Return the arguments."""
    names = list(dict.fromkeys(one.name for one in CONTENDERS))
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


def best_settings(contenders: Iterable[Contender], path: Path) -> dict[Contender, str]:
    """Return the fastest setting of each, without those that fail with all settings."""
    chosen = {}
    for one in contenders:
        settings = importlib.import_module(f"benchmarks.peers.{one.name}").SETTINGS
        figures = sweep(one, [name for name in settings if name.startswith(one.settings)], path)
        if figures:
            chosen[one] = max(figures, key=figures.__getitem__)
        if len(figures) > 1:
            rows = {name: [figure / 1e6] for name, figure in figures.items()}
            print_table(f"{titled(one.title, one.settings)}: a sweep", "Mtok/s", rows)
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
        env=os.environ | MALLOC,
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


def print_tables(results: Results) -> None:
    """Print the rates, and the processor time."""
    for key, title in (("after", "delivered"), ("first_second", "in the first second")):
        rates = {result.title: result.column(key, 1e6) for result in results.values()}
        print_table(f"{title}, 32 x 2048 as int64 (x, y)", "Mtok/s", rates)
        print()
    times = {
        result.title: (
            median(result.column("server_ms_per_mib")),
            median(result.column("client_ms_per_mib")),
            median(result.ms_per_mib()),
        )
        for result in results.values()
    }
    print_columns("median processor time, ms a MiB", ("server", "client", "sum"), times)
    print()


def print_targets(results: Results) -> None:
    """Print a line for each target, and the other ratios of tokenfeed."""
    for one, other, target in RATIO_TARGETS:
        if one in results and other in results:
            print(compared(results[one], results[other], target))
        else:
            names = " / ".join(titled(row.title, row.settings) for row in (one, other))
            print(f"{names}: not checked (target {target:g})")
    if TOKENFEED not in results:
        print("tokenfeed: neither processor time nor steadiness checked")
        return
    ours = results[TOKENFEED]
    aimed = {other for one, other, _ in RATIO_TARGETS if one == TOKENFEED}
    for other, theirs in results.items():
        if other != TOKENFEED and other not in aimed:
            print(compared(ours, theirs, None))
    times = ours.ms_per_mib()
    spent = verdict(median(times) <= MS_PER_MIB_TARGET, f"at most {MS_PER_MIB_TARGET:g}")
    print(f"tokenfeed, server + client: {median(times):.2f} ms a MiB ({spent}; {by_round(times)})")
    rates = ours.column("after")
    steady = min(rates) / median(rates)
    kept = verdict(steady >= STEADY_TARGET, f"{STEADY_TARGET:g}")
    print(f"tokenfeed, lowest / median of {len(rates)} fresh processes: {steady:.2f} ({kept})")


def compared(ours: Result, theirs: Result, target: float | None) -> str:
    """Return the ratio of the median rates, the target, and the range of the rounds' ratios.

    target: None if there is none.
    """
    our_rates, their_rates = ours.column("after"), theirs.column("after")
    ratio = median(our_rates) / median(their_rates)
    spread = by_round([our / their for our, their in zip(our_rates, their_rates, strict=True)])
    aim = "no target" if target is None else verdict(ratio >= target, f"{target:g}")
    return f"{ours.title} / {theirs.title}: {ratio:.2f} ({aim}; {spread})"


def by_round(figures: Iterable[float]) -> str:
    """Return the range of the figures of all rounds."""
    ordered = sorted(figures)
    return f"by round {ordered[0]:.2f} to {ordered[-1]:.2f}"


def verdict(met: bool, target: str) -> str:
    """Return the target and whether it is met."""
    return f"target {target}: {'met' if met else 'MISSED'}"


def titled(title: str, setting: str) -> str:
    """Return a contender's name with its setting, if it has a choice."""
    return f"{title} ({setting})" if setting else title


if __name__ == "__main__":
    main()
