"""From the words of a command line to a dataset's name and its shards.

Decides by names alone. The content of files is for `formats`.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenfeed.errors import InvalidCorpus, InvalidRequest

from ...runtime.exceptions import log_safe_name
from ...storage.door import absolute, door_of, exists, is_folder, scheme_of
from ...storage.option_names import DATA
from .manifest import NAME as MANIFEST
from .manifest import ManifestSplit, read_manifest, read_splits
from .paths import (
    SHARD_SUFFIXES,
    TEXT_SUFFIXES,
    expand,
    files_in,
    name_omissions,
    text_files,
    tokens_of,
    unserved,
)
from .splits import require_one_split

_LOG = logging.getLogger("tokenfeed.server")
_NAMED = re.compile(r"([A-Za-z0-9_-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A dataset of the command line.

    name: on the wire.  paths: its shards in order, at least one.  tensor: which one of each file to
    serve, if a file has several.  split: its split of a manifest, if it was ingested.
    """

    name: str
    paths: tuple[str, ...]
    tensor: str | None = None
    split: ManifestSplit | None = None


def parse_datasets(words: Sequence[str], *, mixed_splits: bool = False) -> list[DatasetSource]:
    """Return the datasets of the words after one --data.

    A folder of ingested text is a dataset for each split: train and val, or NAME-train and
    NAME-val; a single split is just NAME. Everything else is one dataset: see `parse_data`.
    mixed_splits: whether files of several splits may be one dataset.  Raises: InvalidCorpus.
    """
    name, folder = without_name(words[0])
    splits = read_splits(folder) if len(words) == 1 and is_folder(folder) else None
    if splits is None:
        return [parse_data(words, mixed_splits=mixed_splits)]
    if len(splits) == 1:
        return [DatasetSource(name or splits[0].name, splits[0].paths, split=splits[0])]
    return [
        DatasetSource(f"{name}-{split.name}" if name else split.name, split.paths, split=split)
        for split in splits
    ]


def is_text(words: Sequence[str]) -> bool:
    """Return whether the words after one --data are text, by the names of the files.  Raises:
    InvalidCorpus if only some of them are.
    """
    paths = [without_name(words[0])[1], *words[1:]]
    answers = list(map(_is_text, paths))
    if len(set(answers)) > 1:
        problem = "is text, but other files of the dataset are not: pass them as two datasets"
        raise InvalidCorpus(paths[answers.index(True)], problem)
    return answers[0]


def _is_text(path: str) -> bool:
    if is_folder(path):
        made = exists(os.path.join(path, MANIFEST))
        return not (made or files_in(path, SHARD_SUFFIXES)) and bool(files_in(path, TEXT_SUFFIXES))
    if not exists(path) and glob.has_magic(path):
        path = min(door_of(path).glob(path), default=path)
    return path.endswith(TEXT_SUFFIXES)


def parse_text(words: Sequence[str], *, mixed_splits: bool = False) -> DatasetSource:
    """Return the name and the text files of the words after one --data.

    mixed_splits: as for `parse_datasets`.  Raises: InvalidCorpus.
    """
    name, first = without_name(words[0])
    _require_one_dataset((first, *words[1:]))
    for word in filter(scheme_of, (first, *words[1:])):
        problem = "is text in an object store: make tokens of it first, by tokenfeed ingest"
        raise InvalidCorpus(word, problem)
    paths, _ = text_files((first, *words[1:]))
    if not mixed_splits:
        require_one_split((first, *words[1:]), paths, DATA.to)
    return DatasetSource(name or _own_name(first, paths[0]), tuple(paths))


def parse_data(words: Sequence[str], *, mixed_splits: bool = False) -> DatasetSource:
    """Return the dataset of the words after one --data: [NAME=]PATH [PATH ...].

    A path may be a file, a glob or a folder. The files of a glob and of a folder come in byte order
    of their names. An index means its token file, and PATH#TENSOR is one of several tensors. NAME
    is the part before the first "=", if it matches [A-Za-z0-9_-]+. Without it, the name is the stem
    of the first file, or the name of the folder.
    mixed_splits: as for `parse_datasets`.
    Raises: InvalidCorpus if there is no such file, no name can be derived, or the names of the
    files are those of several splits.
    """
    name, first = without_name(words[0])
    _require_one_dataset((first, *words[1:]))
    parts = [_without_tensor(word) for word in (first, *words[1:])]
    tensors = {tensor for _, tensor in parts}
    if len(tensors) > 1:
        raise InvalidCorpus(first, "has another #TENSOR than other files of the dataset")
    first = parts[0][0]
    paths = tokens_of([path for word, _ in parts for path in expand(word, SHARD_SUFFIXES)])
    if not mixed_splits:
        require_one_split([word for word, _ in parts], paths, DATA.to)
    if left := unserved([word for word, _ in parts]):
        _LOG.warning("not served: %s", log_safe_name(name_omissions(left)))
    return DatasetSource(name or _own_name(first, paths[0]), tuple(paths), tensors.pop())


def require_distinct_names(
    sources: Sequence[DatasetSource], subject: str = "--data", cure: str = "--data NAME=PATH"
) -> None:
    """Raise InvalidRequest if two datasets have the same name.  cure: how to name one."""
    seen: dict[str, DatasetSource] = {}
    for source in sources:
        if other := seen.get(source.name):
            raise InvalidRequest(
                subject,
                f"two datasets are named {source.name!r} ({other.paths[0]} and {source.paths[0]}); "
                f"name one: {cure}",
            )
        seen[source.name] = source


def _require_one_dataset(words: Sequence[str]) -> None:
    """Raise InvalidCorpus if words are several datasets: two splits, tokens of two tokenizers, a
    whole ingest, or a word with a name of its own.
    """
    splits: dict[str, str] = {}
    tokenizers: dict[str, str] = {}
    for word in words if len(words) > 1 else ():
        ingest, split = os.path.split(absolute(word))
        manifest = read_manifest(ingest) if is_folder(word) else None
        problem = ""
        if manifest is not None and splits.setdefault(ingest, split) != split:
            problem = f"is another split than {splits[ingest]} of the same ingest"
        elif manifest is not None and isinstance(tokenizer := manifest.get("tokenizer"), dict):
            tokenizers[str(tokenizer.get("sha256"))] = f"{ingest} by {tokenizer.get('name')}"
            if len(tokenizers) > 1:
                problem = f"has tokens of two tokenizers ({', '.join(tokenizers.values())})"
        elif exists(os.path.join(word, MANIFEST)):
            problem = "is a whole ingest, and other files are given too"
        elif not _names_files(word) and _names_files(without_name(word)[1]):
            problem = "begins another dataset"
        if problem:
            cure = "pass one dataset alone; serve takes several, each with a --data of its own"
            raise InvalidCorpus(word, f"{problem}; {cure}")


def without_name(word: str) -> tuple[str, str]:
    """Return the name before the first "=", "" if there is none, and the rest."""
    named = _NAMED.fullmatch(word)
    return (named[1], named[2]) if named else ("", word)


def _without_tensor(word: str) -> tuple[str, str | None]:
    """Return the path, and the tensor after a "#" that is not part of the path."""
    parts = word.split("#")
    if _names_files(word):
        return word, None
    for count in range(1, len(parts)):
        path, tensor = "#".join(parts[:count]), "#".join(parts[count:])
        if not is_folder(path) and _names_files(path):
            return path, tensor
    return word, None


def _names_files(word: str) -> bool:
    return exists(word) or (glob.has_magic(word) and bool(door_of(word).glob(word)))


def _own_name(word: str, first_path: str) -> str:
    """Return the name of a folder, or the stem of the first file.  Raises: InvalidCorpus if it is
    not a valid name.
    """
    name = os.path.splitext(os.path.basename(absolute(first_path)))[0]
    if is_folder(word):
        name = os.path.basename(absolute(word))
    if not name or not name.isprintable() or " " in name:
        raise InvalidCorpus(word, f"{name!r} is not a valid dataset name; pass one: 'NAME={word}'")
    return name
