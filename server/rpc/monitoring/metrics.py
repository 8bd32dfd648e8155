"""What a server counts, as metrics of Prometheus. The only module that knows prometheus_client.

Nothing is counted here: a scrape reads the numbers of ServerState. Labels are bounded: datasets and
orders that are served, statuses, kinds of errors; never a path, an address or a client's name.

A figure that the status page and `tokenfeed top` show too is added in three more places: its field
in proto/tokenfeed/v1/status.proto, its value in status.py, its text in
tokenfeed/commands/status/view.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tokenfeed import __version__

from ...runtime.http_server import Page
from ...runtime.process import memory_limit, use
from ...storage.objects.counts import REQUESTS, CacheCounts
from ..activity.counts import BOUNDS, FrameCounts, Histogram, Labels
from .server_state import ServerState

_BY_ORDER = ("dataset", "order")


class Metrics(Collector):
    """The metrics of a server."""

    def __init__(self, state: ServerState) -> None:
        """Read them from the state of a server."""
        self._state = state
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self, accept: str) -> Page:
        """Return all of them.  accept: the formats that the scraper reads."""
        encoder, content_type = choose_encoder(accept)
        return Page({"Content-Type": content_type}, encoder(self._registry))

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance: register() would collect everything to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        totals = self._state.activity.totals()
        yield from _streams(totals.frames)
        yield _counter(
            "tokenfeed_rows_sent",
            "Rows sent.",
            _BY_ORDER,
            {labels: each.rows for labels, each in totals.rows.items()},
        )
        yield _counter(
            "tokenfeed_token_bytes_sent",
            "Bytes of the tokens of the rows sent.",
            _BY_ORDER,
            {labels: each.token_bytes for labels, each in totals.rows.items()},
        )
        yield from self._calls()
        yield from self._datasets()
        yield from self._process()

    def _calls(self) -> Iterator[Metric]:
        counts = self._state.calls.counts.copy()
        yield _counter(
            "tokenfeed_refusals",
            "Calls that were refused or ended, by gRPC status and kind of error.",
            ("status", "reason"),
            counts.refusals,
        )
        yield _counter(
            "tokenfeed_evictions",
            "Calls that were cancelled since their client did nothing.",
            ("reason",),
            {(reason,): count for reason, count in counts.evictions.items()},
        )
        yield _counter(
            "tokenfeed_drained_calls",
            "Calls that the shutdown ended after a frame.",
            (),
            {(): counts.drained},
        )
        draining = float(self._state.calls.is_draining)
        yield _gauge("tokenfeed_draining", "1 after SIGTERM, else 0.", (), {(): draining})

    def _datasets(self) -> Iterator[Metric]:
        datasets = self._state.datasets
        stores = {(name,): dataset.store for name, dataset in datasets.items()}
        label = ("dataset",)
        yield _gauge(
            "tokenfeed_dataset_bytes",
            "Bytes of the tokens of a dataset as they are served.",
            label,
            {key: store.shape.token_count * store.dtype.itemsize for key, store in stores.items()},
        )
        yield _gauge(
            "tokenfeed_dataset_lost",
            "1 if a dataset changed or vanished and is not served any more, else 0.",
            label,
            {key: float(store.files.failed) for key, store in stores.items()},
        )
        reads = {key: store.files.read_counts for key, store in stores.items()}
        yield _counter(
            "tokenfeed_cold_reads",
            "Gathers that had to wait for storage.",
            label,
            {key: read.cold_reads for key, read in reads.items()},
        )
        yield _counter(
            "tokenfeed_read_ahead_bytes",
            "Bytes of which reading was started before they were needed.",
            label,
            {key: read.advised_bytes for key, read in reads.items()},
        )
        requests = REQUESTS.by_reason
        yield _counter(
            "tokenfeed_object_gets",
            "Requests to object stores, by what they were for.",
            ("reason",),
            {(reason,): each.gets for reason, each in requests.items()},
        )
        yield _counter(
            "tokenfeed_object_bytes",
            "Bytes that came from object stores, by what they were for.",
            ("reason",),
            {(reason,): each.size_bytes for reason, each in requests.items()},
        )
        cache = self._state.object_cache
        yield from _object_cache(CacheCounts() if cache is None else cache.counts)
        shares = {key: self._state.warm_up.share(store) for key, store in stores.items()}
        yield _gauge(
            "tokenfeed_warm_up_progress_ratio",
            "Share of a dataset that the warm-up has read; absent if it is not preloaded, or if "
            "that ended early.",
            label,
            {key: share for key, share in shares.items() if share is not None},
        )
        yield _gauge(
            "tokenfeed_packing_progress_ratio",
            "Share of the rows over documents that are made; absent if none are being made.",
            _BY_ORDER,
            {
                (name, making[0].order): making[1]
                for name, dataset in datasets.items()
                if dataset.rows is not None and (making := dataset.rows.making) is not None
            },
        )

    def _process(self) -> Iterator[Metric]:
        used = use.process_use()
        for name, what, value in (
            ("tokenfeed_threads", "Threads of the process.", used.threads),
            (
                "tokenfeed_resident_memory_bytes",
                "Memory of the process, with pages of files in its page table.",
                used.resident_bytes,
            ),
            (
                "tokenfeed_anonymous_memory_bytes",
                "Memory of the process without files.",
                used.anonymous_bytes,
            ),
            (
                "tokenfeed_memory_limit_bytes",
                "The least memory limit of its cgroups; else the memory of the machine.",
                memory_limit.limit_bytes(),
            ),
            (
                "tokenfeed_start_time_seconds",
                "When the process started, in seconds since 1970.",
                use.started(),
            ),
        ):
            yield _gauge(name, what, (), {(): value})
        yield _gauge("tokenfeed_build_info", "1.", ("version",), {(__version__,): 1})


def _object_cache(counts: CacheCounts) -> Iterator[Metric]:
    for name, what, value in (
        (
            "size_bytes",
            "Size of the cache of objects; 0 without one, or if it is lost.",
            0,
        ),
        ("blocks", "Blocks of 1 MiB of the datasets in object stores.", 1),
        ("cached_blocks", "Those of them that are in the cache.", 2),
    ):
        yield _gauge(f"tokenfeed_object_cache_{name}", what, (), {(): counts[value]})
    yield _counter(
        "tokenfeed_object_cache_rows",
        "Ranges of rows that were copied from the cache (hit), or fetched (miss).",
        ("result",),
        {("hit",): counts.hits, ("miss",): counts.misses},
    )
    yield _counter(
        "tokenfeed_object_cache_damaged_blocks",
        "Blocks of the cache whose checksum had changed, and which are fetched again.",
        (),
        {(): counts.damaged},
    )


def _streams(counts: dict[Labels, FrameCounts]) -> Iterator[Metric]:
    yield _gauge(
        "tokenfeed_streams_open",
        "Streams with a call at the moment.",
        _BY_ORDER,
        {labels: each.open for labels, each in counts.items()},
    )
    for name, what, field in (
        ("streams_opened", "Streams that began.", "opened"),
        ("frames_sent", "Frames sent.", "frames"),
        ("frame_bytes_sent", "Bytes of the frames sent.", "frame_bytes"),
    ):
        values = {labels: getattr(each, field) for labels, each in counts.items()}
        yield _counter(f"tokenfeed_{name}", what, _BY_ORDER, values)
    for name, what, field in (
        (
            "frame_make",
            "Time to make a frame: until its turn, to read it and to encode it.",
            "make_seconds",
        ),
        ("frame_send", "Time that a frame waited until its client took it.", "send_seconds"),
        (
            "first_frame",
            "Time from the first request of a stream to its first frame.",
            "first_seconds",
        ),
    ):
        histograms = {labels: getattr(each, field) for labels, each in counts.items()}
        yield _histogram(f"tokenfeed_{name}_seconds", what, histograms)


Values = Mapping[Any, float]
"""By the values of the labels, a tuple."""


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    what: str,
    labels: tuple[str, ...],
    values: Values,
) -> Metric:
    found = kind(name, what, labels=labels)
    for key, value in values.items():
        found.add_metric(key, value)
    return found


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _histogram(name: str, what: str, histograms: dict[Labels, Histogram]) -> Metric:
    found = HistogramMetricFamily(name, what, labels=_BY_ORDER)
    bounds = [*map(str, BOUNDS), "+Inf"]
    for labels, histogram in histograms.items():
        count = 0
        buckets = []
        for bound, own in zip(bounds, histogram.counts, strict=True):
            count += own
            buckets.append((bound, count))
        found.add_metric(labels, buckets, histogram.seconds)
    return found
