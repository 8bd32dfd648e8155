"""python -m server: arguments -> objects -> serve. The only place where all of it is wired."""

from __future__ import annotations

import os

# gRPC's core logs what peers send, line breaks included, straight to stderr; it reads this once,
# when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from tokenfeed.extras import require_installed

from .signals import Signals

_SIGNALS = Signals()
if __name__ == "__main__":
    # Before the imports below, of which some start threads.
    _SIGNALS.take()
    require_installed("serve", "server", "grpc_health", "grpc_reflection")

import argparse
import itertools
import logging
import sys
from collections.abc import Sequence

import grpc

from tokenfeed import __version__
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.frame import require_fast_checksum
from tokenfeed.position import require_range

from . import listener, loss_masks
from .arguments import build_parser
from .calls import DESCRIBE_LIMITS, Calls, StreamLimits
from .dataset import Dataset, TokenChecks, open_dataset
from .formats import Asked
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
from .stdio import failed
from .storage.choice import Storing
from .storage.looks import Looks, pause_seconds
from .texts import Tokenizing
from .warmup import WarmUp
from .watch import Rereads, Watch

_LOG = logging.getLogger("tokenfeed.server")


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
        return failed(error)
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
    rereads = Rereads()
    # Each is a thread of its own: no file system of a dataset holds up health, tokens or others.
    watches = [Watch({"health": health.look})]
    if not arguments.immutable:
        watches += [watch_files(dataset, rereads) for dataset in datasets.values()]
    if tokens:
        watches.append(Watch({"tokens": tokens.look}))
    server.start()
    _say(f"tokenfeed {__version__} listening on {' and '.join(reversed(addresses))}")
    warm_up = WarmUp(datasets.values(), arguments.warm_up_bytes)
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


def watch_files(dataset: Dataset, rereads: Rereads) -> Watch:
    """Look at the files of a dataset from now on, one after the other, again and again."""
    count = len(dataset.store.shards)
    turns = itertools.cycle(range(count))

    def look() -> None:
        dataset.look_at(next(turns), rereads.later, rereads.closed)

    return Watch({f"dataset={dataset.name}": look}, pause_seconds(count))


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
    reads = parse_per_dataset("--read", arguments.read, names)
    checks = TokenChecks(arguments.vocab_size, arguments.check_all_tokens)
    looks = Looks(never=arguments.immutable)
    datasets = {}
    for source in sources:
        loss_masks.require_none(source, ignored=arguments.ignore_loss_mask)
        asked = Asked.of(formats[source.name], dtypes[source.name], source.tensor)
        storing = Storing(reads[source.name], looks)
        dataset = open_dataset(source, asked, checks, storing)
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
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    how = Tokenizing(
        arguments.tokenizer,
        arguments.text_column,
        arguments.append_token,
        arguments.cache_dir or os.path.join(cache, "tokenfeed"),
    )
    text = parse_text(words)
    return [how.source(text, [words[0].removeprefix(f"{text.name}="), *words[1:]])]


def log_opened(dataset: Dataset) -> None:
    """Say what a dataset was found to be, and what was assumed."""
    store, layout = dataset.store, dataset.store.shards[0].layout
    _LOG.info(
        "opened dataset=%s format=%s files=%d tokens=%d dtype=%s served=%s fingerprint=%s read=%s "
        "because=%s",
        dataset.name,
        layout.format,
        len(store.shards),
        store.shape.token_counts.sum(),
        store.stored.name,
        store.dtype.name,
        dataset.fingerprint.hex(),
        store.kind,
        dataset.why_store,
    )
    assumed = [shard.layout for shard in store.shards if shard.layout.dtype_assumed]
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
