"""The options of the client's commands, one function for each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tokenfeed.client.feed.mixture.recipe import GROUP_TOKENS
from tokenfeed.commands import COMMANDS, program
from tokenfeed.commands.prices import add_prices
from tokenfeed.sampling import orders
from tokenfeed.sampling.orders import padded_v1

from .bench import run_bench
from .describe import run_describe
from .doctor.run import run_doctor
from .plan.run import run_plan
from .provenance.explain import run_explain
from .provenance.find import run_find
from .provenance.manifest import run_manifest
from .show import run_show
from .top.run import run_top

_ENVIRONMENT = (
    "TLS files and a token are read from the environment: TOKENFEED_TLS_CA, TOKENFEED_TLS_CERT, "
    "TOKENFEED_TLS_KEY, and TOKENFEED_TOKEN or TOKENFEED_TOKEN_FILE"
)
_SERVER = "address of a server, or unix:PATH"
_ONLY_SERVERS = ("describe", "top")
_OWN_TARGETS = ("plan", "doctor")
_NEEDED_TOKENS_PER_SECOND = 5e6
"""What eight GPUs of one machine take of a small model: 0.5 million tokens/s each is fast for 124
million parameters. Larger models take far less."""
_ORDERS = tuple(orders.LATEST)
_LONG = padded_v1.LONG_DOCUMENTS
_LONG_HELP = (
    'what the order "padded" does with a document that is longer than a row (default: cut it into '
    "several rows)"
)
GROUP_TOKENS_HELP = (
    'size in tokens of the groups within which the order "blocks" shuffles; in a mixture, the '
    "total over all sources (default: %(default)s)"
)
_Add: TypeAlias = "Callable[..., argparse.Action]"
_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("client"),
        description="Query a tokenfeed server, or read local files.",
        epilog="example: tokenfeed describe localhost:50051",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for add_command in (
        *(_add_describe, _add_show, _add_plan, _add_explain, _add_find, _add_manifest),
        *(_add_doctor, _add_bench, _add_top),
    ):
        add_command(commands)
    return parser


def _add_command(
    commands: _Commands,
    name: str,
    run: Callable[..., int | None],
    description: str,
    *,
    example: str = "",
    usage: str | None = None,
) -> _Add:
    """Add a command.  Returns: what adds its options."""
    environment = _ENVIRONMENT
    if name == "top":
        environment = environment.replace("TOKENFEED_TOKEN", "TOKENFEED_STATUS_TOKEN")
    epilog = f"example: tokenfeed {name} {example}localhost:50051. {environment}"
    added = commands.add_parser(
        name, help=COMMANDS[name].purpose, description=description, epilog=epilog, usage=usage
    )
    added.set_defaults(run=run, parser=added)
    if name not in _OWN_TARGETS:
        local = "" if name in _ONLY_SERVERS else "; or file:PATH, for local files"
        added.add_argument("target", metavar="TARGET", help=f"{_SERVER}{local}")
    return added.add_argument


def _add_describe(commands: _Commands) -> None:
    description = "Print what a server serves: datasets, orders, fingerprints and limits."
    add = _add_command(commands, "describe", run_describe, description)
    add(
        "--context-length",
        type=int,
        metavar="T",
        help="also print how many rows of context length T an epoch has, in each order that cuts "
        "the files into windows",
    )
    add(
        "--order",
        choices=[name for name in orders.LATEST if orders.latest(name).LONG_DOCUMENTS],
        help="also print how many rows one dataset has in this order, which makes rows of "
        "documents; the server makes these rows if they are not made yet",
    )
    add("--long", choices=_LONG, help=_LONG_HELP)
    add("--dataset", default="", help="name of the one dataset to describe (default: all)")


def _add_show(commands: _Commands) -> None:
    description = "Print one batch, as token ids or as text."
    add = _add_command(commands, "show", run_show, description)
    _add_stream_arguments(add, batch_size=4, context_length=64)
    add(
        "--start-sample",
        type=int,
        default=0,
        metavar="SAMPLE",
        help="number of the first row in the stream, from 0 (default: %(default)s)",
    )
    add(
        "--tokenizer",
        metavar="PATH",
        help="print the rows as text, decoded with this tokenizer.json (needs the tokenizers "
        'package), or with "bytes"',
    )


def _add_plan(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "plan",
        run_plan,
        "Compute from the sizes of datasets what a mixture will do. Print the samples (rows), "
        "tokens and epochs of each source (dataset) in each stage (part of the run with the same "
        "weights), where stages begin, and where a source is exhausted. This reads no rows.",
        example="mixture.toml --tokens 1e12 --context-length 4096 ",
        usage="%(prog)s [PATH] TARGET --tokens N [--context-length T] [options]",
    )
    add(
        "words",
        nargs="*",
        metavar="PATH TARGET",
        help="first the TOML file of a mixture, which you can omit with "
        f"--state; then the {_SERVER}, or file:PATH for local files",
    )
    add(
        "--tokens",
        required=True,
        metavar="N",
        help="number of tokens of the whole run, such as 1e12 or 2_000_000_000; it is rounded up "
        "to whole rows",
    )
    number = partial(add, type=int)
    number(
        "--context-length",
        metavar="T",
        help="context length: number of tokens of x in a row (default: that of --state)",
    )
    add(
        "--change-context-length",
        action="append",
        metavar="WHEN=T",
        help="change the context length to T at a sample (row number) or after a number of tokens, "
        'such as "2e11 tokens=32768"; may be given several times, in ascending order',
    )
    add(
        "--order",
        choices=_ORDERS,
        help="order of the datasets for which the file of the mixture names no order (default: "
        "shuffled)",
    )
    number(
        "--seed",
        help="seed of the mixture, for a mixture file that sets no seed (default: the seed in "
        "--state, or 0)",
    )
    number("--group-tokens", default=GROUP_TOKENS, metavar="N", help=GROUP_TOKENS_HELP)
    number(
        "--global-batch-size",
        metavar="N",
        help="number of rows that all ranks together read in a step; with this option, plan shows "
        "the delay of each stage in steps too, and proposes smaller blocks of the mixture if a "
        "stage begins more than 50 steps late",
    )
    add_prices(add)
    _add_plan_files(add)


def _add_plan_files(add: _Add) -> None:
    """Add what a plan starts from, and how it is printed."""
    add(
        "--state",
        metavar="PATH",
        help="JSON file of a feed's state_dict(): show what the run has read, and plan the rest "
        "of the run; if you pass a mixture too, the plan is for a feed of that mixture that loads "
        "this state",
    )
    add(
        "--allow-mixture",
        action="store_true",
        help="accept a mixture that differs from the one in --state, as load_state_dict(state, "
        'allow=("mixture",)) does',
    )
    _add_json(add)


def _add_explain(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "explain",
        run_explain,
        "Print where the rows of a training step came from: the dataset, file, document and token "
        "range of each row, and its text. The run's checkpoint records which rows each step had.",
        example="--state CHECKPOINT --step 41000 --rank 3 ",
    )
    _add_state(add)
    _add_run(add)
    number = partial(add, type=int)
    number(
        "--step",
        metavar="N",
        help="number of the training step, from 0 (default with --state: the last step of the run)",
    )
    number(
        "--sample",
        metavar="N",
        help="print a single row, given by its number in the stream (its sample index), instead of "
        "the rows of a step",
    )
    number("--rank", metavar="R", help="print only the rows of this rank (default: all ranks)")
    number(
        "--row",
        metavar="I",
        help="print only the row with this number, from 0, of each rank's batch (default: all "
        "rows)",
    )
    add(
        "--tokenizer",
        metavar="PATH",
        help="also print the rows as text, decoded with this tokenizer.json (needs the tokenizers "
        'package), or with "bytes"',
    )
    _add_assumed_stream(add)


def _add_find(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "find",
        run_find,
        "Print where a run reads a document, or a range of tokens: in which samples (rows of the "
        "stream), steps, ranks and rows of a batch, and which of these the run has seen.",
        example="--dataset web --document 71234 --state CHECKPOINT ",
    )
    number = partial(add, type=int)
    add("--id", metavar="ID", help="find all documents with this id")
    number(
        "--document", metavar="N", help="find the document with this number in the dataset, from 0"
    )
    add(
        "--file",
        metavar="NAME",
        help="find tokens of this file of the dataset; NAME is without the folder",
    )
    number(
        "--file-number",
        metavar="N",
        help="find tokens of the file with this number in the dataset, from 0",
    )
    number(
        "--token",
        metavar="N",
        help="start of the range to look up: position of its first token in the file (the file's "
        "first token is 0)",
    )
    number(
        "--tokens",
        metavar="COUNT",
        default=1,
        help="length of the range to look up, in tokens (default: %(default)s)",
    )
    _add_state(add)
    number(
        "--end-sample",
        metavar="N",
        help="also search the rows that the run has not read yet, up to this sample (row number)",
    )
    number(
        "--epochs",
        metavar="K",
        help="also search the rows that the run has not read yet, up to the end of epoch K - 1 of "
        "the dataset (epochs count from 0)",
    )
    _add_run(add)
    _add_assumed_stream(add)


def _add_manifest(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "manifest",
        run_manifest,
        "Write everything that a run has read, for each source (dataset) and epoch, as ranges of "
        "tokens. If a run has read a large part of an epoch, write the numbers of the rows "
        "instead, unless --expand is given.",
        example="--state CHECKPOINT --output manifest.jsonl ",
    )
    _add_state(add, is_required=True)
    add(
        "--dataset",
        default="",
        help="name of the dataset that the run has read, if it was not a mixture",
    )
    add(
        "--format",
        choices=("jsonl", "parquet"),
        default="jsonl",
        help="format of the output (default: %(default)s)",
    )
    add("--output", metavar="PATH", help="file to write (default: stdout)")
    add(
        "--expand",
        action="store_true",
        help="write token ranges for every epoch, also for one of which a large part was read",
    )


def _add_state(add: _Add, *, is_required: bool = False) -> None:
    add(
        "--state",
        metavar="PATH",
        required=is_required,
        help="checkpoint of the run: a file of torch.save, JSON or safetensors, a folder with "
        "such files, or one of torch.distributed.checkpoint; no code in it is run",
    )
    add(
        "--feed",
        metavar="WHERE",
        help="which state of a feed to use if the checkpoint has several: the keys that lead to "
        "it, joined by dots, such as train.feed",
    )


def _add_run(add: _Add) -> None:
    number = partial(add, type=int)
    number("--batch-size", metavar="B", help="number of rows that each rank reads in a step")
    number("--world-size", metavar="W", help="number of ranks")
    number(
        "--rows-max",
        default=100,
        metavar="N",
        help="maximum number of rows to print (default: %(default)s)",
    )


def _add_assumed_stream(add: _Add) -> None:
    """Add what selects a stream where no state does, and how it is printed."""
    number = partial(add, type=int)
    number("--context-length", metavar="T", help="without --state: number of tokens of x in a row")
    number("--seed", help="without --state: seed of the order (default: 0)")
    number(
        "--group-tokens",
        metavar="N",
        help="without --state: size in tokens of the groups within which the order "
        f'"blocks" shuffles (default: {GROUP_TOKENS})',
    )
    add("--dataset", default="", help="dataset name; optional if there is only one")
    add("--order", choices=_ORDERS, help="without --state: order of the rows (default: shuffled)")
    add("--long", choices=_LONG, help=f"without --state: {_LONG_HELP}")
    _add_json(add)


def _add_json(add: _Add) -> None:
    add("--json", action="store_true", help="print one JSON object")


def _add_doctor(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "doctor",
        run_doctor,
        "Examine servers from this machine, layer by layer: name, connection, TLS, token, "
        "contract (version of the protocol), clock, corpora, speed. The report says what is "
        "wrong, what to change, and whether the servers have the same corpora. The exit code is 0 "
        "if all is well, else the code of the lowest layer with a problem.",
        example="localhost:50052 ",
        usage="%(prog)s HOST:PORT [HOST:PORT ...] [options]",
    )
    add(
        "targets",
        nargs="+",
        metavar="TARGET",
        help=f"{_SERVER}; pass several addresses if they are replicas: servers of the same corpora",
    )
    add("--dataset", default="", help="dataset whose speed is measured (default: the largest one)")
    number = partial(add, type=float)
    number(
        "--seconds",
        default=2.0,
        help="how many seconds the speed of each server is measured; 0 measures no speed (default: "
        "%(default)s)",
    )
    number(
        "--timeout-seconds",
        default=5.0,
        help="how many seconds each check waits for an answer (default: %(default)s)",
    )
    number(
        "--tokens-per-second",
        default=_NEEDED_TOKENS_PER_SECOND,
        metavar="N",
        help="rate that all trainers of this machine need together; a lower measured rate is "
        "reported as a problem (default: %(default).0f)",
    )
    _add_json(add)


def _add_bench(commands: _Commands) -> None:
    description = "Measure how fast batches arrive on this machine; needs torch."
    add = _add_command(commands, "bench", run_bench, description)
    _add_stream_arguments(add, batch_size=32, context_length=2048)
    add(
        "--seconds",
        type=float,
        default=10.0,
        help="duration of the measurement in seconds (default: %(default)s)",
    )
    add("--device", default="cpu", help='torch device, such as "cuda:0" (default: %(default)s)')


def _add_top(commands: _Commands) -> None:
    description = (
        "Show what a server does and what needs attention, and refresh the screen until q or "
        "Ctrl-C. Where stdout is no terminal, print plain lines once. To ask a server on another "
        "machine, top needs a token from the server's --status-token-file."
    )
    add = _add_command(commands, "top", run_top, description)
    add(
        "--seconds",
        type=float,
        default=2.0,
        help="seconds between two requests to the server (default: %(default)s)",
    )
    add("--count", type=int, metavar="N", help="print plain lines N times, then exit")
    add("--json", action="store_true", help="print one JSON object per line instead of text")


def _add_stream_arguments(add: _Add, *, batch_size: int, context_length: int) -> None:
    """Add the options that select a stream, with the defaults of a command."""
    number = partial(add, type=int)
    number("--batch-size", default=batch_size, help="rows per batch (default: %(default)s)")
    number(
        "--context-length",
        default=context_length,
        metavar="T",
        help="context length: number of tokens of x in a row (default: %(default)s)",
    )
    number("--seed", default=0, help="seed of the order (default: %(default)s)")
    number("--group-tokens", default=GROUP_TOKENS, metavar="N", help=GROUP_TOKENS_HELP)
    add("--dataset", default="", help="dataset name; optional if there is only one")
    add(
        "--order",
        default=orders.DEFAULT_OF_FEEDS,
        choices=_ORDERS,
        help="order of the rows (default: %(default)s)",
    )
    add("--long", choices=_LONG, help=_LONG_HELP)
