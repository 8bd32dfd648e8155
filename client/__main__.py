"""python -m client: commands that query a server.

describe  prints what it serves
show      prints one batch, as text if a tokenizer is given
plan      prints what a mixture will do
bench     measures how fast batches arrive on this machine; the only one that needs torch
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

from tokenfeed.commands import COMMANDS, program
from tokenfeed.commands.output import flush_stdout, print_stdout_error
from tokenfeed.errors import TokenfeedError
from tokenfeed.sampling import orders
from tokenfeed.sampling.orders import padded_v1

from .commands.bench import run_bench
from .commands.describe import run_describe
from .commands.plan import run_plan
from .commands.show import run_show

_ENVIRONMENT = (
    "TLS files and a token are read from the environment: TOKENFEED_TLS_CA, TOKENFEED_TLS_CERT, "
    "TOKENFEED_TLS_KEY, and TOKENFEED_TOKEN or TOKENFEED_TOKEN_FILE"
)
_SERVER = "address of a server, or unix:PATH"
_TARGET_HELP = {
    "describe": _SERVER,
    "show": f"{_SERVER}; or file:PATH, to read local files",
    "bench": f"{_SERVER}; or file:PATH, to read local files",
}
_Add = Callable[..., argparse.Action]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("client"),
        description="Query a tokenfeed server, or read local files.",
        epilog="example: tokenfeed describe localhost:50051",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(
        name: str,
        run: Callable[..., None],
        description: str,
        *,
        example: str = "",
        usage: str | None = None,
    ) -> _Add:
        """Add a command.  Returns: what adds its options."""
        epilog = f"example: tokenfeed {name} {example}localhost:50051. {_ENVIRONMENT}"
        added = commands.add_parser(
            name, help=COMMANDS[name].purpose, description=description, epilog=epilog, usage=usage
        )
        added.set_defaults(run=run, parser=added)
        if name != "plan":
            added.add_argument("target", metavar="TARGET", help=_TARGET_HELP[name])
        return added.add_argument

    description = "Print what a server serves: datasets, orders, fingerprints and limits."
    add = command("describe", run_describe, description)
    add(
        "--context-length",
        type=int,
        metavar="T",
        help="also print how many rows of T tokens each order has",
    )

    add = command("show", run_show, "Print one batch, as token ids or as text.")
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

    add = command(
        "plan",
        run_plan,
        "Print what a mixture will do, by the sizes of its datasets: samples, tokens and epochs of "
        "each source in each stage, where stages begin, and where sources are exhausted. Reads no "
        "row.",
        example="mixture.toml --tokens 1e12 --context-length 4096 ",
        usage="%(prog)s [PATH] TARGET --tokens N [--context-length T] [options]",
    )
    _add_plan_arguments(add)

    description = "Measure how fast batches arrive on this machine; needs torch."
    add = command("bench", run_bench, description)
    _add_stream_arguments(add, batch_size=32, context_length=2048)
    add(
        "--seconds",
        type=float,
        default=10.0,
        help="duration of the measurement in seconds (default: %(default)s)",
    )
    add("--device", default="cpu", help='torch device, such as "cuda:0" (default: %(default)s)')
    return parser


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
    add("--dataset", default="", help="dataset name; optional if there is only one")
    add(
        "--order",
        default="random",
        choices=tuple(orders.LATEST),
        help="order of the rows (default: %(default)s)",
    )
    add(
        "--long",
        choices=padded_v1.LONG_DOCUMENTS,
        help="what the order padded does with documents longer than a row (default: cut)",
    )


def _add_plan_arguments(add: _Add) -> None:
    """Add the arguments of a plan."""
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
        "--order",
        choices=tuple(orders.LATEST),
        help="order of the feed, for sources that have none in the file (default: random)",
    )
    number("--seed", help="seed of the feed, if the file has none (default: that of --state, or 0)")
    number(
        "--global-batch-size",
        metavar="N",
        help="rows of a step of all ranks: delays of stages are then shown in steps too, and "
        "smaller blocks are offered for more than 50 steps",
    )
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
    add(
        "--write",
        metavar="PATH",
        help="write a new file with the mixture that goes on without each source from the block on "
        "that it cannot fill; nothing is written, and the exit code is 0, if none is exhausted",
    )
    add(
        "--plot",
        metavar="PATH",
        help="draw the shares into a PNG file, in place of an older one; needs matplotlib",
    )
    add("--json", action="store_true", help="print one JSON object")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.  Returns: 0 on success, 1 after an error, 130 after Ctrl-C."""
    arguments, unknown = build_parser().parse_known_args(argv)
    if "words" in arguments and not any(word.startswith("-") for word in unknown):
        # argparse takes words from one place of the line alone; these come behind options.
        arguments.words = [*arguments.words, *unknown]
    elif unknown:
        # With the usage of this command: that of the others is no help.
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        arguments.run(arguments)
        flush_stdout()
    except TokenfeedError as error:
        print(f"error: {_option(error.subject, arguments)}: {error.problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        return print_stdout_error(error)
    return 0


def _option(subject: str, arguments: argparse.Namespace) -> str:
    """Return the subject of an error as the user typed it: "--batch-size" for batch_size."""
    if subject in vars(arguments) and subject != "target":
        return f"--{subject.replace('_', '-')}"
    return subject


if __name__ == "__main__":
    sys.exit(main())
