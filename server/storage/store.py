"""The interface of every token store.

The service, the dataset, the warm-up, `inspect` and `verify` use only this interface: no addresses
and no descriptors. Sizes are in tokens; only the store knows how many bytes a row has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.row_block import Plane

from .files import OpenFile
from .formats import Layout, Stored
from .narrowing import Narrowing

# A disk reads 2 GiB at the same speed in pieces of 1 or 4 MiB (1.0 to 1.7 GB/s), with any
# read_ahead_kb. 2 cores, 2026-11; docs/decisions/0006-warm-up.md.
PIECE_BYTES = 1 << 20

# The windows of the next 32 batches of 32 x 2048: enough for a disk to work on at once. 75 Mtok/s
# with 2 MiB, 105 with 4, 95 with 8, 103 with 16 (spreads overlap). 2 cores, 2026-11;
# docs/decisions/0006-warm-up.md
READ_AHEAD_BYTES = 4 << 20

WAYS = ("map", "pread")
"""The values of --read: the kinds of stores of local files, which are in choice.py."""
Submit = Callable[[Callable[[], None]], None]
"""Calls a function, at once or in another thread."""
SameContent = Callable[[], bool | None]
"""Rereads a dataset.  Returns: whether its content is unchanged; None if it cannot be read now."""
IsErasedFile = Callable[[int, Layout, OpenFile], bool]
"""Returns whether a file is what an erasure of tokens has made of one of a store.  Takes: index and
layout of that one, and the file in its place, of the same size.  Raises: InvalidCorpus."""
CHANGED = "changed while it was served"
WRONG_TOKEN = "has a token that cannot be served"
"""How the problem of a failed dataset begins, after its name."""


class Exchanges:
    """How often a file of this process was exchanged for one without its erased tokens."""

    def __init__(self) -> None:
        """Count from 0."""
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one that begins."""
        with self._lock:
            self.count += 1


EXCHANGES = Exchanges()


def run_inline(work: Callable[[], None]) -> None:
    """Call a function at once; a Submit."""
    work()


class FileFacts(Protocol):
    """What is known of a file, to detect a change; equal if nothing has changed."""

    @property
    def size_bytes(self) -> int:
        """Return its size."""

    @property
    def mtime_ns(self) -> int:
        """Return when its content was last written, in nanoseconds since 1970."""

    @property
    def ctime_ns(self) -> int:
        """Return when it was last changed, in nanoseconds since 1970."""


class StoredShard(Protocol):
    """One file of a store, as an operator sees it."""

    @property
    def path(self) -> str:
        """Return its path, which errors name."""

    @property
    def layout(self) -> Layout:
        """Return where its tokens are."""


class Piece(NamedTuple):
    """A part that has been preloaded into memory.

    done_bytes: bytes that are in memory by now; bytes that are not tokens count as done, and need
    not be read.  content: the tokens of the part as they are stored, in the order of the files and
    without a gap, valid until the next piece is requested; None if they were preloaded without
    being read.
    """

    done_bytes: int
    content: memoryview | None = None


class ReadCounts(NamedTuple):
    """What a store has read since the start.

    cold_reads: gathers that had to wait for storage.  advised_bytes: of which reading was started
    ahead.
    """

    cold_reads: int
    advised_bytes: int


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

    def advise(self, spans: Spans, planes: Sequence[int] = ()) -> None:
        """Start to read rows that will be gathered soon, and these planes of them, if they seem
        cold. Never waits.
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

    def advise(self, spans: Spans) -> None:
        """Start to read rows that will be read soon, if they seem cold. Never waits."""

    def close(self) -> None:
        """Release everything. A read in progress may fail with CorpusChanged."""


class TokenStore(RowStore, Protocol):
    """The tokens of one dataset. All methods may be called from several threads at once.

    name: of the dataset.  shape: how many tokens each shard has.  stored: type of the tokens in the
    files.  narrowing: converts them to served tokens.

    A store serves the files that it opened, even after a file was replaced by rename. A file that
    is truncated or written to in place fails the dataset for good: every method that delivers
    tokens raises CorpusChanged. Failed reads are retried for about a second. Then they raise
    Unreadable, which ends only the call; or CorpusChanged, if the file's name is gone and no
    descriptor was kept, since the store cannot tell then whether the file was truncated.
    """

    name: str
    shape: Shape
    stored: Stored
    narrowing: Narrowing

    @property
    def planes(self) -> Mapping[int, bytes]:
        """Return the fingerprint of each plane of the dataset, by its kind; b"" while it is still
        being made.
        """

    def add_plane(self, reader: PlaneReader) -> None:
        """Deliver a plane with the rows; only before it is served. The store closes the reader."""

    @property
    def kind(self) -> str:
        """Return its value of --read."""

    @property
    def shards(self) -> Sequence[StoredShard]:
        """Return its files, in order."""

    @property
    def memory_bytes(self) -> int:
        """Return how many bytes of memory a full preload needs."""

    def narrow(self, token_max: int) -> None:
        """Serve tokens in the narrowest type that holds token_max; only before it is served."""

    def read_ahead(self, spans: Spans) -> None:
        """Start to read tokens that will be needed soon, whether cold or not. Never waits."""

    def gather_stored(self, spans: Spans, patient: bool = True) -> npt.NDArray[np.uint8]:
        """Return the tokens of spans as they are stored, end to end: uint8[bytes]; otherwise like
        `gather`.
        """

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of a shard, counted from its first token, without a gather: for any
        amount of bytes that is read once, before the store is served.

        Raises: InvalidCorpus if the file has changed or cannot be read.
        """

    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Like `read`, while the store is served; does not check the file first.

        Raises: CorpusChanged, Unreadable.
        """

    @property
    def read_counts(self) -> ReadCounts:
        """Return what it has read since the start."""

    def allow_replacement(self, is_erased_file: IsErasedFile) -> None:
        """Serve a file without its erased tokens in place of the opened one, once it is found; only
        before it is served.
        """

    @property
    def failed(self) -> bool:
        """Return whether the dataset has failed: it delivers nothing more."""

    def mark_failed(self, reason: str, client_message: str = "") -> None:
        """Fail the dataset for good.

        reason: for the log.  client_message: for clients, if the reason is not a changed file.
        """

    def poll_file(self, shard: int, same_content: SameContent, submit: Submit) -> None:
        """Check a file for changes; waits for the rate limit (PollRate).

        A file that was written to in place fails the dataset. Other changes are logged, or cause a
        reread: submit is given a function that calls same_content.
        """

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        """Return whether all files still match `facts`, an earlier value of the property; waits for
        the rate limit. Returns False once stopped() is true.
        """

    @property
    def facts(self) -> Sequence[FileFacts]:
        """Return what is known of each file, to detect a change; makes no stat call."""

    def bring_in(self) -> Iterator[Piece]:
        """Preload all of it, piece by piece.  Raises: CorpusChanged, Unreadable, OSError."""

    @property
    def digest_path(self) -> str:
        """Return the path of its digest file."""

    def kept_digest(self) -> bytes:
        """Return the stored digest of these files, 32 bytes; b"" if there is none."""

    def keep_digest(self, digest: bytes) -> str:
        """Store a digest, atomically.  Returns: the path of the file.  Raises: OSError."""

    def close(self) -> None:
        """Release everything. A gather in progress fails with CorpusChanged."""
