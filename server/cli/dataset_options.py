"""The options that say which dataset a command is about, and what its files are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus, InvalidRequest

from ..datasets.sources import Source, parse_datasets
from ..storage.formats import FORMAT_NAMES, STORED, FormatOptions
from ..storage.store import WAYS


def add_dataset_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command be asked for one dataset: what `parse_dataset` understands."""
    parser.add_argument(
        "data",
        nargs="+",
        metavar="PATH",
        help="what --data of the server takes for one dataset: a file, or several files, a glob or "
        "a folder",
    )
    parser.add_argument("--format", choices=FORMAT_NAMES, help="(default: what they look like)")
    parser.add_argument(
        "--dtype", choices=tuple(STORED), help="of tokens in files that do not say it"
    )
    parser.add_argument(
        "--read",
        choices=WAYS,
        help="how the files are read (default: pread on network file systems, else map)",
    )


def parse_dataset(arguments: argparse.Namespace) -> tuple[Source, FormatOptions]:
    """Return the dataset that a command was asked for.  Raises: InvalidCorpus."""
    source, *others = parse_datasets(arguments.data)
    if others:
        folder = arguments.data[0]
        raise InvalidCorpus(folder, f"holds several datasets; name one: {folder}/{source.name}")
    return source, FormatOptions.parse(arguments.format, arguments.dtype, source.tensor)


def parse_per_dataset(
    option: str, words: Sequence[str], names: Sequence[str]
) -> dict[str, str | None]:
    """Return what [NAME=]VALUE words say of each of the named datasets; None: nothing.

    A value with a name goes before one without, and a later one before an earlier one.
    Raises: InvalidRequest, its subject option, for an unknown name.
    """
    general: str | None = None
    said: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.rpartition("=")
        if not equals:
            general = value
        elif name in names:
            said[name] = value
        else:
            raise InvalidRequest(option, f"no dataset is named {name!r}, but {', '.join(names)}")
    return {name: said.get(name, general) for name in names}
