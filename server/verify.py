"""python -m server.verify: read every byte of a dataset, and keep its digest beside its files.

With it, servers of corpora above 1 GiB are compared by all of their content, and rot is found: what
was read before and is as old and as long as it was has to be the same.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from tokenfeed.commands import program
from tokenfeed.errors import InvalidCorpus, TokenfeedError

from .cli.dataset_options import add_dataset_arguments, parse_dataset
from .datasets.dataset import TokenChecks, full_digest, open_dataset
from .datasets.sources import Source
from .runtime.output import print_error
from .storage.choice import Storing
from .storage.formats import FormatOptions


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("server.verify"),
        description="Reads every byte of a dataset, and keeps its digest beside its files.",
    )
    add_dataset_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Verify.  Returns: 0 if all is well, 1 after an error said in one line, 130 after Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(message)s")
    try:
        verify(*parse_dataset(arguments), Storing(arguments.read))
    except TokenfeedError as error:
        return print_error(error)
    except KeyboardInterrupt:
        print("interrupted: nothing was kept", file=sys.stderr)
        return 130
    return 0


def verify(source: Source, options: FormatOptions, storing: Storing | None = None) -> None:
    """Read a dataset in full, compare it with what is known of it, and keep its digest.

    Raises: InvalidCorpus if its content is another one than when it was last verified, or it cannot
    be read.
    """
    dataset = open_dataset(source, options, TokenChecks(serves=False), storing)
    try:
        store = dataset.store
        known = store.kept_digest()
        found = full_digest(store)
        print(f"dataset {dataset.name}: {store.shape.token_counts.sum():,} tokens")
        print(f"fingerprint: {dataset.fingerprint.hex()}")
        print(f"digest:      {found.hex()}")
        if known and known != found:
            raise InvalidCorpus(
                store.shards[0].path,
                f"has other content than when it was verified, with the same times of last write; "
                f"{store.digest_path} says {known.hex()}",
            )
        try:
            print(f"kept in {store.keep_digest(found)}")
        except OSError as error:
            print(f"not kept: {store.digest_path} cannot be written: {error.strerror}")
    finally:
        dataset.close()


if __name__ == "__main__":
    sys.exit(main())
