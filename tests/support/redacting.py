"""Lists of redactions beside the corpora of tests, as `tokenfeed redact` makes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tokenfeed.tools.redact.__main__ import build_parser
from tokenfeed.tools.redact.__main__ import redact as redacted


def redact(
    paths: Sequence[Path],
    *ranges: tuple[int, int, int],
    fill: int = 0,
    erase: bool = False,
    options: Sequence[str] = (),
) -> str:
    """Add ranges of (file, first token, end token) to the list of a corpus, and return its hash;
    on request replace the files that have its tokens.  options: of the dataset.
    """
    words = [f"--range={':'.join(map(str, each))}" for each in ranges]
    words += [*options, "--fill", str(fill), *(["--erase", "--no-delimiter"] if erase else [])]
    found = redacted(build_parser().parse_args([*map(str, paths), *words]))
    return str(found.facts()["list"])


def holds_deleted(process: int, paths: Sequence[Path]) -> bool:
    """Whether a process has a replaced file mapped or open."""
    opened = [os.path.realpath(each) for each in Path(f"/proc/{process}/fd").iterdir()]
    said = "\n".join([Path(f"/proc/{process}/maps").read_text(), *opened])
    return any(f"{path} (deleted)" in said for path in paths)
