"""From the words after --data to a dataset's name and the files that are its shards.

Decides by names alone; what is in the files is for `formats`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenfeed.errors import BadCorpus, InvalidRequest

SHARD_SUFFIXES = (".bin",)
"""What counts as a shard in a folder: it may well hold a README and a script beside the tokens."""

_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset as it was asked for on the command line.

    name: on the wire.  paths: its shards in order, at least one.
    """

    name: str
    paths: tuple[str, ...]


def parse_data(words: Sequence[str]) -> Source:
    """Return the dataset that the words after one --data stand for: [NAME=]PATH [PATH ...].

    A path may be a file, a glob or a folder; the files of a glob and of a folder come in byte order
    of their names. NAME is what stands before the first "=", where that is [A-Za-z0-9_-]+; without
    it, it is the first file's stem, or the folder's name.
    Raises: BadCorpus if there is no such file, or no name can be made.
    """
    named = _NAMED.fullmatch(words[0])
    first = named[2] if named else words[0]
    paths = [path for word in (first, *words[1:]) for path in _expand(word)]
    name = named[1] if named else _own_name(first, paths[0])
    if not name or not name.isprintable() or " " in name:
        raise BadCorpus(
            first, f"{name!r} is no name for a dataset; give it one: --data NAME={first}"
        )
    return Source(name, tuple(paths))


def require_distinct_names(sources: Sequence[Source]) -> None:
    """Raise InvalidRequest if two datasets have the same name."""
    seen: dict[str, Source] = {}
    for source in sources:
        if other := seen.get(source.name):
            raise InvalidRequest(
                "--data",
                f"two datasets are named {source.name!r} ({other.paths[0]} and {source.paths[0]}); "
                "name one: --data NAME=PATH",
            )
        seen[source.name] = source


def _expand(word: str) -> list[str]:
    """Return the files that one word stands for, in order."""
    if os.path.isdir(word):
        found = _shards_in(word)
        problem = f"is a folder without shards (files named *{', *'.join(SHARD_SUFFIXES)})"
    elif not os.path.lexists(word) and glob.has_magic(word):
        found = [path for path in glob.glob(word, recursive=True) if os.path.isfile(path)]
        problem = "matches no file"
    else:
        return [word]
    if not found:
        raise BadCorpus(word, problem)
    return sorted(found, key=os.fsencode)


def _shards_in(folder: str) -> list[str]:
    """Return what is named like a shard; a link to nothing too, which must not go unnoticed."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise BadCorpus(folder, f"cannot be read: {error.strerror}") from error
    named = [name for name in names if name.endswith(SHARD_SUFFIXES) and not name.startswith(".")]
    return [path for name in named if not os.path.isdir(path := os.path.join(folder, name))]


def _own_name(word: str, first_path: str) -> str:
    """Return the name of a folder, or the stem of the first file."""
    if os.path.isdir(word):
        return os.path.basename(os.path.abspath(word))
    return os.path.splitext(os.path.basename(first_path))[0]
