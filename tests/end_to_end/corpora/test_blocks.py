"""`order="blocks"` through real servers and from files: the rows of the second implementation."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from client import NumpyBatches
from tests.conftest import Serve, WriteTokens
from tests.support import reference
from tests.support.offline import received_rows
from tokenfeed.errors import InvalidRequest, StreamMismatch
from tokenfeed.tools.__main__ import main

T, SEED = 4096, 11
BLOCK = 2**19
LENGTHS = (17 * BLOCK + 5000, 300_000, BLOCK + 1, 70_000, 100)
"""18 blocks, in two groups of 9 with 16 blocks at most, and rests."""
BUDGET = 2**23
WINDOWS = sum((n - 1) // T for n in LENGTHS)


@pytest.fixture
def paths(write_tokens: WriteTokens) -> list[Path]:
    """A corpus whose windows can be told apart."""
    tokens = np.random.default_rng(3)
    return [
        write_tokens(tokens.integers(0, 2**16, n), f"web/{i}.bin") for i, n in enumerate(LENGTHS)
    ]


def expected(paths: list[Path], samples: Iterable[int], group_blocks: int = 16) -> np.ndarray:
    """The rows of samples, by the second implementation and from the files alone."""
    files = [np.fromfile(path, "<u2") for path in paths]
    places = [
        reference.blocks_window(SEED, list(LENGTHS), T, group_blocks, sample) for sample in samples
    ]
    return np.stack([files[file][token : token + T + 1] for file, token in places])


def test_a_server_and_local_files_have_the_rows_of_the_second_implementation(
    serve: Serve, paths: list[Path]
) -> None:
    """Where both groups meet, at the rests, and where an epoch ends."""
    server = serve("--data", *paths)
    options = {"order": "blocks", "seed": SEED, "group_tokens": BUDGET}
    in_blocks = 18 * BLOCK // T
    for target in (server.address, f"file:{paths[0].parent}"):
        for first in (0, in_blocks // 2 - 20, in_blocks - 20, WINDOWS - 20):
            with NumpyBatches(target, 8, T, start_sample=first, num_batches=5, **options) as feed:
                rows = received_rows(feed)
                identity = feed.state_dict()["stream"][1][0][-1]

            assert np.array_equal(rows, expected(paths, range(first, first + 40)))
            assert identity == 16


def test_an_epoch_has_every_window_once(paths: list[Path]) -> None:
    """Exactly once, from all files."""
    with NumpyBatches(
        f"file:{paths[0].parent}", 64, T, order="blocks", seed=SEED, group_tokens=BUDGET
    ) as feed:
        rows = [row for x, _ in feed.epoch(0, tail="pad") for row in x[:, :8].tolist()]

    files = [np.fromfile(path, "<u2") for path in paths]
    windows = [
        file[i * T : i * T + 8].tolist() for file in files for i in range((file.size - 1) // T)
    ]
    assert sorted(rows[:WINDOWS]) == sorted(windows)


def test_a_run_goes_on_at_another_number_of_ranks_and_in_files(
    serve: Serve, paths: list[Path]
) -> None:
    """What two ranks of a server began, three ranks of local files continue: the same rows."""
    server = serve("--data", *paths)
    options = {"order": "blocks", "seed": SEED, "group_tokens": BUDGET}

    def read(target: str, ranks: int, batches: int, state: dict | None) -> tuple[list, dict]:
        rows = []
        for rank in range(ranks):
            with NumpyBatches(
                target, 6 // ranks, T, rank=rank, world_size=ranks, **options
            ) as feed:
                if state is not None:
                    feed.load_state_dict(json.loads(json.dumps(state)))
                rows.append(received_rows([next(feed) for _ in range(batches)]))
                saved = feed.state_dict()
        # Back into the order of samples.
        parts = [part.reshape(batches, 6 // ranks, T + 1) for part in rows]
        return np.concatenate(parts, axis=1).reshape(-1, T + 1), saved

    first, state = read(server.address, 2, 4, None)
    second, state = read(f"file:{paths[0].parent}", 3, 5, state)
    third, _ = read(server.address, 1, 3, state)

    rows = np.concatenate([first, second, third])
    assert np.array_equal(rows, expected(paths, range(72)))


def test_a_source_keeps_the_groups_that_it_began_with(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever budget a later feed has: with other groups windows would repeat, and be left out."""
    target = f"file:{paths[0].parent}"
    with NumpyBatches(target, 8, T, order="blocks", seed=SEED, group_tokens=BUDGET) as feed:
        next(feed)
        state = feed.state_dict()

    with (
        caplog.at_level(logging.WARNING, "tokenfeed.client"),
        NumpyBatches(target, 8, T, order="blocks", seed=SEED) as feed,
    ):
        feed.load_state_dict(state)
        row = received_rows([next(feed)])
        history = feed.history()

    assert np.array_equal(row, expected(paths, range(8, 16)))
    assert history[0]["stages"][0]["sources"][0]["group_blocks"] == 16
    assert "resumed with the groups of the state dataset='' group_tokens=8388608 instead of" in (
        caplog.text
    )


def test_the_sources_of_a_mixture_share_one_budget_and_keep_their_parts(
    paths: list[Path], write_tokens: WriteTokens
) -> None:
    """By the weight that each has when it first has one; other weights move nothing. Two of the
    datasets have the same tokens: then the name decides.
    """
    for name in ("code", "math"):
        write_tokens(np.arange(200_000), f"{name}/0.bin")
    root = paths[0].parent.parent
    target = f"file:web={root}/web/,code={root}/code/,math={root}/math/"
    budget = 2**19 * 256
    with NumpyBatches(
        target, 8, T, mixture={"web": 6, "code": 2}, order="blocks", group_tokens=budget
    ) as feed:
        next(feed)
        feed.change_mixture({"web": 1, "code": 1, "math": 6})
        for _ in range(4):
            next(feed)
        state = feed.state_dict()
    groups = {source[0]: source[-1] for source in state["stream"][1]}

    assert groups == {"web": 128, "code": 64, "math": 128}
    with NumpyBatches(
        target, 8, T, mixture={"web": 6, "code": 2}, order="blocks", group_tokens=2**23
    ) as again:
        again.load_state_dict(state)
        next(again)
        assert {s[0]: s[-1] for s in again.state_dict()["stream"][1]} == groups


def test_a_source_that_pauses_keeps_its_groups(
    serve: Serve, paths: list[Path], write_tokens: WriteTokens
) -> None:
    """A weight of 0 in the definition with which a run goes on must not end the run, and the source
    comes back with the groups that it has begun with.
    """
    code = write_tokens(np.arange(200_000), "code/0.bin").parent
    target = serve("--data", f"web={paths[0].parent}", "--data", f"code={code}").address
    options = {"order": "blocks", "group_tokens": 2**19 * 64}
    with NumpyBatches(target, 8, T, mixture={"web": 1, "code": 1}, **options) as feed:
        next(feed)
        state = feed.state_dict()
    with NumpyBatches(target, 8, T, mixture={"web": 1, "code": 0}, **options) as again:
        again.load_state_dict(state, allow=("mixture",))
        next(again)
        again.change_mixture({"web": 1, "code": 3})
        for _ in range(3):
            next(again)
        groups = {source[0]: source[-1] for source in again.state_dict()["stream"][1]}

    assert groups == {"web": 32, "code": 32}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (32, "state.stream.hash"),
        (17, r"state.stream.sources\[0\].group_blocks: 17 is not a power of two"),
        ("16", r"state.stream.sources\[0\].group_blocks: '16' is not an integer"),
        (None, r"state.stream.hash"),
    ],
)
def test_a_state_whose_groups_were_changed_by_hand_is_refused(
    paths: list[Path], value: object, problem: str
) -> None:
    """Other rows would follow. None: the value is left out."""
    with NumpyBatches(f"file:{paths[0].parent}", 8, T, order="blocks", group_tokens=BUDGET) as feed:
        state = feed.state_dict()
        state["stream"][1][0][-1:] = [] if value is None else [value]

        with pytest.raises(InvalidRequest, match=problem):
            feed.load_state_dict(state)


def test_what_does_not_fit_is_refused_by_name(serve: Serve, paths: list[Path]) -> None:
    """Before a row is read, with the limit and what to do."""
    server = serve("--data", *paths)
    for length, options, problem in (
        (
            3000,
            {},
            "context_length: 3000 does not divide 524288, the tokens of a block",
        ),
        (2**20, {}, "context_length: 1048576 does not divide 524288"),
        (T, {"group_tokens": 2**22}, r"group_tokens: 4194304 is not in \[8388608, 549755813888\]"),
        (T, {"group_tokens": "many"}, "group_tokens: 'many' is not"),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            NumpyBatches(server.address, 8, length, order="blocks", **options)
    with NumpyBatches(server.address, 8, T, order="blocks") as feed:
        next(feed)
        state = feed.state_dict()
    with (
        NumpyBatches(server.address, 8, T, order="shuffled") as feed,
        pytest.raises(StreamMismatch, match="order: the state was saved with blocks-1"),
    ):
        feed.load_state_dict(state)


def test_rows_that_were_packed_already_are_refused(write_tokens: WriteTokens) -> None:
    """Their windows do not lie at multiples of the context length."""
    path = write_tokens(np.arange(4097 * 300) % 60_000)
    with (
        NumpyBatches(f"file:{path}?row-tokens=4097", 8, T, order="blocks") as feed,
        pytest.raises(InvalidRequest, match="order: blocks-1 reads blocks of tokens, but the"),
    ):
        next(feed)


def test_the_commands_tell_what_a_run_has_read(
    serve: Serve, paths: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`find` goes from tokens to samples by the inverse, `explain` back; a manifest has all that
    its samples follow from.
    """
    server = serve("--data", *paths)
    with NumpyBatches(server.address, 8, T, order="blocks", seed=SEED, group_tokens=BUDGET) as feed:
        for _ in range(3):
            next(feed)
        (tmp_path / "state.json").write_text(json.dumps(feed.state_dict()))
    file, token = reference.blocks_window(SEED, list(LENGTHS), T, 16, 13)

    def printed(command: str, *words: object) -> str:
        assert main([command, server.address, *map(str, words)]) == 0
        return capsys.readouterr().out

    state = ("--state", tmp_path / "state.json")
    place = ("--file-number", file, "--token", token + 1)
    asked = ("--order", "blocks", "--seed", SEED, "--group-tokens", BUDGET, "--context-length", T)
    found = json.loads(printed("find", *place, *state, "--json"))
    explained = json.loads(printed("explain", *state, "--step", 1, "--json"))
    manifest = [json.loads(line) for line in printed("manifest", *state).splitlines()]
    shown = printed("show", *asked, "--start-sample", 13, "--batch-size", 1)
    again = json.loads(printed("find", *place, *asked, "--end-sample", 40, "--json"))

    assert [row["sample"] for row in found["rows"]] == [13]
    assert [row["sample"] for row in again["rows"]] == [13]
    assert explained["stages"][0]["sources"][0]["group_blocks"] == 16
    assert [line["group_blocks"] for line in manifest if line["kind"] == "source"] == [16]
    ranges = {(line["file"], *line["tokens"]) for line in manifest if line["kind"] == "range"}
    windows = [reference.blocks_window(SEED, list(LENGTHS), T, 16, s) for s in range(24)]
    assert all(
        any(f == file and a <= t and t + T + 1 <= b for f, a, b in ranges) for file, t in windows
    )
    first = " ".join(map(str, np.fromfile(paths[file], "<u2")[token : token + 16]))
    assert shown.startswith(f"sample 13: {first} ...")
