"""Wires the parts of `tokenfeed serve`: options -> objects -> serve."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc

from tokenfeed import __version__
from tokenfeed.commands.extras import require_installed
from tokenfeed.commands.output import print_error
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.stream.position import require_range
from tokenfeed.wire import crc32c

from ..datasets.dataset import Dataset, start_polling
from ..datasets.opening import TokenChecks, log_opened, open_dataset
from ..datasets.options import require_value
from ..datasets.planes.plane_files import PlaneFiles
from ..datasets.sources import (
    DatasetSource,
    is_text,
    parse_datasets,
    parse_text,
    require_distinct_names,
)
from ..datasets.sources.text_cache import TextCache
from ..datasets.warmup import WarmUp
from ..rpc import listener
from ..rpc.activity.tracker import Activity
from ..rpc.admission import DESCRIBE_LIMITS, AdmissionControl, StreamLimits
from ..rpc.error_status import CallCounts
from ..rpc.health import SERVICE as HEALTH_SERVICE
from ..rpc.health import Health
from ..rpc.monitoring.residency import Residency
from ..rpc.monitoring.server_state import ServerState
from ..rpc.monitoring.status import SERVICE as STATUS_SERVICE
from ..rpc.monitoring.status import Status
from ..rpc.provenance import SERVICE as PROVENANCE_SERVICE
from ..rpc.provenance import Provenance
from ..rpc.reflection import Reflection
from ..rpc.security import BearerTokens, TokenInterceptor, server_credentials
from ..rpc.service import TokenFeed
from ..runtime.cache_folder import cache_folder
from ..runtime.http_server import CachedPage, HttpServer
from ..runtime.json_log import JsonFormatter, log_crashes
from ..runtime.process.mallopt import keep_freed_memory
from ..runtime.process.signals import Signals
from ..runtime.threads.poll_rate import PollRate
from ..runtime.threads.poller import Poller, RescanWorker
from ..storage.door import StorageOptions, scheme_of
from ..storage.option_names import (
    CACHE_DIR,
    NO_CACHE,
    OBJECT_CACHE,
    OBJECT_CACHE_BYTES,
    VOCAB_SIZE,
)
from .dataset_options import parse_all, refused
from .serve_options import build_parser

if TYPE_CHECKING:
    from ..storage.objects.object_cache import ObjectCache

_LOG = logging.getLogger("tokenfeed.server")

# Up to 128 threads do GETs, and who sends a frame waits behind each that has Python's lock. Instead
# of 5 ms: a local stream beside four remote ones that take all they get keeps 0.95 to 1.0 of its
# pace, not 0.55 to 0.88, and 15 remote streams beside a greedy one 0.82 to 0.99, not 0.60 to 0.79.
# benchmarks.object_rates, in turn, 2 cores, 20 ms to the store, 2026-11.
_SWITCH_SECONDS = 0.0005

_DAY_SECONDS = 86_400

CLIENTS, OPERATORS = "--token-file", "--status-token-file"
"""Options with files of bearer tokens."""


def main(argv: Sequence[str] | None = None, signals: Signals | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C.  Returns: 0 when stopped, 1 after an error in one line.

    signals: the signals of this process; None means that it never stops.
    """
    arguments = build_parser().parse_args(argv)
    has_json_log = arguments.log_format == "json"
    log_to_stderr(arguments.log_level, as_json=has_json_log)
    try:
        serve(arguments, signals or Signals())
    except TokenfeedError as error:
        if not has_json_log:
            return print_error(error)
        _LOG.error("start failed what=%s why=%s", error.subject, error.problem)
        return 1
    return 0


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Log to stderr from now on, as text or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    if as_json:
        handler.setFormatter(JsonFormatter())
        log_crashes()
    logging.basicConfig(handlers=[handler], level=level.upper())


def serve(arguments: argparse.Namespace, signals: Signals) -> None:
    """Open the datasets, listen, and return after SIGTERM or SIGINT.  Raises: TokenfeedError."""
    prepare_process()
    require_no_empty_paths(arguments)
    limits = stream_limits(arguments)
    credentials = tls_credentials(arguments)
    tokens = tokens_of(arguments)
    require_metrics(arguments)
    datasets = open_datasets(arguments)
    opened = datasets.values()
    planes = [plane for each in opened for plane in each.plane_files]
    cache = open_object_cache([*opened, *planes], arguments)
    activity, counts = Activity(), CallCounts()
    calls = AdmissionControl(limits, counts)
    describe_calls = AdmissionControl(DESCRIBE_LIMITS, counts)
    service = TokenFeed(
        datasets,
        calls,
        describe_calls,
        activity,
        batch_bytes_max=arguments.max_batch_bytes,
        request_bytes_max=arguments.max_request_bytes,
    )
    server = listener.create_server(
        service.handler(),
        calls_max=calls.calls_max + describe_calls.calls_max,
        request_bytes_max=arguments.max_request_bytes,
        interceptors=[TokenInterceptor(tokens[CLIENTS], counts)] if CLIENTS in tokens else [],
    )
    health = Health(datasets)
    health.add_to(server)
    warm_up = WarmUp(datasets.values(), arguments.warm_up_bytes)
    state = ServerState(datasets, activity, calls, warm_up, cache)
    residency = Residency(datasets)
    trusts_loopback = not (CLIENTS in tokens or arguments.allow_plaintext_token)
    status = Status(state, residency, tokens.get(OPERATORS), trusts_loopback=trusts_loopback)
    status.add_to(server)
    drains = [health.drain, calls.drain, describe_calls.drain, status.drain]
    names = [service.name, HEALTH_SERVICE, STATUS_SERVICE]
    if cache is not None:
        drains.append(cache.end)
    if not arguments.no_locate:
        provenance = Provenance(service, counts)
        provenance.add_to(server)
        drains.append(provenance.drain)
        names.append(PROVENANCE_SERVICE)
    if arguments.reflection:
        reflection = Reflection(names)
        reflection.add_to(server)
        drains.append(reflection.drain)
    addresses = bind(server, arguments, credentials, tokens)
    reloads = signals.reloads(arguments.drain_seconds)
    rescans = [] if arguments.immutable else [RescanWorker() for _ in opened]
    # Each has its own thread: a slow file system must not delay health, tokens or other datasets.
    pollers = [Poller({"health": health.poll}), Poller({"activity": activity.tick})]
    pollers += [Poller({option: each.poll}) for option, each in tokens.items()]
    pollers += [
        start_polling([each], rescan.submit, rescan.closed)
        for each, rescan in zip(opened, rescans, strict=False)  # none of what is immutable
    ]
    http = serve_http(arguments, state, status)
    server.start()
    _print_line(f"tokenfeed {__version__} listening on {' and '.join(reversed(addresses))}")
    for dataset in datasets.values():
        dataset.start_search()
    warm_up.start()
    reload_tokens(reloads, tokens)
    _LOG.info("stopping")
    for drain in drains:
        drain()
    stopped = listener.stop(server, arguments.drain_seconds)
    warm_up.close()
    for dataset in datasets.values():
        dataset.stop_search()
    for rescan in rescans:
        rescan.close()
    residency.close()
    for poller in pollers:
        poller.close()
    stopped.wait(arguments.drain_seconds)
    activity.log_open_streams()
    if http is not None:
        http.close()  # last: a scrape may see the drain


def require_no_empty_paths(arguments: argparse.Namespace) -> None:
    """Raise InvalidRequest for an option that is given, and empty: as of an unset variable. It must
    not switch off TLS or tokens.
    """
    for option in (CLIENTS, OPERATORS, "--tls-cert", "--tls-key", "--tls-client-ca", "--unix"):
        given = getattr(arguments, option.removeprefix("--").replace("-", "_"))
        if given == "" or (isinstance(given, list) and "" in given):
            raise InvalidRequest(option, "is empty; omit it, or pass a path")


def prepare_process() -> None:
    """Set what holds for the whole process.  Raises: TokenfeedError if it lacks what is needed."""
    crc32c.require_fast()
    keep_freed_memory()
    listener.allow_connections()


def open_object_cache(
    datasets: Sequence[Dataset | PlaneFiles], arguments: argparse.Namespace
) -> ObjectCache | None:
    """Return the cache of what is in object stores; None without one. With a store, threads of this
    process take turns more often.  Raises: InvalidRequest.
    """
    if not any(scheme_of(each.store.shards[0].path) for each in datasets):
        given = {
            OBJECT_CACHE: arguments.object_cache not in (None, NO_CACHE),
            OBJECT_CACHE_BYTES: arguments.object_cache_bytes is not None,
        }
        for option, is_given in given.items():
            if is_given:
                _LOG.warning("%s is not used: no dataset is in an object store", option)
        return None
    sys.setswitchinterval(_SWITCH_SECONDS)
    from ..storage.objects.cache_choice import open_cache  # a server of files needs none of it

    contents = [(each.store.files, each.fingerprint) for each in datasets]
    options = arguments.object_cache, arguments.object_cache_bytes, arguments.object_prices
    return open_cache(contents, *options)


def bind(
    server: grpc.Server,
    arguments: argparse.Namespace,
    credentials: grpc.ServerCredentials | None,
    tokens: Mapping[str, BearerTokens],
) -> list[str]:
    """Bind the port and the Unix sockets, and return the addresses.  Raises: InvalidRequest."""
    secret = "" if arguments.allow_plaintext_token else next(iter(tokens), "")
    address = listener.bind(server, arguments.host, arguments.port, credentials, secret=secret)
    return [address, *(listener.bind_unix(server, path) for path in arguments.unix)]


def reload_tokens(reloads: Iterable[int], tokens: Mapping[str, BearerTokens]) -> None:
    """Reload all bearer tokens at each SIGHUP, and return at the end of the server."""
    for _ in reloads:
        for each in tokens.values():
            each.request_reload()
        if not tokens:
            _LOG.info("SIGHUP ignored: there are no bearer tokens to reload")


def tokens_of(arguments: argparse.Namespace) -> dict[str, BearerTokens]:
    """Return the bearer tokens of the command line, by option.  Raises: InvalidRequest."""
    paths = {CLIENTS: arguments.token_file, OPERATORS: arguments.status_token_file}
    return {option: BearerTokens(path, option) for option, path in paths.items() if path}


def require_metrics(arguments: argparse.Namespace) -> None:
    """Raise InvalidRequest, or exit, if metrics or the page cannot be served: before datasets are
    opened, which may take long.
    """
    if arguments.metrics_port is not None:
        require_range("--metrics-port", arguments.metrics_port, 0, 1 << 16)
        for_page = ("jinja2",) if arguments.status else ()
        require_installed("serve", "metrics", "prometheus_client", *for_page)
    elif arguments.status:
        raise InvalidRequest("--status", "needs --metrics-port, where the page is served")
    elif arguments.metrics_host is not None:
        raise InvalidRequest("--metrics-host", "needs --metrics-port, whose address it is")


def serve_http(
    arguments: argparse.Namespace, state: ServerState, status: Status
) -> HttpServer | None:
    """Return what serves metrics and the status page; None unless they are asked for.

    Raises: InvalidRequest.
    """
    if arguments.metrics_port is None:
        return None
    from ..rpc.monitoring.metrics import Metrics

    pages = {"/metrics": Metrics(state).page}
    if arguments.status:
        from ..rpc.monitoring.status_page.page import status_page

        pages["/"] = CachedPage(lambda: status_page(status.snapshot()))
    host = "127.0.0.1" if arguments.metrics_host is None else arguments.metrics_host
    server = HttpServer("--metrics-port", host, arguments.metrics_port, pages)
    _LOG.info("metrics address=http://%s/metrics", server.address)
    if not server.is_local:
        _LOG.warning("metrics address=%s: anyone who can reach it can read them", server.address)
    if arguments.status:
        _LOG.info("status page address=http://%s/", server.address)
    return server


def _print_line(line: str) -> None:
    """Print a line.  Raises: InvalidRequest if stdout cannot be written."""
    try:
        print(line, flush=True)
    except OSError as error:
        raise InvalidRequest("stdout", f"cannot be written: {error.strerror}") from error


def tls_credentials(arguments: argparse.Namespace) -> grpc.ServerCredentials | None:
    """Return the TLS credentials; None is plaintext.  Raises: InvalidRequest."""
    cert, key, client_ca = arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca
    if not (cert or key or client_ca):
        return None
    for option, value in (("--tls-cert", cert), ("--tls-key", key)):
        if not value:
            raise InvalidRequest(option, "is missing; TLS needs both --tls-cert and --tls-key")
    return server_credentials(cert, key, client_ca)


def stream_limits(arguments: argparse.Namespace) -> StreamLimits:
    """Return the limits of the command line.  Raises: InvalidRequest."""
    require_range("--max-request-bytes", arguments.max_request_bytes, 1 << 10, 1 << 31)
    require_range("--max-streams", arguments.max_streams, 1, 1 << 15)
    peer_streams = arguments.max_streams_per_peer
    if peer_streams is None:
        peer_streams = max(1, arguments.max_streams // 2)
    require_range("--max-streams-per-peer", peer_streams, 1, 1 << 15)
    for name in ("send_timeout_seconds", "drain_seconds"):
        if not 0 < (seconds := getattr(arguments, name)) <= _DAY_SECONDS:
            problem = f"{seconds} is not in (0, {_DAY_SECONDS}]"
            raise InvalidRequest(f"--{name.replace('_', '-')}", problem)
    return StreamLimits(arguments.max_streams, peer_streams, arguments.send_timeout_seconds)


def open_datasets(arguments: argparse.Namespace) -> dict[str, Dataset]:
    """Open every dataset of the command line, by name.  Raises: TokenfeedError."""
    if arguments.check_all_tokens and arguments.vocab_size is None:
        raise InvalidRequest("--check-all-tokens", "needs --vocab-size")
    require_range("--max-batch-bytes", arguments.max_batch_bytes, 1, 1 << 63)
    if arguments.warm_up_bytes is not None:
        require_range("--warm-up-bytes", arguments.warm_up_bytes, 0, 1 << 63)
    if arguments.tokenizer is not None and not any(map(is_text, arguments.data)):
        raise InvalidRequest("--tokenizer", "is for --data that is text, but no --data is text")
    of_text = {"--text-column": arguments.text_column, "--append-token": arguments.append_token}
    for option, value in of_text.items():
        if value is not None and arguments.tokenizer is None:
            raise InvalidRequest(option, "needs --tokenizer, for --data that is text")
    before_ingest = {VOCAB_SIZE: arguments.vocab_size, CACHE_DIR: arguments.cache_dir}
    for option, value in before_ingest.items():
        if value is not None:
            require_value(option, value, refused)
    sources = [source for words in arguments.data for source in _sources(words, arguments)]
    require_distinct_names(sources)
    options = parse_all(arguments, sources)
    poll_rate = PollRate(never=arguments.immutable)
    datasets = {}
    for source in sources:
        own = options[source.name]
        checks = TokenChecks(own.vocab_size, arguments.check_all_tokens)
        storage = StorageOptions(own.read, poll_rate)
        dataset = open_dataset(source, own.formats, checks, storage, planes=own.planes)
        datasets[source.name] = dataset
        log_opened(dataset)
    return datasets


def _sources(words: Sequence[str], arguments: argparse.Namespace) -> list[DatasetSource]:
    """Return the datasets of one --data. Text is ingested first.  Raises: TokenfeedError."""
    if not is_text(words):
        return parse_datasets(words, mixed_splits=arguments.mixed_splits)
    if arguments.tokenizer is None:
        cure = "pass --tokenizer, or ingest it first: tokenfeed ingest"
        raise InvalidRequest("--data", f"{words[0]} is text; {cure}")
    texts = TextCache(
        arguments.tokenizer,
        "text" if arguments.text_column is None else arguments.text_column,
        arguments.append_token,
        arguments.cache_dir or cache_folder(),
        log_output=arguments.log_format == "json",
    )
    text = parse_text(words, mixed_splits=arguments.mixed_splits)
    return [texts.tokenized(text, [words[0].removeprefix(f"{text.name}="), *words[1:]])]
