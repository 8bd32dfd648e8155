"""tokenfeed pack: makes the rows of packed-1 or padded-1 for a context length, and stores them next
to the token files, where servers find them.

A server makes those of up to 10^8 documents by itself. This is for more, and for servers that are
to be ready when they start. One process is mostly enough; it can use several, or a Ray cluster.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from tokenfeed.commands import program
from tokenfeed.commands.output import flush_stdout, print_error, print_stdout_error
from tokenfeed.errors import InvalidRequest, TokenfeedError, WriteFailed
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.orders import latest, packed_v1, padded_v1
from tokenfeed.stream.position import require_range

from .cli.dataset_options import (
    add_dataset_arguments,
    add_plane_arguments,
    parse_dataset,
    parse_planes,
)
from .datasets.dataset import Dataset, PlaneOptions, TokenChecks, open_dataset
from .datasets.sources import DatasetSource
from .runtime.threads.executors import Executor, make_executor
from .storage.choice import Storing
from .storage.formats import FormatOptions
from .storage.rows import FileDocuments, FileRows, RowIndex, RowsJob, rows_of_documents

_SECONDS_PER_ROW = 5e-7
"""Of documents and rows together. packed-1 of 10^7 documents of 1,000 tokens: 6.0 s with T = 512,
2.4 with 2048, 5.6 with 8192, 7.6 with 65536; padded-1: 1.3 s. Two processes took about a second
longer, to hand over the results. 2 shared cores, 2026-11."""
_WORKERS_MAX = 1 << 12

Run = Executor[FileDocuments, RowsKey, FileRows]
"""Makes the rows of files in other processes."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("server.pack"),
        description="Make the rows of whole documents that a server delivers for one order and "
        "context length, and store them next to the token files.",
        epilog="example: tokenfeed pack shards/ --context-length 2048 --document-end-token 50256",
    )
    add_dataset_arguments(parser)
    add_plane_arguments(parser)
    add = parser.add_argument
    add("--context-length", type=int, required=True, metavar="T", help="a row has T + 1 tokens")
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
        help="documents longer than a row: cut into several rows, or, with --order padded, "
        "dropped or truncated (default: %(default)s)",
    )
    add("--cache-dir", metavar="DIR", help="folder for the rows (default: beside the token files)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="number of processes on this machine (default: 1), or of tasks at once on a Ray "
        "cluster (default: one for each of its cores)",
    )
    add(
        "--executor",
        choices=("local", "ray"),
        default="local",
        help="make rows on this machine, or on its Ray cluster (default: %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Pack.  Returns: 0 when done, 1 after an error in one line, 130 after Ctrl-C or SIGTERM."""
    arguments = build_parser().parse_args(argv)
    # A path may contain bytes that are not text.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(message)s")
    # `docker stop` sends SIGTERM, which by default does not end the first process of a container.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        key = key_of(arguments.order, arguments.context_length, arguments.long)
        source, options = parse_dataset(arguments)
        planes = parse_planes(arguments, [source.name], arguments.cache_dir)[source.name]
        # Before a thread is started: workers are forks.
        with workers_of(arguments.executor, arguments.workers) as run:
            pack(source, options, Storing(arguments.read), planes, key, run)
        flush_stdout()
    except TokenfeedError as error:
        return print_error(error)
    except KeyboardInterrupt:
        print("interrupted: no rows were stored", file=sys.stderr)
        return 130
    except OSError as error:
        return print_stdout_error(error)
    return 0


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


def pack(
    source: DatasetSource,
    options: FormatOptions,
    storing: Storing,
    planes: PlaneOptions,
    key: RowsKey,
    run: Run | None = None,
) -> None:
    """Make the rows of a dataset, unless they are stored, and print what they are.

    run: what makes them in other processes; None: this one does.
    Raises: TokenfeedError.
    """
    checks = TokenChecks(serves=False)
    with closing(open_dataset(source, options, checks, storing, planes=planes)) as dataset:
        dataset.search_now()
        assert dataset.rows is not None
        job = dataset.rows.job(key)
        index = job.found()
        if index is None:
            print_estimate(job)
            index = job.made(run=run)
        with closing(index):
            if not index.path:
                problem = "no folder takes its rows, so a server would make them again"
                cure = "pass --cache-dir with a folder that can be written and has room"
                raise WriteFailed(dataset.store.shards[0].path, f"{problem}; {cure}")
            print(summary(dataset, index, key))


def print_estimate(job: RowsJob) -> None:
    """Print to stderr about how long it takes, and how much disk."""
    tokens, documents = job.store.shape.token_count, job.borders.count
    rows = tokens // job.key.context_length
    megabytes = 8 * (documents + 2 * rows) / 1e6
    seconds = _SECONDS_PER_ROW * (documents + rows)
    print(
        f"{documents:,} documents of {tokens:,} tokens: about {max(1, round(seconds)):,} s on one "
        f"core, and {max(0.1, megabytes):,.1f} MB",
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
