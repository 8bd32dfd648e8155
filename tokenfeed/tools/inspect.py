"""tokenfeed inspect: shows what token files are, what a server would assume, and why."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import numpy as np

from tokenfeed.commands import program
from tokenfeed.commands.decoding import decoder
from tokenfeed.commands.output import exit_code, require_stdout
from tokenfeed.server.cli.dataset_options import PLANE_OPTIONS, add_dataset_arguments, parse_dataset
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats.document_ids import ids_beside
from tokenfeed.server.storage.option_names import REDACTIONS, VOCAB_SIZE
from tokenfeed.server.storage.store import TokenStore

from .redact.describing import describe_lists

_FILES_SHOWN = 20


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("tokenfeed.tools.inspect"),
        description="Show the format, type and size of token files, and what a server would assume "
        "about them.",
        epilog="example: tokenfeed inspect shards/*.bin --tokenizer tokenizer.json",
    )
    add_dataset_arguments(parser, *PLANE_OPTIONS, REDACTIONS, VOCAB_SIZE)
    add = parser.add_argument
    text = "number of tokens to show (default: %(default)s)"
    add("--tokens", type=int, metavar="N", default=16, help=text)
    add(
        "--tokenizer",
        metavar="PATH",
        help="also show the tokens as text, decoded with this tokenizer.json (needs the tokenizers "
        'package), or with "bytes"',
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Inspect.  Returns: 0, 1 after an error in one line, 130 after Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level="WARNING", format="%(message)s")
    return exit_code(partial(_inspect, arguments))


def _inspect(arguments: argparse.Namespace) -> None:
    require_stdout()
    source, options = parse_dataset(arguments)
    checks, storage = TokenChecks(options.vocab_size, serves=False), StorageOptions(options.read)
    with closing(
        open_dataset(source, options.formats, checks, storage, planes=options.planes)
    ) as dataset:
        dataset.search_now()
        show(dataset, arguments.tokens, arguments.tokenizer)


def show(dataset: Dataset, tokens_shown: int, tokenizer: str | None) -> None:
    """Print what is known about a dataset.  Raises: TokenfeedError."""
    store, layout = dataset.store, dataset.store.shards[0].layout
    print(f"dataset {dataset.name}")
    print(f"  format: {layout.format} ({layout.why})")
    assumed = sum(shard.layout.dtype_assumed for shard in store.shards)
    note = f" is assumed for {assumed:,} file(s); --dtype overrides it" if assumed else ""
    print(f"  dtype: {store.stored.name}{note}")
    print(f"  served as: {store.dtype.name}{_why_served(store)}")
    print(f"  read by: {store.files.kind} ({dataset.why_store})")
    print(f"  tokens: {store.shape.token_count:,} in {len(store.shards):,} file(s)")
    if (known := dataset.documents) is not None:
        print(f"  documents: {known.count:,}, known for {known.file_count:,} file(s)")
    if (mask := dataset.loss_mask) is not None:
        path = mask.store.shards[0].path
        print(f"  loss masks: of {len(mask.store.shards):,} file(s), the first is {path}")
        print(f"  targets: {mask.targets_in_words()}")
    if ids := ids_beside([shard.path for shard in store.shards]):
        print(f"  document ids: of {len(ids):,} file(s), the first is {ids[0]}")
    for line in describe_lists(dataset.redactions, dataset.store):
        print(f"  {line}")
    print(f"  fingerprint: {dataset.fingerprint.hex()}")
    if dataset.digest:
        print(f"  digest: {dataset.digest.hex()}")
    for shard in store.shards[:_FILES_SHOWN]:
        documents = shard.layout.documents
        ends = f", {documents.count:,} documents ({documents.path})" if documents else ""
        begins = f", from byte {shard.layout.first_byte} on" if shard.layout.first_byte else ""
        print(f"  {shard.path}: {shard.layout.token_count:,} tokens{begins}{ends}")
    if len(store.shards) > _FILES_SHOWN:
        print(f"  ... and {len(store.shards) - _FILES_SHOWN:,} more")
    count = min(max(0, tokens_shown), layout.token_count)
    content = store.files.read(0, 0, count * store.stored.itemsize)
    tokens = np.frombuffer(content, store.stored).tolist()
    print(f"  first tokens: {' '.join(map(str, tokens))}")
    if tokenizer is not None:
        print(f"  decoded: {decoder(tokenizer)(tokens)!r}")


def _why_served(store: TokenStore) -> str:
    if store.narrowing.is_identity:
        return ", as stored"
    if not store.narrowing.needs_scan:
        return ", which all of them fit"
    return ", by the checked tokens; a server checks every token, unless it has --vocab-size"


if __name__ == "__main__":
    sys.exit(main())
