"""One ingest that notes when each of its steps ends; `python -m benchmarks.ingest` runs it.

Functions of tokenfeed.server.ingest are replaced by ones that note the time, so the product needs
no code for this. It is no run to compare with others.
Run: python -m benchmarks.ingest_steps SECONDS_SINCE_1970 ARGUMENTS_OF_INGEST
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

_ENDS: list[tuple[str, float]] = []


def main() -> int:
    """Ingest, and print the end of each step in seconds since the process was started."""
    begun = float(sys.argv[1])
    _note("Python starts")
    from tokenfeed.server.ingest import __main__ as command
    from tokenfeed.server.ingest.tokenize import tokenizer
    from tokenfeed.server.runtime.threads import executors

    _note("imports: numpy and what encodes")
    import tokenizers  # noqa: F401

    _note("import: tokenizers")
    _note_end(tokenizer, "load_tokenizer", "loading the tokenizer")
    _note_end(executors, "_start", "starting the workers")
    ingest: Any = command._run

    def run(*arguments: Any) -> Any:
        import pyarrow.parquet  # noqa: F401

        _note("import: pyarrow")
        from tokenfeed.server.ingest import run
        from tokenfeed.server.ingest.inputs.hashes import Hashes
        from tokenfeed.server.ingest.output.shard_writer import SplitWriter

        _note("imports: what reads and writes")
        _note_begin(executors._Worker, "do", "job, lock, reading the first unit")
        _note_end(executors._Worker, "do", "encoding the first unit")
        _note_begin(executors, "_kill", "encoding the rest, writing it")
        _note_end(executors, "_kill", "ending the workers")
        _note_end(SplitWriter, "finish", "syncing the last shard")
        _note_end(Hashes, "finish", "hashes of the sources")
        _note_end(run, "manifest_of", "hashes of the shards")
        _note_end(run, "_publish", "manifest, renaming")
        return ingest(*arguments)

    command._run = run
    code = command.main(sys.argv[2:])
    print(json.dumps([(name, at - begun) for name, at in _ENDS]))
    return code


def _note(step: str) -> None:
    """Note that a step has ended now, unless it has ended before."""
    if step not in dict(_ENDS):
        _ENDS.append((step, time.time()))


def _note_end(owner: Any, name: str, step: str) -> None:
    """Make a function note that a step ends where it returns."""
    original: Callable[..., Any] = getattr(owner, name)

    def noting(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        finally:
            _note(step)

    setattr(owner, name, noting)


def _note_begin(owner: Any, name: str, step: str) -> None:
    """Make a function note that the step before it ends where it is called."""
    original: Callable[..., Any] = getattr(owner, name)

    def noting(*arguments: Any, **options: Any) -> Any:
        _note(step)
        return original(*arguments, **options)

    setattr(owner, name, noting)


if __name__ == "__main__":
    sys.exit(main())
