"""What explain, find, manifest and plan say of a run whose context has grown, against every row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from client import NumpyBatches
from tokenfeed.tools.__main__ import main

U = 1 << 19
BLOCKS = 20
"""In two groups of 10."""
LENGTHS = 1 << 13, 1 << 15, 1 << 16
RANKS, ROWS = 2, 24
"""Ranks, and rows of a batch at first."""
BEGINS = (
    BLOCKS // 2 * U // LENGTHS[0],
    BLOCKS // 2 * U // LENGTHS[0] + BLOCKS // 2 * U // LENGTHS[1],
)


class Row(NamedTuple):
    """A row that arrived, or that filled up a batch: then its sample is below 0."""

    step: int
    rank: int
    row: int
    sample: int
    token: int
    length: int


class Run(NamedTuple):
    """A run that is over.  folder: has the states after some steps, NUMBER.json."""

    target: str
    folder: Path
    rows: list[Row]
    steps: int


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks read a few steps of each of three lengths, with a skip before each change."""
    folder = tmp_path_factory.mktemp("grown")
    np.arange(BLOCKS * U + 1, dtype=np.uint32).tofile(folder / "places.bin")
    target = f"file:{folder / 'places.bin'}?dtype=uint32&format=raw"
    options: dict[str, Any] = {"order": "blocks", "seed": 5, "group_tokens": 16 * U}
    rows, step = list[Row](), 0
    with ExitStack() as stack:
        feeds = [
            stack.enter_context(
                NumpyBatches(target, ROWS, LENGTHS[0], rank=rank, world_size=RANKS, **options)
            )
            for rank in range(RANKS)
        ]
        begins = [
            [feed.change_context_length(length, asked) for feed in feeds]
            for length, asked in ((LENGTHS[1], 1), (LENGTHS[2], BEGINS[0] + 1))
        ]
        assert begins == [[begin] * RANKS for begin in BEGINS]
        for begin in (*BEGINS, None):
            for number in range(5):
                if number == 2 and begin is not None:
                    for feed in feeds:
                        feed.skip(begin - 2 * feed.batch_size - 1 - feed.position.samples)
                for rank, feed in enumerate(feeds):
                    batch = next(feed.batches())
                    for n, (sample, x) in enumerate(zip(batch.sample_numpy, batch.x, strict=True)):
                        rows.append(Row(step, rank, n, int(sample), int(x[0]), x.size))
                step += 1
                (folder / f"{step}.json").write_text(json.dumps(feeds[0].state_dict()))
    assert {row.length for row in rows} == {*LENGTHS}
    assert sum(row.sample < 0 for row in rows) > RANKS
    return Run(target, folder, rows, step)


Told = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run a command, and return the lines of JSON that it prints."""

    def tell(*words: object) -> list[dict[str, Any]]:
        assert main([*map(str, words)]) == 0, capsys.readouterr().err
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return tell


def state(run: Run, step: int) -> list[object]:
    return ["--state", run.folder / f"{step}.json"]


def test_explain_tells_every_row_of_every_step_and_which_ones_were_padding(
    run: Run, told: Told
) -> None:
    """A step is no fixed number of samples any more, and the state knows it."""
    for step in range(run.steps):
        words = ["--step", step, "--json", "--rows-max", 100]
        (found,) = told("explain", *state(run, run.steps), *words, run.target)

        own = {row[1:3]: row for row in run.rows if row.step == step}
        assert len(found["rows"]) == len(own)
        lengths = {row.length for row in own.values() if row.sample >= 0}
        assert {stage["context_length"] for stage in found["stages"]} == lengths
        for row in found["rows"]:
            expected = own[row["rank"], row["row"]]
            assert row.get("is_padding", False) == (expected.sample < 0)
            if expected.sample >= 0:
                assert row["sample"] == expected.sample
                (piece,) = row["ranges"]
                end = expected.token + expected.length + 1
                assert piece["tokens"] == [expected.token, end]


@pytest.mark.parametrize("step", [3, 8])
def test_explain_tells_steps_to_come_at_the_lengths_that_they_will_have(
    run: Run, told: Told, step: int
) -> None:
    """Behind the skip: the next step is filled up, and the one behind it has another length."""
    for number in (step, step + 1):
        words = ["--step", number, "--json", "--rows-max", 100]
        (found,) = told("explain", *state(run, step), *words, run.target)

        samples = [row.get("sample", -1) for row in found["rows"]]
        assert samples == [max(row.sample, -1) for row in run.rows if row.step == number]
    (far,) = told("explain", *state(run, step), "--step", 2000, "--json", run.target)
    assert far["stages"][-1]["context_length"] == LENGTHS[2]
    assert far["batch_size"] == ROWS * LENGTHS[0] // LENGTHS[2]


@pytest.mark.parametrize("place", [0, 1_234_567, 7 * U - 1, 7 * U, BLOCKS * U - 3])
def test_find_names_every_row_with_a_token_whatever_its_length_was(
    run: Run, told: Told, place: int
) -> None:
    """And each token of a whole block once in an epoch: what is still to come is the rest."""
    end = min(place + 300_000, BLOCKS * U + 1)
    words = ["--file-number", 0, "--token", place, "--tokens", end - place, "--rows-max", 10_000]
    (found,) = told("find", *state(run, run.steps), *words, "--json", run.target)

    expected = {
        (row.sample, row.length): row[:3]
        for row in run.rows
        if row.sample >= 0 and row.token < end and row.token + row.length + 1 > place
    }
    seen = {
        (row["sample"], row["context_length"]): tuple(row["places"][0].values())
        for row in found["rows"]
        if row["when"] == "seen"
    }
    assert seen == expected
    tokens = Counter[int]()
    for row in found["rows"]:
        if row["epoch"] == 0:
            (span,) = row["tokens"]
            tokens[row["sample"]] += span[1] - span[0]
    # Rows that follow each other share a token.
    assert 0 <= tokens.total() - (end - place) <= len(tokens)


def test_a_manifest_has_what_was_read_at_each_length(run: Run, told: Told) -> None:
    """The record of what a model has learned is not rounded at a change."""
    lines = told("manifest", *state(run, run.steps), "--expand", run.target)

    own = [row for row in run.rows if row.sample >= 0]
    lengths = [line["context_length"] for line in lines if line["kind"] == "source"]
    samples = [line["samples"] for line in lines if line["kind"] == "source"]
    assert dict(zip(lengths, samples, strict=True)) == Counter(row.length for row in own)
    read, listed = np.zeros((2, BLOCKS * U + 1), np.int64)
    for row in own:
        read[row.token : row.token + row.length + 1] += 1
    for line in lines:
        if line["kind"] == "range":
            first, end = line["tokens"]
            listed[first:end] += line["times"]
    # Rows that follow one another share a token, which their range has once.
    shared = np.flatnonzero(read != listed)
    assert np.array_equal(read > 0, listed > 0)
    assert (read >= listed).all()
    assert not (shared % LENGTHS[0]).any()
    assert lines[0]["tokens"] == sum(row.length for row in own)


def test_a_plan_names_where_a_change_really_begins(run: Run, told: Told) -> None:
    """An epoch is an epoch, whichever lengths it is read at."""
    words = ["--tokens", BLOCKS * U]
    (found,) = told("plan", *state(run, 1), *words, "--json", run.target)
    main(["plan", *map(str, state(run, 1)), "--tokens", str(BLOCKS * U), run.target])

    stages = [(each["first_sample"], each["context_length"]) for each in found["stages"]]
    assert stages == [(0, LENGTHS[0]), (BEGINS[0], LENGTHS[1]), (BEGINS[1], LENGTHS[2])]
    assert [each["asked_sample"] for each in found["stages"]] == [0, 1, BEGINS[0] + 1]
    (source,) = found["sources"].values()
    assert source["tokens"] == BLOCKS * U - RANKS * ROWS * LENGTHS[0]
    assert source["epochs_at_end"] == 1
