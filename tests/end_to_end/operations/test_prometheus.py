"""A real Prometheus scrapes real servers: its numbers are those of the clients, its alerts fire."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from client import Mixture, NumpyBatches
from tests.conftest import Serve, Server, WriteTokens
from tests.support import prometheus
from tests.support.prometheus import FOLDER, Prometheus, watching
from tests.support.scraping import fetch, metrics_address
from tests.support.waiting import eventually
from tokenfeed.v1 import tokenfeed_pb2 as pb

LOAD_SECONDS = float(os.environ.get("TOKENFEED_TEST_LOAD_SECONDS", "2"))
"""How long the clients read: set it to 60 for a longer look."""
B, T = 8, 64
TOKEN_BYTES = {"web": 2, "code": 4}
MIXTURE_TOKEN_BYTES = 4
"""Rows of a mixture have the width of its widest source."""
GET_BATCH = "/tokenfeed.v1.TokenFeed/GetBatch"
CHANNELS = 4

Counts = Counter[tuple[str, str]]
"""By dataset and order."""


@pytest.fixture
def server(serve: Serve, write_tokens: WriteTokens) -> Server:
    """Serves two datasets of different width, and metrics."""
    prometheus.require_installed()
    random = np.random.default_rng(21)
    web = write_tokens(random.integers(0, 50_000, 400_000), "web.bin")
    code = write_tokens(random.integers(0, 90_000, 200_000), "code.bin", "<u4")
    datasets = ("--data", web, "--data", code, "--dtype", "code=uint32")
    return serve(*datasets, "--metrics-port", 0, "--host", "127.0.0.1")


class Reader:
    """Reads whole epochs, and counts their rows and the bytes of their tokens."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.rows: Counts = Counter()
        self.token_bytes: Counts = Counter()

    def dataset(self, name: str, order: str, epoch: int) -> None:
        """Read an epoch of a dataset."""
        with NumpyBatches(self._address, B, T, dataset=name, order=order) as feed:
            for x, _ in feed.epoch(epoch):
                self._add(name, f"{order}-1", len(x), TOKEN_BYTES[name])

    def mixture(self, batches: int) -> None:
        """Read so many batches of a mixture."""
        mixture = Mixture({"web": 3, "code": 1})
        arguments = {"mixture": mixture, "order": "shuffled", "num_batches": batches}
        with NumpyBatches(self._address, B, T, **arguments) as feed:
            for batch in feed.batches():
                for name, rows in zip(TOKEN_BYTES, np.bincount(batch.source_numpy), strict=False):
                    self._add(name, "shuffled-1", int(rows), MIXTURE_TOKEN_BYTES)

    def _add(self, name: str, order: str, rows: int, width: int) -> None:
        self.rows[name, order] += rows
        self.token_bytes[name, order] += rows * (T + 1) * width


def read_for(address: str, seconds: float) -> tuple[Counts, Counts]:
    """Have three clients read whole epochs, at once, for at least so long; return what they have
    counted, rows and bytes.
    """
    end = time.monotonic() + seconds

    def repeat(read: Callable[[Reader, int], None]) -> Reader:
        reader = Reader(address)
        for epoch in range(1_000_000):
            read(reader, epoch)
            if time.monotonic() >= end:
                break
        return reader

    reads: tuple[Callable[[Reader, int], None], ...] = (
        lambda reader, epoch: reader.dataset("web", "shuffled", epoch),
        lambda reader, epoch: reader.dataset("code", "sequential", epoch),
        lambda reader, _: reader.mixture(300),
    )
    with ThreadPoolExecutor(len(reads)) as threads:
        readers = list(threads.map(repeat, reads))
    rows, token_bytes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for reader in readers:
        rows += reader.rows
        token_bytes += reader.token_bytes
    return rows, token_bytes


def counted(watcher: Prometheus, metric: str) -> Counts:
    """What Prometheus has of a counter."""
    found = watcher.query(metric)
    return Counter({(s.labels["dataset"], s.labels["order"]): int(s.value) for s in found})


@pytest.mark.timeout(60 + int(LOAD_SECONDS))
def test_rows_and_bytes_are_those_that_the_clients_counted(server: Server, tmp_path: Path) -> None:
    """Who pays for tokens, or looks for lost ones, has to be able to rely on each of them."""
    # A scrape has the time of an interval, and other tests may have the processors for a second.
    with watching(tmp_path, server, interval="2s") as watcher:
        rows, token_bytes = read_for(server.address, LOAD_SECONDS)
        eventually(lambda: counted(watcher, "tokenfeed_rows_sent_total") == rows)
        eventually(lambda: watcher.query("count_over_time(up[10m])")[0].value >= 5)

        assert counted(watcher, "tokenfeed_rows_sent_total") == rows
        assert counted(watcher, "tokenfeed_token_bytes_sent_total") == token_bytes
        assert set(rows) == {
            ("web", "shuffled-1"),
            ("code", "sequential-1"),
            ("code", "shuffled-1"),
        }
        (scrapes,) = watcher.query("count_over_time(up[10m])")
        (worst,) = watcher.query("min_over_time(up[10m])")
        print(f"\n{sum(rows.values()):,} rows, {sum(token_bytes.values()):,} bytes")
        print(f"{scrapes.value:.0f} scrapes within {LOAD_SECONDS:.0f} s and a little more")
        assert scrapes.value >= 5
        assert worst.value == 1, "a scrape failed under load"
        assert watcher.firing() == []


def test_every_panel_of_the_dashboard_shows_something(server: Server, tmp_path: Path) -> None:
    """A panel with a misspelled metric is empty in silence, on the day that it is needed."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    with watching(tmp_path, server) as watcher:
        refused = request(pb.Source(dataset="nothing"), T, batch_size=1)
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
            list(channel.unary_stream(GET_BATCH)(refused, timeout=10))
        read_for(server.address, 1.0)
        expressions = list(panel_expressions(dashboard["panels"]))
        assert len(expressions) > 30

        def metrics_of_empty_panels() -> set[str]:
            empty = [each for each in expressions if not watcher.query(each)]
            return {name for each in empty for name in re.findall(r"tokenfeed_\w+", each)}

        # Nobody was evicted, and there are no rows over documents. A busy machine misses a scrape.
        expected = {"tokenfeed_evictions_total", "tokenfeed_packing_progress_ratio"}
        assert eventually(lambda: metrics_of_empty_panels() == expected), metrics_of_empty_panels()


def panel_expressions(panels: Iterable[dict[str, object]]) -> Iterator[str]:
    """The queries of panels, as Grafana sends them when everything is selected."""
    values = {"$job": ".*", "$instance": ".*", "$dataset": ".*", "$__rate_interval": "10s"}
    for panel in panels:
        targets = panel.get("targets", [])
        assert isinstance(targets, list)
        for target in targets:
            expression = str(target["expr"])
            for name, value in values.items():
                expression = expression.replace(name, value)
            yield expression


def test_the_alert_of_a_lost_dataset_fires(server: Server, tmp_path: Path) -> None:
    """It names the dataset; the other one goes on."""
    with watching(tmp_path, server) as watcher:
        assert watcher.firing() == []
        os.truncate(tmp_path / "web.bin", 1000)

        assert eventually(lambda: alerts(watcher, "TokenfeedDatasetLost") != [])
        (labels,) = alerts(watcher, "TokenfeedDatasetLost")
        assert labels["dataset"] == "web"
        assert labels["severity"] == "critical"
        assert labels["instance"] == metrics_address(server)


def test_the_alert_of_streams_without_rows_fires(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """A client that reads nothing looks to a server like one that it cannot serve. It ends, and
    the alert with it.
    """
    prometheus.require_installed()
    path = write_tokens(np.arange(50_000).repeat(20))
    server = serve("--data", path, "--metrics-port", 0, "--send-timeout-seconds", 600)
    with watching(tmp_path, server) as watcher:
        assert watcher.firing() == []
        with stalled(server.address):
            assert eventually(lambda: alerts(watcher, "TokenfeedNoRows") != [])
            (labels,) = alerts(watcher, "TokenfeedNoRows")
            assert (labels["dataset"], labels["order"]) == ("train", "random-1")

        assert eventually(lambda: watcher.firing() == [])


def request(source: pb.Source, context_length: int, **fields: Any) -> bytes:
    stream = pb.Stream(sources=[source], stage=pb.Stage(context_length=context_length))
    return pb.GetBatchRequest(stream=stream, **fields).SerializeToString()


def alerts(watcher: Prometheus, name: str) -> list[dict[str, str]]:
    """The labels of an alert that fires."""
    return [labels for labels in watcher.firing() if labels["alertname"] == name]


@contextmanager
def stalled(address: str) -> Iterator[None]:
    """Have an open call that nobody reads."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream(GET_BATCH)(request(pb.Source(), 2048, batch_size=32))
        yield
        call.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("names", [1000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_names_of_clients_leave_the_number_of_series(server: Server, names: int) -> None:
    """A label that a client chooses would fill the memory of every Prometheus."""
    numbers = iter(range(names))
    lock = threading.Lock()

    def call(channel: grpc.Channel, name: str) -> None:
        source = pb.Source(dataset="web", order="shuffled-1")
        asked = request(source, 4, client_name=name, batch_size=1, num_batches=1)
        channel.unary_unary(GET_BATCH)(asked, timeout=10)

    def call_all(channel: grpc.Channel) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            call(channel, f"run-{number} rank {number % 8}")

    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.insecure_channel(server.address, options) for _ in range(CHANNELS)]
    call(channels[0], "the first one")
    progress = [f'warm_up_progress_ratio{{dataset="{name}"}}' for name in ("code", "web")]
    assert eventually(lambda: all(each in fetch(server) for each in progress))
    before = series(fetch(server))
    with ThreadPoolExecutor(CHANNELS) as threads:
        list(threads.map(call_all, channels))
    for channel in channels:
        channel.close()

    assert eventually(lambda: f"frames_sent_total{WEB} {names + 1}.0" in fetch(server))
    assert series(fetch(server)) == before


WEB = '{dataset="web",order="shuffled-1"}'


def series(text: str) -> set[str]:
    """The names and labels of all samples."""
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
