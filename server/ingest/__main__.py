"""`tokenfeed ingest`: text -> token shards with a manifest, which --data of a server takes."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

# Read once, when numpy is imported. Nothing here needs its threads, and workers are forked while
# there are no others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Read once, when fastokens first encodes. There is a process for each core, and threads do not
# survive a fork.
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenfeed.commands import program
from tokenfeed.commands.decoding import BYTES
from tokenfeed.commands.extras import missing
from tokenfeed.commands.output import flush_stdout, print_error, print_stdout_error, single_line
from tokenfeed.errors import InvalidRequest, InvalidSource, TokenfeedError
from tokenfeed.stream.position import require_range

if TYPE_CHECKING:
    from .job import Job
    from .progress import Progress
    from .run import Encoder
    from .tokenize.chat_template import ChatTemplateFile
    from .tokenize.tokenizer import TokenizerFile


_DRY_RUN_SECONDS = 5.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=program("tokenfeed.server.ingest"),
        description="Tokenize text into token shards. The text may be parquet, jsonl (compressed "
        "too) or plain text. After an interruption, run the same command again: it resumes.",
        epilog="example: tokenfeed ingest pages/*.parquet --out tokens --tokenizer "
        "tokenizer.json --append-token '<|endoftext|>'",
    )
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="file, glob or folder of text to tokenize, on this machine or in an object store "
        "(s3://...)",
    )
    add(
        "--out",
        required=True,
        metavar="DIR",
        help="output folder, which tokenfeed serve --data takes; it may be in an object store "
        "(s3://, gs://, az://)",
    )
    add(
        "--work-dir",
        metavar="DIR",
        help="local folder where shards are made before they are uploaded, if --out is in an "
        "object store; it needs room for all shards (default: a new folder in the user's cache)",
    )
    add(
        "--tokenizer",
        required=True,
        metavar="PATH",
        help="tokenizer.json of Hugging Face, or the folder that has it; or the word bytes, with "
        "which each byte of UTF-8 becomes a token",
    )
    _add_columns(parser)
    _add_document_arguments(parser)
    _add_output_arguments(parser)
    _add_run_arguments(parser)
    return parser


def _add_columns(parser: argparse.ArgumentParser) -> None:
    """Add what names the columns of text, of pairs and of chats."""
    add = parser.add_argument
    add(
        "--text-column",
        metavar="NAME",
        help="name of the parquet column, or of the jsonl key, that holds the text (default: text)",
    )
    add(
        "--messages-column",
        metavar="NAME",
        help="name of the column that holds chats: lists of messages with role and content, or "
        "from and value; the loss mask marks what the assistant writes as training targets; needs "
        "--chat-template",
    )
    add(
        "--chat-template",
        metavar="PATH",
        help="chat template that turns messages into text: a Jinja file, a tokenizer_config.json, "
        "or a folder with one of them (default: the folder of --tokenizer, if that is a folder)",
    )
    add(
        "--special-token",
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="text of a token that the chat template uses by name, such as bos_token=<s>; may be "
        "given several times",
    )
    add(
        "--template-variable",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="value of a variable of the chat template, such as enable_thinking=false; may be "
        "given several times",
    )
    add(
        "--tools-column",
        metavar="NAME",
        help="name of the column that lists the tools of each chat; the list is passed to the chat "
        "template; none if there is a column tools that the template should not get (default: "
        "none, and an error if there is such a column and the template uses tools)",
    )
    add(
        "--prompt-column",
        metavar="NAME",
        help="name of the column of prompts, which the loss mask excludes from the training "
        "targets; needs --response-column",
    )
    add(
        "--response-column",
        metavar="NAME",
        help="name of the column of responses to the prompts of --prompt-column; both columns need "
        "--append-token",
    )
    add(
        "--tokens-column",
        metavar="NAME",
        help="name of a column that holds token ids of --tokenizer instead of text, such as "
        "input_ids; if the table has a column attention_mask, tokens where it is 0 are left out",
    )
    add(
        "--labels-column",
        metavar="NAME",
        help="name of the column that holds labels for --tokens-column; the loss mask excludes the "
        "tokens whose label is -100; with the value none every token is a training target, even if "
        "the table has labels",
    )
    add(
        "--id-column",
        metavar="NAME",
        help="name of the column of document ids, text or integers; the ids are stored beside the "
        "tokens (default: none)",
    )


def _add_document_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what becomes of each document."""
    add = parser.add_argument
    add("--prepend-token", metavar="TEXT", help="token to add before each document (default: none)")
    add("--append-token", metavar="TEXT", help="token to add after each document (default: none)")
    add(
        "--parse-special-tokens",
        action="store_true",
        help="if the text contains the spelling of a special token, encode this as the special "
        "token (default: encode it as plain text)",
    )
    add(
        "--val-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="share of the documents that goes into the val split, in [0, 1); the hash of a "
        "document decides whether it does (default: 0)",
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how shards are written."""
    add = parser.add_argument
    add(
        "--shuffle-buffer",
        type=int,
        default=1,
        metavar="N",
        help="shuffle the documents within groups of N documents (default: 1, no shuffling)",
    )
    add("--seed", type=int, default=0, help="seed of --shuffle-buffer (default: %(default)s)")
    add(
        "--shard-tokens",
        type=int,
        metavar="N",
        default=100_000_000,
        help="maximum number of tokens in a shard, which is one token file (default: %(default)s)",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add who does the work, and what it does if it cannot."""
    add = parser.add_argument
    flag = partial(add, action="store_true")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="number of processes that encode text as tokens (default: one per core)",
    )
    add(
        "--tokenizer-engine",
        choices=("auto", "tokenizers", "fastokens"),
        default="auto",
        help="package that encodes text; fastokens takes a fifth of the processor time of "
        "tokenizers, and is allowed only if both give the same tokens (default: %(default)s, which "
        "selects fastokens if it is allowed)",
    )
    add(
        "--executor",
        choices=("local", "ray"),
        default="local",
        help="encode on this machine, or on the Ray cluster to which it belongs (default: "
        "%(default)s)",
    )
    flag(
        "--dry-run",
        help="encode some text for a few seconds, print an estimate of how long the whole ingest "
        "takes, and write nothing",
    )
    flag(
        "--strict",
        help="fail at the first input that cannot be ingested (default: leave such input out)",
    )
    flag(
        "--ignore-others",
        help="ingest a folder even if most of its bytes are in files that cannot be ingested "
        "(default: refuse such a folder)",
    )
    flag(
        "--mixed-splits",
        help="ingest the files together, although their names say that they are several splits, "
        "such as train and test",
    )
    flag("--wait", help="wait while another ingest writes to the folder of --out (default: fail)")
    add("--parent-pid", type=int, metavar="PID", help=argparse.SUPPRESS)


def main(argv: Sequence[str] | None = None) -> int:
    """Ingest.  Returns: 0 when done, 1 after an error, which is printed in one line, 130 after
    Ctrl-C or SIGTERM.
    """
    arguments = build_parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # A path may have bytes that are not text.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("tokenfeed").setLevel("INFO")
    # `docker stop` sends SIGTERM, which by default does not end the first process of a container.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    try:
        made, tokens, others = run(arguments)
    except TokenfeedError as error:
        return print_error(error)
    except ImportError as error:
        if (error.name or "").startswith("tokenfeed"):
            raise
        print(f"error: ingest: {missing(error, 'ingest')}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: run the same command again to resume", file=sys.stderr)
        return 130
    try:
        if made is not None:
            report(made, arguments.out, tokens, time.monotonic() - begun, others)
        flush_stdout()
    except OSError as error:
        return print_stdout_error(error)
    return 0


def run(arguments: argparse.Namespace) -> tuple[dict[str, Any] | None, int, str]:
    """Run the command line.

    Returns: the manifest, the number of tokens of this run, and what folders have besides, in one
    line; no manifest of a dry run, which has printed its result.  Raises: TokenfeedError.
    """
    from ..runtime.threads.executors import end_with_parent, make_executor
    from ..storage.door import problem_of_writing, scheme_of
    from .options import template_of
    from .output.shuffle import BUFFER_DOCUMENTS_MAX
    from .tokenize.engine import SMALL_BYTES, choose_engine
    from .tokenize.tokenizer import FASTOKENS, TokenizerFile, load_tokenizer
    from .work import read_and_encode

    if arguments.parent_pid is not None:
        end_with_parent(arguments.parent_pid)
    for option in ("--out", "--work-dir", "--text-column"):
        if getattr(arguments, option[2:].replace("-", "_")) == "":
            raise InvalidRequest(option, "is empty; was a variable unset?")
    store = scheme_of(arguments.out)
    if store in ("", "https") and (problem := problem_of_writing(arguments.out)):
        raise InvalidRequest("--out", problem)
    if arguments.work_dir is not None and not store:
        raise InvalidRequest("--work-dir", "is for --out in an object store; omit it")
    require_range("--shuffle-buffer", arguments.shuffle_buffer, 1, BUFFER_DOCUMENTS_MAX + 1)
    require_range("--seed", arguments.seed, 0, 1 << 64)
    # An object is stored by one request, of 5 GiB at most: a shard, or the index of its documents.
    tokens_max = 1 << (29 if store else 40)
    require_range("--shard-tokens", arguments.shard_tokens, 1, tokens_max + 1)
    if arguments.workers is not None:
        require_range("--workers", arguments.workers, 1, 1 << 12)
    is_chats = arguments.messages_column is not None and arguments.tokenizer != BYTES
    tokenizer_file = TokenizerFile.read(
        arguments.tokenizer, parses_special=arguments.parse_special_tokens or is_chats
    )
    # Workers have what is loaded before they start. They need none of what is imported afterwards.
    load_tokenizer(tokenizer_file)
    template_file = template_of(arguments, tokenizer_file)
    why_not = "chats need to know where tokens are in the text" if is_chats else ""
    if arguments.tokens_column is not None:
        why_not = "tokens are not encoded again"
    size_bytes = _size_bytes(arguments.sources)
    tokenizer_file, reason = choose_engine(
        tokenizer_file, arguments.tokenizer_engine, size_bytes, why_not
    )
    if tokenizer_file.engine == FASTOKENS or (tokenizer_file.version and size_bytes >= SMALL_BYTES):
        line = f"{tokenizer_file.name} is encoded by {tokenizer_file.engine}: {reason}"
        logging.getLogger("tokenfeed.server").info("%s", single_line(line))
    load_tokenizer(tokenizer_file)
    with make_executor(arguments.executor, arguments.workers, read_and_encode) as executor:
        return _run(arguments, tokenizer_file, reason, template_file, executor)


def _size_bytes(words: Sequence[str]) -> int:
    """Return how large the sources are, about; 0 where that is an error, which is raised later.
    Sources in an object store count as large: a bucket is not looked into before workers start.
    """
    from ..datasets.sources.paths import text_files
    from ..storage.door import scheme_of

    if any(map(scheme_of, words)):
        return 1 << 40
    with suppress(TokenfeedError, OSError):
        return sum(map(os.path.getsize, text_files(words, ignores_others=True)[0]))
    return 0


def _run(
    arguments: argparse.Namespace,
    tokenizer_file: TokenizerFile,
    engine_reason: str,
    template_file: ChatTemplateFile | None,
    executor: Encoder,
) -> tuple[dict[str, Any] | None, int, str]:
    from ..datasets.sources.paths import name_omissions
    from ..storage.door import absolute, in_cache, scheme_of
    from .inputs.discovery import find_sources
    from .job import Job
    from .options import recipe_of
    from .progress import Progress
    from .run import ingest

    found, left = find_sources(
        arguments.sources,
        ignores_others=arguments.ignore_others,
        mixed_splits=arguments.mixed_splits,
        made=arguments.out,
        for_workers=arguments.executor == "local",
    )
    sources = tuple(found)
    others = name_omissions(left) if left else ""
    if others:
        logging.getLogger("tokenfeed.server").warning("not taken: %s", single_line(others))
    job = Job(
        sources,
        recipe_of(
            arguments,
            tokenizer_file,
            template_file,
            has_text=any(source.kind == "text" for source in sources),
        ),
        arguments.prepend_token,
        arguments.append_token,
        arguments.shuffle_buffer,
        arguments.seed,
        arguments.shard_tokens,
        engine_reason,
    )
    engine = "bytes" if tokenizer_file.is_bytes else tokenizer_file.engine
    progress = Progress(sum(source.size_bytes for source in sources), engine)
    if arguments.dry_run:
        print_estimate(job, executor, progress, strict=arguments.strict)
        return None, 0, others
    begin = partial(ingest, job)
    if scheme_of(arguments.out):
        from .upload import ingest_to_store

        own = in_cache(os.path.join(absolute(arguments.out), ""), "-tokenfeed-ingest")
        # A folder of its own in the one that is given, which has other things too.
        folder = os.path.join(arguments.work_dir or os.path.dirname(own), os.path.basename(own))
        begin = partial(ingest_to_store, job, folder=folder)
    made = begin(
        out=arguments.out,
        executor=executor,
        strict=arguments.strict,
        wait=arguments.wait,
        progress=progress,
    )
    return made, progress.tokens, others


def print_estimate(job: Job, executor: Encoder, progress: Progress, *, strict: bool) -> None:
    """Encode the beginning, and print how long all of it takes.  Raises: InvalidSource."""
    from .progress import duration
    from .run import first_tokens
    from .tokenize.tokenizer import load_tokenizer, token_dtype

    done_bytes, tokens, seconds = first_tokens(
        job, executor, strict=strict, seconds=_DRY_RUN_SECONDS, progress=progress
    )
    if not done_bytes:
        raise InvalidSource(job.sources[0].path, "has no text to encode, like all other sources")
    total = progress.total_bytes
    every = round(tokens * total / done_bytes)
    width = token_dtype(load_tokenizer(job.recipe.tokenizer_file)).itemsize
    print(
        f"{len(job.sources):,} file(s), {total / 1e6:,.1f} MB; encoded by {progress.engine}: "
        f"{job.engine_reason}"
    )
    print(
        f"{done_bytes / 1e6:,.1f} MB in {seconds:,.1f} s: {done_bytes / seconds / 1e6:,.1f} MB/s, "
        f"{tokens / seconds:,.0f} tokens/s"
    )
    print(
        f"all of it: about {duration(total * seconds / done_bytes)}, {every:,} tokens, "
        f"{every * width / 1e6:,.1f} MB; nothing was written"
    )


def report(made: dict[str, Any], out: str, tokens: int, seconds: float, others: str) -> None:
    """Print what was written, and what could not be ingested.

    tokens: number of this run.  others: what folders have besides.
    """
    out = single_line(out)
    for name, split in made["splits"].items():
        folder = os.path.join(out, name)
        targets = f" ({split['targets']:,} of them targets)" if "targets" in split else ""
        print(
            f"{folder}: {split['tokens']:,} tokens{targets}, {split['documents']:,} documents, "
            f"{len(split['shards']):,} shard(s) of {made['dtype']}"
        )
    vocab_size = made["tokenizer"]["vocab_size"]
    print(f"vocabulary: {vocab_size:,} token ids, 0 to {vocab_size - 1:,}")
    if line := _missing_split(made):
        print(line)
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
                f"first: {found['first']}"
            )
    if others:
        print(f"not taken: {single_line(others)}")
    print(f"serve it: tokenfeed serve --data {shlex.quote(str(out))}")


def _missing_split(made: dict[str, Any]) -> str:
    """Return a line about a requested split that got no document; "" if there is none."""
    fraction = made["job"]["val_fraction"]
    if not fraction or len(made["splits"]) > 1:
        return ""
    (present,) = made["splits"]
    absent, other = ("val", "a larger") if present == "train" else ("train", "a smaller")
    count = made["splits"][present]["documents"]
    return (
        f"no {absent} split: none of {count:,} document(s) fell into it at --val-fraction "
        f"{fraction}, since documents are assigned by their hash; ingest more documents, or pass "
        f"{other} fraction and another --out"
    )


if __name__ == "__main__":
    sys.exit(main())
