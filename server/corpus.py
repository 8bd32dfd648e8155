"""The files of one dataset, mapped once, and the gather that reads windows from them.

The only module that maps token files. All files lie in one reserved address range,
page-aligned and in order, and their descriptors are closed again: 10,000 shards cost 10,000 map
entries and not one descriptor.

The gather never touches the map in user space. A file cut short under a map kills the process that
reads beyond its new end; the kernel's own copy out of the map reports an error instead
(docs/decisions/0003-gather.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import BadCorpus, CorpusChanged
from tokenfeed.plan import Windows

from . import kernel
from .blame import file_name
from .files import open_file, size_on_disk
from .formats import Asked, Stored
from .narrowing import Narrowing
from .scratch import Scratch, ScratchPool, Tokens
from .shard import Fate, Shard

_LOG = logging.getLogger("tokenfeed.server")
_CHANGED = "changed while it was served; restart its server on complete files"


def at_once(work: Callable[[], None]) -> None:
    """Do some work, for whoever could have it done later."""
    work()


class Corpus:
    """A dataset's files as one range of memory.

    stored: type of the tokens in the files.  narrowing: how they become served ones.
    token_counts: int64[files].  shards: as they were opened.
    """

    def __init__(self, name: str, paths: Sequence[str], asked: Asked) -> None:
        """Map every file, read-only.  Raises: BadCorpus, naming the file and what is wrong with
        it.
        """
        self.name = name
        spans = [_pages_bytes(size_on_disk(path)) for path in paths]
        self._span_bytes = sum(spans)
        self._address = _reserve(paths[0], self._span_bytes)
        firsts = self._address + np.cumsum([0, *spans[:-1]])
        self.shards = [
            _map(path, asked, address, span)
            for path, address, span in zip(paths, firsts.tolist(), spans, strict=True)
        ]
        self.stored = _one_kind(self.shards)
        self.narrowing = Narrowing(self.stored)
        kernel.expect_random_access(self._address, self._span_bytes)
        self.token_counts = np.array(
            [shard.layout.token_count for shard in self.shards], dtype=np.int64
        )
        self._token_addresses = firsts + np.array(
            [shard.layout.first_byte for shard in self.shards], dtype=np.int64
        )
        tails = [shard.tail for shard in self.shards]
        self._witness_addresses = firsts + np.array([tail.witness_byte for tail in tails])
        self._witness_values = np.array([tail.witness_value for tail in tails], dtype=np.uint8)
        self._scratch = ScratchPool()
        self._lost = ""
        self._warned: set[int] = set()
        self._rereading = False

    @property
    def span(self) -> tuple[int, int]:
        """Address of the range that all files lie in, and its length in bytes, both whole pages."""
        return self._address, self._span_bytes

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Of the tokens as they are served: uint16 or uint32, little-endian."""
        return self.narrowing.served

    def narrow(self, token_max: int) -> None:
        """Serve tokens in the narrowest type that holds this one."""
        self.narrowing = Narrowing(self.stored, token_max)

    def ranges(self, windows: Windows, row_bytes: int) -> kernel.Ranges:
        """Return where windows lie in memory, uint64[n, 2]: address and length in bytes.

        row_bytes: of a row as it is served.
        """
        return _ranges(
            self._token_addresses[windows.shard] + windows.token_offset * self.stored.itemsize,
            self.narrowing.stored_bytes(row_bytes),
        )

    @contextmanager
    def gather(self, windows: Windows, row_bytes: int) -> Iterator[Tokens]:
        """Lend the tokens of windows, one row after another, as they are served: uint8[n *
        row_bytes].

        row_bytes: of a row as it is served.  The array is overwritten by later gathers once the
        with block ends. Safe in any thread; holds no GIL while it copies.
        Raises: CorpusChanged if a file was cut short, or has a token that cannot be: then nothing
        of these rows is handed out.
        """
        self.require_intact()
        stored_bytes = self.narrowing.stored_bytes(row_bytes)
        # Beside the rows there is room for the witnesses, at most one a row.
        with self._scratch.lend(windows.shard.size * (stored_bytes + 1)) as scratch:
            complete = scratch.fill(self.ranges(windows, row_bytes))
            if not complete or self._cut_within(windows, scratch, stored_bytes):
                self._lose("a gather met a file that was cut short, or that cannot be read")
            # Once more: if the corpus was closed meanwhile, something else may be mapped there.
            self.require_intact()
            yield self._served(windows, scratch.content[: windows.shard.size * stored_bytes])

    def look(
        self,
        same_content: Callable[[], bool],
        later: Callable[[Callable[[], None]], None] = at_once,
    ) -> None:
        """Look at every file: one written to in place loses the dataset, others cost a warning.

        same_content: reads the corpus anew, and says whether it is what it was.  later: calls what
        it is given, which calls that.
        """
        touched = []
        for index, shard in enumerate(self.shards):
            fate = shard.fate()
            if fate is Fate.WRITTEN and not self._lost:
                self._lose(f"{file_name(shard.path)}: {fate.value}")
            elif fate in (Fate.TOUCHED, Fate.GROWN):
                touched.append(index)
            if fate in (Fate.REPLACED, Fate.GROWN) and index not in self._warned:
                self._warned.add(index)
                _LOG.warning(
                    "file dataset=%s name=%s: %s", self.name, file_name(shard.path), fate.value
                )
        if touched and not self._lost and not self._rereading:
            # As they are now: what is written while they are read is seen the next time.
            seen = {index: self.shards[index].as_it_is() for index in touched}
            for index, shard in seen.items():
                self.shards[index] = shard
            self._rereading = True
            later(partial(self._reread, touched, same_content))

    def _reread(self, touched: Sequence[int], same_content: Callable[[], bool]) -> None:
        """Lose the dataset unless its content is the same."""
        try:
            if not same_content():
                names = ", ".join(file_name(self.shards[index].path) for index in touched)
                self._lose(f"{names}: written to in place, whatever its time says")
        finally:
            self._rereading = False

    @property
    def lost(self) -> bool:
        """Whether nothing of it is handed out any more."""
        return bool(self._lost)

    def require_intact(self) -> None:
        """Raise CorpusChanged if a file was ever found cut short or written to."""
        if self._lost:
            raise CorpusChanged("dataset", f"{self.name!r} {self._lost}")

    def close(self) -> None:
        """Unmap the files. A gather still under way fails with CorpusChanged."""
        if self._span_bytes:
            self._lost = _CHANGED
            kernel.unmap(self._address, self._span_bytes)
            self._span_bytes = 0
            self._scratch.close()

    def _lose(self, reason: str, told: str = "") -> None:
        """Hand out nothing more of this dataset: half a corpus is another corpus.

        reason: for the log.  told: to clients, where it is not that its files changed.
        """
        self._lost = told or _CHANGED
        _LOG.error("lost dataset=%s: %s", self.name, reason)

    def _served(self, windows: Windows, content: Tokens) -> Tokens:
        """Return stored rows as they are served.  Raises: CorpusChanged."""
        if self.narrowing.is_copy:
            return content
        tokens = content.view(self.stored)
        wrong = self.narrowing.look(tokens).wrong_place
        if wrong is not None:
            row, place = divmod(wrong, tokens.size // windows.shard.size)
            self._lose(
                f"{file_name(self.shards[windows.shard[row]].path)}: token "
                f"{windows.token_offset[row] + place} is {tokens[wrong]}, which cannot be served; "
                "without --vocab-size, or with --check-all-tokens, it would be found at the start",
                "has a token that cannot be served; the log of its server says where",
            )
            self.require_intact()
        return self.narrowing.serve(tokens).view(np.uint8)

    def _cut_within(self, windows: Windows, scratch: Scratch, row_bytes: int) -> bool:
        """Say whether a row may have run over the end of a file that was cut within a page.

        The rest of that page reads as zeros, without an error; then the row's last byte is 0 as
        well, if the file system takes away the pages beyond the cut before it clears the rest of
        the page with the cut, as ext4 and tmpfs do (docs/decisions/0003-gather.md says where it
        does not). So only files with a row that ends in 0 are suspect, and each has a witness: its
        last byte that is not 0. After a cut before it, it is gone or 0; a cut behind it has only
        taken zeros. Asking for the size of every file of every frame would cost a third of a frame.
        """
        end = windows.shard.size * row_bytes
        suspects = np.unique(windows.shard[scratch.content[row_bytes - 1 : end : row_bytes] == 0])
        if not suspects.size:
            return False
        known = self._witness_values[suspects]
        if not scratch.fill(_ranges(self._witness_addresses[suspects], 1), first_byte=end):
            return True
        if (scratch.content[end : end + suspects.size] != known).any():
            return True
        # Where a file ends in nothing but zeros, only the file system can tell.
        return any(
            self.shards[index].fate() is Fate.WRITTEN for index in suspects[known == 0].tolist()
        )


def _map(path: str, asked: Asked, address: int, span_bytes: int) -> Shard:
    with open_file(path) as file:
        shard = Shard.describe(file, asked)
        if _pages_bytes(shard.size_bytes) != span_bytes:
            raise BadCorpus(
                path, "changed while it was being opened; start again when it is complete"
            )
        try:
            kernel.map_file(address, file.descriptor, shard.size_bytes)
        except OSError as error:
            cure = "a process maps at most vm.max_map_count files (65530 by default)"
            raise BadCorpus(path, f"cannot be mapped: {error.strerror}; {cure}") from error
        return shard


def _one_kind(shards: Sequence[Shard]) -> Stored:
    """Return the type of their tokens.  Raises: BadCorpus if not all are of one kind."""
    first = shards[0]
    for shard in shards:
        one, other = first.layout, shard.layout
        if (one.format, one.dtype) != (other.format, other.dtype):
            what = [f"{layout.format} ({layout.dtype.name})" for layout in (one, other)]
            raise BadCorpus(
                shard.path,
                f"is {what[1]}, and {first.path} is {what[0]}: a dataset's files are of one kind",
            )
    return first.layout.dtype


def _reserve(path: str, span_bytes: int) -> int:
    try:
        return kernel.reserve(span_bytes)
    except OSError as error:
        raise BadCorpus(path, f"{span_bytes} bytes cannot be mapped: {error.strerror}") from error


def _ranges(addresses: npt.NDArray[np.int64], size_bytes: int) -> kernel.Ranges:
    ranges = np.empty((addresses.size, 2), dtype=np.uint64)
    ranges[:, 0] = addresses
    ranges[:, 1] = size_bytes
    return ranges


def _pages_bytes(size_bytes: int) -> int:
    return -(-size_bytes // kernel.PAGE_BYTES) * kernel.PAGE_BYTES
