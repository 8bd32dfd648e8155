"""python -m server.ingest: text -> token shards with a manifest, to be served by --data."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenfeed.commands import program
from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest, TokenfeedError
from tokenfeed.stream.position import require_range

from ..runtime.output import print_error, print_stdout_error, single_line

if TYPE_CHECKING:
    from .tokenize.executors import Executor


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("server.ingest"),
        description="Makes token shards of text: parquet, jsonl (plain, .gz, .zst), plain text. "
        "Run again after a kill, it goes on.",
        epilog="example: python -m server.ingest pages/*.parquet --out tokens --tokenizer "
        "tokenizer.json --append-token '<|endoftext|>'",
    )
    add = parser.add_argument
    add("sources", nargs="+", metavar="SOURCE", help="a file, a glob, or a folder")
    add("--out", required=True, metavar="DIR", help="where the shards go; for --data of the server")
    add(
        "--tokenizer",
        required=True,
        metavar="PATH",
        help='a tokenizer.json of Hugging Face, or the word "bytes"',
    )
    add("--text-column", metavar="NAME", help="of parquet and jsonl (default: text)")
    add(
        "--prompt-column", metavar="NAME", help="with --response-column: only responses are learned"
    )
    add("--response-column", metavar="NAME")
    add("--prepend-token", metavar="TEXT", help="before each document")
    add("--append-token", metavar="TEXT", help="after each document, such as <|endoftext|>")
    add(
        "--parse-special-tokens",
        action="store_true",
        help="take special tokens that are written in text for what they stand for, not for text",
    )
    add(
        "--val-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="share of documents, by their hash, that becomes the validation split (default: 0)",
    )
    add(
        "--shuffle-buffer",
        type=int,
        default=1,
        metavar="N",
        help="permute each N documents before they are written (default: 1, as they come)",
    )
    add("--seed", type=int, default=0, help="of that (default: %(default)s)")
    add(
        "--shard-tokens",
        type=int,
        default=100_000_000,
        metavar="N",
        help="in a shard at most (default: %(default)s)",
    )
    add("--workers", type=int, metavar="N", help="processes (default: one a core)")
    add("--executor", choices=("local", "ray"), default="local", help="(default: %(default)s)")
    add("--strict", action="store_true", help="end at the first thing that cannot be ingested")
    add("--wait", action="store_true", help="until another ingest into DIR has ended")
    add("--parent-pid", type=int, metavar="PID", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Ingest.  Returns: 0 when all is made, 1 after an error said in one line, 130 after Ctrl-C or
    SIGTERM.
    """
    arguments = build_parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # A path need not be text.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("tokenfeed").setLevel("INFO")
    # `docker stop` says it so, and the first process of a container is not ended by it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    try:
        made, tokens = run(arguments)
    except TokenfeedError as error:
        return print_error(error)
    except ImportError as error:
        print(f"error: ingest: {missing(error, 'ingest')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return 130
    try:
        report(made, arguments.out, tokens, time.monotonic() - begun)
        sys.stdout.flush()
    except OSError as error:
        return print_stdout_error(error)
    return 0


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Do what the command line says.  Returns: the manifest, and how many tokens this run made.
    Raises: TokenfeedError.
    """
    # Processes that encode import this module as well, and need nothing of these.
    from .output.shuffle import BUFFER_DOCUMENTS_MAX
    from .tokenize.executors import end_with_parent, make_executor

    if arguments.parent_pid is not None:
        end_with_parent(arguments.parent_pid)
    require_range("--shuffle-buffer", arguments.shuffle_buffer, 1, BUFFER_DOCUMENTS_MAX)
    require_range("--seed", arguments.seed, 0, 1 << 64)
    require_range("--shard-tokens", arguments.shard_tokens, 1, 1 << 40)
    if arguments.workers is not None:
        require_range("--workers", arguments.workers, 1, 1 << 12)
    # Who encodes starts while this process learns what to do.
    with make_executor(arguments.executor, arguments.workers) as executor:
        return _run(arguments, executor)


def _run(arguments: argparse.Namespace, executor: Executor) -> tuple[dict[str, Any], int]:
    from .inputs.discovery import find_sources
    from .job import Job
    from .progress import Progress
    from .run import ingest

    sources = tuple(find_sources(arguments.sources))
    job = Job(
        sources,
        recipe_of(arguments, any(source.kind == "text" for source in sources)),
        arguments.prepend_token,
        arguments.append_token,
        arguments.shuffle_buffer,
        arguments.seed,
        arguments.shard_tokens,
    )
    progress = Progress(sum(source.size_bytes for source in sources))
    made = ingest(
        job,
        arguments.out,
        executor,
        strict=arguments.strict,
        wait=arguments.wait,
        progress=progress,
    )
    return made, progress.tokens


def recipe_of(arguments: argparse.Namespace, has_text: bool) -> Any:
    """Return how documents become tokens.  Raises: InvalidRequest."""
    from .tokenize.encoding import Recipe
    from .tokenize.tokenizer import TokenizerFile, load_tokenizer

    if not 0 <= arguments.val_fraction < 1:
        raise InvalidRequest("--val-fraction", f"{arguments.val_fraction} is not in [0, 1)")
    tokenizer_file = TokenizerFile.read(
        arguments.tokenizer, parses_special=arguments.parse_special_tokens
    )
    ids: dict[str, int | None] = {}
    for option in ("prepend_token", "append_token"):
        text = getattr(arguments, option)
        ids[option] = None if text is None else load_tokenizer(tokenizer_file).token_id(text)
        if text is not None and ids[option] is None:
            problem = f"{text!r} is no token of {tokenizer_file.name}"
            raise InvalidRequest(f"--{option.replace('_', '-')}", problem)
    columns = columns_of(arguments, has_text)
    return Recipe(
        tokenizer_file, columns, ids["prepend_token"], ids["append_token"], arguments.val_fraction
    )


def columns_of(arguments: argparse.Namespace, has_text: bool) -> tuple[str, ...]:
    """Return the columns of text: one, or prompt and response.  Raises: InvalidRequest."""
    prompt, response = arguments.prompt_column, arguments.response_column
    if prompt is None and response is None:
        return (arguments.text_column or "text",)
    if prompt is None or response is None:
        missing = "--prompt-column" if prompt is None else "--response-column"
        raise InvalidRequest(missing, "is missing: pairs need both columns")
    if arguments.text_column is not None:
        raise InvalidRequest("--text-column", "cannot stand beside --prompt-column")
    if arguments.append_token is None:
        raise InvalidRequest("--append-token", "is missing: a response has to end with a token")
    if has_text:
        raise InvalidRequest("--prompt-column", "plain text has no columns")
    return prompt, response


def report(made: dict[str, Any], out: str, tokens: int, seconds: float) -> None:
    """Print what was made, and what could not be ingested.  tokens: of this run."""
    out = single_line(out)
    for name, split in made["splits"].items():
        folder = os.path.join(out, name)
        print(
            f"{folder}: {split['tokens']:,} tokens, {split['documents']:,} documents, "
            f"{len(split['shards']):,} shard(s) of {made['dtype']}"
        )
    if missing := _missing_split(made):
        print(missing)
    own, workers = (
        resource.getrusage(who).ru_maxrss >> 10
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    if tokens:
        print(
            f"{tokens / seconds:,.0f} tokens/s in {seconds:,.1f} s, memory at most {own:,} MiB "
            f"and {workers:,} MiB a worker"
        )
    for source in made["sources"]:
        for what, found in source["problems"].items():
            print(
                f"not ingested: {single_line(source['path'])}: {what}, {found['count']:,} time(s), "
                f"first at {found['first']}"
            )
    options = ""
    if len(made["job"]["columns"]) > 1:
        print("loss masks are not served yet: a server has to ignore them, and prompts are learned")
        options = " --ignore-loss-mask"
    print(f"serve it: python -m server --data {out}{options}")


def _missing_split(made: dict[str, Any]) -> str:
    """Return a line about the split that was asked for and got no document; "" if there is none."""
    fraction = made["job"]["val_fraction"]
    if not fraction or len(made["splits"]) > 1:
        return ""
    (present,) = made["splits"]
    missing, other = ("val", "a larger") if present == "train" else ("train", "a smaller")
    count = made["splits"][present]["documents"]
    return (
        f"no {missing} split: none of {count:,} document(s) fell into it at --val-fraction "
        f"{fraction}, since documents are assigned by their hash; ingest more documents, or pass "
        f"{other} fraction and another --out"
    )


if __name__ == "__main__":
    sys.exit(main())
