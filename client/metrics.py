"""Registers feeds with a registry of prometheus_client that the trainer has.

    from prometheus_client import start_http_server
    from tokenfeed.client import metrics

    start_http_server(9465, addr="127.0.0.1")
    metrics.register(feed)

A feed is read when the registry is, so nothing is done for it in between. The extra `metrics`
installs prometheus_client, and jinja2 for the status page of a server.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from tokenfeed.commands.extras import missing
from tokenfeed.errors import InvalidRequest

from .feed.stats import FeedStats
from .runtime import arguments

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(missing(error, "metrics"), name=error.name) from None

_NAME_MAX = 128
"""Characters of the name of a feed: it is in each of its lines."""


class AnyFeed(Protocol):
    """What can be registered: RemoteBatches, NumpyBatches, and a feed of validation_feeds."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    def stats(self) -> FeedStats:
        """Return the statistics so far, without I/O; for any thread."""


class Registration:
    """A feed in a registry. It ends with `unregister`, `close` of the feed, or the feed itself."""

    def __init__(self, feeds: _Feeds, name: str, feed: weakref.ref[AnyFeed]) -> None:
        """Remember what to take out again."""
        self._feeds = feeds
        self._name = name
        self._feed = feed

    def unregister(self) -> None:
        """Take the feed out of the registry. May be called twice."""
        self._feeds.remove(self._name, self._feed)


def register(
    feed: AnyFeed, registry: CollectorRegistry | None = None, *, name: str = "train"
) -> Registration:
    """Add the statistics of a feed to a registry, as `tokenfeed_client_*` with the label feed=name.

    The registry does not keep the feed: one that was closed, or freed, is left out from then on.
    registry: of prometheus_client; by default its global one.  name: differs between the open feeds
    of a registry.
    Raises: InvalidRequest if the name is taken, or not printable text of 1 to 128 characters, and
    for what is no feed.
    """
    if not hasattr(feed, "stats"):
        problem = "has no statistics; register each feed of validation_feeds, with its own name"
        raise InvalidRequest("feed", problem)
    name = arguments.text("name", name)
    if not (name.isprintable() and 0 < len(name) <= _NAME_MAX):
        problem = f"{arguments.shown(name)} is not printable text of 1 to {_NAME_MAX} characters"
        raise InvalidRequest("name", problem)
    return _feeds_of(REGISTRY if registry is None else registry).add(name, feed)


_FIGURES: dict[type[CounterMetricFamily | GaugeMetricFamily], dict[str, str]] = {
    CounterMetricFamily: {
        "batches": "Batches delivered.",
        "tokens": "Tokens of x delivered.",
        "rows_received": "Rows received.",
        "token_bytes_received": "Bytes of the tokens of these rows, as they were sent.",
        "frames_received": "Frames received; 0 with local files.",
        "frame_bytes_received": "Bytes of these frames, as whole messages.",
        "reconnects": "Times that a stream broke and was resumed.",
    },
    GaugeMetricFamily: {
        "waiting_seconds": "Length of the wait in progress; 0 if there is none.",
        "queue_depth_batches": "Batches that have arrived and wait to be taken.",
        "queue_capacity_batches": "Batches that may wait; 0 without a thread.",
        "samples": "Position: samples delivered by all ranks.",
        "epoch": "Epoch of the next sample, for an order with epochs.",
    },
}
"""Metrics with one value a feed, or none while that is None: fields of FeedStats, in words."""


def _families(*found: tuple[str, FeedStats]) -> Iterator[Metric]:
    """Return all metrics, with the values of some feeds, by name."""
    for kind, figures in _FIGURES.items():
        for figure, text in figures.items():
            family = kind(f"tokenfeed_client_{figure}", text, labels=["feed"])
            for name, stats in found:
                if (value := getattr(stats, figure)) is not None:
                    family.add_metric([name], value)
            yield family
    waits = HistogramMetricFamily(
        "tokenfeed_client_wait_seconds", "How long each batch was waited for.", labels=["feed"]
    )
    for name, stats in found:
        histogram = stats.wait_histogram
        bounds = [*map(floatToGoString, histogram.bounds_seconds), "+Inf"]
        counts = zip(bounds, histogram.counts, strict=True)
        waits.add_metric([name], list(counts), histogram.sum_seconds)
    yield waits


class _Feeds(Collector):
    """The feeds of one registry. A metric has one description and the lines of all of them, so they
    are collected together.
    """

    def __init__(self) -> None:
        """Begin without a feed."""
        # Held for single steps on the table: no feed is called or freed under it.
        self._lock = threading.Lock()
        self._by_name: dict[str, weakref.ref[AnyFeed]] = {}

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values: a registry compares their names."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of all open feeds, as they are now."""
        found = [(name, feed.stats()) for name, feed in self._open().items()]
        return _families(*found) if found else iter(())

    def add(self, name: str, feed: AnyFeed) -> Registration:
        """Add a feed.  Raises: InvalidRequest if an open one has this name."""
        own = weakref.ref(feed)
        self._open()  # forgets the others
        with self._lock:
            if name in self._by_name:
                problem = f"{name!r} is the name of another open feed in this registry"
                raise InvalidRequest("name", f"{problem}; pass another one, such as name='val'")
            self._by_name[name] = own
        return Registration(self, name, own)

    def remove(self, name: str, feed: weakref.ref[AnyFeed]) -> None:
        """Remove a feed, unless another one has its name by now."""
        with self._lock:
            if self._by_name.get(name) is feed:
                del self._by_name[name]

    def _open(self) -> dict[str, AnyFeed]:
        """Return the feeds that are open, and forget those that were closed or freed."""
        with self._lock:
            known = dict(self._by_name)
        found = {}
        for name, reference in known.items():
            feed = reference()
            if feed is None or feed.closed:
                self.remove(name, reference)
            else:
                found[name] = feed
        return found


_all_feeds: weakref.WeakKeyDictionary[CollectorRegistry, _Feeds] = weakref.WeakKeyDictionary()
_all_feeds_lock = threading.Lock()


def _feeds_of(registry: CollectorRegistry) -> _Feeds:
    """Return the feeds of a registry.  Raises: ValueError if others have these metrics there."""
    with _all_feeds_lock:
        feeds = _all_feeds.get(registry)
        if feeds is None:
            feeds = _Feeds()
            registry.register(feeds)
            _all_feeds[registry] = feeds
        return feeds
