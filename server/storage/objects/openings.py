"""What was read of objects while datasets were opened: headers and small indices, kept on this
machine, so that the next start asks a store for names alone.

A file in the user's cache folder for each folder of objects, replaced whole. What it has of an
object counts as long as the store names the same strong ETag, size and time. So whatever happens to
the file, the worst is another GET.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from ...runtime.once_a_machine import OPENING_SUFFIX, own_folders, remove_unused
from ...runtime.small_files import put_file, read_regular, sealed, unsealed
from .buckets import Bucket, Pin
from .listing import LISTING
from .urls import Url

_LOG = logging.getLogger("tokenfeed.server")

_VERSION = 1
_BYTES_MAX = 128 << 20
"""Of a file, and of all that is read until it is written: the beginnings of 130,000 objects. It is
read within a tenth of a second."""
_OBJECT_BYTES_MAX = 4 << 20
"""Of one object. Where a larger index has documents, they lie in a file of their own."""


class Opening:
    """What was read of an object.

    pin: its content.  parts: first bytes and content of what was read.
    """

    __slots__ = ("parts", "pin", "size_bytes")

    def __init__(self, pin: Pin, *parts: tuple[int, bytes | memoryview]) -> None:
        """Begin with some parts."""
        self.pin, self.parts = pin, list(parts)
        self.size_bytes = sum(len(content) for _, content in parts)


class _Folder:
    """The objects of a folder.

    url, about: which one it is.  known: of its file.  used: what this process has read, or found in
    known.  is_new: whether some of that is not in the file.
    """

    def __init__(self, url: Url, address: str) -> None:
        """Read its file, if there is one."""
        self.url, self.about = url, [address, url.key]
        self.known = self.in_file()
        self.used: dict[str, Opening] = {}
        self.is_new = False

    @property
    def _file_name(self) -> str:
        own = hashlib.sha256("\0".join(self.about).encode(errors="surrogateescape"))
        return own.hexdigest()[:32] + OPENING_SUFFIX

    def in_file(self) -> dict[str, Opening]:
        """Return what its file has; nothing if there is none, or a damaged one."""
        for folder in own_folders():
            path = os.path.join(folder, self._file_name)
            with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
                found = self._parsed(unsealed(read_regular(path, 2 * _BYTES_MAX)))
                with suppress(OSError):
                    os.utime(path)  # it is in use
                return found
        return {}

    def write(self) -> bool:
        """Write its file: first what was used, then what else is there, as far as there is room.

        Returns: whether there is a folder for it.
        """
        left = _BYTES_MAX
        written = {}
        for name, each in (self.used | {**self.in_file(), **self.used}).items():
            left -= each.size_bytes
            if left >= 0:
                written[name] = each
        content = sealed(self._body(written))
        for folder in own_folders():
            with suppress(OSError):
                put_file(os.path.join(folder, self._file_name), content, 0o600)
                return True
        _LOG.info("beginnings of objects not kept: no folder for them can be written")
        return False

    def _body(self, openings: dict[str, Opening]) -> bytes:
        facts = [
            [
                name,
                *(each.pin.size_bytes, each.pin.e_tag, each.pin.version),
                each.pin.modified.isoformat(),
                [[first, len(content)] for first, content in each.parts],
            ]
            for name, each in openings.items()
        ]
        head = {"version": _VERSION, "of": self.about, "objects": facts}
        contents = (content for each in openings.values() for _, content in each.parts)
        return b"".join([json.dumps(head).encode(), b"\n", *contents])

    def _parsed(self, body: bytes) -> dict[str, Opening]:
        at = body.index(b"\n") + 1
        head, contents, found = json.loads(body[:at]), memoryview(body), {}
        if head["version"] != _VERSION or head["of"] != self.about:
            raise ValueError("of another version, or another folder")
        for name, size_bytes, e_tag, version, modified, parts in head["objects"]:
            pin = Pin(size_bytes, e_tag, version, datetime.fromisoformat(modified))
            found[name] = opening = Opening(pin)
            for first, part_bytes in parts:
                opening.parts.append((first, contents[at : at + part_bytes]))
                opening.size_bytes += part_bytes
                at += part_bytes
        return found


class Openings:
    """What was read of objects while datasets are opened. May be used from several threads at once,
    and has nothing while none is opened.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._count = 0
        self._folders: dict[tuple[str, Url], _Folder] = {}
        self._left_bytes = _BYTES_MAX

    def forget(self) -> None:
        """Know nothing, as in a fork."""
        self.__init__()  # type: ignore[misc]

    @contextmanager
    def during(self) -> Iterator[None]:
        """Use what earlier starts have read until the block ends, and then write what is new."""
        with self._lock:
            self._count += 1
        try:
            yield
        finally:
            folders: list[_Folder] = []
            with self._lock:
                self._count -= 1
                if not self._count:
                    folders, self._folders = list(self._folders.values()), {}
                    self._left_bytes = _BYTES_MAX
            # What is opened next may be what is there then.
            LISTING.expire({folder.url for folder in folders})
            written = [folder.write() for folder in folders if folder.is_new]
            if any(written):
                remove_unused()

    def find(self, bucket: Bucket, url: Url) -> Opening | None:
        """Return what was read of an object, if the store still names that content.

        Raises: OSError.
        """
        with self._lock:
            if not self._count:
                return None
            folder, name = self._folder_of(bucket, url)
            found = folder.used.get(name) or folder.known.get(name)
        if found is None:
            return None
        listed = LISTING.look(url)
        if not (isinstance(listed, Pin) and found.pin.is_listed_as(listed)):
            return None
        with self._lock:
            if name not in folder.used:
                folder.used[name] = found
                self._has_room(found.size_bytes)
        return found

    def add(self, bucket: Bucket, url: Url, opening: Opening) -> None:
        """Keep an object that was opened, unless its content could be another one later."""
        with self._lock:
            if not (self._count and opening.pin.e_tag):
                return
            if not (url.can_list or opening.pin.is_settled):
                return
            folder, name = self._folder_of(bucket, url)
            if self._has_room(opening.size_bytes):
                folder.used[name] = opening
                folder.is_new = True

    def extend(
        self, bucket: Bucket, url: Url, opening: Opening, first: int, found: memoryview
    ) -> None:
        """Keep more of an object, if it is little."""
        with self._lock:
            if not self._count:
                return
            folder, name = self._folder_of(bucket, url)
            size_bytes = opening.size_bytes + len(found)
            if folder.used.get(name) is not opening or size_bytes > _OBJECT_BYTES_MAX:
                return
            if self._has_room(len(found)):
                opening.parts.append((first, found))
                opening.size_bytes = size_bytes
                folder.is_new = True

    def _folder_of(self, bucket: Bucket, url: Url) -> tuple[_Folder, str]:
        place, name = os.path.split(url.key)
        key = bucket.address, url._replace(key=place)
        if key not in self._folders:
            self._folders[key] = _Folder(key[1], key[0])
        return self._folders[key], name

    def _has_room(self, size_bytes: int) -> bool:
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True


OPENINGS = Openings()
os.register_at_fork(after_in_child=OPENINGS.forget)
