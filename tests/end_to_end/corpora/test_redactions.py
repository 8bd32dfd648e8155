"""Redactions of a running stream: their tokens never arrive, and nothing else changes."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

from client import (
    Deleted,
    InvalidRequest,
    Mixture,
    NumpyBatches,
    RemoteBatches,
    StreamMismatch,
    TokenfeedError,
)
from tests.conftest import Serve
from tests.support.mixtures import T as MIXED_T
from tests.support.mixtures import local as local_mixture
from tests.support.mixtures import write_sources
from tests.support.packed_corpora import Corpus, write_corpus
from tests.support.redacting import holds_deleted, redact
from tests.support.waiting import eventually

T, B, SEED = 16, 4, 9
FILL = 7
LENGTHS = [[30, 5, 12, 40, 3], [9, 26, 2, 33]]
"""Tokens of the documents of two files; the first token is 100."""
LIST = [(0, 35, 47), (0, 60, 64), (1, 9, 35)]
"""The third document of the first file and some tokens of its fourth one; the second document of
the second file.
"""
WINDOWS = ["shuffled", "sequential", "random"]
ORDERS = [*WINDOWS, "packed", "padded"]


class Rows(NamedTuple):
    """Rows of batches: x and y, int64[n, T]."""

    x: np.ndarray
    y: np.ndarray


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "a", LENGTHS, first=100, masked=frozenset({110, 150}))


def copied(corpus: Corpus, folder: Path) -> Corpus:
    """The same files elsewhere, with their list if they have one."""
    shutil.copytree(corpus.paths[0].parent, folder)
    paths = tuple(folder / path.name for path in corpus.paths)
    return Corpus(corpus.name, paths, corpus.lengths, corpus.first, corpus.masked)


def rows_of(batches: Iterable[Any]) -> Rows:
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in batches]
    return Rows(*(np.concatenate(each).astype(np.int64) for each in zip(*pairs, strict=True)))


def taken(feed: Any, batches: int) -> Rows:
    return rows_of(next(feed) for _ in range(batches))


def joined(*parts: Rows) -> Rows:
    return Rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def plain(corpus: Corpus, batches: int, **options: Any) -> Rows:
    """The rows without redactions."""
    with NumpyBatches(corpus.target, B, T, seed=SEED, dtype=np.int64, **options) as feed:
        return taken(feed, batches)


def tokens_of(corpus: Corpus, ranges: Sequence[tuple[int, int, int]]) -> set[int]:
    """The tokens in ranges: each is unique in these corpora."""
    bases = np.cumsum([corpus.first, *map(sum, corpus.lengths)]).tolist()
    return {bases[file] + token for file, first, end in ranges for token in range(first, end)}


def redacted(rows: Rows, gone: set[int], first_row: int) -> Rows:
    """Rows in which tokens are left out from a row on: each token says which one it is."""
    x, y = rows.x.copy(), rows.y.copy()
    left_out = np.isin(x, sorted(gone))
    left_out[:first_row] = False
    x[left_out] = FILL
    left_out = np.isin(y, sorted(gone))
    left_out[:first_row] = False
    y[left_out] = -100
    return Rows(x, y)


def require_same(found: Rows, expected: Rows) -> None:
    assert np.array_equal(found.x, expected.x)
    assert np.array_equal(found.y, expected.y)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_local", [True, False], ids=["file", "served"])
def test_from_a_sample_on_redacted_tokens_never_arrive_and_nothing_else_changes(
    serve: Serve, corpus: Corpus, is_local: bool, order: str
) -> None:
    """In the middle of a batch, with batches prefetched beyond it, with a loss mask or without."""
    expected = {
        mask: plain(corpus, 30, order=order, loss_mask=mask) for mask in ("apply", "ignore")
    }
    found = redact(corpus.paths, *LIST, fill=FILL)
    gone = tokens_of(corpus, LIST)
    target = corpus.target if is_local else serve(*corpus.words).address
    for mask, kind in [("apply", RemoteBatches), ("ignore", NumpyBatches)]:
        with kind(target, B, T, seed=SEED, order=order, loss_mask=mask) as feed:
            rows = [taken(feed, 5)]
            assert feed.redact(found, at_sample=42) == 42
            assert feed.redact(found.upper(), at_sample=42) == feed.redact(found, 50) == 42
            rows.append(taken(feed, 25))
            history = feed.history()

        require_same(joined(*rows), redacted(expected[mask], gone, 42))
        assert len(history) == 1
        assert history[0]["redactions"] == [{"first_sample": 42, "source": 0, "list_hash": found}]
    assert np.isin(expected["ignore"].x[42:], sorted(gone)).sum() > 20


def test_a_replica_without_the_list_is_left_out_until_it_has_it(
    serve: Serve, corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The feed goes on with the other one, and fails over once the list is there, by row and by
    token as if nothing had happened.
    """
    other = copied(corpus, tmp_path / "b")
    expected = plain(corpus, 60, order="shuffled")
    servers = [serve(*each.words) for each in (corpus, other)]
    addresses = [server.address for server in servers]
    found = redact(corpus.paths, *LIST, fill=FILL)
    with NumpyBatches(addresses, B, T, seed=SEED, order="shuffled", dtype=np.int64) as feed:
        rows = [taken(feed, 5)]
        with caplog.at_level(logging.ERROR, "tokenfeed.client"):
            assert feed.redact(found, 42) == 42
        assert f"server rejected address={servers[1].address}" in caplog.text
        assert f"lacks redaction list {found} of dataset 'train'" in caplog.text
        rows.append(taken(feed, 25))
        assert redact(other.paths, *LIST, fill=FILL) == found
        servers[0].stop()
        rows.append(taken(feed, 30))

    require_same(joined(*rows), redacted(expected, tokens_of(corpus, LIST), 42))


@pytest.mark.parametrize("is_local", [True, False], ids=["file", "served"])
def test_a_list_that_was_just_made_is_taken_up(
    serve: Serve, corpus: Corpus, is_local: bool
) -> None:
    """A server looks for lists once a second. A mixture file may name the list too."""
    target = corpus.target if is_local else serve(*corpus.words).address
    with NumpyBatches(target, B, T, seed=SEED) as feed:
        for end in (3, 4, 5):
            assert feed.redact(redact(corpus.paths, (0, 0, end)), at_sample=40) == 40
    own = [{"dataset": "train", "list": redact(corpus.paths, (0, 0, 6)), "first_sample": 0}]
    with NumpyBatches(target, B, T, mixture=Mixture({"train": 1}, redactions=own)) as feed:
        next(feed)


def test_a_list_that_no_server_has_changes_nothing(serve: Serve, corpus: Corpus) -> None:
    """The caller is told which one, and the stream goes on."""
    expected = plain(corpus, 10, order="shuffled")
    target = serve(*corpus.words).address
    for each in (target, corpus.target):
        with NumpyBatches(each, B, T, seed=SEED, order="shuffled", dtype=np.int64) as feed:
            rows = [taken(feed, 5)]
            before = feed.state_dict()
            with pytest.raises(StreamMismatch, match=f"lacks redaction list {'ab' * 32} of"):
                feed.redact("ab" * 32, at_sample=30)
            assert feed.state_dict() == before
            rows.append(taken(feed, 5))
        require_same(joined(*rows), expected)


@pytest.mark.parametrize(
    ("arguments", "world_size", "problem"),
    [
        (["ab" * 31, 50], 1, "list_hash: 'abab.*' is not 64 hexadecimal digits"),
        ([None, 50], 1, "list_hash: is missing"),
        (["ab" * 32, 3], 1, "at_sample: 3 is before 4, the first sample"),
        (["ab" * 32], 2, "at_sample: is required with several ranks"),
        (["ab" * 32, 2**63], 1, "at_sample: 9223372036854775808 is not in"),
        (["ab" * 32, 50, "code"], 1, "dataset: 'code' is not in this stream, only web"),
    ],
)
def test_a_redaction_that_cannot_be_is_refused(
    corpus: Corpus, arguments: list[Any], world_size: int, problem: str
) -> None:
    """And changes nothing."""
    target = corpus.target.replace("train=", "web=")
    with NumpyBatches(target, B, T, dataset="web", rank=0, world_size=world_size) as feed:
        next(feed)
        before = feed.state_dict()
        with pytest.raises(InvalidRequest, match=problem):
            feed.redact(*arguments)
        assert feed.state_dict() == before


def test_of_a_mixture_the_dataset_has_to_be_named(corpus: Corpus) -> None:
    """Each has lists of its own."""
    with (
        NumpyBatches(corpus.target, B, T, mixture={"train": 1}) as feed,
        pytest.raises(InvalidRequest, match="dataset: is required with a mixture of train"),
    ):
        feed.redact("ab" * 32)


def test_a_feed_that_resumes_takes_over_what_the_state_has(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Also what comes later, whether its script names the redactions again or not."""
    first = redact(corpus.paths, *LIST[:1], fill=FILL)
    both = redact(corpus.paths, *LIST, fill=FILL)
    expected = redacted(plain(corpus, 40, order="packed"), tokens_of(corpus, LIST[:1]), 18)
    expected = redacted(expected, tokens_of(corpus, LIST), 101)
    options = {"seed": SEED, "order": "packed", "dtype": np.int64}
    with NumpyBatches(corpus.target, B, T, **options) as feed:
        feed.redact(first, at_sample=18)
        rows = [taken(feed, 10)]
        feed.redact(both, at_sample=101)
        state = json.loads(json.dumps(feed.state_dict()))
    assert state["version"] == 6
    for calls in ([], [(first, 18)], [(both, None), (first, 30)]):
        with NumpyBatches(corpus.target, B, T, **options) as feed:
            feed.load_state_dict(state)
            assert feed.state_dict() == state
            begins = [feed.redact(*call) for call in calls]
            again = taken(feed, 30)
            history = feed.history()
        if calls and calls[0][0] == both:
            assert begins == [40, 18], "as soon as possible is sooner than the state has it"
            continue
        assert begins == [18] * len(calls)
        assert len(history) == 1
        require_same(joined(*rows, again), expected)
    assert caplog.text == ""


def test_a_feed_with_another_past_is_refused_by_name(
    corpus: Corpus, caplog: pytest.LogCaptureFixture
) -> None:
    """Who runs a script with a redaction must not believe that the rows before had it."""
    first = redact(corpus.paths, *LIST[:1], fill=FILL)
    both = redact(corpus.paths, *LIST, fill=FILL)
    options = {"seed": SEED, "order": "shuffled", "dtype": np.int64}
    with NumpyBatches(corpus.target, B, T, **options) as feed:
        feed.redact(first, at_sample=18)
        rows = [taken(feed, 10)]
        state = feed.state_dict()
    with NumpyBatches(corpus.target, B, T, **options) as feed:
        feed.redact(first, at_sample=20)
        with pytest.raises(StreamMismatch, match=rf"{first} from sample 18 on, but .* 20 on"):
            feed.load_state_dict(state)
    with NumpyBatches(corpus.target, B, T, **options) as feed:
        feed.redact(both, at_sample=0)
        with pytest.raises(StreamMismatch, match=rf"redactions: .*, at sample 40, has no .*{both}"):
            feed.load_state_dict(state)
        assert feed.position.samples == 0
        feed.load_state_dict(state, allow=("redactions",))
        assert "resumed with other redactions" in caplog.text
        rows.append(taken(feed, 10))
        spec = feed.history()[-1]

    assert [each["first_sample"] for each in spec["redactions"]] == [18, 40]
    expected = redacted(plain(corpus, 20, order="shuffled"), tokens_of(corpus, LIST[:1]), 18)
    require_same(joined(*rows), redacted(expected, tokens_of(corpus, LIST), 40))


@pytest.mark.parametrize("at_sample", [20, 41])
def test_history_and_state_are_the_same_whether_a_list_is_taken_up_before_or_after_the_state(
    corpus: Corpus, at_sample: int
) -> None:
    """Ranks that call `redact` at other places of their script would save other checkpoints."""
    found = redact(corpus.paths, *LIST, fill=FILL)
    options = {"seed": SEED, "order": "shuffled", "dtype": np.int64}
    with NumpyBatches(corpus.target, B, T, **options) as feed:
        taken(feed, 5)
        state = feed.state_dict()
    states, histories = [], []
    for is_before in (True, False):
        with NumpyBatches(corpus.target, B, T, **options) as feed:
            if is_before:
                feed.redact(found, at_sample=at_sample)
            feed.load_state_dict(state)
            if not is_before:
                feed.redact(found, at_sample=at_sample)
            taken(feed, 3)
            states.append(feed.state_dict())
            histories.append(feed.history())

    assert len(histories[0]) == 1
    assert histories[0] == histories[1]
    assert states[0] == states[1]


def test_a_grown_corpus_needs_its_own_list_or_a_word_that_it_has_none(
    corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the tokens would come back in the next run, with one line in a log."""
    found = redact(corpus.paths, *LIST, fill=FILL)
    grown = write_corpus(tmp_path / "grown", [*LENGTHS, [50, 40]], first=100)
    ranges = [*LIST, (2, 5, 20)]
    new = redact(grown.paths, *ranges, fill=FILL)
    options = {"seed": SEED, "order": "shuffled", "dtype": np.int64}
    with NumpyBatches(corpus.target, B, T, **options) as feed:
        feed.redact(found, at_sample=8)
        taken(feed, 5)
        state = feed.state_dict()
    with NumpyBatches(grown.target, B, T, **options) as feed:
        feed.redact(new)
        with pytest.raises(StreamMismatch, match=rf"list {found} of another corpus.*Redact the"):
            feed.load_state_dict(state, allow=("fingerprint",))
        assert feed.position.samples == 0
        feed.load_state_dict(state, allow=("fingerprint", "redactions"))
        assert f"redactions of another corpus are dropped list={found}" in caplog.text
        rows = taken(feed, 20)
        run = feed.history()[-1]

    # Of the corpus that was read before, and of the one that grew.
    assert [(each["source"], each["list_hash"]) for each in run["redactions"]] == [
        (0, found),
        (1, new),
    ]
    assert not np.isin(rows.x, sorted(tokens_of(grown, ranges))).any()
    assert (rows.y == -100).any()


@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")
def test_a_distributed_checkpoint_has_them_too(corpus: Corpus, tmp_path: Path) -> None:
    """torch.distributed.checkpoint loads only the keys that the loading feed's own state has."""
    found = redact(corpus.paths, *LIST, fill=FILL)
    with RemoteBatches(corpus.target, B, T, seed=SEED, order="packed") as feed:
        rows = [taken(feed, 3)]
        feed.redact(found, at_sample=20)
        dcp.save({"feed": feed}, checkpoint_id=tmp_path / "saved", no_dist=True)
        state = feed.state_dict()
    with RemoteBatches(corpus.target, B, T, seed=SEED, order="packed") as feed:
        dcp.load({"feed": feed}, checkpoint_id=tmp_path / "saved", no_dist=True)
        assert feed.state_dict() == state
        rows.append(taken(feed, 9))

    expected = redacted(plain(corpus, 12, order="packed"), tokens_of(corpus, LIST), 20)
    require_same(joined(*rows), expected)


def test_an_epoch_goes_on_with_the_redaction(corpus: Corpus) -> None:
    """Its loop is not ended, and the rows that it had prefetched are read again."""
    found = redact(corpus.paths, *LIST, fill=FILL)
    with RemoteBatches(corpus.target, B, T, seed=SEED, order="sequential") as feed:
        batches, masks = [], []
        for index, batch in enumerate(feed.epoch(0, tail="wrap").batches()):
            batches.append(tuple(batch))
            masks.append(batch.loss_mask.numpy())
            if index == 0:
                assert feed.redact(found) == B
        count = len(batches)
        history = feed.history()

    rows = rows_of(batches)
    expected = redacted(plain(corpus, count, order="sequential"), tokens_of(corpus, LIST), B)
    require_same(rows, expected)
    assert np.array_equal(np.concatenate(masks), rows.y != -100)
    assert len(history) == 1


def test_a_redaction_may_come_once_a_source_is_read_no_more(
    write_tokens: Callable[..., Path],
) -> None:
    """Then other datasets are opened: a list that they lack is refused, another one is in force."""
    paths = write_sources(write_tokens)
    code = np.fromfile(paths["code"][0], "<u2").astype(int)
    weights = {"web": 1, "code": 1}
    with NumpyBatches(local_mixture(paths), B, MIXED_T, mixture=weights) as feed:
        feed.change_mixture(weights | {"math": 2}, at_sample=20)
        feed.change_mixture({"web": 1, "code": 2}, at_sample=100)
        taken(feed, 30)
        with pytest.raises(StreamMismatch, match="lacks redaction list"):
            feed.redact("ab" * 32, dataset="code")
        assert feed.redact(redact(paths["code"], (0, 0, 400), fill=FILL), dataset="code") == 120
        rows = taken(feed, 30)

    assert not np.isin(rows.x, code).any()
    assert (rows.y == -100).any(axis=1).sum() == 81


def test_a_mixture_file_has_redactions_of_its_sources(
    write_tokens: Callable[..., Path], serve: Serve
) -> None:
    """Of one source, while stages change, and after a resume in which sources have other numbers
    and names.
    """
    paths = write_sources(write_tokens)
    ranges = [(0, 100, 140), (0, 200, 203)]
    found = redact(paths["code"], *ranges, fill=FILL)
    code = np.fromfile(paths["code"][0], "<u2").astype(int)
    gone = {int(code[token]) for _, first, end in ranges for token in range(first, end)}
    text = f"""
        order = "shuffled"
        [[stages]]
        weights = {{web = 6, code = 4}}
        [[stages]]
        first_sample = 50
        weights = {{code = 1, math = 1}}
        [[redaction]]
        dataset = "code"
        list = "{found}"
        first_tokens = {44 * MIXED_T - 1}
    """
    mixture = Mixture.parse(text.encode(), "mixture.toml")
    without = Mixture.parse(text[: text.index("[[redaction]]")].encode(), "mixture.toml")
    target = local_mixture(paths)
    with NumpyBatches(target, B, MIXED_T, mixture=without, dtype=np.int64) as feed:
        rows = taken(feed, 40)
    expected = redacted(rows, gone, 44)
    assert not np.array_equal(expected.x, rows.x)

    served = serve(
        *[word for name, (path, *_) in paths.items() for word in ("--data", f"{name}={path}")]
    )
    for each in (target, served.address):
        with NumpyBatches(each, B, MIXED_T, mixture=mixture, dtype=np.int64) as feed:
            require_same(taken(feed, 40), expected)
    with NumpyBatches(target, B, MIXED_T, mixture=without, dtype=np.int64) as feed:
        found_rows = [taken(feed, 5)]
        assert feed.redact(found, 44, dataset="code") == 44
        found_rows.append(taken(feed, 15))
        state = feed.state_dict()
    renamed = {"math": paths["math"], "source": paths["code"], "web": paths["web"]}
    stages = [
        {"weights": {"math": 0, "source": 4, "web": 6}},
        {"first_sample": 50, "weights": {"source": 1, "math": 1}},
    ]
    other = Mixture(stages=stages, order="shuffled")
    with NumpyBatches(local_mixture(renamed), B, MIXED_T, mixture=other, dtype=np.int64) as feed:
        feed.load_state_dict(state)
        found_rows.append(taken(feed, 20))
        assert feed.history()[-1]["redactions"] == [
            {"first_sample": 44, "source": 1, "list_hash": found}
        ]
    require_same(joined(*found_rows), expected)


def test_ranks_take_up_a_redaction_together(
    corpus: Corpus, in_ranks: Callable[..., list[Any]]
) -> None:
    """At different positions; a rank that asks for another one is refused on all."""
    first = redact(corpus.paths, *LIST[:1], fill=FILL)
    both = redact(corpus.paths, *LIST, fill=FILL)

    def train(rank: int, feed: RemoteBatches) -> tuple[Rows, dict[str, Any]]:
        rows = [taken(feed, 2 + rank)]
        with pytest.raises(StreamMismatch, match=r"redactions: rank \d changes it to another one"):
            feed.redact(first if rank else both, at_sample=70)
        assert feed.redact(both, at_sample=69) == 69
        rows.append(taken(feed, 14 - rank))
        return joined(*rows), feed.state_dict()

    def make(rank: int) -> RemoteBatches:
        return RemoteBatches(
            corpus.target, B, T, seed=SEED, order="packed", rank=rank, world_size=3
        )

    found = in_ranks(train, 3, make)

    assert [each for each in found if isinstance(each, TokenfeedError)] == []
    assert all(state == found[0][1] for _, state in found)
    of_ranks = [rows for rows, _ in found]
    rows = Rows(
        *(
            np.stack([part.reshape(16, B, T) for part in parts], axis=1).reshape(-1, T)
            for parts in zip(*of_ranks, strict=True)
        )
    )
    require_same(rows, redacted(plain(corpus, 48, order="packed"), tokens_of(corpus, LIST), 69))


def test_ranks_whose_mixture_files_have_other_redactions_are_told(
    corpus: Corpus, in_ranks: Callable[..., list[Any]]
) -> None:
    """At the first batch: they would train on different rows."""
    found = redact(corpus.paths, *LIST, fill=FILL)

    def make(rank: int) -> RemoteBatches:
        own = [{"dataset": "train", "list": found, "first_sample": 40 + rank}]
        mixture = Mixture({"train": 1}, redactions=own)
        return RemoteBatches(corpus.target, B, T, mixture=mixture, rank=rank, world_size=2)

    errors = in_ranks(lambda rank, feed: next(feed), 2, make)

    assert sum(isinstance(each, StreamMismatch) for each in errors) == 1
    assert "planes or redactions differ" in str([str(each) for each in errors])


@pytest.mark.parametrize("is_local", [True, False], ids=["file", "served"])
def test_erased_tokens_are_said_to_be_deleted_unless_they_are_redacted(
    serve: Serve, corpus: Corpus, is_local: bool
) -> None:
    """By name, at once. A new run has the redaction in force from sample 0 on."""
    before = plain(corpus, 20, order="shuffled", loss_mask="ignore")
    gone = tokens_of(corpus, LIST)
    found = redact(corpus.paths, *LIST, fill=FILL, erase=True)
    target = corpus.target if is_local else serve(*corpus.words).address
    options = {"seed": SEED, "order": "shuffled", "loss_mask": "ignore", "dtype": np.int64}
    with (
        NumpyBatches(target, B, T, **options) as feed,
        pytest.raises(Deleted, match=r"train.*deleted"),
    ):
        taken(feed, 20)
    with NumpyBatches(target, B, T, **options) as feed:
        assert feed.redact(found) == 0
        require_same(taken(feed, 20), redacted(before, gone, 0))
        state = feed.state_dict()
    with NumpyBatches(target, B, T, **options) as feed:
        feed.load_state_dict(state)
        next(feed)
    with NumpyBatches(target, B, T, redactions=found, **options) as feed:
        require_same(taken(feed, 20), redacted(before, gone, 0))
        assert feed.state_dict() == state


@pytest.mark.parametrize("is_local", [True, False], ids=["file", "served"])
@pytest.mark.parametrize("read", ["map", "pread"])
def test_a_run_goes_on_while_its_corpus_is_erased(
    serve: Serve, corpus: Corpus, is_local: bool, read: str
) -> None:
    """Its rows are what they were but for the redaction, from its sample on; the erased tokens are
    in no map and no open file of a process any more, soon after.
    """
    before = plain(corpus, 400, order="shuffled", loss_mask="ignore")
    gone = tokens_of(corpus, LIST)
    server = None if is_local else serve(*corpus.words, "--read", read)
    target = f"{corpus.target}?read={read}" if server is None else server.address
    process = os.getpid() if server is None else server.process.pid
    options = {"seed": SEED, "order": "shuffled", "loss_mask": "ignore", "dtype": np.int64}
    with NumpyBatches(target, B, T, **options) as feed:
        rows = [taken(feed, 2)]
        found = redact(corpus.paths, *LIST, fill=FILL)
        begin = feed.redact(found)
        rows.append(taken(feed, 2))
        redact(corpus.paths, *LIST, fill=FILL, erase=True)
        rows.append(taken(feed, 396))
        assert eventually(lambda: not holds_deleted(process, corpus.paths))
    whole = Rows(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))
    require_same(whole, redacted(before, gone, begin))


@pytest.mark.parametrize("is_local", [True, False], ids=["file", "served"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_all_whole_batches_before_deleted_tokens_arrive(
    serve: Serve, tmp_path: Path, is_local: bool, batch_size: int
) -> None:
    """A run that ends before them must not end because it prefetches."""
    corpus = write_corpus(tmp_path / "long", [[40] * 100])
    redact(corpus.paths, (0, 2000, 2003), fill=FILL, erase=True)
    target = corpus.target if is_local else serve(*corpus.words).address
    first_deleted = 1999 // T  # with its last token
    said = rf"sample {first_deleted} needs .*tokens \[2000, 2003\)"
    for start in (0, first_deleted - 20, first_deleted - batch_size):
        delivered: list[int] = []
        with NumpyBatches(target, batch_size, T, order="sequential", start_sample=start) as feed:
            with pytest.raises(Deleted, match=said):
                delivered.extend(token for x, _ in feed for token in x[:, 0].tolist())
        batches = (first_deleted - start) // batch_size
        assert delivered == [1 + T * (start + row) for row in range(batches * batch_size)]


def test_what_was_skipped_and_redacted_is_in_the_history(corpus: Corpus) -> None:
    """A skip is a gap between runs, and a redaction is a part of the stream of each run."""
    found = redact(corpus.paths, *LIST, fill=FILL)
    with NumpyBatches(corpus.target, B, T, seed=SEED, order="shuffled") as feed:
        taken(feed, 2)
        feed.skip(100)
        taken(feed, 3)
        assert feed.redact(found) == 120
        taken(feed, 1)
        runs = feed.history()

    assert [(run["first_sample"], run["end_sample"]) for run in runs] == [(0, 8), (108, 124)]
    assert [run.get("redactions", []) for run in runs] == [
        [],
        [{"first_sample": 120, "source": 0, "list_hash": found}],
    ]
