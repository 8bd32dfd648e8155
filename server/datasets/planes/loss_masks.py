"""Loss masks: which tokens of a dataset are training targets, in files of one byte per token.

X.ds.loss beside X.ds, as ingest and datatrove write it, is found by its name, and so are the masks
of OLMo-core and Megatron; --loss-mask names other files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.spans import Spans
from tokenfeed.stream import identity
from tokenfeed.stream.planes import LOSS_MASK
from tokenfeed.wire.row_block import Plane

from ...storage.bytes import PIECE_BYTES
from ...storage.door import StorageOptions, open_file
from ...storage.formats import FormatOptions, npy
from ...storage.formats.datatrove import SUFFIX
from ...storage.option_names import LOSS_MASK as MASK_OPTION
from ...storage.store import TokenStore, open_store
from ..content import Block, Content
from ..sources.paths import mask_of
from .plane_files import PlaneFiles, files_beside

_BYTES = FormatOptions.parse("raw", "uint8", None)
_ARRAYS = replace(FormatOptions.parse("npy", "uint8", None), are_flags=True)
_WRONG_BYTE = "has a loss mask with a byte that is neither 0 nor 1"


def mask_path(shard_path: str) -> str:
    """Return the path of a shard's mask, if it has one."""
    return f"{shard_path}.loss"


def masks_beside(paths: Sequence[str]) -> list[str]:
    """Return the mask next to each shard; as `files_beside`."""
    cure = f"mask, serve the files as two datasets, or name all masks: {MASK_OPTION}"
    return files_beside(paths, _names, LossMask.name, cure, MASK_OPTION)


def _names(path: str) -> Iterator[str]:
    if path.lower().endswith(SUFFIX):
        yield mask_path(path)
    if named := mask_of(path):
        yield named


def open_loss_mask(
    tokens: TokenStore,
    paths: Sequence[str],
    storage: StorageOptions,
    *,
    share: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> LossMask:
    """Open the masks of a dataset, check them, and compute the fingerprint of the plane.

    paths: of each file of tokens, in order.  share: as for `open_dataset`.  stopped: whether to
    stop, which raises InvalidCorpus.
    Raises: InvalidCorpus, with the file and the problem.
    """
    if len(paths) != len(tokens.shards):
        problem = f"{len(paths)} file(s) of masks do not match {len(tokens.shards)} of tokens"
        problem += f"; {MASK_OPTION} needs one for each, in their order"
        raise InvalidCorpus(paths[0], problem, MASK_OPTION)
    store = _open_files(tokens.name, paths, storage)
    return LossMask.checked(store, tokens, share=share, stopped=stopped)


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


class LossMask(PlaneFiles):
    """The loss mask of a dataset."""

    kind = LOSS_MASK
    name = "loss mask"
    entries = "byte"

    def read(self, spans: Spans, patient: bool = True) -> Plane:
        """Return the mask of the rows of spans: one bit per token, 0 in padding."""
        rows = self._rows(spans, patient)
        if rows.size and rows.max() > 1:
            self.store.files.mark_failed("a byte of its loss mask is neither 0 nor 1", _WRONG_BYTE)
            self._fail()
            self.store.require_intact()
        bits = np.packbits(rows.view(np.uint8), axis=1, bitorder="little")
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
                targets += self.store.files.read(index, first, size).count(1)
        share = f"{targets / read:.1%}"
        return f"about {share}, of a sample" if read < total else f"{targets:,} tokens, {share}"

    @classmethod
    def _blocks(
        cls,
        store: TokenStore,
        read: Callable[[int, int, int], bytes],
        stopped: Callable[[], bool],
    ) -> Iterable[Block]:
        return Content(store, read, stopped, "neither 0 nor 1, as in a loss mask").scan(2)
