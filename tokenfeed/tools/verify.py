"""tokenfeed verify: reads every byte of a dataset, and stores its digest next to its files.

With this digest, servers of corpora above 1 GiB can be compared by all of their content. Data
corruption is found too: files of unchanged size and modification time must have the same digest.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import closing, suppress

from tokenfeed.commands import program
from tokenfeed.commands.output import exit_code
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.cli.dataset_options import add_dataset_arguments, parse_dataset
from tokenfeed.server.datasets.content import full_digest
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import DatasetOptions
from tokenfeed.server.datasets.redactions.opening import read_as_erased
from tokenfeed.server.datasets.redactions.overlay import files_left
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.datasets.sources.manifest import (
    ManifestSplit,
    read_splits,
    require_as_ingested,
)
from tokenfeed.server.storage.digest_file import digest_path, read_digest, write_digest
from tokenfeed.server.storage.door import StorageOptions, absolute
from tokenfeed.server.storage.objects.cache_choice import require_intact
from tokenfeed.server.storage.option_names import OBJECT_CACHE, REDACTIONS

from .redact.describing import describe_lists


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("tokenfeed.tools.verify"),
        description="Read every byte of a dataset, and store its digest, a hash of all of its "
        "content, next to its files.",
        epilog="example: tokenfeed verify shards/ --dtype uint16",
    )
    add_dataset_arguments(parser, REDACTIONS)
    parser.add_argument(
        OBJECT_CACHE,
        metavar="DIR",
        help="also check each block of the object cache in this folder; blocks that have changed "
        "are removed from the cache",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Verify.  Returns: 0 if it is intact, 1 after an error in one line, 130 after Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(message)s")

    def verify_all() -> None:
        verify(*parse_dataset(arguments))
        if arguments.object_cache is not None:
            blocks = require_intact(arguments.object_cache)
            print(f"object cache: {blocks} blocks are as they were written")

    return exit_code(verify_all, interrupted="no digest was stored")


def verify(source: DatasetSource, options: DatasetOptions) -> None:
    """Read a dataset in full, compare its digest with the stored one, and store it. Loss masks and
    ids that were ingested with it are compared with their manifest.

    If tokens were erased, the digest is that of before, and the content is compared with what the
    erasure has left.
    Raises: InvalidCorpus if its content has changed since it was last verified, or cannot be read.
    """
    checks, storage = TokenChecks(serves=False), StorageOptions(options.read)
    with closing(
        open_dataset(source, options.formats, checks, storage, planes=options.planes)
    ) as dataset:
        if (split := source.split or _split_around(source.paths)) is not None:
            require_as_ingested(split)
        store = dataset.store
        known = read_digest(store)
        listed = None if dataset.redactions is None else dataset.redactions.content
        erasure = None if listed is None else listed.erasure
        content_digest = full_digest(store, read_as_erased(store, store.files.read, listed))
        if erasure is not None:
            if erasure.digest and content_digest != erasure.digest:
                problem = "the tokens are neither the original ones, nor those after an erasure"
                raise InvalidCorpus(store.shards[0].path, f"{problem}; restore the file")
            known = b""  # of the files, of which some may not be replaced yet
        found = dataset.original_digest(content_digest)
        print(f"dataset {dataset.name}: {store.shape.token_counts.sum():,} tokens")
        print(f"fingerprint: {dataset.fingerprint.hex()}")
        print(f"digest:      {found.hex() or 'unknown: tokens were erased before it was known'}")
        for line in describe_lists(dataset.redactions, store):
            print(line)
        if not found or (listed is not None and files_left(store, listed)):
            return
        if known and known != content_digest:
            raise InvalidCorpus(
                store.shards[0].path,
                "has changed since it was verified, although its modification times are the same; "
                f"the digest in {digest_path(store)} is {known.hex()}",
            )
        try:
            print(f"stored in {write_digest(store, dataset.fingerprint, content_digest)}")
        except OSError as error:
            print(f"not stored: {digest_path(store)} cannot be written: {error.strerror}")


def _split_around(paths: Sequence[str]) -> ManifestSplit | None:
    """Return the split of an ingested folder whose shards these are; None if they are no split."""
    shards = tuple(map(absolute, paths))
    with suppress(InvalidCorpus):  # the manifest of another tool
        for split in read_splits(os.path.dirname(os.path.dirname(shards[0]))) or ():
            if split.paths == shards:
                return split
    return None


if __name__ == "__main__":
    sys.exit(main())
