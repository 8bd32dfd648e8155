"""The tokens of one dataset: rows of spans out of the bytes of its files, as they are served, and
the planes beside them.

Sizes are in tokens; only the store knows how many bytes a row has. Where the bytes are, and whether
they have changed, its `files` know (bytes.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.piece_planes import OF_PIECES
from tokenfeed.wire.row_block import Plane

from ..runtime.exceptions import log_safe_name
from .bytes import ByteArray, Bytes, Extents, StoredShard
from .door import StorageOptions, absolute, door_of, scheme_of
from .formats import FormatOptions, Stored, read_layout
from .narrowing import Narrowing

_LOG = logging.getLogger("tokenfeed.server")

# The windows of the next 32 batches of 32 x 2048: enough for a disk to work on at once. 75 Mtok/s
# with 2 MiB, 105 with 4, 95 with 8, 103 with 16 (spreads overlap). 2 cores, 2026-11;
# docs/decisions/0006-warm-up.md
READ_AHEAD_BYTES = 4 << 20

WAYS = ("map", "pread")
"""The values of --read: ways to read local files, which are in local/choice.py."""
WRONG_TOKEN = "has a token that cannot be served"
"""How the problem of a failed dataset begins, after its name."""

_SCRATCH_BYTES = 1 << 20
"""Tokens that are narrowed are read in parts of about this size."""

TokenArray = npt.NDArray[np.unsignedinteger]


class RowStore(Protocol):
    """What the rows of a stream are gathered from: the store of a dataset, or those of the sources
    of a mixture.
    """

    @property
    def shapes(self) -> Sequence[Shape]:
        """Return how many tokens each shard has, of each source of the stream."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Return the type of the tokens as they are served: uint16 or uint32, little-endian."""

    @property
    def cold(self) -> bool:
        """Return whether gathers seem to wait for the disk or the network."""

    def require_intact(self) -> None:
        """Raise CorpusChanged if a dataset has failed."""

    def ready_count(self, spans: Spans, planes: Sequence[int] = ()) -> int | None:
        """Return how many rows, from the first one on, can be gathered without a wait, with these
        planes; None if that is not known.
        """

    def advise(self, spans: Spans, planes: Sequence[int] = (), due_seconds: float = 0.0) -> None:
        """Start to read rows that will be gathered soon, and these planes of them, if they seem
        cold. Never waits.  due_seconds: as for `Bytes.advise`.
        """

    def gather(
        self, spans: Spans, tokens: npt.NDArray[np.unsignedinteger], patient: bool = True
    ) -> None:
        """Write the rows of spans into tokens, as they are served: the spans of a row end to end,
        and then zeros.

        spans: any; a store of one dataset ignores their source.  tokens: of this store's dtype,
        [rows, row_tokens], C-contiguous, overwritten also if this raises.
        patient: whether failed reads are retried before Unreadable is raised. If False, the cause
        is not examined: a truncated file is Unreadable too, so call again with True.
        Safe in any thread; holds no GIL while it waits or copies.
        Raises: CorpusChanged, Unreadable; then none of these rows may be delivered.
        """

    def gather_planes(
        self, spans: Spans, planes: Sequence[int], patient: bool = True
    ) -> tuple[Plane, ...]:
        """Return planes of the rows of spans; otherwise like `gather`.

        planes: kinds, ascending. A store of one dataset has them; in a mixture, a row of a source
        that lacks one has no bytes of it.
        """


class PlaneReader(Protocol):
    """Reads one plane of the rows of a dataset.

    kind: the plane's field number in Frame.
    """

    kind: int

    @property
    def fingerprint(self) -> bytes:
        """Return the fingerprint of the plane, 32 bytes; b"" while it is still being made."""

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Return the plane of the rows of spans; otherwise like `RowStore.gather`.

        Raises: Unreadable also while the plane is being made.
        """

    @property
    def cold(self) -> bool:
        """Return whether reads seem to wait for the disk or the network."""

    def advise(self, spans: Spans, due_seconds: float = 0.0) -> None:
        """Start to read rows that will be read soon, if they seem cold. Never waits.  due_seconds:
        as for `Bytes.advise`.
        """

    def ready_count(self, spans: Spans) -> int | None:
        """Return how many rows, from the first one on, can be read without a wait; None if that is
        not known.
        """

    def close(self) -> None:
        """Release everything. A read in progress may fail with CorpusChanged."""


class TokenStore:
    """The tokens of one dataset; a RowStore. All methods may be called from several threads at
    once.

    name: of the dataset.  files: their bytes.  shape: how many tokens each shard has.  stored: type
    of the tokens in the files.  narrowing: converts them to served tokens.
    """

    def __init__(self, name: str, files: Bytes) -> None:
        """Read opened files.  Raises: InvalidCorpus unless all have the same format and type."""
        self.name = name
        self.files = files
        self.stored = _one_kind(files.shards)
        self.narrowing = Narrowing(self.stored)
        layouts = [shard.layout for shard in files.shards]
        counts = np.array([layout.token_count for layout in layouts], dtype=np.int64)
        self.shape = Shape(counts, layouts[0].row_tokens)
        self._planes: dict[int, PlaneReader] = {}

    @property
    def shards(self) -> Sequence[StoredShard]:
        """Its files, in order."""
        return self.files.shards

    @property
    def shapes(self) -> Sequence[Shape]:
        """The shape of the only source."""
        return (self.shape,)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of the served tokens: uint16 or uint32, little-endian."""
        return self.narrowing.served

    def narrow(self, token_max: int) -> None:
        """Serve tokens in the narrowest type that holds token_max; only before it is served."""
        self.narrowing = Narrowing(self.stored, token_max)

    @property
    def planes(self) -> Mapping[int, bytes]:
        """Fingerprint of each plane, by its kind; b"" while it is being made."""
        return {kind: self._planes[kind].fingerprint for kind in sorted(self._planes)}

    def add_plane(self, reader: PlaneReader) -> None:
        """Deliver a plane with the rows; only before it is served. The store closes the reader."""
        self._planes[reader.kind] = reader

    @property
    def cold(self) -> bool:
        """Whether gathers seem to wait for the disk or the network."""
        return self.files.cold or any(reader.cold for reader in self._planes.values())

    def require_intact(self) -> None:
        """Raise CorpusChanged if the dataset has failed."""
        self.files.require_intact()

    def ready_count(self, spans: Spans, planes: Sequence[int] = ()) -> int | None:
        """Return how many rows, from the first one on, are at hand with their planes."""
        found = self.files.ready_count(self.extents(spans))
        if found is not None and spans.pieces is not None:
            found = int(np.searchsorted(spans.pieces.first_span, found, side="right")) - 1
        for kind in planes:
            if found and kind in self._planes and self._planes[kind].cold:
                count = self._planes[kind].ready_count(spans)
                found = None if count is None else min(found, count)
        return found

    def advise(self, spans: Spans, planes: Sequence[int] = (), due_seconds: float = 0.0) -> None:
        """Start to read rows that will be gathered soon, if they seem cold."""
        if spans.shard.size:
            self.files.advise(self.extents(spans), due_seconds)
        for kind in planes:
            if kind in self._planes:
                self._planes[kind].advise(spans, due_seconds)

    def gather(self, spans: Spans, tokens: TokenArray, patient: bool = True) -> None:
        """Write the rows of spans into tokens, as they are served."""
        if self.narrowing.is_identity:
            extents = self.extents(spans, in_rows=True)
            self.files.gather(extents, tokens.reshape(-1).view(np.uint8), patient)
            return
        row_bytes = spans.row_tokens * self.stored.itemsize
        part_rows = max(1, _SCRATCH_BYTES // row_bytes)
        for first in range(0, len(spans), part_rows):
            part = spans[first : first + part_rows]
            content = self.gather_stored(part, patient)
            part.lay_out(self._served(part, content), tokens[first : first + part_rows])

    def gather_stored(self, spans: Spans, patient: bool = True) -> ByteArray:
        """Return the tokens of spans as they are stored, end to end: uint8[bytes]; otherwise like
        `gather`.
        """
        content = np.empty(spans.size_tokens * self.stored.itemsize, dtype=np.uint8)
        self.files.gather(self.extents(spans), content, patient)
        return content

    def gather_planes(
        self, spans: Spans, planes: Sequence[int], patient: bool = True
    ) -> tuple[Plane, ...]:
        """Return the planes of the rows of spans."""
        return tuple(
            [
                self._planes[kind].read(spans, patient)
                if spans.are_windows or kind not in OF_PIECES
                else OF_PIECES[kind](spans)
                for kind in planes
            ]
        )

    def extents(self, spans: Spans, *, in_rows: bool = False) -> Extents:
        """Return where the tokens of spans are.

        in_rows: whether they go into whole rows, with gaps where rows have padding; else they go
        end to end.
        """
        token_bytes = self.stored.itemsize
        file = self.files.first_file + spans.shard
        first_byte = spans.token_offset * token_bytes
        if spans.are_windows:
            return Extents(file, first_byte, spans.row_tokens * token_bytes)
        at = None
        if in_rows and spans.size_tokens != len(spans) * spans.row_tokens:
            at = (spans.row_of_span * spans.row_tokens + spans.places_in_row) * token_bytes
        return Extents(file, first_byte, spans.token_count * token_bytes, at)

    def close(self) -> None:
        """Release everything. A gather in progress fails with CorpusChanged."""
        # First: a search for documents reads the tokens.
        for reader in self._planes.values():
            reader.close()
        self.files.close()

    def _served(self, spans: Spans, content: ByteArray) -> TokenArray:
        """Return stored tokens that need narrowing as they are served.  Raises: CorpusChanged."""
        tokens = content.view(self.stored)
        wrong = self.narrowing.scan(tokens).wrong_place
        if wrong is not None:
            ends = np.cumsum(spans.token_count)
            span = int(np.searchsorted(ends, wrong, side="right"))
            token = wrong - int(ends[span] - spans.token_count[span] - spans.token_offset[span])
            self.files.mark_failed(
                f"{log_safe_name(self.shards[spans.shard[span]].path)}: token {token} is "
                f"{tokens[wrong]}, which cannot be served; state no vocabulary size, or "
                "have all tokens checked, to find it at the start",
                f"{WRONG_TOKEN}; the log of its server says where",
            )
            self.require_intact()
        return self.narrowing.serve(tokens)


def open_store(
    name: str, paths: Sequence[str], options: FormatOptions, storage: StorageOptions
) -> tuple[TokenStore, str]:
    """Open a dataset's files.

    name: of the dataset.  paths: its files in order, at least one.  options: what the user knows of
    their format.  storage: how they are to be read.
    Returns: their store, and why it reads them as it does.  Raises: InvalidCorpus, also if a file
    is given twice, whose rows an epoch would repeat.
    """
    if other := next((path for path in paths if scheme_of(path) != scheme_of(paths[0])), ""):
        raise InvalidCorpus(other, f"lies in another storage than {paths[0]}")
    layout = partial(read_layout, options=options)
    files, why = door_of(paths[0]).bytes_of(name, paths, layout, storage)
    try:
        _require_once(name, files.shards)
        return TokenStore(name, files), why
    except BaseException:
        files.close()
        raise


def _require_once(name: str, shards: Sequence[StoredShard]) -> None:
    """Raise InvalidCorpus if a file is given twice. By links it may be: a cache has one file for
    all shards of one content.
    """
    paths, places, again = set(), set(), list[str]()
    for shard in shards:
        if (path := absolute(shard.path)) in paths:
            raise InvalidCorpus(shard.path, "is given twice; name it once")
        if shard.place in places:
            again.append(path)
        paths.add(path)
        places.add(shard.place)
    if again:
        words = name, len(again), log_safe_name(again[0])
        _LOG.warning("files are there twice, by links dataset=%s files=%d first=%s", *words)


def _one_kind(shards: Sequence[StoredShard]) -> Stored:
    """Return the type of their tokens.  Raises: InvalidCorpus unless all are of one kind."""
    first = shards[0]
    for shard in shards:
        layouts = shard.layout, first.layout
        if layouts[0].format != layouts[1].format or layouts[0].dtype != layouts[1].dtype:
            found, others = (f"{layout.format} ({layout.dtype.name})" for layout in layouts)
            raise InvalidCorpus(
                shard.path,
                f"is {found}, but {first.path} is {others}; all files of a dataset need the same "
                "format and type",
            )
    return first.layout.dtype
