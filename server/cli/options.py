"""The options of python -m server, by what they are about."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from tokenfeed import __version__
from tokenfeed.commands import program

from ..storage.formats import FORMAT_NAMES, STORED
from ..storage.store import WAYS


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("server"),
        description="Serves token files as batches over gRPC.",
        epilog="example: python -m server --data train.bin --data val=val_*.bin --port 50051",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_datasets(parser.add_argument_group("datasets"))
    _add_text(parser.add_argument_group("datasets that are text"))
    _add_addresses(parser.add_argument_group("where it listens, and to whom"))
    _add_limits(parser.add_argument_group("limits"))
    parser.add_argument(
        "--reflection",
        action="store_true",
        help="describe the services to tools that ask by gRPC's reflection",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning"),
        default="info",
        help="debug has the tracebacks of errors that nobody foresaw (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"tokenfeed {__version__}")
    return parser


def _add_datasets(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data",
        nargs="+",
        action="append",
        required=True,
        metavar=("[NAME=]PATH", "PATH"),
        help="a dataset: a file of tokens, or several files, a glob or a folder of *.bin as its "
        "shards; may be given several times",
    )
    group.add_argument(
        "--format",
        action="append",
        default=[],
        type=partial(_of_a_dataset, FORMAT_NAMES),
        metavar="[NAME=]FORMAT",
        help=f"what the files of a dataset, or of all, are: {', '.join(FORMAT_NAMES)} (default: "
        "what they look like)",
    )
    group.add_argument(
        "--dtype",
        action="append",
        default=[],
        type=partial(_of_a_dataset, tuple(STORED)),
        metavar="[NAME=]TYPE",
        help=f"type of the tokens in files that do not say it: {', '.join(STORED)} (default: "
        "uint16); one that says another is refused",
    )
    group.add_argument(
        "--read",
        action="append",
        default=[],
        type=partial(_of_a_dataset, WAYS),
        metavar="[NAME=]WAY",
        help=f"how the files of a dataset, or of all, are read: {', '.join(WAYS)} (default: "
        "pread on network file systems, else map)",
    )
    group.add_argument(
        "--immutable",
        action="store_true",
        help="files never change while they are served: nobody looks at them",
    )
    group.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="refuse to start if a token looked at is N or more",
    )
    group.add_argument(
        "--check-all-tokens",
        action="store_true",
        help="look at every token, not at a sample of a large corpus",
    )
    group.add_argument(
        "--ignore-loss-mask",
        action="store_true",
        help="serve shards that have a loss mask (X.ds.loss) without it: prompts are learned too",
    )
    group.add_argument(
        "--warm-up-bytes",
        type=int,
        metavar="BYTES",
        help="bring datasets into memory while they are served, as long as all that is brought in "
        "has at most so many bytes; 0 brings in none (default: what there is room for)",
    )


def _add_text(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenizer",
        metavar="PATH",
        help='for --data that is text (parquet, jsonl, .txt): tokenizer.json, or "bytes"; it is '
        "ingested into a cache before it is served",
    )
    group.add_argument(
        "--text-column",
        default="text",
        metavar="NAME",
        help="of such parquet and jsonl (default: %(default)s)",
    )
    group.add_argument(
        "--append-token", metavar="TEXT", help="after each document of such text: <|endoftext|>"
    )
    group.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="where such text is ingested to (default: tokenfeed in $XDG_CACHE_HOME, or in "
        "~/.cache)",
    )


def _add_addresses(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host", help="address to listen on (default: all interfaces, IPv6 and IPv4)"
    )
    group.add_argument(
        "--port",
        type=int,
        default=50051,
        help="port to listen on, 0 for any free one (default: %(default)s)",
    )
    group.add_argument(
        "--unix",
        action="append",
        default=[],
        metavar="PATH",
        help="also listen on a Unix socket, for trainers on this machine; may be given several "
        "times",
    )
    for option, what in (
        ("--tls-cert", "certificate chain of this server, PEM; renewed files are noticed"),
        ("--tls-key", "its private key, PEM"),
        ("--tls-client-ca", "take only clients with a certificate that this authority signed, PEM"),
        ("--token-file", "take only clients with one of these bearer tokens, one a line"),
    ):
        group.add_argument(option, metavar="PATH", help=what)
    group.add_argument(
        "--allow-plaintext-token",
        action="store_true",
        help="let tokens travel without TLS, where something else protects the network",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-batch-bytes",
        type=int,
        default=1 << 30,
        metavar="BYTES",
        help="refuse batches above this size (default: %(default)s)",
    )
    group.add_argument(
        "--max-request-bytes",
        type=int,
        default=1 << 16,
        metavar="BYTES",
        help="refuse requests above this size (default: %(default)s)",
    )
    group.add_argument(
        "--max-streams",
        type=int,
        default=512,
        metavar="N",
        help="serve so many streams at once, of which each may use two threads; others are asked "
        "to come back (default: %(default)s)",
    )
    group.add_argument(
        "--max-streams-per-peer",
        type=int,
        metavar="N",
        help="and so many of them from one address (default: half of --max-streams)",
    )
    group.add_argument(
        "--send-timeout-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="end a stream whose client has not read for so long (default: %(default)s)",
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        default=2.0,
        metavar="S",
        help="exit so long after SIGTERM at the latest (default: %(default)s)",
    )


def _of_a_dataset(allowed: Sequence[str], word: str) -> str:
    """Return a word that is [NAME=]VALUE, with a value that is allowed."""
    if word.rpartition("=")[2] not in allowed:
        raise argparse.ArgumentTypeError(f"{word!r} is not [NAME=] and one of {', '.join(allowed)}")
    return word
