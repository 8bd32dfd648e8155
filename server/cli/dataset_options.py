"""The options of commands that open one dataset."""

from __future__ import annotations

import argparse
import os
from collections.abc import Container, Sequence

from tokenfeed.errors import InvalidCorpus, InvalidRequest

from ..datasets.loss_masks import OPTION
from ..datasets.opening import PlaneOptions
from ..datasets.redactions.opening import OPTION as REDACTIONS_OPTION
from ..datasets.sources import DatasetSource, parse_datasets, without_name
from ..datasets.sources.paths import MASK_SUFFIXES, expand
from ..datasets.sources.splits import OPTION as SPLITS_OPTION
from ..storage.borders import END_OPTION, START_OPTION, Delimiters
from ..storage.formats import (
    FORMAT_NAMES,
    ROW_OPTION,
    ROW_TOKENS_MAX,
    ROW_TOKENS_MIN,
    STORED,
    FormatOptions,
)
from ..storage.store import WAYS

_DIGITS_MAX = 19


def add_dataset_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `parse_dataset` reads."""
    parser.add_argument(
        "data",
        nargs="+",
        metavar="PATH",
        help="the files of one dataset, as in --data of the server: files, a glob or a folder",
    )
    parser.add_argument("--format", choices=FORMAT_NAMES, help="file format (default: detected)")
    parser.add_argument(
        "--dtype",
        choices=tuple(STORED),
        help="token type for files that do not record one (default: uint16)",
    )
    parser.add_argument(
        ROW_OPTION, metavar="N", help="the files are rows of N tokens, as for the server"
    )
    add_splits_argument(parser)
    parser.add_argument(
        "--read",
        choices=WAYS,
        help="how to read the files (default: pread on network file systems, else map)",
    )


def add_splits_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option by which files of several splits are one dataset."""
    parser.add_argument(
        SPLITS_OPTION,
        action="store_true",
        help="take files as one dataset whose names are those of several splits, as train and val",
    )


def add_redactions_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of a command that opens one dataset to read it."""
    parser.add_argument(
        REDACTIONS_OPTION,
        metavar="FILE",
        help="list of its redacted tokens, which tokenfeed redact writes (default: beside the "
        "token files)",
    )


def add_plane_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options that `parse_planes` reads, but for --cache-dir and --redactions."""
    parser.add_argument(
        OPTION,
        nargs="+",
        action="append",
        default=[],
        metavar=("[NAME=]PATH", "PATH"),
        help="loss mask of one dataset: for each of its files, in order, a file of one byte per "
        "token, 1 if the token is a training target, else 0; may be given several times (default: "
        "X.ds.loss beside X.ds)",
    )
    for option, what in ((END_OPTION, "ends"), (START_OPTION, "begins")):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="[NAME=]ID",
            help=f"token that {what} each document of one or all datasets whose format does not "
            "know its documents; may be given several times",
        )


def parse_dataset(arguments: argparse.Namespace) -> tuple[DatasetSource, FormatOptions]:
    """Return the dataset of a command line.  Raises: InvalidCorpus."""
    sources = parse_datasets(arguments.data, mixed_splits=arguments.mixed_splits)
    if len(sources) > 1:
        folders = [os.path.dirname(one.paths[0]) for one in sources]
        raise InvalidCorpus(
            arguments.data[0], f"has several datasets; pass one: {' or '.join(folders)}"
        )
    (source,) = sources
    rows = row_tokens(arguments.row_tokens)
    return source, FormatOptions.parse(arguments.format, arguments.dtype, source.tensor, rows)


def row_tokens(word: str | None) -> int | None:
    """Return the value of --row-tokens; None if it was not given.  Raises: InvalidRequest."""
    if word is None:
        return None
    number = _number(word)
    if number is None or not ROW_TOKENS_MIN <= number <= ROW_TOKENS_MAX:
        problem = f"{word!r} is no number from {ROW_TOKENS_MIN} to {ROW_TOKENS_MAX}"
        raise InvalidRequest(ROW_OPTION, problem)
    return number


def parse_per_dataset(
    option: str, words: Sequence[str], names: Sequence[str]
) -> dict[str, str | None]:
    """Return the value of each dataset from [NAME=]VALUE words; None if there is none.

    A value with a name overrides one without, and a later one overrides an earlier one.
    Raises: InvalidRequest with this option as its subject, for an unknown name.
    """
    general: str | None = None
    by_name: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.rpartition("=")
        if not equals:
            general = value
        elif name in names:
            by_name[name] = value
        else:
            raise InvalidRequest(option, f"no dataset is named {name!r}, only {', '.join(names)}")
    return {name: by_name.get(name, general) for name in names}


def parse_planes(
    arguments: argparse.Namespace,
    names: Sequence[str],
    cache_dir: str | None = None,
    redactions: Sequence[str] = (),
) -> dict[str, PlaneOptions]:
    """Return where the planes of each dataset are.

    cache_dir, redactions: those of the command line, redactions as [NAME=]FILE words.
    Raises: InvalidRequest, InvalidCorpus.
    """
    masks = _parse_loss_masks(arguments.loss_mask, names)
    lists: dict[str, str] = {}
    for word in redactions:
        name, path = _of_one_dataset(REDACTIONS_OPTION, word, names, lists)
        lists[name] = path
    ends = parse_per_dataset(END_OPTION, arguments.document_end_token, names)
    starts = parse_per_dataset(START_OPTION, arguments.document_start_token, names)
    words = [*arguments.document_end_token, *arguments.document_start_token]
    with_own = {word.rpartition("=")[0] for word in words}
    return {
        name: PlaneOptions(
            masks.get(name, ()),
            Delimiters(
                _token(END_OPTION, ends[name]),
                _token(START_OPTION, starts[name]),
                are_general=len(names) > 1 and name not in with_own,
            ),
            cache_dir,
            lists.get(name),
        )
        for name in names
    }


def _token(option: str, word: str | None) -> int | None:
    """Return a token id.  Raises: InvalidRequest."""
    if word is None:
        return None
    token = _number(word)
    if token is None:
        raise InvalidRequest(option, f"{word!r} is not a token id")
    return token


def _number(word: str) -> int | None:
    """Return the number that a word is; None if it is none, or too long."""
    is_number = word.isascii() and word.isdecimal() and len(word) <= _DIGITS_MAX
    return int(word) if is_number else None


def _parse_loss_masks(
    options: Sequence[Sequence[str]], names: Sequence[str]
) -> dict[str, list[str]]:
    """Return the paths of the masks of datasets, by name, from the words of each --loss-mask:
    [NAME=]PATH [PATH ...]. A folder or a glob is all its files, in order.

    Raises: InvalidRequest for an unknown, missing or repeated name; InvalidCorpus for a path.
    """
    found: dict[str, list[str]] = {}
    for words in options:
        name, first = _of_one_dataset(OPTION, words[0], names, found)
        found[name] = [path for word in (first, *words[1:]) for path in expand(word, MASK_SUFFIXES)]
    return found


def _of_one_dataset(
    option: str, word: str, names: Sequence[str], others: Container[str]
) -> tuple[str, str]:
    """Return the name of a dataset, and the path, of a [NAME=]PATH word.

    others: the datasets whose path is known.
    Raises: InvalidRequest, whose subject is the option, for an unknown, missing or repeated name.
    """
    name, path = without_name(word)
    if not name and len(names) > 1:
        problem = f"does not say of which dataset, {' or '.join(names)}, it is"
        raise InvalidRequest(option, f"{problem}; pass {option} NAME={path}")
    name = name or names[0]
    if name not in names:
        problem = f"no dataset is named {name!r}, only {', '.join(names)}"
        raise InvalidRequest(option, problem)
    if name in others:
        problem = f"is given twice for dataset {name!r}; pass all its files in one option"
        raise InvalidRequest(option, problem)
    return name, path
