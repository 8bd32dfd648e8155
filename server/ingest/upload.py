"""An ingest whose shards end in an object store: made in a folder of this machine, then uploaded.

Each object is stored by one request, so that it is there as a whole or not at all, and never in
place of another one; the manifest comes last. What was uploaded is noted in the folder, and not
sent again after a kill.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from mmap import ACCESS_READ, mmap
from typing import Any

from tokenfeed.errors import InvalidCorpus, WriteFailed

from ..datasets.sources.manifest import NAME as MANIFEST
from ..datasets.sources.manifest import read_manifest
from ..runtime.threads.parallel import map_in_threads
from ..storage.door import open_file
from ..storage.objects.buckets import Bucket
from ..storage.objects.door import patient
from ..storage.objects.urls import Url
from .job import Job
from .output.shard_writer import write_errors
from .progress import Progress
from .run import SPLITS, Encoder, ingest, require_made

_UPLOADS = 4
"""Objects that are sent at once."""
_ANSWER_SECONDS = 3600.0
_COMPARED_BYTES = 8 << 20
_OBJECT_BYTES_MAX = 5 << 30
"""What S3 takes in one request."""
_NOTES = "uploaded"
_CURE = "finished work is kept; run the same command again"


def ingest_to_store(
    job: Job,
    out: str,
    folder: str,
    executor: Encoder,
    *,
    strict: bool,
    wait: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Make shards of text in an object store; resumes an interrupted run.

    out: URL of a folder in a bucket.  folder: of this machine, where shards are made; it has room
    for all of them, and is removed at the end.  strict, wait: as for `ingest`.
    Returns: the manifest.  Raises: as `ingest`.
    """
    made = read_manifest(out)
    if made is None:
        made = ingest(job, folder, executor, strict=strict, wait=wait, progress=progress)
        _upload(folder, out)
    else:
        require_made(out, made, job, strict=strict)
    with write_errors(folder):
        if os.path.isdir(folder):
            shutil.rmtree(folder)
    return made


def _noted(path: str) -> dict[str, str]:
    """Return the tag that each object had when it was uploaded, by its name: notes are lines of a
    tag and a name, of which a kill may leave half of one.  Raises: OSError.
    """
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line[:-1].partition("\t") for line in file if line.endswith("\n")]
    return {name: tag for tag, _, name in lines}


def _upload(folder: str, out: str) -> None:
    """Store the files of a folder, its manifest last.  Raises: WriteFailed."""
    url = Url.parse(out)
    names = [
        f"{split}/{name}"
        for split in SPLITS
        if os.path.isdir(os.path.join(folder, split))
        for name in sorted(os.listdir(os.path.join(folder, split)))
    ]
    for name in names:  # before the first request
        if (size_bytes := os.path.getsize(path := os.path.join(folder, name))) > _OBJECT_BYTES_MAX:
            problem = f"has {size_bytes} bytes, and a request stores {_OBJECT_BYTES_MAX} at most"
            raise WriteFailed(path, f"{problem}; use fewer --shard-tokens")
    with write_errors(out):
        bucket = Bucket(url, answer_seconds=_ANSWER_SECONDS)
        noted = _noted(os.path.join(folder, _NOTES))
        try:
            store = partial(_store, bucket, url.key, folder, noted)
            for _ in map_in_threads(store, names, _UPLOADS, "tokenfeed-upload"):
                pass
            store(MANIFEST)
        except InvalidCorpus as error:
            raise WriteFailed(error.subject, f"{error.problem}; {_CURE}") from error


def _store(bucket: Bucket, key: str, folder: str, noted: dict[str, str], name: str) -> None:
    """Store a file, unless that was done.

    key: of the folder in the bucket.  noted: what was done.  name: of the file in both folders.
    Raises: OSError; InvalidCorpus; WriteFailed if there is another object of this name.
    """
    own = f"{key}/{name}".lstrip("/")
    path = f"{bucket.url.bucket}/{own}"
    if name in noted:
        found = patient(path, lambda: bucket.head(own))
        if found is not None and found.tag == noted[name]:
            return
    with open(os.path.join(folder, name), "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        content = mmap(file.fileno(), 0, access=ACCESS_READ) if size_bytes else b""
        tag = patient(path, lambda: bucket.put_new(own, content))
        if tag is None:
            tag = _tag_of_same(path, content)
    with open(os.path.join(folder, _NOTES), "a", encoding="utf-8") as notes:
        notes.write(f"{tag}\t{name}\n")


def _tag_of_same(path: str, content: bytes | mmap) -> str:
    """Return the tag of an object that has a content: that of a request whose answer was lost.

    Raises: WriteFailed if it has another one; InvalidCorpus.
    """
    with open_file(path) as found:
        parts = range(0, len(content), _COMPARED_BYTES)
        if found.size_bytes == len(content) and all(
            found.read(first, len(part)) == part
            for first in parts
            for part in [content[first : first + _COMPARED_BYTES]]
        ):
            return str(found.version)
    problem = "is there already, and is not from this ingest"
    raise WriteFailed(path, f"{problem}; remove it, or pass another --out")
