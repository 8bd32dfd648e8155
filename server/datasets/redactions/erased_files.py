"""Files whose tokens were erased as part of another dataset: a part of that one, or a larger one,
must not take the fill for data. The list of the dataset that was erased names them, and lies beside
them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from tokenfeed.errors import InvalidCorpus

from ...storage.kept.container import kept_paths
from ...storage.store import TokenStore
from .laid_over import LaidOver
from .list_content import Erasure, ListContent
from .list_file import SUFFIX, read_list
from .list_writing import lock_of, noted_erasure
from .ranges import TokenRanges

_LOG = logging.getLogger("tokenfeed.server")


def list_path(store: TokenStore) -> str:
    """Return the path of the list beside a dataset."""
    return kept_paths(store.shards, store.stored, SUFFIX, None)[0]


def names_of(store: TokenStore, files: list[int]) -> list[str]:
    """Return paths of files as a list beside the first file names them."""
    folder = os.path.dirname(store.shards[0].path)
    return [os.path.relpath(store.shards[file].path, folder or ".") for file in files]


def require_listed(store: TokenStore, path: str, content: ListContent | None) -> None:
    """Raise InvalidCorpus if tokens of a dataset were erased that its list does not say.

    path, content: of the list; None if there is none.
    """
    own = None if content is None else content.erasure
    beside = list_path(store)
    if (noted := noted_erasure(beside)) is not None and not _has_erased(content, noted):
        raise InvalidCorpus(
            path,
            f"is lost, or older than the erasure of list {noted.hex()}, whose tokens are not in "
            "the files any more; restore it, pass another one with --redactions, or remove "
            f"{lock_of(beside)} if the files are restored instead",
        )
    for file, ranges, says in _erased_by_others(store, path):
        listed = TokenRanges.of(()) if own is None else own.ranges.of_file(file)
        if listed.union(ranges).token_count > listed.token_count:
            raise InvalidCorpus(
                store.shards[file].path,
                f"has erased tokens, as {says} says, and {path}, the list of this dataset, does "
                "not; open all files of the dataset that was erased, pass its list with "
                "--redactions, or restore the file",
            )


def _has_erased(content: ListContent | None, list_hash: bytes) -> bool:
    """Return whether a list says that the tokens of one of its lists, or of a later one, are
    erased.
    """
    if content is None or content.erasure is None or list_hash not in content.hashes:
        return False
    places = {each: place for place, each in enumerate(content.hashes)}
    return places[content.erasure.list_hash] >= places[list_hash]


def _erased_by_others(store: TokenStore, path: str) -> Iterator[tuple[int, TokenRanges, str]]:
    """Yield number and erased ranges of files that other lists beside them name, and the list.

    Not of a file that still has its tokens: a list is copied to replicas before they are replaced.
    """
    folders: dict[str, dict[str, int]] = {}
    for file, shard in enumerate(store.shards):
        folder, name = os.path.split(shard.path)
        folders.setdefault(folder, {})[name] = file
    for folder, files in folders.items():
        present: list[str] = []
        with suppress(OSError):  # of a folder whose files may be readable
            present = os.listdir(folder or ".")
        for name in sorted(present):
            beside = os.path.join(folder, name)
            if not name.endswith(SUFFIX) or os.path.realpath(beside) == os.path.realpath(path):
                continue
            try:
                content = read_list(beside)
            except InvalidCorpus as problem:
                _LOG.warning("list of another dataset ignored: %s", problem)
                continue
            if content is None or content.erasure is None:
                continue
            for file, ranges in _named(content.erasure, files):
                if _is_erased(store, file, ranges, content.fill):
                    yield file, ranges, beside


def _named(erasure: Erasure, files: dict[str, int]) -> Iterator[tuple[int, TokenRanges]]:
    """Yield the ranges of the files that an erasure names, by their numbers in `files`."""
    for erased in erasure.files:
        if (file := files.get(erased.name)) is not None:
            own = erasure.ranges.of_file(erased.file)
            files_of = np.full_like(own.files, file)
            yield file, TokenRanges(files_of, own.first_tokens, own.end_tokens)


def _is_erased(store: TokenStore, file: int, ranges: TokenRanges, fill: int) -> bool:
    try:
        ranges.require_within(store.shape.token_counts)
    except ValueError:
        return False  # another file of this name
    return LaidOver(store.read, ranges, fill, store.stored).is_erased(file)
