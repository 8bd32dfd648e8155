"""Files truncated while eight streams gather from them at full speed, by a map or by pread.

A truncation under a map has three bad outcomes: SIGBUS for the whole process, rows of zeros that go
unnoticed, and streams that just stop. Every frame that arrives here is compared with the tokens as
they were written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from grpc.experimental import ChannelOptions
from numpy.lib.stride_tricks import sliding_window_view

from tests.conftest import Serve, Server, WriteTokens
from tests.server import requests
from tests.support import seccomp
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.stream import stream as streams
from tokenfeed.v1 import tokenfeed_pb2 as pb
from tokenfeed.wire import frame
from tokenfeed.wire.request import from_message

STREAMS = 8
FILE_BYTES = 2 << 20
CONTEXT_LENGTHS = (63, 255, 1000, 2047)
BATCH_SIZE = 32
ORDERS = ("random-1", "shuffled-1", "sequential-1")
WAYS = ("map", "map, no direct copies", "pread")
"""In which files are read. A system call filter may forbid direct copies out of a map."""

CALL_SECONDS = 150.0
FRAMES_KEPT = 64
"""Up to this many frames are read at full speed and compared afterwards; later ones at once."""
PAGE_BYTES = os.sysconf("SC_PAGESIZE")

SERVICE = "/tokenfeed.v1.TokenFeed"
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each stream
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)

Tokens = npt.NDArray[np.unsignedinteger]


def last_page(size: int) -> int:
    return (size - 1) // PAGE_BYTES * PAGE_BYTES


CUTS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "to nothing": lambda size, token: (0,),
    "to nothing and back": lambda size, token: (0, size),
    "to nothing and beyond": lambda size, token: (0, size + 3 * PAGE_BYTES),
    "to one byte": lambda size, token: (1,),
    "to half, at a page border": lambda size, token: (last_page(size // 2),),
    "to half, within a page": lambda size, token: (last_page(size // 2) + 1000,),
    "to half and back": lambda size, token: (last_page(size // 2) + 1000, size),
    "to half and beyond": lambda size, token: (last_page(size // 2), size + 1000),
    "to an odd number of bytes": lambda size, token: (size // 3 | 1,),
    "by the last page": lambda size, token: (last_page(size),),
    "within the last page": lambda size, token: ((last_page(size) + size) // 2,),
    "within the last page and back": lambda size, token: ((last_page(size) + size) // 2, size),
    "by one token": lambda size, token: (size - token,),
    "by one token and back": lambda size, token: (size - token, size),
    "by one byte": lambda size, token: (size - 1,),
    "by one token and beyond": lambda size, token: (size - token, size + 10),
}
"""(file bytes, token bytes) -> the sizes that the file is given, one after the other. If it grows
again, the hole reads as zeros."""


@dataclass(frozen=True)
class Corpus:
    """A dataset as it was written: what its streams may deliver, and nothing else.

    content: the tokens of all files, one after the other.
    """

    name: str
    context_length: int
    content: Tokens
    token_counts: npt.NDArray[np.int64]
    paths: list[Path]

    def shard(self, index: int) -> Tokens:
        first = int(self.token_counts[:index].sum())
        return self.content[first : first + int(self.token_counts[index])]

    def rows(self, request: pb.GetBatchRequest, first_row: int, row_count: int) -> Tokens:
        parsed, _ = from_message(request)
        samples = parsed.position.samples(first_row, row_count)
        spans = plan(parsed.stream, [Shape(self.token_counts)], samples)
        firsts = np.cumsum(self.token_counts) - self.token_counts
        every_window = sliding_window_view(self.content, parsed.stream.row_tokens)
        return every_window[firsts[spans.shard] + spans.token_offset]


@dataclass(frozen=True)
class Case:
    """A corpus, and what happens to one of its files once each stream had frames_before frames.

    sizes: in bytes, that the file is given one after the other.
    """

    corpus: Corpus
    cut: str
    cut_shard: int
    sizes: tuple[int, ...]
    frames_before: int

    @property
    def only_grows(self) -> bool:
        """Whether the file ends up as if something had been appended: what was cut off was zeros
        and reads as zeros again."""
        content = self.corpus.shard(self.cut_shard).view(np.uint8)
        return self.sizes[-1] > content.size and not content[min(self.sizes) :].any()

    def strike(self) -> None:
        for size_bytes in self.sizes:
            os.truncate(self.corpus.paths[self.cut_shard], size_bytes)


@dataclass
class Reading:
    """One call of GetBatch without end, read as fast as it comes; what came is compared later."""

    channel: grpc.Channel
    corpus: Corpus
    request: pb.GetBatchRequest
    identity: bytes
    frames_before: int
    flowing: threading.Event = field(default_factory=threading.Event)
    frame_count: int = 0
    row_count: int = 0
    status: grpc.StatusCode | None = None
    details: str = ""
    kept: list[bytes] = field(default_factory=list)

    def run(self) -> None:
        try:
            for message in get_batch(self.channel, self.request):
                self.kept.append(message)
                self.frame_count += 1
                if self.frame_count == self.frames_before:
                    self.flowing.set()
                if len(self.kept) == FRAMES_KEPT:
                    self.check()
        except grpc.RpcError as error:
            self.status, self.details = error.code(), error.details() or ""
        finally:
            self.flowing.set()

    def check(self) -> None:
        """Compare what came since the last time with what was written."""
        for message in self.kept:
            self.row_count += check_frame(
                message, self.corpus, self.request, self.identity, self.row_count
            )
        self.kept.clear()


class Bystander:
    """A stream from another dataset, compared frame by frame for as long as the test runs."""

    def __init__(self, channel: grpc.Channel, corpus: Corpus, identity: bytes) -> None:
        self._request = request_for(corpus, stream=0)
        self._call = get_batch(channel, self._request, seconds=None)
        self._corpus = corpus
        self._identity = identity
        self._changed = threading.Condition()
        self._frame_count = 0
        self._closed = False
        self._ended = False

    def run(self) -> None:
        row = 0
        try:
            for message in self._call:
                row += check_frame(message, self._corpus, self._request, self._identity, row)
                with self._changed:
                    self._frame_count += 1
                    self._changed.notify_all()
        except grpc.RpcError:
            if not self._closed:
                raise
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def wait_for_more(self) -> None:
        """Wait until frames arrive that were not even on their way; raise if they do not come."""
        with self._changed:
            enough = self._frame_count + 20
            arrived = self._changed.wait_for(
                lambda: self._ended or self._frame_count >= enough, CALL_SECONDS
            )
            assert arrived, "the other dataset's stream has stopped"
            assert not self._ended, "the other dataset's stream has ended"

    def close(self) -> None:
        self._closed = True
        self._call.cancel()


@dataclass(frozen=True)
class Feed:
    """A server, a connection for each stream, and the identity of each stream."""

    server: Server
    channels: list[grpc.Channel]
    fingerprints: dict[str, bytes]

    def identity(self, request: pb.GetBatchRequest) -> bytes:
        stream = from_message(request)[0].stream
        corpus = streams.Corpus(self.fingerprints[stream.source.dataset])
        return stream.known({0: corpus}).identity(0)


@pytest.mark.slow
@pytest.mark.parametrize("truncations", [16, pytest.param(100, marks=pytest.mark.proof)])
def test_files_cut_at_full_speed_many_times_cost_their_own_datasets_and_nothing_else(
    serve: Serve, write_tokens: WriteTokens, truncations: int
) -> None:
    """Overwriting a corpus that is in use must stop its own trainers, and no others."""
    numbers = np.random.default_rng(1)

    def tokens(index: int, count: int) -> Tokens:
        # From 256 on no row ends in a zero byte of its own; below, a few do.
        return numbers.integers((1, 256)[index // 2 % 2], 50_000, count, dtype=np.uint16)

    cases = make_cases(truncations, tokens, write_tokens)
    other = make_corpus("other", 1024, [tokens(0, 1 << 20)], write_tokens)

    strike_all(serve, cases, other)

    assert {case.cut for case in cases} == set(CUTS)


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("map", marks=pytest.mark.proof), *WAYS[1:]])
def test_files_of_wide_tokens_cut_at_full_speed_are_no_different(
    serve: Serve, write_tokens: WriteTokens, way: str
) -> None:
    """Every uint32 token of a real vocabulary ends in a zero byte, so zeros tell nothing there."""
    numbers = np.random.default_rng(2)

    def tokens(index: int, count: int) -> Tokens:
        return numbers.integers(1, 200_000, count, dtype=np.uint32)

    cases = make_cases(len(CUTS), tokens, write_tokens)
    other = make_corpus("other", 1024, [tokens(0, 1 << 20)], write_tokens)

    strike_all(served_by(serve, way), cases, other, "--dtype", "uint32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "turns"),
    [
        ("map", [0]),
        ("pread", [1]),
        *(
            pytest.param(way, [0, 1], marks=[pytest.mark.proof, pytest.mark.timeout(900)])
            for way in WAYS
        ),
    ],
)
def test_datasets_full_of_zeros_are_served_and_their_cuts_are_noticed(
    serve: Serve, write_tokens: WriteTokens, way: str, turns: list[int]
) -> None:
    """Token 0 is a token: padding and sparse corpora must neither be refused nor hide a cut."""
    numbers = np.random.default_rng(3)

    def tokens(index: int, count: int) -> Tokens:
        sparse = numbers.integers(1, 50_000, count, dtype=np.uint16)
        sparse[numbers.random(count) < 0.9] = 0
        # Every second file ends in zeros as well: a page of them, and then some.
        if index % 2:
            sparse[-3000:] = 0
        return sparse

    cuts = len(CUTS)
    indices = [index for turn in turns for index in range(turn * cuts, (turn + 1) * cuts)]
    cases = [make_case(index, tokens, write_tokens) for index in indices]
    cases = [case for case in cases if not case.only_grows]
    other = make_corpus("other", 1024, [tokens(1, 1 << 20)], write_tokens)

    strike_all(served_by(serve, way), cases, other)


def served_by(serve: Serve, way: str) -> Serve:
    """Start servers that read in one of WAYS."""
    kind, _, without = way.partition(", ")
    wrapper = seccomp.PREFIX if without else ()

    def start(*arguments: str | Path) -> Server:
        server = serve("--read", kind, *arguments, wrapper=wrapper)
        assert ("process_vm_writev cannot be used" in server.stderr) == bool(without)
        return server

    return start


def make_cases(
    count: int, make_tokens: Callable[[int, int], Tokens], write_tokens: WriteTokens
) -> list[Case]:
    """Return count cases: every cut, in one file and in one of three, at several row lengths."""
    return [make_case(index, make_tokens, write_tokens) for index in range(count)]


def make_case(
    index: int, make_tokens: Callable[[int, int], Tokens], write_tokens: WriteTokens
) -> Case:
    turn, cut_index = divmod(index, len(CUTS))
    context_length = CONTEXT_LENGTHS[(cut_index + turn) % len(CONTEXT_LENGTHS)]
    shard_count = 3 if (cut_index + turn // 2) % 2 else 1
    token_bytes = make_tokens(index, 1).itemsize
    windows = FILE_BYTES // token_bytes // context_length // shard_count
    # One token more than whole windows, so that the orders with epochs serve the very last one.
    shards = [
        make_tokens(index + turn, (windows + shard) * context_length + 1)
        for shard in range(shard_count)
    ]
    cut, cut_shard = list(CUTS)[cut_index], index % shard_count
    name = f"case-{index}-{cut.replace(',', '').replace(' ', '-')}"
    corpus = make_corpus(name, context_length, shards, write_tokens)
    sizes = CUTS[cut](shards[cut_shard].nbytes, token_bytes)
    return Case(corpus, cut, cut_shard, sizes, frames_before=3 + index % 4)


def make_corpus(
    name: str, context_length: int, shards: list[Tokens], write_tokens: WriteTokens
) -> Corpus:
    token_bytes = shards[0].itemsize
    paths = [
        write_tokens(shard, f"{name}-{index}.bin", f"<u{token_bytes}")
        for index, shard in enumerate(shards)
    ]
    counts = np.array([shard.size for shard in shards])
    return Corpus(name, context_length, np.concatenate(shards), counts, paths)


def strike_all(serve: Serve, cases: Sequence[Case], other: Corpus, *arguments: str) -> None:
    """Cut one dataset after the other, while a bystander reads on."""
    with connected(serve, [*(case.corpus for case in cases), other], *arguments) as feed:
        identity = feed.identity(request_for(other, stream=0))
        bystander = Bystander(feed.channels[STREAMS], other, identity)
        with ThreadPoolExecutor(STREAMS + 1) as threads:
            try:
                watched = threads.submit(bystander.run)
                bystander.wait_for_more()
                for case in cases:
                    strike_one(feed, case, threads)
                    assert feed.server.process.poll() is None, feed.server.stderr
                bystander.wait_for_more()
            finally:
                bystander.close()
        watched.result()
        for case in cases:
            assert_refused(feed, case.corpus)
        assert len(list(get_batch(feed.channels[0], request_for(other, 1, batches=8)))) > 0
        assert feed.server.process.poll() is None


def strike_one(feed: Feed, case: Case, threads: ThreadPoolExecutor) -> None:
    requests = [request_for(case.corpus, stream) for stream in range(STREAMS)]
    readings = [
        Reading(channel, case.corpus, request, feed.identity(request), case.frames_before)
        for channel, request in zip(feed.channels, requests, strict=False)
    ]
    running: list[Future[None]] = [threads.submit(reading.run) for reading in readings]
    for reading in readings:
        assert reading.flowing.wait(CALL_SECONDS)
    arrived_before = [reading.frame_count for reading in readings]
    assert [reading.status for reading in readings] == [None] * STREAMS
    case.strike()
    for one in running:
        one.result(timeout=2 * CALL_SECONDS)
    for reading in readings:
        reading.check()

    assert min(arrived_before) >= case.frames_before
    endings = [(reading.status, reading.frame_count) for reading in readings]
    lost = [status is grpc.StatusCode.DATA_LOSS for status, _ in endings]
    assert all(lost), (case.corpus.name, endings)
    for reading in readings:
        assert_no_path(reading.details, case.corpus)
    assert_refused(feed, case.corpus)


def check_frame(
    message: bytes, corpus: Corpus, request: pb.GetBatchRequest, identity: bytes, first_row: int
) -> int:
    """Compare a frame with what was written, and return how many rows it has."""
    parsed, _ = from_message(request)
    frames = frame.Frames(parsed.stream.row_tokens, parsed.position, identity, {})
    rows = frame.decode(message).rows(frames, first_row).tokens
    expected = corpus.rows(request, first_row, len(rows))
    if not np.array_equal(rows, expected):
        wrong = np.flatnonzero((rows != expected).any(axis=1))
        token = int(np.argmax(rows[wrong[0]] != expected[wrong[0]]))
        raise AssertionError(
            f"{corpus.name}: {len(wrong)} of {len(rows)} rows from row {first_row} on"
            f" ({parsed.stream.source.order.NAME}) are wrong; the first at its token {token}:"
            f" {rows[wrong[0], token:][:8]}"
            f" instead of {expected[wrong[0], token:][:8]}"
        )
    return len(rows)


def assert_refused(feed: Feed, corpus: Corpus) -> None:
    request = request_for(corpus, stream=1, batches=1)
    with pytest.raises(grpc.RpcError) as refusal:
        list(get_batch(feed.channels[0], request))
    assert refusal.value.code() is grpc.StatusCode.DATA_LOSS
    assert_no_path(refusal.value.details(), corpus)


def assert_no_path(details: str, corpus: Corpus) -> None:
    assert corpus.name in details, "whose data is it?"
    assert "/" not in details
    assert not any(path.name in details for path in corpus.paths)


def request_for(corpus: Corpus, stream: int, batches: int | None = None) -> pb.GetBatchRequest:
    return requests.batches(
        dataset=corpus.name,
        batch_size=BATCH_SIZE,
        context_length=corpus.context_length,
        order=ORDERS[stream % len(ORDERS)],
        seed=stream,
        first_sample=1_000_003 * stream,
        num_batches=batches,
    )


def get_batch(
    channel: grpc.Channel, request: pb.GetBatchRequest, seconds: float | None = CALL_SECONDS
) -> grpc.CallIterator[bytes]:
    call: grpc.CallIterator[bytes] = channel.unary_stream(f"{SERVICE}/GetBatch")(
        request.SerializeToString(), timeout=seconds
    )
    return call


@contextmanager
def connected(serve: Serve, corpora: Sequence[Corpus], *arguments: str) -> Iterator[Feed]:
    """Serve corpora, each by its name, and connect once for each stream and for the bystander."""
    data = [word for corpus in corpora for word in data_arguments(corpus)]
    server = serve(*arguments, *data)
    with ExitStack() as channels:
        opened = [
            channels.enter_context(grpc.insecure_channel(server.address, CHANNEL_OPTIONS))
            for _ in range(STREAMS + 1)
        ]
        answer = opened[0].unary_unary(f"{SERVICE}/Describe")(b"", timeout=CALL_SECONDS)
        described = pb.DescribeResponse.FromString(answer).datasets
        yield Feed(server, opened, {data.name: data.fingerprint for data in described})


def data_arguments(corpus: Corpus) -> list[str]:
    first, *others = map(str, corpus.paths)
    return ["--data", f"{corpus.name}={first}", *others]
