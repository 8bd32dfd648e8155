"""Bytes of the files of a dataset, wherever they are: the interface that a `TokenStore` reads by.

Files are numbered over all datasets that one call may gather from: those of this machine, over the
whole process. Bytes are counted from the first token of their file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .layout import Layout
from .open_file import OpenFile

Numbers = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

# A disk reads 2 GiB at the same speed in pieces of 1 or 4 MiB (1.0 to 1.7 GB/s), with any
# read_ahead_kb. 2 cores, 2026-11; docs/decisions/0006-warm-up.md.
PIECE_BYTES = 1 << 20

_EXTENTS_SAMPLED = 8

Submit = Callable[[Callable[[], None]], None]
"""Calls a function, at once or in another thread."""
SameContent = Callable[[], bool | None]
"""Rereads a dataset.  Returns: whether its content is unchanged; None if it cannot be read now."""
IsErasedFile = Callable[[int, Layout, OpenFile], bool]
"""Returns whether a file is what an erasure of tokens has made of one of a dataset.  Takes: index
and layout of that one, and the file in its place, of the same size.  Raises: InvalidCorpus."""

CHANGED = "changed while it was served"
"""How the problem of a dataset begins whose files changed, after its name."""


def run_inline(work: Callable[[], None]) -> None:
    """Call a function at once; a Submit."""
    work()


class Extents(NamedTuple):
    """Ranges of bytes of files, and where they go in the memory that is filled.

    file: int64[n], numbers of files (`Bytes.first_file`).  first_byte: int64[n], counted from the
    first token of its file.
    size_bytes: int64[n], at least 1; or one number, if all have it.  at: int64[n], ascending, where
    each goes; None: end to end.
    """

    file: Numbers
    first_byte: Numbers
    size_bytes: Numbers | int
    at: Numbers | None = None

    @property
    def sizes(self) -> Numbers:
        """int64[n], how many bytes each has."""
        if isinstance(self.size_bytes, int):
            return np.full(self.file.size, self.size_bytes)
        return self.size_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all of them."""
        if isinstance(self.size_bytes, int):
            return self.size_bytes * self.file.size
        return int(self.size_bytes.sum())

    @property
    def ends(self) -> Numbers:
        """int64[n], where each ends in the memory that is filled."""
        return np.cumsum(self.sizes) if self.at is None else self.at + self.sizes

    def last_bytes(self, content: ByteArray) -> ByteArray:
        """Return the last byte of each: uint8[n].  content: the memory that was filled."""
        if self.at is None and isinstance(self.size_bytes, int):
            return content[self.size_bytes - 1 :: self.size_bytes]
        return content[self.ends - 1]

    def gaps(self, target_bytes: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return the gaps before, between and behind them in a target of target_bytes bytes: int64
        arrays, how many extents are before each gap, where it begins and how many bytes it has.
        """
        if self.at is None:
            return (np.empty(0, dtype=np.int64),) * 3
        begins = np.concatenate([np.zeros(1, dtype=np.int64), self.ends])
        sizes = np.append(self.at, target_bytes) - begins
        before = np.flatnonzero(sizes)
        return before, begins[before], sizes[before]

    def sample(self) -> Extents:
        """Return a few of them, spread evenly over all."""
        return self.of(np.arange(0, self.file.size, max(1, -(-self.file.size // _EXTENTS_SAMPLED))))

    def of(self, places: Numbers) -> Extents:
        """Return some of them, end to end.  places: int64[m], which ones."""
        return Extents(self.file[places], self.first_byte[places], self.sizes[places])


class ReadCounts(NamedTuple):
    """What was read since the start.

    cold_reads: gathers that had to wait for storage.  advised_bytes: of which reading was started
    ahead.
    """

    cold_reads: int
    advised_bytes: int


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

    @property
    def tags(self) -> tuple[str, ...]:
        """Return what names its content, such as an ETag; none where a storage has nothing."""


class StoredShard(Protocol):
    """One file of a dataset, as an operator sees it."""

    @property
    def path(self) -> str:
        """Return its path, which errors name."""

    @property
    def place(self) -> str:
        """Return where it is: one place for all paths that lead to it by links."""

    @property
    def layout(self) -> Layout:
        """Return where its tokens are."""

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole file when it was opened."""


Joint = Callable[[Extents, ByteArray], "int | None"]
"""Gathers once, from files of any dataset that has the same Joint; the arguments are those of
`Bytes.gather`.

Returns: how often it had to wait for storage, which `observe` of these datasets is to hear; None if
the bytes may not be delivered: why is not examined.
"""


class Bytes(Protocol):
    """The bytes of the files of one dataset. All methods may be called from several threads at
    once, and hold no GIL while they copy or wait.

    kind: a value of --read, or that of another storage.  first_file: the number of its first file;
    those of the others follow.

    The files are those that were opened, even after one was replaced by rename. A file that is
    truncated or written to in place fails the dataset for good: every method that delivers bytes
    raises CorpusChanged. Failed reads are retried for about a second. Then they raise Unreadable,
    which ends only the call; or CorpusChanged, if the file's name is gone and no descriptor was
    kept, since nothing can tell then whether the file was truncated.
    """

    kind: str
    first_file: int

    @property
    def joint(self) -> Joint | None:
        """Return what gathers from these and other datasets by one call; None if nothing does."""

    @property
    def may_change(self) -> bool:
        """Return whether files may change, so that `poll_file` has to be called."""

    @property
    def shards(self) -> Sequence[StoredShard]:
        """Return its files, in order."""

    @property
    def facts(self) -> Sequence[FileFacts]:
        """Return what is known of each file, to detect a change; makes no call."""

    @property
    def memory_bytes(self) -> int:
        """Return how many bytes of memory a full preload needs; 0 if there is none."""

    # --- rows ---

    def gather(self, extents: Extents, target: ByteArray, patient: bool = True) -> None:
        """Write extents of its files into memory, and zeros into the gaps between them.

        target: uint8[m], C-contiguous, overwritten also if this raises.  patient: whether failed
        reads are retried before Unreadable is raised. If False, the cause is not examined: a
        truncated file is Unreadable too, so call again with True.
        Raises: CorpusChanged, Unreadable; then nothing of target may be delivered.
        """

    def advise(self, extents: Extents, due_seconds: float = 0.0) -> None:
        """Start to read what will be gathered soon, if it seems cold. Never waits.

        due_seconds: when the first of it will be needed, from now on, as far as that is known; for
        a storage that has to choose what to read first.
        """

    @property
    def holds_groups(self) -> bool:
        """Return whether `hold` has an effect: storage that fetches whole blocks, and has not room
        for all.
        """

    def require_room(self, extents: Extents) -> None:
        """Raise InvalidRequest if `hold` has not the room for extents."""

    def hold(self, owner: object, present: Extents, following: Extents) -> None:
        """Fetch extents that a stream reads until it comes to the next group of an order, and then
        those of that group, as far as there is room; keep them until it is called again for this
        owner, or there is none.

        owner: an object that is alive while the stream is.  present, following: of any size.
        """

    def read_ahead(self, extents: Extents) -> None:
        """Start to read what will be needed soon, whether cold or not. Never waits."""

    def seem_resident(self, extents: Extents) -> bool:
        """Return whether a sample of extents is in memory."""

    def ready_count(self, extents: Extents) -> int | None:
        """Return how many extents, from the first one on, can be gathered without a wait; None if
        that is not known.
        """

    def observe(self, waits: int) -> None:
        """Record how often a gather had to wait for storage."""

    @property
    def cold(self) -> bool:
        """Return whether gathers seem to wait for the disk or the network."""

    @property
    def read_counts(self) -> ReadCounts:
        """Return what was read since the start."""

    # --- content that is read once ---

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of a file, counted from its first token, without a gather: for any
        amount of bytes that is read once, before the dataset is served.

        Raises: InvalidCorpus if the file has changed or cannot be read.
        """

    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Like `read`, while the dataset is served; does not check the file first.

        Raises: CorpusChanged, Unreadable.
        """

    def bring_in(self) -> Iterator[int]:
        """Preload all of it, and yield how many bytes are in memory by now; those that need not be
        read count too.  Raises: CorpusChanged, Unreadable, OSError.
        """

    # --- changes ---

    @property
    def failed(self) -> bool:
        """Return whether the dataset has failed: it delivers nothing more."""

    def require_intact(self) -> None:
        """Raise CorpusChanged if the dataset has failed."""

    def mark_failed(self, reason: str, client_message: str = "") -> None:
        """Fail the dataset for good.

        reason: for the log.  client_message: for clients, if the reason is not a changed file.
        """

    def allow_replacement(self, is_erased_file: IsErasedFile) -> None:
        """Serve a file without its erased tokens in place of the opened one, once it is found; only
        before the dataset is served.
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

    def close(self) -> None:
        """Release everything. A gather in progress fails with CorpusChanged."""
