"""Validation: each of several datasets by itself, from its beginning, as often as it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import IterableDataset

from tokenfeed.errors import InvalidRequest

from ..device.loaders import require_own_batches
from ..device.rich_batch import RichBatch
from ..device.widening import Batch
from ..feed.mixture.recipe import Mixture, lists_by_dataset
from ..feed.options import SharedOptions, checked, takes
from ..feed.stats import FeedStats
from ..runtime.arguments import shown, text
from ..transport.addresses import Targets
from .remote import DeviceOptions, RemoteBatches

if TYPE_CHECKING:
    from typing import Unpack

Item = TypeVar("Item")

_ORDER = "sequential"
"""An evaluation reads the windows in the order of the corpus, unless it is asked for another."""


class ValidationOptions(DeviceOptions, SharedOptions, total=False):
    """The arguments of validation feeds."""


@takes(ValidationOptions, order=_ORDER)
def validation_feeds(
    target: Targets,
    batch_size: int,
    context_length: int,
    sources: Iterable[str] | Mixture,
    **options: Unpack[ValidationOptions],
) -> ValidationFeeds:
    """Return one feed for each of several datasets, to evaluate a model on each dataset separately.
    This does no I/O.

        feeds = validation_feeds("host:50051", 32, 2048, ["web-val", "code-val"], device="cuda:0")
        for name, batches in feeds.items():
            for x, y in batches:
                ...

    Each `for x, y` reads all windows of one dataset once, from the first on. All ranks get the same
    number of batches. If the last batch is not full, it is filled up with rows that have y = -100
    throughout, so that a loss ignores them. A feed connects when it is first read, and between two
    evaluations it has no open stream. In later evaluations a feed refuses servers whose corpus
    differs from that of its first evaluation. With order="shuffled" the first batches are a random
    sample of the dataset.

    target, batch_size and context_length mean what they do for RemoteBatches.
    sources names the datasets: a list of names, a mapping whose keys are names (such as the weights
    of a mixture), or a Mixture, of which all datasets are read.
    Raises: InvalidRequest or NotFound (order), naming the argument and its limit. Iterating raises
    NotFound if the servers do not have the dataset, and otherwise the errors of RemoteBatches.
    """
    given: ValidationOptions = {"order": _ORDER, **options}
    names, listed = _names(sources), checked(ValidationOptions, given, "validation_feeds")
    lists = lists_by_dataset(names, listed["redactions"])

    def feed_of(name: str) -> RemoteBatches:
        own: ValidationOptions = {**given, "redactions": lists.get(name)}
        return RemoteBatches(target, batch_size, context_length, dataset=name, **own)

    return ValidationFeeds({name: WholeDataset(feed_of(name)) for name in names})


class WholeDataset(IterableDataset[Batch]):
    """A sized iterable over all windows of one dataset; each `for` starts at its beginning."""

    def __init__(self, feed: RemoteBatches) -> None:
        """feed: is a feed of this dataset, which nothing else may read; its order must have
        epochs.
        """
        self._feed = feed
        self._epoch = feed.epoch(0, tail="pad")
        self._beginning: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches, the same on every rank; asks the server."""
        return len(self._epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over (x, y), as of RemoteBatches.

        Raises: InvalidRequest for a loader that would turn these batches into others, and after
        `close`; NotFound if the servers do not have the dataset, and else like RemoteBatches.
        """
        require_own_batches(1, is_restored=False)  # the epoch takes this function for the loader
        return self._from_beginning(lambda: iter(self._epoch))

    def batches(self) -> Iterator[RichBatch]:
        """Return an iterator over its batches in the form of `batches` of RemoteBatches: they carry
        more than x and y. Raises: as for iterating.
        """
        return self._from_beginning(self._epoch.batches)

    def _from_beginning(self, read: Callable[[], Iterator[Item]]) -> Iterator[Item]:
        if self.closed:
            # An evaluation of no batch would go unnoticed, or divide by zero.
            raise InvalidRequest("validation_feeds", "are closed; create new ones")
        batches = read()
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
        return self._feed.closed

    def close(self) -> None:
        """End threads and connection. May be called twice. A `for` in progress stops at once."""
        self._feed.close()

    def __repr__(self) -> str:
        """Show the feed."""
        return f"<WholeDataset of {self._feed}>"


class ValidationFeeds(dict[str, WholeDataset]):
    """A mapping from the names of several datasets to their feeds, in the order in which the names
    were given.

    For one consumer thread. `close()`, or the end of a `with` block, closes all of them.
    """

    def close(self) -> None:
        """End threads and connections of all feeds. May be called twice."""
        for dataset in self.values():
            dataset.close()

    def __enter__(self) -> ValidationFeeds:
        """Return this dict; the `with` block closes all feeds."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the feeds."""
        return f"<ValidationFeeds {dict(self)}>"


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
