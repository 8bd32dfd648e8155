"""What stores of local files have in common, however they read them: rows out of spans, narrowing,
and the check for files that were cut within a row.

Half a corpus is another corpus: once a file was found cut short or written to, nothing more of the
dataset is handed out.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.row_block import RowBlock

from ...runtime.exceptions import log_safe_name
from ..formats import Stored
from ..narrowing import Narrowing
from ..store import Piece, SameContent, Submit
from .opened_shards import OpenedShards, Unread
from .readahead import ReadAhead
from .scratch import Room, ScratchPool, Tokens
from .shard import Shard
from .sidecar import read_sidecar, sidecar_path, write_sidecar

Numbers = npt.NDArray[np.int64]
RoomKind = TypeVar("RoomKind", bound=Room)


class _Sentinels(NamedTuple):
    """The last byte of each file that is not 0.

    bytes, values: int64[files] and uint8[files], where it is and what.  missing: the files whose
    ends are nothing but zeros, as far as was looked.
    """

    bytes: Numbers
    values: npt.NDArray[np.uint8]
    missing: list[int]


class LocalStore(ABC, Generic[RoomKind]):
    """A dataset's files on file systems of this machine; a TokenStore but for how it reads.

    files: what has become of them.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
        make_room: Callable[[], RoomKind],
        files: OpenedShards,
    ) -> None:
        """Hold opened shards.  Raises: InvalidCorpus if not all are of one kind."""
        self.name = name
        self.files = files
        self.stored = _one_kind(shards)
        self.narrowing = Narrowing(self.stored)
        self.shape = Shape(np.array([shard.layout.token_count for shard in shards], dtype=np.int64))
        # Files of planes beside the tokens are not read yet.
        self.planes: Mapping[int, bytes] = {}
        self._first_bytes = np.array([shard.layout.first_byte for shard in shards], dtype=np.int64)
        tails = [shard.tail for shard in shards]
        self._sentinel_lock = threading.Lock()
        sentinel_values = np.array([tail.sentinel_value for tail in tails], dtype=np.uint8)
        # Replaced as a whole: a gather that has read it goes by one moment.
        self._sentinels = _Sentinels(
            np.array([tail.sentinel_byte for tail in tails], dtype=np.int64),
            sentinel_values,
            np.flatnonzero(sentinel_values == 0).tolist(),
        )
        self._searched: set[int] = set()
        self._rooms = ScratchPool(make_room)
        self._readahead = ReadAhead(self)

    @abstractmethod
    def _read_tokens(self, spans: Spans, room: RoomKind) -> None:
        """Read the stored tokens of spans, end to end, to the beginning of room.

        Raises: Unread.
        """

    @abstractmethod
    def _read_bytes(self, shard: Numbers, first_byte: Numbers, room: RoomKind, place: int) -> None:
        """Read a byte of each file, from place in room on.  Raises: Unread."""

    @abstractmethod
    def seem_resident(self, spans: Spans) -> bool:
        """Say whether some of the tokens, taken as a sample, are in memory."""

    @abstractmethod
    def read_ahead(self, spans: Spans) -> None:
        """Have tokens be read that are asked for soon."""

    @abstractmethod
    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of what is being served.  Raises: CorpusChanged, Unreadable."""

    @abstractmethod
    def bring_in(self) -> Iterator[Piece]:
        """Bring all of it into memory."""

    @property
    def shards(self) -> Sequence[Shard]:
        """The files, as they were opened."""
        return self.files.shards

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Of the tokens as they are served: uint16 or uint32, little-endian."""
        return self.narrowing.served

    def narrow(self, token_max: int) -> None:
        """Serve tokens in the narrowest type that holds this one."""
        self.narrowing = Narrowing(self.stored, token_max)

    @contextmanager
    def gather(
        self, spans: Spans, planes: Sequence[int] = (), patient: bool = True
    ) -> Iterator[RowBlock]:
        """Lend the rows of spans, as they are served."""
        assert not planes
        self.require_intact()
        size_bytes = spans.size_tokens * self.stored.itemsize
        room = self.files.surely(lambda: self._filled(spans, size_bytes), patient)
        try:
            # Once more: if the store was closed meanwhile, something else may have been read.
            self.require_intact()
            tokens = self._served(spans, room.content[:size_bytes])
            yield RowBlock(laid_out(spans, tokens))
        finally:
            self._rooms.release(room)

    def advise(self, spans: Spans) -> None:
        """Have rows that are gathered soon be read from now on, if the store seems to be cold."""
        self._readahead.advise(spans)

    @property
    def cold(self) -> bool:
        """Whether gathers seem to wait for the disk or the network."""
        return self._readahead.cold

    @property
    def failed(self) -> bool:
        """Whether nothing of it is handed out any more."""
        return self.files.failed

    def require_intact(self) -> None:
        """Raise CorpusChanged if a file was ever found cut short or written to."""
        self.files.require_intact()

    def poll_file(self, shard: int, same_content: SameContent, submit: Submit) -> None:
        """Look at what has become of a file."""
        self.files.poll_file(shard, same_content, submit)

    @property
    def facts(self) -> Sequence[object]:
        """What is known of each file, by which a change shows."""
        return self.files.facts()

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        """Say whether all files are now as these facts say."""
        return self.files.unchanged_since(facts, stopped)

    @property
    def digest_path(self) -> str:
        """Where its digest is kept: beside the first file."""
        return sidecar_path(self.shards, self.stored)

    def kept_digest(self) -> bytes:
        """Return the digest that was kept, b"" if there is none."""
        return read_sidecar(self.shards, self.stored)

    def keep_digest(self, digest: bytes) -> str:
        """Keep a digest, and return where.  Raises: OSError."""
        return write_sidecar(self.shards, self.stored, digest)

    def close(self) -> None:
        """Hand out nothing more. May be called twice."""
        self.files.close()
        self._rooms.close()

    def _filled(self, spans: Spans, size_bytes: int) -> RoomKind:
        """Return room with the tokens of spans, which is to be given back.

        Raises: Unread, and then keeps no room, or those who wait for a file to heal would leave
        none for others; CorpusChanged where a file was cut within.
        """
        # Beside the tokens there is room for the sentinels, at most one a span.
        room = self._rooms.acquire(size_bytes + spans.shard.size)
        try:
            self._read_tokens(spans, room)
            suspects = self._suspects(spans, room, size_bytes)
            if suspects.size:
                self._require_sentinels(suspects, room, size_bytes)
            return room
        except BaseException as error:
            self._rooms.release(room)
            if isinstance(error, Unread):
                self._readahead.observe(1)
            raise

    def _suspects(self, spans: Spans, room: RoomKind, size_bytes: int) -> Numbers:
        """Return the files with a span that may have run over a cut.

        The rest of a page in which a map's file was cut reads as zeros, without an error, and so
        does a hole that was grown in place of what was cut; then the span's last byte is 0 as well,
        if the file system takes away the pages beyond the cut before it clears the rest of the page
        with the cut, as ext4 and tmpfs do (docs/decisions/0003-gather.md says where it does not).
        """
        if spans.are_windows:
            row_bytes = spans.row_tokens * self.stored.itemsize
            last = room.content[row_bytes - 1 : size_bytes : row_bytes]
        else:
            last = room.content[np.cumsum(spans.token_count) * self.stored.itemsize - 1]
        # Nearly always none or a few: sorting them in numpy takes several times as long.
        return np.array(sorted(set(spans.shard[last == 0].tolist())), dtype=np.int64)

    def _require_sentinels(self, suspects: Numbers, room: RoomKind, place: int) -> None:
        """Lose the dataset if one of these files was cut.  Raises: Unread, CorpusChanged.

        Each has a sentinel: its last byte that is not 0. After a cut before it, it is gone or 0; a
        cut behind it has only taken zeros. Asking for the size of every file of every frame would
        cost a third of a frame.
        """
        known = self._sentinels
        self._read_bytes(suspects, known.bytes[suspects], room, place)
        found = room.content[place : place + suspects.size]
        wrong = suspects[found != known.values[suspects]].tolist()
        # Where a file ends in nothing but zeros, only the file system can tell.
        unknown = known.missing if self.files.may_change else []
        for index in set(unknown).intersection(suspects.tolist()) if unknown else ():
            if self.files.is_written(index):
                wrong.append(index)
            elif index not in self._searched:
                self._searched.add(index)
                self._search_sentinel(index)
        if wrong:
            self.require_intact()
            name = log_safe_name(self.shards[wrong[0]].path)
            self.files.mark_failed(f"{name}: a gather met a file that was cut short")
            self.require_intact()

    def _search_sentinel(self, index: int) -> None:
        """Look further for the sentinel of a file, or a stat would be made for each frame of it.
        One of zeros alone needs none: whatever is cut off or grown again is zeros too.
        """
        found = self.files.further_sentinel(index)
        if found is not None:
            with self._sentinel_lock:
                known = self._sentinels
                places, values = known.bytes.copy(), known.values.copy()
                places[index], values[index] = found
                left = [one for one in known.missing if one != index]
                self._sentinels = _Sentinels(places, values, left)

    def _served(self, spans: Spans, content: Tokens) -> npt.NDArray[np.unsignedinteger]:
        """Return stored tokens as they are served.  Raises: CorpusChanged."""
        tokens = content.view(self.stored)
        if self.narrowing.is_identity:
            return tokens  # type: ignore[return-value]
        wrong = self.narrowing.scan(tokens).wrong_place
        if wrong is not None:
            ends = np.cumsum(spans.token_count)
            span = int(np.searchsorted(ends, wrong, side="right"))
            token = wrong - int(ends[span] - spans.token_count[span] - spans.token_offset[span])
            self.files.mark_failed(
                f"{log_safe_name(self.shards[spans.shard[span]].path)}: token {token} is "
                f"{tokens[wrong]}, which cannot be served; without --vocab-size, or with "
                "--check-all-tokens, it would be found at the start",
                "has a token that cannot be served; the log of its server says where",
            )
            self.require_intact()
        return self.narrowing.serve(tokens)


def laid_out(
    spans: Spans, tokens: npt.NDArray[np.unsignedinteger]
) -> npt.NDArray[np.unsignedinteger]:
    """Return the tokens of spans, one span after the other, as rows [rows, row_tokens]: the same
    memory where no row has padding, which is 0.
    """
    shape = len(spans), spans.row_tokens
    if tokens.size == len(spans) * spans.row_tokens:
        return tokens.reshape(shape)
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(spans.token_count)])
    row_lengths = np.diff(ends[spans.first_span])
    rows = np.zeros(shape, dtype=tokens.dtype)
    rows[np.arange(spans.row_tokens) < row_lengths[:, None]] = tokens
    return rows


def _one_kind(shards: Sequence[Shard]) -> Stored:
    """Return the type of their tokens.  Raises: InvalidCorpus if not all are of one kind."""
    first = shards[0]
    for shard in shards:
        one, other = first.layout, shard.layout
        if (one.format, one.dtype) != (other.format, other.dtype):
            what = [f"{layout.format} ({layout.dtype.name})" for layout in (one, other)]
            raise InvalidCorpus(
                shard.path,
                f"is {what[1]}, and {first.path} is {what[0]}: a dataset's files are of one kind",
            )
    return first.layout.dtype
