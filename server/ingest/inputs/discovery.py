"""Finds the files of text that the command line names, in order."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokenfeed.errors import InvalidCorpus, InvalidSource

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
    for_workers: bool = False,
) -> tuple[list[TextSource], list[Omission]]:
    """Return the files of words, and what their folders have besides: each word is a file, a glob,
    or a folder of text.

    In the order given; those of a glob or a folder in byte order of their names.
    ignores_others: whether it is no error that a folder has more bytes besides.
    mixed_splits: whether files of several splits may be ingested together.  made: a folder that the
    ingest itself writes.  for_workers: whether workers are on this machine, and may read its files.
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
    return [_source(absolute(path), for_workers) for path in paths], others


def _source(path: str, for_workers: bool) -> TextSource:
    try:
        with open_file(path) as found:
            kind = inputs.kind_of(path, found.head[:_HEAD_BYTES])
            written_ns = number_of(found.version) if scheme_of(path) else found.modified_ns
            # No worker opens an object: obstore hangs in a fork of a process that has used it.
            is_shared = for_workers and not scheme_of(path)
            return TextSource(path, kind, found.size_bytes, written_ns, is_shared)
    except InvalidCorpus as error:
        raise InvalidSource(error.subject, error.problem) from error


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
