"""The options of explain, find and manifest."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tokenfeed.sampling import orders
from tokenfeed.sampling.orders import padded_v1

Add: TypeAlias = "Callable[..., argparse.Action]"

ROWS_MAX, ROWS_END = 100, 1 << 20


def add_explain(add: Add) -> None:
    """Add the options of explain."""
    _add_state(add)
    _add_run(add)
    number = partial(add, type=int)
    number("--step", metavar="N", help="a step of the run, from 0 (default with --state: the last)")
    number("--sample", metavar="N", help="a single sample of the stream, in place of a step")
    number("--rank", metavar="R", help="the rows of this rank (default: of all)")
    number("--row", metavar="I", help="this row of each rank (default: all)")
    _add_rows_max(add)
    add(
        "--tokenizer",
        metavar="PATH",
        help='print the text too: "bytes", or a tokenizer.json, which needs the tokenizers package',
    )
    _add_stream(add)
    _add_json(add)


def add_find(add: Add) -> None:
    """Add the options of find."""
    number = partial(add, type=int)
    add("--id", metavar="ID", help="all documents of this id")
    number("--document", metavar="N", help="the document of this number in the dataset")
    add("--file", metavar="NAME", help="a file of the dataset, without its folder")
    number("--file-number", metavar="N", help="the same by its number, from 0")
    number("--token", metavar="N", help="the first token, counted within that file")
    number("--tokens", metavar="COUNT", default=1, help="how many tokens (default: %(default)s)")
    _add_state(add)
    number("--end-sample", metavar="N", help="look at what is still to come up to this sample")
    number("--epochs", metavar="K", help="the same, up to the end of epoch K - 1 of the dataset")
    _add_run(add)
    _add_rows_max(add)
    _add_stream(add)
    _add_json(add)


def add_manifest(add: Add) -> None:
    """Add the options of manifest."""
    _add_state(add, is_required=True)
    add("--dataset", default="", help="name of the dataset of a run that is no mixture")
    add(
        "--format",
        choices=("jsonl", "parquet"),
        default="jsonl",
        help="how to write it (default: %(default)s)",
    )
    add("--output", metavar="PATH", help="where to write it (default: stdout)")
    add(
        "--expand",
        action="store_true",
        help="write the ranges of tokens of all epochs, however many rows of one were read",
    )


def _add_state(add: Add, *, is_required: bool = False) -> None:
    add(
        "--state",
        metavar="PATH",
        required=is_required,
        help="checkpoint of the run: a file of torch.save, JSON or safetensors, or a folder of "
        "torch.distributed.checkpoint; nothing in it is run",
    )
    add("--feed", metavar="WHERE", help="which of several states in it")


def _add_run(add: Add) -> None:
    number = partial(add, type=int)
    number("--batch-size", metavar="B", help="rows of a step and rank")
    number("--world-size", metavar="W", help="number of ranks")


def _add_rows_max(add: Add) -> None:
    add(
        "--rows-max",
        type=int,
        default=ROWS_MAX,
        metavar="N",
        help="how many rows to print at most (default: %(default)s)",
    )


def _add_stream(add: Add) -> None:
    """Add what selects a stream where no state does."""
    number = partial(add, type=int)
    number("--context-length", metavar="T", help="without --state: tokens of x in a row")
    number("--seed", help="without --state: seed of the order (default: 0)")
    number(
        "--group-tokens",
        metavar="N",
        help="without --state: tokens of a group of the order blocks (default: 536870912)",
    )
    add("--dataset", default="", help="dataset name; optional if there is only one")
    add(
        "--order",
        choices=tuple(orders.LATEST),
        help="without --state: order of the rows (default: shuffled)",
    )
    add(
        "--long",
        choices=padded_v1.LONG_DOCUMENTS,
        help="without --state: what the order padded does with documents longer than a row "
        "(default: cut)",
    )


def _add_json(add: Add) -> None:
    add("--json", action="store_true", help="print one JSON object")
