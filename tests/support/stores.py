"""Stores of local files, opened in one way or the other whatever their file system is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from tests.support.memory_files import MemoryBytes, MemoryShard
from tokenfeed.server.runtime.threads.poll_rate import PollRate
from tokenfeed.server.storage.door import StorageOptions, door_of, open_file
from tokenfeed.server.storage.formats import FormatOptions, read_layout
from tokenfeed.server.storage.local.mapped_bytes import MappedBytes
from tokenfeed.server.storage.local.pread_bytes import PreadBytes
from tokenfeed.server.storage.objects import buckets
from tokenfeed.server.storage.objects.urls import Url
from tokenfeed.server.storage.store import TokenStore


def map_store(
    name: str, paths: Sequence[str], options: FormatOptions, poll_rate: PollRate | None = None
) -> TokenStore:
    """Map files."""
    layout = partial(read_layout, options=options)
    return TokenStore(name, MappedBytes(name, paths, layout, poll_rate))


def pread_store(
    name: str,
    paths: Sequence[str],
    options: FormatOptions,
    poll_rate: PollRate | None = None,
    *,
    open_max: int | None = None,
) -> TokenStore:
    """Open files for pread.  open_max: as for PreadBytes."""
    layout = partial(read_layout, options=options)
    return TokenStore(name, PreadBytes(name, paths, layout, poll_rate, open_max=open_max))


STORES = {"map": map_store, "pread": pread_store}
"""By the values of --read."""


def memory_store(
    name: str, paths: Sequence[str], options: FormatOptions, poll_rate: PollRate | None = None
) -> TokenStore:
    """Hold files in memory."""
    shards = []
    for path in paths:
        with open_file(path) as file:
            content = file.read(0, file.size_bytes)
            shards.append(MemoryShard(path, read_layout(file, options), content))
    return TokenStore(name, MemoryBytes(name, shards))


_NUMBERS = itertools.count()


def object_store(
    name: str, paths: Sequence[str], options: FormatOptions, poll_rate: PollRate | None = None
) -> TokenStore:
    """Read files as objects, of a bucket in memory."""
    import obstore
    from obstore.store import MemoryStore

    url = Url("s3", f"memory-{next(_NUMBERS)}", "")
    store = MemoryStore()
    urls = []
    for number, path in enumerate(paths):
        with open_file(path) as file:
            obstore.put(store, f"{number}.bin", file.read(0, file.size_bytes))
        urls.append(f"{url.bucket}/{number}.bin")
    buckets._BUCKETS[url.bucket] = buckets.Bucket(url, store)
    layout = partial(read_layout, options=options)
    files, _ = door_of(urls[0]).bytes_of(name, urls, layout, StorageOptions())
    del buckets._BUCKETS[url.bucket]
    return TokenStore(name, files)
