"""RemoteBatches: rows -> (x, y) as tensors on the device, prefetched and resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.utils.data import IterableDataset

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders

from ..device.host_transfer import Transfer
from ..device.loaders import require_own_batches
from ..device.rich_batch import RichBatch as RichBatch
from ..device.transfer import indexed, transfer_for, usable_device
from ..device.widening import WIDE_NUMPY, Batch, require_fits
from ..feed.epochs import Epoch
from ..feed.feed import Feed
from ..feed.mixture.recipe import Mixture
from ..feed.ranks.coordinates import Group
from ..stream.row_stream import PREFETCH_BYTES
from ..stream.wanted_planes import LossMask
from ..transport.addresses import Targets
from ..transport.credentials import Credentials
from ..transport.timeouts import DEFAULT_TIMEOUTS, Timeouts


class RemoteBatches(Feed[torch.Tensor, RichBatch, "TorchEpoch"], IterableDataset[Batch]):
    """Batches from a tokenfeed server, or from local files.

        for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0", order="shuffled"):
            ...

    Yields (x, y): contiguous integer tensors of shape (batch_size, context_length) on device; y is
    x shifted by one token, int64. They belong to the caller. The feed is an iterator: a second
    `for` continues after the last delivered batch. Nothing is sent before the first `next`; from
    then on a thread prefetches. `close()`, or the end of a `with` block, stops it.

    For one consumer thread. Any thread may call `state_dict`, `history`, `position`, `stats` and
    `close`.
    """

    def __init__(
        self,
        target: Targets,
        batch_size: int,
        context_length: int,
        *,
        device: torch.device | str = "cpu",
        x_dtype: torch.dtype = torch.int64,
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

        target: "HOST:PORT" or "unix:PATH", or several servers of the same corpus (replicas): a
        sequence of these, or "dns:///HOST:PORT" for all addresses of a name. Or local files, read
        in this process without a server: "file:PATH", where PATH is a file, a glob or a folder;
        "file:a.bin,b.bin" is one corpus, "file:web=web/,code=code/" are two.
        batch_size: rows per rank, in [1, 2^20].  context_length: tokens of x, in [1, longest
        file).  x_dtype: torch.int64 or torch.int32.
        seed: in [0, 2^64).  dataset: its name; optional if the server has only one.
        mixture: weights of several datasets instead, {"web": 0.7, "code": 0.3}, or a Mixture: of
        weights that change, and of sources with orders and seeds of their own.
        fingerprint: 64 hexadecimal digits, as `tokenfeed describe` prints them. A server with
        another corpus is refused. Without it, the client accepts the corpus of the first server
        that answers, and the ranks of a process group compare their corpora.
        order: "shuffled" or "sequential" (each window once per epoch, one epoch after another), or
        "random" (any window, with replacement). Over documents, which have to be known: "packed"
        (rows of whole pieces of documents, each once per epoch) or "padded" (one piece a row).
        Their y is -100 at padding and where the next piece begins.
        long: what "padded" does with documents longer than a row: "cut" into pieces (the default),
        "drop" or "truncate".
        rank, world_size: data-parallel coordinates.  group: a ProcessGroup or 1-D DeviceMesh that
        has them.  By default those of torch.distributed, else RANK and WORLD_SIZE, else 0 of 1.
        loss_mask: "apply" (where a corpus has a loss mask, y is -100 at tokens that it masks, so
        that a loss ignores them) or "ignore" (every token is a target).
        mask_borders: whether y is -100 too where its token begins another document than that of x.
        The documents of all datasets have to be known.
        start_step: batches of all ranks to begin after, at this batch size and world size.
        start_sample: the same as a sample index, independent of both sizes.  num_batches: length
        of the stream from there on; None is endless.
        prefetch_bytes: host memory for prefetched rows. With local files at most 8 MiB of it are
        used, but at least two batches, and 0 reads them without a thread.
        timeouts: for one server, and for all servers together.  credentials: TLS files and a bearer
        token. Each field that is None comes from the environment (TOKENFEED_TLS_CA, and so on; see
        Credentials). Without tls_ca the connection is plaintext.
        client_name: name of this client in server logs, printable text of up to 128 characters,
        such as "run-17 rank 3". By default the machine's name and the rank.

        Raises: InvalidRequest, SamplesExhausted or NotFound (order), naming the argument and its
        limit.
        Iterating raises RequestError if the server refuses, CorpusError, and Unreachable after
        timeouts.reconnect_seconds.
        """
        if x_dtype not in WIDE_NUMPY:
            raise InvalidRequest("x_dtype", f"{x_dtype} is neither torch.int64 nor torch.int32")
        # Before the feed is counted as one that all ranks have.
        self._device = usable_device(device)
        self._x_dtype = x_dtype
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
            rich_batch=RichBatch,
            epoch=TorchEpoch,
        )

    def __iter__(self) -> RemoteBatches:
        """Return this iterator itself: each `for` continues where the last one stopped.

        Raises: InvalidRequest for a loader that would turn these batches into others.
        """
        require_own_batches(self._request.position.world_size)
        return self

    def copy_into(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Copy the next batch into the caller's tensors, such as the static inputs of a CUDA graph.

        x, y: [batch_size, context_length], int64 or int32, on the feed's device.  On CUDA the work
        is enqueued on the current stream.  Returns: False at the end, with both unchanged.
        Raises: InvalidRequest if shape, type or device do not fit.
        """
        self._device = indexed(self._device)
        for name, tensor in (("x", x), ("y", y)):
            require_fits(name, tensor, self._shape, self._device)
        first, second = sorted((x, y), key=torch.Tensor.data_ptr)
        if first.data_ptr() + first.nbytes > second.data_ptr():
            raise InvalidRequest("y", "shares memory with x; pass two tensors")
        return self._next((x, y)) is not None

    def _transfer(self) -> Transfer[torch.Tensor]:
        # "cuda" becomes the current device, and stays that one.
        self._device = indexed(self._device)
        return transfer_for(
            self._device, self._shape, self._x_dtype, masks=self._masks, note=self._note()
        )


class TorchEpoch(Epoch[torch.Tensor, RichBatch], IterableDataset[Batch]):
    """An Epoch that a DataLoader of torch takes."""

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over its batches (x, y).

        Raises: InvalidRequest for a loader that would turn these batches into others.
        """
        require_own_batches(self._world_size)
        return super().__iter__()
