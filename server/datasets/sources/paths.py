"""The files of a path, a glob or a folder.

Decides by names alone. The content of files is for `formats`.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus

SHARD_SUFFIXES = (".bin", ".ds", ".npy", ".safetensors")
"""The shards of a folder: it may also contain other files, such as a README or a script."""
TEXT_SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".txt")
"""The text files of a folder, which are ingested."""
MASK_SUFFIXES = (".loss", ".npy", ".bin", ".mask")
"""The loss masks of a folder."""

_COMPANIONS = (
    (".idx", ".bin"),
    (".ds.index", ".ds"),
    (".ds.metadata", ".ds"),
    (".ds.loss", ".ds"),
    (".ds.ids", ".ds"),
    (".csv.gz", ".npy"),
)
"""Suffixes of files that accompany token files, and the suffix of the token file."""


def expand(word: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files of one command-line word, in order; of a folder those with these suffixes.
    Raises: InvalidCorpus.
    """
    if os.path.isdir(word):
        found = files_in(word, suffixes)
        problem = f"is a folder without files named *{', *'.join(suffixes)}"
        problem += _other_files(word, suffixes) if not found else ""
    elif not os.path.lexists(word) and glob.has_magic(word):
        # Including dangling links, so that they cause an error later.
        found = [path for path in glob.glob(word, recursive=True) if not os.path.isdir(path)]
        problem = "matches no file"
    else:
        return [word]
    if not found:
        raise InvalidCorpus(word, problem)
    return sorted(found, key=os.fsencode)


def tokens_of(paths: Sequence[str]) -> list[str]:
    """Return the token files: a companion file is dropped if its token file is given too, and
    replaced by its token file if not.
    """
    given = set(map(os.path.abspath, paths))
    tokens = []
    for path in paths:
        belongs = [
            path.removesuffix(suffix) + token_suffix
            for suffix, token_suffix in _COMPANIONS
            if path.endswith(suffix)
        ]
        if not belongs or not os.path.lexists(belongs[0]):
            tokens.append(path)
        elif os.path.abspath(belongs[0]) not in given:
            given.add(os.path.abspath(belongs[0]))
            tokens.append(belongs[0])
    return tokens


def files_in(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files with these suffixes, including dangling links."""
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
    except OSError:  # A circular link: opening it raises an error.
        return False


def _other_files(folder: str, suffixes: tuple[str, ...]) -> str:
    """Return the most frequent suffixes of a folder, for an error, and what to do with them."""
    others = Counter(os.path.splitext(name)[1] for name in os.listdir(folder))
    del others[""]
    named = [f"{count} *{suffix}" for suffix, count in others.most_common(3)]
    if not named:
        return ""
    cure = "name plain text by file or by a glob"
    if suffixes == SHARD_SUFFIXES:
        has_text = files_in(folder, TEXT_SUFFIXES)
        cure = "ingest it first" if has_text else "docs/formats.md lists the formats"
    return f", but {', '.join(named)}; {cure}"
