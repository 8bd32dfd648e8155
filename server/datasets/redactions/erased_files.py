"""Files of which tokens were erased, as is recorded beside them: else a dataset with other files,
or without its list, would take the fill for data.

    .tokenfeed-erased.jsonl    in the folder of the files: a line for each erasure of each file

The list of a dataset has to have all of these ranges. A file that was restored has other tokens
there, and is no such file any more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tokenfeed.errors import InvalidCorpus, WriteFailed

from ...runtime.small_files import replace_file
from ...storage.door import door_of
from ...storage.option_names import REDACTIONS
from ...storage.store import TokenStore
from .list_content import BYTES_MAX, Erasure, ListContent
from .list_writing import locked
from .overlay import Overlay
from .ranges import TokenRanges

RECORD = ".tokenfeed-erased.jsonl"


class _Record(NamedTuple):
    """What an erasure has left of a file.

    name: of the file, without its folder.  fill: the token that is there.  ranges: of the file,
    as number 0.
    """

    name: str
    fill: int
    ranges: TokenRanges

    def line(self) -> dict[str, Any]:
        """Return it as JSON."""
        ranges = [[first, end] for _, first, end in self.ranges.triples()]
        return {"name": self.name, "fill": self.fill, "ranges": ranges}


@contextmanager
def locked_records(paths: Iterable[str]) -> Iterator[None]:
    """Keep other processes from erasing tokens of files in the folders of some files, as long as
    the with block lasts; waits for them.

    Raises: WriteFailed if one of the folders cannot be written.
    """
    with ExitStack() as locks:
        # In one order: two commands would else wait for each other.
        for folder in sorted({os.path.dirname(door_of(path).real(path)) for path in paths}):
            locks.enter_context(locked(os.path.join(folder, RECORD), "make its folder writable"))
        yield


def record(store: TokenStore, erasure: Erasure, fill: int) -> None:
    """Record, durably, that tokens of files are about to be erased; only within `locked_records`.

    store: of the files.  Raises: InvalidCorpus if a record is damaged; WriteFailed.
    """
    of_folder: dict[str, list[_Record]] = {}
    for erased in erasure.files:
        path = store.shards[erased.file].path
        folder, name = os.path.split(door_of(path).real(path))
        ranges = erasure.ranges.of_file(erased.file)
        ranges = replace(ranges, files=np.zeros_like(ranges.files))
        of_folder.setdefault(folder, []).append(_Record(name, fill, ranges))
    for folder, new in of_folder.items():
        place = os.path.join(folder, RECORD)
        # An earlier one with fewer ranges stays: of a file that this erasure does not come to.
        known = [json.dumps(each.line()) for each in _read(place)]
        lines = dict.fromkeys((*known, *(json.dumps(each.line()) for each in new)))
        if len(lines) == len(known):
            continue
        content = "".join(f"{line}\n" for line in lines).encode()
        try:
            if len(content) > BYTES_MAX:
                raise OSError(None, f"it would have {len(content)} bytes, more than {BYTES_MAX}")
            replace_file(place, content, like=os.path.join(folder, new[0].name))
        except OSError as error:
            raise WriteFailed(place, f"cannot be written: {error.strerror}") from error


def require_listed(store: TokenStore, path: str, content: ListContent | None) -> None:
    """Raise InvalidCorpus if tokens of a dataset were erased that its list does not say, or if a
    record is damaged.

    path, content: of the list; None if there is none.
    """
    erasure = None if content is None else content.erasure
    listed = TokenRanges.of(()) if erasure is None else erasure.ranges
    for found in _recorded(store):
        own = listed.of_file(found.file)
        if own.union(found.ranges).token_count == own.token_count:
            continue
        try:
            found.ranges.require_within(store.shape.token_counts)
        except ValueError:
            continue  # another file of this name
        if found.fill > np.iinfo(store.stored).max:
            continue  # likewise
        if Overlay(store.files.read, found.ranges, found.fill, store.stored).is_erased(found.file):
            raise InvalidCorpus(
                store.shards[found.file].path,
                f"has erased tokens, as {found.place} says, and {path}, the list of this dataset, "
                "does not. If tokenfeed redact runs now, wait for it. Else restore this list, pass "
                f"another one with {REDACTIONS}, open all files of the dataset that was erased, or "
                "restore the file",
                REDACTIONS,
            )


class _RecordOfFile(NamedTuple):
    """What a record says of a file of a dataset.

    file: its number.  ranges: in this file.  fill: the token that is there.  place: of the record.
    """

    file: int
    ranges: TokenRanges
    fill: int
    place: str


def _recorded(store: TokenStore) -> Iterator[_RecordOfFile]:
    """Yield what records say of the files of a dataset."""
    files: dict[str, dict[str, list[int]]] = {}
    real_folders: dict[str, str] = {}
    for file, shard in enumerate(store.shards):
        door, (folder, name) = door_of(shard.path), os.path.split(shard.path)
        if door.is_link(shard.path):
            folder, name = os.path.split(door.real(shard.path))
        else:
            # Once: to resolve a path costs a call for each of its folders.
            if folder not in real_folders:
                real_folders[folder] = door.real(folder)
            folder = real_folders[folder]
        files.setdefault(folder, {}).setdefault(name, []).append(file)
    for folder, names in files.items():
        place = os.path.join(folder, RECORD)
        for found in _read(place):
            for file in names.get(found.name, ()):
                files_column = np.full(len(found.ranges), file)
                ranges = replace(found.ranges, files=files_column)
                yield _RecordOfFile(file, ranges, found.fill, place)


def _read(place: str) -> list[_Record]:
    """Return the records of a folder.  Raises: InvalidCorpus if they cannot be read."""
    cure = "restore it, or remove it if all files beside it were restored since"
    try:
        content = door_of(place).content(place, BYTES_MAX) or b""
    except OSError as error:
        raise InvalidCorpus(place, f"cannot be read: {error.strerror}; {cure}") from error
    except ValueError as problem:
        raise InvalidCorpus(place, f"{problem}; {cure}") from problem
    try:
        found = [_record_of(json.loads(line)) for line in content.splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidCorpus(place, f"is damaged; {cure}") from error
    return found


def _record_of(line: dict[str, Any]) -> _Record:
    """Return a record.  Raises: ValueError, KeyError or TypeError."""
    ranges = TokenRanges.of([(0, first, end) for first, end in line["ranges"]])
    if not (isinstance(line["name"], str) and type(line["fill"]) is int and len(ranges)):
        raise TypeError
    return _Record(line["name"], line["fill"], ranges)
