"""The options of a dataset, each once: of `tokenfeed serve` and other commands, and of `file:`
targets. The same text is the same value, or the same refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenfeed.errors import InvalidRequest, Option

from ..storage.documents import Delimiters
from ..storage.door import problem_of_writing
from ..storage.formats import FORMAT_NAMES, ROW_TOKENS_MAX, ROW_TOKENS_MIN, STORED, FormatOptions
from ..storage.option_names import (
    CACHE_DIR,
    DTYPE,
    END_TOKEN,
    FORMAT,
    IMMUTABLE,
    LOSS_MASK,
    MIXED_SPLITS,
    READ,
    REDACTIONS,
    ROW_TOKENS,
    START_TOKEN,
    VOCAB_SIZE,
)
from ..storage.store import WAYS

VOCAB_SIZE_MAX = (1 << 32) - 1
"""Ids are served as uint32 at most."""

Refuse = Callable[[Option, str], InvalidRequest]
"""Returns the error of an option with a problem, as who has set the option writes it."""


class OptionValues(NamedTuple):
    """The values that an option takes.

    what: what it is of the files, in a few words.  default: what holds without it, in words; "": it
    need not be said.  metavar: what stands for its value; "" if it takes none.  values: all that
    there are.  limits: the least and the greatest number.
    """

    what: str
    default: str = ""
    metavar: str = ""
    values: Sequence[str] | None = None
    limits: tuple[int, int] | None = None


OPTIONS: Mapping[Option, OptionValues] = {
    FORMAT: OptionValues("file format", default="detected", metavar="FORMAT", values=FORMAT_NAMES),
    DTYPE: OptionValues(
        "integer type of the tokens, for files that do not record it",
        default="uint16",
        metavar="TYPE",
        values=tuple(STORED),
    ),
    READ: OptionValues(
        "way to read the files, through a memory map or by pread calls",
        default="pread on network file systems, else map",
        metavar="WAY",
        values=WAYS,
    ),
    IMMUTABLE: OptionValues(
        "declare that the files never change while they are served, so that they are not polled "
        "for changes"
    ),
    MIXED_SPLITS: OptionValues(
        "serve the files as one dataset, although their names say that they are several splits, "
        "such as train and val"
    ),
    LOSS_MASK: OptionValues(
        "loss mask of one dataset: for each token file, in order, a mask file with one byte per "
        "token, 1 if the token is a training target, else 0",
        default="X.ds.loss beside X.ds",
        metavar="PATH",
    ),
    CACHE_DIR: OptionValues(
        "folder for indices of documents, which say where documents begin, and which documents "
        "each row of the order packed holds",
        default="beside the token files",
        metavar="DIR",
    ),
    REDACTIONS: OptionValues(
        "file with the list of redacted tokens, which tokenfeed redact has written",
        default="beside the token files",
        metavar="FILE",
    ),
    VOCAB_SIZE: OptionValues(
        "number of token ids of the tokenizer; the server refuses files with an id of N or more "
        "(of a corpus above 1 GiB, only a sample of the tokens is checked)",
        metavar="N",
        limits=(1, VOCAB_SIZE_MAX),
    ),
    END_TOKEN: OptionValues(
        "token id that ends each document, for file formats that do not record where documents "
        "begin",
        metavar="ID",
        limits=(0, VOCAB_SIZE_MAX),
    ),
    START_TOKEN: OptionValues(
        "token id that begins each document, for file formats that do not record where documents "
        "begin",
        metavar="ID",
        limits=(0, VOCAB_SIZE_MAX),
    ),
    ROW_TOKENS: OptionValues(
        "declare that the files hold finished rows of N tokens, which do not overlap; each is then "
        "one row of a batch with context length N - 1",
        default="a file is one sequence, which is cut into rows of any length",
        metavar="N",
        limits=(ROW_TOKENS_MIN, ROW_TOKENS_MAX),
    ),
}
BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class PlaneOptions:
    """Where the planes of a dataset are.

    loss_masks: paths of masks, one for each file; none: those beside the files.  delimiters: tokens
    that separate documents, where the format knows nothing of them.  cache_dir: folder for the
    indices of documents; None: beside the files.  redactions: path of the list of redacted tokens;
    None: beside the files.
    """

    loss_masks: Sequence[str] = ()
    delimiters: Delimiters = field(default_factory=Delimiters)
    cache_dir: str | None = None
    redactions: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The values of one dataset.

    formats: of its files.  read: one of WAYS; None: by the file system.  vocab_size: None if it is
    unknown.  planes: where its planes are.
    """

    formats: FormatOptions
    read: str | None
    vocab_size: int | None
    planes: PlaneOptions


def parse_options(
    given: Mapping[Option, str],
    refuse: Refuse,
    *,
    tensor: str | None = None,
    masks: Sequence[str] = (),
    are_general: bool = False,
) -> DatasetOptions:
    """Return the values of a dataset.

    given: as text.  tensor: which one of each file is meant.  masks: the files of its loss masks.
    are_general: whether its delimiters were given for several datasets.
    Raises: InvalidRequest, as refuse makes it.
    """
    for option, text in given.items():
        require_value(option, text, refuse)

    def number(option: Option) -> int | None:
        return int(given[option]) if option in given else None

    ends, starts = number(END_TOKEN), number(START_TOKEN)
    return DatasetOptions(
        FormatOptions.parse(given.get(FORMAT), given.get(DTYPE), tensor, number(ROW_TOKENS)),
        given.get(READ),
        number(VOCAB_SIZE),
        PlaneOptions(
            masks,
            Delimiters(ends, starts, are_general=are_general),
            given.get(CACHE_DIR),
            given.get(REDACTIONS),
        ),
    )


def require_value(option: Option, text: str, refuse: Refuse) -> None:
    """Raise InvalidRequest, as refuse makes it, unless a text is a value of an option."""
    takes = OPTIONS[option]
    if option is CACHE_DIR and (problem := problem_of_writing(text)):
        raise refuse(option, problem)
    if takes.limits is not None:
        least, most = takes.limits
        if not (re.fullmatch("[0-9]{1,10}", text) and least <= int(text) <= most):
            raise refuse(option, f"is {text!r}; it takes a number from {least} to {most}")
    elif takes.values is not None or not takes.metavar:
        values = takes.values or ("",)
        if text not in values:
            words = ", ".join(takes.values or ()) or "no value"
            raise refuse(option, f"is {text!r}; it takes {words}")
