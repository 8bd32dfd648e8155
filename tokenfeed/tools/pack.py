"""tokenfeed pack: makes the rows of packed-1 or padded-1 for a context length, and stores them next
to the token files, where servers find them.

A server makes those of up to 10^8 documents by itself. This is for more, and for servers that are
to be ready when they start. One process is mostly enough; it can use several, or a Ray cluster.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from tokenfeed.commands import program
from tokenfeed.commands.output import exit_code, require_stdout
from tokenfeed.errors import InvalidRequest, WriteFailed
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.orders import latest, packed_v1, padded_v1
from tokenfeed.server.cli.dataset_options import PLANE_OPTIONS, add_dataset_arguments, parse_dataset
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.runtime.threads.executors import Executor, make_executor
from tokenfeed.server.storage.documents import RowIndex, what_of
from tokenfeed.server.storage.documents.rows_builder import (
    FileDocuments,
    FileRows,
    Memory,
    rows_of_documents,
)
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.option_names import CACHE_DIR
from tokenfeed.stream.position import require_range

_SECONDS_PER_PIECE = 1.1e-7
_SECONDS_PER_ROW = 1.6e-7
_SECONDS_PER_LENGTH = 2.5e-5
_DOCUMENTS_PER_LENGTH = 40
"""The last three only of packed-1, where each length of pieces that a file has takes one step. They
fit the figures of docs/documents-and-packing.md; for 100,000 documents a file they are up to three
times too much. Two processes took about a second longer, to hand over the results. 2 shared cores,
2026-11.
"""
_SEARCH_SECONDS_PER_TOKEN = 2.1e-9
"""To search the documents of uint16 tokens in memory: 2.0 to 2.3 ns of a core. 2 shared cores,
2026-11."""
_DOCUMENT_TOKENS = 1000
"""While the documents are not known."""
_WORKERS_MAX = 1 << 12
_MEMORY_SHARE = 1.0
"""Of the memory that is available: this process has no other work."""

Run = Executor[FileDocuments, RowsKey, FileRows]
"""Makes the rows of files in other processes."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("tokenfeed.tools.pack"),
        description="Make the rows of whole documents that a server delivers for one order and "
        "context length, and store them next to the token files.",
        epilog="example: tokenfeed pack shards/ --context-length 2048 --document-end-token 50256",
    )
    add_dataset_arguments(parser, *PLANE_OPTIONS, CACHE_DIR)
    add = parser.add_argument
    add(
        "--context-length",
        type=int,
        required=True,
        metavar="T",
        help="context length: number of tokens of x in a row; a row has T + 1 tokens",
    )
    add(
        "--order",
        choices=[order.NAME.partition("-")[0] for order in (packed_v1, padded_v1)],
        default="packed",
        help="order of the rows (default: %(default)s)",
    )
    add(
        "--long",
        choices=padded_v1.LONG_DOCUMENTS,
        default="cut",
        help="what to do with a document that is longer than a row: cut it into several rows or, "
        "with --order padded, drop or truncate it (default: %(default)s)",
    )
    add(
        "--workers",
        type=int,
        metavar="N",
        help="number of processes on this machine (default: 1), or of concurrent tasks on a Ray "
        "cluster (default: one for each core)",
    )
    add(
        "--executor",
        choices=("local", "ray"),
        default="local",
        help="make the rows on this machine, or on the Ray cluster to which it belongs (default: "
        "%(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Pack.  Returns: 0 when done, 1 after an error in one line, 130 after Ctrl-C or SIGTERM."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(message)s")
    # `docker stop` sends SIGTERM, which by default does not end the first process of a container.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(partial(_run, arguments), interrupted="rows are stored when all are made")


def _run(arguments: argparse.Namespace) -> None:
    require_stdout()
    key = key_of(arguments.order, arguments.context_length, arguments.long)
    source, options = parse_dataset(arguments)
    # Before a thread is started: workers are forks.
    with workers_of(arguments.executor, arguments.workers) as run:
        how = workers_named(arguments.executor, arguments.workers)
        # The tasks of a cluster are on other machines.
        here = (arguments.workers or 1) if arguments.executor == "local" else 0
        storage = StorageOptions(options.read)
        pack(source, options.formats, storage, options.planes, key, run, how, here)


def key_of(order: str, context_length: int, long_documents: str) -> RowsKey:
    """Return what rows are made by.  Raises: InvalidRequest."""
    name = latest(order).NAME
    allowed = latest(order).LONG_DOCUMENTS
    if long_documents not in allowed:
        raise InvalidRequest("--long", f"{name} takes only {' or '.join(allowed)}")
    return RowsKey(name, context_length, long_documents)


@contextmanager
def workers_of(executor: str, workers: int | None) -> Iterator[Run | None]:
    """Lend what makes rows in other processes; None if this one is enough.

    Raises: InvalidRequest.
    """
    if workers is not None:
        require_range("--workers", workers, 1, _WORKERS_MAX)
    if executor == "local" and (workers or 1) == 1:
        yield None
        return
    with make_executor(executor, workers, rows_of_documents) as run:
        yield run


def workers_named(executor: str, workers: int | None) -> str:
    """Return in words what `workers_of` lends; its time is that of one core."""
    if executor == "ray":
        return "on a Ray cluster" if workers is None else f"in {workers} tasks on a Ray cluster"
    return "in one process" if (workers or 1) == 1 else f"in {workers} processes"


def pack(
    source: DatasetSource,
    options: FormatOptions,
    storage: StorageOptions,
    planes: PlaneOptions,
    key: RowsKey,
    run: Run | None,
    how: str,
    workers: int,
) -> None:
    """Make the rows of a dataset, unless they are stored, and print what they are.

    run: what makes them in other processes; None: this one does.  how: the same in words.
    workers: processes of this machine, each of which has a file in memory.
    Raises: TokenfeedError.
    """
    cure = "use smaller files, or a machine with more memory"
    if workers > 1:
        cure = f"pass fewer --workers than {workers}, {cure}"
    memory = Memory(_MEMORY_SHARE, workers, cure)
    checks = TokenChecks(serves=False)
    with closing(open_dataset(source, options, checks, storage, planes=planes)) as dataset:
        # A search may take much longer than all that follows.
        starts = dataset.document_starts
        is_searched = starts is None or starts.is_known
        if not is_searched:
            print_estimate(dataset, key, how)
        dataset.search_now()
        assert dataset.rows is not None
        builder = dataset.rows.builder(key, memory, run)
        index = builder.find()
        if index is None:
            builder.require_memory()
            if is_searched:
                print_estimate(dataset, key, how)
            index = builder.make()
        with closing(index):
            if not index.path:
                problem = "no folder takes its rows, so a server would make them again"
                cure = "pass --cache-dir with a folder that can be written and has room"
                raise WriteFailed(dataset.store.shards[0].path, f"{problem}; {cure}")
            print(summary(dataset, index, key))


def estimate(
    key: RowsKey, *, token_count: int, document_count: int, file_count: int
) -> tuple[float, float]:
    """Return about how many seconds of a core and megabytes of disk rows of these documents take,
    if their lengths are exponential: then this many pieces are cut off them.
    """
    length = key.context_length
    kept_share = -math.expm1(-length * document_count / max(1, token_count))
    pieces = document_count / kept_share if document_count else 0.0
    if key.order != packed_v1.NAME:
        return _SECONDS_PER_PIECE * pieces, 8 * pieces / 1e6
    rows = token_count / length
    lengths = min(length, document_count / file_count / _DOCUMENTS_PER_LENGTH)
    seconds = _SECONDS_PER_PIECE * pieces + _SECONDS_PER_ROW * rows
    seconds += _SECONDS_PER_LENGTH * lengths * file_count
    return seconds, 8 * (pieces + rows) / 1e6


def print_estimate(dataset: Dataset, key: RowsKey, how: str) -> None:
    """Print to stderr about how long it takes, and how much disk.  how: by which processes."""
    tokens = dataset.store.shape.token_count
    assert dataset.document_starts is not None
    if not dataset.document_starts.is_known:
        documents = max(1, tokens // _DOCUMENT_TOKENS)
        what = f"{tokens:,} tokens, whose documents are searched first; if these have "
        what += f"{_DOCUMENT_TOKENS:,} tokens each"
        search_seconds = _SEARCH_SECONDS_PER_TOKEN * tokens
    else:
        documents, search_seconds = dataset.document_starts.count, 0.0
        what = f"{documents:,} documents of {tokens:,} tokens"
    files = len(dataset.store.shards)
    seconds, megabytes = estimate(
        key, token_count=tokens, document_count=documents, file_count=files
    )
    print(
        f"{what_of(key)}, {how}: {what}: about "
        f"{max(1, round(seconds + search_seconds)):,} s and "
        f"{max(0.1, megabytes):,.1f} MB",
        file=sys.stderr,
        flush=True,
    )


def summary(dataset: Dataset, index: RowIndex, key: RowsKey) -> str:
    """Return what the rows are, in one line."""
    stats = index.stats
    fill = stats.targets / max(1, stats.rows * key.context_length)
    return (
        f"{dataset.name}: {key.order} for context length {key.context_length}: "
        f"{stats.documents:,} documents, {stats.rows:,} rows, {stats.pieces:,} pieces, "
        f"fill {100 * fill:.2f} %, {stats.single:,} of one token, {stats.dropped:,} dropped, "
        f"{stats.truncated:,} truncated, {stats.cropped:,} tokens cropped, "
        f"{os.path.getsize(index.path):,} bytes in {index.path}"
    )


if __name__ == "__main__":
    sys.exit(main())
