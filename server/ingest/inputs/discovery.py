"""Finds the files of text that the command line names, in order."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from tokenfeed.errors import InvalidSource

from ...datasets.sources.paths import Omission, text_files
from ...datasets.sources.splits import require_one_split
from ...storage.door import absolute, door_of, entry, open_file, scheme_of
from .. import inputs
from ..units import TextSource, number_of

_HEAD_BYTES = 512


def find_sources(
    words: Sequence[str],
    *,
    ignores_others: bool = False,
    mixed_splits: bool = False,
    made: str = "",
) -> tuple[list[TextSource], list[Omission]]:
    """Return the files of words, and what their folders have besides: each word is a file, a glob,
    or a folder of text.

    In the order given; those of a glob or a folder in byte order of their names.
    ignores_others: whether it is no error that a folder has more bytes besides.
    mixed_splits: whether files of several splits may be ingested together.  made: a folder that the
    ingest itself writes.
    Raises: InvalidCorpus if a word matches nothing, or files are of several splits; InvalidSource
    if a file cannot be read.
    """
    paths, others = text_files(words, ignores_others=ignores_others, made=made)
    if not mixed_splits:
        require_one_split(words, paths, "tokenfeed ingest {}".format)
    seen = set()
    for path in paths:
        real = door_of(path).real(absolute(path))
        if real in seen:
            raise InvalidSource(path, "is given twice; name it once")
        seen.add(real)
    return [_source(absolute(path)) for path in paths], others


def _source(path: str) -> TextSource:
    if scheme_of(path):
        with open_file(path) as found:
            kind = inputs.kind_of(path, found.head[:_HEAD_BYTES])
            return TextSource(path, kind, found.size_bytes, number_of(found.version))
    try:
        status = os.stat(path)
        with open(path, "rb", opener=_without_waiting) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InvalidSource(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidSource(path, "is not a regular file")
    return TextSource(path, inputs.kind_of(path, head), status.st_size, status.st_mtime_ns)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def require_same(source: TextSource) -> None:
    """Raise InvalidSource if a file has changed since the ingest began."""
    if scheme_of(source.path):
        found = entry(source.path)
        source.require(found and found.size_bytes, number_of(found and found.version))
        return
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise InvalidSource(source.path, f"cannot be read any more: {error.strerror}") from error
    source.require(status.st_size, status.st_mtime_ns)
