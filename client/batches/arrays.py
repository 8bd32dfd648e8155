"""NumpyBatches: rows -> (x, y) as NumPy arrays, for JAX, and where torch is not installed.

Knows nothing of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest

from ..device.host_transfer import WIDE, HostTransfer, WideRows, require_arrays_fit
from ..device.numpy_batch import NumpyRichBatch as NumpyRichBatch
from ..feed.epochs import Epoch
from ..feed.feed import Feed
from ..feed.feed_stream import FeedStream
from ..feed.options import FeedOptions, Option, checked, takes
from ..runtime.arguments import shown
from ..transport.addresses import Targets

if TYPE_CHECKING:
    from typing import Unpack


def _wide(name: str, value: npt.DTypeLike) -> np.dtype[np.signedinteger]:
    try:
        found = np.dtype(value)
    except TypeError:
        found = None
    for allowed in WIDE:
        if value is not None and found == allowed:
            return allowed
    raise InvalidRequest(name, f"{shown(value)} is neither numpy.int32 nor numpy.int64")


class NumpyOptions(FeedOptions, total=False):
    """The arguments of NumpyBatches."""

    dtype: Annotated[
        npt.DTypeLike,
        Option(np.int32, _wide, "is that of x and y: numpy.int32 (as JAX has it) or numpy.int64."),
    ]


class NumpyBatches(Feed[WideRows, NumpyRichBatch, Epoch[WideRows, NumpyRichBatch]]):
    """Batches of NumPy arrays from a tokenfeed server, or from local files. Does not need torch.

        for x, y in NumpyBatches("host:50051", 32, 2048, order="shuffled"):
            ...

    Yields (x, y): contiguous arrays of shape (batch_size, context_length); y is x shifted by one
    token. The arrays are writable, and belong to the caller. In all other respects a NumpyBatches
    is like a RemoteBatches. The two classes give the same tokens, and a state of one of them loads
    into the other.

    Only one thread can iterate over a feed. Any thread can call `state_dict`, `history`,
    `position`, `stats` and `close`.
    """

    @takes(NumpyOptions)
    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int | Mapping[int | str, int],
        **options: Unpack[NumpyOptions],
    ) -> None:
        """Describe a stream of batches; does no I/O.

        target, batch_size and context_length mean what they do for RemoteBatches, and the same
        errors are raised. With JAX, and batches that are sharded over all processes, pass
        rank=jax.process_index() and world_size=jax.process_count().
        """
        own = checked(NumpyOptions, options, "NumpyBatches")
        self._dtype = _wide("dtype", own["dtype"])
        super().__init__(
            target, batch_size, context_length, own, rich_batch=NumpyRichBatch, epoch=Epoch
        )

    def copy_into(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
        """Copy the next batch into the caller's arrays, such as shared memory.

        x, y: [batch_size, context_length], int64 or int32, contiguous and writable.
        Returns: True, or False if the feed has ended; x and y are then unchanged.
        Raises: InvalidRequest if an array has another shape or type, or is not contiguous and
        writable.
        """
        require_arrays_fit(self._shape, x, y)
        return self._next(self._plain, (x, y)) is not None

    def _transfer(self, stream: FeedStream, rows: int) -> HostTransfer:
        return HostTransfer(
            (rows, stream.context_length),
            self._dtype,
            self._dtype,
            stream.masks,
            note=self._note(stream),
            argument="dtype",
        )
