"""Loss masks: which tokens of a dataset are training targets, in files of one byte per token.

X.ds.loss beside X.ds, as ingest and datatrove write it, is found by its name, and so are the masks
of OLMo-core and Megatron; --loss-mask names other files. They are opened, checked for changes and
read like token files, at the same places as the tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tokenfeed.errors import CorpusChanged, InvalidCorpus, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream import identity
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.wire.row_block import Plane

from ..storage.choice import Storing, fit_into_maps, open_store
from ..storage.files import open_file
from ..storage.formats import FormatOptions, npy
from ..storage.formats.datatrove import SUFFIX
from ..storage.store import PIECE_BYTES, Submit, TokenStore, run_inline
from .content import Content
from .sources.paths import mask_of

OPTION = "--loss-mask"
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
        bare = paths[found.index("")]
        cure = f"restore its mask, serve the files as two datasets, or name all masks: {OPTION}"
        problem = f"has no loss mask, but another file of the dataset has one ({masks[0]}); {cure}"
        raise InvalidCorpus(bare, problem)
    return masks


def _mask_beside(path: str) -> str:
    # Only of a link: to resolve a path costs a call for each of its folders.
    for place in (path, os.path.realpath(path)) if os.path.islink(path) else (path,):
        if place.lower().endswith(SUFFIX) and os.path.lexists(mask_path(place)):
            return mask_path(place)
        if (named := mask_of(place)) and os.path.lexists(named):
            return named
    return ""


def open_loss_mask(
    tokens: TokenStore,
    paths: Sequence[str],
    storing: Storing,
    stopped: Callable[[], bool] = lambda: False,
) -> LossMask:
    """Open the masks of a dataset, check them, and compute the fingerprint of the plane.

    paths: of each file of tokens, in order.  stopped: whether to stop, which raises InvalidCorpus.
    Raises: InvalidCorpus, with the file and the problem.
    """
    if len(paths) != len(tokens.shards):
        problem = f"{len(paths)} file(s) of masks do not match {len(tokens.shards)} of tokens"
        raise InvalidCorpus(paths[0], f"{problem}; {OPTION} needs one for each, in their order")
    store = _open_files(tokens.name, paths, storing)
    try:
        for mask, shard in zip(store.shards, tokens.shards, strict=True):
            if (count := mask.layout.token_count) != shard.layout.token_count:
                raise InvalidCorpus(
                    mask.path,
                    f"is a loss mask of {count} bytes, but {shard.path} has "
                    f"{shard.layout.token_count} tokens; a mask has one byte per token. Move it "
                    "away if it is none",
                )
        return LossMask(store, tokens, _fingerprint(store, store.read, stopped))
    except BaseException:
        store.close()
        raise


def _open_files(name: str, paths: Sequence[str], storing: Storing) -> TokenStore:
    """Open the masks of a dataset; by pread if there is no room for their maps.

    Raises: InvalidCorpus.
    """
    with open_file(paths[0]) as first:
        options = _ARRAYS if npy.matches(first) else _BYTES
    if options is _ARRAYS:
        _require_flags(paths)
    if storing.read is not None or fit_into_maps(len(paths)):
        return open_store(name, paths, options, storing)[0]
    try:
        return open_store(name, paths, options, replace(storing, read="pread"))[0]
    except InvalidCorpus as error:
        # Maps are what there is no room for.
        problem = error.problem.replace("pass --read map", "raise vm.max_map_count")
        raise InvalidCorpus(error.subject, problem) from None


def _require_flags(paths: Sequence[str]) -> None:
    """Raise InvalidCorpus if an array has more than one byte for each token."""
    for path in paths:
        with open_file(path) as file:
            if npy.matches(file) and (dtype := npy.layout(file, _ARRAYS).dtype).itemsize > 1:
                problem = f"is taken for a loss mask, but has {dtype.name}; save it as bool"
                raise InvalidCorpus(path, f"{problem}, or move it away")


class LossMask:
    """The loss mask of a dataset; a PlaneReader, whose files are polled.

    fingerprint: of the plane, 32 bytes.  store: its files.
    """

    kind = LOSS_MASK

    def __init__(self, store: TokenStore, tokens: TokenStore, fingerprint: bytes) -> None:
        """Take opened files.  tokens: of the same dataset, which fails if the mask fails."""
        self.store = store
        self.fingerprint = fingerprint
        self._tokens = tokens
        self._is_used = False

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Return the mask of the rows of spans: one bit per token, 0 in padding."""
        self._is_used = True
        try:
            content = self.store.gather_stored(spans, patient)
        except CorpusChanged:
            self._fail()
            raise
        if content.size and content.max() > 1:
            self.store.mark_failed("a byte of its loss mask is neither 0 nor 1", _WRONG_BYTE)
            self._fail()
            self.store.require_intact()
        if spans.are_windows:
            rows = content.reshape(len(spans), spans.row_tokens)
        else:
            rows = np.empty((len(spans), spans.row_tokens), dtype=np.uint8)
            spans.lay_out(content, rows)
        bits = np.packbits(rows, axis=1, bitorder="little")
        lengths = np.full(len(spans), bits.shape[1], dtype=np.uint32)
        return Plane(self.kind, lengths, bits.reshape(-1))

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
                targets += self.store.read(index, first, size).count(1)
        share = f"{targets / read:.1%}"
        return f"about {share}, of a sample" if read < total else f"{targets:,} tokens, {share}"

    @property
    def cold(self) -> bool:
        """Whether reads seem to wait; not before the first one, as perhaps no client wants it."""
        return self._is_used and self.store.cold

    def advise(self, spans: Spans) -> None:
        """Start to read rows that will be read soon, if they seem cold."""
        self.store.advise(spans)

    @property
    def file_count(self) -> int:
        """How many files to poll."""
        return len(self.store.shards)

    def poll_file(
        self,
        index: int,
        submit: Submit = run_inline,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check one of its files for changes; as `Dataset.poll_file`."""
        self.store.poll_file(index, partial(self._same_content, stopped), submit)
        if self.store.failed:
            self._fail()

    def close(self) -> None:
        """Close its files."""
        self.store.close()

    def _same_content(self, stopped: Callable[[], bool]) -> bool | None:
        """Return whether the content that the fingerprint covers is unchanged; None if it cannot be
        read now.
        """
        try:
            found = _fingerprint(self.store, self.store.read_served, stopped)
        except CorpusChanged:
            return False
        except Unreadable:
            return None
        except InvalidCorpus:
            return stopped()  # nothing is served any more; else a byte is wrong
        return found == self.fingerprint

    def _fail(self) -> None:
        if not self._tokens.failed:
            self._tokens.mark_failed("its loss mask has failed")


def _fingerprint(
    store: TokenStore,
    read: Callable[[int, int, int], bytes],
    stopped: Callable[[], bool],
) -> bytes:
    """Return the fingerprint of the plane.  Raises: InvalidCorpus, also once stopped() is true."""
    content = Content(store, read, stopped, "neither 0 nor 1, as in a loss mask")
    hashes = [block.sha256 for block in content.scan(2)]
    return identity.plane_fingerprint(LOSS_MASK, store.shape.token_counts.tolist(), hashes)
