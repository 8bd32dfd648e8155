"""Loss masks: which tokens of a dataset are training targets, in files of one byte per token.

X.ds.loss beside X.ds, as ingest and datatrove write it, is found by its name, and so are the masks
of OLMo-core and Megatron; --loss-mask names other files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import CorpusChanged, InvalidCorpus, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream import identity
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.wire.row_block import Plane

from ...storage.bytes import PIECE_BYTES, Submit, run_inline
from ...storage.door import StorageOptions, door_of, open_file
from ...storage.formats import FormatOptions, npy
from ...storage.formats.datatrove import SUFFIX
from ...storage.option_names import LOSS_MASK as MASK_OPTION
from ...storage.store import TokenStore, open_store
from ..content import Content
from ..sources.paths import mask_of

_BYTES = FormatOptions.parse("raw", "uint8", None)
_ARRAYS = replace(FormatOptions.parse("npy", "uint8", None), are_flags=True)
_WRONG_BYTE = "has a loss mask with a byte that is neither 0 nor 1"


def mask_path(shard_path: str) -> str:
    """Return the path of a shard's mask, if it has one."""
    return f"{shard_path}.loss"


def masks_beside(paths: Sequence[str]) -> list[str]:
    """Return the mask next to each shard, or next to the target of a link; none if no shard has
    one.

    Raises: InvalidCorpus if only some shards have one.
    """
    found = [_mask_beside(path) for path in paths]
    masks = [path for path in found if path]
    if masks and len(masks) < len(found):
        problem = f"has no loss mask, but another file of the dataset has one ({masks[0]})"
        cure = "restore its mask, serve the files as two datasets, or name all masks"
        path = paths[found.index("")]
        raise InvalidCorpus(path, f"{problem}; {cure}: {MASK_OPTION}", MASK_OPTION)
    return masks


def _mask_beside(path: str) -> str:
    # Only of a link: to resolve a path costs a call for each of its folders.
    door = door_of(path)
    for place in (path, door.real(path)) if door.is_link(path) else (path,):
        for each in _names(place):
            if door.exists(each):
                return each
    return ""


def _names(path: str) -> Iterator[str]:
    if path.lower().endswith(SUFFIX):
        yield mask_path(path)
    if named := mask_of(path):
        yield named


def open_loss_mask(
    tokens: TokenStore,
    paths: Sequence[str],
    storage: StorageOptions,
    stopped: Callable[[], bool] = lambda: False,
) -> LossMask:
    """Open the masks of a dataset, check them, and compute the fingerprint of the plane.

    paths: of each file of tokens, in order.  stopped: whether to stop, which raises InvalidCorpus.
    Raises: InvalidCorpus, with the file and the problem.
    """
    if len(paths) != len(tokens.shards):
        problem = f"{len(paths)} file(s) of masks do not match {len(tokens.shards)} of tokens"
        problem += f"; {MASK_OPTION} needs one for each, in their order"
        raise InvalidCorpus(paths[0], problem, MASK_OPTION)
    store = _open_files(tokens.name, paths, storage)
    try:
        for own, shard in zip(store.shards, tokens.shards, strict=True):
            if (count := own.layout.token_count) != shard.layout.token_count:
                raise InvalidCorpus(
                    own.path,
                    f"is a loss mask of {count} bytes, but {shard.path} has "
                    f"{shard.layout.token_count} tokens; a mask has one byte per token. Move it "
                    "away if it is none",
                )
        return LossMask(store, tokens, _fingerprint_of(store, store.files.read, stopped))
    except BaseException:
        store.close()
        raise


def _open_files(name: str, paths: Sequence[str], storage: StorageOptions) -> TokenStore:
    """Open the masks of a dataset.  Raises: InvalidCorpus."""
    with open_file(paths[0]) as first:
        options = _ARRAYS if npy.matches(first) else _BYTES
    if options is _ARRAYS:
        _require_flags(paths)
    return open_store(name, paths, options, replace(storage, are_beside=True))[0]


def _require_flags(paths: Sequence[str]) -> None:
    """Raise InvalidCorpus if an array has more than one byte for each token."""
    for path in paths:
        with open_file(path) as file:
            if npy.matches(file) and (dtype := npy.layout(file, _ARRAYS).dtype).itemsize > 1:
                problem = f"is taken for a loss mask, but has {dtype.name}; save it as bool"
                raise InvalidCorpus(path, f"{problem}, or move it away")


def _fingerprint_of(
    store: TokenStore, read: Callable[[int, int, int], bytes], stopped: Callable[[], bool]
) -> bytes:
    """Return the fingerprint of the plane, 32 bytes.

    read: `read` or `read_served` of the store.  stopped: whether to stop, which raises
    InvalidCorpus.  Raises: InvalidCorpus if a byte is neither 0 nor 1.
    """
    content = Content(store, read, stopped, "neither 0 nor 1, as in a loss mask")
    hashes = [block.sha256 for block in content.scan(2)]
    return identity.plane_fingerprint(LOSS_MASK, store.shape.token_counts.tolist(), hashes)


class LossMask:
    """The loss mask of a dataset, in a file for each of its files of tokens; a PlaneReader, whose
    files are polled.

    kind: its field number in Frame.  name: to people.  store: its files.  fingerprint: of the
    plane, 32 bytes.
    """

    kind = LOSS_MASK
    name = "loss mask"

    def __init__(self, store: TokenStore, tokens: TokenStore, fingerprint: bytes) -> None:
        """Take opened files.  tokens: of the same dataset, which fails if these fail."""
        self.store = store
        self.fingerprint = fingerprint
        self._tokens = tokens
        self._is_used = False

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Return the mask of the rows of spans: one bit per token, 0 in padding.

        Raises: CorpusChanged, Unreadable.
        """
        rows = self._rows(spans, patient)
        if rows.size and rows.max() > 1:
            self.store.files.mark_failed("a byte of its loss mask is neither 0 nor 1", _WRONG_BYTE)
            self._fail()
            self.store.require_intact()
        bits = np.packbits(rows, axis=1, bitorder="little")
        lengths = np.full(len(spans), bits.shape[1], dtype=np.uint32)
        return Plane(self.kind, lengths, bits.reshape(-1))

    def _rows(self, spans: Spans, patient: bool) -> npt.NDArray[np.uint8]:
        """Return the bytes of the rows of spans as they are stored, [rows, row_tokens]; 0 in
        padding.
        """
        self._is_used = True
        try:
            content = self.store.gather_stored(spans, patient)
        except CorpusChanged:
            self._fail()
            raise
        if spans.are_windows:
            return content.reshape(len(spans), spans.row_tokens)
        rows = np.empty((len(spans), spans.row_tokens), dtype=np.uint8)
        spans.lay_out(content, rows)
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
            found = _fingerprint_of(self.store, self.store.files.read_served, stopped)
        except CorpusChanged:
            return False
        except Unreadable:
            return None
        except InvalidCorpus:
            return stopped()  # nothing is served any more; else a byte is wrong
        return found == self.fingerprint

    def _fail(self) -> None:
        if not self._tokens.files.failed:
            self._tokens.files.mark_failed(f"its {self.name} has failed")

    def targets_in_words(self) -> str:
        """Return how many tokens are targets; of masks above 1 GiB, what share of a sample."""
        total, step, file_step = self.store.shape.token_count, PIECE_BYTES, 1
        if total > identity.COMPLETE_BYTES_MAX:
            # Of each file it reads one piece at least, so of 10,000 files only some.
            step *= -(-total // identity.COMPLETE_BYTES_MAX)
            files_max = identity.COMPLETE_BYTES_MAX // PIECE_BYTES
            file_step = -(-len(self.store.shards) // files_max)
        read = targets = 0
        for index in range(0, len(self.store.shards), file_step):
            shard = self.store.shards[index]
            for first in range(0, shard.layout.token_count, step):
                size = min(PIECE_BYTES, shard.layout.token_count - first)
                read += size
                targets += self.store.files.read(index, first, size).count(1)
        share = f"{targets / read:.1%}"
        return f"about {share}, of a sample" if read < total else f"{targets:,} tokens, {share}"
