"""A run over one dataset that goes on as a mixture, and back; what stays in force, and what counts
as another part of the stream.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import InvalidRequest, Mixture, NumpyBatches, StreamMismatch
from tests.support.packed_corpora import write_corpus
from tests.support.redacting import redact
from tokenfeed.client.feed import feed as feeds

B, T, WINDOWS = 2, 8, 50
ALLOWED = ("mixture",)
MIXTURE = {"web": 2, "code": 1}
CODE = 20_000
"""Its first token; those of web are below."""


@pytest.fixture
def target(tmp_path: Path) -> str:
    paths = {name: tmp_path / f"{name}.bin" for name in ("web", "code")}
    for first, path in zip((0, CODE), paths.values(), strict=True):
        np.arange(first, first + WINDOWS * T + 1, dtype="<u2").tofile(path)
    return "file:" + ",".join(f"{name}={path}" for name, path in paths.items())


def feed_of(target: str, context_length: int = T, **options: Any) -> NumpyBatches:
    given = {"order": "shuffled", "seed": 1, "rank": 0, "world_size": 1} | options
    return NumpyBatches(target, B, context_length, **given)


def web_rows(feed: NumpyBatches, count: int) -> list[int]:
    """The first tokens of so many rows of web."""
    found: list[int] = []
    while len(found) < count:
        x, _ = next(feed)
        found += [row[0] for row in x.tolist() if row[0] < CODE]
    return found[:count]


@pytest.mark.parametrize("options", [{}, {"seed": 2}, {"order": "random"}], ids=str)
def test_redacted_tokens_stay_away_also_from_another_order_or_seed(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The dataset has another number then; the list goes with its corpus."""
    web = write_corpus(tmp_path / "web", [[30, 5, 12, 40, 3]], "web", first=100)
    code = write_corpus(tmp_path / "code", [[60, 60]], "code", first=5000)
    listed = redact(web.paths, (0, 35, 47), fill=7)
    target = f"{web.target},{code.target.removeprefix('file:')}"
    with feed_of(target, dataset="web") as feed:
        feed.redact(listed)
        next(feed)
        state = feed.state_dict()
    with feed_of(target, mixture=MIXTURE, **options) as feed:
        for part in options:
            with pytest.raises(StreamMismatch, match=f"^{part}: the state was saved with"):
                feed.load_state_dict(state, allow=ALLOWED)
        feed.load_state_dict(state, allow=(*ALLOWED, *options))
        tokens = np.concatenate([next(feed)[0].ravel() for _ in range(40)])

    assert (tokens == 7).any()
    assert not np.isin(tokens, np.arange(135, 147)).any()


def test_redacted_tokens_stay_away_once_their_dataset_comes_back(
    target: str, tmp_path: Path
) -> None:
    """With another seed, behind a pause of the mixture or a run over another dataset."""
    listed = redact([tmp_path / "web.bin"], (0, 100, 220), fill=7)
    with feed_of(target, mixture=MIXTURE) as feed:
        feed.redact(listed, dataset="web")
        next(feed)
        feed.change_mixture({"code": 1})
        for _ in range(4):
            next(feed)
        states = [feed.state_dict()]
    with feed_of(target, dataset="web") as feed:
        feed.redact(listed)
        next(feed)
        state = feed.state_dict()
    with feed_of(target, dataset="code") as feed:
        with pytest.raises(StreamMismatch, match=r"redactions: the state has list"):
            feed.load_state_dict(state, allow=("fingerprint",))
        feed.load_state_dict(state, allow=("fingerprint", "redactions"))
        next(feed)
        states.append(feed.state_dict())
    for state in states:
        for seed in (1, 2):
            with feed_of(target, dataset="web", seed=seed) as feed:
                feed.load_state_dict(state, allow=("fingerprint", "seed"))
                tokens = np.concatenate([next(feed)[0].ravel() for _ in range(WINDOWS)])
            assert not np.isin(tokens, np.arange(100, 220)).any()


def test_a_mask_of_a_dataset_that_comes_back_is_compared(tmp_path: Path) -> None:
    """Also if its source was paused when the state was saved."""
    masked = [
        write_corpus(tmp_path / name, [[30, 40]], "web", first=100, masked=frozenset({110 + n}))
        for n, name in enumerate(("one", "two"))
    ]
    code = write_corpus(tmp_path / "code", [[60, 60]], "code", first=5000)
    one, two = (f"{each.target},{code.target.removeprefix('file:')}" for each in masked)
    with feed_of(one, mixture=MIXTURE) as feed:
        next(feed)
        feed.change_mixture({"code": 1})
        for _ in range(4):
            next(feed)
        state = feed.state_dict()
    for target, expected in ((one, None), (two, "planes: the state was saved with loss mask")):
        with feed_of(target, dataset="web") as feed:
            if expected is None:
                feed.load_state_dict(state, allow=("fingerprint",))
                continue
            with pytest.raises(StreamMismatch, match=expected):
                feed.load_state_dict(state, allow=("fingerprint",))


def test_other_rows_of_documents_have_another_fraction_of_an_epoch(tmp_path: Path) -> None:
    """Of `padded` at another length the feed of `packed` knows no rows; nothing is guessed."""
    corpus = write_corpus(tmp_path, [[30, 5, 12, 40, 3]], "web")
    allow = ("context_length", "order")
    with feed_of(corpus.target, order="padded") as feed:
        next(feed)
        state = feed.state_dict()
    with feed_of(corpus.target, 12, order="packed") as feed:
        with pytest.raises(StreamMismatch, match="seen part of the epoch is unknown"):
            feed.load_state_dict(state, allow=allow)
        feed.load_state_dict(state, allow=(*allow, "mid_epoch"))
        assert feed.position.samples == B


def test_other_borders_of_documents_are_named_beside_another_seed(tmp_path: Path) -> None:
    """Both make other rows; each has to be allowed."""
    path = tmp_path / "web.bin"
    (np.arange(401, dtype="<u2") % 23).tofile(path)
    target = f"file:web={path}?document-end-token="
    with feed_of(f"{target}7", dataset="web", order="packed") as feed:
        next(feed)
        state = feed.state_dict()
    with feed_of(f"{target}11", dataset="web", order="packed", seed=2) as feed:
        with pytest.raises(StreamMismatch, match=r"^pieces: the state was saved with"):
            feed.load_state_dict(state, allow=("seed",))
        feed.load_state_dict(state, allow=("seed", "pieces"))


def test_a_change_that_was_passed_meanwhile_is_refused(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads on while the change is made: state and history would be wrong."""
    with feed_of(target, mixture=MIXTURE) as feed:
        reweighted = feeds.reweighted

        def slowly(*arguments: Any) -> Any:
            found = reweighted(*arguments)
            for _ in range(20):
                next(feed)
            return found

        monkeypatch.setattr(feeds, "reweighted", slowly)
        before = feed.state_dict()["stream"]
        with pytest.raises(InvalidRequest, match="at_sample: 12 was passed by another thread"):
            feed.change_mixture({"code": 1}, at_sample=10)
        assert feed.state_dict()["stream"] == before
        assert feed.change_mixture({"code": 1}, at_sample=90) == 90


def test_a_corpus_that_has_grown_goes_on_under_its_name(target: str, tmp_path: Path) -> None:
    """As another source of the same dataset, from its beginning."""
    with feed_of(target, dataset="web") as feed:
        next(feed)
        state, before = feed.state_dict(), feed.history()
    np.arange(WINDOWS * T + 81, dtype="<u2").tofile(tmp_path / "web.bin")
    with feed_of(target, mixture=MIXTURE) as feed:
        with pytest.raises(StreamMismatch, match=r"^fingerprint: the state was saved with"):
            feed.load_state_dict(state, allow=ALLOWED)
        feed.load_state_dict(state, allow=(*ALLOWED, "fingerprint"))
        firsts = web_rows(feed, WINDOWS + 10)
        history = feed.history()

    assert sorted(firsts) == list(range(0, WINDOWS * T + 80, T))
    assert history[0]["stages"][0] == before[0]["stages"][0]


@pytest.mark.parametrize("how", ["definition", "change", "redaction", "append"])
def test_nothing_changes_among_samples_that_were_delivered(target: str, how: str) -> None:
    """A loop that went back to an earlier epoch reads them again; the history has them once."""
    with feed_of(target, dataset="web") as feed:
        for epoch in (2, 1):
            for _ in feed.epoch(epoch):
                if epoch == 1:
                    break
        state, before = feed.state_dict(), feed.history()
    at, end = state["sample"] + 10, 3 * WINDOWS
    later = Mixture(stages=[{"weights": {"web": 1}}, {"first_sample": at, "weights": {"code": 1}}])
    mixture = {"definition": later, "append": MIXTURE}.get(how, {"web": 1})
    with feed_of(target, mixture=mixture) as feed:
        if how == "definition":
            with pytest.raises(StreamMismatch, match=f"a stage from sample {at} on"):
                feed.load_state_dict(state)
            return
        feed.load_state_dict(state, allow=ALLOWED if how == "append" else ())
        if how == "change":
            with pytest.raises(InvalidRequest, match=f"{at} is before {end}, the first"):
                feed.change_mixture({"code": 1}, at)
            assert feed.change_mixture({"code": 1}) == end
        if how == "redaction":
            with pytest.raises(InvalidRequest, match=f"{at} is before {end}, the first"):
                feed.redact("ab" * 32, at, "web")
        assert feed.history() == before


def test_at_another_length_the_dataset_is_changed_first(target: str) -> None:
    """A mixture has no epoch whose fraction could be kept, and would repeat rows in silence."""
    with feed_of(target, dataset="web") as feed:
        for _ in feed.epoch(0):
            pass
        state = feed.state_dict()
    with feed_of(target, 5, mixture=MIXTURE) as feed:
        with pytest.raises(StreamMismatch, match=r"context_length: .* goes on with 'web'\. First"):
            feed.load_state_dict(state, allow=(*ALLOWED, "context_length"))
    with feed_of(target, 5, dataset="web") as feed:
        feed.load_state_dict(state, allow=("context_length",))
        state = feed.state_dict()
    with feed_of(target, 5, mixture=MIXTURE) as feed:
        feed.load_state_dict(state, allow=ALLOWED)
        assert sorted(web_rows(feed, 80)) == list(range(0, 400, 5))
    with feed_of(target, 5, mixture=MIXTURE, seed=2) as feed:
        feed.load_state_dict(state, allow=(*ALLOWED, "seed"))
        assert sorted(web_rows(feed, 80)) == list(range(0, 400, 5))


def test_an_order_without_a_seed_needs_no_permission_for_it(target: str) -> None:
    """`sequential` ignores it."""
    with feed_of(target, dataset="web") as feed:
        next(feed)
        state = feed.state_dict()
    with feed_of(target, dataset="web", order="sequential") as feed:
        feed.load_state_dict(state, allow=("order",))
        assert web_rows(feed, 2) == [2 * T, 3 * T]
