"""Files of which tokens were erased, as is recorded beside them: else a dataset with other files,
or without its list, would take these tokens for data.

    .X.tokenfeed-erased.json    beside each such file X: its erased ranges, and their fill token
    a list beside the files     also of another dataset, which names the files that it erased

The list of a dataset has to have all of these ranges.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ...runtime.exceptions import log_safe_name
from ...storage.files import read_regular, replace_file
from ...storage.store import TokenStore
from .list_content import BYTES_MAX, Damaged, ListContent
from .list_file import SUFFIX, read_list
from .ranges import TokenRanges

_LOG = logging.getLogger("tokenfeed.server")

MARKER_SUFFIX = ".tokenfeed-erased.json"
_VERSION = 1
_CURE = "remove it if the file was restored or replaced since"


@dataclass(frozen=True, slots=True, eq=False)
class ErasedFile:
    """What is recorded of one file of a dataset.

    path: of the record.  ranges: of this file only.  fill: the token that is there now.
    """

    path: str
    file: int
    ranges: TokenRanges
    fill: int


def names_of(store: TokenStore, ranges: TokenRanges) -> tuple[str, ...]:
    """Return the files that have ranges, in order, as a list beside the first file names them."""
    folder = os.path.dirname(store.shards[0].path)
    return tuple(
        os.path.relpath(store.shards[file].path, folder or ".")
        for file in np.unique(ranges.files).tolist()
    )


def mark_files(store: TokenStore, ranges: TokenRanges, fill: int) -> None:
    """Record ranges beside each of their files; logs why where that is not possible."""
    for file in np.unique(ranges.files).tolist():
        path = _marker_path(store.shards[file].path)
        try:
            own = ranges.of_file(file)
            known = _read_marker(path, file)
            if known is not None:
                own = own.union(known.ranges)
                if known.fill == fill and own.token_count == known.ranges.token_count:
                    continue
            triples = [[first, end] for _, first, end in own.triples()]
            facts = {"tokenfeed_erased": _VERSION, "fill": fill, "ranges": triples}
            replace_file(path, json.dumps(facts).encode())
        except (OSError, Damaged) as problem:
            _LOG.warning(
                "erasure not recorded file=%s: it %s; keep the list of redacted tokens, and pass "
                "it whenever the file is opened",
                log_safe_name(path),
                _said(problem),
            )


def require_listed(store: TokenStore, path: str, content: ListContent | None) -> None:
    """Raise InvalidCorpus if tokens of a dataset were erased that its list does not say.

    path, content: of the list; None if there is none.
    """
    for found in unlisted(store, path, content):
        name = store.shards[found.file].path
        raise InvalidCorpus(
            name,
            f"has erased tokens, as {found.path} says, and {path}, the list of this dataset, does "
            "not; restore this list or pass another one with --redactions, open all files of the "
            "dataset that was erased, or run tokenfeed redact --erase on these files, which takes "
            f"the erasure over. Of what says so: {_CURE}",
        )


def taken_over(
    store: TokenStore, path: str, content: ListContent | None
) -> tuple[TokenRanges, frozenset[int]]:
    """Return the erased ranges that a list does not have, and the tokens that are there now.

    path, content: as for `require_listed`.  Raises: InvalidCorpus if any of them is not erased.
    """
    ranges, fills = TokenRanges.of(()), set()
    for found in unlisted(store, path, content):
        try:
            found.ranges.require_within(store.shape.token_counts)
            is_erased = all(bool(part.all()) for part in _filled(store, found))
        except ValueError:
            is_erased = False
        if not is_erased:
            problem = f"says that tokens of {store.shards[found.file].path} were erased, but they"
            cure = "run tokenfeed redact --erase on the dataset that was erased"
            raise InvalidCorpus(found.path, f"{problem} are there; {_CURE}, or else {cure}")
        ranges = ranges.union(found.ranges)
        fills.add(found.fill)
    return ranges, frozenset(fills)


def unlisted(store: TokenStore, path: str, content: ListContent | None) -> Iterator[ErasedFile]:
    """Yield what was erased of a dataset and its list does not say.  Raises: InvalidCorpus."""
    erasure = None if content is None else content.erasure
    listed = TokenRanges.of(()) if erasure is None else erasure.ranges
    for found in _recorded(store, path):
        own = listed.of_file(found.file)
        if own.union(found.ranges).token_count > own.token_count:
            yield found


def _recorded(store: TokenStore, path: str) -> Iterator[ErasedFile]:
    """Yield all records of the files of a store, but for those of its own list."""
    folders: dict[str, dict[str, int]] = {}
    for file, shard in enumerate(store.shards):
        folder, name = os.path.split(shard.path)
        folders.setdefault(folder, {})[name] = file
    for folder, files in folders.items():
        markers = {os.path.basename(_marker_path(name)): file for name, file in files.items()}
        try:
            present = os.listdir(folder or ".")
        except OSError:  # whose files may be readable
            present = list(markers)
        for name in sorted(present):
            beside = os.path.join(folder, name)
            if name in markers:
                try:
                    found = _read_marker(beside, markers[name])
                except (OSError, Damaged) as problem:
                    raise InvalidCorpus(beside, f"{_said(problem)}; {_CURE}") from problem
                if found is not None:
                    yield found
            elif name.endswith(SUFFIX) and not _is_same(beside, path):
                yield from _of_list(store, beside, files)


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _of_list(store: TokenStore, path: str, files: dict[str, int]) -> Iterator[ErasedFile]:
    """Yield what another list says of some files, by their names.

    Not of those none of whose tokens are erased: a list is copied to replicas before they are.
    """
    try:
        content = read_list(path)
    except InvalidCorpus as problem:
        _LOG.warning("list of another dataset ignored: %s", problem)
        return
    if content is None or content.erasure is None:
        return
    ranges = content.erasure.ranges
    named = zip(np.unique(ranges.files).tolist(), content.erasure.names, strict=True)
    for number, name in named:
        if (file := files.get(name)) is None:
            continue
        own = ranges.of_file(number)
        moved = TokenRanges(np.full_like(own.files, file), own.first_tokens, own.end_tokens)
        found = ErasedFile(path, file, moved, content.fill)
        try:
            moved.require_within(store.shape.token_counts)
        except ValueError:
            continue  # another file of this name
        if any(bool(part.any()) for part in _filled(store, found)):
            yield found


def _filled(
    store: TokenStore, found: ErasedFile
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Yield which tokens of its ranges are the fill token, a MiB at once."""
    for _, first, end in found.ranges.pieces(store.stored.itemsize):
        content = store.read(found.file, first, end - first)
        yield np.frombuffer(content, store.stored) == found.fill


def _said(problem: OSError | Damaged) -> str:
    if isinstance(problem, OSError):
        return f"cannot be used: {problem.strerror}"
    return str(problem)


def _marker_path(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{MARKER_SUFFIX}")


def _read_marker(path: str, file: int) -> ErasedFile | None:
    """Return what is recorded of a file; None if nothing is.  Raises: OSError, Damaged."""
    try:
        content = read_regular(path, BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as problem:
        raise Damaged(str(problem)) from None
    try:
        facts = json.loads(content)
        if facts["tokenfeed_erased"] != _VERSION or type(facts["fill"]) is not int:
            raise Damaged(f"is of another version than {_VERSION}")
        ranges = TokenRanges.of([(file, first, end) for first, end in facts["ranges"]])
    except Damaged:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged("is damaged") from error
    return ErasedFile(path, file, ranges, facts["fill"])
