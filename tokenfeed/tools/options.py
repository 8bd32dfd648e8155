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
_LONG_HELP = "what the order padded does with documents longer than a row (default: cut)"
GROUP_TOKENS_HELP = (
    "tokens of a group of the order blocks, of all sources together (default: %(default)s)"
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
        help="also print how many rows of T tokens each order of windows has",
    )
    add(
        "--order",
        choices=[name for name in orders.LATEST if orders.latest(name).LONG_DOCUMENTS],
        help="also print those of an order over documents, which the server makes if there are "
        "none; of one dataset",
    )
    add("--long", choices=_LONG, help=_LONG_HELP)
    add("--dataset", default="", help="the only dataset to describe (default: all)")


def _add_show(commands: _Commands) -> None:
    description = "Print one batch, as token ids or as text."
    add = _add_command(commands, "show", run_show, description)
    _add_stream_arguments(add, batch_size=4, context_length=64)
    add(
        "--start-sample",
        type=int,
        default=0,
        metavar="SAMPLE",
        help="sample index of the first row, from 0 (default: %(default)s)",
    )
    add(
        "--tokenizer",
        metavar="PATH",
        help='print text: "bytes", or a tokenizer.json, which needs the tokenizers package',
    )


def _add_plan(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "plan",
        run_plan,
        "Print what a mixture will do, by the sizes of its datasets: samples, tokens and epochs of "
        "each source in each stage, where stages begin, and where sources are exhausted. Reads no "
        "row.",
        example="mixture.toml --tokens 1e12 --context-length 4096 ",
        usage="%(prog)s [PATH] TARGET --tokens N [--context-length T] [options]",
    )
    add(
        "words",
        nargs="*",
        metavar="PATH TARGET",
        help="the TOML file of a mixture, as Mixture.load reads it, which may be left out with "
        f"--state; and behind it the {_SERVER}; or file:PATH, for local files",
    )
    add(
        "--tokens",
        required=True,
        metavar="N",
        help="tokens of the whole run, such as 1e12 or 2_000_000_000, rounded up to a whole sample",
    )
    number = partial(add, type=int)
    number("--context-length", metavar="T", help="tokens of x in a row; default: that of --state")
    add(
        "--change-context-length",
        action="append",
        metavar="WHEN=T",
        help='another one from a sample or a number of tokens on, such as "2e11 tokens=32768"; '
        "several in ascending order",
    )
    add(
        "--order",
        choices=_ORDERS,
        help="order of the feed, for sources that have none in the file (default: shuffled)",
    )
    number("--seed", help="seed of the feed, if the file has none (default: that of --state, or 0)")
    number("--group-tokens", default=GROUP_TOKENS, metavar="N", help=GROUP_TOKENS_HELP)
    number(
        "--global-batch-size",
        metavar="N",
        help="rows of a step of all ranks: delays of stages are then shown in steps too, and "
        "smaller blocks are offered for more than 50 steps",
    )
    add_prices(add)
    _add_plan_files(add)


def _add_plan_files(add: _Add) -> None:
    """Add what a plan starts from, and how it is printed."""
    add(
        "--state",
        metavar="PATH",
        help="state_dict() of a feed, as JSON: show what was seen, and plan what comes after it; "
        "with a mixture, as a feed of that mixture that loads it",
    )
    add(
        "--allow-mixture",
        action="store_true",
        help='as load_state_dict(state, allow=("mixture",))',
    )
    _add_json(add)


def _add_explain(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "explain",
        run_explain,
        "Print where the rows of a step come from: dataset, file, document and tokens of each, and "
        "its text. The checkpoint of the run says what a step was.",
        example="--state CHECKPOINT --step 41000 --rank 3 ",
    )
    _add_state(add)
    _add_run(add)
    number = partial(add, type=int)
    number("--step", metavar="N", help="a step of the run, from 0 (default with --state: the last)")
    number("--sample", metavar="N", help="a single sample of the stream, in place of a step")
    number("--rank", metavar="R", help="the rows of this rank (default: of all)")
    number("--row", metavar="I", help="this row of each rank (default: all)")
    add(
        "--tokenizer",
        metavar="PATH",
        help='print the text too: "bytes", or a tokenizer.json, which needs the tokenizers package',
    )
    _add_assumed_stream(add)


def _add_find(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "find",
        run_find,
        "Print which samples, steps, ranks and rows hold a document, or a range of tokens, and "
        "which of them a run has seen.",
        example="--dataset web --document 71234 --state CHECKPOINT ",
    )
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
    _add_assumed_stream(add)


def _add_manifest(commands: _Commands) -> None:
    add = _add_command(
        commands,
        "manifest",
        run_manifest,
        "Write everything that a run has read, per source and epoch, as ranges of tokens; a large "
        "part of an epoch as its samples, unless --expand.",
        example="--state CHECKPOINT --output manifest.jsonl ",
    )
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


def _add_state(add: _Add, *, is_required: bool = False) -> None:
    add(
        "--state",
        metavar="PATH",
        required=is_required,
        help="checkpoint of the run: a file of torch.save, JSON or safetensors, or a folder of "
        "torch.distributed.checkpoint; nothing in it is run",
    )
    add(
        "--feed",
        metavar="WHERE",
        help="which state, if a checkpoint has several: its keys joined by dots, as train.feed",
    )


def _add_run(add: _Add) -> None:
    number = partial(add, type=int)
    number("--batch-size", metavar="B", help="rows of a step and rank")
    number("--world-size", metavar="W", help="number of ranks")
    number(
        "--rows-max",
        default=100,
        metavar="N",
        help="how many rows to print at most (default: %(default)s)",
    )


def _add_assumed_stream(add: _Add) -> None:
    """Add what selects a stream where no state does, and how it is printed."""
    number = partial(add, type=int)
    number("--context-length", metavar="T", help="without --state: tokens of x in a row")
    number("--seed", help="without --state: seed of the order (default: 0)")
    number(
        "--group-tokens",
        metavar="N",
        help=f"without --state: tokens of a group of the order blocks (default: {GROUP_TOKENS})",
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
        "contract, clock, corpora, speed. Says what is wrong, what to change, and whether the "
        "servers agree. The exit code is 0, or that of the lowest layer with a problem.",
        example="localhost:50052 ",
        usage="%(prog)s HOST:PORT [HOST:PORT ...] [options]",
    )
    add("targets", nargs="+", metavar="TARGET", help=f"{_SERVER}; several of them: replicas")
    add("--dataset", default="", help="whose speed to measure (default: the largest)")
    number = partial(add, type=float)
    number(
        "--seconds",
        default=2.0,
        help="how long to measure the speed of each server; 0 is not at all (default: %(default)s)",
    )
    number(
        "--timeout-seconds",
        default=5.0,
        help="how long each step waits for an answer (default: %(default)s)",
    )
    number(
        "--tokens-per-second",
        default=_NEEDED_TOKENS_PER_SECOND,
        metavar="N",
        help="what the trainers of this machine need together; less is a problem "
        "(default: %(default).0f)",
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
        "Show what a server does and what needs attention, in place until q or Ctrl-C; once, in "
        "plain lines, where stdout is no terminal. From another machine it needs a token of the "
        "server's --status-token-file."
    )
    add = _add_command(commands, "top", run_top, description)
    add(
        "--seconds",
        type=float,
        default=2.0,
        help="seconds between two looks at the server (default: %(default)s)",
    )
    add("--count", type=int, metavar="N", help="print N times, in plain lines, and end")
    add("--json", action="store_true", help="print one JSON object in a line, instead of text")


def _add_stream_arguments(add: _Add, *, batch_size: int, context_length: int) -> None:
    """Add the options that select a stream, with the defaults of a command."""
    number = partial(add, type=int)
    number("--batch-size", default=batch_size, help="rows per batch (default: %(default)s)")
    number(
        "--context-length",
        default=context_length,
        metavar="T",
        help="context length: tokens of x in a row (default: %(default)s)",
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
