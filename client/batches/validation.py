"""Validation: each of several datasets by itself, from its beginning, as often as it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from tokenfeed.errors import InvalidRequest

from ..device.loaders import require_own_batches
from ..device.widening import Batch
from ..feed.mixture.recipe import Mixture
from ..feed.ranks.coordinates import Group
from ..feed.stats import FeedStats
from ..runtime.arguments import shown, text
from ..stream.row_stream import PREFETCH_BYTES
from ..stream.wanted_planes import LossMask
from ..transport.addresses import Targets
from ..transport.credentials import Credentials
from ..transport.timeouts import DEFAULT_TIMEOUTS, Timeouts
from .remote import RemoteBatches


def validation_feeds(
    target: Targets,
    batch_size: int,
    context_length: int,
    sources: Iterable[str] | Mixture,
    *,
    device: torch.device | str = "cpu",
    x_dtype: torch.dtype = torch.int64,
    order: str = "sequential",
    long: str | None = None,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    group: Group | None = None,
    loss_mask: LossMask = "apply",
    mask_borders: bool = False,
    prefetch_bytes: int = PREFETCH_BYTES,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    credentials: Credentials | None = None,
    client_name: str | None = None,
) -> ValidationFeeds:
    """Return a feed for each of several datasets, to evaluate a model on each by itself; does no
    I/O.

        feeds = validation_feeds("host:50051", 32, 2048, ["web-val", "code-val"], device="cuda:0")
        for name, batches in feeds.items():
            for x, y in batches:
                ...

    Each `for x, y` reads all windows of one dataset once, from the first on. All ranks get the same
    number of batches. Rows that fill up the last batch have y = -100 throughout, so that a loss
    ignores them. A feed connects when it is first read, and between two evaluations it has no open
    stream. Servers with another corpus than at its first evaluation are refused.
    sources: the names of the datasets; also a mapping that has them as keys, such as the weights of
    a mixture, or a Mixture, of which these are all sources.
    order: "sequential", or "shuffled": then the first batches are a sample of the dataset; "padded"
    for one document a row, or "packed".
    All other arguments: as for RemoteBatches.
    Raises: InvalidRequest or NotFound (order), naming the argument and its limit. Iterating raises
    NotFound for a dataset that is not served, and else like RemoteBatches.
    """
    return ValidationFeeds(
        {
            name: RemoteBatches(
                target,
                batch_size,
                context_length,
                device=device,
                x_dtype=x_dtype,
                seed=seed,
                dataset=name,
                order=order,
                long=long,
                rank=rank,
                world_size=world_size,
                group=group,
                loss_mask=loss_mask,
                mask_borders=mask_borders,
                prefetch_bytes=prefetch_bytes,
                timeouts=timeouts,
                credentials=credentials,
                client_name=client_name,
            )
            for name in _names(sources)
        }
    )


class WholeDataset(IterableDataset[Batch]):
    """A sized iterable over all windows of one dataset; each `for` starts at its beginning."""

    def __init__(self, feed: RemoteBatches) -> None:
        """feed: of this dataset, and of nothing else that reads it; has to have epochs."""
        self._feed = feed
        self._epoch = feed.epoch(0, tail="pad")
        self._beginning: dict[str, Any] | None = None
        self._closed = False

    def __len__(self) -> int:
        """Return the number of batches, the same on every rank; asks the server."""
        return len(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over (x, y), as of RemoteBatches.

        Raises: InvalidRequest for a loader that would turn these batches into others, and after
        `close`; NotFound if the servers do not have the dataset, and else like RemoteBatches.
        """
        require_own_batches(1)  # the epoch takes this function for the loader
        if self._closed:
            # An evaluation of no batch would go unnoticed, or divide by zero.
            raise InvalidRequest("validation_feeds", "are closed; create new ones")
        batches = iter(self._epoch)
        if self._beginning is None:
            self._beginning = self._feed.state_dict()
        # Without this, each evaluation would be one more run of the feed's history.
        self._feed.load_state_dict(self._beginning)
        return batches

    def stats(self) -> FeedStats:
        """Return the statistics of its feed, over all evaluations. Any thread may call this."""
        return self._feed.stats()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """End threads and connection. May be called twice. A `for` in progress stops at once."""
        self._closed = True
        self._feed.close()

    def __repr__(self) -> str:
        """Show the feed."""
        return f"<WholeDataset of {self._feed}>"


class ValidationFeeds(Mapping[str, WholeDataset]):
    """The feeds of several datasets, by the names of these; the order is that of the names given.

    For one consumer thread. `close()`, or the end of a `with` block, closes all of them.
    """

    def __init__(self, feeds: Mapping[str, RemoteBatches]) -> None:
        """feeds: one for each dataset, of an order with epochs."""
        self._datasets = {name: WholeDataset(feed) for name, feed in feeds.items()}

    def __getitem__(self, name: str) -> WholeDataset:
        """Return the batches of a dataset."""
        return self._datasets[name]

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names."""
        return iter(self._datasets)

    def __len__(self) -> int:
        """Return the number of datasets."""
        return len(self._datasets)

    def close(self) -> None:
        """End threads and connections of all feeds. May be called twice."""
        for dataset in self._datasets.values():
            dataset.close()

    def __enter__(self) -> ValidationFeeds:
        """Return this mapping; the `with` block closes all feeds."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the feeds."""
        return f"<ValidationFeeds {self._datasets}>"


def _names(sources: Iterable[str] | Mixture) -> list[str]:
    """Return the names of sources.  Raises: InvalidRequest unless there are some, each once."""
    if isinstance(sources, Mixture):
        sources = sources.sources
    if isinstance(sources, str) or not isinstance(sources, Iterable):
        raise InvalidRequest("sources", f"{shown(sources)} is not a list of names of datasets")
    names = [text("sources", name) for name in sources]
    if not all(names):
        raise InvalidRequest("sources", "has an empty name")
    if not names:
        raise InvalidRequest("sources", "is empty; name at least one dataset")
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest("sources", f"{name!r} is named twice")
    return names
