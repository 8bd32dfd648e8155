"""Training and validation files in one folder: never one dataset without a word.

Decides by names alone, as `paths`.
"""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from tokenfeed.errors import InvalidCorpus, Option

from ...storage.door import absolute, common_folder, door_of, exists, is_folder
from ...storage.option_names import MIXED_SPLITS

_SPLITS = dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val")
_SPLITS |= {"train": "", "test": "test"}
"""Words of names -> the split that they mean; files without one count as training files."""
_NAMED_MAX = 8
"""Files that are listed where no glob has them alone."""
_WORD = re.compile(rf"(?<![a-z0-9])({'|'.join(_SPLITS)})(?=[0-9]*(?:[^a-z0-9]|$))")


def require_one_split(
    words: Sequence[str], paths: Sequence[str], take: Callable[[str], str]
) -> None:
    """Raise InvalidCorpus if files of several splits are to be one dataset.

    A word of a name counts if it stands between separators, and if not all files have it. Names are
    those below what the user gave: of files, and of folders below a folder or a glob.
    words: what the user gave.  paths: its files.  take: returns how files of one split are
    taken, by their paths.
    """
    names = _below(words, paths)
    if not _WORD.search("\n".join(names).lower()):
        return
    # What all begin with says nothing, as in train_test_split_train and train_test_split_test.
    same = os.path.commonprefix([name.lower() for name in names])  # noqa: RUF071
    same = re.sub("[a-z0-9]*$", "", same)
    found = [frozenset(_WORD.findall(name[len(same) :].lower())) for name in names]
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
        take(_pattern([paths[number] for number in numbers], paths)) for numbers in splits.values()
    ]
    problem = f"has files of several splits: {', '.join(named)}; take one: {' or '.join(takes)}"
    problem += f"; or all of them as one dataset: {MIXED_SPLITS}"
    options = [one for one in takes if isinstance(one, Option)]
    raise InvalidCorpus(words[0], problem, *options, MIXED_SPLITS)


def _below(words: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return the names of files below what the user gave: below a folder, or where a glob begins.
    A shell may have written several words for one glob: then the names below what all of them are
    in, of whose folders only those count that are called as a split, and nothing more.
    """
    if len(words) > 1:
        parents = [os.path.dirname(absolute(word).rstrip(os.sep)) for word in words]
        folder = common_folder(parents)
        return [_with_splits(os.path.relpath(path, folder)) for path in paths]
    folder = _folder_of(words[0])
    begin = os.path.join(folder, "")
    return [
        # Nearly always so, and there may be 100,000 files.
        path[len(begin) :] if path.startswith(begin) else os.path.relpath(path, folder)
        for path in paths
    ]


def _with_splits(path: str) -> str:
    folder, name = os.path.split(path)
    splits = [each for each in folder.split(os.sep) if each.lower() in _SPLITS]
    return os.path.join(*splits, name)


def _folder_of(word: str) -> str:
    """Return the folder that a word names, that a glob begins with, or that a file is in."""
    if is_folder(word):
        return word
    if not exists(word) and (magic := re.search(r"[*?[]", word)):
        return word[: word.rfind(os.sep, 0, magic.start()) + 1] or os.curdir
    return os.path.dirname(word) or os.curdir


def _pattern(wanted: Sequence[str], paths: Sequence[str]) -> str:
    """Return a glob of some of the files and no others; else these files, of many the first one."""
    if len(wanted) == 1:
        return repr(wanted[0])
    folder = common_folder([os.path.dirname(path) or os.curdir for path in wanted])
    begins = os.path.commonprefix(list(map(os.path.basename, wanted)))  # noqa: RUF071
    ending = "*" + os.path.splitext(wanted[0])[1]
    others = set(map(os.path.normpath, paths)) - set(map(os.path.normpath, wanted))
    for pattern in (
        glob.escape(os.path.join(folder, begins.rstrip("0123456789"))) + ending,
        os.path.join(glob.escape(folder), "**", ending),
    ):
        found = set(map(os.path.normpath, door_of(pattern).glob(pattern)))
        if found >= set(map(os.path.normpath, wanted)) and not found & others:
            return repr(pattern)
    if len(wanted) <= _NAMED_MAX:
        return " ".join(map(repr, wanted))
    return f"{wanted[0]!r} and the other {len(wanted) - 1}"
