"""From the words of a command line to a dataset's name and the files that are its shards.

Decides by names alone; what is in the files is for `formats`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenfeed.errors import InvalidCorpus, InvalidRequest

from .manifest import NAME as MANIFEST
from .manifest import ManifestSplit, read_splits
from .paths import SHARD_SUFFIXES, TEXT_SUFFIXES, expand, files_in, tokens_of

_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset as it was asked for on the command line.

    name: on the wire.  paths: its shards in order, at least one.  tensor: the one to take of each,
    where they have several.  made: what is known of them, if they were ingested.
    """

    name: str
    paths: tuple[str, ...]
    tensor: str | None = None
    made: ManifestSplit | None = None


def parse_datasets(words: Sequence[str]) -> list[Source]:
    """Return the datasets that the words after one --data stand for.

    A folder that text was ingested into stands for its splits: train and val, or NAME-train and
    NAME-val; the only one there is has the name alone. All else is one dataset, as `parse_data` has
    it.
    Raises: InvalidCorpus.
    """
    name, folder = _without_name(words[0])
    splits = read_splits(folder) if len(words) == 1 and os.path.isdir(folder) else None
    if splits is None:
        return [parse_data(words)]
    if len(splits) == 1:
        return [Source(name or splits[0].name, splits[0].paths, made=splits[0])]
    return [
        Source(f"{name}-{split.name}" if name else split.name, split.paths, made=split)
        for split in splits
    ]


def is_text(words: Sequence[str]) -> bool:
    """Say whether the words after one --data stand for text, by the names of its files.  Raises:
    InvalidCorpus if some do and some do not.
    """
    paths = [_without_name(words[0])[1], *words[1:]]
    answers = list(map(_is_text, paths))
    if len(set(answers)) > 1:
        problem = "is text, and other files of the dataset are not: tokens and text do not mix"
        raise InvalidCorpus(paths[answers.index(True)], problem)
    return answers[0]


def _is_text(path: str) -> bool:
    if os.path.isdir(path):
        made = os.path.exists(os.path.join(path, MANIFEST))
        return not (made or files_in(path, SHARD_SUFFIXES)) and bool(files_in(path, TEXT_SUFFIXES))
    if not os.path.lexists(path) and glob.has_magic(path):
        path = min(glob.glob(path, recursive=True), default=path)
    return path.endswith(TEXT_SUFFIXES)


def parse_text(words: Sequence[str]) -> Source:
    """Return the name and the files of text that the words after one --data stand for.  Raises:
    InvalidCorpus.
    """
    name, first = _without_name(words[0])
    paths = [path for word in (first, *words[1:]) for path in expand(word, TEXT_SUFFIXES)]
    return Source(name or _own_name(first, paths[0]), tuple(paths))


def parse_data(words: Sequence[str]) -> Source:
    """Return the dataset that the words after one --data stand for: [NAME=]PATH [PATH ...].

    A path may be a file, a glob or a folder; the files of a glob and of a folder come in byte order
    of their names. An index stands for its tokens, and PATH#TENSOR names one of several tensors.
    NAME is what stands before the first "=", where that is [A-Za-z0-9_-]+; without it, it is the
    first file's stem, or the folder's name.
    Raises: InvalidCorpus if there is no such file, or no name can be made.
    """
    name, first = _without_name(words[0])
    parts = [_without_tensor(word) for word in (first, *words[1:])]
    tensors = {tensor for _, tensor in parts}
    if len(tensors) > 1:
        raise InvalidCorpus(first, "is given with another tensor than other files of the dataset")
    first = parts[0][0]
    paths = tokens_of([path for word, _ in parts for path in expand(word, SHARD_SUFFIXES)])
    return Source(name or _own_name(first, paths[0]), tuple(paths), tensors.pop())


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


def _without_name(word: str) -> tuple[str, str]:
    """Return the name before the first "=", "" if there is none, and what stands behind it."""
    named = _NAMED.fullmatch(word)
    return (named[1], named[2]) if named else ("", word)


def _without_tensor(word: str) -> tuple[str, str | None]:
    """Return what names files, and what stands behind a # that is no part of such a name."""
    parts = word.split("#")
    if _names_files(word):
        return word, None
    for count in range(1, len(parts)):
        path, tensor = "#".join(parts[:count]), "#".join(parts[count:])
        if os.path.isfile(path) or (not os.path.isdir(path) and _names_files(path)):
            return path, tensor
    return word, None


def _names_files(word: str) -> bool:
    return os.path.lexists(word) or (glob.has_magic(word) and bool(glob.glob(word, recursive=True)))


def _own_name(word: str, first_path: str) -> str:
    """Return the name of a folder, or the stem of the first file.  Raises: InvalidCorpus if it is
    none.
    """
    name = os.path.splitext(os.path.basename(first_path))[0]
    if os.path.isdir(word):
        name = os.path.basename(os.path.abspath(word))
    if not name or not name.isprintable() or " " in name:
        raise InvalidCorpus(
            word, f"{name!r} is no name for a dataset; give it one: --data NAME={word}"
        )
    return name
