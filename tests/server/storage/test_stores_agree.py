"""For any spans, every store gathers the same rows; and a store in memory can be served."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import WriteTokens
from tests.server.conftest import options
from tests.server.requests import batches
from tests.support.gathering import gather_block
from tests.support.memory_store import MemoryStore
from tests.support.stores import STORES, memory_store, object_store, pread_store
from tests.support.waiting import let_time_pass
from tokenfeed.errors import InvalidCorpus
from tokenfeed.sampling.spans import Pieces, Spans
from tokenfeed.server.datasets.opening import TokenChecks, dataset_of
from tokenfeed.server.rpc import listener
from tokenfeed.server.rpc.activity.tracker import Activity
from tokenfeed.server.rpc.admission import AdmissionControl, StreamLimits
from tokenfeed.server.rpc.service import TokenFeed
from tokenfeed.server.runtime.threads.poll_rate import PollRate
from tokenfeed.server.storage.formats import STORED
from tokenfeed.server.storage.store import TokenStore
from tokenfeed.v1 import tokenfeed_pb2 as pb

WAYS = {**STORES, "few descriptors": partial(pread_store, open_max=1)}
"""Ways to read files that may change."""


@st.composite
def corpora(draw: st.DrawFn) -> list[np.ndarray]:
    """Shards of one type; some are longer than a page, and some end in zeros."""
    dtype = STORED[draw(st.sampled_from(sorted(STORED)))]
    lengths = draw(st.lists(st.sampled_from([1, 2, 7, 100, 5000]), min_size=1, max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    end = draw(st.sampled_from([2, 100, 60_000, 100_000]))
    end = min(end, int(np.iinfo(dtype).max) + 1)
    return [random.integers(0, end, length).astype(dtype) for length in lengths]


@st.composite
def spans_within(draw: st.DrawFn, counts: list[int]) -> Spans:
    """Rows of any number of spans, of which some have padding and some are nothing else."""
    rows = draw(
        st.lists(
            st.lists(st.tuples(st.integers(0, len(counts) - 1), st.floats(0, 1), st.floats(0, 1))),
            max_size=5,
        )
    )
    shard, token_offset, token_count, first_span, row_tokens = [], [], [], [0], 1
    for row in rows:
        length = 0
        for index, place, share in row:
            first = int(place * (counts[index] - 1))
            count = 1 + int(share * (counts[index] - first - 1))
            shard.append(index)
            token_offset.append(first)
            token_count.append(count)
            length += count
        first_span.append(len(shard))
        row_tokens = max(row_tokens, length)
    numbers = [np.array(each, dtype=np.int64) for each in (shard, token_offset)]
    pieces = Pieces(np.array(first_span), np.array(token_count, dtype=np.int64))
    padding = draw(st.integers(0, 3))
    source = np.zeros(len(shard), dtype=np.int64)
    return Spans(row_tokens + padding, source, *numbers, pieces)


@settings(max_examples=200)
@given(st.data())
def test_every_store_gathers_the_same_rows_of_any_spans(data: st.DataObject) -> None:
    """The kind of store decides how fast rows come, and never which rows."""
    arrays = data.draw(corpora())
    spans = data.draw(spans_within([array.size for array in arrays]))
    token_max = int(max(array.max() for array in arrays))
    memory = MemoryStore("train", arrays)
    memory.narrow(token_max)
    expected = gather_block(memory, spans).tokens
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        paths = [str(Path(folder) / f"{index}.bin") for index in range(len(arrays))]
        for path, array in zip(paths, arrays, strict=True):
            array.tofile(path)
        for open_store in (*WAYS.values(), memory_store, object_store):
            store = opened.enter_context(
                closing(open_store("train", paths, options(arrays[0].dtype.str), PollRate()))
            )
            store.narrow(token_max)
            store.advise(spans)
            for part in (spans, spans[1:], spans[:0]):
                tokens = gather_block(store, part).tokens
                assert tokens.dtype == expected.dtype
                np.testing.assert_array_equal(tokens, expected[-len(part) or len(expected) :])
            assert require_bytes(store) == [array.tobytes() for array in arrays]


def require_bytes(store: TokenStore) -> list[bytes]:
    """Return all that a store holds, and require that its ways to read it agree."""
    found = []
    for index, count in enumerate(store.shape.token_counts.tolist()):
        size_bytes = count * store.stored.itemsize
        found.append(store.files.read(index, 0, size_bytes))
        assert store.files.read_served(index, 0, size_bytes) == found[-1]
        assert (
            store.files.read_served(index, size_bytes // 2, 1) == found[-1][size_bytes // 2 :][:1]
        )
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", ["written", "cut", "grown"])
def test_no_store_reads_a_file_at_the_start_that_has_changed(
    write_tokens: WriteTokens, way: str, change: str
) -> None:
    """Its fingerprint would be that of other tokens than those served."""
    path = write_tokens(range(1, 5000))
    with closing(WAYS[way]("train", [str(path)], options("<u2"), PollRate())) as store:
        assert store.files.read(0, 2, 4) == b"\2\0\3\0"
        let_time_pass(path)
        with path.open("r+b") as file:
            file.truncate({"written": 9998, "cut": 5000, "grown": 20_000}[change])
            file.write(b"\7\0")

        with pytest.raises(InvalidCorpus, match=r"train\.bin: changed while it was being opened"):
            store.files.read(0, 2, 4)


def test_windows_are_gathered_as_any_other_spans() -> None:
    """They have a way of their own, since most streams have nothing else."""
    tokens = np.arange(5000, dtype="<i8")
    store = MemoryStore("train", [tokens])
    store.narrow(4999)
    windows = Spans.of_windows(9, np.zeros(4, dtype=np.int64), np.array([0, 4991, 7, 7]))
    tokens = gather_block(store, windows).tokens
    assert (tokens[:, 0] == windows.token_offset).all()
    assert (np.diff(tokens.astype(int)) == 1).all()


@pytest.mark.parametrize("dtype", ["<u2", "<i8"])
def test_a_store_in_memory_is_served(dtype: str) -> None:
    """Nothing above a store knows where its tokens are."""
    store = MemoryStore("train", [np.arange(1000, dtype=dtype), np.arange(50, dtype=dtype)])
    dataset = dataset_of(store, TokenChecks())
    calls = AdmissionControl(StreamLimits())
    service = TokenFeed(
        {"train": dataset},
        calls,
        calls,
        Activity(),
        batch_bytes_max=1 << 20,
        request_bytes_max=1 << 16,
    )
    server = listener.create_server(service.handler(), calls_max=4, request_bytes_max=1 << 16)
    address = listener.bind(server, "127.0.0.1", 0)
    server.start()
    try:
        with grpc.insecure_channel(address) as channel:
            ask = channel.unary_stream("/tokenfeed.v1.TokenFeed/GetBatch")
            request = batches(batch_size=4, context_length=9, num_batches=3, order="sequential-1")
            messages = list(ask(request.SerializeToString(), timeout=10))
    finally:
        calls.drain()
        server.stop(None).wait()

    frames = [pb.Frame.FromString(message) for message in messages]
    rows = np.concatenate([np.frombuffer(found.tokens, "<u2").reshape(-1, 10) for found in frames])
    assert rows.tolist() == [list(range(9 * row, 9 * row + 10)) for row in range(12)]
