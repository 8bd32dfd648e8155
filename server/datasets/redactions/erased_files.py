"""Files of which tokens were erased, as is recorded beside them and on them: else a dataset with
other files, or without its list, would take the fill for data.

    .tokenfeed-erased.jsonl    in the folder of the files: for each erasure and file a line with the
                               ranges that no line has yet
    user.tokenfeed.erased      an attribute of the file, for when it gets another name or folder:
                               its first ranges, and how many tokens all of them have

The list of a dataset has to have all of these ranges. A file that was restored has other tokens
there, and is no such file any more.
"""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from tokenfeed.errors import InvalidCorpus, WriteFailed

from ...runtime.small_files import replace_file
from ...runtime.threads.parallel import map_in_threads
from ...storage.door import ERASED_ATTRIBUTE, door_of
from ...storage.option_names import REDACTIONS
from ...storage.store import TokenStore
from .list_format import BYTES_MAX, Erasure, ListContent
from .list_writing import locked
from .overlay import Overlay
from .ranges import TokenRanges

RECORD = ".tokenfeed-erased.jsonl"
_ATTRIBUTE_RANGES = 20
"""Up to 900 bytes: ext4 has less than 4 KiB for all attributes of a file."""
_RESTORED = (
    f"has a damaged attribute {ERASED_ATTRIBUTE}; remove it (setfattr -x) if the file was restored "
    "since"
)
_LOOKERS, _LOOKED_AT_ONCE = 16, 256
"""Threads that look at files, and files that each looks at in turn. On a network file system each
takes two round trips, 60,000 one after another a minute; on a disk threads cost nothing more so,
and four times as much with a file at a time."""


class _Record(NamedTuple):
    """What an erasure has left of a file.

    name: of the file, without its folder; "" on the file itself.  fill: the token that is there.
    ranges: of the file, as number 0.  token_count: of all of them, also those without room here.
    """

    name: str
    fill: int
    ranges: TokenRanges
    token_count: int


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


def record(store: TokenStore, erasure: Erasure, fill: int, *, is_listed: bool) -> None:
    """Record, durably, which tokens of files are erased, or will be; only within `locked_records`.

    store: of the files.  is_listed: whether their list says it already. If not, ranges that hold
    nothing but the fill are left out: by their record alone the file would be refused.
    Raises: InvalidCorpus if a record is damaged; WriteFailed, also if it would be too large.
    """
    of_folder: dict[str, dict[str, int]] = {}
    for erased in erasure.files:
        path = store.shards[erased.file].path
        folder, name = os.path.split(door_of(path).real(path))
        of_folder.setdefault(folder, {})[name] = erased.file
    for folder, files in of_folder.items():
        place = os.path.join(folder, RECORD)
        lines, known = _read(place)
        line_count = len(lines)
        seen = defaultdict[str, set[tuple[int, int]]](set)
        for one in known:
            if one.fill == fill:
                seen[one.name].update(_pairs(one.ranges))
        for name, file in files.items():
            # Not merged with those before: a copy of the file may have been erased less.
            pairs = [
                each for each in _pairs(erasure.ranges.of_file(file)) if each not in seen[name]
            ]
            new = TokenRanges.of((file, *each) for each in pairs)
            over = Overlay(store.files.read, new, fill, store.stored)
            if pairs and (is_listed or not over.is_erased(file)):
                lines.append(_line(pairs, fill, name=name))
        if len(lines) > line_count:
            _write(place, b"".join(line + b"\n" for line in lines), sorted(files))


def _write(place: str, content: bytes, names: Sequence[str]) -> None:
    """Write the record of some files.  names: in its folder.  Raises: WriteFailed."""
    readers = [place, *(os.path.join(os.path.dirname(place), name) for name in names)]
    try:
        if len(content) > BYTES_MAX:
            problem = f"would have {len(content)} bytes, the limit is {BYTES_MAX}; remove the lines"
            raise WriteFailed(place, f"{problem} of files that are gone, and run it again")
        replace_file(place, content, like=readers)
    except OSError as error:
        raise WriteFailed(place, f"cannot be written: {error.strerror}") from error


def attribute_of(ranges: TokenRanges, fill: int) -> bytes:
    """Return what a file says of itself.  ranges: its erased ones.  fill: the token there."""
    return _line(_pairs(ranges)[:_ATTRIBUTE_RANGES], fill, tokens=ranges.token_count)


def _line(pairs: Sequence[tuple[int, int]], fill: int, **facts: object) -> bytes:
    """Return a record as JSON.  facts: the name of a file, or how many of its tokens are erased."""
    return json.dumps({**facts, "fill": fill, "ranges": pairs}).encode()


def _pairs(ranges: TokenRanges) -> list[tuple[int, int]]:
    return [(first, end) for _, first, end in ranges.triples()]


def require_listed(store: TokenStore, path: str, content: ListContent | None) -> None:
    """Raise InvalidCorpus if tokens of a dataset were erased that its list does not say, or if a
    record is damaged.

    path, content: of the list; None if there is none.
    """
    erasure = None if content is None else content.erasure
    listed = TokenRanges.of(()) if erasure is None else erasure.ranges
    listed_in = functools.cache(listed.of_file)
    for file, place, found in _recorded(store):
        own, ranges = listed_in(file), replace(found.ranges, files=found.ranges.files + file)
        has_all = own.cover(ranges.first_tokens, ranges.end_tokens).all()
        if has_all and own.token_count >= found.token_count:
            continue
        try:
            ranges.require_within(store.shape.token_counts)
        except ValueError:
            continue  # another file of this name
        if found.fill > np.iinfo(store.stored).max:
            continue  # likewise
        if Overlay(store.files.read, ranges, found.fill, store.stored).is_erased(file):
            has_not = "no list was given"
            cure = f"pass its list with {REDACTIONS}"
            if path:
                has_not = f"{path}, the list of this dataset, does not"
                cure = f"restore this list, pass another one with {REDACTIONS}"
            raise InvalidCorpus(
                store.shards[file].path,
                f"has erased tokens, as {place} says, and {has_not}. If tokenfeed redact runs now, "
                f"wait for it. Else {cure}, open all files of the dataset that was erased, or "
                "restore the file",
                REDACTIONS,
            )


def _recorded(store: TokenStore) -> Iterator[tuple[int, str, _Record]]:
    """Yield numbers of files of a dataset, and what is recorded of each, and where."""
    files: dict[str, dict[str, list[int]]] = {}
    # Once a folder: to resolve a path costs a call for each of its folders.
    real = functools.cache(lambda folder: door_of(folder).real(folder))
    paths = [shard.path for shard in store.shards]
    parts = [paths[at : at + _LOOKED_AT_ONCE] for at in range(0, len(paths), _LOOKED_AT_ONCE)]
    looked_at = chain.from_iterable(map_in_threads(_look, parts, _LOOKERS, "tokenfeed-erased"))
    for file, (path, (is_link, of_file)) in enumerate(zip(paths, looked_at, strict=True)):
        folder, name = os.path.split(door_of(path).real(path) if is_link else path)
        files.setdefault(real(folder), {}).setdefault(name, []).append(file)
        if of_file:
            yield file, f"its attribute {ERASED_ATTRIBUTE}", _parsed(of_file, path, _RESTORED)
    for folder, names in files.items():
        place = os.path.join(folder, RECORD)
        for found in _read(place)[1]:
            for file in names.get(found.name, ()):
                yield file, place, found


def _look(paths: Sequence[str]) -> list[tuple[bool, bytes]]:
    """Return of each file whether it is a link, and what an erasure has written on it."""
    return [(door_of(path).is_link(path), door_of(path).erased(path)) for path in paths]


def _read(place: str) -> tuple[list[bytes], list[_Record]]:
    """Return the record of a folder, as lines and as what they say.  Raises: InvalidCorpus."""
    cure = "restore it, or remove it if all files beside it were restored since"
    try:
        lines = (door_of(place).content(place, BYTES_MAX) or b"").splitlines()
    except OSError as error:
        raise InvalidCorpus(place, f"cannot be read: {error.strerror}; {cure}") from error
    except ValueError as problem:
        raise InvalidCorpus(place, f"{problem}; {cure}") from problem
    return lines, [_parsed(line, place, f"is damaged; {cure}") for line in lines]


def _parsed(line: bytes, place: str, problem: str) -> _Record:
    """Return a record.  Raises: InvalidCorpus, which says the problem of a place."""
    try:
        found = json.loads(line)
        name, fill = found.get("name", ""), found["fill"]
        ranges = TokenRanges.of((0, first, end) for first, end in found["ranges"])
        token_count = found.get("tokens", ranges.token_count)
        are_numbers = type(fill) is type(token_count) is int and fill >= 0
        if not (isinstance(name, str) and are_numbers and len(ranges)):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidCorpus(place, problem) from error
    return _Record(name, fill, ranges, token_count)
