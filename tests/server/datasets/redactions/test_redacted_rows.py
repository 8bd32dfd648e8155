"""Redacted rows, against a walk over single tokens: windows, pieces with padding, and mixtures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.conftest import options
from tests.support.gathering import gather_block
from tests.support.memory_store import MemoryStore
from tests.support.redacted_corpora import write_lists
from tests.support.waiting import eventually
from tokenfeed.errors import Deleted, LimitExceeded, Unreadable
from tokenfeed.sampling import orders
from tokenfeed.sampling.document_rows import RowsKey
from tokenfeed.sampling.plan import Shape, plan
from tokenfeed.sampling.spans import Pieces, Spans
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.redactions import covering
from tokenfeed.server.datasets.redactions.covering import Covering, SourceLists
from tokenfeed.server.datasets.redactions.list_format import ListContent
from tokenfeed.server.datasets.redactions.ranges import RedactionList, TokenRanges
from tokenfeed.server.datasets.redactions.redacted_rows import (
    RedactedRows,
    Redactor,
    are_same,
)
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.documents import Delimiters
from tokenfeed.server.storage.mixed_store import MixedStore
from tokenfeed.server.storage.store import RowStore
from tokenfeed.stream import stream as streams
from tokenfeed.stream.schedule import first_stage
from tokenfeed.stream.stage import Redaction, Source
from tokenfeed.wire.row_block import Plane

T = 12
SAMPLES = 24
END_TOKEN = 7
GOLDEN = json.loads((Path(__file__).parents[3] / "golden.json").read_text())["redacted_rows"]

Tokens = npt.NDArray[np.unsignedinteger]


class Kind(NamedTuple):
    """A dataset.  sizes: tokens of each file.  dtype: as stored.  masked: with a loss mask."""

    sizes: tuple[int, ...]
    dtype: str
    masked: bool = False


KINDS = {
    "u2": Kind((40, 13, 61), "<u2", masked=True),
    "u4": Kind((70, 30), "<u4"),
    "narrow": Kind((55,), "<i8"),  # served as uint16
}
STREAMS: dict[str, list[tuple[str, str, str]]] = {
    "windows": [("u2", "shuffled-1", "")],
    "overlapping windows": [("u4", "random-1", "")],
    "narrowed windows": [("narrow", "sequential-1", "")],
    "packed": [("u4", "packed-1", "cut")],
    "padded": [("u2", "padded-1", "truncate")],
    "narrowed pieces": [("narrow", "packed-1", "cut")],
    "mixture of windows": [("u2", "shuffled-1", ""), ("u2", "random-1", "")],
    "mixture": [
        ("u2", "packed-1", "cut"),
        ("u4", "random-1", ""),
        ("u2", "shuffled-1", ""),
        ("narrow", "padded-1", "cut"),
    ],
}
"""Dataset, order and long documents of each source."""


def written(folder: Path, name: str, kind: Kind) -> DatasetSource:
    """Files whose documents have 1 to 20 tokens, of which the last one is END_TOKEN."""
    random, paths = np.random.default_rng(5), []
    for index, size in enumerate(kind.sizes):
        tokens = random.integers(100, 60_000, size)
        tokens[np.cumsum(random.integers(1, 21, size))[:-1].clip(max=size - 1)] = END_TOKEN
        path = folder / f"{name}-{index}.npy"
        np.save(path, tokens.astype(kind.dtype))
        if kind.masked:
            (folder / f"{name}-{index}.loss").write_bytes(random.integers(0, 2, size, np.uint8))
        paths.append(str(path))
    return DatasetSource(name, tuple(paths))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Dataset]]:
    """Each of KINDS, with the rows of its documents."""
    folder, opened = tmp_path_factory.mktemp("redacted"), {}
    for name, kind in KINDS.items():
        source = written(folder, name, kind)
        masks = [f"{path.removesuffix('.npy')}.loss" for path in source.paths] * kind.masked
        planes = PlaneOptions(masks, Delimiters(END_TOKEN))
        opened[name] = open_dataset(source, options(), TokenChecks(), planes=planes)
        for order, long in (("packed-1", "cut"), ("padded-1", "cut"), ("padded-1", "truncate")):
            make_rows(opened[name], RowsKey(order, T, long))
    yield opened
    for dataset in opened.values():
        dataset.close()


def make_rows(dataset: Dataset, key: RowsKey) -> None:
    def are_made() -> bool:
        try:
            dataset.store.shape.document_rows(key)
        except Unreadable:
            return False
        return True

    assert eventually(are_made)


class Stream(NamedTuple):
    """A stream of SAMPLES rows.  planes: that a request may have beside plane 53."""

    datasets: list[Dataset]
    store: RowStore
    spans: Spans
    planes: list[int]


def stream_of(datasets: dict[str, Dataset], name: str) -> Stream:
    sources = tuple(
        Source(dataset, orders.find(order), 3, number, long)
        for number, (dataset, order, long) in enumerate(STREAMS[name])
    )
    used = [datasets[source.dataset] for source in sources]
    store: RowStore = used[0].store
    planes = [51] * ("u2" in (each.name for each in used)) + [52] * sources[0].reads_documents
    if len(sources) > 1:
        have_pieces = [source.reads_documents for source in sources]
        store = MixedStore([each.store for each in used], have_pieces)
    weights = {source.number: source.number + 1 for source in sources}
    stream = streams.Stream(7, sources, (first_stage(T, weights),))
    planes = [50, *planes] if sources[0].reads_documents else planes
    return Stream(used, store, plan(stream, store.shapes, np.arange(SAMPLES)), planes)


def places(spans: Spans) -> list[list[tuple[int, int, int]]]:
    """Source, file and token of each token of each row, without padding."""
    source, shard, first, count = (
        each.tolist() for each in (spans.source, spans.shard, spans.token_offset, spans.token_count)
    )
    return [
        [
            (source[span], shard[span], first[span] + i)
            for span in range(begin, end)
            for i in range(count[span])
        ]
        for begin, end in pairwise(spans.first_span.tolist())
    ]


def contains(one: RedactionList, file: int, token: int) -> bool:
    return any(f == file and a <= token < b for f, a, b in one.ranges.triples())


def walked(
    spans: Spans, tokens: Tokens, sources: Sequence[SourceLists]
) -> tuple[Tokens, list[list[int]], set[int]]:
    """The rows as they have to be sent, the numbers of plane 53 of each, and the rows that need
    deleted tokens; token by token.  tokens: of the corpus.
    """
    sent, runs, deleted = tokens.copy(), [], set()
    for row, found in enumerate(places(spans)):
        redacted = []
        for j, (source, file, token) in enumerate(found):
            lists, erased = sources[source].lists, sources[source].erased
            fills = [each.fill for each in lists if contains(each, file, token)]
            if fills:
                sent[row, j] = fills[-1]
                redacted.append(j)
            elif erased is not None and contains(erased, file, token):
                deleted.add(row)
        firsts = [j for j in redacted if j - 1 not in redacted]
        ends = [j + 1 for j in redacted if j + 1 not in redacted]
        runs.append([n for run in zip(firsts, ends, strict=True) for n in run])
    return sent, runs, deleted


def contents(plane: Plane) -> list[bytes]:
    ends = np.cumsum(plane.row_lengths).tolist()
    return [plane.content[a:b].tobytes() for a, b in zip([0, *ends], ends, strict=False)]


def redacted(stream: Stream, sources: Sequence[SourceLists]) -> RedactedRows:
    return RedactedRows(stream.store, Covering.of(tuple(sources)), stream.datasets)


@st.composite
def lists(draw: st.DrawFn, sizes: Sequence[int]) -> RedactionList:
    """A list of up to 6 ranges: single tokens, whole files, and what is between."""
    ranges = []
    for file in draw(st.lists(st.integers(0, len(sizes) - 1), max_size=6)):
        bounds = st.sampled_from([0, sizes[file]]) | st.integers(0, sizes[file])
        first, end = sorted((draw(bounds), draw(bounds)))
        ranges.append((file, first, end) if first < end else (file, 0, 1))
    return RedactionList.of(draw(st.sampled_from([0, 1, 65_535])), TokenRanges.of(ranges))


def drawn_lists(data: st.DataObject, stream: Stream, *, erases: bool) -> list[SourceLists]:
    """Up to 3 lists in force for each source; of the sources of a dataset the same are erased."""
    erased = {
        each.name: data.draw(st.none() | lists(KINDS[each.name].sizes)) if erases else None
        for each in stream.datasets
    }
    return [
        SourceLists(
            each.store.shape,
            tuple(data.draw(st.lists(lists(KINDS[each.name].sizes), max_size=3))),
            erased[each.name],
        )
        for each in stream.datasets
    ]


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@settings(max_examples=60)
def test_redacted_tokens_are_replaced_and_nothing_else_is(
    datasets: dict[str, Dataset], name: str, data: st.DataObject
) -> None:
    """In all rows, wherever the ranges begin and end; also where a block begins in the middle."""
    stream = stream_of(datasets, name)
    sources = drawn_lists(data, stream, erases=False)
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, SAMPLES)] * 2)))
    spans = stream.spans[first:end]
    plain = gather_block(stream.store, spans, stream.planes)
    expected, runs, _ = walked(spans, plain.tokens, sources)

    rows = redacted(stream, sources)
    found = gather_block(rows, spans, [*stream.planes, 53], dtype=stream.store.dtype)

    assert found.tokens.tolist() == expected.tolist()
    *others, plane = found.planes
    assert plane.kind == 53
    assert contents(plane) == [np.array(each, "<u4").tobytes() for each in runs]
    assert [(one.kind, contents(one)) for one in others] == [
        (one.kind, contents(one)) for one in plain.planes
    ]


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@settings(max_examples=60)
def test_a_row_is_refused_if_and_only_if_a_deleted_token_of_it_is_not_redacted(
    datasets: dict[str, Dataset], name: str, data: st.DataObject
) -> None:
    """What is on the disk there must not pass for the corpus, and all else is still served."""
    stream = stream_of(datasets, name)
    sources = drawn_lists(data, stream, erases=True)
    plain = gather_block(stream.store, stream.spans)
    expected, runs, deleted = walked(stream.spans, plain.tokens, sources)
    store = redacted(stream, sources)

    for row in range(SAMPLES):
        spans = stream.spans[row : row + 1]
        if row not in deleted:
            found = gather_block(store, spans, [53], dtype=plain.tokens.dtype)
            assert found.tokens.tolist() == expected[row : row + 1].tolist()
            assert contents(found.planes[0]) == [np.array(runs[row], "<u4").tobytes()]
            continue
        with pytest.raises(Deleted, match="tokens were deleted"):
            gather_block(store, spans, dtype=plain.tokens.dtype)


@pytest.mark.parametrize("case", GOLDEN)
def test_rows_are_redacted_as_published(case: dict[str, Any]) -> None:
    """An independent client takes the same tokens for targets."""
    store = MemoryStore("web", [np.arange(100, dtype="<u4"), np.arange(100, 200, dtype="<u4")])
    shard, offset, count = np.array(case["pieces"]).T
    pieces = Pieces(np.array([0, count.size]), count)
    spans = Spans(case["row_tokens"], np.zeros_like(shard), shard, offset, pieces)
    in_force = tuple(
        RedactionList.of(each["fill"], TokenRanges.of(each["ranges"])) for each in case["lists"]
    )
    assert gather_block(store, spans).tokens.tolist() == [case["tokens"]]

    rows = RedactedRows(store, Covering.of((SourceLists(store.shape, in_force),)), [])
    found = gather_block(rows, spans, [53], dtype=store.dtype)

    assert found.tokens.tolist() == [case["sent"]]
    assert found.planes[0].content.tobytes().hex() == case["redacted"]


def test_what_was_deleted_is_named_without_its_folder(datasets: dict[str, Dataset]) -> None:
    """The operator of a replica looks there; a client is told no path."""
    stream = stream_of(datasets, "mixture of windows")
    erased = RedactionList.of(0, TokenRanges.of([(1, 3, 9), (2, 0, 61)]))
    sources = [SourceLists(each.store.shape, (), erased) for each in stream.datasets]
    spans = Spans.of_windows(T + 1, np.array([0, 1]), np.array([8, 0]), source=1)

    with pytest.raises(Deleted) as caught:
        gather_block(redacted(stream, sources), spans, dtype=stream.store.dtype)

    assert str(caught.value).startswith("dataset: 'u2': tokens were deleted")
    assert "(u2-1.npy, tokens [3, 9))" in str(caught.value)


def test_sources_with_the_same_lists_share_what_is_prepared() -> None:
    """A request of 64 KiB may have thousands of sources of a dataset with a million ranges."""
    shape = Shape(np.array([10**12, 10**12]))
    ranges = TokenRanges.of([(file, 10 * i, 10 * i + 1) for file in (0, 1) for i in range(5000)])
    same = SourceLists(shape, (RedactionList.of(0, ranges),))

    found = Covering.of((same,) * 2000)

    assert found.fills.size == len(ranges)
    spans = Spans(4, *np.array([[0, 1999], [0, 1], [8, 49_990]]))
    hits = found.hits(spans)
    assert np.stack([hits.row, hits.first, hits.end]).tolist() == [[0, 1], [2, 0], [3, 1]]


def test_a_stream_with_many_lists_in_force_is_prepared_once(
    datasets: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds for large lists, and a stream asks for its rows twice a second."""
    dataset, computed, prepared = datasets["u4"], [], []
    hashes = write_lists(dataset, 0, *([(0, 3 * i, 3 * i + 1)] for i in range(9)))[:8]
    in_force = tuple(sorted(Redaction(5 * i, 0, each) for i, each in enumerate(hashes)))
    stream = streams.Stream.of_dataset("u4", orders.find("random-1"), 3, T, redactions=in_force)
    list_of, of = ListContent.list_of, Covering.of
    monkeypatch.setattr(
        ListContent, "list_of", lambda *given: computed.append(1) or list_of(*given)
    )
    monkeypatch.setattr(Covering, "of", lambda given: prepared.append(1) or of(given))
    redactor = Redactor()

    rows = [redactor.wrap(dataset.store, [dataset], stream, (53,)) for _ in range(20)]

    assert (computed, prepared) == ([1, 1], [1])  # the latest list, and that of the stream
    spans = Spans.of_windows(T + 1, np.array([0]), np.array([20]))
    found = gather_block(rows[-1], spans, dtype=dataset.store.dtype).tokens[0]
    assert found[1] == 0  # token 21, which the last of the lists in force has
    assert found[4] != 0  # token 24, which only the latest one has


def test_rows_are_the_same_if_they_are_prepared_again_of_the_same_lists() -> None:
    """Streams with other lists may need the memory meanwhile; no row is read twice for that."""
    store = MemoryStore("train", [np.arange(100, dtype="<u2")])

    def rows(fill: int, end: int) -> RedactedRows:
        in_force = RedactionList.of(fill, TokenRanges.of([(0, 1, end)]))
        return RedactedRows(store, Covering.of((SourceLists(store.shape, (in_force,)),)), [])

    assert are_same(rows(0, 2), rows(0, 2))
    assert not are_same(rows(0, 2), rows(1, 2))
    assert not are_same(rows(0, 2), rows(0, 3))
    assert not are_same(rows(0, 2), store)


def test_too_many_ranges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other lists for each of its sources, a request could fill the memory."""
    monkeypatch.setattr(covering, "RANGES_MAX", 3)
    shape = Shape(np.array([100]))
    two = RedactionList.of(0, TokenRanges.of([(0, 1, 2), (0, 3, 4)]))
    other = RedactionList.of(1, two.ranges)
    Covering.of((SourceLists(shape, (two,)),) * 2)

    with pytest.raises(LimitExceeded, match=r"redactions: have 4 ranges in all, .*, 3"):
        Covering.of((SourceLists(shape, (two,)), SourceLists(shape, (other,))))
