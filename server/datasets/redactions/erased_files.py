"""Files of which tokens were erased, as is recorded beside them: else a dataset with other files,
or without its list, would take the fill for data.

    .tokenfeed-erased.jsonl    in the folder of the files: a line for each erasure of each file

The list of a dataset has to have all of these ranges. A file that was restored has other tokens
there, and is no such file any more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokenfeed.errors import InvalidCorpus, WriteFailed

from ...storage.files import read_regular, replace_file
from ...storage.store import TokenStore
from .laid_over import LaidOver
from .list_content import BYTES_MAX, ListContent
from .list_writing import locked_list
from .ranges import TokenRanges

RECORD = ".tokenfeed-erased.jsonl"


class _Record(NamedTuple):
    """What an erasure has left of a file.  name: of the file, without its folder.  ranges: first
    token, and the token behind the last one.  fill: the token that is there.
    """

    name: str
    fill: int
    ranges: Sequence[Sequence[int]]


def record(path: str, ranges: TokenRanges, fill: int) -> None:
    """Record, durably, that tokens of a file are about to be erased.

    path: of the file itself, not of a link.  ranges: of this file only.  Raises: InvalidCorpus if
    the record is damaged; WriteFailed.
    """
    folder, name = os.path.split(path)
    place = os.path.join(folder, RECORD)
    new = _Record(name, fill, [[first, end] for _, first, end in ranges.triples()])
    with locked_list(place):
        records = _read(place)
        if new in records:
            return
        lines = "".join(f"{json.dumps(each._asdict())}\n" for each in (*records, new))
        try:
            replace_file(place, lines.encode())
        except OSError as error:
            raise WriteFailed(place, f"cannot be written: {error.strerror}") from error


def require_listed(store: TokenStore, path: str, content: ListContent | None) -> None:
    """Raise InvalidCorpus if tokens of a dataset were erased that its list does not say, or if a
    record is damaged.

    path, content: of the list; None if there is none.
    """
    own = None if content is None else content.erasure
    for file, ranges, fill, place in _recorded(store):
        listed = TokenRanges.of(()) if own is None else own.ranges.of_file(file)
        if listed.union(ranges).token_count == listed.token_count:
            continue
        try:
            ranges.require_within(store.shape.token_counts)
        except ValueError:
            continue  # another file of this name
        if LaidOver(store.read, ranges, fill, store.stored).is_erased(file):
            raise InvalidCorpus(
                store.shards[file].path,
                f"has erased tokens, as {place} says, and {path}, the list of this dataset, does "
                "not; restore this list or pass another one with --redactions, open all files of "
                "the dataset that was erased, or restore the file",
            )


def _recorded(store: TokenStore) -> Iterator[tuple[int, TokenRanges, int, str]]:
    """Yield number, ranges and fill of each recorded erasure of a file, and where that is said."""
    files: dict[str, dict[str, list[int]]] = {}
    for file, shard in enumerate(store.shards):
        folder, name = os.path.split(os.path.realpath(shard.path))
        files.setdefault(folder, {}).setdefault(name, []).append(file)
    for folder, names in files.items():
        place = os.path.join(folder, RECORD)
        for found in _read(place):
            for file in names.get(found.name, ()):
                ranges = TokenRanges.of([(file, first, end) for first, end in found.ranges])
                yield file, ranges, found.fill, place


def _read(place: str) -> list[_Record]:
    """Return the records of a folder.  Raises: InvalidCorpus if they cannot be read."""
    cure = "restore it, or remove it if all files beside it were restored since"
    try:
        content = read_regular(place, BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return []
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
    found = _Record(line["name"], line["fill"], [[first, end] for first, end in line["ranges"]])
    if not (isinstance(found.name, str) and type(found.fill) is int and len(found.ranges)):
        raise TypeError
    TokenRanges.of([(0, *each) for each in found.ranges])
    return found
