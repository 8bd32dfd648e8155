"""What the picture of a plan shows."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from tests.client.feed.mixture.test_forecast import planned
from tests.support.stages import AskedStage, stages_of
from tokenfeed.stream.position import SAMPLE_END
from tokenfeed.tools.plan.picture import _groups, _marks, _short, _steps, draw

STAGES = [AskedStage(0, (3, 1)), AskedStage(10, (1, 1)), AskedStage(20, (0, 1))]


def test_borders_are_where_stages_really_begin() -> None:
    """Not where they were asked for; and only those within the plan."""
    stages, first, second = stages_of(STAGES), {0: 0.75, 1: 0.25}, {0: 0.5, 1: 0.5}
    assert _steps(stages, 0, 30) == ([0, 12, 20, 30], [first, second, {1: 1.0}])
    assert _steps(stages, 0, 12) == ([0, 12], [first])
    assert _steps(stages, 15, 18) == ([15, 18], [second])


def test_small_sources_are_drawn_as_one() -> None:
    """A hundred colors could not be told apart."""
    names = {number: f"s{number}" for number in range(100)}
    shares = [{number: number / 4950 for number in range(100)}, {0: 0.5, 99: 0.5}]

    groups = _groups(names, [0, 99, 100], shares)

    assert list(groups) == [*(f"s{number}" for number in range(91, 100)), "91 others"]
    assert sorted(chain.from_iterable(groups.values())) == list(range(100))
    few = {number: names[number] for number in range(10)}
    assert _groups(few, [0, 1], [{0: 1.0}]) == {few[n]: [n] for n in range(10)}


def test_sources_that_end_together_share_a_mark() -> None:
    ends = [(100, "a"), (101, "b"), (103, "c"), (900, "d")]

    assert _marks(ends, 1000) == {100: "a, b and 1 more exhausted", 900: "d exhausted"}


def test_tokens_are_short_below_the_picture() -> None:
    assert [_short(tokens) for tokens in (0, 900, 2500, 2e6, 1.5e9, 3e12)] == [
        "0",
        "900",
        "2.5k",
        "2M",
        "1.5B",
        "3T",
    ]


@pytest.mark.parametrize(
    ("first_sample", "end_sample", "max_epochs"),
    [
        (0, 200, {}),
        (70, 200, {"0": 1}),
        (0, 200, {"0": 1, "1": 1}),
        (0, 1, {}),
        (SAMPLE_END // 2, SAMPLE_END, {}),
    ],
)
def test_every_plan_can_be_drawn(
    first_sample: int, end_sample: int, max_epochs: dict[str, int], tmp_path: Path
) -> None:
    """Also one of which nothing is left, and one up to the last sample there is."""
    pytest.importorskip("matplotlib", exc_type=ImportError)
    plan = planned(
        STAGES,
        [20, 30],
        first_sample=first_sample,
        end_sample=end_sample,
        max_epochs=max_epochs,
    )

    draw(plan, str(tmp_path / "plan.png"))

    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
