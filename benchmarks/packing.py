"""How full are rows of documents, what is cropped, and what does packing cost?

Each packer gets the lengths of the documents of a corpus and returns the pieces of every row; its
module in benchmarks/peers/packing says what it does. Each run is a fresh process; the packers
alternate, and the times are medians of the rounds. The other figures do not change. The corpora are
lengths drawn at random (see benchmarks/packing_lengths.py), and with --tokenizer texts, too:
each .txt file of a folder, and the parts of a text between empty lines.

fill: share of the positions of x and y that have a target of the same document.  cropped: share of
the tokens that are in no row.  no target: share of the tokens behind the first of their document
that are never a target; a cut without overlap leaves out one.  padded: share of the tokens of all
rows.  pieces: of a row, 99th percentile and most.  time: of a document, to that of packed-1.
Run: python -m benchmarks.packing [--rounds 3] [--documents 100000] [--context-lengths 2048 8192]
     [--tokenizer FILE [--folder DIRECTORY] [--speeches FILE]] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.delivered import Contender, ContenderFailed, installed, titled, verdict
from benchmarks.mixture_changes import output_of
from benchmarks.packing_lengths import LOG_NORMAL, Numbers, drawn, of_files, of_speeches
from benchmarks.packing_run import Figures
from benchmarks.report import heading, print_load

PACKERS = (
    Contender("tokenfeed", "packed-1", ("numpy", "numpy")),
    Contender("first_fit", "first-fit decreasing", ("numpy", "numpy")),
    Contender("nanochat", "nanochat's rule", ("numpy", "numpy")),
    Contender("olmo", "OLMo-core", ("olmo_core", "ai2-olmo-core")),
    Contender("trl_peer", "TRL", ("trl", "trl")),
)
OURS = "packed-1"
ROWS_MAX = 1.002
"""Of packed-1 on web-like lengths, to the rows that its tokens would fill without padding."""

COLUMNS = (
    f"{'rows':>8} {'fill %':>8} {'cropped %':>10} {'no target %':>11} {'padded %':>8} "
    f"{'pieces':>11} {'seconds':>9} {'documents/s':>12} {'time':>7}"
)


def main() -> None:
    """Print a table for each corpus and context length."""
    # By default SIGTERM ends Python without running `finally`, so a run would outlive us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [packer.name for packer in PACKERS]
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--documents", type=int, default=100_000, help="that are drawn")
    parser.add_argument("--context-lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, for texts")
    parser.add_argument("--folder", type=Path, help="of .txt files, each a document")
    parser.add_argument("--speeches", type=Path, help="text with empty lines between documents")
    arguments = parser.parse_args()
    wanted = {"tokenfeed", *arguments.only}
    packers = installed(packer for packer in PACKERS if packer.name in wanted)
    print_load("before")
    with tempfile.TemporaryDirectory() as folder:
        for title, lengths in corpora(arguments).items():
            path = Path(folder) / "lengths.npy"
            np.save(path, lengths)
            for context_length in arguments.context_lengths:
                print(f"\n{heading(f'{title}, T = {context_length}')}")
                print(f"{'':36} {COLUMNS}")
                print_packers(packers, path, context_length, arguments.rounds, title)
    print_load("after")


def corpora(arguments: argparse.Namespace) -> dict[str, Numbers]:
    """Return the lengths of the documents of each corpus, by what it is."""
    found = {}
    for kind, (center, sigma) in LOG_NORMAL.items():
        about = f"{kind}-like: log-normal, median {center:g}, sigma {sigma:g}"
        found[about] = drawn(kind, arguments.documents)
    if arguments.tokenizer and arguments.folder:
        found[f"files of {arguments.folder.name}"] = of_files(arguments.folder, arguments.tokenizer)
    if arguments.tokenizer and arguments.speeches:
        name = f"parts of {arguments.speeches.name}"
        found[name] = of_speeches(arguments.speeches, arguments.tokenizer)
    return {
        f"{about}; {lengths.size:,} documents, {lengths.sum():,} tokens": lengths
        for about, lengths in found.items()
    }


def print_packers(
    packers: list[Contender], path: Path, context_length: int, rounds: int, title: str
) -> None:
    """Print a row for each way to pack a corpus, and whether the target is met."""
    ways = [
        (packer, setting)
        for packer in packers
        for setting in import_module(f"benchmarks.peers.packing.{packer.name}").SETTINGS
    ]
    runs: dict[str, list[Figures]] = {}
    failed: dict[str, ContenderFailed] = {}
    for number in range(rounds):
        for packer, setting in ways[:: -1 if number % 2 else 1]:
            name = titled(packer.title, setting)
            try:
                runs.setdefault(name, []).append(run(packer, setting, path, context_length))
            except ContenderFailed as error:
                failed[name] = error
    first = median(one.seconds for one in runs[OURS]) / runs[OURS][0].documents
    for packer, setting in ways:
        name = titled(packer.title, setting)
        print(f"{name:36} {failed[name] if name in failed else line(runs[name], first)}")
    if title.startswith("web"):
        ratio = runs[OURS][0].rows / runs[OURS][0].bound
        met = verdict(ratio <= ROWS_MAX, f"at most {ROWS_MAX:g}")
        print(f"rows of {OURS} / rows without padding: {ratio:.5f} ({met})")


def run(packer: Contender, setting: str, path: Path, context_length: int) -> Figures:
    """Return what a fresh process prints.  Raises: ContenderFailed."""
    command = [sys.executable, "-m", f"benchmarks.peers.packing.{packer.name}"]
    command += ["--lengths", str(path), "--context-length", str(context_length)]
    return Figures(**json.loads(output_of([*command, "--setting", setting])))


def line(runs: list[Figures], first: float) -> str:
    """Return the cells of one way.  first: the seconds of packed-1 for a document."""
    one, seconds = runs[0], median(run.seconds for run in runs)
    return (
        f"{one.rows:8,} {100 * one.fill:8.3f} {100 * one.cropped:10.3f} "
        f"{100 * one.untargeted:11.3f} {100 * one.padded:8.3f} "
        f"{f'{one.pieces_99:.0f}, {one.pieces_max}':>11} {seconds:9.3f} "
        f"{one.documents / seconds:12,.0f} {seconds / one.documents / first:7.1f}"
    )


if __name__ == "__main__":
    main()
