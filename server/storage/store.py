"""What every store of tokens can do, whatever the tokens lie on.

The service, the dataset, the warm-up, `inspect` and `verify` know a store by this alone: neither
addresses nor descriptors. Sizes are tokens; how many bytes a row has is the store's own matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np

from tokenfeed.sampling.plan import Shape
from tokenfeed.sampling.spans import Spans
from tokenfeed.wire.row_block import RowBlock

from .formats import Layout, Stored
from .narrowing import Narrowing

# Whether a disk reads 2 GiB in pieces of 1 or 4 MiB makes no difference (1.0 to 1.7 GB/s), nor does
# its read_ahead_kb. 2 cores, 2026-11; docs/decisions/0006-warm-up.md.
PIECE_BYTES = 1 << 20

WAYS = ("map", "pread")
"""What --read calls the stores there are for local files; choice.py has them."""
Submit = Callable[[Callable[[], None]], None]
"""Calls what it is given, at once or in a thread of its own."""
SameContent = Callable[[], bool | None]
"""Reads a dataset anew and says whether it is what it was; None where it cannot be read now."""


def run_inline(work: Callable[[], None]) -> None:
    """Do some work, for whoever could have it done later."""
    work()


class StoredShard(Protocol):
    """One file of a store, as an operator knows it."""

    @property
    def path(self) -> str:
        """Return what errors call it."""

    @property
    def layout(self) -> Layout:
        """Return where its tokens lie."""


class Piece(NamedTuple):
    """A part that has been brought into memory.

    done_bytes: of all that is brought in, how much is there by now; bytes that are no tokens are
    counted as there, and need not be read.  content: the tokens of the part as they are stored, in
    the order of the files and with none left out, valid until the next piece is asked for; None
    where they were brought in without being read.
    """

    done_bytes: int
    content: memoryview | None = None


class TokenStore(Protocol):
    """The tokens of one dataset, for any number of threads at once.

    name: of the dataset.  shape: how many tokens each shard has.  stored: type of the tokens in the
    files.  narrowing: how they become served ones.  planes: fingerprint of each plane that there is
    beside the tokens, by its kind.

    What was opened is what is served. A file that is replaced by rename is served on; one that is
    cut short or written to in place ends the dataset for good: CorpusChanged, from every method
    that hands out tokens. What cannot be read is tried again for about a second, and then is
    Unreadable, which ends nothing but the call; or CorpusChanged, where the file's name is gone and
    no descriptor was kept, so that nobody can tell whether it was cut.
    """

    name: str
    shape: Shape
    stored: Stored
    narrowing: Narrowing
    planes: Mapping[int, bytes]

    @property
    def kind(self) -> str:
        """Return what --read calls such a store."""

    @property
    def shards(self) -> Sequence[StoredShard]:
        """Return its files, in order."""

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Return the type of the tokens as they are served: uint16 or uint32, little-endian."""

    @property
    def memory_bytes(self) -> int:
        """Return how much memory it takes to have all of it there."""

    def narrow(self, token_max: int) -> None:
        """Serve tokens in the narrowest type that holds this one. Only before it is served."""

    def gather(
        self, spans: Spans, planes: Sequence[int] = (), patient: bool = True
    ) -> AbstractContextManager[RowBlock]:
        """Lend the rows of spans, as they are served: tokens uint16 or uint32 [rows, row_tokens],
        the spans of a row end to end and the rest of it 0; and these planes of them.

        spans: any; their source is not looked at.  planes: kinds that this store has, ascending.
        patient: whether what cannot be read is tried again before it is Unreadable; if not, it is
        not asked why: a cut file is Unreadable too, so ask again patiently.
        The block is overwritten by later gathers once the with block ends.  Safe in any thread;
        holds no GIL while it waits or copies.
        Raises: CorpusChanged, Unreadable; then nothing of these rows is handed out.
        """

    def advise(self, spans: Spans) -> None:
        """Have rows that are gathered soon be read from now on, if the store seems to be cold.
        Never waits for them.
        """

    @property
    def cold(self) -> bool:
        """Return whether gathers seem to wait for the disk or the network."""

    def read_ahead(self, spans: Spans) -> None:
        """Have tokens be read that are asked for soon, cold or not. Never waits for them."""

    def read(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return token bytes of a shard, counted from its first token, read around the gather: for
        what is read once, before anything is served, however large it is.

        Raises: InvalidCorpus if the file is not as it was, or cannot be read.
        """

    def read_served(self, shard: int, first_byte: int, size_bytes: int) -> bytes:
        """Return what `read` does, of what is being served; looks at no file.  Raises:
        CorpusChanged, Unreadable.
        """

    @property
    def failed(self) -> bool:
        """Return whether nothing of it is handed out any more."""

    def require_intact(self) -> None:
        """Raise CorpusChanged if a file was ever found cut short or written to."""

    def poll_file(self, shard: int, same_content: SameContent, submit: Submit) -> None:
        """Look at what has become of a file; waits for its turn (looks.py).

        One written to in place loses the dataset; others cost a warning, or are read anew: by
        same_content, called by what later is given.
        """

    def unchanged_since(self, facts: Sequence[object], stopped: Callable[[], bool]) -> bool:
        """Say whether all files are now as these facts say, which were `facts` before; waits for
        its turns. Where stopped() is true, the answer is False.
        """

    @property
    def facts(self) -> Sequence[object]:
        """Return what is known of each file, by which a change shows; costs no look at them."""

    def bring_in(self) -> Iterator[Piece]:
        """Bring all of it into memory, a piece at a time.  Raises: CorpusChanged, Unreadable,
        OSError.
        """

    @property
    def digest_path(self) -> str:
        """Return where its digest is kept."""

    def kept_digest(self) -> bytes:
        """Return the digest that somebody kept of these files, 32 bytes; b"" if nobody did."""

    def keep_digest(self, digest: bytes) -> str:
        """Keep a digest, whole or not at all, and return where.  Raises: OSError."""

    def close(self) -> None:
        """Give everything back. A gather still under way fails with CorpusChanged."""
