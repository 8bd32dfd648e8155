"""Training and validation files in one folder: never one dataset without a word.

Decides by names alone, as `paths`.
"""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus

_SPLITS = dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val")
_SPLITS |= {"train": "", "test": "test"}
"""Words of names -> the split that they mean; files without one count as training files."""
_WORD = re.compile(rf"(?<![a-z0-9])({'|'.join(_SPLITS)})(?=[0-9]*(?:[^a-z0-9]|$))")


def require_one_split(words: Sequence[str], paths: Sequence[str], option: str) -> None:
    """Raise InvalidCorpus if files of several splits are to be one dataset.

    A word of a name counts if it stands between separators, and if not all files have it. Names are
    those below what the user gave: of files, and of folders below a folder or a glob.
    words: what the user gave.  paths: its files.  option: what stands before a path that takes one
    split.
    """
    folders = tuple(folder for word in words if (folder := _folder_of(word)) is not None)
    names = [_below(path, folders) for path in paths]
    if not _WORD.search("\n".join(names).lower()):
        return
    found = list(map(_split_words, names))
    shared = frozenset.intersection(*found)
    splits: dict[frozenset[str], list[int]] = defaultdict(list)
    for number, own in enumerate(found):
        splits[frozenset(_SPLITS[word] for word in own - shared) - {""}].append(number)
    if len(splits) == 1:
        return
    named = [
        f"{' and '.join(sorted(split)) or 'train'} ({len(numbers)} file(s), such as "
        f"{names[numbers[0]]})"
        for split, numbers in splits.items()
    ]
    takes = [
        f"{option}{_pattern([paths[number] for number in numbers], paths)}"
        for numbers in splits.values()
    ]
    problem = f"has files of several splits: {', '.join(named)}; take one: {' or '.join(takes)}"
    raise InvalidCorpus(words[0], problem)


def _folder_of(word: str) -> str | None:
    """Return the folder that a word names, or that a glob begins with, "" for the working
    directory; None of a file.
    """
    if os.path.isdir(word):
        return os.path.join(word, "")
    if not os.path.lexists(word) and (magic := re.search(r"[*?[]", word)):
        return word[: word.rfind(os.sep, 0, magic.start()) + 1]
    return None


def _below(path: str, folders: Sequence[str]) -> str:
    for folder in folders:
        if path.startswith(folder):
            return path[len(folder) :]
    return os.path.basename(path)


def _split_words(name: str) -> frozenset[str]:
    return frozenset(_WORD.findall(name.lower()))


def _pattern(wanted: Sequence[str], paths: Sequence[str]) -> str:
    """Return a glob of some of the files and no others; else the path of the first one, and that
    there are more.
    """
    if len(wanted) == 1:
        return repr(wanted[0])
    folder = os.path.commonpath(list(map(os.path.dirname, wanted)))
    begins = os.path.commonprefix(list(map(os.path.basename, wanted)))  # noqa: RUF071
    ending = "*" + os.path.splitext(wanted[0])[1]
    for pattern in (
        glob.escape(os.path.join(folder, begins.rstrip("0123456789"))) + ending,
        glob.escape(folder) + os.path.join(os.sep, "**", ending),
    ):
        found = set(glob.glob(pattern, recursive=True))
        if found >= set(wanted) and not found & set(paths) - set(wanted):
            return repr(pattern)
    return f"{wanted[0]!r} and the other {len(wanted) - 1}"
