"""A run over one dataset that goes on as a mixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import InvalidRequest, Mixture, NumpyBatches, StreamMismatch
from tests.support.packed_corpora import write_corpus
from tests.support.redacting import redact

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
        feed.load_state_dict(state, allow=ALLOWED)
        tokens = np.concatenate([next(feed)[0].ravel() for _ in range(40)])

    assert (tokens == 7).any()
    assert not np.isin(tokens, np.arange(135, 147)).any()


def test_a_corpus_that_has_grown_goes_on_under_its_name(target: str, tmp_path: Path) -> None:
    """As another source of the same dataset, from its beginning."""
    with feed_of(target, dataset="web") as feed:
        next(feed)
        state, before = feed.state_dict(), feed.history()
    np.arange(WINDOWS * T + 81, dtype="<u2").tofile(tmp_path / "web.bin")
    with feed_of(target, mixture=MIXTURE) as feed:
        feed.load_state_dict(state, allow=ALLOWED)
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
        feed.load_state_dict(state, allow=ALLOWED)
        assert sorted(web_rows(feed, 80)) == list(range(0, 400, 5))


def test_an_order_without_a_seed_needs_no_permission_for_it(target: str) -> None:
    """`sequential` ignores it."""
    with feed_of(target, dataset="web") as feed:
        next(feed)
        state = feed.state_dict()
    with feed_of(target, dataset="web", order="sequential") as feed:
        feed.load_state_dict(state, allow=("order",))
        assert web_rows(feed, 2) == [2 * T, 3 * T]
