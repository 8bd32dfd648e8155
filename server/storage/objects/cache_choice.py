"""Chooses where objects are cached, and how much of the disk that takes.

Without an option it is a local disk: never the memory, nor the network, and half of what is free at
most. Where that cannot be told, as in a pod, whose disk has a limit of its own, nothing is cached.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence

import numpy as np

from tokenfeed.commands.prices import OBJECT_PRICES, Prices
from tokenfeed.errors import InvalidCorpus, InvalidRequest

from ...runtime.cache_folder import cache_folder
from ..bytes import Bytes
from ..local.choice import file_systems, is_read_by_pread
from ..option_names import NO_CACHE, OBJECT_CACHE, OBJECT_CACHE_BYTES
from .object_bytes import ObjectBytes
from .object_cache import SCRUB_SECONDS, ObjectCache, damaged_of
from .slab import (
    BLOCK_BYTES,
    FILE,
    FOLDER,
    SLOTS_MIN,
    Slab,
    UnusableFolder,
    open_slab,
    size_in,
    size_of,
    slots_of,
)

_LOG = logging.getLogger("tokenfeed.server")

_FREE_BYTES_MIN = 50 << 30
"""Of a disk, that a cache in a default folder leaves free."""
_NO_DISKS = ("tmpfs", "ramfs", "overlay")
"""The memory, and the root of a container, whose room is the engine's."""
_SHARED_FOLDER = "/var/tmp"
_TYPICAL_TOKENS = 2048
"""Of a row, for what the log says of costs."""


def open_cache(
    datasets: Sequence[tuple[Bytes, bytes]],
    folder: str | None,
    size_bytes: int | None,
    prices: Prices = Prices(),  # noqa: B008 - it is frozen
) -> ObjectCache | None:
    """Cache the objects among the files of some datasets; before they are served.

    datasets: the files and the fingerprint of each.  folder: NO_CACHE for none; None for a folder
    that is chosen here.  size_bytes: of the cache at most; None for what is chosen here.  prices:
    for what the log says of costs.
    Returns: None if nothing is cached, which is logged.  Raises: InvalidRequest for an option.
    """
    objects = [(files, own) for files, own in datasets if isinstance(files, ObjectBytes)]
    if size_bytes is not None and slots_of(size_bytes) < SLOTS_MIN:
        problem = f"is {size_bytes}; it takes {size_of(SLOTS_MIN)} bytes or more"
        raise InvalidRequest(OBJECT_CACHE_BYTES, problem)
    if not objects:
        return None
    _LOG.info(_costs([files for files, _ in objects], prices))
    if folder == NO_CACHE:
        _LOG.info("object cache off: each epoch fetches its rows again")
        return None
    sizes = {
        shard.identity(own) or id(shard): shard.content_bytes
        for files, own in objects
        for shard in files.shards
    }
    block_count = sum(-(-each // BLOCK_BYTES) for each in sizes.values())
    if folder is not None:
        try:
            slab = _opened(folder, size_bytes, block_count)
            return _cache(slab, objects, folder)
        except UnusableFolder as problem:
            raise InvalidRequest(OBJECT_CACHE, f"{problem}; or pass {NO_CACHE}") from None
    own = os.path.join(_SHARED_FOLDER, f"tokenfeed-{os.geteuid()}")
    problems = []
    for chosen in (cache_folder(), own) if "KUBERNETES_SERVICE_HOST" not in os.environ else ():
        try:
            slab = _opened(chosen, size_bytes, block_count, is_default=True)
        except UnusableFolder as problem:  # noqa: PERF203 - of two folders
            problems.append(str(problem))
        else:
            return _cache(slab, objects, chosen)
    why = "; ".join(problems) or "the limit of a pod's disk is not known here"
    _LOG.warning(
        "object cache off, each epoch fetches its rows again: %s; %s DIR names a local disk, and "
        "%s is no cache",
        *(why, OBJECT_CACHE, NO_CACHE),
    )
    return None


def _costs(objects: Sequence[ObjectBytes], prices: Prices) -> str:
    """Return what an epoch costs, in words."""
    shards = [shard for each in objects for shard in each.shards]
    size_bytes = sum(shard.content_bytes for shard in shards)
    blocks = sum(-(-shard.content_bytes // BLOCK_BYTES) for shard in shards)
    rows = sum(shard.layout.token_count for shard in shards) // _TYPICAL_TOKENS
    as_rows = f"as rows of {_TYPICAL_TOKENS:,} tokens {prices.bill(rows, size_bytes)}"
    whole = f"an epoch as whole blocks is {prices.bill(blocks, size_bytes)}"
    at = f"at {prices.million_gets:g} a million GETs and {prices.gigabyte:g} a GB"
    return f"object store costs: {whole}; {as_rows} ({at}; {OBJECT_PRICES})"


def require_intact(folder: str) -> int:
    """Compare each block of the cache in a folder with its checksum, and take those out of it that
    differ, unless a server writes to it at the moment.

    Returns: how many blocks there are.  Raises: InvalidRequest, InvalidCorpus.
    """
    try:
        slab, writes = open_slab(folder, None), False
        slab.refresh()
        used = np.flatnonzero(slab.entries["stamp"])
        damaged = damaged_of(slab, used)
        if damaged.size:
            # A server that writes meanwhile may have put other blocks there.
            writes, stamps = slab.take_lease(), slab.entries["stamp"][damaged]
            slab.refresh()
            damaged = damaged[slab.entries["stamp"][damaged] == stamps]
            damaged = damaged_of(slab, damaged)
        if damaged.size and writes:
            slab.evict(damaged)
    except (UnusableFolder, OSError) as error:
        raise InvalidRequest(OBJECT_CACHE, str(error)) from error
    if damaged.size:
        cure = "they will be fetched again" if writes else "a server uses it, and will find them"
        problem = f"{damaged.size} of {used.size} blocks have changed on the disk; {cure}"
        raise InvalidCorpus(os.path.join(folder, FOLDER, FILE), problem)
    return int(used.size)


def _cache(slab: Slab, objects: Sequence[tuple[ObjectBytes, bytes]], folder: str) -> ObjectCache:
    """Use a slab for the files of datasets, each with its fingerprint.  Raises: UnusableFolder."""
    for files, fingerprint in objects:
        files.add_blocks(fingerprint)
    try:
        cache = ObjectCache(slab, [files for files, _ in objects])
    except RuntimeError as error:
        raise UnusableFolder(f"{folder} cannot be used: {error}") from error
    for files, _ in objects:
        files.use_cache(cache)
    counts = cache.counts
    fits = "all of it fits" if cache.fits else "it does not fit: blocks of order blocks are cached"
    _LOG.info(
        "object cache folder=%s bytes=%d blocks=%d cached=%d of=%d: %s; each block is checked "
        "again within %.0f hours",
        folder if folder.isprintable() else ascii(folder),
        *(slab.size_bytes, slab.slot_count, counts.cached_blocks, counts.blocks, fits),
        SCRUB_SECONDS / 3600,
    )
    if not cache.fits:
        _LOG.warning(
            "object cache smaller than the corpus: order blocks fetches little more than the "
            "corpus each epoch, other orders a GET for most rows; make it larger (%s), or use "
            "order blocks",
            OBJECT_CACHE_BYTES,
        )
    return cache


def _opened(
    folder: str, size_bytes: int | None, block_count: int, *, is_default: bool = False
) -> Slab:
    """Open a slab.  is_default: whether the folder was not asked for.  Raises: UnusableFolder."""
    system = file_systems([_existing(folder)])[0]
    if is_default and (system in _NO_DISKS or not os.path.isabs(folder)):
        raise UnusableFolder(f"{folder} is on no disk ({system})")
    if is_read_by_pread(system):
        raise UnusableFolder(f"{folder} is on {system}, which is no local disk")
    size_now, wanted = size_in(folder), size_bytes
    if wanted is None:
        free = shutil.disk_usage(_existing(folder)).free + size_now
        most = min(free // 2, free - (_FREE_BYTES_MIN if is_default else 0))
        if slots_of(most) < SLOTS_MIN:
            raise UnusableFolder(f"the disk of {folder} has too little room ({free} bytes free)")
        wanted = min(most, size_of(max(SLOTS_MIN, block_count)))
        # What is cached is worth more than some more room, and one that is larger may have what
        # another start needs.
        wanted = size_now if wanted < 1.5 * size_now else wanted
    slab = open_slab(folder, wanted)
    if size_bytes is not None and slab.slot_count != slots_of(size_bytes):
        _LOG.warning(
            "object cache has %d bytes and not %d: another server uses it",
            *(slab.size_bytes, size_bytes),
        )
    return slab


def _existing(folder: str) -> str:
    """Return a folder, or the first one around it that exists."""
    folder = os.path.abspath(folder)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder
