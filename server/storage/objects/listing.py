"""Names of objects by folder, as far as a store lists them, and the patterns that they match.

A folder is listed once for many looks: whether each of 10,000 objects has an index beside it is one
list, and would be 10,000 requests. Names are sorted by who asks, never taken in the store's order.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .buckets import Bucket, Denied, Pin, bucket_of
from .urls import Url

_KEPT_SECONDS = 10.0
"""A folder is listed again after this long: long enough to open a dataset, and short enough for
who uploads what was missing and tries again."""
_FOLDERS_MAX = 256


class Folder(NamedTuple):
    """What lies in a folder.  objects: by name.  folders: names."""

    objects: Mapping[str, Pin]
    folders: frozenset[str]


class Listing:
    """Folders that were listed a moment ago. May be used from several threads at once."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._folders: OrderedDict[Url, tuple[float, Folder | None]] = OrderedDict()
        self._objects: OrderedDict[Url, tuple[float, Pin | None]] = OrderedDict()

    def forget(self) -> None:
        """Know nothing, as in a fork."""
        self.__init__()  # type: ignore[misc]

    def folder(self, url: Url) -> Folder | None:
        """Return what lies in a folder, nothing if there is none; None if names are not told.

        Raises: OSError.
        """
        with self._lock:
            kept = self._folders.get(url)
        if kept is not None and time.monotonic() - kept[0] < _KEPT_SECONDS:
            return kept[1]
        found: Folder | None = None
        if url.can_list:
            try:
                found = _listed(bucket_of(url), url.key)
            except Denied:
                found = None  # a public bucket whose objects can be read has often no list
        with self._lock:
            self._folders[url] = time.monotonic(), found
            while len(self._folders) > _FOLDERS_MAX:
                self._folders.popitem(last=False)
        return found

    def look(self, url: Url) -> Pin | bool:
        """Return what is known of an object; if there is none: whether it is a folder.

        Raises: OSError.
        """
        parent, _, name = url.key.rpartition("/")
        if not name:
            return url.can_list
        around = self.folder(url._replace(key=parent))
        if around is None:
            return self._head(url) or False
        return around.objects.get(name) or name in around.folders

    def _head(self, url: Url) -> Pin | None:
        with self._lock:
            kept = self._objects.get(url)
        if kept is not None and time.monotonic() - kept[0] < _KEPT_SECONDS:
            return kept[1]
        try:
            found = bucket_of(url).head(url.key)
        except Denied as error:
            problem = "cannot be looked for: neither a list of its folder nor a look at it is"
            cure = "allowed; grant both (s3:ListBucket and s3:GetObject)"
            raise Denied(errno.EACCES, f"{problem} {cure}; {error.strerror}") from error
        with self._lock:
            self._objects[url] = time.monotonic(), found
            while len(self._objects) > 64 * _FOLDERS_MAX:
                self._objects.popitem(last=False)
        return found

    def matches(self, url: Url, *, recursive: bool) -> list[str]:
        """Return the keys that a pattern matches, of objects and folders.  url: whose key is one.

        Raises: OSError.
        """
        fixed, below = _split(url.key)
        if recursive and "**" in below:
            keys = bucket_of(url).below(fixed)
            keys += _folders_of(keys, fixed)
        else:
            keys = self._walk(url, fixed, below.split("/"))
        parts = url.key.split("/")
        return [key for key in keys if _matches(parts, key.split("/"), recursive=recursive)]

    def _walk(self, url: Url, folder: str, parts: list[str]) -> list[str]:
        """Return the keys below a folder whose parts match, folder by folder."""
        found = self.folder(url._replace(key=folder))
        if found is None:
            problem = "has no list of names here, so that a pattern finds nothing; name each file"
            raise Denied(errno.EACCES, problem)
        pattern, rest = parts[0], parts[1:]
        names = [*found.folders] if rest else [*found.objects, *found.folders]
        keys = [f"{folder}/{name}".lstrip("/") for name in names if _is_named(pattern, name)]
        return keys if not rest else [key for each in keys for key in self._walk(url, each, rest)]


def _listed(bucket: Bucket, key: str) -> Folder:
    begin = f"{key}/" if key else ""
    objects, folders = bucket.folder(key)
    # A console marks a folder by an empty object with its name.
    names = {path[len(begin) :]: pin for path, pin in objects if path.startswith(begin)}
    within = [path[len(begin) :] for path in folders if path.startswith(begin)]
    return Folder(
        {name: pin for name, pin in names.items() if name and "/" not in name},
        frozenset(name for name in within if name),
    )


def _split(pattern: str) -> tuple[str, str]:
    """Return the folder that a pattern names as it is, and the rest."""
    parts = pattern.split("/")
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:fixed]), "/".join(parts[fixed:])


def _folders_of(keys: list[str], above: str) -> list[str]:
    """Return the folders that keys are in, below one."""
    found = set()
    for key in keys:
        folder = os.path.dirname(key)
        while len(folder) > len(above) and folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return sorted(found)


def _matches(pattern: Sequence[str], parts: Sequence[str], *, recursive: bool) -> bool:
    """Return whether the parts of a key match those of a pattern as in the module glob: no "*" is
    a "/", nor a dot that begins a name; "**" is any number of folders, if it is recursive.
    """
    if not pattern:
        return not parts
    if not (recursive and pattern[0] == "**"):
        if not parts or not _is_named(pattern[0], parts[0]):
            return False
        return _matches(pattern[1:], parts[1:], recursive=recursive)
    for count in range(len(parts) + 1):
        if any(part.startswith(".") for part in parts[:count]):
            return False
        if _matches(pattern[1:], parts[count:], recursive=True):
            return True
    return False


def _is_named(pattern: str, name: str) -> bool:
    """Return whether a name matches a part of a pattern."""
    is_hidden = name.startswith(".") and not pattern.startswith(".")
    return fnmatch.fnmatchcase(name, pattern) and not (is_hidden and glob.has_magic(pattern))


LISTING = Listing()
os.register_at_fork(after_in_child=LISTING.forget)
