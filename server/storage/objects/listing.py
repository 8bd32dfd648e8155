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
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from .buckets import Bucket, Denied, Pin, bucket_of
from .urls import Url

_KEPT_SECONDS = 10.0
"""A folder is listed again after this long: long enough to open a dataset, and short enough for
who uploads what was missing and tries again."""
_LOOKS_MAX = 16
"""Looks at a folder, one by one, before it is listed: it may have millions of other names."""
_PAGES_MAX = 200
"""Lists of 1000 names of a folder for looks; one with more is looked at one by one."""
_NAMES_MAX = 1 << 20
"""Names that are kept: 500 MB."""


class Folder(NamedTuple):
    """What lies in a folder.  objects: by name.  folders: names."""

    objects: Mapping[str, Pin]
    folders: frozenset[str]


@dataclass(eq=False, slots=True)
class _Known:
    """What is known of a folder.

    lock: lets one thread list it.  until: when found is to be listed again, by time.monotonic.
    found: None if names are not told.  looks: one by one so far.  is_long: whether it has too many
    names for looks.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = 0.0
    found: Folder | None = None
    looks: int = 0
    is_long: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether it was listed a moment ago."""
        return time.monotonic() < self.until

    @property
    def name_count(self) -> int:
        """How much memory it takes: of names, and one for itself."""
        return 1 + (len(self.found.objects) + len(self.found.folders) if self.found else 0)


class Listing:
    """Folders that were listed a moment ago. May be used from several threads at once."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._folders: OrderedDict[Url, _Known] = OrderedDict()
        self._objects: OrderedDict[Url, tuple[float, Pin | bool]] = OrderedDict()

    def forget(self) -> None:
        """Know nothing, as in a fork."""
        self.__init__()  # type: ignore[misc]

    def expire(self, urls: Collection[Url]) -> None:
        """Ask again for what lies in folders when they are looked at next."""
        with self._lock:
            for url in urls:
                self._folders.pop(url, None)
            for each in list(self._objects):
                if each._replace(key=os.path.dirname(each.key)) in urls:
                    del self._objects[each]

    def folder(self, url: Url) -> Folder | None:
        """Return what lies in a folder, nothing if there is none; None if names are not told.

        Raises: OSError.
        """
        return self._listed(url, self._known(url), None) if url.can_list else None

    def look(self, url: Url, *, at_once: bool = False) -> Pin | bool:
        """Return what is known of an object; if there is none: whether it is a folder.

        at_once: whether to ask the store, whatever is known.  Raises: OSError.
        """
        parent, _, name = url.key.rpartition("/")
        if not name:
            return url.can_list
        if at_once:
            with self._lock:
                self._objects.pop(url, None)
        if at_once or not url.can_list:
            return self._alone(url, is_denied=not url.can_list)
        around = url._replace(key=parent)
        known = self._known(around)
        if not known.is_fresh:
            with self._lock:
                known.looks += 1
            if known.looks <= _LOOKS_MAX or known.is_long:
                try:
                    return self._alone(url)
                except Denied:  # its folder may tell
                    if known.is_long:
                        raise
        found = self._listed(around, known, _PAGES_MAX)
        if found is None:
            return self._alone(url, is_denied=not known.is_long)
        return found.objects.get(name) or name in found.folders

    def _known(self, url: Url) -> _Known:
        """Return what is known of a folder, maybe nothing yet."""
        with self._lock:
            found = self._folders.setdefault(url, _Known())
            self._folders.move_to_end(url)
            while len(self._folders) > _NAMES_MAX // 64:
                self._folders.popitem(last=False)
            return found

    def _listed(self, url: Url, known: _Known, pages_max: int | None) -> Folder | None:
        """Return what lies in a folder; None if names are not told, or are too many.

        pages_max: None for any number.  Raises: OSError.
        """
        with known.lock:
            if known.is_fresh:
                return known.found
            if pages_max is not None and known.is_long:
                return None
            found: Folder | None = None
            with suppress(Denied):  # a public bucket whose objects can be read has often no list
                found = _folder(bucket_of(url), url.key, pages_max)
                if found is None:
                    known.is_long = True
                    return None
            known.found, known.until = found, time.monotonic() + _KEPT_SECONDS
        self._make_room()
        return found

    def _make_room(self) -> None:
        """Let go of names that were listed long ago, and of the oldest if there are too many."""
        with self._lock:
            for url, each in list(self._folders.items()):
                if each.until and not each.is_fresh:
                    del self._folders[url]
            count = sum(each.name_count for each in self._folders.values())
            while count > _NAMES_MAX:
                count -= self._folders.popitem(last=False)[1].name_count

    def _alone(self, url: Url, *, is_denied: bool = False) -> Pin | bool:
        """Look at one object.  is_denied: whether names are not told, so that none is a folder.

        Raises: OSError.
        """
        with self._lock:
            kept = self._objects.get(url)
        if kept is not None and time.monotonic() - kept[0] < _KEPT_SECONDS:
            return kept[1]
        try:
            found: Pin | bool = bucket_of(url).head(url.key) or False
        except Denied as error:
            if not url.can_list:
                found = False  # as web servers answer for what is not there
            else:
                problem = "cannot be looked for: neither a list of its folder nor a look at it is"
                cure = "allowed; grant both (s3:ListBucket and s3:GetObject)"
                raise Denied(errno.EACCES, f"{problem} {cure}; {error.strerror}") from error
        if found is False and not is_denied:
            with suppress(Denied):
                found = bucket_of(url).has_below(url.key)
        with self._lock:
            self._objects.pop(url, None)
            self._objects[url] = time.monotonic(), found
            while len(self._objects) > _NAMES_MAX // 64:
                self._objects.popitem(last=False)
        return found

    def matches(self, url: Url, *, recursive: bool) -> list[str]:
        """Return the keys that a pattern matches, of objects and folders.  url: whose key is one.

        Raises: OSError.
        """
        fixed, below = _split(url.key)
        if recursive and "**" in below:
            keys = [key for key, _ in bucket_of(url).below(fixed) or ()]
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


def _folder(bucket: Bucket, key: str, pages_max: int | None) -> Folder | None:
    """Return what lies in a folder; None if it takes more lists of what is below it than it may.

    pages_max: how many; None for any number.  Raises: Denied, Away.
    """
    begin = f"{key}/" if key else ""
    if pages_max is None:
        objects, folders = bucket.folder(key)
    else:
        below = bucket.below(key, pages_max)
        if below is None:
            return None
        objects = below
        ends = [path.find("/", len(begin)) for path, _ in below]
        folders = [path[:end] for (path, _), end in zip(below, ends, strict=True) if end >= 0]
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
