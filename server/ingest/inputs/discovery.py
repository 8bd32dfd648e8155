"""Finds the files of text that the command line names, in order."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from tokenfeed.errors import InvalidSource

from ...datasets.sources.paths import TEXT_SUFFIXES, expand
from .. import inputs
from ..units import TextSource

_HEAD_BYTES = 512


def find_sources(words: Sequence[str]) -> list[TextSource]:
    """Return the files of words: each is a file, a glob, or a folder of text.

    In the order given; those of a glob or a folder in byte order of their names.
    Raises: InvalidCorpus if a word matches nothing, InvalidSource if a file cannot be read.
    """
    paths = [path for word in words for path in expand(word, TEXT_SUFFIXES)]
    seen = set()
    for path in paths:
        if os.path.realpath(path) in seen:
            raise InvalidSource(path, "is given twice; name it once")
        seen.add(os.path.realpath(path))
    return [_source(os.path.abspath(path)) for path in paths]


def _source(path: str) -> TextSource:
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
    try:
        status = os.stat(source.path)
    except OSError as error:
        raise InvalidSource(source.path, f"cannot be read any more: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != (source.size_bytes, source.written_ns):
        raise InvalidSource(
            source.path, "changed while it was ingested; ingest it again, into another folder"
        )
