"""Planes in files of their own, beside those of tokens: one entry for each token, at the same
places. They are opened, checked for changes and read like token files.

A kind is a subclass of PlaneFiles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorpusChanged, InvalidCorpus, Option, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream import identity
from tokenfeed.wire.row_block import Plane

from ...storage.bytes import Submit, run_inline
from ...storage.door import door_of
from ...storage.store import TokenStore
from ..content import Block, Content, Scan
from ..shared_scan import scan_once

Own = TypeVar("Own", bound="PlaneFiles")


def files_beside(
    paths: Sequence[str],
    names: Callable[[str], Iterable[str]],
    name: str,
    cure: str,
    *options: Option,
) -> list[str]:
    """Return the file next to each shard, or next to the target of a link; none if no shard has
    one.

    names: returns the paths that the file of a shard may have.  name: of the plane.  cure: follows
    "restore its", in the error.  options: which the cure names.
    Raises: InvalidCorpus if only some shards have one.
    """
    found = [_file_beside(path, names) for path in paths]
    files = [path for path in found if path]
    if files and len(files) < len(found):
        problem = f"has no {name}, but another file of the dataset has one ({files[0]})"
        raise InvalidCorpus(paths[found.index("")], f"{problem}; restore its {cure}", *options)
    return files


def _file_beside(path: str, names: Callable[[str], Iterable[str]]) -> str:
    # Only of a link: to resolve a path costs a call for each of its folders.
    door = door_of(path)
    for place in (path, door.real(path)) if door.is_link(path) else (path,):
        for each in names(place):
            if door.exists(each):
                return each
    return ""


class PlaneFiles(ABC):
    """A plane of a dataset that has a file for each of its files of tokens; a PlaneReader, whose
    files are polled.

    kind: its field number in Frame.  name: to people.  entries: what a file has one of for each
    token, in an error.  store: its files.  fingerprint: of the plane, 32 bytes.
    """

    kind: int
    name: ClassVar[str]
    entries: ClassVar[str]

    def __init__(self, store: TokenStore, tokens: TokenStore, fingerprint: bytes) -> None:
        """Take opened files.  tokens: of the same dataset, which fails if these fail."""
        self.store = store
        self.fingerprint = fingerprint
        self._tokens = tokens
        self._is_used = False

    @classmethod
    def checked(
        cls: type[Own],
        store: TokenStore,
        tokens: TokenStore,
        *,
        share: bool,
        stopped: Callable[[], bool],
    ) -> Own:
        """Check opened files, and compute the fingerprint of the plane. Closes them if it raises.

        tokens: as above.  share: whether to use what another process has found in the same files.
        stopped: whether to stop, which raises InvalidCorpus.
        Raises: InvalidCorpus, with the file and the problem.
        """

        def scan(stopped: Callable[[], bool]) -> Scan:
            return Scan(cls._fingerprint_of(store, store.files.read, stopped), b"", -1)

        try:
            for own, shard in zip(store.shards, tokens.shards, strict=True):
                if (count := own.layout.token_count) != shard.layout.token_count:
                    raise InvalidCorpus(
                        own.path,
                        f"is a {cls.name} of {count} {cls.entries}s, but {shard.path} has "
                        f"{shard.layout.token_count} tokens; a {cls.name.split()[-1]} has one "
                        f"{cls.entries} per token. Move it away if it is none",
                    )
            found = scan_once(store, cls.name, scan, stopped) if share else scan(stopped)
            return cls(store, tokens, found.fingerprint)
        except BaseException:
            store.close()
            raise

    @abstractmethod
    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Return the plane of the rows of spans."""

    @classmethod
    def _blocks(
        cls,
        store: TokenStore,
        read: Callable[[int, int, int], bytes],
        stopped: Callable[[], bool],
    ) -> Iterable[Block]:
        """Read what the fingerprint covers.  Raises: InvalidCorpus if an entry is not valid."""
        return Content(store, read, stopped).hashed()

    def _rows(self, spans: Spans, patient: bool) -> npt.NDArray[np.unsignedinteger]:
        """Return the entries of the rows of spans as they are stored, [rows, row_tokens]; 0 in
        padding.  Raises: CorpusChanged, Unreadable.
        """
        self._is_used = True
        try:
            content = self.store.gather_stored(spans, patient)
        except CorpusChanged:
            self._fail()
            raise
        entries = content.view(f"<u{self.store.stored.itemsize}")
        if spans.are_windows:
            return entries.reshape(len(spans), spans.row_tokens)
        rows = np.empty((len(spans), spans.row_tokens), dtype=entries.dtype)
        spans.lay_out(entries, rows)
        return rows

    @property
    def cold(self) -> bool:
        """Whether reads seem to wait; not before the first one, as perhaps no client wants it."""
        return self._is_used and self.store.cold

    def advise(self, spans: Spans, due_seconds: float = 0.0) -> None:
        """Start to read rows that will be read soon, if they seem cold."""
        self.store.advise(spans, due_seconds=due_seconds)

    def ready_count(self, spans: Spans) -> int | None:
        """Return how many rows are at hand."""
        return self.store.ready_count(spans)

    @property
    def file_count(self) -> int:
        """How many files to poll."""
        return len(self.store.shards) if self.store.files.may_change else 0

    def poll_file(
        self,
        index: int,
        submit: Submit = run_inline,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check one of its files for changes; as `Dataset.poll_file`."""
        self.store.files.poll_file(index, partial(self._same_content, stopped), submit)
        if self.store.files.failed:
            self._fail()

    def close(self) -> None:
        """Close its files."""
        self.store.close()

    def _same_content(self, stopped: Callable[[], bool]) -> bool | None:
        """Return whether the content that the fingerprint covers is unchanged; None if it cannot be
        read now.
        """
        try:
            found = self._fingerprint_of(self.store, self.store.files.read_served, stopped)
        except CorpusChanged:
            return False
        except Unreadable:
            return None
        except InvalidCorpus:
            return stopped()  # nothing is served any more; else an entry is wrong
        return found == self.fingerprint

    def _fail(self) -> None:
        if not self._tokens.files.failed:
            self._tokens.files.mark_failed(f"its {self.name} has failed")

    @classmethod
    def _fingerprint_of(
        cls,
        store: TokenStore,
        read: Callable[[int, int, int], bytes],
        stopped: Callable[[], bool],
    ) -> bytes:
        """Return the fingerprint of the plane.  Raises: InvalidCorpus, also once stopped() is
        true.
        """
        hashes = [block.sha256 for block in cls._blocks(store, read, stopped)]
        return identity.plane_fingerprint(cls.kind, store.shape.token_counts.tolist(), hashes)
