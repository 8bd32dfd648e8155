"""The door to files: token files, and what lies beside them, are found and opened here.

Each kind of storage has a door of its own, which is found by the scheme of a path: SCHEME://...;
paths without one are those of this machine. Links, globs, locks and system calls are behind it
(local/door.py). Paths are joined and split as on this machine in any case.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple, Protocol

from tokenfeed.errors import InvalidCorpus

from ..runtime.cache_folder import cache_folder
from ..runtime.threads.poll_rate import PollRate
from .bytes import Bytes
from .layout import Layout
from .open_file import OpenFile

ReadLayout = Callable[[OpenFile], Layout]
"""Returns where the tokens of an opened file are.  Raises: InvalidCorpus."""


class Entry(NamedTuple):
    """What a path names. A link that leads nowhere is a file: opening it says why.

    size_bytes: of a file.  version: other once a file was replaced or written to. Both are None
    where they were not asked for, or cannot be known.
    """

    path: str
    is_folder: bool
    size_bytes: int | None = None
    version: object = None

    @property
    def name(self) -> str:
        """Without its folder."""
        return os.path.basename(self.path)


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How a dataset is to be read.

    read: a value of --read; None: what suits its storage.  poll_rate: the rate limit of calls that
    look whether a file has changed.  are_beside: whether its files lie beside others, which matter
    more where there is not room for all.
    """

    read: str | None = None
    poll_rate: PollRate = field(default_factory=PollRate)
    are_beside: bool = False


class Door(Protocol):
    """The files of one kind of storage. Any thread may call all methods."""

    def exists(self, path: str) -> bool:
        """Return whether there is something of this name, be it a link that leads nowhere.

        Raises: InvalidCorpus if that cannot be found out: a file without its index would be read as
        one of another format.
        """

    def entry(self, path: str, *, at_once: bool = False) -> Entry | None:
        """Return what a path names; None if that is nothing.

        at_once: whether what was seen a moment ago may not be told again.
        """

    def entries(self, folder: str, suffixes: tuple[str, ...] = ("",)) -> list[Entry]:
        """Return what is in a folder, in no order.

        suffixes: of the names that are wanted; by default all are.
        Raises: InvalidCorpus.
        """

    def glob(self, pattern: str, *, recursive: bool = True) -> list[str]:
        """Return the paths that a pattern matches, of files and of folders, in no order.

        recursive: whether "**" stands for folders of any depth.
        """

    def is_link(self, path: str) -> bool:
        """Return whether a path itself is a link."""

    def real(self, path: str) -> str:
        """Return a path without links; on a slow file system this takes a call for each folder."""

    def open(self, path: str) -> OpenFile:
        """Open a file, for a with block.

        Raises: InvalidCorpus, naming it, if it cannot be read. Its cause is the OSError, such as
        FileNotFoundError; it has none for what is no regular file.
        """

    def erased(self, path: str) -> bytes:
        """Return what an erasure has written on a file, and no copy of its content alone has; b""
        if there is nothing, or its storage has no place for it.
        """

    def content(self, path: str, bytes_max: int) -> bytes | None:
        """Return the content of a file that lies beside others; None if there is none.

        Raises: OSError; ValueError if it is no file, a link, or longer than bytes_max.
        """

    def put(self, path: str, content: bytes) -> None:
        """Write a small file that `beside` has named, durably: whole or not at all.

        Raises: OSError.
        """

    def opening(self) -> AbstractContextManager[None]:
        """Return a context in which a dataset is opened: what is read of its files meanwhile is
        kept for the next time, where reading costs much.
        """

    def beside(self, path: str, name: str) -> str:
        """Return the path of a file of this machine, of this name, that belongs to another one: in
        the same folder, or in the cache folder (`in_cache`) if nothing is written there.
        """

    def bytes_of(
        self, name: str, paths: Sequence[str], read_layout: ReadLayout, storage: StorageOptions
    ) -> tuple[Bytes, str]:
        """Open the files of a dataset, each once.

        name: of the dataset.  read_layout: is called with each file.
        Returns: their bytes, and why they are read in this way.  Raises: InvalidCorpus.
        """


ERASED_ATTRIBUTE = "user.tokenfeed.erased"
"""The name of what `Door.erased` returns, on file systems of this machine."""
MODULES = {"": ".local.door"} | dict.fromkeys(("s3", "gs", "az", "https"), ".objects.door")
"""Scheme -> the module whose DOOR is the door of its paths; imported once one is used."""
DOORS: dict[str, Door] = {}
"""Those that are in use, by scheme; '' is that of this machine."""


def door_of(path: str) -> Door:
    """Return the door to a path."""
    name = scheme_of(path)
    if name not in DOORS:
        DOORS[name] = import_module(MODULES[name], __package__).DOOR
    return DOORS[name]


def scheme_of(path: str) -> str:
    """Return the scheme of a path that another door leads to; "" if it is of this machine."""
    scheme, mark, _ = path.partition("://")
    return scheme if mark and (scheme in MODULES or scheme in DOORS) else ""


def problem_of_writing(path: str) -> str:
    """Return why nothing can be written to a path of a folder; "" if it is one of this machine."""
    scheme, mark, _ = path.partition("://")
    if not (mark and re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme)):
        return ""
    return f"is {path!r}, but is written on this machine: pass a folder without {scheme}://"


def exists(path: str) -> bool:
    """Return `Door.exists` of a path."""
    return door_of(path).exists(path)


def entry(path: str) -> Entry | None:
    """Return `Door.entry` of a path."""
    return door_of(path).entry(path)


def size_of(path: str) -> int:
    """Return the bytes of a file; 0 if there is none, or that cannot be known."""
    found = entry(path)
    return 0 if found is None else found.size_bytes or 0


def is_folder(path: str) -> bool:
    """Return whether a path names a folder."""
    found = entry(path)
    return found is not None and found.is_folder


def open_file(path: str) -> OpenFile:
    """Return `Door.open` of a path."""
    return door_of(path).open(path)


def absolute(path: str) -> str:
    """Return a path that does not depend on the working folder, normalized."""
    if scheme := scheme_of(path):
        return f"{scheme}://{os.path.normpath(path.partition('://')[2])}"
    return os.path.abspath(path)


def common_folder(folders: Sequence[str]) -> str:
    """Return the folder that all of these are in, or that they are.  folders: of one scheme."""
    scheme = scheme_of(folders[0])
    found = os.path.commonpath([each.removeprefix(f"{scheme}://") for each in folders])
    return f"{scheme}://{found}" if scheme else found


def in_cache(path: str, name: str) -> str:
    """Return a path in the user's cache folder, for `Door.beside` of files that are elsewhere."""
    own = hashlib.sha256(os.path.dirname(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return os.path.join(cache_folder(), f".{own}{name}")


def is_missing(error: InvalidCorpus) -> bool:
    """Return whether a file could not be opened because there is none."""
    return isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)


def unreadable(path: str, error: OSError | ValueError) -> InvalidCorpus:
    """Return what to raise for a file that cannot be read."""
    return InvalidCorpus(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
