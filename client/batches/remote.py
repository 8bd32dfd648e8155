"""RemoteBatches: rows -> (x, y) as tensors on the device, prefetched and resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, TypedDict

import torch
from torch.utils.data import IterableDataset

from tokenfeed.errors import InvalidRequest

from ..device.host_transfer import Transfer
from ..device.loaders import require_own_batches
from ..device.rich_batch import RichBatch as RichBatch
from ..device.transfer import indexed, transfer_for, usable_device
from ..device.widening import WIDE_NUMPY, Batch, require_fits
from ..feed.epochs import Epoch
from ..feed.feed import Feed
from ..feed.feed_stream import FeedStream
from ..feed.options import FeedOptions, Option, checked, takes, unchecked
from ..transport.addresses import Targets

if TYPE_CHECKING:
    from typing import Unpack


def _wide(name: str, value: torch.dtype) -> torch.dtype:
    if value not in WIDE_NUMPY:
        raise InvalidRequest(name, f"{value} is neither torch.int64 nor torch.int32")
    return value


class DeviceOptions(TypedDict, total=False):
    """The arguments of feeds of tensors."""

    device: Annotated[torch.device | str, Option("cpu", unchecked, "is where x and y arrive.")]
    x_dtype: Annotated[
        torch.dtype, Option(torch.int64, _wide, "is torch.int64 or torch.int32; y is int64.")
    ]


class RemoteOptions(DeviceOptions, FeedOptions, total=False):
    """The arguments of RemoteBatches."""


class RemoteBatches(Feed[torch.Tensor, RichBatch, "TorchEpoch"], IterableDataset[Batch]):
    """Batches from a tokenfeed server, or from local files.

        for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0", order="shuffled"):
            ...

    Yields (x, y): contiguous integer tensors of shape (batch_size, context_length) on device; y is
    x shifted by one token, and int64. The tensors belong to the caller. The feed is an iterator: a
    second `for` continues after the last delivered batch. The feed sends no request before the
    first `next`; from then on a thread prefetches batches. `close()`, or the end of a `with` block,
    stops this thread.

    Only one thread can iterate over a feed. Any thread can call `state_dict`, `history`,
    `position`, `stats` and `close`.
    """

    @takes(RemoteOptions)
    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int | Mapping[int | str, int],
        **options: Unpack[RemoteOptions],
    ) -> None:
        """Describe a stream of batches; does no I/O.

        target is "HOST:PORT" or "unix:PATH", or several servers of the same corpus (replicas): a
        sequence of these, or "dns:///HOST:PORT" for all addresses of a name. Or it names local
        files, which this process reads without a server: "file:PATH", where PATH is a file, a glob
        or a folder; "file:a.bin,b.bin" is one corpus, "file:web=web/,code=code/" are two. Or it
        names objects in an object store: "s3://BUCKET/KEY", "gs://BUCKET/KEY",
        "az://CONTAINER/KEY", "https://HOST/PATH".
        batch_size counts rows per rank, in [1, 2^20].
        context_length counts tokens of x in a row, in [1, longest file). A mapping such as {0:
        4096, "2e11 tokens": 32768} changes the length during the run, from the given samples or
        numbers of tokens on, as change_context_length does; the number of tokens in a batch stays
        the same.

        Raises: InvalidRequest, SamplesExhausted or NotFound (order), naming the argument and its
        limit. Iterating raises RequestError if the server refuses the request, CorpusError if the
        files of the server cannot be used, and Unreachable after timeouts.reconnect_seconds without
        an answer.
        """
        own = checked(RemoteOptions, options, "RemoteBatches")
        # Before the feed is counted as one that all ranks have.
        self._device = usable_device(own["device"])
        self._x_dtype = own["x_dtype"]
        super().__init__(
            target, batch_size, context_length, own, rich_batch=RichBatch, epoch=TorchEpoch
        )

    def __iter__(self) -> RemoteBatches:
        """Return this iterator itself: each `for` continues where the last one stopped.

        Raises: InvalidRequest for a loader that would turn these batches into others.
        """
        require_own_batches(self._request.position.world_size, is_restored=self._cursor.restored)
        return self

    def copy_into(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Copy the next batch into the caller's tensors, such as the static inputs of a CUDA graph.

        x, y: [batch_size, context_length], int64 or int32, on the feed's device.  On CUDA the copy
        is enqueued on the current stream.
        Returns: True, or False if the feed has ended; x and y are then unchanged.
        Raises: InvalidRequest if a tensor has another shape, type or device.
        """
        self._device = indexed(self._device)
        for name, tensor in (("x", x), ("y", y)):
            require_fits(name, tensor, self._shape, self._device)
        first, second = sorted((x, y), key=torch.Tensor.data_ptr)
        if first.data_ptr() + first.nbytes > second.data_ptr():
            raise InvalidRequest("y", "shares memory with x; pass two tensors")
        return self._next(self._plain, (x, y)) is not None

    def _transfer(self, stream: FeedStream, rows: int) -> Transfer[torch.Tensor]:
        # "cuda" becomes the current device, and stays that one.
        self._device = indexed(self._device)
        shape = (rows, stream.context_length)
        return transfer_for(
            self._device, shape, self._x_dtype, masks=stream.masks, note=self._note(stream)
        )


class TorchEpoch(Epoch[torch.Tensor, RichBatch], IterableDataset[Batch]):
    """An Epoch that a DataLoader of torch takes."""

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over its batches (x, y).

        Raises: InvalidRequest for a loader that would turn these batches into others.
        """
        feed = self._feed
        require_own_batches(feed._request.position.world_size, is_restored=feed._cursor.restored)
        return super().__iter__()
