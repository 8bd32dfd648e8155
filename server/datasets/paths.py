"""Which files a path, a glob or a folder stands for.

Decides by names alone; what is in the files is for `formats`.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus

SHARD_SUFFIXES = (".bin", ".ds", ".npy", ".safetensors")
"""What counts as a shard in a folder: it may well hold a README and a script beside the tokens."""
TEXT_SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".txt")
"""And what is text, to be ingested."""

_BESIDE = (
    (".idx", ".bin"),
    (".ds.index", ".ds"),
    (".ds.metadata", ".ds"),
    (".ds.loss", ".ds"),
    (".csv.gz", ".npy"),
)
"""How what lies beside tokens ends, and how they do instead."""


def expand(word: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that one word stands for, in order; of a folder those with such a suffix.
    Raises: InvalidCorpus.
    """
    if os.path.isdir(word):
        found = files_in(word, suffixes)
        problem = f"is a folder without files named *{', *'.join(suffixes)}"
        problem += _what_else(word) if not found else ""
    elif not os.path.lexists(word) and glob.has_magic(word):
        # A link to nothing too, which must not go unnoticed.
        found = [path for path in glob.glob(word, recursive=True) if not os.path.isdir(path)]
        problem = "matches no file"
    else:
        return [word]
    if not found:
        raise InvalidCorpus(word, problem)
    return sorted(found, key=os.fsencode)


def tokens_of(paths: Sequence[str]) -> list[str]:
    """Return the files of tokens: what lies beside one of them is left out, and an index that is
    given alone stands for its own.
    """
    given = set(map(os.path.abspath, paths))
    tokens = []
    for path in paths:
        belongs = [
            path.removesuffix(ending) + instead
            for ending, instead in _BESIDE
            if path.endswith(ending)
        ]
        if not belongs or not os.path.lexists(belongs[0]):
            tokens.append(path)
        elif os.path.abspath(belongs[0]) not in given:
            given.add(os.path.abspath(belongs[0]))
            tokens.append(belongs[0])
    return tokens


def files_in(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return what is named so; a link to nothing too, which must not go unnoticed."""
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise InvalidCorpus(folder, f"cannot be read: {error.strerror}") from error
    return [
        entry.path
        for entry in entries
        if entry.name.endswith(suffixes) and entry.name[0] != "." and not _is_folder(entry)
    ]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link in a circle: whoever opens it will say so.
        return False


def _what_else(folder: str) -> str:
    """Return what most files of a folder are named like: what is there has to be converted."""
    suffixes = Counter(os.path.splitext(name)[1] for name in os.listdir(folder))
    del suffixes[""]
    named = [f"{count} *{suffix}" for suffix, count in suffixes.most_common(3)]
    return f", but {', '.join(named)}; docs/formats.md says what can be served" if named else ""
