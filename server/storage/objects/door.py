"""The door to objects: found by lists of names, opened by the GET of their first bytes."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from tokenfeed.errors import InvalidCorpus

from ...runtime.exceptions import log_safe_name
from ...runtime.threads.parallel import map_in_threads
from ..bytes import Bytes
from ..door import Entry, ReadLayout, StorageOptions, in_cache, unreadable
from ..open_file import HEAD_BYTES, OpenFile
from ..option_names import READ
from . import object_bytes
from .buckets import Away, Bucket, NoBucket, Pin, Unranged, bucket_of
from .counts import INDEX
from .listing import LISTING
from .object_bytes import ObjectBytes, ObjectShard
from .openings import OPENINGS, Opening
from .urls import Url

_OPENERS = 64
"""Objects that are opened at once: each is a round trip. 1,000 of them 20 ms away took 8.6 s with
8, 2.1 with 32, 1.2 with 64 and 1.0 with 128. A store of our own, 2 cores, 2026-11."""
_AHEAD_BYTES = 8 << 20
"""Of an index that is read in order, a GET: 64 MiB there took 2.4 s in parts of 1 MiB, 0.6 in parts
of 4, and 0.5 in larger ones."""

_PAUSE_SECONDS = 0.2
_BUCKET_SECONDS = 5.0
"""A bucket that is not there is asked for again for this long: its store may just be starting."""
_SIGNED = re.compile(r"[?&](X-Amz-|X-Goog-|sig=)", re.IGNORECASE)
_LOG = logging.getLogger("tokenfeed.server")
_Answer = TypeVar("_Answer")


class ObjectFile(OpenFile):
    """An open object; there is nothing to close.

    bucket, key, pin: where it is, and its content.
    """

    def __init__(self, path: str, bucket: Bucket, url: Url, opening: Opening) -> None:
        """Take what was read of it, which begins with its first bytes."""
        self.path, self.head = path, bytes(opening.parts[0][1])
        self.bucket, self.key, self.pin = bucket, url.key, opening.pin
        self._url, self._opening = url, opening
        self._latest: tuple[int, bytes | memoryview] = (0, self.head)

    @property
    def size_bytes(self) -> int:
        """When it was opened."""
        return self.pin.size_bytes

    @property
    def modified_ns(self) -> int:
        """When it was written, in nanoseconds since 1970."""
        return self.pin.mtime_ns

    @property
    def version(self) -> object:
        """Other once the object was replaced."""
        return self.pin.tag

    @property
    def tags(self) -> tuple[str, ...]:
        """What names its content."""
        return self.pin.tags

    def read(self, first_byte: int, size_bytes: int) -> bytes:
        """Return size_bytes bytes from first_byte on.  Raises: InvalidCorpus if any is missing."""
        end = first_byte + size_bytes
        if not 0 <= first_byte <= end <= self.size_bytes:
            found = max(0, self.size_bytes - max(0, first_byte))
            problem = f"has {found} of {size_bytes} bytes from byte {first_byte} on; it may be"
            raise InvalidCorpus(self.path, f"{problem} truncated")
        for begin, content in (self._latest, *self._opening.parts):
            if begin <= first_byte and end <= begin + len(content):
                self._latest = begin, content
                return bytes(content[first_byte - begin : end - begin])
        begin, content = self._latest
        goes_on = begin < first_byte <= begin + len(content)
        end_ahead = max(end, first_byte + (_AHEAD_BYTES if goes_on else HEAD_BYTES))
        asked = first_byte, min(end_ahead, self.size_bytes), self.pin, INDEX
        found_bytes, _ = patient(self.path, lambda: self.bucket.get(self.key, *asked))
        content = memoryview(found_bytes)
        self._latest = first_byte, content
        OPENINGS.extend(self.bucket, self._url, self._opening, first_byte, content)
        return bytes(content[:size_bytes])


class ObjectDoor:
    """A `Door`."""

    def exists(self, path: str) -> bool:
        """Return whether there is an object or a folder of this name.  Raises: InvalidCorpus."""
        return patient(path, lambda: LISTING.look(Url.parse(path))) is not False

    def entry(self, path: str, *, at_once: bool = False) -> Entry | None:
        """Return what a path names; None if that is nothing.  Raises: InvalidCorpus."""
        url = Url.parse(path)
        if at_once:  # who asks at once cannot wait for a store that is away
            with _named(path):
                found = LISTING.look(url, at_once=True)
        else:
            found = patient(path, lambda: LISTING.look(url))
        if isinstance(found, Pin):
            return Entry(path, False, found.size_bytes, found.tag)
        return Entry(path, True) if found else None

    def entries(self, folder: str, suffixes: tuple[str, ...] = ("",)) -> list[Entry]:
        """Return what is in a folder, in no order.  Raises: InvalidCorpus."""
        found = patient(folder, lambda: LISTING.folder(Url.parse(folder)))
        if found is None:
            problem = "has no list of names, or it is not allowed to see it; name each file"
            raise InvalidCorpus(folder, problem)
        objects = [
            Entry(os.path.join(folder, name), False, pin.size_bytes, pin.tag)
            for name, pin in found.objects.items()
        ]
        folders = [Entry(os.path.join(folder, name), True) for name in found.folders]
        return [each for each in (*objects, *folders) if each.name.endswith(suffixes)]

    def glob(self, pattern: str, *, recursive: bool = True) -> list[str]:
        """Return the paths that a pattern matches, of objects and of folders, in no order.

        Raises: InvalidCorpus.
        """
        url = Url.parse(pattern)
        keys = patient(pattern, lambda: LISTING.matches(url, recursive=recursive))
        return [f"{url.bucket}/{key}" for key in keys]

    def is_link(self, path: str) -> bool:
        """Return False: there are no links."""
        return False

    def real(self, path: str) -> str:
        """Return a path as it is."""
        return path

    def open(self, path: str) -> ObjectFile:
        """Open an object, for a with block.  Raises: InvalidCorpus."""
        url = Url.parse(path)
        bucket = bucket_of(url)
        if not url.key:
            raise InvalidCorpus(path, "cannot be read: is a bucket, not an object in it")
        opening = patient(path, lambda: OPENINGS.find(bucket, url) or _opened(bucket, url))
        return ObjectFile(path, bucket, url, opening)

    def erased(self, path: str) -> bytes:
        """Return b"": what is erased is written to another object."""
        return b""

    def content(self, path: str, bytes_max: int) -> bytes | None:
        """Return the content of an object that lies beside others; None if there is none.

        Raises: OSError; ValueError if it is longer than bytes_max.
        """
        url = Url.parse(path)
        found = LISTING.look(url)
        if not isinstance(found, Pin):
            return None
        if found.size_bytes > bytes_max:
            raise ValueError(f"is not a regular file of at most {bytes_max} bytes")
        if not found.size_bytes:
            return b""
        bucket = bucket_of(url)
        content, pin = bucket.get(url.key, 0, found.size_bytes, None, INDEX)
        if pin.size_bytes != found.size_bytes:  # it was replaced since it was looked at
            if pin.size_bytes > bytes_max:
                raise ValueError(f"is not a regular file of at most {bytes_max} bytes")
            content, _ = bucket.get(url.key, 0, pin.size_bytes, pin, INDEX)
        return bytes(content)

    def put(self, path: str, content: bytes) -> None:
        """Raise OSError: nothing is written to a store."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def opening(self) -> AbstractContextManager[None]:
        """Keep what is read of objects that are opened meanwhile, for the next start."""
        return OPENINGS.during()

    def beside(self, path: str, name: str) -> str:
        """Return the path of a file in the cache folder of this machine."""
        return in_cache(path, name)

    def bytes_of(
        self, name: str, paths: Sequence[str], read_layout: ReadLayout, storage: StorageOptions
    ) -> tuple[Bytes, str]:
        """Open the objects of a dataset, many at once.  Raises: InvalidCorpus."""
        if storage.read is not None:
            problem = f"is read by GETs; {READ} is for files of this machine, so omit it"
            raise InvalidCorpus(paths[0], problem, READ)

        def opened(path: str) -> ObjectShard:
            with self.open(path) as file:
                return ObjectShard(path, read_layout(file), file.bucket, file.key, file.pin)

        shards = list(map_in_threads(opened, paths, _OPENERS, "tokenfeed-open"))
        scheme = Url.parse(paths[0]).scheme
        return ObjectBytes(name, shards, scheme), "exact GETs"


def _opened(bucket: Bucket, url: Url) -> Opening:
    """Return the first bytes of an object.  Raises: OSError."""
    try:
        found, pin = bucket.get(url.key, 0, HEAD_BYTES, None, INDEX)
    except OSError:
        # No range of an empty object can be answered.
        empty = bucket.head(url.key)
        if empty is None or empty.size_bytes:
            raise
        found, pin = b"", empty
    opening = Opening(pin, (0, bytes(found)))
    OPENINGS.add(bucket, url, opening)
    return opening


def patient(path: str, ask: Callable[[], _Answer]) -> _Answer:
    """Return what ask returns, which is asked again while the store of a path is away.

    Raises: InvalidCorpus, which names the path.
    """
    if path.startswith("https:") and _SIGNED.search(path):
        problem = 'is a signed URL, whose "?" would be taken for a pattern or an option'
        cure = "read the object by its store (s3://, gs://, az://), or make it public"
        raise InvalidCorpus(path.partition("?")[0], f"{problem}; {cure}")
    ends, pause = 0.0, _PAUSE_SECONDS
    while True:
        with _named(path):
            try:
                return ask()
            except Away as error:
                now = time.monotonic()
                # From when it first was away: an upload may take long.
                seconds = object_bytes.OPENING_SECONDS
                if isinstance(error, NoBucket):
                    seconds = min(seconds, _BUCKET_SECONDS)
                ends = ends or now + seconds
                if isinstance(error, Unranged) or now + pause > ends:
                    raise
                _LOG.warning(
                    "store away, retrying path=%s reason=%s", log_safe_name(path), error.strerror
                )
        time.sleep(pause * random.uniform(1, 2))
        pause = min(2 * pause, 5.0)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Raise InvalidCorpus, which names a path, instead of OSError."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error


DOOR = ObjectDoor()
