"""OLMo-core's real Trainer on a real server, on one rank and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import serving
from tests.support.offline import offline_rows

T, SEED = 16, 3
WINDOWS = 25
"""Of the corpus: an epoch has 6 batches of 4 rows, and one row is left."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each run did, by name: of a run on two ranks, a list of both."""
    folder = tmp_path_factory.mktemp("olmo")
    path = folder / "train.bin"
    np.random.default_rng(0).integers(1, 512, WINDOWS * T + 1).astype("<u2").tofile(path)
    found: dict[str, Any] = {"path": path}
    with serving(folder) as serve:
        server = serve("--data", path)
        feed = {"target": server.address, "order": "shuffled", "seed": SEED, "rows": 4}

        def steps(name: str, value: int, **options: Any) -> dict[str, Any]:
            duration = {"value": value, "unit": "steps"}
            return {"name": name, "ranks": 1, "duration": duration, **feed, **options}

        sizes = {"batch_sizes": {"0": 2, "4": 4, "10": 2}, "rows": 2}
        train(
            folder,
            {**steps("two epochs", 0), "duration": {"value": 2, "unit": "epochs"}},
            steps("first", 4),
            steps("second", 9, resumed="first"),
            steps("second on two", 7, ranks=2, resumed="first"),
            steps("third", 9, resumed="second on two"),
            steps("one epoch", 6),
            steps("next epoch", 8, resumed="one epoch"),
            steps("ends", 10, num_batches=3),
            steps("two end", 10, ranks=2, num_batches=3),
            steps("ended", 10, num_batches=3, resumed="ends"),
            steps("ends mixed", 100, num_batches=5, order="random", **sizes),
            steps("sizes", 9, **sizes),
            steps("sizes resumed", 12, resumed="sizes", **sizes),
        )
    for result in sorted(folder.glob("*-?.json")):
        found.setdefault(result.stem[:-2], []).append(json.loads(result.read_text()))
    return found


def train(folder: Path, *runs: dict[str, Any]) -> None:
    """Run trainings, one after another."""
    module = ["-m", "tests.adapters.training.olmo_core", str(folder), json.dumps(runs)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *module],
        env=environ,
        timeout=550,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def rows_of(run: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.array(each) for each in run["rows"]])


def offline(runs: dict[str, Any], samples: Any, order: str = "shuffled-1") -> np.ndarray:
    return offline_rows([runs["path"]], order, SEED, T, samples)


def test_two_epochs_are_the_rows_of_the_stream(runs: dict[str, Any]) -> None:
    """An epoch of the trainer is one of the feed; the row that fills no batch is left out."""
    (run,) = runs["two epochs"]
    samples = [*range(24), *range(25, 49)]
    assert np.array_equal(rows_of(run), offline(runs, samples))
    assert (run["step"], run["max_steps"], run["total_batches"]) == (12, 12, 6)
    assert run["tokens"] == 12 * 4 * T


def test_the_losses_are_those_of_a_plain_loop(runs: dict[str, Any]) -> None:
    """labels are shifted once, and no more: a model that learns the wrong token looks sane."""
    (run,) = runs["two epochs"]
    assert len(run["losses"]) == 12
    np.testing.assert_allclose(run["losses"], run["plain_losses"], rtol=1e-4)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_resumes_at_the_next_row_also_on_another_number_of_ranks(
    runs: dict[str, Any], ranks: int
) -> None:
    """Rank 1 of two finds no state of its own, and loads that of rank 0."""
    (first,) = runs["first"]
    assert np.array_equal(rows_of(first), offline(runs, range(16)))
    if ranks == 1:
        (run,) = runs["second"]
        assert np.array_equal(rows_of(run), offline(runs, [*range(16, 24), *range(25, 37)]))
        return
    for rank, run in enumerate(runs["second on two"]):
        samples = [begin + 2 * rank + row for begin in (16, 20, 25) for row in range(2)]
        assert np.array_equal(rows_of(run), offline(runs, samples))
    (third,) = runs["third"]
    assert np.array_equal(rows_of(third), offline(runs, range(29, 37)))


def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next_one(
    runs: dict[str, Any],
) -> None:
    """The trainer asks for the epoch that is over once more; it must not be repeated."""
    (run,) = runs["next epoch"]
    assert np.array_equal(rows_of(run), offline(runs, range(25, 33)))
    assert run["step"] == 8


@pytest.mark.parametrize("name", ["ends", "two end"])
def test_a_feed_that_ends_ends_training_on_all_ranks(runs: dict[str, Any], name: str) -> None:
    """Otherwise the trainer begins one empty epoch after another, for ever."""
    assert [run["step"] for run in runs[name]] == [3] * len(runs[name])
    rows = np.concatenate([np.array(run["rows"]) for run in runs[name]], axis=1)
    assert np.array_equal(rows.reshape(-1, T + 1), offline(runs, range(12)))
    (ended,) = runs["ended"]
    assert (ended["rows"], ended["step"]) == ([], 3)


def test_no_row_is_lost_or_repeated_when_the_batch_size_changes(runs: dict[str, Any]) -> None:
    """A scheduler of the trainer does that in the middle of an epoch, and after a resume."""
    (run,), (resumed,) = runs["sizes"], runs["sizes resumed"]
    # Four batches of 2, four of 4, and one of 4 in the next epoch.
    assert [len(rows) for rows in run["rows"]] == [2] * 4 + [4] * 5
    assert np.array_equal(rows_of(run), offline(runs, [*range(24), *range(25, 29)]))
    assert [len(rows) for rows in resumed["rows"]] == [4, 2, 2]
    assert np.array_equal(rows_of(resumed), offline(runs, range(29, 37)))
    assert run["tokens"] == 28 * T


def test_a_feed_ends_where_it_would_have_after_its_batch_size_changed(
    runs: dict[str, Any],
) -> None:
    """num_batches are those of the first batch size: 10 rows, in 4 batches of 2, and no 4 more."""
    (run,) = runs["ends mixed"]
    assert [len(rows) for rows in run["rows"]] == [2] * 4
    assert np.array_equal(rows_of(run), offline(runs, range(8), "random-1"))
