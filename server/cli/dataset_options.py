"""The options of datasets on a command line: of one that opens several, or one alone."""

from __future__ import annotations

import argparse
import os
from collections.abc import Container, Sequence
from functools import partial

from tokenfeed.errors import InvalidCorpus, InvalidRequest, Option

from ..datasets.options import OPTIONS, DatasetOptions, parse_options, require_value
from ..datasets.sources import DatasetSource, parse_datasets, without_name
from ..datasets.sources.paths import MASK_SUFFIXES, expand
from ..storage.option_names import (
    DTYPE,
    END_TOKEN,
    FORMAT,
    LOSS_MASK,
    MIXED_SPLITS,
    READ,
    REDACTIONS,
    ROW_TOKENS,
    START_TOKEN,
)

DELIMITERS = (END_TOKEN, START_TOKEN)
"""May be given for one of several datasets by any command."""
PLANE_OPTIONS = (LOSS_MASK, *DELIMITERS)
"""The options of planes, for a command that makes them."""
_SEVERAL = "; may be given several times"


def add_dataset_arguments(parser: argparse.ArgumentParser, *more: Option) -> None:
    """Add the arguments that `parse_dataset` reads.  more: options that not all commands have."""
    parser.add_argument(
        "data",
        nargs="+",
        metavar="PATH",
        help="files of one dataset, in the same form as tokenfeed serve --data: files, a glob or a "
        "folder",
    )
    add_options(parser, FORMAT, DTYPE, ROW_TOKENS, MIXED_SPLITS, READ, *more)


def add_options(group: argparse._ActionsContainer, *options: Option, by_name: bool = False) -> None:
    """Add options of datasets.  by_name: whether there are several datasets, of which each may have
    a value of its own.
    """
    for option in options:
        takes = OPTIONS[option]
        add = partial(group.add_argument, option)
        default = f" (default: {takes.default})" if takes.default else ""
        if not takes.metavar:
            add(action="store_true", help=takes.what)
        elif option == LOSS_MASK:
            add(
                nargs="+",
                action="append",
                default=[],
                metavar=(f"[NAME=]{takes.metavar}", takes.metavar),
                help=takes.what + _SEVERAL + default,
            )
        elif by_name or option in DELIMITERS:
            values = f": {', '.join(takes.values)}" if takes.values else ""
            of_all = "" if option == REDACTIONS else "; NAME= limits it to one dataset"
            text = f"{takes.what}{values}{of_all}{_SEVERAL}{default}"
            metavar = f"[NAME=]{takes.metavar}"
            kind = partial(_of_a_dataset, option) if takes.values else str
            add(action="append", default=[], type=kind, metavar=metavar, help=text)
        else:
            shown = None if takes.values else takes.metavar
            add(choices=takes.values, metavar=shown, help=takes.what + default)


def parse_dataset(arguments: argparse.Namespace) -> tuple[DatasetSource, DatasetOptions]:
    """Return the dataset of a command line.  Raises: InvalidCorpus, InvalidRequest."""
    sources = parse_datasets(arguments.data, mixed_splits=arguments.mixed_splits)
    if len(sources) > 1:
        folders = [os.path.dirname(one.paths[0]) for one in sources]
        raise InvalidCorpus(
            arguments.data[0], f"has several datasets; pass one: {' or '.join(folders)}"
        )
    (source,) = sources
    return source, parse_all(arguments, sources)[source.name]


def parse_all(
    arguments: argparse.Namespace, sources: Sequence[DatasetSource]
) -> dict[str, DatasetOptions]:
    """Return the options of each dataset of a command line, by its name.

    Raises: InvalidRequest, InvalidCorpus.
    """
    names = [source.name for source in sources]
    given: dict[str, dict[Option, str]] = {name: {} for name in names}
    with_own = set()
    for option, takes in OPTIONS.items():
        value = getattr(arguments, option.name.replace("-", "_"), None)
        if value is None or not takes.metavar or option == LOSS_MASK:
            continue
        if not isinstance(value, list):
            found: dict[str, str | None] = dict.fromkeys(names, value)
        elif option == REDACTIONS:
            found = {}
            for word in value:
                name, found[name] = _of_one_dataset(option, word, names, found)
        else:
            found = parse_per_dataset(option, value, names)
        for name, text in found.items():
            if text is not None:
                given[name][option] = text
        if option in DELIMITERS:
            with_own |= {word.rpartition("=")[0] for word in value}
    masks = _parse_loss_masks(getattr(arguments, "loss_mask", ()), names)
    return {
        source.name: parse_options(
            given[source.name],
            refused,
            tensor=source.tensor,
            masks=masks.get(source.name, ()),
            are_general=len(names) > 1 and source.name not in with_own,
        )
        for source in sources
    }


def refused(option: Option, problem: str) -> InvalidRequest:
    """Return the error of an option of a command line."""
    return InvalidRequest(str(option), problem)


def _of_a_dataset(option: Option, word: str) -> str:
    """Return a word of the form [NAME=]VALUE with a value that the option takes."""
    try:
        require_value(option, word.rpartition("=")[2], refused)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(f"{word!r}: {error.problem}") from None
    return word


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


def _parse_loss_masks(
    options: Sequence[Sequence[str]], names: Sequence[str]
) -> dict[str, list[str]]:
    """Return the paths of the masks of datasets, by name, from the words of each --loss-mask:
    [NAME=]PATH [PATH ...]. A folder or a glob is all its files, in order.

    Raises: InvalidRequest for an unknown, missing or repeated name; InvalidCorpus for a path.
    """
    found: dict[str, list[str]] = {}
    for words in options:
        name, first = _of_one_dataset(LOSS_MASK, words[0], names, found)
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
