"""From the words of a command line to a dataset's name and the files that are its shards.

Decides by names alone; what is in the files is for `formats`.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tokenfeed.errors import BadCorpus, InvalidRequest

from .formats import FORMAT_NAMES, STORED, Asked
from .manifest import NAME as MANIFEST
from .manifest import MadeSplit, read_splits
from .storage.store import WAYS

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
    made: MadeSplit | None = None


def parse_datasets(words: Sequence[str]) -> list[Source]:
    """Return the datasets that the words after one --data stand for.

    A folder that text was ingested into stands for its splits: train and val, or NAME-train and
    NAME-val; the only one there is has the name alone. All else is one dataset, as `parse_data` has
    it.
    Raises: BadCorpus.
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
    BadCorpus if some do and some do not.
    """
    paths = [_without_name(words[0])[1], *words[1:]]
    answers = list(map(_is_text, paths))
    if len(set(answers)) > 1:
        problem = "is text, and other files of the dataset are not: tokens and text do not mix"
        raise BadCorpus(paths[answers.index(True)], problem)
    return answers[0]


def _is_text(path: str) -> bool:
    if os.path.isdir(path):
        made = os.path.exists(os.path.join(path, MANIFEST))
        return not (made or _files_in(path, SHARD_SUFFIXES)) and bool(
            _files_in(path, TEXT_SUFFIXES)
        )
    if not os.path.lexists(path) and glob.has_magic(path):
        path = min(glob.glob(path, recursive=True), default=path)
    return path.endswith(TEXT_SUFFIXES)


def parse_text(words: Sequence[str]) -> Source:
    """Return the name and the files of text that the words after one --data stand for.  Raises:
    BadCorpus.
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
    Raises: BadCorpus if there is no such file, or no name can be made.
    """
    name, first = _without_name(words[0])
    parts = [_without_tensor(word) for word in (first, *words[1:])]
    tensors = {tensor for _, tensor in parts}
    if len(tensors) > 1:
        raise BadCorpus(first, "is given with another tensor than other files of the dataset")
    first = parts[0][0]
    paths = _tokens_of([path for word, _ in parts for path in expand(word, SHARD_SUFFIXES)])
    return Source(name or _own_name(first, paths[0]), tuple(paths), tensors.pop())


def add_dataset_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command be asked for one dataset: what `parse_dataset` understands."""
    parser.add_argument(
        "data",
        nargs="+",
        metavar="PATH",
        help="what --data of the server takes for one dataset: a file, or several files, a glob or "
        "a folder",
    )
    parser.add_argument("--format", choices=FORMAT_NAMES, help="(default: what they look like)")
    parser.add_argument(
        "--dtype", choices=tuple(STORED), help="of tokens in files that do not say it"
    )
    parser.add_argument(
        "--read",
        choices=WAYS,
        help="how the files are read (default: pread on network file systems, else map)",
    )


def parse_dataset(arguments: argparse.Namespace) -> tuple[Source, Asked]:
    """Return the dataset that a command was asked for.  Raises: BadCorpus."""
    source, *others = parse_datasets(arguments.data)
    if others:
        folder = arguments.data[0]
        raise BadCorpus(folder, f"holds several datasets; name one: {folder}/{source.name}")
    return source, Asked.of(arguments.format, arguments.dtype, source.tensor)


def parse_per_dataset(
    option: str, words: Sequence[str], names: Sequence[str]
) -> dict[str, str | None]:
    """Return what [NAME=]VALUE words say of each of the named datasets; None: nothing.

    A value with a name goes before one without, and a later one before an earlier one.
    Raises: InvalidRequest, its subject option, for an unknown name.
    """
    general: str | None = None
    said: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.rpartition("=")
        if not equals:
            general = value
        elif name in names:
            said[name] = value
        else:
            raise InvalidRequest(option, f"no dataset is named {name!r}, but {', '.join(names)}")
    return {name: said.get(name, general) for name in names}


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


def expand(word: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that one word stands for, in order; of a folder those with such a suffix.
    Raises: BadCorpus.
    """
    if os.path.isdir(word):
        found = _files_in(word, suffixes)
        problem = f"is a folder without files named *{', *'.join(suffixes)}"
        problem += _what_else(word) if not found else ""
    elif not os.path.lexists(word) and glob.has_magic(word):
        # A link to nothing too, which must not go unnoticed.
        found = [path for path in glob.glob(word, recursive=True) if not os.path.isdir(path)]
        problem = "matches no file"
    else:
        return [word]
    if not found:
        raise BadCorpus(word, problem)
    return sorted(found, key=os.fsencode)


def _tokens_of(paths: Sequence[str]) -> list[str]:
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


def _files_in(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return what is named so; a link to nothing too, which must not go unnoticed."""
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise BadCorpus(folder, f"cannot be read: {error.strerror}") from error
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


def _own_name(word: str, first_path: str) -> str:
    """Return the name of a folder, or the stem of the first file.  Raises: BadCorpus if it is
    none.
    """
    name = os.path.splitext(os.path.basename(first_path))[0]
    if os.path.isdir(word):
        name = os.path.basename(os.path.abspath(word))
    if not name or not name.isprintable() or " " in name:
        raise BadCorpus(word, f"{name!r} is no name for a dataset; give it one: --data NAME={word}")
    return name
