"""Feeds in a registry of prometheus_client, scraped over HTTP."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families

from client import InvalidRequest, NumpyBatches, RemoteBatches, validation_feeds
from tests.conftest import ROOT, Serve, WriteTokens
from tokenfeed.client import metrics
from tokenfeed.client.feed.stats import FeedStats

B, T = 4, 32
Scrape = Callable[[], dict[str, Metric]]


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def scrape(registry: prometheus_client.CollectorRegistry) -> Iterator[Scrape]:
    """Read the registry as Prometheus does, and return its metrics by name."""
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)

    def read() -> dict[str, Metric]:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            found = list(text_string_to_metric_families(answer.read().decode()))
        by_name = {metric.name: metric for metric in found}
        assert len(by_name) == len(found)
        return by_name

    yield read
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(range(60_000))


def values(found: dict[str, Metric], feed: str) -> dict[str, float]:
    """Each value of a feed, by the name of its line without the prefix; buckets by their bound."""
    return {
        sample.name.removeprefix("tokenfeed_client_") + sample.labels.get("le", ""): sample.value
        for metric in found.values()
        for sample in metric.samples
        if sample.labels.get("feed") == feed
    }


def expected(stats: FeedStats) -> dict[str, float]:
    waits = stats.wait_histogram
    bounds = [*map(str, waits.bounds_seconds), "+Inf"]
    found = {
        "batches_total": stats.batches,
        "tokens_total": stats.tokens,
        "rows_received_total": stats.rows_received,
        "token_bytes_received_total": stats.token_bytes_received,
        "frames_received_total": stats.frames_received,
        "frame_bytes_received_total": stats.frame_bytes_received,
        "reconnects_total": stats.reconnects,
        "waiting_seconds": stats.waiting_seconds,
        "queue_depth_batches": stats.queue_depth_batches,
        "queue_capacity_batches": stats.queue_capacity_batches,
        "samples": stats.samples,
        "wait_seconds_sum": stats.wait_seconds,
        "wait_seconds_count": waits.counts[-1],
    } | {f"wait_seconds_bucket{le}": n for le, n in zip(bounds, waits.counts, strict=True)}
    return found if stats.epoch is None else found | {"epoch": stats.epoch}


def test_a_scrape_has_the_statistics_of_each_feed_and_what_else_the_trainer_counts(
    serve: Serve,
    path: Path,
    registry: prometheus_client.CollectorRegistry,
    scrape: Scrape,
) -> None:
    """Each metric is described once, however many feeds there are."""
    prometheus_client.Counter("steps", "Of the trainer.", registry=registry).inc(3)
    server = serve("--data", path)
    with (
        RemoteBatches(server.address, B, T, order="shuffled", num_batches=700) as train,
        NumpyBatches(f"file:{path}", B, T, order="random", num_batches=5) as val,
    ):
        metrics.register(train, registry)
        metrics.register(val, registry, name="val")
        before = scrape()
        for feed in (train, val):
            for _ in feed:
                pass
        after = scrape()

        assert values(before, "train") == expected(FeedStats(0, 0, 0.0, 0, 0, None))
        for feed, name in ((train, "train"), (val, "val")):
            assert values(after, name) == expected(feed.stats())
        assert values(after, "train")["rows_received_total"] == 2800
        assert values(after, "train")["epoch"] == 1
        assert "epoch" not in values(after, "val")
        labels = {tuple(s.labels) for m in after.values() for s in m.samples} - {()}
        assert labels == {("feed",), ("feed", "le")}
        assert after["steps"].samples[0].value == 3
        strict = parser.text_string_to_metric_families(
            exposition.generate_latest(registry).decode()
        )
        assert {metric.name for metric in strict} == {
            metric.name.removesuffix("_total") for metric in registry.collect()
        }


def test_a_name_is_that_of_one_open_feed(
    path: Path, registry: prometheus_client.CollectorRegistry
) -> None:
    """Two feeds under one name would look like one that jumps to and fro."""
    with NumpyBatches(f"file:{path}", B, T) as first, NumpyBatches(f"file:{path}", B, T) as second:
        metrics.register(first, registry)
        with pytest.raises(InvalidRequest, match=r"^name: 'train' is the name of another .*'val'"):
            metrics.register(second, registry)
        metrics.register(second, prometheus_client.CollectorRegistry())
        first.close()
        metrics.register(second, registry)
        for wrong in ("", "a\nb", "x" * 129, "\udcff", 7):
            with pytest.raises(InvalidRequest, match=r"^name: "):
                metrics.register(second, registry, name=wrong)  # type: ignore[arg-type]


def test_a_feed_that_was_closed_unregistered_or_freed_is_left_out(
    path: Path, registry: prometheus_client.CollectorRegistry, scrape: Scrape
) -> None:
    """The registry lives as long as the trainer, and keeps no feed alive."""
    names = ("closed", "unregistered", "freed", "open")
    feeds = {name: NumpyBatches(f"file:{path}", B, T) for name in names}
    handles = {name: metrics.register(feeds[name], registry, name=name) for name in names}
    assert all(values(scrape(), name) for name in names)
    freed = weakref.ref(feeds["freed"])

    feeds["closed"].close()
    handles["unregistered"].unregister()
    del feeds["freed"]
    gc.collect()

    assert freed() is None
    assert [name for name in names if values(scrape(), name)] == ["open"]
    # The name of the first belongs to another one now.
    metrics.register(feeds["unregistered"], registry, name="closed")
    for handle in (handles["closed"], handles["unregistered"]):
        handle.unregister()
    assert values(scrape(), "closed")
    for feed in feeds.values():
        feed.close()
    assert scrape() == {}


def test_a_feed_of_an_evaluation_can_be_registered(
    path: Path, registry: prometheus_client.CollectorRegistry, scrape: Scrape
) -> None:
    """Validation waits for data too."""
    with validation_feeds(f"file:web={path}", B, T, ["web"]) as feeds:
        metrics.register(feeds["web"], registry, name="web")
        count = len(list(feeds["web"]))

        assert values(scrape(), "web")["batches_total"] == count > 100
    assert scrape() == {}


def test_all_feeds_of_an_evaluation_at_once_are_refused_and_disturb_no_scrape(
    path: Path, registry: prometheus_client.CollectorRegistry, scrape: Scrape
) -> None:
    """They are a dict, which has no statistics."""
    with (
        validation_feeds(f"file:web={path}", B, T, ["web"]) as feeds,
        pytest.raises(InvalidRequest, match=r"^feed: .*each feed of validation_feeds"),
    ):
        metrics.register(feeds, registry, name="val")  # type: ignore[arg-type]
    assert scrape() == {}


def test_scrapes_and_feeds_that_come_and_go_do_not_disturb_each_other(
    path: Path, registry: prometheus_client.CollectorRegistry
) -> None:
    """A scrape comes in a thread of its own, at any moment."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def scrape_on() -> None:
        try:
            while not ended.is_set():
                prometheus_client.generate_latest(registry)
        except BaseException as failure:  # noqa: BLE001 - shown below
            failures.append(failure)

    scraping = threading.Thread(target=scrape_on)
    scraping.start()
    for _ in range(30):
        with NumpyBatches(f"file:{path}", B, T, num_batches=2) as feed:
            metrics.register(feed, registry)
            for _ in feed:
                pass
    ended.set()
    scraping.join()

    assert failures == []


def test_without_prometheus_client_only_the_metrics_say_what_to_install() -> None:
    """A trainer without metrics needs one package less."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import client\n"
        "client.NumpyBatches\n"
        "for attempt in ('import tokenfeed.client.metrics', 'from client import metrics'):\n"
        "    try:\n"
        "        exec(attempt)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
    )

    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    cure = "pip install 'tokenfeed[metrics]' (in a clone, '.[metrics]')"
    assert printed.splitlines() == [f"prometheus_client is missing: {cure}"] * 2
