"""Several servers of one corpus: they stand in for each other, from exactly the next row."""

from __future__ import annotations

import inspect
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from client import RemoteBatches, Timeouts
from tests.client.conftest import (
    FINGERPRINT,
    ScriptedServer,
    StartScripted,
    honest,
    honest_frames,
    wanted,
)
from tests.support.ports import free_port
from tests.support.states import fingerprint_of
from tests.support.waiting import eventually
from tokenfeed.client.runtime.supervisor import Supervisor
from tokenfeed.client.source import describe
from tokenfeed.client.source.servers import Servers
from tokenfeed.client.transport.replicas import ReplicaSet
from tokenfeed.errors import InvalidRequest, StreamMismatch, Unreachable
from tokenfeed.v1 import tokenfeed_pb2 as pb

B, T = 3, 5
Script = Callable[[pb.GetBatchRequest, grpc.ServicerContext], Iterator[bytes]]


def after_frames(count: int, end: Callable[[grpc.ServicerContext], None]) -> Script:
    def script(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        for index, (_, message) in enumerate(honest_frames(request, rows_per_frame=2)):
            if index == count:
                end(context)
            yield message

    return script


def going_away(context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNAVAILABLE, "server: is being stopped")


def refusing(context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "seed: is not what was meant")


def silent(context: grpc.ServicerContext) -> None:
    """Say nothing until the caller gives up."""
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(30)


def samples(feed: RemoteBatches) -> list[int]:
    """The samples of all delivered rows."""
    return [row for x, _ in feed for row in x[:, 0].tolist()]


def feed_from(
    targets: Any,
    *,
    read_seconds: float = 3.0,
    reconnect_seconds: float | None = 10.0,
    **options: Any,
) -> RemoteBatches:
    options = {"num_batches": 20, "rank": 0, "world_size": 1} | options
    timeouts = Timeouts(read_seconds=read_seconds, reconnect_seconds=reconnect_seconds)
    return RemoteBatches(targets, B, T, timeouts=timeouts, **options)


def test_a_server_that_is_down_is_passed_over(scripted: ScriptedServer) -> None:
    with feed_from([f"127.0.0.1:{free_port()}", scripted.address]) as feed:
        assert samples(feed) == list(range(60))


def test_the_next_server_goes_on_with_exactly_the_next_row(start_scripted: StartScripted) -> None:
    """Also within a batch: what has arrived is kept."""
    first, second = start_scripted(), start_scripted()
    first.scripts = [after_frames(1, going_away)] * 9

    with feed_from([first.address, second.address]) as feed:
        assert samples(feed) == list(range(60))

    begun = second.requests[0]
    assert (begun.first_sample, begun.first_row) == (0, 2)


def test_a_silent_server_is_left_after_the_read_timeout(start_scripted: StartScripted) -> None:
    """Stopped, or behind a network that drops everything: its connection looks healthy."""
    gaps = []
    for _ in range(3):
        first, second = start_scripted(), start_scripted()
        first.scripts = [after_frames(1, silent)] * 9
        with feed_from([first.address, second.address], read_seconds=0.5) as feed:
            began = time.monotonic()
            assert samples(feed) == list(range(60))
            gaps.append(time.monotonic() - began)

    assert 0.5 <= min(gaps) < 1.0


def test_a_slow_line_is_not_left_again_and_again(scripted: ScriptedServer) -> None:
    """What it had brought of a frame would be thrown away each time."""

    def slow(request: pb.GetBatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        for _, message in honest_frames(request):
            threading.Event().wait(0.3)
            yield message

    scripted.scripts = [slow] * 30
    with feed_from(scripted.address, num_batches=8, read_seconds=0.1) as feed:
        assert samples(feed) == list(range(24))

        assert feed.stats().reconnects <= 1  # a busy machine may stop for longer than a frame takes


def test_a_server_that_does_not_even_describe_itself_is_left(start_scripted: StartScripted) -> None:
    """A port that accepts connections and never answers."""
    with socket.create_server(("localhost", 0)) as mute:
        address = f"localhost:{mute.getsockname()[1]}"
        second = start_scripted()
        with feed_from([address, second.address], read_seconds=0.5) as feed:
            assert samples(feed) == list(range(60))


def test_closing_does_not_wait_for_a_server_that_never_answers() -> None:
    with socket.create_server(("localhost", 0)) as mute:
        feed = feed_from(f"localhost:{mute.getsockname()[1]}", read_seconds=30.0)
        threading.Timer(0.2, feed.close).start()
        began = time.monotonic()
        assert samples(feed) == []

        assert time.monotonic() - began < 5


def test_a_pause_of_the_trainer_is_no_silence_of_the_server(scripted: ScriptedServer) -> None:
    """The timeout runs only while something is asked for."""
    with feed_from(scripted.address, read_seconds=1.0, prefetch_bytes=100) as feed:
        next(feed)
        time.sleep(2.5)
        next(feed)

        assert feed.stats().reconnects == 0


def test_an_outage_that_ends_before_a_pause_of_the_trainer_is_no_error(
    scripted: ScriptedServer,
) -> None:
    """The reconnect timeout runs only during a wait, and there is none."""
    scripted.scripts = [honest, *[after_frames(0, going_away)] * 4]
    with feed_from(
        scripted.address, num_batches=20, prefetch_bytes=100, reconnect_seconds=0.1
    ) as feed:
        found = next(feed)[0][:, 0].tolist()
        time.sleep(2.5)
        found += samples(feed)

    assert found == list(range(60))
    assert scripted.scripts == []


def test_a_busy_proxy_and_a_stranger_among_the_replicas_end_no_run(
    scripted: ScriptedServer,
) -> None:
    """The one comes back, and the other, which knows no method of ours, never serves."""

    def busy(context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests")

    scripted.scripts = [after_frames(1, busy), *[after_frames(0, busy)] * 4]
    stranger = grpc.server(ThreadPoolExecutor(1))
    port = stranger.add_insecure_port("127.0.0.1:0")
    stranger.start()
    with feed_from([f"127.0.0.1:{port}", scripted.address], reconnect_seconds=60.0) as feed:
        assert samples(feed) == list(range(20 * B))
    stranger.stop(None).wait()


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "foo..bar", ".example.com"])
def test_a_name_that_no_resolver_takes_is_waited_for_like_one_that_it_does_not_know(
    host: str,
) -> None:
    with feed_from(f"{host}:50051", reconnect_seconds=0.3) as feed:
        with pytest.raises(Unreachable, match=r"no batches for"):
            next(feed)


def test_a_digest_that_becomes_known_later_is_compared_from_then_on(
    start_scripted: StartScripted, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers take theirs while they serve; the feed runs already when one is found to differ."""
    known, (first, second) = threading.Event(), (start_scripted(), start_scripted())

    def going_away_later(context: grpc.ServicerContext) -> None:
        assert known.wait(10)
        going_away(context)

    first.scripts = [after_frames(1, going_away)]
    second.scripts = [after_frames(1, going_away_later)]
    with feed_from([first.address, second.address]) as feed:
        next(feed)
        first.digest, second.digest = b"a" * 32, b"b" * 32
        known.set()
        assert samples(feed) == list(range(B, 20 * B))

    assert not first.requests[0].stream.sources[0].expected_digest
    assert first.requests[-1].stream.sources[0].expected_digest == first.digest


def test_the_first_digest_that_is_known_is_that_of_all_servers(
    start_scripted: StartScripted,
) -> None:
    """The first server may know none, and the next two each another one."""
    unknowing, one, other = (start_scripted() for _ in range(3))
    one.digest, other.digest = bytes([1] * 32), bytes([2] * 32)
    unknowing.scripts = [after_frames(1, going_away)]
    addresses = [server.address for server in (unknowing, one, other)]

    with RemoteBatches(addresses, B, T, rank=0, world_size=1, num_batches=20) as feed:
        assert len(list(feed)) == 20

    assert other.requests == []
    assert {request.stream.sources[0].expected_digest for request in one.requests} == {
        bytes([1] * 32)
    }


@pytest.mark.parametrize("given", [None, FINGERPRINT], ids=["none given", "given"])
def test_a_known_digest_is_compared_when_servers_are_asked_about_another_context_length(
    start_scripted: StartScripted, caplog: pytest.LogCaptureFixture, given: bytes | None
) -> None:
    """And one that knows none answers first: else another corpus is found out in an outage."""
    unknowing, knowing, address = start_scripted(), start_scripted(), f"127.0.0.1:{free_port()}"
    knowing.digest = bytes([1] * 32)
    unknowing.windows_per_epoch = knowing.windows_per_epoch = 10
    targets = [unknowing.address, address, knowing.address]
    remote = Servers(targets, wanted(T, B), timeouts=Timeouts(), fingerprint=given)
    with closing(remote):
        remote.await_described()
        start_scripted(address).digest = bytes([2] * 32)

        assert remote.rows_of("shuffled-1", T + 1) == 10

        assert remote.await_described()[0].digest == knowing.digest
    assert (
        f"server rejected address={address} reason=has another corpus: digest {'02' * 32}"
        in caplog.text
    )


def test_a_digest_that_is_found_while_asking_about_another_context_length_is_kept(
    start_scripted: StartScripted,
) -> None:
    """What is known of the own context length stays."""
    server = start_scripted()
    server.windows_per_epoch = 10
    with closing(Servers(server.address, wanted(T, B), timeouts=Timeouts())) as remote:
        remote.await_described()
        server.digest, server.windows_per_epoch = bytes([1] * 32), 9

        assert remote.rows_of("shuffled-1", T + 1) == 9

        assert remote.await_described()[0].digest == server.digest
        assert remote.rows_of("shuffled-1") == 10


def test_a_fingerprint_selects_the_corpus_whichever_server_answers_first(
    start_scripted: StartScripted,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks that begin with different servers of different corpora would each believe their own."""
    monkeypatch.setattr(describe, "_STRAGGLER_SECONDS", 30)
    other, right = start_scripted(), start_scripted()
    other.fingerprint = b"another corpus, of as many bytes"
    both = [other.address, right.address]
    for rank in range(2):
        with feed_from(
            both, fingerprint=FINGERPRINT.hex().upper(), rank=rank, world_size=2
        ) as feed:
            next(feed)
            assert fingerprint_of(feed.state_dict()) == FINGERPRINT.hex()

    assert other.requests == []
    assert (
        caplog.text.count(f"server rejected address={other.address} reason=has another corpus") == 2
    )


def test_a_fingerprint_that_no_server_has_is_an_error_at_once_that_names_both(
    scripted: ScriptedServer,
) -> None:
    with feed_from(scripted.address, fingerprint="0" * 64, reconnect_seconds=60.0) as feed:
        with pytest.raises(StreamMismatch, match=f"{FINGERPRINT.hex()}, not {'0' * 64}"):
            next(feed)


def test_who_may_have_the_corpus_and_is_away_is_waited_for(start_scripted: StartScripted) -> None:
    """The only one up is the wrong one, for now."""
    other, address = start_scripted(), f"127.0.0.1:{free_port()}"
    other.fingerprint = b"another corpus, of as many bytes"
    with feed_from([other.address, address], fingerprint=FINGERPRINT.hex()) as feed:
        threading.Timer(0.5, start_scripted, (address,)).start()
        assert samples(feed) == list(range(20 * B))


def test_a_fingerprint_that_is_none_is_refused_when_the_feed_is_made() -> None:
    for wrong in ("", "abc", "0" * 63 + "g", "0" * 65, 7):
        with pytest.raises(InvalidRequest, match=r"fingerprint: .* (64 hexadecimal|not text)"):
            feed_from("localhost:1", fingerprint=wrong)


def test_the_log_names_the_rank_that_waits_and_says_when_it_is_over(
    caplog: pytest.LogCaptureFixture, start_scripted: StartScripted
) -> None:
    """Of 512 ranks one waits, and its log is looked at afterwards."""
    address = f"127.0.0.1:{free_port()}"
    with feed_from(address, rank=3, world_size=4, reconnect_seconds=60.0) as feed:
        threading.Timer(0.5, start_scripted, (address,)).start()
        next(feed)

        assert f"waiting for server rank=3 target={address}" in caplog.text
        assert eventually(lambda: f"server is back rank=3 target={address} " in caplog.text)


def test_a_feed_gives_up_before_nccl_s_watchdog_does() -> None:
    """At 600 s that ends the ranks that wait for this one, and what is seen is its message."""
    assert inspect.signature(RemoteBatches).parameters["timeouts"].default.reconnect_seconds == 480


def test_a_server_with_another_corpus_is_refused_by_name_before_the_first_batch(
    start_scripted: StartScripted,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(describe, "_STRAGGLER_SECONDS", 30)
    first, other = start_scripted(), start_scripted()
    other.fingerprint = bytes(32)

    with feed_from([first.address, other.address]) as feed, caplog.at_level(logging.ERROR):
        next(feed)
        assert f"server rejected address={other.address} reason=has another corpus" in caplog.text
        samples(feed)

    assert other.requests == []


def test_a_server_whose_digest_differs_is_refused(start_scripted: StartScripted) -> None:
    """Above 1 GiB the fingerprint is a sample; the digest is not, where both have one."""
    first, same, other = start_scripted(), start_scripted(), start_scripted()
    first.digest, other.digest = b"a" * 32, b"b" * 32
    first.scripts = [after_frames(1, going_away)] * 9

    with feed_from([first.address, other.address, same.address]) as feed:
        assert samples(feed) == list(range(60))

    assert other.requests == []
    assert same.requests != []


def test_the_error_says_what_each_server_said(start_scripted: StartScripted) -> None:
    """One is down, and the other has another corpus."""
    first, other = start_scripted(), start_scripted()
    other.fingerprint = bytes(32)
    first.scripts = [after_frames(1, going_away)] + [after_frames(0, going_away)] * 99
    both = f"{first.address}: UNAVAILABLE: .*; {other.address}: has another corpus"

    with feed_from([first.address, other.address], reconnect_seconds=0.5) as feed:
        with pytest.raises(Unreachable, match=both):
            samples(feed)


def test_what_looks_like_a_refusal_once_is_asked_again_on_a_new_connection(
    scripted: ScriptedServer,
) -> None:
    """A bit was flipped on the way to the server; the request itself is good."""
    scripted.scripts = [after_frames(1, refusing)]

    with feed_from(scripted.address) as feed:
        assert samples(feed) == list(range(60))
        assert feed.stats().reconnects == 1

    assert len(set(scripted.peers)) == 2


class Resolver:
    """Answers for every name alike. addresses: of the name; none is an error.  ready: cleared, it
    hangs.
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.ready = threading.Event()
        self.ready.set()

    def getaddrinfo(self, host: str, port: str, **_: Any) -> list[tuple[Any, ...]]:
        self.ready.wait(30)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port)))
            for address in self.addresses
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    """A resolver that knows no name as yet."""
    resolver = Resolver()
    monkeypatch.setattr("socket.getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.ready.set()


def test_all_addresses_of_a_name_are_servers(
    start_scripted: StartScripted, resolver: Resolver
) -> None:
    """As a headless service of Kubernetes, or a scaled one of compose, is resolved."""
    port = free_port()
    first = start_scripted(f"127.0.0.1:{port}")
    second = start_scripted(f"127.0.0.2:{port}")
    first.scripts = [after_frames(1, going_away)] * 9
    resolver.addresses = ["127.0.0.2", "127.0.0.1"]

    with feed_from(f"dns:///feed.example:{port}") as feed:
        assert samples(feed) == list(range(60))

    assert first.requests != []
    assert second.requests != []


@pytest.mark.alone
def test_a_new_address_of_a_name_is_found_while_the_others_are_well(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod was added; no request waits for the resolver meanwhile."""
    monkeypatch.setattr("tokenfeed.client.transport.replicas._RESOLVE_SECONDS", 0.0)
    replicas = ReplicaSet("dns:///feed.example:1")
    resolver.addresses = ["127.0.0.1"]
    assert addresses(replicas) == ["ipv4:127.0.0.1:1"]

    resolver.ready.clear()
    resolver.addresses = ["127.0.0.1", "127.0.0.2"]
    began = time.monotonic()
    assert addresses(replicas) == ["ipv4:127.0.0.1:1"]
    assert time.monotonic() - began < 0.5

    resolver.ready.set()
    while len(addresses(replicas)) == 1:
        time.sleep(0.01)
    assert addresses(replicas) == ["ipv4:127.0.0.1:1", "ipv4:127.0.0.2:1"]


def addresses(replicas: ReplicaSet) -> list[str]:
    return [replica.address for replica in replicas.all(3.0, lambda: False)]


def test_what_a_name_stood_for_is_asked_again_when_it_cannot_be_resolved(
    start_scripted: StartScripted, resolver: Resolver
) -> None:
    """The server is restarted at the same address while the resolver is down."""
    server = start_scripted()
    port = int(server.address.rpartition(":")[2])
    resolver.addresses = ["127.0.0.1"]

    def resolver_down(context: grpc.ServicerContext) -> None:
        resolver.addresses = []
        going_away(context)

    server.scripts = [after_frames(1, resolver_down)] * 3

    with feed_from(f"dns:///feed.example:{port}") as feed:
        assert samples(feed) == list(range(60))


def test_a_name_that_cannot_be_resolved_is_waited_for(resolver: Resolver) -> None:
    with feed_from("dns:///feed.example:1", reconnect_seconds=0.3) as feed:
        with pytest.raises(Unreachable, match=r"dns:///feed.example:1.*cannot be resolved"):
            next(feed)


@pytest.mark.alone
@pytest.mark.parametrize("hangs", [False, True])
def test_closing_does_not_wait_for_a_name_that_cannot_be_resolved(
    resolver: Resolver, hangs: bool
) -> None:
    if hangs:
        resolver.ready.clear()
    feed = feed_from("dns:///feed.example:1")
    reading = threading.Thread(target=samples, args=(feed,))
    reading.start()
    time.sleep(0.3)
    began = time.monotonic()
    feed.close()

    assert time.monotonic() - began < 2
    reading.join()


@pytest.mark.alone
@pytest.mark.parametrize("hangs", [False, True])
def test_closing_ends_the_wait_for_what_a_server_of_no_address_says_of_its_corpus(
    resolver: Resolver, hangs: bool
) -> None:
    if hangs:
        resolver.ready.clear()
    feed = feed_from("dns:///feed.example:1")
    threading.Timer(0.3, feed.close).start()
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="is closed"):
        feed.state_dict()

    assert time.monotonic() - began < 2


@pytest.mark.alone
def test_giving_up_does_not_wait_for_a_resolver_that_hangs(resolver: Resolver) -> None:
    resolver.ready.clear()
    began = time.monotonic()
    with feed_from("dns:///feed.example:1", reconnect_seconds=0.5) as feed:
        with pytest.raises(Unreachable, match="is not resolved yet"):
            next(feed)

    assert time.monotonic() - began < 2


def test_a_plain_address_does_not_wait_for_a_resolver_that_hangs(
    scripted: ScriptedServer, resolver: Resolver
) -> None:
    """But for a moment at the start, so that a resolver that is well has its say."""
    resolver.ready.clear()
    scripted.scripts = [after_frames(1, going_away)] * 3
    began = time.monotonic()
    with feed_from(["dns:///feed.example:1", scripted.address]) as feed:
        assert samples(feed) == list(range(60))

    assert time.monotonic() - began < 3


def test_a_unix_socket_is_an_address(start_scripted: StartScripted, tmp_path: Path) -> None:
    server = start_scripted(f"unix:{tmp_path}/feed.sock")

    with feed_from(server.address) as feed:
        assert samples(feed) == list(range(60))


@pytest.mark.parametrize("targets", [[], ["localhost"], ["localhost:1", 5], ""])
def test_what_is_no_address_is_refused_at_once(targets: Any) -> None:
    with pytest.raises(InvalidRequest, match="target"):
        feed_from(targets)


@pytest.mark.parametrize(("of", "name"), [(Servers, "_connect"), (Supervisor, "begin_to_close")])
def test_a_feed_that_is_closed_while_a_connection_is_abandoned_stays_closed(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch, of: type, name: str
) -> None:
    """By another thread: whichever of the two comes in the middle of the other."""
    with feed_from(scripted.address) as feed:
        next(feed)
        rows, step = feed._reader.rows, getattr(of, name)
        left = [feed.close if of is Servers else lambda: feed._datasets.abandon(rows)]

        def interrupted(*given: Any) -> None:
            if left:
                left.pop()()
            step(*given)

        monkeypatch.setattr(of, name, interrupted)
        if of is Servers:
            feed._datasets.abandon(rows)
        else:
            feed.close()

        assert feed.closed
        assert samples(feed) == []


def test_two_feeds_of_one_process_share_a_connection(scripted: ScriptedServer) -> None:
    """Train and validation."""
    scripted.scripts = [honest, honest]
    with feed_from(scripted.address) as train, feed_from(scripted.address, seed=1) as validation:
        next(train), next(validation)

    assert len(set(scripted.peers)) == 1


def test_a_name_is_asked_for_again_at_once_if_no_thread_could_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may have its limit of threads for a moment."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    replicas = ReplicaSet("dns:///localhost:1")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unreachable, match="cannot be resolved: can't start new thread"):
            replicas.all(1.0, lambda: False)
    assert replicas.all(5.0, lambda: False)
