"""python -m server.inspect: what files are, and what a server would assume of them, and why."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

import numpy as np

from tokenfeed.errors import InvalidRequest, TokenfeedError

from .corpus import Corpus
from .dataset import Dataset, TokenChecks, open_dataset
from .formats import FORMAT_NAMES, STORED, Asked
from .shards import parse_data

_FILES_SHOWN = 20


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m server.inspect",
        description="Says what files of tokens are, and what a server would assume of them.",
        epilog="example: python -m server.inspect shards/*.bin --tokenizer tokenizer.json",
    )
    parser.add_argument(
        "data", nargs="+", metavar="PATH", help="what --data of the server takes for one dataset"
    )
    parser.add_argument("--format", choices=FORMAT_NAMES, help="(default: as they look)")
    parser.add_argument(
        "--dtype", choices=tuple(STORED), help="of tokens in files that do not say it"
    )
    parser.add_argument(
        "--tokens", type=int, default=16, metavar="N", help="to show (default: %(default)s)"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json to decode them with; needs the tokenizers package",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Inspect.  Returns: 0, 1 after an error said in one line, 130 after Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level="WARNING", format="%(message)s")
    try:
        source = parse_data(arguments.data)
        dtype = STORED[arguments.dtype] if arguments.dtype else None
        asked = Asked(arguments.format, dtype, source.tensor)
        dataset = open_dataset(source, asked, TokenChecks(serves=False))
        try:
            show(dataset, arguments.tokens, arguments.tokenizer)
        finally:
            dataset.close()
    except TokenfeedError as error:
        print("error: " + str(error).replace("\n", "\\n"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def show(dataset: Dataset, tokens_shown: int, tokenizer_path: str | None) -> None:
    """Print what is known of a dataset.  Raises: TokenfeedError."""
    corpus, layout = dataset.corpus, dataset.corpus.shards[0].layout
    print(f"dataset {dataset.name}")
    print(f"  format: {layout.format} ({layout.why})")
    assumed = " is assumed; --dtype says otherwise" if layout.dtype_assumed else ""
    print(f"  dtype: {corpus.stored.name}{assumed}")
    print(f"  served as: {corpus.dtype.name}{_why_served(corpus)}")
    print(f"  tokens: {corpus.token_counts.sum():,} in {len(corpus.shards):,} file(s)")
    print(f"  fingerprint: {dataset.fingerprint.hex()}")
    if dataset.digest:
        print(f"  digest: {dataset.digest.hex()}")
    for shard in corpus.shards[:_FILES_SHOWN]:
        documents = shard.layout.documents
        known = f", {documents.count:,} documents ({documents.path})" if documents else ""
        begins = f", from byte {shard.layout.first_byte} on" if shard.layout.first_byte else ""
        print(f"  {shard.path}: {shard.layout.token_count:,} tokens{begins}{known}")
    if len(corpus.shards) > _FILES_SHOWN:
        print(f"  ... and {len(corpus.shards) - _FILES_SHOWN:,} more")
    first = corpus.shards[0]
    count = min(max(0, tokens_shown), first.layout.token_count)
    tokens = np.frombuffer(first.read(0, count * corpus.stored.itemsize), corpus.stored).tolist()
    print(f"  first tokens: {' '.join(map(str, tokens))}")
    if tokenizer_path is not None:
        print(f"  decoded: {_decoded(tokens, tokenizer_path)!r}")


def _why_served(corpus: Corpus) -> str:
    if corpus.narrowing.is_copy:
        return ", as they are stored"
    if not corpus.narrowing.looks:
        return ", which holds them all"
    return ", by what was looked at; a server looks at every token, or takes --vocab-size"


def _decoded(tokens: list[int], tokenizer_path: str) -> str:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InvalidRequest(
            "--tokenizer", "needs the tokenizers package: pip install tokenizers"
        ) from None
    try:
        return str(Tokenizer.from_file(tokenizer_path).decode(tokens))
    except Exception as error:  # the library raises Exception itself
        raise InvalidRequest(
            "--tokenizer", f"{tokenizer_path} is no tokenizer.json: {error}"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
