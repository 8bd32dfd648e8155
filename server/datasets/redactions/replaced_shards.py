"""The shards that an erasure has replaced: a server that has opened an old one takes up the new one
that it finds in its place, and says when it has taken up all of them.
"""

from __future__ import annotations

from tokenfeed.errors import CorpusChanged, Unreadable

from ...storage.formats import Layout
from ...storage.open_file import OpenFile
from ...storage.store import TokenStore
from ..content import fingerprint_of_file
from .list_file import RedactionLists
from .overlay import Overlay


class ReplacedShards:
    """The replaced shards of a dataset: which may be taken up, and which are known to have no
    erased token. Several threads may ask: at worst, one of them reads a file again.
    """

    def __init__(self, lists: RedactionLists) -> None:
        """lists: of the dataset."""
        self._lists = lists
        self._known: dict[int, bytes] = {}
        self._looked_at: dict[int, tuple[bytes, object]] = {}
        self._refused: dict[int, tuple[object, ...]] = {}

    def is_erased_file(self, file: int, layout: Layout, opened: OpenFile) -> bool:
        """Return whether an opened file is what an erasure has made of a file of the dataset. Looks
        at the list at once.

        file, layout: number and layout of the file of the dataset.  opened: a file of the same
        size, which has its name now.
        Raises: InvalidCorpus if it cannot be read.
        """
        content = self._lists.content_now()
        erasure = None if content is None else content.erasure
        expected = None if erasure is None else erasure.of_file(file)
        if content is None or erasure is None or expected is None:
            return False
        # Such a file is met with each poll, and may take a second to hash.
        facts = (opened.version, expected.fingerprint)
        if self._refused.get(file) == facts:
            return False

        def read(_: int, first_byte: int, size_bytes: int) -> bytes:
            return opened.read(layout.first_byte + first_byte, size_bytes)

        # Of a large file the fingerprint covers a sample, which may have no token of the ranges.
        over = Overlay(read, erasure.ranges.of_file(file), content.fill, layout.dtype)
        found = fingerprint_of_file(layout, lambda first, size: read(file, first, size))
        if found == expected.fingerprint and over.is_erased(file):
            return True
        self._refused[file] = facts
        return False

    def check_served(self, store: TokenStore, file: int) -> None:
        """Look for erased tokens in a file as it is served, unless that was done.

        store: of the dataset.
        """
        content = self._lists.content
        erasure = None if content is None else content.erasure
        if content is None or erasure is None or erasure.of_file(file) is None:
            return
        looked_at = (erasure.list_hash, store.files.facts[file])
        if self._looked_at.get(file) == looked_at:
            return
        try:
            own = erasure.ranges.of_file(file)
            over = Overlay(store.files.read_served, own, content.fill, store.stored)
            is_erased = over.is_erased(file)
        except (CorpusChanged, Unreadable):
            return
        self._looked_at[file] = looked_at
        if is_erased:
            self._known[file] = erasure.list_hash

    def erased_list(self) -> bytes:
        """Return the hash of the list whose tokens are in no file any more; b"" if there is none,
        or some of its files are not known yet.
        """
        content = self._lists.content
        erasure = None if content is None else content.erasure
        if erasure is None:
            return b""
        known = all(self._known.get(one.file) == erasure.list_hash for one in erasure.files)
        return erasure.list_hash if known else b""
