"""The files that tokenfeed writes beside those of a dataset: its digest, indices of its documents,
its list of redacted tokens. How they are called, and what they record of the token files.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence

from .bytes import Bytes, StoredShard
from .door import door_of
from .formats import Stored


def path_beside(shards: Sequence[StoredShard], dtype: Stored, suffix: str) -> str:
    """Return the path of a file beside the first file, or in the cache folder where nothing can be
    written beside it; and hidden, so that no glob matches it.

    Its name depends on all files, since several datasets may begin with the same file.
    """
    path = shards[0].path
    files = zip(_names(shards), shards, strict=True)
    names = "/".join([dtype.name, *(f"{name} {shard.layout.first_byte}" for name, shard in files)])
    own = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return door_of(path).beside(path, f".{os.path.basename(path)}.{own}{suffix}")


def file_facts(files: Bytes) -> list[list[object]]:
    """Return what a file beside those of a dataset records of each of them: values of JSON, others
    once the tokens may have changed.
    """
    return [
        [
            name,
            facts.size_bytes,
            facts.mtime_ns,
            shard.layout.first_byte,
            shard.layout.token_count,
            *facts.tags,
        ]
        for name, shard, facts in zip(_names(files.shards), files.shards, files.facts, strict=True)
    ]


def _names(shards: Sequence[StoredShard]) -> list[str]:
    """Return the path of each file from the folder of the first one: the same after all of them are
    moved together.
    """
    first, _ = os.path.split(shards[0].path)
    # Once a folder: each costs 25 us, and there may be 100,000 files.
    from_first = functools.cache(lambda folder: os.path.relpath(folder or ".", first or "."))
    split = (os.path.split(shard.path) for shard in shards)
    return [os.path.normpath(os.path.join(from_first(folder), name)) for folder, name in split]
