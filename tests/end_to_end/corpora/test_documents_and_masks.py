"""Documents and loss masks arrive with their rows, whatever the format, the order, the ranks and
the way: against a naive reader, which knows each token by its number.
"""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch

from client import RemoteBatches
from tests.conftest import Serve
from tests.server.storage.formats.writing import megatron_index
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tokenfeed.errors import InvalidRequest

B, T = 4, 61
BATCHES, MANY = 100, 100
"""10,000 rows: more than three for each token of the corpus."""
END = 0
"""The token that ends a document, in files that are searched for it."""
IGNORED = -100


@dataclass(frozen=True)
class Corpus:
    """A dataset on disk. Tokens are numbered from 1 on, through all files.

    words: for --data and other options.  target: of a feed of the same files.  starts: of each
    file, the numbers of the first tokens of documents.  learned: bool, by the number of the token.
    """

    words: tuple[str, ...]
    target: str
    starts: tuple[frozenset[int], ...]
    learned: np.ndarray | None

    @cached_property
    def firsts(self) -> frozenset[int]:
        """Those of all files."""
        return frozenset().union(*self.starts)


def documents_of(random: np.random.Generator, tokens: int) -> list[int]:
    """Lengths of documents: short ones, some of one token, and a few longer than a row."""
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(random.choice([1, 2, 9, 30, 3 * T]) * random.integers(1, 4)))
    lengths[-1] -= sum(lengths) - tokens
    return lengths


FORMATS = ["datatrove", "megatron", "olmo", "delimiter"]


def write_corpus(folder: Path, form: str, name: str = "train", first: int = 1) -> Corpus:
    """Write two files of documents.  first: number of the first token."""
    random = np.random.default_rng(first)
    folder.mkdir(parents=True, exist_ok=True)
    starts, paths, masks = [], [], []
    learned = np.zeros(1 << 16, dtype=bool)
    number = first
    for index, count in enumerate((1900, 1300)):
        lengths = documents_of(random, count)
        ends = np.cumsum(lengths)
        tokens = np.arange(number, number + count, dtype="<u2")
        starts.append(frozenset((number + np.array([0, *ends[:-1]])).tolist()))
        mask = (random.random(count) < 0.6).astype(np.uint8)
        learned[tokens[mask == 1]] = True
        number += count
        suffix = {"datatrove": ".ds", "olmo": ".npy"}.get(form, ".bin")
        path = folder / f"{index}{suffix}"
        if form == "delimiter":
            tokens = np.insert(tokens, ends[:-1], END)
        tokens.tofile(path)
        if form == "datatrove":
            ends.astype("<u8").tofile(f"{path}.index")
            mask.tofile(f"{path}.loss")
        elif form == "megatron":
            places = np.arange(len(lengths) + 1)
            index_bytes = megatron_index(lengths, 2 * (ends - lengths), places)
            (folder / f"{index}.idx").write_bytes(index_bytes)
        elif form == "olmo":
            bounds = zip([0, *ends[:-1]], ends, strict=True)
            text = "".join(f"{a},{b}\n" for a, b in bounds).encode()
            (folder / f"{index}.csv.gz").write_bytes(gzip.compress(text))
        if form in ("megatron", "olmo"):
            mask_path = folder / f"{index}.mask"
            mask.tofile(mask_path)
            masks.append(str(mask_path))
        paths.append(str(path))
    words = ["--data", f"{name}={paths[0]}", *paths[1:]]
    option = ""
    if masks:
        words += ["--loss-mask", f"{name}={masks[0]}", *masks[1:]]
        option = f"?loss-mask={folder}/*.mask"
    if form == "delimiter":
        words += ["--document-end-token", f"{name}={END}"]
        option = f"?document-end-token={END}"
    return Corpus(
        tuple(words),
        f"file:{name}={','.join(paths)}{option}",
        tuple(starts),
        None if form == "delimiter" else learned,
    )


def targets(corpus: Corpus, row: Sequence[int], *, mask: bool, borders: bool) -> list[int]:
    """The targets of a row of T + 1 tokens, by a walk along it."""
    found = []
    for token in row[1:]:
        is_learned = not mask or corpus.learned is None or corpus.learned[token]
        begins = token in corpus.firsts and token != END
        found.append(token if is_learned and not (borders and begins) else IGNORED)
    return found


@pytest.fixture(params=FORMATS)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "corpus", request.param)


@pytest.fixture(params=["server", "files"])
def target(request: pytest.FixtureRequest, corpus: Corpus, serve: Serve) -> str:
    if request.param == "files":
        return corpus.target
    return serve(*corpus.words).address


Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def taken(feed: Batches, batches: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = [next(feed) for _ in range(batches)]
    return tuple(torch.cat(part).numpy() for part in zip(*pairs, strict=True))


@pytest.mark.parametrize("order", ["random", "shuffled", "sequential"])
def test_targets_are_those_of_a_naive_reader(target: str, corpus: Corpus, order: str) -> None:
    """Thousands of rows, past the end of an epoch, by default and at borders too."""
    options = {"order": order, "rank": 0, "world_size": 1}
    with RemoteBatches(target, MANY, T, loss_mask="ignore", **options) as feed:
        x, plain = taken(feed, BATCHES)
    rows = np.concatenate([x, plain[:, -1:]], axis=1).tolist()

    for borders in (False, True):
        with RemoteBatches(target, MANY, T, mask_borders=borders, **options) as feed:
            own_x, y = taken(feed, BATCHES)
        assert np.array_equal(own_x, x)
        wanted = [targets(corpus, row, mask=True, borders=borders) for row in rows]
        assert y.tolist() == wanted
        assert IGNORED in y or (corpus.learned is None and not borders)


@pytest.mark.parametrize("order", ["random", "shuffled", "sequential"])
def test_masks_of_more_files_than_descriptors_are_those_of_a_naive_reader(
    serve: Serve, tmp_path: Path, order: str
) -> None:
    """Of 512, 256 are for connections: files are opened as they are read, and closed again."""
    random = np.random.default_rng(3)
    learned = random.random(1 << 16) < 0.6
    for index in range(300):
        tokens = np.arange(1 + 200 * index, 201 + 200 * index, dtype="<u2")
        tokens.tofile(tmp_path / f"{index:03}.ds")
        learned[tokens].astype(np.uint8).tofile(tmp_path / f"{index:03}.ds.loss")
    wrapper = ("bash", "-c", 'ulimit -n 512; exec "$@"', "-")
    server = serve("--data", tmp_path, "--read", "pread", wrapper=wrapper)
    options = {"order": order, "rank": 0, "world_size": 1}

    with RemoteBatches(server.address, 16, T, loss_mask="ignore", **options) as feed:
        x, plain = taken(feed, 120)
    with RemoteBatches(server.address, 16, T, **options) as feed:
        own_x, y = taken(feed, 120)

    assert np.array_equal(own_x, x)
    assert np.array_equal(plain[:, :-1], x[:, 1:])
    assert np.unique(x // 200).size > 290, "rows of nearly all files"
    assert np.array_equal(y, np.where(learned[plain], plain, IGNORED))
    assert server.stderr.count("files are opened as they are read") == 2
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 256


def test_masks_follow_their_rows_to_any_rank_and_after_any_resume(
    target: str, corpus: Corpus
) -> None:
    """Two ranks, then one that goes on from their state in the middle of an epoch."""
    plain_options = {"order": "shuffled", "loss_mask": "ignore", "rank": 0, "world_size": 1}
    options = {"order": "shuffled", "mask_borders": True}
    with RemoteBatches(target, B, T, **plain_options) as feed:
        x, plain = taken(feed, 20)
    rows = np.concatenate([x, plain[:, -1:]], axis=1).tolist()
    wanted = [targets(corpus, row, mask=True, borders=True) for row in rows]

    found: dict[int, list[list[int]]] = {}
    for rank in range(2):
        with RemoteBatches(target, B, T, rank=rank, world_size=2, **options) as feed:
            _, y = taken(feed, 5)
            state = feed.state_dict()
        for batch in range(5):
            first = (2 * batch + rank) * B
            found[first] = y[batch * B : (batch + 1) * B].tolist()
    with RemoteBatches(target, 2 * B, T, rank=0, world_size=1, **options) as feed:
        feed.load_state_dict(state)
        found[10 * B] = taken(feed, 5)[1].tolist()

    assert [row for first in sorted(found) for row in found[first]] == wanted


def positions(corpus: Corpus, row: Sequence[int]) -> list[int]:
    """Positions within documents of the T tokens of x, by a walk along them."""
    found: list[int] = []
    for place, token in enumerate(row[:-1]):
        begins = token in corpus.firsts or (place > 0 and row[place - 1] == END)
        found.append(0 if not place or begins else found[-1] + 1)
    return found


@pytest.mark.parametrize("order", ["random", "shuffled", "sequential"])
def test_batches_say_where_documents_begin(target: str, corpus: Corpus, order: str) -> None:
    """And which samples they are; and they still unpack as x and y."""
    options = {"order": order, "rank": 1, "world_size": 2, "loss_mask": "ignore"}
    with RemoteBatches(target, MANY, T, **options) as feed:
        x, y = taken(feed, BATCHES)
    rows = np.concatenate([x, y[:, -1:]], axis=1).tolist()

    with RemoteBatches(target, MANY, T, **options) as feed:
        for number, batch in enumerate(itertools.islice(feed.batches(), BATCHES)):
            own = rows[number * MANY : (number + 1) * MANY]
            own_x, own_y = batch
            assert [*map(list, zip(*own, strict=True))][:-1] == own_x.T.tolist()
            assert own_y.tolist() == [row[1:] for row in own]
            assert batch.tokens.tolist() == own
            assert batch.positions.tolist() == [positions(corpus, row) for row in own]
            assert batch.sample.tolist() == [(2 * number + 1) * MANY + row for row in range(MANY)]
            assert batch.source.tolist() == [0] * MANY


def test_the_states_of_a_batch_are_those_before_and_after_it(target: str) -> None:
    """Also when they are asked for later, and of pairs and batches in turn."""
    options = {"order": "shuffled", "rank": 0, "world_size": 1}
    with RemoteBatches(target, B, T, **options) as feed:
        next(feed)
        before = feed.state_dict()
        rich = feed.batches()
        batch = next(rich)
        after = feed.state_dict()
        following = next(feed)
        next(rich)

        assert batch.state_before == before
        assert batch.state_after == after
    with RemoteBatches(target, B, T, **options) as feed:
        feed.load_state_dict(batch.state_before)
        again = next(feed.batches())
        assert torch.equal(again.tokens, batch.tokens)
        assert torch.equal(again.positions, batch.positions)
        assert torch.equal(next(feed)[0], following[0])


def test_a_mixture_has_the_masks_of_its_sources(serve: Serve, tmp_path: Path) -> None:
    """One source has a mask, one has none; both know their documents."""
    first = write_corpus(tmp_path / "a", "datatrove", "masked", 1)
    second = write_corpus(tmp_path / "b", "delimiter", "plain", 20_000)
    address = serve(*first.words, *second.words).address
    options = {"mixture": {"masked": 2, "plain": 1}, "order": "shuffled"}
    options |= {"rank": 0, "world_size": 1}

    with RemoteBatches(address, B, T, loss_mask="ignore", **options) as feed:
        x, plain = taken(feed, 100)
    with RemoteBatches(address, B, T, mask_borders=True, **options) as feed:
        own_x, y = taken(feed, 100)

    assert np.array_equal(own_x, x)
    rows = np.concatenate([x, plain[:, -1:]], axis=1).tolist()
    wanted = [
        targets(first if max(row) < 20_000 else second, row, mask=True, borders=True)
        for row in rows
    ]
    assert y.tolist() == wanted
    assert {max(row) < 20_000 for row in rows} == {True, False}

    with RemoteBatches(address, B, T, mask_borders=True, **options) as feed:
        for number, batch in enumerate(itertools.islice(feed.batches(), 100)):
            own = rows[number * B : (number + 1) * B]
            assert batch.y.tolist() == wanted[number * B : (number + 1) * B]
            assert batch.tokens.tolist() == own
            sources = [int(max(row) >= 20_000) for row in own]
            assert batch.source.tolist() == sources
            corpora = [second if source else first for source in sources]
            assert batch.positions.tolist() == [
                positions(corpus, row) for corpus, row in zip(corpora, own, strict=True)
            ]


def test_a_stage_of_a_mixture_may_have_only_a_source_without_a_mask(
    serve: Serve, tmp_path: Path
) -> None:
    """The stages before it have the plane, so it is requested of all of them."""
    first = write_corpus(tmp_path / "a", "datatrove", "masked", 1)
    second = write_corpus(tmp_path / "b", "delimiter", "plain", 20_000)
    address = serve(*first.words, *second.words).address
    options = {"mixture": {"masked": 1}, "order": "shuffled", "rank": 0, "world_size": 1}

    found = []
    for masks in ({"loss_mask": "ignore"}, {"mask_borders": True}):
        with RemoteBatches(address, B, T, **masks, **options) as feed:
            feed.change_mixture({"masked": 1, "plain": 1}, at_sample=8 * B)
            feed.change_mixture({"plain": 1}, at_sample=16 * B)
            found.append(taken(feed, 24))

    (x, plain), (own_x, y) = found
    assert np.array_equal(own_x, x)
    rows = np.concatenate([x, plain[:, -1:]], axis=1).tolist()
    is_second = [max(row) >= 20_000 for row in rows]
    assert y.tolist() == [
        targets(second if other else first, row, mask=True, borders=True)
        for row, other in zip(rows, is_second, strict=True)
    ]
    assert not any(is_second[: 8 * B])
    assert all(is_second[16 * B :])


def test_a_server_that_is_stopped_in_a_search_leaves_no_file_behind(
    serve: Serve, tmp_path: Path
) -> None:
    """Each restart of a server would leave gigabytes beside the tokens."""
    path = tmp_path / "corpus" / "train.bin"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate((1 << 30) + 4096)  # a hole: it takes no room on the disk
    # Each token ends a document, so what is found is more than what fits in memory.
    options = ["--document-end-token", "0", "--vocab-size", "1000", "--warm-up-bytes", "0"]
    server = serve("--data", path, *options)
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    # A file there that has no name yet.
    assert eventually(
        lambda: any(
            os.readlink(one).startswith(f"{path.parent}/#") for one in descriptors.iterdir()
        )
    )

    assert server.stop() == 0
    assert "document borders made" not in server.stderr
    assert list(path.parent.iterdir()) == [path]


def test_servers_with_different_delimiters_find_their_own_file_again(
    serve: Serve, tmp_path: Path
) -> None:
    """On one folder, each would search all tokens at each start, and write over the other's."""
    path = tmp_path / "corpus" / "train.bin"
    path.parent.mkdir()
    np.random.default_rng(1).integers(1, 4, 1_000_000).astype("<u2").tofile(path)
    for event in ("made", "found"):
        for delimiter in ("1", "2"):
            words = ["--data", path, "--dtype", "uint16", "--document-end-token", delimiter]
            server = serve(*words)
            assert f"document borders {event} dataset=train documents=33" in server.stderr
            assert server.stop() == 0
    assert len(list(path.parent.glob(".*.tokenfeed-documents-*"))) == 2


Change = Callable[[Path], None]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda folder: flip(folder / "1.ds.loss", 77), "loss mask"),
        (lambda folder: [mask.unlink() for mask in folder.glob("*.loss")], "loss mask"),
        (lambda folder: flip(folder / "0.ds.index", 0), "document starts"),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_replica_with_another_plane_is_refused_by_name(
    serve: Serve,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Change,
    name: str,
    first: int,
) -> None:
    """Before a batch: one bit of a mask, one border, or no mask at all."""
    corpora = [write_corpus(tmp_path / folder, "datatrove") for folder in ("a", "b")]
    change(tmp_path / "b")
    servers = [serve(*corpus.words).address for corpus in corpora]
    servers = [servers[first], servers[1 - first]]
    options = {"order": "shuffled", "rank": 0, "world_size": 1, "mask_borders": True}

    with RemoteBatches(servers, B, T, **options) as feed:
        next(feed)
    refusals = [record.message for record in caplog.records if "server rejected" in record.message]

    assert len(refusals) == 1
    assert servers[1] in refusals[0]
    assert name in refusals[0]


def test_a_state_of_a_masked_stream_goes_on_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    """The server that comes back has the same plane, or is refused."""
    corpus = write_corpus(tmp_path / "a", "datatrove")
    port = free_port()
    server = serve(*corpus.words, port=port)
    with RemoteBatches(server.address, B, T, rank=0, world_size=1, mask_borders=True) as feed:
        x, y = taken(feed, 3)
        server.stop()
        serve(*corpus.words, port=port)
        more_x, more_y = taken(feed, 200)

    with RemoteBatches(server.address, B, T, rank=0, world_size=1, mask_borders=True) as feed:
        again_x, again_y = taken(feed, 203)
    assert np.array_equal(np.concatenate([x, more_x]), again_x)
    assert np.array_equal(np.concatenate([y, more_y]), again_y)


def test_a_source_of_unknown_documents_makes_all_unknown(serve: Serve, tmp_path: Path) -> None:
    """Its rows would pass for one document each."""
    known = write_corpus(tmp_path / "a", "megatron", "known")
    np.arange(20_000, 22_000, dtype="<u2").tofile(tmp_path / "plain.bin")
    server = serve(*known.words, "--data", tmp_path / "plain.bin")
    options = {"mixture": {"known": 2, "plain": 1}, "rank": 0, "world_size": 1}

    with RemoteBatches(server.address, B, T, **options) as feed:
        batch = next(feed.batches())

        assert batch.tokens.shape == (B, T + 1)
        with pytest.raises(InvalidRequest, match="--document-end-token"):
            _ = batch.positions


def test_a_mixture_that_changes_keeps_its_documents(serve: Serve, tmp_path: Path) -> None:
    """The new source brings its own."""
    first = write_corpus(tmp_path / "a", "datatrove", "masked", 1)
    second = write_corpus(tmp_path / "b", "olmo", "later", 20_000)
    address = serve(*first.words, *second.words).address
    with RemoteBatches(address, B, T, mixture={"masked": 1}, rank=0, world_size=1) as feed:
        rich = feed.batches()
        next(rich)
        feed.change_mixture({"masked": 1, "later": 1})
        seen = set()
        for batch in itertools.islice(rich, 50):
            for row, own in zip(batch.tokens.tolist(), batch.positions.tolist(), strict=True):
                corpus = second if max(row) >= 20_000 else first
                assert own == positions(corpus, row)
                seen.add(corpus is second)
        assert seen == {True, False}


def test_borders_that_are_not_known_cannot_be_masked(serve: Serve, tmp_path: Path) -> None:
    """With the option that makes them known."""
    np.arange(1, 1000, dtype="<u2").tofile(tmp_path / "a.bin")
    server = serve("--data", tmp_path / "a.bin")

    with (
        RemoteBatches(server.address, B, T, rank=0, world_size=1, mask_borders=True) as feed,
        pytest.raises(InvalidRequest, match=r"'a' are not known.*--document-end-token") as caught,
    ):
        next(feed)

    assert caught.value.subject == "mask_borders"
