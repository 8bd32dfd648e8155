"""Rows over documents, from the files of a corpus to the targets of a trainer: each token of a
document but the first is a target once an epoch, whatever the server, the ranks and the resume.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from client import InvalidRequest, Mixture, NumpyBatches, RemoteBatches, Timeouts
from tests.conftest import Serve, WriteTokens
from tests.server.rpc.test_service import opened as opened_datasets
from tests.server.rpc.test_service import serving
from tests.support import reference
from tests.support.packed_corpora import (
    IGNORED,
    ORDERS,
    PADDING,
    Corpus,
    Order,
    Pairs,
    random_lengths,
    write_corpus,
)
from tests.support.ports import free_port
from tokenfeed.client.source import failover
from tokenfeed.errors import RequestError, StreamMismatch, Unreachable
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.documents import row_indices
from tokenfeed.tools import pack
from tokenfeed.v1 import tokenfeed_pb2 as pb

T, B, SEED = 13, 4, 7
SERVICE = "/tokenfeed.v1.TokenFeed"
ALONE = {"rank": 0, "world_size": 1}


def options_of(order: Order) -> dict[str, Any]:
    """The arguments of a feed."""
    return {"order": order[0], "long": order[1], "seed": SEED}


def delivered(batches: Iterable[Any]) -> Pairs:
    """x and y of all rows of some batches."""
    pairs = [(x.tolist(), y.tolist()) for x, y in batches]
    return [row for x, _ in pairs for row in x], [row for _, y in pairs for row in y]


def require_targets_of_their_inputs(corpus: Corpus, found: Pairs) -> None:
    """Each target is the next token of the document of its input; y is -100 at padding and where
    the next piece begins, and nowhere else.
    """
    for x, y in zip(*found, strict=True):
        length = x.index(PADDING) if PADDING in x else len(x)
        assert x[length:] == [PADDING] * (len(x) - length)
        assert y[length:] == [IGNORED] * (len(x) - length)
        for at, target in enumerate(y[:length]):
            document, place = corpus.places[x[at]]
            if target != IGNORED:
                assert corpus.places[target] == (document, place + 1)
            elif at + 1 < length:
                assert corpus.places[x[at + 1]] != (document, place + 1)


def require_each_target_once(corpus: Corpus, order: Order, context_length: int, y: Any) -> None:
    """Of the rows of one epoch."""
    found = sorted(target for row in y for target in row if target != IGNORED)
    assert found == corpus.targets_once(order, context_length)


# --- one epoch ---


@settings(max_examples=25)
@given(
    files=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), min_size=1, max_size=3),
    context_length=st.integers(1, 17),
    order=st.sampled_from(ORDERS),
)
def test_each_token_but_the_first_of_a_document_is_a_target_once(
    files: list[list[int]], context_length: int, order: Order
) -> None:
    """In an epoch of local files, of any documents."""
    assume(all(map(sum, files)))
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder), files)
        assume(corpus.rows(order, context_length))
        with RemoteBatches(
            corpus.target, 3, context_length, prefetch_bytes=0, **options_of(order), **ALONE
        ) as feed:
            found = delivered(feed.epoch(0, tail="pad"))

    row_count = len(corpus.rows(order, context_length))
    own = found[0][:row_count], found[1][:row_count]
    require_targets_of_their_inputs(corpus, own)
    require_each_target_once(corpus, order, context_length, found[1])
    assert own == corpus.expected(order, context_length, SEED, range(row_count))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Corpus]:
    """Three, each with documents of all lengths that matter."""
    folder = tmp_path_factory.mktemp("corpora")
    return [
        write_corpus(folder / f"{seed}", random_lengths(seed, T), f"corpus{seed}")
        for seed in range(3)
    ]


def test_a_server_and_local_files_give_the_rows_of_the_second_implementation(
    serve: Serve, corpora: list[Corpus]
) -> None:
    """Over two epochs and a bit, which have each target twice, in another order."""
    address = serve(*itertools.chain(*(corpus.words for corpus in corpora))).address
    for corpus, order in itertools.product(corpora, ORDERS):
        row_count = len(corpus.rows(order, T))
        batches = 2 * row_count // B + 3
        wanted = corpus.expected(order, T, SEED, range(batches * B))
        first, second = wanted[0][:row_count], wanted[0][row_count : 2 * row_count]
        assert first != second
        assert sorted(first) == sorted(second)
        for target in (address, corpus.target):
            with RemoteBatches(
                target, B, T, dataset=corpus.name, **options_of(order), **ALONE
            ) as feed:
                assert feed.batches_per_epoch == row_count // B
                found = delivered(itertools.islice(feed, batches))
            assert found == wanted
        for epoch in (slice(0, row_count), slice(row_count, 2 * row_count)):
            require_targets_of_their_inputs(corpus, (found[0][epoch], found[1][epoch]))
            require_each_target_once(corpus, order, T, found[1][epoch])


# --- ranks, resumes, replicas ---


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_ranks_and_resumes_neither_skip_nor_repeat_a_row(
    serve: Serve, corpora: list[Corpus], order: Order
) -> None:
    """One rank, then two, then three, then one with NumPy, in the middle of an epoch."""
    corpus = corpora[0]
    target = serve(*corpus.words).address
    options = options_of(order)
    x: list[list[int]] = []
    y: list[list[int]] = []
    state: dict[str, Any] | None = None
    for world_size, batches in ((1, 5), (2, 4), (3, 3)):
        ranks: list[list[Pairs]] = []
        for rank in range(world_size):
            with RemoteBatches(target, B, T, rank=rank, world_size=world_size, **options) as feed:
                if state is not None:
                    feed.load_state_dict(state)
                taken = [delivered([next(feed)]) for _ in range(batches)]
                ranks.append(taken)
                following = feed.state_dict()
        for own_x, own_y in itertools.chain.from_iterable(zip(*ranks, strict=True)):
            x, y = x + own_x, y + own_y
        state = json.loads(json.dumps(following))
    for way in (target, corpus.target):
        with NumpyBatches(way, B, T, **options, **ALONE) as numpy_feed:
            numpy_feed.load_state_dict(state)
            last = delivered(itertools.islice(numpy_feed, 5))
        found = x + last[0], y + last[1]
        assert found == corpus.expected(order, T, SEED, range(len(found[0])))


def test_a_restarted_server_and_its_replica_go_on_with_the_same_rows(
    serve: Serve, tmp_path: Path
) -> None:
    """One keeps its rows beside the tokens, the other one in a folder of its own."""
    corpus = write_corpus(tmp_path / "corpus", random_lengths(5, T))
    order: Order = ("packed", None)
    port = free_port()
    first = serve(*corpus.words, port=port)
    second = serve(*corpus.words, "--cache-dir", tmp_path)
    addresses = [first.address, second.address]
    found: list[Pairs] = []
    state: dict[str, Any] | None = None
    for change in (lambda: None, first.stop, lambda: serve(*corpus.words, port=port), second.stop):
        change()
        with RemoteBatches(addresses, B, T, **options_of(order), **ALONE) as feed:
            if state is not None:
                feed.load_state_dict(state)
            found.append(delivered(itertools.islice(feed, 5)))
            state = feed.state_dict()

    together = [row for x, _ in found for row in x], [row for _, y in found for row in y]
    assert together == corpus.expected(order, T, SEED, range(20 * B))


# --- formats, masks, batches ---


END = 65_535


@pytest.mark.parametrize("form", ["megatron", "raw"])
def test_documents_of_other_formats_give_the_same_rows(
    serve: Serve, tmp_path: Path, form: str
) -> None:
    """Known from an index, or found by the token that ends them, which is learned."""
    lengths = random_lengths(8, T)
    end_token = None
    if form == "raw":
        lengths = [[n for n in file if n] for file in lengths]
        end_token = END
    corpus = write_corpus(tmp_path / "corpus", lengths, form=form, end_token=end_token)
    address = serve(*corpus.words).address
    for order in ORDERS:
        for target in (address, corpus.target):
            with RemoteBatches(target, B, T, **options_of(order), **ALONE) as feed:
                x, y = delivered(itertools.islice(feed, 100))
            assert (x, y) == corpus.expected(order, T, SEED, range(100 * B))
        assert (END in itertools.chain(*y)) == (form == "raw")


def test_masked_tokens_are_no_targets_of_their_rows(serve: Serve, tmp_path: Path) -> None:
    """Beside padding and borders; with loss_mask="ignore" they are targets."""
    lengths = random_lengths(6, T)
    random = np.random.default_rng(6)
    tokens = range(1, 1 + sum(map(sum, lengths)))
    masked = frozenset(token for token in tokens if random.random() < 0.4)
    corpus = write_corpus(tmp_path / "corpus", lengths, masked=masked)
    plain = Corpus(corpus.name, corpus.paths, corpus.lengths)
    address = serve(*corpus.words).address
    for order in ORDERS:
        for target in (address, corpus.target):
            row_count = len(corpus.rows(order, T))
            for loss_mask, wanted in (("apply", corpus), ("ignore", plain)):
                with RemoteBatches(
                    target, B, T, loss_mask=loss_mask, **options_of(order), **ALONE
                ) as feed:
                    x, y = delivered(itertools.islice(feed, row_count // B + 1))
                assert (x, y) == wanted.expected(order, T, SEED, range(len(x)))
                require_each_target_once(wanted, order, T, y[:row_count])


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_batches_tell_pieces_and_padding_apart(
    serve: Serve, corpora: list[Corpus], order: Order
) -> None:
    """In each form that frameworks take, and in shapes that never change."""
    corpus = corpora[1]
    rows = corpus.rows(order, T)
    batch_count = len(rows) // B
    pieces_max = max(map(len, rows))
    size = B * min(pieces_max + 1, T) + 1
    padded_rows = 0
    for target in (serve(*corpus.words).address, corpus.target):
        with RemoteBatches(target, B, T, **options_of(order), **ALONE) as feed:
            batches = list(itertools.islice(feed.batches(), batch_count))
        for number, batch in enumerate(batches):
            samples = range(number * B, (number + 1) * B)
            numbers = [reference.place("shuffled-1", SEED, len(rows), s) for s in samples]
            own = [rows[each] for each in numbers]
            wanted = [segments(row) for row in own]
            assert batch.sample.tolist() == list(samples)
            assert batch.positions.tolist() == [positions for positions, _ in wanted]
            assert batch.segment_ids.tolist() == [ids for _, ids in wanted]
            assert (batch.x == PADDING).tolist() == (batch.segment_ids == 0).tolist()
            padded_rows += int((batch.segment_ids == 0).any(1).sum())
            assert batch.loss_mask.tolist() == (batch.y != IGNORED).tolist()
            bounds = batch.cu_seqlens.tolist()
            assert bounds == [
                *(row * T + at for row, (p, _) in enumerate(wanted) for at in zeros(p)),
                B * T,
            ]
            assert batch.max_seqlen == max(np.diff(bounds))
            fixed = batch.cu_seqlens_fixed()
            assert fixed.shape == (size,)
            assert fixed.tolist() == bounds + (size - len(bounds)) * [B * T]
    assert padded_rows > 0


def segments(row: list[list[int]]) -> tuple[list[int], list[int]]:
    """Positions and segment ids of the T tokens of x."""
    positions: list[int] = []
    ids: list[int] = []
    for number, (_, _, n) in enumerate(row, 1):
        positions += range(n)
        ids += n * [number]
    padding = max(T - len(positions), 0)
    return [*positions, *range(padding)][:T], (ids + padding * [0])[:T]


def zeros(positions: list[int]) -> Iterator[int]:
    """Where documents begin."""
    return (at for at, position in enumerate(positions) if position == 0)


# --- mixtures ---

MIXED: dict[str, dict[str, str]] = {
    "a": {"order": "packed"},
    "b": {"order": "padded", "long": "drop"},
    "c": {},
}


def write_sources(folder: Path) -> dict[str, Corpus]:
    """One corpus for each; the first one has a loss mask."""
    sources = {}
    for number, name in enumerate(MIXED):
        masked = frozenset(range(1, 500, 3)) if name == "a" else frozenset[int]()
        lengths, first = random_lengths(10 + number, T), 1 + 20_000 * number
        sources[name] = write_corpus(folder / name, lengths, name, first=first, masked=masked)
    return sources


def joined_target(sources: dict[str, Corpus]) -> str:
    """Of a feed of all their files."""
    return "file:" + ",".join(each.target.removeprefix("file:") for each in sources.values())


@pytest.mark.parametrize("is_local", [True, False])
def test_packed_padded_and_plain_sources_mix(serve: Serve, tmp_path: Path, is_local: bool) -> None:
    """With weights that change midway, once to those of windows alone; with a resume by another
    number of ranks; and with a loss mask of one of them.
    """
    sources = write_sources(tmp_path)
    if is_local:
        target = joined_target(sources)
    else:
        target = serve(*itertools.chain(*(each.words for each in sources.values()))).address
    mixture = Mixture({"a": 2, "b": 1, "c": 1}, sources=MIXED, order="shuffled", seed=SEED)
    with RemoteBatches(target, B, T, mixture=mixture, **ALONE) as feed:
        found = [delivered(itertools.islice(feed, 20))]
        alone = feed.change_mixture({"c": 1}, at_sample=100)
        begin = feed.change_mixture({"a": 3, "b": 0, "c": 1}, at_sample=130)
        found.append(delivered(itertools.islice(feed, 20)))
        state = json.loads(json.dumps(feed.state_dict()))
    ranks = []
    for rank in range(2):
        with RemoteBatches(target, B, T, mixture=mixture, rank=rank, world_size=2) as feed:
            feed.load_state_dict(state)
            ranks.append([delivered([next(feed)]) for _ in range(60)])
    found += itertools.chain.from_iterable(zip(*ranks, strict=True))

    asked = [(0, [2, 1, 1]), (alone, [0, 0, 1]), (begin, [3, 0, 1])]
    wanted = []
    seen: dict[str, list[int]] = {name: [] for name in sources}
    for sample in range(160 * B):
        number, own = reference.mixture_place(SEED, asked, sample)
        name = list(sources)[number]
        seen[name].append(own)
        wanted.append(mixed_row(sources[name], name, own))
    assert [row for x, _ in found for row in x] == [x for x, _ in wanted]
    y = [row for _, y in found for row in y]
    assert y == [y for _, y in wanted]
    for own in seen.values():  # once each; the last block of the mixture is not complete
        assert len(set(own)) == len(own) > max(own) - 4
    corpus, order = sources["a"], ("packed", None)
    row_count = len(corpus.rows(order, T))
    assert len(seen["a"]) > row_count
    own_y = iter(row for row, (x, _) in zip(y, wanted, strict=True) if x[0] in corpus.places)
    require_each_target_once(corpus, order, T, itertools.islice(own_y, row_count))


def test_batches_of_a_mixture_have_the_documents_of_each_row(tmp_path: Path) -> None:
    """Padding only in rows over documents, and borders in windows too, if they are masked."""
    sources = write_sources(tmp_path)
    target = joined_target(sources)
    mixture = Mixture({"a": 2, "b": 1, "c": 1}, sources=MIXED, order="shuffled", seed=SEED)
    found = set()
    with RemoteBatches(target, B, T, mixture=mixture, mask_borders=True, **ALONE) as feed:
        for number, batch in enumerate(itertools.islice(feed.batches(), 60)):
            for row in range(B):
                source, own = reference.mixture_place(SEED, [(0, [2, 1, 1])], number * B + row)
                name = list(sources)[source]
                x, y = mixed_row(sources[name], name, own)
                begins = [at for at in range(1, T) if not continues(sources[name], x, at)]
                bounds = [0, *begins, T]
                lengths = np.diff(bounds).tolist()
                positions = [at for length in lengths for at in range(length)]
                ids = np.repeat(range(1, len(bounds)), lengths)
                ids[np.array(x) == PADDING] = 0
                for at in begins:
                    y[at - 1] = IGNORED
                if y[-1] != IGNORED and sources[name].places[y[-1]][1] == 0:
                    y[-1] = IGNORED
                assert batch.x[row].tolist() == x
                assert batch.y[row].tolist() == y
                assert batch.positions[row].tolist() == positions
                assert batch.segment_ids[row].tolist() == ids.tolist()
                assert batch.source[row] == source
                found.add((name, PADDING in x))
    assert found == {("a", False), ("a", True), ("b", False), ("b", True), ("c", False)}


def continues(corpus: Corpus, x: list[int], at: int) -> bool:
    """Whether a token of x belongs to the piece, or to the padding, of the one before it."""
    if PADDING in x[at - 1 : at + 1]:
        return x[at - 1] == x[at]
    document, place = corpus.places[x[at - 1]]
    return corpus.places[x[at]] == (document, place + 1)


def mixed_row(corpus: Corpus, name: str, sample: int) -> tuple[list[int], list[int]]:
    """x and y of a sample of a source. Plain windows have their targets across borders."""
    order = MIXED[name].get("order")
    if order is not None:
        x, y = corpus.expected((order, MIXED[name].get("long")), T, SEED, [sample])
        return x[0], y[0]
    files = [path.read_bytes() for path in corpus.paths]
    (row,) = reference.rows(files, 2, "shuffled-1", SEED, T, [sample])
    tokens = np.frombuffer(row, "<u2").tolist()
    return tokens[:-1], tokens[1:]


# --- what is refused ---


def refusal(feed: RemoteBatches) -> str:
    """The error of the first read."""
    with feed, pytest.raises(RequestError) as caught:
        next(feed)
    return str(caught.value)


@pytest.mark.parametrize("order", ["packed", "padded"])
def test_an_order_over_documents_needs_known_documents(
    serve: Serve, write_tokens: WriteTokens, order: str
) -> None:
    """Of a server and of local files, alone and in a mixture, in one sentence with the cure."""
    path = write_tokens(range(1, 1000))
    for target in (serve("--data", path).address, f"file:{path}"):
        feeds = [
            RemoteBatches(target, B, T, order=order, **ALONE),
            RemoteBatches(target, B, T, mixture={"train": 1}, order=order, **ALONE),
        ]
        for feed in feeds:
            assert refusal(feed) == (
                f"order: {order}-1 needs to know where documents begin, which is unknown for "
                "'train'; pass --document-end-token"
            )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"order": "packed", "long": "drop"}, "'drop' is not one of cut; the order is packed-1"),
        (
            {"order": "padded", "long": "crop"},
            "'crop' is not one of cut, drop, truncate; the order is padded-1",
        ),
        ({"long": "cut"}, "'cut' is for orders over documents; the order is shuffled-1"),
        (
            {"order": "shuffled", "long": "drop"},
            "'drop' is for orders over documents; the order is shuffled-1",
        ),
    ],
)
def test_what_becomes_of_long_documents_is_checked_when_the_feed_is_made(
    options: dict[str, str], problem: str
) -> None:
    """Alone and for a source."""
    with pytest.raises(InvalidRequest) as caught:
        RemoteBatches("localhost:1", B, T, **options, **ALONE)
    assert str(caught.value) == f"long: {problem}"
    if "order" in options:
        mixture = Mixture({"a": 1}, sources={"a": options})
        with pytest.raises(InvalidRequest) as caught:
            RemoteBatches("localhost:1", B, T, mixture=mixture, **ALONE)
        assert str(caught.value).endswith(f"sources.a.long: {problem}")
        # Also of an order that the source has from the feed.
        mixture = Mixture({"a": 1}, sources={"a": {"long": options["long"]}})
        with pytest.raises(InvalidRequest) as caught:
            RemoteBatches("localhost:1", B, T, mixture=mixture, order=options["order"], **ALONE)
        assert str(caught.value) == f"sources.a.long: {problem}"


@pytest.mark.parametrize("long", ["cut", "drop", "truncate"])
@pytest.mark.parametrize("is_local", [True, False])
def test_documents_that_are_not_learned_are_reported_once(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, long: str, is_local: bool
) -> None:
    """Data that vanishes in silence is found out after the training."""
    lengths = random_lengths(5, T)
    corpus = write_corpus(tmp_path / "corpus", lengths)
    target = corpus.target if is_local else serve(*corpus.words).address
    with RemoteBatches(target, B, T, order="padded", long=long, **ALONE) as feed:
        delivered(itertools.islice(feed, 9))

    sizes = [n for file in lengths for n in file if n]
    too_long = [n - 1 for n in sizes if n > T + 1]
    cropped = sum(too_long) - (T * len(too_long) if long == "truncate" else 0)
    problem = (
        f"long documents {long} dataset=train order=padded-1 context_length={T}: {len(too_long)} "
        f"of {len(sizes)} documents are longer than a row, and {cropped} of their tokens are no "
        "targets; long='cut' learns them all"
    )
    assert caplog.text.count("are longer than a row") == (long != "cut")
    assert (problem in caplog.text) == (long != "cut")


def test_documents_without_a_target_have_no_rows(serve: Serve, tmp_path: Path) -> None:
    """All have one token; or all are too long, and left out."""
    ones = write_corpus(tmp_path / "ones", [[1] * 50], "ones")
    long = write_corpus(tmp_path / "long", [[100] * 5], "long")
    address = serve(*ones.words, *long.words).address
    cases: list[tuple[Corpus, Order]] = [
        (ones, ("packed", None)),
        (ones, ("padded", "cut")),
        (long, ("padded", "drop")),
    ]
    for corpus, order in cases:
        for target in (address, corpus.target):
            options = options_of(order) | ALONE
            said = refusal(RemoteBatches(target, B, T, dataset=corpus.name, **options))
            assert said.startswith("order: ")
            assert "no document has 2 tokens or more" in said
        with RemoteBatches(long.target, B, T, order="padded", long="truncate", **ALONE) as feed:
            next(feed)


@pytest.fixture
def delimited(tmp_path: Path) -> Corpus:
    """A corpus whose documents are found by the token that ends them."""
    lengths = [[n for n in file if n] for file in random_lengths(8, T)]
    return write_corpus(tmp_path / "corpus", lengths, form="raw", end_token=END)


def another_token(corpus: Corpus) -> int:
    """One that is no end of a document, and makes one that has a row."""
    tokens = np.fromfile(corpus.paths[0], "<u2")
    return int(tokens[tokens != END][1])


@pytest.mark.parametrize(
    ("options", "end_token", "problem"),
    [
        ({"order": "packed"}, END, r"^order: .* padded-1, but this stream has packed-1.*"),
        ({"order": "shuffled"}, END, r"^order: .* padded-1, but this stream has shuffled-1.*"),
        ({"order": "padded"}, END, "^long_documents: .* drop, but this stream has cut.*"),
        ({"order": "padded", "long": "drop"}, None, "^pieces: .*the same document borders"),
    ],
)
def test_a_state_of_other_rows_is_refused_by_the_part_that_differs(
    delimited: Corpus, options: dict[str, str], end_token: int | None, problem: str
) -> None:
    """It counts samples of other rows."""
    with RemoteBatches(delimited.target, B, T, order="padded", long="drop", **ALONE) as feed:
        next(feed)
        state = feed.state_dict()

    target = delimited.target
    if end_token is None:
        target = target.replace(f"={END}", f"={another_token(delimited)}")
    with (
        RemoteBatches(target, B, T, **options, **ALONE) as feed,
        pytest.raises(StreamMismatch, match=problem),
    ):
        feed.load_state_dict(state)


def test_a_replica_that_finds_other_documents_is_not_read(
    serve: Serve, delimited: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are the same, but another token ends their documents."""
    order: Order = ("packed", None)
    right = serve(*delimited.words)
    wrong = serve(*delimited.words[:-1], f"{delimited.name}={another_token(delimited)}")
    addresses = [right.address, wrong.address]
    options = options_of(order) | ALONE | {"timeouts": Timeouts(reconnect_seconds=3.0)}
    with RemoteBatches(addresses, B, T, **options) as feed:
        found = delivered(itertools.islice(feed, 5))
        right.stop()
        with pytest.raises(Unreachable, match="has other document starts"):
            delivered(itertools.islice(feed, 100_000))

    assert found == delimited.expected(order, T, SEED, range(5 * B))
    assert f"server rejected address={wrong.address} reason=has other document starts" in (
        caplog.text
    )


# --- rows that are still being made ---


@contextmanager
def served_here(corpus: Corpus) -> Iterator[str]:
    """The address of a server in this process."""
    source = DatasetSource(corpus.name, tuple(map(str, corpus.paths)))
    with opened_datasets(source) as datasets, serving(datasets) as peer:
        yield peer.address


def test_a_server_does_not_make_the_rows_of_very_many_documents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The refusal names the command that makes them; rows that it has made are served."""
    corpus = write_corpus(tmp_path / "corpus", random_lengths(9, T))
    monkeypatch.setattr(row_indices, "DOCUMENTS_MAX", 100)
    with served_here(corpus) as address:
        said = refusal(RemoteBatches(address, B, T, order="packed", **ALONE))
    options = "--order packed --long cut --dtype uint16"
    command = f"tokenfeed pack DATA --context-length {T} {options}"
    assert "documents, and no rows of packed-1 for context length 13 yet" in said
    assert said.endswith(f"; run: {command}")

    words = command.replace("DATA", str(tmp_path / "corpus")).split()[2:]
    assert pack.main(words) == 0
    order: Order = ("packed", None)
    with (
        served_here(corpus) as address,
        RemoteBatches(address, B, T, **options_of(order), **ALONE) as feed,
    ):
        found = delivered(itertools.islice(feed, 9))
    assert found == corpus.expected(order, T, SEED, range(9 * B))


@contextmanager
def making(address: str, shares: Iterable[float]) -> Iterator[str]:
    """The address of a peer that answers as a server does, but for its first descriptions: in these
    the rows are being made, with these shares done.
    """
    left = iter(shares)
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(4) as threads:
        describe = channel.unary_unary(f"{SERVICE}/Describe")
        get_batch = channel.unary_stream(f"{SERVICE}/GetBatch")

        def described(message: bytes, context: grpc.ServicerContext) -> bytes:
            answer = pb.DescribeResponse.FromString(describe(message))
            order = pb.DescribeRequest.FromString(message).order
            share = next(left, None) if order else None
            if share is not None:
                making = pb.OrderRows(order=order, progress=share)
                answer.datasets[0].rows[-1].CopyFrom(making)
            return answer.SerializeToString()

        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(described),
            "GetBatch": grpc.unary_stream_rpc_method_handler(
                lambda message, context: get_batch(message)
            ),
        }
        server = grpc.server(threads)
        own = grpc.method_handlers_generic_handler("tokenfeed.v1.TokenFeed", handlers)
        server.add_generic_rpc_handlers((own,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


@pytest.mark.parametrize("grows", [True, False])
def test_the_timeout_runs_only_while_the_making_of_rows_stands_still(
    serve: Serve, tmp_path: Path, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that take longer than the timeout are waited for, but not for ever."""
    monkeypatch.setattr(failover, "_BACKOFF_SECONDS_MAX", 0.4)
    corpus = write_corpus(tmp_path / "corpus", random_lengths(9, T))
    shares = [step / 8 for step in range(8)] if grows else itertools.repeat(0.5)
    order: Order = ("packed", None)
    timeouts = Timeouts(reconnect_seconds=1.0)
    began = time.monotonic()
    with (
        making(serve(*corpus.words).address, shares) as address,
        RemoteBatches(address, B, T, timeouts=timeouts, **options_of(order), **ALONE) as feed,
    ):
        if grows:
            found = delivered(itertools.islice(feed, 9))
            assert time.monotonic() - began > 2 * 1.0
            assert found == corpus.expected(order, T, SEED, range(9 * B))
        else:
            with pytest.raises(Unreachable, match=r"are being made, 50\.0 % so far"):
                next(feed)
            assert time.monotonic() - began > 1.0
