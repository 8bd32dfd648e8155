"""The files that tokenfeed writes beside those of a dataset: its digest, indices of its documents,
its list of redacted tokens. How they are called, and what they record of the token files.
"""

from __future__ import annotations

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
    names = "/".join(
        [dtype.name, *(f"{os.path.basename(s.path)} {s.layout.first_byte}" for s in shards)]
    )
    own = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return door_of(path).beside(path, f".{os.path.basename(path)}.{own}{suffix}")


def file_facts(files: Bytes) -> list[list[object]]:
    """Return what a file beside those of a dataset records of each of them: values of JSON, others
    once the tokens may have changed.
    """
    return [
        [
            os.path.basename(shard.path),
            facts.size_bytes,
            facts.mtime_ns,
            shard.layout.first_byte,
            shard.layout.token_count,
            *facts.tags,
        ]
        for shard, facts in zip(files.shards, files.facts, strict=True)
    ]
