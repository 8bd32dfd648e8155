"""The options of `tokenfeed serve`, in groups."""

from __future__ import annotations

import argparse
from functools import partial

from tokenfeed import __version__
from tokenfeed.commands import program
from tokenfeed.commands.prices import add_prices
from tokenfeed.stream.position import BATCH_BYTES_MAX

from ..datasets.options import OPTIONS
from ..storage.option_names import (
    CACHE_DIR,
    DTYPE,
    FORMAT,
    IMMUTABLE,
    MIXED_SPLITS,
    OBJECT_CACHE,
    OBJECT_CACHE_BYTES,
    READ,
    REDACTIONS,
    ROW_TOKENS,
    VOCAB_SIZE,
)
from .dataset_options import PLANE_OPTIONS, add_options


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("server"),
        description="Serve token files as batches over gRPC.",
        epilog="example: tokenfeed serve --data train.bin --data val=val_*.bin --port 50051",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_datasets(parser.add_argument_group("datasets"))
    _add_text(parser.add_argument_group("text datasets"))
    _add_addresses(parser.add_argument_group("network and access"))
    _add_limits(parser.add_argument_group("limits"))
    _add_status(parser.add_argument_group("metrics and status"))
    parser.add_argument(
        "--no-locate",
        action="store_true",
        help="refuse the requests of tokenfeed explain, find and manifest; then no client can ask "
        "which files, documents and tokens a row is made of, or which rows hold a document",
    )
    parser.add_argument(
        "--reflection",
        action="store_true",
        help="answer gRPC server reflection, so that tools such as grpcurl can list the services",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning"),
        default="info",
        help="log level; debug adds the traceback of every unexpected error (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of the log on stderr; json writes one object per line (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"tokenfeed {__version__}")
    return parser


def _add_datasets(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--data",
        nargs="+",
        action="append",
        required=True,
        metavar=("[NAME=]PATH", "PATH"),
        help="files of a dataset to serve: token files, a glob, or a folder, such as the one that "
        "tokenfeed ingest makes; on this machine or in an object store (s3://BUCKET/KEY). With "
        "--tokenizer, the files can also be text. Pass the option once for each dataset",
    )
    add_options(group, FORMAT, DTYPE, ROW_TOKENS, READ, *PLANE_OPTIONS, REDACTIONS, by_name=True)
    add_options(group, IMMUTABLE, MIXED_SPLITS, VOCAB_SIZE)
    add(
        "--check-all-tokens",
        action="store_true",
        help="check every token of a corpus above 1 GiB, instead of a sample of its tokens; needs "
        "--vocab-size",
    )
    add(
        "--warm-up-bytes",
        type=int,
        metavar="BYTES",
        help="maximum number of bytes of the datasets that the server preloads into memory; 0 "
        "disables the preloading (default: as much as fits)",
    )
    add(
        OBJECT_CACHE,
        metavar="DIR",
        help="folder on a local disk where the server caches tokens from object stores; with the "
        "value none it caches nothing, and fetches each row from the store (default: the folder "
        "tokenfeed in $XDG_CACHE_HOME or in ~/.cache, else in /var/tmp, if that is a local disk)",
    )
    add(
        OBJECT_CACHE_BYTES,
        type=int,
        metavar="BYTES",
        help="maximum size of the cache of --object-cache (default: the size of the corpora, but "
        "at most half of the free disk space)",
    )
    add_prices(add)


def _add_text(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, or the word bytes, with which text files of --data (parquet, jsonl, "
        ".txt) are tokenized into a cache before they are served",
    )
    group.add_argument(
        "--text-column",
        metavar="NAME",
        help="name of the parquet column, or of the jsonl key, that holds the text (default: text)",
    )
    group.add_argument(
        "--append-token",
        metavar="TEXT",
        help="token to add after each document, such as <|endoftext|> (default: none)",
    )
    group.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="folder where the server keeps what it makes: tokens of text that it serves (default: "
        "the folder tokenfeed in $XDG_CACHE_HOME, or in ~/.cache), and "
        f"{OPTIONS[CACHE_DIR].what.removeprefix('folder ')} (default: beside the token files)",
    )


def _add_addresses(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host", help="address to listen on (default: all interfaces, IPv6 and IPv4)"
    )
    group.add_argument(
        "--port",
        type=int,
        default=50051,
        help="port to listen on; 0 picks a free one (default: %(default)s)",
    )
    group.add_argument(
        "--unix",
        action="append",
        default=[],
        metavar="PATH",
        help="also listen on this Unix socket, for trainers on the same machine; may be given "
        "several times",
    )
    for option, text in (
        ("--tls-cert", "PEM file of the server's certificate chain; reloaded when it changes"),
        ("--tls-key", "PEM file of the private key of --tls-cert; reloaded when it changes"),
        (
            "--tls-client-ca",
            "PEM file of a certificate authority; accept only clients that show a "
            "certificate of this authority",
        ),
        ("--token-file", "file of bearer tokens, one per line; accept only clients that send one"),
    ):
        group.add_argument(option, metavar="PATH", help=text)
    group.add_argument(
        "--allow-plaintext-token",
        action="store_true",
        help="accept bearer tokens without TLS on every address, for example behind a proxy that "
        "ends TLS",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    number = partial(group.add_argument, type=int, metavar="N")
    size = partial(group.add_argument, type=int, metavar="BYTES")
    seconds = partial(group.add_argument, type=float, metavar="S")
    size(
        "--max-batch-bytes",
        default=BATCH_BYTES_MAX,
        help="maximum size of a batch in bytes (default: %(default)s)",
    )
    size(
        "--max-request-bytes",
        default=1 << 16,
        help="maximum size of a request in bytes (default: %(default)s)",
    )
    number(
        "--max-streams",
        default=512,
        help="maximum number of concurrent streams (each sends the rows of one rank, with up to "
        "two threads); the server tells further clients to retry (default: %(default)s)",
    )
    number(
        "--max-streams-per-peer",
        help="maximum number of concurrent streams from one address (default: half of "
        "--max-streams)",
    )
    seconds(
        "--send-timeout-seconds",
        default=30.0,
        help="close a stream if its client reads nothing for S seconds (default: %(default)s)",
    )
    seconds(
        "--drain-seconds",
        default=2.0,
        help="maximum number of seconds from SIGTERM until the server exits (default: %(default)s)",
    )


def _add_status(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics for Prometheus at http://HOST:PORT/metrics; 0 picks a free port "
        "(default: no metrics; the usual port is 9464)",
    )
    add(
        "--metrics-host",
        metavar="HOST",
        help="address of --metrics-port (default: 127.0.0.1, so only this machine can read it)",
    )
    add(
        "--status",
        action="store_true",
        help="also serve a status page at http://HOST:PORT/ of --metrics-port; the page shows the "
        "names and addresses of clients",
    )
    add(
        "--status-token-file",
        metavar="PATH",
        help="file of bearer tokens, one per line, with which operators may run tokenfeed top from "
        "other machines. Without this file only this machine may ask for the status: over Unix "
        "sockets and, unless --token-file or --allow-plaintext-token is given, over loopback "
        "addresses",
    )
