"""--metrics-port: what a scrape says is what was sent."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from client import Mixture, NumpyBatches
from tests.conftest import Serve, WriteTokens
from tests.server.requests import batches
from tests.support.scraping import SCRAPED, Labels, fetch, labels, samples
from tests.support.waiting import eventually
from tokenfeed import __version__
from tokenfeed.errors import TokenfeedError
from tokenfeed.v1 import tokenfeed_pb2 as pb

B, T = 8, 15
GET_BATCH = "/tokenfeed.v1.TokenFeed/GetBatch"


@pytest.fixture
def two(write_tokens: WriteTokens) -> list[Path]:
    return [
        write_tokens(np.arange(1, 20_000), "train.bin"),
        write_tokens(np.arange(70_000, 140_000), "val.bin", "<u4"),
    ]


def test_rows_and_bytes_are_those_that_clients_counted(serve: Serve, two: list[Path]) -> None:
    """Exactly: a figure that is nearly right is argued about."""
    server = serve("--data", two[0], "--data", two[1], "--dtype", "val=uint32", *SCRAPED)
    rows = {}
    for dataset, order in (("train", "shuffled"), ("train", "sequential"), ("val", "shuffled")):
        with NumpyBatches(server.address, B, T, dataset=dataset, order=order) as feed:
            rows[dataset, f"{order}-1"] = sum(len(x) for x, _ in feed.epoch(0, tail="drop"))

    width = {"train": 2, "val": 4}
    rows_sent = {
        labels(dataset=dataset, order=order): count for (dataset, order), count in rows.items()
    }
    # A frame is counted once it was sent, which its client may see first.
    assert eventually(lambda: samples(server)["tokenfeed_rows_sent_total"] == rows_sent)
    found = samples(server)
    assert found["tokenfeed_token_bytes_sent_total"] == {
        labels(dataset=dataset, order=order): count * (T + 1) * width[dataset]
        for (dataset, order), count in rows.items()
    }
    for labelled, frames in found["tokenfeed_frames_sent_total"].items():
        assert found["tokenfeed_frame_make_seconds_count"][labelled] == frames
        assert found["tokenfeed_frame_send_seconds_count"][labelled] == frames
        assert found["tokenfeed_streams_opened_total"][labelled] == 1
        assert found["tokenfeed_first_frame_seconds_count"][labelled] == 1
        assert (
            found["tokenfeed_frame_bytes_sent_total"][labelled]
            > found["tokenfeed_token_bytes_sent_total"][labelled]
        )


def test_rows_of_a_mixture_count_for_their_datasets(serve: Serve, two: list[Path]) -> None:
    """Shares are what one looks at; frames hold rows of several datasets."""
    server = serve("--data", two[0], "--data", two[1], "--dtype", "val=uint32", *SCRAPED)
    mixture = Mixture({"train": 3, "val": 1}, order="shuffled")
    batches = 25
    with NumpyBatches(server.address, B, T, mixture=mixture, num_batches=batches) as feed:
        assert sum(len(x) for x, _ in feed) == B * batches

    by_dataset = {"train": 0.75 * B * batches, "val": 0.25 * B * batches}
    rows_sent = {
        labels(dataset=name, order="shuffled-1"): count for name, count in by_dataset.items()
    }
    assert eventually(lambda: samples(server)["tokenfeed_rows_sent_total"] == rows_sent)
    found = samples(server)
    # All rows of a frame have the widest type of the stage.
    assert found["tokenfeed_token_bytes_sent_total"] == {
        labels(dataset=name, order="shuffled-1"): count * (T + 1) * 4
        for name, count in by_dataset.items()
    }
    assert set(found["tokenfeed_frames_sent_total"]) == {labels(dataset="", order="mixture-1")}


def test_names_are_those_of_the_documents_and_labels_are_bounded(
    serve: Serve, two: list[Path]
) -> None:
    """A label that a client chooses would fill the memory of Prometheus."""
    server = serve("--data", two[0], *SCRAPED)
    with NumpyBatches(server.address, B, T, num_batches=2, client_name="run-17") as feed:
        list(feed)
    text = fetch(server)

    assert "run-17" not in text
    assert "127.0.0.1" not in text
    assert str(two[0].parent) not in text
    assert {name for found in samples(server).values() for one in found for name, _ in one} == {
        "dataset",
        "order",
        "reason",
        "result",
        "le",
        "version",
    }


def test_a_refusal_counts_by_its_status_and_kind(serve: Serve, two: list[Path]) -> None:
    """Refusals are what a wrong deployment looks like from outside."""
    server = serve("--data", two[0], *SCRAPED)
    ask = partial(batches, batch_size=1, context_length=8)
    requests = (
        pb.GetBatchRequest(),
        ask(context_length=10**9),
        ask(dataset="other"),
        ask(expected_identity=bytes(32)),
    )
    with grpc.insecure_channel(server.address) as channel:
        for request in requests:
            call = channel.unary_stream(GET_BATCH)(request.SerializeToString(), timeout=10)
            with pytest.raises(grpc.RpcError):
                next(call)

    assert samples(server)["tokenfeed_refusals_total"] == {
        labels(status="INVALID_ARGUMENT", reason="InvalidRequest"): 2,
        labels(status="NOT_FOUND", reason="NotFound"): 1,
        labels(status="FAILED_PRECONDITION", reason="StreamMismatch"): 1,
    }


def test_a_dataset_that_is_lost_is_told(serve: Serve, two: list[Path]) -> None:
    """The first alert that an operator writes."""
    server = serve("--data", two[0], "--data", two[1], "--dtype", "val=uint32", *SCRAPED)
    assert set(samples(server)["tokenfeed_dataset_lost"].values()) == {0}
    os.truncate(two[1], 1000)

    def is_lost() -> bool:
        lost = samples(server)["tokenfeed_dataset_lost"]
        return lost == {labels(dataset="train"): 0, labels(dataset="val"): 1}

    assert eventually(is_lost)
    assert samples(server)["tokenfeed_dataset_bytes"][labels(dataset="train")] == 2 * 19_999


def test_an_idle_client_that_is_cut_off_is_counted(serve: Serve, write_tokens: WriteTokens) -> None:
    """A client that reads nothing holds a thread until then."""
    corpus = write_tokens(np.arange(1 << 22) % 65_000)
    server = serve("--data", corpus, *SCRAPED, "--send-timeout-seconds", "2")
    request = batches(batch_size=32, context_length=2048, num_batches=10**6)
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_stream(GET_BATCH)(request.SerializeToString())
        next(call)
        assert samples(server)["tokenfeed_streams_open"] == {
            labels(dataset="train", order="random-1"): 1
        }

        def evictions() -> dict[Labels, float]:
            return samples(server).get("tokenfeed_evictions_total", {})

        assert eventually(lambda: evictions() == {labels(reason="send_timeout"): 1})
        open_streams = {labels(dataset="train", order="random-1"): 0}
        assert eventually(lambda: samples(server)["tokenfeed_streams_open"] == open_streams)


def test_the_process_and_its_build_are_told(serve: Serve, two: list[Path]) -> None:
    """Memory near its limit is what kills a server."""
    server = serve("--data", two[0], *SCRAPED)
    found = {name: values for name, values in samples(server).items() if len(values) == 1}
    one = {name: next(iter(values.values())) for name, values in found.items()}

    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert one["tokenfeed_threads"] >= 3
    assert 1e6 < one["tokenfeed_anonymous_memory_bytes"] < one["tokenfeed_resident_memory_bytes"]
    assert one["tokenfeed_resident_memory_bytes"] < one["tokenfeed_memory_limit_bytes"]
    resident = 1024 * int(status.partition("VmRSS:")[2].split()[0])
    assert one["tokenfeed_resident_memory_bytes"] == pytest.approx(resident, rel=0.2)
    assert found["tokenfeed_build_info"] == {labels(version=__version__): 1}


def test_a_drain_can_be_scraped(serve: Serve, write_tokens: WriteTokens) -> None:
    """The port is open until the server has ended its calls."""
    corpus = write_tokens(np.arange(1 << 22) % 65_000)
    server = serve("--data", corpus, *SCRAPED, "--drain-seconds", "20")
    request = batches(batch_size=32, context_length=2048, num_batches=10**6)
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_stream(GET_BATCH)(request.SerializeToString())
        next(call)
        taken_at: dict[float, float] = {}

        def hangs() -> bool:
            """Whether a frame is made, and none was taken for a second."""
            found = samples(server)
            (sent,) = found["tokenfeed_frames_sent_total"].values()
            (made,) = found["tokenfeed_frame_make_seconds_count"].values()
            since = taken_at.setdefault(sent, time.monotonic())
            return made - 1 == sent and time.monotonic() - since > 1

        assert eventually(hangs)
        assert samples(server)["tokenfeed_draining"] == {labels(): 0}
        server.process.terminate()

        assert eventually(lambda: samples(server)["tokenfeed_draining"] == {labels(): 1})


def test_the_port_is_closed_when_the_server_has_stopped(serve: Serve, two: list[Path]) -> None:
    """A scrape in progress does not delay the exit."""
    server = serve("--data", two[0], *SCRAPED)
    fetch(server)
    assert server.stop(signal.SIGTERM) == 0
    with pytest.raises(OSError, match="refused"):
        fetch(server)


def test_errors_of_the_contract_have_a_bounded_number_of_kinds() -> None:
    """Each is a value of the label `reason`."""
    kinds = TokenfeedError.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()

    assert len(kinds) < 40
