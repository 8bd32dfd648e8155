"""The common part of all stores of local files: rows of spans, narrowing, and the detection of
files that were truncated within a row.

Half a corpus is another corpus: once a file was found truncated or written to, the dataset delivers
nothing more.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.piece_planes import OF_PIECES
from tokenfeed.wire.row_block import Plane

from ...runtime.exceptions import log_safe_name
from ...runtime.threads.poll_rate import PollRate
from ..files import OpenFile
from ..formats import Stored
from ..narrowing import Narrowing
from ..store import EXCHANGES, WRONG_TOKEN, PlaneReader, ReadCounts
from .copying import TokenBytes
from .opened_shards import OpenedShards, Unread
from .readahead import ReadAhead
from .shard import Shard
from .sidecar import read_sidecar, sidecar_path, write_sidecar

Numbers = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.unsignedinteger]

_SCRATCH_BYTES = 1 << 20
"""Tokens that are narrowed or padded are read in parts of about this size."""


class _Sentinels(NamedTuple):
    """The last byte of each file that is not 0.

    bytes, values: int64[files] and uint8[files], its position and value.  missing: the files in
    which no such byte was found yet.
    """

    bytes: Numbers
    values: npt.NDArray[np.uint8]
    missing: list[int]


class LocalStore(OpenedShards, ABC):
    """A dataset's files on file systems of this machine: a TokenStore without the reading."""

    kind: ClassVar[str]
    PADS: ClassVar[bool] = False
    """Whether it reads rows of pieces with their padding, without a copy."""

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
        poll_rate: PollRate | None,
        status_of: Callable[[int], os.stat_result] | None = None,
    ) -> None:
        """Take opened shards.  Raises: InvalidCorpus unless all have the same format and type."""
        super().__init__(name, shards, poll_rate or PollRate(), status_of)
        self.stored = _one_kind(shards)
        self.narrowing = Narrowing(self.stored)
        counts = np.array([shard.layout.token_count for shard in shards], dtype=np.int64)
        self.shape = Shape(counts, shards[0].layout.row_tokens)
        self._planes: dict[int, PlaneReader] = {}
        self._first_bytes = np.array([shard.layout.first_byte for shard in shards], dtype=np.int64)
        tails = [shard.tail for shard in shards]
        self._sentinel_lock = threading.RLock()  # a file that is opened may be exchanged
        sentinel_values = np.array([tail.sentinel_value for tail in tails], dtype=np.uint8)
        # Replaced as a whole, so that a gather sees one consistent state.
        self._sentinels = _Sentinels(
            np.array([tail.sentinel_byte for tail in tails], dtype=np.int64),
            sentinel_values,
            np.flatnonzero(sentinel_values == 0).tolist(),
        )
        self._searched: set[int] = set()
        self.readahead = ReadAhead(self)

    @abstractmethod
    def _read_tokens(self, spans: Spans, target: TokenBytes) -> None:
        """Read the stored tokens of spans, end to end, into target, which has their size; if PADS
        also into a larger one, which has whole rows: zeros follow the spans of each.

        Raises: Unread.
        """

    @abstractmethod
    def _read_bytes(self, shard: Numbers, first_byte: Numbers) -> TokenBytes:
        """Read one byte of each of some files, uint8[files].  Raises: Unread."""

    @abstractmethod
    def seem_resident(self, spans: Spans) -> bool:
        """Return whether a sample of these tokens is in memory."""

    @abstractmethod
    def read_ahead(self, spans: Spans) -> None:
        """Start to read tokens that will be needed soon."""

    @property
    def shapes(self) -> Sequence[Shape]:
        """The shape of the only source."""
        return (self.shape,)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of the served tokens: uint16 or uint32, little-endian."""
        return self.narrowing.served

    def narrow(self, token_max: int) -> None:
        """Serve tokens in the narrowest type that holds token_max."""
        self.narrowing = Narrowing(self.stored, token_max)

    def gather(self, spans: Spans, tokens: TokenArray, patient: bool = True) -> None:
        """Write the rows of spans into tokens, as they are served."""
        if self.narrowing.is_identity and (self.PADS or spans.size_tokens == tokens.size):
            self._read(spans, tokens.reshape(-1).view(np.uint8), patient)
            return
        row_bytes = spans.row_tokens * self.stored.itemsize
        part_rows = max(1, _SCRATCH_BYTES // row_bytes)
        for first in range(0, len(spans), part_rows):
            part = spans[first : first + part_rows]
            content = self.gather_stored(part, patient)
            part.lay_out(self._served(part, content), tokens[first : first + part_rows])

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

    @property
    def planes(self) -> Mapping[int, bytes]:
        """Fingerprint of each plane, by its kind; b"" while it is being made."""
        return {kind: self._planes[kind].fingerprint for kind in sorted(self._planes)}

    def add_plane(self, reader: PlaneReader) -> None:
        """Deliver a plane with the rows."""
        self._planes[reader.kind] = reader

    def gather_stored(self, spans: Spans, patient: bool = True) -> TokenBytes:
        """Return the tokens of spans as they are stored, end to end."""
        content = np.empty(spans.size_tokens * self.stored.itemsize, dtype=np.uint8)
        self._read(spans, content, patient)
        return content

    def close(self) -> None:
        """Release everything. A gather in progress fails with CorpusChanged."""
        # First: a search for documents reads the tokens.
        for reader in self._planes.values():
            reader.close()
        super().close()

    def advise(self, spans: Spans, planes: Sequence[int] = ()) -> None:
        """Start to read rows that will be gathered soon, if they seem cold."""
        self.readahead.advise(spans)
        for kind in planes:
            if kind in self._planes:
                self._planes[kind].advise(spans)

    @property
    def cold(self) -> bool:
        """Whether gathers seem to wait for the disk or the network."""
        return self.readahead.cold or any(reader.cold for reader in self._planes.values())

    @property
    def read_counts(self) -> ReadCounts:
        """What it has read since the start."""
        return ReadCounts(self.readahead.cold_reads, self.readahead.advised_bytes)

    @property
    def digest_path(self) -> str:
        """Path of its digest file, beside the first file."""
        return sidecar_path(self.shards, self.stored)

    def kept_digest(self) -> bytes:
        """Return the stored digest, b"" if there is none."""
        return read_sidecar(self.shards, self.stored)

    def keep_digest(self, digest: bytes) -> str:
        """Store a digest.  Returns: the path of the file.  Raises: OSError."""
        return write_sidecar(self.shards, self.stored, digest)

    def _read(self, spans: Spans, target: TokenBytes, patient: bool) -> None:
        """Read the stored tokens of spans into target, with retries, and check that they are whole.

        Raises: CorpusChanged, Unreadable.
        """
        self.require_intact()
        self.with_retries(lambda: self._read_checked(spans, target), patient)
        # Again: if the store was closed meanwhile, other data may have been read.
        self.require_intact()

    def _read_checked(self, spans: Spans, target: TokenBytes) -> None:
        """Like `_read`, once.  Raises: Unread; CorpusChanged if a file was truncated."""
        try:
            self._read_tokens(spans, target)
            suspects = self._suspects(spans, target)
            if suspects.size:
                self._require_sentinels(suspects)
        except Unread:
            self.readahead.observe(1)
            raise

    def _suspects(self, spans: Spans, content: TokenBytes) -> Numbers:
        """Return the files with a span that may extend beyond a truncation.

        If a mapped file is truncated within a page, the rest of that page reads as zeros, without
        an error. So does a hole, if the file grows again. Then the last byte of the span is 0 too,
        if the file system removes the pages beyond the new end before it clears the rest of the
        last page, as ext4 and tmpfs do (docs/decisions/0003-gather.md lists those that do not).
        """
        if spans.are_windows:
            row_bytes = spans.row_tokens * self.stored.itemsize
            last = content[row_bytes - 1 :: row_bytes]
        else:
            ends = np.cumsum(spans.token_count)
            if spans.size_tokens * self.stored.itemsize < content.size:
                padding = spans.padding
                ends += np.repeat(np.cumsum(padding) - padding, np.diff(spans.first_span))
            last = content[ends * self.stored.itemsize - 1]
        # Nearly always none or a few: numpy takes several times as long to sort them.
        return np.array(sorted(set(spans.shard[last == 0].tolist())), dtype=np.int64)

    def _require_sentinels(self, suspects: Numbers) -> None:
        """Fail the dataset if one of these files was truncated.  Raises: Unread, CorpusChanged.

        The sentinel of a file is its last byte that is not 0. A truncation before it removes it or
        makes it 0; a truncation behind it removes only zeros. A stat call for every file of every
        frame would cost a third of a frame.
        """
        known = self._sentinels
        found = self._read_bytes(suspects, known.bytes[suspects])
        wrong = suspects[found != known.values[suspects]].tolist()
        # If a file ends in nothing but zeros, only its stat can tell.
        unknown = known.missing if self.may_change else []
        for index in set(unknown).intersection(suspects.tolist()) if unknown else ():
            if self.is_written(index):
                wrong.append(index)
            elif index not in self._searched:
                self._searched.add(index)
                self._search_sentinel(index)
        if wrong and self._are_wrong_still(wrong):
            self.require_intact()
            name = log_safe_name(self.shards[wrong[0]].path)
            self.mark_failed(f"{name}: truncated, found by a gather")
            self.require_intact()

    def _are_wrong_still(self, files: list[int]) -> bool:
        """Compare the sentinels of files again, while none of them is exchanged."""
        with self._sentinel_lock:
            suspects = np.array(files)
            while True:
                known = self._sentinels
                found = self._read_bytes(suspects, known.bytes[suspects])
                if self._sentinels is known:  # a read may open a file again, and exchange it
                    break
            return any(
                value != known.values[index] or (not value and self.is_written(index))
                for index, value in zip(files, found.tolist(), strict=True)
            )

    def _search_sentinel(self, index: int) -> None:
        """Search further for the sentinel of a file, to save a stat call for each frame of it. A
        file of zeros needs none: what is cut off, or grown again, is zeros too.
        """
        shard = self.shards[index]
        found = self.further_sentinel(index)
        with self._sentinel_lock:
            if found is not None and self.shards[index] is shard:  # else it was exchanged
                self._set_sentinel(index, *found, is_missing=False)

    def _exchange(self, index: int, file: OpenFile, shard: Shard) -> None:
        """Read from another file of the same size from now on."""
        tail = shard.tail
        # A gather that meets the new file and the old sentinel waits for the new one.
        with self._sentinel_lock:
            if self._closed.is_set():
                return  # its addresses may be those of others
            # Before: rows that were gathered meanwhile may need tokens that are erased.
            EXCHANGES.add()
            self._put(index, file)
            self.shards[index] = shard
            is_missing = not tail.sentinel_value
            self._set_sentinel(
                index, tail.sentinel_byte, tail.sentinel_value, is_missing=is_missing
            )

    @abstractmethod
    def _put(self, index: int, file: OpenFile) -> None:
        """Read from another file.  Raises: OSError."""

    def _set_sentinel(self, index: int, place: int, value: int, *, is_missing: bool) -> None:
        with self._sentinel_lock:
            known = self._sentinels
            places, values = known.bytes.copy(), known.values.copy()
            places[index], values[index] = place, value
            missing = [other for other in known.missing if other != index]
            if is_missing:
                missing.append(index)
                self._searched.discard(index)
            self._sentinels = _Sentinels(places, values, missing)

    def _served(self, spans: Spans, content: TokenBytes) -> TokenArray:
        """Return stored tokens as they are served.  Raises: CorpusChanged."""
        tokens = content.view(self.stored)
        if self.narrowing.is_identity:
            return tokens  # type: ignore[return-value]
        wrong = self.narrowing.scan(tokens).wrong_place
        if wrong is not None:
            ends = np.cumsum(spans.token_count)
            span = int(np.searchsorted(ends, wrong, side="right"))
            token = wrong - int(ends[span] - spans.token_count[span] - spans.token_offset[span])
            self.mark_failed(
                f"{log_safe_name(self.shards[spans.shard[span]].path)}: token {token} is "
                f"{tokens[wrong]}, which cannot be served; omit --vocab-size or pass "
                "--check-all-tokens to find it at the start",
                f"{WRONG_TOKEN}; the log of its server says where",
            )
            self.require_intact()
        return self.narrowing.serve(tokens)


def _one_kind(shards: Sequence[Shard]) -> Stored:
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
