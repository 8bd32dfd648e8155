"""tokenfeed manifest: expanded, it is exactly what was read."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.packed_corpora import write_corpus
from tests.support.seen_runs import LATER, WEIGHTS, SeenRun, T, Texts, local, write_all
from tests.support.states import state_of
from tests.support.waiting import eventually
from tests.tokenfeed.tools.provenance.conftest import Ask
from tokenfeed.client.batches.arrays import NumpyBatches
from tokenfeed.client.feed.history import Run
from tokenfeed.client.feed.state import read_state
from tokenfeed.client.feed.stats import SourceStats
from tokenfeed.errors import Unreadable
from tokenfeed.tools.__main__ import main
from tokenfeed.tools.provenance.manifest import ROWS_AS_RANGES_MAX
from tokenfeed.tools.provenance.output import write_jsonl

Captured = pytest.CaptureFixture[str]
Line = dict[str, Any]
Manifest = Callable[..., list[Line]]


@pytest.fixture
def manifest(tmp_path: Path, capsys: Captured) -> Manifest:
    """Run the command, and return its lines."""

    def run(target: str, state: Path, *words: str) -> list[Line]:
        path = tmp_path / "manifest.jsonl"
        assert main(["manifest", target, "--state", str(state), "--output", str(path), *words]) == 0
        assert capsys.readouterr() == ("", "")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return run


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["kind"] == kind]


def tokens_in(lines: list[Line], dataset: str) -> set[tuple[int, int]]:
    """File and token of all that ranges of a dataset have."""
    return {
        (line["file"], token)
        for line in of_kind(lines, "range")
        if line["dataset"] == dataset
        for token in range(*line["tokens"])
    }


def test_a_manifest_has_the_tokens_that_were_read_and_no_other(
    run: SeenRun, checkpoint: Path, texts: dict[str, Texts], target: str, ask: Ask,
    manifest: Manifest,
) -> None:  # fmt: skip
    """By the ranges of each row that a rank has read; with the documents that they are of."""
    lines = manifest(target, checkpoint)

    read: dict[str, set[tuple[int, int]]] = {name: set() for name in texts}
    rows = Counter()
    for step in range(run.steps):
        words = ("explain", target, "--state", checkpoint, "--rows-max", 1000, "--step", step)
        for row in ask(*words)["rows"]:
            rows[row["dataset"]] += 1
            for each in row["ranges"]:
                read[row["dataset"]] |= {(each["file"], t) for t in range(*each["tokens"])}
    for name, of in texts.items():
        assert tokens_in(lines, name) == read[name]
        for line in of_kind(lines, "range"):
            if line["dataset"] == name:
                file, (first, end) = line["file"], line["tokens"]
                numbers = [of.document_at(file, token)[0] for token in (first, end - 1)]
                assert line["documents"] == [numbers[0], numbers[1] + 1]
                assert line["file_name"] == of.paths[file].name
                assert line["epochs"] == [0, 1]
    assert {line["dataset"]: line["rows"] for line in of_kind(lines, "epochs")} == rows


def test_totals_are_those_of_stats(
    run: SeenRun, checkpoint: Path, target: str, manifest: Manifest
) -> None:
    """An auditor compares both; and the parts add up to the whole."""
    lines = manifest(target, checkpoint)

    (whole,) = of_kind(lines, "run")
    (stream,) = of_kind(lines, "stream")
    assert whole["samples"] == len(run.rows)
    assert whole["tokens"] == T * len(run.rows)
    assert whole["steps"] == run.steps == whole["end_step"]
    sources = of_kind(lines, "source")
    assert [each["source"] for each in sources] == [0, 1, 2]
    assert [
        {each["source"]: (each["dataset"], each["weight"]) for each in stage["sources"]}
        for stage in stream["stages"]
    ] == [
        {number: (name, weights[name]) for number, name in enumerate(WEIGHTS)}
        for weights in (WEIGHTS, LATER)
    ]
    assert {
        each["dataset"]: SourceStats(each["samples"], each["tokens"], each["epochs"])
        for each in sources
    } == run.sources
    for source in sources:
        own = [line for line in lines if line.get("source") == source["source"]]
        assert source["samples"] == sum(
            line["rows"] * line["times"] * (line["epochs"][1] - line["epochs"][0])
            for line in of_kind(own, "epochs")
        )
        if source["order"] == "shuffled-1":
            assert source["samples"] == sum(line["rows"] for line in of_kind(own, "range"))


def saved(tmp_path: Path, feed: NumpyBatches, *runs: tuple[int, int]) -> Path:
    """Write the state of a feed that has read samples in one step after the other."""
    stream = read_state(feed.state_dict()).stream
    history, step = list[Run](), 0
    for first, end in runs:
        history.append(Run(step, first, end, 1, 1))
        step = history[-1].end_batch
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(state_of(stream, runs[-1][1], history)))
    return path


@pytest.mark.parametrize("order", ["shuffled", "packed"])
def test_whole_epochs_are_one_set_of_ranges(
    serve: Serve, tmp_path: Path, manifest: Manifest, order: str
) -> None:
    """However many there are."""
    corpus = write_corpus(tmp_path / "corpus", [[30, 20], [70, 1, 9]])
    address = serve(*corpus.words).address
    with NumpyBatches(address, 1, 9, order=order) as feed:
        feed.epoch(0, tail="pad")
        rows = len(feed.epoch(0))
        path = saved(tmp_path, feed, (0, 5 * rows + 3))

    lines = manifest(address, path)

    whole, part = of_kind(lines, "epochs")
    assert (whole["epochs"], whole["rows"], part["epochs"]) == ([0, 5], rows, [5, 6])
    assert part["rows"] == 3
    ranges = [line for line in of_kind(lines, "range") if line["epochs"] == [0, 5]]
    if order == "shuffled":
        assert [each["tokens"] for each in ranges] == [[0, 46], [0, 73]]
        assert [each["documents"] for each in ranges] == [[0, 2], [2, 5]]
    else:
        # A document of one token has nothing to learn.
        assert [each["tokens"] for each in ranges] == [[0, 50], [0, 70], [71, 80]]
    (source,) = of_kind(lines, "source")
    assert source["epochs"] == pytest.approx(5 + 3 / rows)


def test_much_of_an_epoch_is_written_as_its_samples(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, manifest: Manifest
) -> None:
    """Order and seed say which rows they are; --expand says it too, in the order of the corpus."""
    rows = 2 * ROWS_AS_RANGES_MAX
    address = serve("--data", write_tokens(np.arange(2 * rows + 1) % 60_000)).address
    with NumpyBatches(address, 1, 2, order="shuffled", seed=8) as feed:
        path = saved(tmp_path, feed, (5, 1_000), (2_000, ROWS_AS_RANGES_MAX + 2_100))

    lines = manifest(address, path)

    assert of_kind(lines, "range") == []
    found = of_kind(lines, "samples")
    assert [line["samples"] for line in found] == [[5, 1_000], [2_000, ROWS_AS_RANGES_MAX + 2_100]]
    assert {(each["order"], each["seed"], each["context_length"]) for each in found} == {
        ("shuffled-1", 8, 2)
    }
    (source,) = of_kind(lines, "source")
    assert source["samples"] == sum(each["rows"] for each in found)
    ranges = of_kind(manifest(address, path, "--expand"), "range")
    places = [each["tokens"] for each in ranges]
    assert places == sorted(places)
    assert sum(each["rows"] for each in ranges) == source["samples"]


def test_what_was_read_twice_says_so(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, manifest: Manifest
) -> None:
    """Also in the order random, which has no epochs."""
    address = serve("--data", write_tokens(range(101))).address
    for order, epochs in (("sequential", [0, 1]), ("random", None)):
        with NumpyBatches(address, 1, 10, order=order) as feed:
            path = saved(tmp_path, feed, (0, 4), (2, 6))
        lines = manifest(address, path)
        found = {line["times"]: line for line in of_kind(lines, "epochs")}
        assert {times: line["rows"] for times, line in found.items()} == {1: 4, 2: 2}
        assert [line["epochs"] for line in found.values()] == [epochs, epochs]
        twice = [line for line in of_kind(lines, "range") if line["times"] == 2]
        assert sum(line["rows"] for line in twice) == 2
        if epochs:
            assert [line["tokens"] for line in twice] == [[20, 41]]


def test_each_way_in_which_a_source_was_read_is_a_part_of_its_own(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, manifest: Manifest
) -> None:
    """Rows of another length hold other tokens; and a line tells by its part which ones."""
    tokens = np.arange(1, 2_001)
    address = serve("--data", write_tokens(tokens)).address
    state: dict[str, Any] = {}
    read: dict[tuple[int, int], set[int]] = {}
    steps = ((10, 1), (20, 1), (20, 2))
    for length, seed in steps:
        with NumpyBatches(address, 3, length, order="shuffled", seed=seed) as feed:
            if state:
                feed.load_state_dict(state, allow=("context_length", "mid_epoch", "seed"))
            for _ in range(4):
                for row in next(feed.batches()).tokens.tolist():
                    read.setdefault((length, seed), set()).update(token - 1 for token in row)
            state = feed.state_dict()
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))

    lines = manifest(address, path)

    parts = of_kind(lines, "source")
    assert [(each["source"], each["part"]) for each in parts] == [(0, 0), (0, 1), (1, 2)]
    assert [(each["context_length"], each["seed"]) for each in parts] == list(steps)
    for part, own in zip(parts, read.values(), strict=True):
        ranges = [each for each in of_kind(lines, "range") if each["part"] == part["part"]]
        assert {each["source"] for each in ranges} == {part["source"]}
        assert {token for each in ranges for token in range(*each["tokens"])} == own
        assert part["tokens"] == 12 * part["context_length"]
    (stream,), (whole,) = of_kind(lines, "stream"), of_kind(lines, "run")
    assert [stage["context_length"] for stage in stream["stages"]] == [10, 20, 20]
    assert whole["tokens"] == 12 * (10 + 20 + 20)


def test_parquet_has_the_same_lines(
    run: SeenRun, checkpoint: Path, target: str, manifest: Manifest, tmp_path: Path
) -> None:
    """For those who ask with SQL."""
    lines = manifest(target, checkpoint)
    path = tmp_path / "manifest.parquet"
    words = ["--state", str(checkpoint), "--format", "parquet", "--output", str(path)]

    assert main(["manifest", target, *words]) == 0

    rows = pq.read_table(path).to_pylist()
    assert [row["kind"] for row in rows] == [line["kind"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        if line["kind"] == "range":
            assert [row["first_token"], row["end_token"]] == line["tokens"]
            assert [row["first_document"], row["end_document"]] == line["documents"]
            assert [row["first_epoch"], row["end_epoch"]] == line["epochs"]
            assert (row["file_name"], row["file"]) == (line["file_name"], line["file"])
        elif line["kind"] != "epochs":
            assert json.loads(row["line"]) == line


def test_stdout_has_the_lines_where_no_file_is_named(
    run: SeenRun, checkpoint: Path, target: str, manifest: Manifest, capsys: Captured
) -> None:
    """For a pipe."""
    lines = manifest(target, checkpoint)

    assert main(["manifest", target, "--state", str(checkpoint)]) == 0

    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines


def test_a_link_stays_a_link_and_a_fifo_a_fifo(
    checkpoint: Path, target: str, manifest: Manifest, tmp_path: Path
) -> None:
    """A reader waits at a FIFO, and a link leads where there is room."""
    lines = manifest(target, checkpoint)
    words = ["manifest", target, "--state", str(checkpoint), "--output"]
    real, link, fifo = (tmp_path / name for name in ("real", "link", "fifo"))
    real.write_text("an older one\n")
    link.symlink_to("real")
    os.mkfifo(fifo)

    assert main([*words, str(link)]) == 0
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE, text=True) as reader:
        assert main([*words, str(fifo)]) == 0
        assert reader.stdout is not None
        piped = reader.stdout.read()
    assert main([*words, os.devnull]) == 0

    assert link.is_symlink()
    assert fifo.is_fifo()
    assert not Path(os.devnull).is_file()
    for text in (real.read_text(), piped):
        assert [json.loads(line) for line in text.splitlines()] == lines


def test_a_missing_dataset_is_found_before_the_first_line(
    checkpoint: Path, texts: dict[str, Texts], target: str, capsys: Captured
) -> None:
    """Half a manifest on stdout looks like a whole one."""
    fewer = local({name: each for name, each in texts.items() if name != "chat"})

    assert main(["manifest", fewer, "--state", str(checkpoint)]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "chat" in captured.err


def test_what_cannot_be_read_is_not_blamed_on_the_output(tmp_path: Path) -> None:
    """Its reader would look at the wrong disk."""

    def lines() -> Iterator[Line]:
        yield {"kind": "run"}
        raise OSError(errno.EIO, "Input/output error", "a.ds")

    for path in (None, str(tmp_path / "m")):
        with pytest.raises(Unreadable, match=r"^a\.ds: cannot be read: Input/output error"):
            write_jsonl(lines(), path)


@pytest.mark.parametrize("command", ["explain", "find", "manifest"])
def test_a_closed_stdout_ends_in_one_line(
    texts: dict[str, Texts], tmp_path: Path, command: str
) -> None:
    """A job of cron may have none."""
    target, state = local(texts), tmp_path / "state.json"
    with NumpyBatches(target, 1, T, order="shuffled", dataset="web") as feed:
        next(feed.batches())
        state.write_text(json.dumps(feed.state_dict()))
    words = [sys.executable, "-m", "client", command, target, "--dataset", "web", "--state", state]
    words += ["--document", "3"] if command == "find" else []

    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *map(str, words)],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "error: stdout: cannot be written: it is closed\n")


@pytest.mark.parametrize("command", ["explain", "find", "manifest"])
@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("context_length", 1 << 40, "state.context_length: 1099511627776 "),
        ("order", "later-7", "state.stream.sources[0].order: 'later-7' is unknown"),
    ],
)
def test_a_state_that_does_not_fit_ends_in_one_line(
    texts: dict[str, Texts], tmp_path: Path, capsys: Captured, command: str,
    name: str, value: Any, problem: str,
) -> None:  # fmt: skip
    """It names the state, where no option was typed."""
    target, path = local({"web": texts["web"]}), tmp_path / "state.json"
    words = ["--document", "3"] if command == "find" else []

    state = state_of_one_batch(target)
    stream = read_state(state).stream
    if name == "context_length":
        stages = [replace(each, context_length=value) for each in stream.stages]
        state = state_of(stream.with_stages(stages), state["sample"], [Run(0, 0, 4, 4, 1)])
    else:
        state["stream"][1][0][1] = value
    path.write_text(json.dumps(state))
    assert main([command, target, "--state", str(path), *words]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"error: {problem}")
    assert error.count("\n") == 1


def state_of_one_batch(target: str) -> dict[str, Any]:
    """The state of a feed of one dataset."""
    with NumpyBatches(target, 4, T, order="shuffled") as feed:
        next(feed.batches())
        return feed.state_dict()


def test_a_run_at_its_end_has_no_step_to_come(
    texts: dict[str, Texts], tmp_path: Path, capsys: Captured
) -> None:
    """Sample 2^63 is the state of a run that has ended, and not a wrong option."""
    target, path = local({"web": texts["web"]}), tmp_path / "state.json"
    path.write_text(json.dumps(state_of_one_batch(target) | {"sample": 1 << 63}))

    assert main(["explain", target, "--state", str(path), "--step", "1"]) == 1

    problem = "is at sample 2^63, the end of its run: no step is to come"
    assert capsys.readouterr().err == f"error: --state: {problem}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_manifest_leaves_no_half_file(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, number: int
) -> None:
    """An auditor would take it for a whole one."""
    rows = 1_000_000
    address = serve("--data", write_tokens(np.arange(rows + 1) % 60_000)).address
    with NumpyBatches(address, 1, 1, order="shuffled", seed=8) as feed:
        state = saved(tmp_path, feed, (0, rows // 2))
    output = tmp_path / "out"
    output.mkdir()
    path = output / "manifest.jsonl"
    path.write_text("an older one\n")
    words = ["manifest", address, "--state", state, "--output", path, "--expand"]
    process = subprocess.Popen([sys.executable, "-m", "client", *map(str, words)], cwd=ROOT)

    with process:
        assert eventually(
            lambda: any(each.stat().st_size > 0 for each in output.glob(".manifest*")), 60.0
        )
        process.send_signal(number)
        assert process.wait(timeout=10) != 0

    assert path.read_text() == "an older one\n"
    if number != signal.SIGKILL:
        assert list(output.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--format", "parquet"], "--output: is missing"),
        (["--output", "/no/such/folder/m"], "/no/such/folder/m: cannot be written: No such file"),
        *(
            (["--output", each], f"--output: '{each}' is not the path of a file")
            for each in ("", ".", "/", "/tmp/new/")
        ),
    ],
)
def test_what_cannot_be_written_ends_in_one_line(
    tmp_path: Path, capsys: Captured, words: list[str], problem: str
) -> None:
    """Before the server is asked for much."""
    target = local(write_all(tmp_path))
    run = SeenRun(target)
    run.go(2, 1, (2,))
    state = tmp_path / "state.json"
    state.write_text(json.dumps(run.state))

    assert main(["manifest", target, "--state", str(state), *words]) == 1

    line = capsys.readouterr().err
    assert problem in line
    assert line.count("\n") == 1
