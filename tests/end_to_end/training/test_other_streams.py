"""A run that goes on as another stream where that is allowed, against a second implementation's
rows. Each of its states is loaded from files and from a server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from client import InvalidRequest, NumpyBatches, StreamMismatch
from tests.conftest import serving
from tests.support.offline import offline_rows, received_rows

B, LONG, SHORT = 2, 8, 5
WINDOWS = {LONG: 50, SHORT: 80}
"""Of 401 tokens, by the context length."""
FIRST_TOKENS = {"web": 1000, "code": 20_000}
State = dict[str, Any]
Open = Callable[..., NumpyBatches]


class Asked(NamedTuple):
    """What a feed over one dataset is asked for."""

    dataset: str = "web"
    order: str = "shuffled"
    seed: int = 1
    context_length: int = LONG


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two corpora, whose tokens tell their place."""
    folder = tmp_path_factory.mktemp("corpora")
    for name, first in FIRST_TOKENS.items():
        np.arange(first, first + 401, dtype="<u2").tofile(folder / f"{name}.bin")
    return folder


@pytest.fixture(scope="module")
def targets(folder: Path) -> Iterator[dict[str, str]]:
    """The same corpora as files, and on a server."""
    named = [f"{name}={folder / name}.bin" for name in FIRST_TOKENS]
    with serving(folder) as serve:
        server = serve(*[word for each in named for word in ("--data", each)])
        yield {"files": "file:" + ",".join(named), "server": server.address}


@pytest.fixture
def open_feed(targets: dict[str, str]) -> Iterator[Open]:
    """Open feeds of one rank: open_feed(asked, "files", ...)."""
    opened: list[NumpyBatches] = []

    def start(asked: Asked, where: str, **options: Any) -> NumpyBatches:
        given = asked._asdict() | {"rank": 0, "world_size": 1} | options
        opened.append(NumpyBatches(targets[where], B, **given))
        return opened[-1]

    yield start
    for feed in opened:
        feed.close()


def taken(feed: NumpyBatches, rows: int) -> list[list[int]]:
    found: list[list[int]] = received_rows(next(feed) for _ in range(rows // B)).tolist()
    return found


def expected(folder: Path, asked: Asked, first: int, end: int) -> list[list[int]]:
    """The rows of own samples of a dataset."""
    path, order = folder / f"{asked.dataset}.bin", f"{asked.order}-1"
    rows = offline_rows([path], order, asked.seed, asked.context_length, range(first, end))
    found: list[list[int]] = rows.tolist()
    return found


def saved(feed: NumpyBatches) -> State:
    state: State = json.loads(json.dumps(feed.state_dict()))
    return state


def stages_of(history: Sequence[dict[str, Any]]) -> list[tuple[int, int, int, Asked]]:
    """Of each stage of the only run, where it begins, the number of its source, the source's own
    sample, and what it was asked for.
    """
    (run,) = history
    found = []
    for stage in run["stages"]:
        (source,) = stage["sources"]
        asked = Asked(
            source["dataset"],
            source["order"].removesuffix("-1"),
            source["seed"],
            stage["context_length"],
        )
        found.append((stage["first_sample"], source["source"], source["base"], asked))
    return found


WEB = Asked()
WEB_SHORT = Asked(context_length=SHORT)
SEQUENTIAL, SEQUENTIAL_SHORT = (Asked("web", "sequential", 0, length) for length in WINDOWS)
RANDOM, RANDOM_SHORT = (Asked("web", "random", 1, length) for length in WINDOWS)

ONE_PART: tuple[list[int], list[int]] = [18, 20], [18, 38]
CHANGES = {
    "seed": (WEB, Asked(seed=2), ("seed",), *ONE_PART),
    "order": (WEB, RANDOM, ("order",), *ONE_PART),
    "corpus": (WEB, Asked("code"), ("fingerprint",), *ONE_PART),
    "seed and corpus": (WEB, Asked("code", seed=2), ("fingerprint", "seed"), *ONE_PART),
    "T of random": (RANDOM, RANDOM_SHORT, ("context_length",), *ONE_PART),
    "T between epochs": (WEB, WEB_SHORT, ("context_length",), [50, 80], [80, 100]),
    # Tokens 144 and 240 of epoch 1 lie in windows 28 of 5 tokens and 30 of 8.
    "T of sequential": (
        SEQUENTIAL, SEQUENTIAL_SHORT, ("context_length",), [68, 20], [80 + 28, 50 + 30],
    ),
    # 18 of 50 rows of epoch 1 are 28 of 80, and 48 of 80 are 30 of 50.
    "T within an epoch": (
        WEB, WEB_SHORT, ("context_length", "mid_epoch"), [68, 20], [80 + 28, 50 + 30],
    ),
    "T and corpus": (
        WEB, Asked("code", context_length=SHORT), ("context_length", "fingerprint", "mid_epoch"),
        *ONE_PART,
    ),
}  # fmt: skip
"""What a run was and is asked for, what has to be allowed, how many samples it has as one and as
the other, and the source's own samples at which it goes on as the other and as the first again.
"""


@pytest.mark.parametrize("where", ["files", "server"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_run_goes_on_as_another_stream_and_back_and_what_was_before_stays(
    folder: Path, open_feed: Open, where: str, change: str
) -> None:
    """Feed, history and state agree on where and with which rows, and the state needs no permission
    any more: neither here nor there. The first stream has its number again.
    """
    before, now, allow, counts, bases = CHANGES[change]
    elsewhere = "server" if where == "files" else "files"
    number = int(not {"context_length"} <= set(allow) <= {"context_length", "mid_epoch"})
    walk = [(before, counts[0], 0), (now, counts[1], bases[0]), (before, 10, bases[1])]
    begin, rows, stages, state = 0, list[list[int]](), list[object](), State()
    for hop, (asked, count, own) in enumerate(walk):
        feed = open_feed(asked, where)
        if hop:
            for part in allow:
                with pytest.raises(StreamMismatch) as caught:
                    feed.load_state_dict(state, allow=[each for each in allow if each != part])
                assert caught.value.subject == ("context_length" if part == "mid_epoch" else part)
                assert feed.position.samples == 0
            feed.load_state_dict(state, allow=allow)
            epoch = None if asked.order == "random" else own // WINDOWS[asked.context_length]
            assert feed.position == (begin, epoch)
            assert stages_of(feed.history()) == stages
        rows += taken(feed, count)
        assert rows[begin:] == expected(folder, asked, own, own + count)
        stages.append((begin, hop % 2 * number, own, asked))
        begin, state = begin + count, saved(feed)
        assert stages_of(feed.history()) == stages
        for place in (elsewhere, where):
            again = open_feed(asked, place)
            again.load_state_dict(state)
            assert (saved(again), again.history()) == (state, feed.history())
            assert taken(again, 4) == expected(folder, asked, own + count, own + count + 4)

    assert len(state["stream"][1]) == number + 1


# --- epochs behind another context length ---


@pytest.mark.parametrize("change", ["T of sequential", "T within an epoch"])
@pytest.mark.parametrize("where", ["files", "server"])
def test_within_an_epoch_at_another_length_the_rest_of_it_comes_once_and_then_whole_ones(
    folder: Path, open_feed: Open, where: str, change: str
) -> None:
    """Their number, length and rows are those of the new windows, also from a state within one."""
    before, now, allow, (sample, _), (own, _) = CHANGES[change]
    windows = WINDOWS[SHORT]
    feed = open_feed(before, where, start_sample=sample - 8)
    taken(feed, 8)
    state = saved(feed)
    feed = open_feed(now, where)
    feed.load_state_dict(state, allow=allow)
    left = 2 * windows - own

    assert (len(feed.epoch(1)), feed.batches_per_epoch) == (windows // B, windows // B)
    batches = iter(feed.epoch(1))
    rows = received_rows(next(batches) for _ in range(10)).tolist()
    state = saved(feed)
    feed = open_feed(now, where)
    feed.load_state_dict(state)
    rows += received_rows(feed.epoch(feed.position.epoch or 0)).tolist()
    assert feed.position == (sample + left, 2)
    for _ in range(2):
        whole = received_rows(feed.epoch(2)).tolist()
        assert feed.position == (sample + left + windows, 3)
    with pytest.raises(InvalidRequest, match=f"epoch: 1 began before sample {sample}, from which"):
        next(iter(feed.epoch(1)))

    assert rows == expected(folder, now, own, 2 * windows)
    assert whole == expected(folder, now, 2 * windows, 3 * windows)
    assert [(run["first_sample"], run["end_sample"]) for run in feed.history()] == [
        (sample - 8, sample + left + windows),
        (sample + left, sample + left + windows),
    ]
