"""NumpyBatches: rows -> (x, y) as NumPy arrays, for JAX, and where torch is not installed.

Knows nothing of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders

from ..device.host_transfer import WIDE, HostTransfer, WideRows, require_arrays_fit
from ..device.numpy_batch import NumpyRichBatch as NumpyRichBatch
from ..feed.epochs import Epoch
from ..feed.feed import Feed
from ..feed.mixture.recipe import Mixture
from ..feed.ranks.coordinates import Group
from ..runtime.arguments import shown
from ..stream.row_stream import PREFETCH_BYTES
from ..stream.wanted_planes import LossMask
from ..transport.addresses import Targets
from ..transport.credentials import Credentials
from ..transport.timeouts import DEFAULT_TIMEOUTS, Timeouts


class NumpyBatches(Feed[WideRows, NumpyRichBatch, Epoch[WideRows, NumpyRichBatch]]):
    """Batches of NumPy arrays from a tokenfeed server, or from local files. Does not need torch.

        for x, y in NumpyBatches("host:50051", 32, 2048, order="shuffled"):
            ...

    Yields (x, y): contiguous arrays of shape (batch_size, context_length); y is x shifted by one
    token. They are writable, and belong to the caller. Everything else is as for RemoteBatches,
    and both give the same tokens: a state of one of them loads into the other.

    For one consumer thread. Any thread may call `state_dict`, `history`, `position`, `stats` and
    `close`.
    """

    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int,
        *,
        dtype: npt.DTypeLike = np.int32,
        seed: int = 0,
        dataset: str | None = None,
        mixture: Mixture | Mapping[str, float] | None = None,
        fingerprint: str | None = None,
        order: str = orders.DEFAULT_OF_FEEDS,
        long: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: Group | None = None,
        loss_mask: LossMask = "apply",
        mask_borders: bool = False,
        start_step: int = 0,
        start_sample: int | None = None,
        num_batches: int | None = None,
        prefetch_bytes: int = PREFETCH_BYTES,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        credentials: Credentials | None = None,
        client_name: str | None = None,
    ) -> None:
        """Describe a stream of batches; does no I/O.

        dtype: of x and y, numpy.int32 (as JAX has it) or numpy.int64.
        rank, world_size: data-parallel coordinates. With JAX, and batches that are sharded over all
        processes, jax.process_index() and jax.process_count().
        All other arguments, and Raises: as for RemoteBatches, without device and x_dtype.
        """
        self._dtype = _checked(dtype)
        super().__init__(
            target,
            batch_size,
            context_length,
            seed=seed,
            dataset=dataset,
            mixture=mixture,
            fingerprint=fingerprint,
            order=order,
            long=long,
            rank=rank,
            world_size=world_size,
            group=group,
            loss_mask=loss_mask,
            mask_borders=mask_borders,
            start_step=start_step,
            start_sample=start_sample,
            num_batches=num_batches,
            prefetch_bytes=prefetch_bytes,
            timeouts=timeouts,
            credentials=credentials,
            client_name=client_name,
            rich_batch=NumpyRichBatch,
            epoch=Epoch,
        )

    def copy_into(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
        """Copy the next batch into the caller's arrays, such as shared memory.

        x, y: [batch_size, context_length], int64 or int32, contiguous and writable.
        Returns: False at the end, with both unchanged.
        Raises: InvalidRequest if shape, type or memory do not fit.
        """
        require_arrays_fit(self._shape, x, y)
        return self._next((x, y)) is not None

    def _transfer(self) -> HostTransfer:
        return HostTransfer(
            self._shape,
            self._dtype,
            self._dtype,
            self._masks,
            note=self._note(),
            argument="dtype",
        )


def _checked(dtype: npt.DTypeLike) -> np.dtype[np.signedinteger]:
    """Return the type of x and y.  Raises: InvalidRequest."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    for allowed in WIDE:
        if dtype is not None and found == allowed:
            return allowed
    raise InvalidRequest("dtype", f"{shown(dtype)} is neither numpy.int32 nor numpy.int64")
