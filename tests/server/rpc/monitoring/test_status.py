"""tokenfeed.v1.Status: for operators, and for nobody else."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import grpc
import numpy as np
import pytest

from client import Mixture, NumpyBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.server.requests import batches
from tests.support.commands import run
from tests.support.waiting import eventually, least_seconds
from tokenfeed import __version__
from tokenfeed.client.source import row_stream
from tokenfeed.server.rpc.monitoring.status import _is_local
from tokenfeed.v1 import status_pb2 as pb

METHOD = "/tokenfeed.v1.Status/GetStatus"
B, T = 8, 15


@pytest.fixture(autouse=True)
def long_goodbyes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed says once that it ends: a busy machine may need more than 0.2 s for that."""
    monkeypatch.setattr(row_stream, "_GOODBYE_SECONDS", 20)


@pytest.fixture
def two(write_tokens: WriteTokens) -> list[Path]:
    return [write_tokens(np.arange(1, 20_000), name) for name in ("train.bin", "val.bin")]


def ask(
    address: str, request: pb.GetStatusRequest | bytes = b"", token: str = ""
) -> pb.GetStatusResponse:
    message = request if isinstance(request, bytes) else request.SerializeToString()
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(address) as channel:
        answer = channel.unary_unary(METHOD)(message, timeout=10, metadata=metadata)
    return pb.GetStatusResponse.FromString(answer)


def refused(address: str, request: bytes = b"", token: str = "") -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(address, request, token)
    return caught.value.code().name, caught.value.details()


def test_datasets_and_streams_are_told(serve: Serve, two: list[Path]) -> None:
    """What each rank of each run does, and of which data."""
    server = serve("--data", two[0], "--data", two[1], "--warm-up-bytes", "0")
    with NumpyBatches(
        *(server.address, B, T),
        dataset="val",
        rank=3,
        world_size=8,
        client_name="run-17",
        num_batches=3,
    ) as feed:
        list(feed)
        # A frame is counted once it was sent, which its client may see first.
        assert eventually(lambda: ask(server.address).streams[0].rows == 3 * B)
        found = ask(server.address)

    assert found.server_version == __version__
    assert 0 < found.started_ms < found.now_ms < found.started_ms + 60_000
    assert 0 < found.anonymous_bytes < found.memory_limit_bytes
    assert (found.draining, found.streams_max, found.streams_omitted) == (False, 512, 0)
    assert [(one.name, one.lost, one.format, one.dtype) for one in found.datasets] == [
        ("train", "", "raw", "uint16"),
        ("val", "", "raw", "uint16"),
    ]
    train, val = found.datasets
    assert (val.token_count, val.file_count, val.size_bytes) == (19_999, 1, 39_998)
    assert (len(val.fingerprint), train.rows) == (32, 0)
    assert not val.HasField("warm_up_share")
    (stream,) = found.streams
    assert (stream.client_name, stream.rank, stream.world_size) == ("run-17", 3, 8)
    assert (stream.batch_size, stream.context_length, stream.order) == (B, T, "shuffled-1")
    assert list(stream.datasets) == ["val"]
    assert stream.rows == val.rows == 3 * B
    assert stream.tokens == T * 3 * B
    # Rank 3 of 8 with batches of 8: row r of batch k is sample 64 k + 24 + r.
    assert stream.next_sample == 64 * 3 + 24
    assert val.token_bytes == 2 * (T + 1) * 3 * B


def stream_states(address: str) -> list[tuple[str, bool]]:
    """Name and end of each stream."""
    return [(one.client_name, one.has_ended) for one in ask(address).streams]


def test_a_feed_that_has_all_its_batches_has_ended(serve: Serve, two: list[Path]) -> None:
    """Else its silence would look like that of a trainer that hangs."""
    server = serve("--data", two[0])

    with NumpyBatches(server.address, B, T, num_batches=3, client_name="short") as feed:
        assert len(list(feed)) == 3
        assert eventually(lambda: stream_states(server.address) == [("short", True)])
        assert ask(server.address).streams[0].trainer_sample == 3 * B
    assert eventually(lambda: "reason=finished" in server.stderr)
    assert ask(server.address).streams_open == 0


@pytest.mark.parametrize("is_epoch", [False, True])
def test_a_trainer_that_hangs_with_its_last_rows_has_not_ended(
    serve: Serve, two: list[Path], is_epoch: bool
) -> None:
    """A short run, or an epoch, is sent as a whole at its beginning."""
    server = serve("--data", two[0])

    with NumpyBatches(server.address, B, T, num_batches=None if is_epoch else 30) as feed:
        batches = iter(feed.epoch(0)) if is_epoch else iter(feed)
        for _ in range(3):
            next(batches)
        assert eventually(lambda: ask(server.address).streams[0].calls == 0)
        (stream,) = ask(server.address).streams
        assert not stream.has_ended
        assert stream.trainer_sample < 3 * B
    assert eventually(lambda: ask(server.address).streams[0].has_ended)
    assert ask(server.address).streams[0].trainer_sample == 3 * B
    assert eventually(lambda: "reason=finished" in server.stderr)


@pytest.mark.parametrize("ends", ["close", "with", "collected"])
def test_a_feed_that_is_closed_early_says_so_and_where_its_trainer_was(
    serve: Serve, two: list[Path], ends: str
) -> None:
    """Its server has sent more than the trainer has got. A killed one says nothing."""
    server = serve("--data", two[0])
    feed = NumpyBatches(server.address, B, T, client_name="early")
    for _ in range(5):
        next(feed)
    assert stream_states(server.address) == [("early", False)]

    if ends == "with":
        with feed:
            pass
    elif ends == "close":
        feed.close()
    del feed
    assert eventually(lambda: stream_states(server.address) == [("early", True)])
    (stream,) = ask(server.address).streams
    assert stream.trainer_sample == 5 * B
    assert stream.next_sample >= 5 * B


def test_a_client_that_is_killed_has_not_ended(serve: Serve, two: list[Path]) -> None:
    """It may come back, and somebody should look."""
    server = serve("--data", two[0])
    code = (
        "import sys, time; from client import NumpyBatches; "
        f"feed = NumpyBatches({server.address!r}, {B}, {T}, client_name='killed'); "
        "next(feed); print('read', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "read\n"
        process.kill()

    assert eventually(lambda: ask(server.address).streams[0].calls == 0)
    assert stream_states(server.address) == [("killed", False)]


def test_a_trainer_that_goes_on_after_its_end_is_listed_again(
    serve: Serve, two: list[Path]
) -> None:
    """An evaluation reads all its rows, and reads them again an hour later."""
    server = serve("--data", two[0])

    with NumpyBatches(server.address, B, T, num_batches=3) as feed:
        state = feed.state_dict()
        list(feed)
        assert eventually(lambda: ask(server.address).streams[0].has_ended)
        feed.load_state_dict(state)
        list(feed)
        assert eventually(lambda: ask(server.address).streams[0].rows == 2 * 3 * B)
    assert eventually(lambda: server.stderr.count("reason=finished") == 2)
    assert server.stderr.count("stream opened") == 2


def test_where_a_trainer_is_follows_what_it_takes(serve: Serve, two: list[Path]) -> None:
    """Not only what was sent ahead of it."""
    server = serve("--data", two[0])

    with NumpyBatches(server.address, B, T, prefetch_bytes=8 * 2 * B * (T + 1)) as feed:
        for taken in (40, 80):
            for _ in range(40):
                next(feed)
            (stream,) = ask(server.address).streams
            # It is told with each request for half of the 8 batches that are prefetched.
            assert (taken - 9) * B <= stream.trainer_sample <= taken * B


@pytest.mark.parametrize(
    "command",
    [
        ("doctor", "--seconds", "0.1"),
        ("show", "--context-length", "8"),
        ("explain", "--context-length", "8", "--sample", "3", "--tokenizer", "bytes"),
    ],
    ids=lambda command: command[0],
)
def test_tools_are_no_trainers(
    serve: Serve, write_tokens: WriteTokens, command: tuple[str, ...]
) -> None:
    """Nobody looks for a run called doctor."""
    server = serve("--data", write_tokens(np.arange(20_000) % 250))
    rows = ask(server.address).datasets[0].rows

    run("-m", "tokenfeed", *command, server.address)

    found = ask(server.address)
    assert (list(found.streams), found.streams_open) == ([], 0)
    assert command[0] != "doctor" or found.datasets[0].rows > rows
    assert "stream" not in server.stderr.replace("max_streams", "")


def test_a_server_that_hangs_delays_no_close(serve: Serve, two: list[Path]) -> None:
    """A goodbye that nobody hears."""
    server = serve("--data", two[0])

    def seconds() -> float:
        feed = NumpyBatches(server.address, B, T)
        next(feed)
        server.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            feed.close()
            return time.monotonic() - began
        finally:
            server.process.send_signal(signal.SIGCONT)

    assert least_seconds(seconds, 1.0) < 1.0


def test_a_mixture_is_told_with_the_datasets_of_its_stage(serve: Serve, two: list[Path]) -> None:
    """Its stages change while it runs."""
    server = serve("--data", two[0], "--data", two[1])
    mixture = Mixture({"val": 1, "train": 3})
    with NumpyBatches(server.address, B, T, mixture=mixture, num_batches=4) as feed:
        list(feed)
    found = ask(server.address)

    (stream,) = found.streams
    assert (stream.order, list(stream.datasets)) == ("mixture-1", ["val", "train"])
    assert {one.name: one.rows for one in found.datasets} == {"train": 24, "val": 8}


def test_shares_in_memory_are_told_once_they_are_known(serve: Serve, two: list[Path]) -> None:
    """They are measured only while somebody asks."""
    server = serve("--data", two[0])

    def is_known() -> bool:
        (train,) = ask(server.address).datasets
        return train.HasField("resident_share") and train.warm_up_share == 1.0

    assert eventually(is_known)
    (train,) = ask(server.address).datasets
    assert train.resident_share == 1.0


def test_a_dataset_that_is_lost_says_why(serve: Serve, two: list[Path]) -> None:
    server = serve("--data", two[0], "--data", two[1])
    os.truncate(two[1], 100)

    assert eventually(lambda: ask(server.address).datasets[1].lost != "")
    assert "'val' changed while it was served" in ask(server.address).datasets[1].lost
    assert ask(server.address).datasets[0].lost == ""


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:50", True),
        ("ipv4:127.9.9.9:50", True),
        ("ipv6:%5B::1%5D:50", True),
        ("ipv6:[::1]:50", True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:50", True),
        ("unix:", True),
        ("unix:/run/x.sock", True),
        ("ipv4:10.0.0.1:50", False),
        ("ipv6:%5B::ffff:10.0.0.1%5D:50", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:50", False),
        ("vsock:2:50", False),
        ("", False),
    ],
)
def test_only_this_machine_is_local(peer: str, local: bool) -> None:
    """Without tokens of operators nobody else may ask."""
    assert _is_local(peer, loopback=True) == local
    assert _is_local(peer, loopback=False) == peer.startswith("unix")


def test_the_status_has_tokens_of_its_own(serve: Serve, two: list[Path], tmp_path: Path) -> None:
    """Who may train on the data may not see what others do, and the other way round."""
    data, status = tmp_path / "data.tokens", tmp_path / "status.tokens"
    data.write_text("trainer\n")
    status.write_text("operator\n")
    server = serve(
        *("--data", two[0], "--host", "127.0.0.1"),
        *("--token-file", data, "--status-token-file", status),
    )

    assert ask(server.address, token="operator").server_version == __version__
    for token in ("", "trainer", "wrong"):
        code, details = refused(server.address, token=token)
        assert (code, details) == (
            "UNAUTHENTICATED",
            "authorization: the status needs a token of operators",
        )
    metadata = (("authorization", "Bearer operator"),)
    with grpc.insecure_channel(server.address) as channel:
        describe = channel.unary_unary("/tokenfeed.v1.TokenFeed/Describe")
        with pytest.raises(grpc.RpcError) as caught:
            describe(b"", timeout=10, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    status.write_text("renewed\n")
    assert eventually(lambda: _answers(server.address, "renewed"))
    assert not _answers(server.address, "operator")


@pytest.mark.parametrize("option", ["--token-file", "--allow-plaintext-token"])
def test_a_proxy_on_the_same_machine_makes_no_client_an_operator(
    serve: Serve, two: list[Path], tmp_path: Path, option: str
) -> None:
    """Behind it, clients of everywhere come from a loopback address."""
    words = [option]
    if option == "--token-file":
        words.append(str(tmp_path / "tokens"))
        (tmp_path / "tokens").write_text("trainer\n")
    path = tmp_path / "feed.sock"
    server = serve("--data", two[0], "--host", "127.0.0.1", "--unix", path, *words)

    code, details = refused(server.address, token="trainer")
    assert code == "PERMISSION_DENIED"
    assert "--status-token-file" in details
    assert ask(f"unix:{path}").server_version == __version__


def _answers(address: str, token: str) -> bool:
    try:
        ask(address, token=token)
    except grpc.RpcError:
        return False
    return True


def test_without_tokens_a_unix_socket_may_ask(
    serve: Serve, two: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "feed.sock"
    serve("--data", two[0], "--unix", path)
    assert stat.S_ISSOCK(path.stat().st_mode)

    assert ask(f"unix:{path}").server_version == __version__


@pytest.mark.parametrize(
    ("request_bytes", "problem"),
    [
        (b"\x08\x91\x4e", "streams_max: 10001 is not in [1, 10000]"),
        (b"\x50\x01", "10"),
        (b"\xff\xff", "request: is not a valid GetStatusRequest"),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    serve: Serve, two: list[Path], request_bytes: bytes, problem: str
) -> None:
    server = serve("--data", two[0])
    code, details = refused(server.address, request_bytes)

    assert code == "INVALID_ARGUMENT"
    assert problem in details


def test_of_many_streams_the_latest_are_listed(serve: Serve, two: list[Path]) -> None:
    """A page of 10,000 clients helps nobody."""
    server = serve("--data", two[0])
    with grpc.insecure_channel(server.address) as channel:
        for number in range(5):
            request = batches(
                batch_size=2, context_length=8, num_batches=1, client_name=f"client {number}"
            )
            call = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
            list(call(request.SerializeToString(), timeout=10))
    found = ask(server.address, pb.GetStatusRequest(streams_max=2))

    assert [one.client_name for one in found.streams] == ["client 4", "client 3"]
    assert found.streams_omitted == 3
