"""Several checkouts of tokenfeed, for benchmarks that compare them. Not a benchmark itself."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import commit
from benchmarks.serving import ROOT

_NEEDED = ("client/__init__.py", "server/__main__.py")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout.  title: for the tables, different for each, even if two are the same folder."""

    folder: Path
    title: str


def add_checkouts(parser: argparse.ArgumentParser) -> None:
    """Add --checkout."""
    parser.add_argument(
        "--checkout",
        nargs="+",
        type=_folder,
        default=[ROOT],
        metavar="DIR",
        help="run the tokenfeed of each of these alternately (default: this one)",
    )


def titled(folders: list[Path]) -> list[Checkout]:
    """Return the checkouts in these folders."""
    return [
        Checkout(folder, f"{number}: {folder.name} {commit(folder)}")
        for number, folder in enumerate(folders, 1)
    ]


def _folder(text: str) -> Path:
    folder = Path(text).resolve()
    for name in _NEEDED:
        # Otherwise Python would take it from somewhere else, and we would measure that.
        if not (folder / name).is_file():
            raise argparse.ArgumentTypeError(f"{text} is no checkout: it has no {name}")
    return folder
