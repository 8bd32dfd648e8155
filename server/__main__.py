"""python -m server: arguments -> objects -> serve. The only place where all of it is wired."""

from __future__ import annotations

import os

# gRPC's core logs what peers send, line breaks included, straight to stderr; it reads this once,
# when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from .signals import Signals

_SIGNALS = Signals()
if __name__ == "__main__":
    # Before the imports below, of which some start threads.
    _SIGNALS.take()

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial

import grpc

from tokenfeed import __version__
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.frame import require_fast_checksum
from tokenfeed.position import require_range

from . import listener
from .calls import DESCRIBE_LIMITS, Calls, StreamLimits
from .dataset import Dataset, TokenChecks, open_dataset
from .formats import FORMAT_NAMES, STORED, Asked
from .health import SERVICE as HEALTH_SERVICE
from .health import Health
from .kernel import keep_freed_memory
from .reflection import Reflection
from .security import TlsFiles, TokenInterceptor, Tokens, server_credentials
from .service import TokenFeed
from .shards import (
    Source,
    is_text,
    parse_datasets,
    parse_per_dataset,
    parse_text,
    require_distinct_names,
)
from .texts import Tokenizing
from .warmup import WarmUp
from .watch import Rereads, Watch

_LOG = logging.getLogger("tokenfeed.server")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m server",
        description="Serves token files as batches over gRPC.",
        epilog="example: python -m server --data train.bin --data val=val_*.bin --port 50051",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        nargs="+",
        action="append",
        required=True,
        metavar=("[NAME=]PATH", "PATH"),
        help="a dataset: a file of tokens, or several files, a glob or a folder of *.bin as its "
        "shards; may be given several times",
    )
    parser.add_argument(
        "--host", help="address to listen on (default: all interfaces, IPv6 and IPv4)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=50051,
        help="port to listen on, 0 for any free one (default: %(default)s)",
    )
    parser.add_argument(
        "--unix",
        action="append",
        default=[],
        metavar="PATH",
        help="also listen on a Unix socket, for trainers on this machine; may be given several "
        "times",
    )
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        type=partial(_of_a_dataset, FORMAT_NAMES),
        metavar="[NAME=]FORMAT",
        help=f"what the files of a dataset, or of all, are: {', '.join(FORMAT_NAMES)} (default: "
        "what they look like)",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        default=[],
        type=partial(_of_a_dataset, tuple(STORED)),
        metavar="[NAME=]TYPE",
        help=f"type of the tokens in files that do not say it: {', '.join(STORED)} (default: "
        "uint16); one that says another is refused",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help='for --data that is text (parquet, jsonl, .txt): tokenizer.json, or "bytes"; it is '
        "ingested into a cache before it is served",
    )
    parser.add_argument(
        "--text-column",
        default="text",
        metavar="NAME",
        help="of such parquet and jsonl (default: %(default)s)",
    )
    parser.add_argument(
        "--append-token", metavar="TEXT", help="after each document of such text: <|endoftext|>"
    )
    parser.add_argument(
        "--cache-dir",
        default=os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tokenfeed"
        ),
        metavar="DIR",
        help="where such text is ingested to (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="refuse to start if a token looked at is N or more",
    )
    parser.add_argument(
        "--check-all-tokens",
        action="store_true",
        help="look at every token, not at a sample of a large corpus",
    )
    parser.add_argument(
        "--max-batch-bytes",
        type=int,
        default=1 << 30,
        metavar="BYTES",
        help="refuse batches above this size (default: %(default)s)",
    )
    parser.add_argument(
        "--max-request-bytes",
        type=int,
        default=1 << 16,
        metavar="BYTES",
        help="refuse requests above this size (default: %(default)s)",
    )
    parser.add_argument(
        "--max-streams",
        type=int,
        default=512,
        metavar="N",
        help="serve so many streams at once, of which each may use two threads; others are asked "
        "to come back (default: %(default)s)",
    )
    parser.add_argument(
        "--max-streams-per-peer",
        type=int,
        metavar="N",
        help="and so many of them from one address (default: half of --max-streams)",
    )
    parser.add_argument(
        "--stall-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="end a stream whose client has not read for so long (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=2.0,
        metavar="S",
        help="exit so long after SIGTERM at the latest (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up-bytes",
        type=int,
        metavar="BYTES",
        help="bring datasets into memory while they are served, as long as all that is brought in "
        "has at most so many bytes; 0 brings in none (default: what there is room for)",
    )
    for option, what in (
        ("--tls-cert", "certificate chain of this server, PEM; renewed files are noticed"),
        ("--tls-key", "its private key, PEM"),
        ("--tls-client-ca", "take only clients with a certificate that this authority signed, PEM"),
        ("--token-file", "take only clients with one of these bearer tokens, one a line"),
    ):
        parser.add_argument(option, metavar="PATH", help=what)
    parser.add_argument(
        "--allow-plaintext-token",
        action="store_true",
        help="let tokens travel without TLS, where something else protects the network",
    )
    parser.add_argument(
        "--reflection",
        action="store_true",
        help="describe the services to tools that ask by gRPC's reflection",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning"),
        default="info",
        help="(default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"tokenfeed {__version__}")
    return parser


def _of_a_dataset(allowed: Sequence[str], word: str) -> str:
    """Return a word that is [NAME=]VALUE, with a value that is allowed."""
    if word.rpartition("=")[2] not in allowed:
        raise argparse.ArgumentTypeError(f"{word!r} is not [NAME=] and one of {', '.join(allowed)}")
    return word


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C.  Returns: 0 when stopped, 1 after an error said in one
    line.
    """
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=arguments.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        serve(arguments)
    except TokenfeedError as error:
        # A path may hold a line break; whoever reads the log by lines must not be misled.
        print("error: " + str(error).replace("\n", "\\n"), file=sys.stderr)
        return 1
    return 0


def serve(arguments: argparse.Namespace) -> None:
    """Open the datasets, listen, and return once a signal has come.  Raises: TokenfeedError."""
    require_fast_checksum()
    keep_freed_memory()
    listener.allow_connections()
    limits = stream_limits(arguments)
    credentials = tls_credentials(arguments)
    tokens = Tokens(arguments.token_file) if arguments.token_file else None
    datasets = open_datasets(arguments)
    calls, describe_calls = Calls(limits), Calls(DESCRIBE_LIMITS)
    service = TokenFeed(
        datasets,
        calls,
        describe_calls,
        batch_bytes_max=arguments.max_batch_bytes,
        request_bytes_max=arguments.max_request_bytes,
    )
    server = listener.create_server(
        service.handler(),
        calls_max=calls.calls_max + describe_calls.calls_max,
        request_bytes_max=arguments.max_request_bytes,
        interceptors=[TokenInterceptor(tokens)] if tokens else [],
    )
    health = Health(datasets)
    health.add_to(server)
    drains = [health.drain, calls.drain, describe_calls.drain]
    if arguments.reflection:
        reflection = Reflection((service.name, HEALTH_SERVICE))
        reflection.add_to(server)
        drains.append(reflection.drain)
    has_secrets = tokens is not None and not arguments.allow_plaintext_token
    addresses = [
        listener.bind(server, arguments.host, arguments.port, credentials, has_secrets=has_secrets)
    ]
    addresses += [listener.bind_unix(server, path) for path in arguments.unix]
    hangups = _SIGNALS.hangups(arguments.drain_seconds)
    server.start()
    _say(f"tokenfeed {__version__} listening on {' and '.join(reversed(addresses))}")
    rereads = Rereads()
    looks = {
        f"dataset={name}": partial(dataset.look, rereads.later, rereads.closed)
        for name, dataset in datasets.items()
    }
    # Tokens are looked at by a thread of their own: no file system of a dataset holds it up.
    watches = [Watch({**looks, "health": health.look})]
    if tokens:
        watches.append(Watch({"tokens": tokens.look}))
    corpora = [dataset.corpus for dataset in datasets.values()]
    warm_up = WarmUp(corpora, arguments.warm_up_bytes)
    for _ in hangups:
        if tokens:
            tokens.read_anew()
        else:
            _LOG.info("ignored SIGHUP: there is no --token-file to read anew")
    _LOG.info("stopping")
    for drain in drains:
        drain()
    stopped = listener.stop(server, arguments.drain_seconds)
    warm_up.close()
    rereads.close()
    for watch in watches:
        watch.close()
    stopped.wait(arguments.drain_seconds)


def _say(line: str) -> None:
    """Print a line.  Raises: InvalidRequest where nobody can read it."""
    try:
        print(line, flush=True)
    except OSError as error:
        raise InvalidRequest("stdout", f"cannot be written: {error.strerror}") from error


def tls_credentials(arguments: argparse.Namespace) -> grpc.ServerCredentials | None:
    """Return what the command line says of TLS; None is plaintext.  Raises: InvalidRequest."""
    cert, key, client_ca = arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca
    if not (cert or key or client_ca):
        return None
    for option, value in (("--tls-cert", cert), ("--tls-key", key)):
        if not value:
            raise InvalidRequest(option, "is missing; TLS needs both --tls-cert and --tls-key")
    return server_credentials(TlsFiles(cert, key, client_ca))


def stream_limits(arguments: argparse.Namespace) -> StreamLimits:
    """Return what the command line allows.  Raises: InvalidRequest."""
    require_range("--max-request-bytes", arguments.max_request_bytes, 1 << 10, 1 << 31)
    require_range("--max-streams", arguments.max_streams, 1, 1 << 15)
    peer_streams = arguments.max_streams_per_peer
    if peer_streams is None:
        peer_streams = max(1, arguments.max_streams // 2)
    require_range("--max-streams-per-peer", peer_streams, 1, 1 << 15)
    for name in ("stall_seconds", "drain_seconds"):
        if not getattr(arguments, name) > 0:
            raise InvalidRequest(f"--{name.replace('_', '-')}", "has to be above 0")
    return StreamLimits(arguments.max_streams, peer_streams, arguments.stall_seconds)


def open_datasets(arguments: argparse.Namespace) -> dict[str, Dataset]:
    """Open every dataset of the command line, by name.  Raises: TokenfeedError."""
    if arguments.vocab_size is not None:
        require_range("--vocab-size", arguments.vocab_size, 1, 1 << 32)
    if arguments.check_all_tokens and arguments.vocab_size is None:
        raise InvalidRequest("--check-all-tokens", "needs --vocab-size to check them against")
    require_range("--max-batch-bytes", arguments.max_batch_bytes, 1, 1 << 63)
    if arguments.warm_up_bytes is not None:
        require_range("--warm-up-bytes", arguments.warm_up_bytes, 0, 1 << 63)
    if arguments.tokenizer is not None and not any(map(is_text, arguments.data)):
        raise InvalidRequest("--tokenizer", "is for --data that is text, and none is")
    sources = [source for words in arguments.data for source in _sources(words, arguments)]
    require_distinct_names(sources)
    names = [source.name for source in sources]
    formats = parse_per_dataset("--format", arguments.format, names)
    dtypes = parse_per_dataset("--dtype", arguments.dtype, names)
    checks = TokenChecks(arguments.vocab_size, arguments.check_all_tokens)
    datasets = {}
    for source in sources:
        asked = Asked.of(formats[source.name], dtypes[source.name], source.tensor)
        dataset = open_dataset(source, asked, checks)
        datasets[source.name] = dataset
        log_opened(dataset)
    return datasets


def _sources(words: Sequence[str], arguments: argparse.Namespace) -> list[Source]:
    """Return the datasets of one --data; text is ingested first.  Raises: TokenfeedError."""
    if not is_text(words):
        return parse_datasets(words)
    if arguments.tokenizer is None:
        cure = "pass --tokenizer, or ingest it first: python -m server.ingest"
        raise InvalidRequest("--data", f"{words[0]} is text; {cure}")
    how = Tokenizing(
        arguments.tokenizer, arguments.text_column, arguments.append_token, arguments.cache_dir
    )
    text = parse_text(words)
    return [how.source(text, [words[0].removeprefix(f"{text.name}="), *words[1:]])]


def log_opened(dataset: Dataset) -> None:
    """Say what a dataset was found to be, and what was assumed."""
    corpus, layout = dataset.corpus, dataset.corpus.shards[0].layout
    _LOG.info(
        "opened dataset=%s format=%s files=%d tokens=%d dtype=%s served=%s fingerprint=%s",
        dataset.name,
        layout.format,
        len(corpus.shards),
        corpus.token_counts.sum(),
        corpus.stored.name,
        corpus.dtype.name,
        dataset.fingerprint.hex(),
    )
    assumed = [shard.layout for shard in corpus.shards if shard.layout.dtype_assumed]
    if assumed:
        _LOG.info(
            "assumed dataset=%s format=%s dtype=%s files=%d: %s; "
            "--format and --dtype say otherwise",
            dataset.name,
            layout.format,
            layout.dtype.name,
            len(assumed),
            assumed[0].why,
        )


if __name__ == "__main__":
    sys.exit(main())
