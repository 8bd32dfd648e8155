"""python -m client: commands that query a server.

describe  prints what it serves
show      prints one batch, as text if a tokenizer is given
bench     measures how fast batches arrive on this machine; the only one that needs torch
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tokenfeed.commands import COMMANDS, program
from tokenfeed.commands.decoding import decoder
from tokenfeed.commands.extras import missing
from tokenfeed.commands.output import flush_stdout, print_stdout_error
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.sampling import orders
from tokenfeed.stream.position import SAMPLE_END, Position, require_range
from tokenfeed.stream.spec import StreamSpec
from tokenfeed.wire.request import StreamRequest

from .bench import measure
from .local.choice import open_target
from .local.target import is_local_target, parse_local_target
from .stats import Counters
from .stream.row_stream import PREFETCH_BYTES
from .transport.channel import describe
from .transport.credentials import with_environment
from .transport.timeouts import Timeouts
from .validation import first_position, seconds, text

_WAIT_SECONDS = 5.0
_TOKENS_SHOWN = 16
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

    def command(name: str, run: Callable[..., None], description: str) -> _Add:
        """Add a command.  Returns: what adds its options."""
        epilog = f"example: tokenfeed {name} localhost:50051. {_ENVIRONMENT}"
        purpose = COMMANDS[name].purpose
        added = commands.add_parser(name, help=purpose, description=description, epilog=epilog)
        added.set_defaults(run=run, parser=added)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.  Returns: 0 on success, 1 after an error, 130 after Ctrl-C."""
    arguments, unknown = build_parser().parse_known_args(argv)
    if unknown:
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


def run_describe(arguments: argparse.Namespace) -> None:
    """Print what a server serves."""
    if arguments.context_length is not None:
        require_range("context_length", arguments.context_length, 1, SAMPLE_END)
    if is_local_target(arguments.target):
        files = shlex.join(parse_local_target(arguments.target).words[0])
        raise InvalidRequest("target", f"is not a server; for files: tokenfeed inspect {files}")
    described = describe(
        arguments.target,
        arguments.context_length,
        timeout_seconds=_WAIT_SECONDS,
        credentials=with_environment(),
    )
    print(f"tokenfeed {described.server_version} at {arguments.target}")
    revisions = ", ".join(map(str, described.contract_revisions)) or "older than revision 2"
    print(f"contract: {revisions}")
    print(f"orders: {', '.join(described.orders)}")
    print(f"largest batch: {described.limits.batch_bytes_max:,} bytes")
    for dataset in described.datasets:
        print(f"dataset {dataset.name}")
        print(
            f"  tokens: {dataset.token_count:,} {dataset.dtype} in {dataset.file_count:,} file(s)"
        )
        print(f"  fingerprint: {dataset.fingerprint.hex()}")
        if dataset.rows:
            counts = ", ".join(f"{rows.order} {rows.rows:,}" for rows in dataset.rows)
            print(f"  rows of {arguments.context_length:,} tokens: {counts}")
        if dataset.HasField("documents"):
            known = dataset.documents
            print(f"  documents: {known.count:,}, known of {known.file_count:,} file(s)")
        for plane in dataset.planes:
            print(f"  plane {plane.kind}: {plane.fingerprint.hex()}")


def run_show(arguments: argparse.Namespace) -> None:
    """Print one batch."""
    decode = _decoder(arguments.tokenizer)
    spec = StreamSpec.of_dataset(
        text("dataset", arguments.dataset),
        orders.latest(arguments.order),
        arguments.seed,
        arguments.context_length,
    )
    request = StreamRequest(
        spec,
        first_position(0, arguments.start_sample, Position(0, arguments.batch_size)),
        num_batches=1,
    )
    dataset = open_target(
        arguments.target, request, timeouts=Timeouts(reconnect_seconds=_WAIT_SECONDS)
    )
    rows = dataset.open_rows(request, prefetch_bytes=PREFETCH_BYTES, counters=Counters())
    rows.start()
    try:
        found = [row for part in rows.peek(arguments.batch_size) or () for row in part.tokens]
        for sample, row in enumerate(found, arguments.start_sample):
            print(f"sample {sample}: {decode(row)}")
    finally:
        dataset.close()
        rows.close()


def run_bench(arguments: argparse.Namespace) -> None:
    """Print how fast batches arrive."""
    duration_seconds = seconds("seconds", arguments.seconds, zero=False)
    try:
        from .batches import RemoteBatches
    except ImportError as error:
        raise InvalidRequest("bench", missing(error, "torch")) from None
    except OSError as error:
        raise InvalidRequest("bench", f"torch cannot be imported: {error}") from error
    with RemoteBatches(
        arguments.target,
        arguments.batch_size,
        arguments.context_length,
        seed=arguments.seed,
        dataset=arguments.dataset,
        order=arguments.order,
        device=arguments.device,
        timeouts=Timeouts(reconnect_seconds=_WAIT_SECONDS),
    ) as feed:
        print(measure(feed, duration_seconds))


def _decoder(tokenizer: str | None) -> Callable[[npt.NDArray[np.unsignedinteger]], str]:
    if tokenizer is None:
        return lambda row: (
            " ".join(map(str, row[:_TOKENS_SHOWN].tolist()))
            + (f" ... ({len(row)} tokens)" if len(row) > _TOKENS_SHOWN else "")
        )
    decode = decoder(tokenizer)
    return lambda row: repr(decode(row.tolist()))


if __name__ == "__main__":
    sys.exit(main())
