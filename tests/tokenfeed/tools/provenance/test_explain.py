"""tokenfeed explain: what it says of a row is what a rank has read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Serve, WriteTokens
from tests.support.seen_runs import Delivered, SeenRun, T, Texts, local, served, write_texts
from tests.support.states import state_of
from tests.tokenfeed.tools.provenance.conftest import Ask
from tokenfeed.client.batches.arrays import NumpyBatches
from tokenfeed.client.feed.history import Run
from tokenfeed.client.feed.state import read_state
from tokenfeed.tools.__main__ import main
from tokenfeed.tools.provenance.explain import read_rows
from tokenfeed.tools.provenance.runs import segments

Captured = pytest.CaptureFixture[str]


def check(row: dict[str, Any], delivered: Delivered, texts: dict[str, Texts]) -> None:
    """Compare what is said of a row with what was read, and with the files themselves."""
    assert (row["rank"], row["row"]) == (delivered.rank, delivered.row)
    assert (row["sample"], row["dataset"]) == (delivered.sample, delivered.dataset)
    padding = row["padding_tokens"]
    said = "".join(each["text"] for each in row["ranges"])
    assert said + "\0" * padding == delivered.text
    of = texts[delivered.dataset]
    for each in row["ranges"]:
        file, (first, end) = each["file"], each["tokens"]
        assert each["file_name"] == of.paths[file].name
        assert each["text"] == of.content(file)[first:end]
        document = each["document"]
        assert (document["number"], document["id"], *document["tokens"]) == of.document_at(
            file, first
        )
        assert end <= document["tokens"][1]
    assert row["redacted"] == []


def test_every_row_of_a_run_is_explained(
    run: SeenRun, checkpoint: Path, texts: dict[str, Texts], target: str, ask: Ask
) -> None:
    """Through a skip, a batch ramp, another mixture and other ranks: windows, packed and padded
    rows.
    """
    words = ("explain", target, "--state", checkpoint, "--tokenizer", "bytes")
    for step in (0, 8, 9, 12, 13, 18, 19, 20, 21, 24):
        rows = [row for row in run.rows if row.step == step]
        found = ask(*words, "--step", step)
        assert (found["step"], found["rows_left_out"]) == (step, 0)
        for row, delivered in zip(found["rows"], rows, strict=True):
            check(row, delivered, texts)

    last = [row for row in run.rows if row.step == run.steps - 1]
    (row,) = ask(*words, "--rank", 2, "--row", 1)["rows"]
    check(row, last[-2], texts)
    found = ask(*words, "--row", 1)["rows"]
    assert [row["rank"] for row in found] == [0, 1, 2]
    for row, delivered in zip(found, last[1::3], strict=True):
        check(row, delivered, texts)


def test_what_is_still_to_come_is_explained_too(
    run: SeenRun, checkpoint: Path, texts: dict[str, Texts], target: str, ask: Ask
) -> None:
    """Before a run goes on: what will the next step be?"""
    words = ("explain", target, "--state", checkpoint, "--tokenizer", "bytes")
    step = run.steps + 1

    found = ask(*words, "--step", step)

    run.go(3, 3, (2,))
    for row, delivered in zip(
        found["rows"], [row for row in run.rows if row.step == step], strict=True
    ):
        check(row, delivered, texts)


def test_a_run_is_assumed_where_there_is_no_checkpoint(
    serve: Serve, write_tokens: WriteTokens, capsys: Captured
) -> None:
    """And what is assumed is said: another run may have skipped."""
    address = serve("--data", write_tokens(range(97, 122))).address
    stream = ["--context-length", "4", "--order", "sequential", "--tokenizer", "bytes"]
    sizes = ["--batch-size", "1", "--world-size", "2"]

    assert main(["explain", address, *stream, *sizes, "--step", "1"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "step 1: 2 x 1 rows, assumed: the stream of train, sequential-1, seed 0, T=4; step 0 began "
        "at sample 0, and every step had 1 rows on each of 2 ranks: no skip, no other batch size, "
        "no other ranks",
        "rank 0 row 0: sample 2 of train, epoch 0",
        "  train.bin tokens [8, 13)",
        "    'ijklm'",
        "rank 1 row 0: sample 3 of train, epoch 0",
        "  train.bin tokens [12, 17)",
        "    'mnopq'",
    ]
    assert main(["explain", address, *stream, "--sample", "7"]) == 0
    assert "sample 7 of train, epoch 1\n  train.bin tokens [4, 9)" in (capsys.readouterr().out)


def test_a_sample_is_explained_by_the_stage_that_it_is_of(
    serve: Serve, tmp_path: Path, ask: Ask, capsys: Captured
) -> None:
    """A run may have gone on with another context length: earlier rows stay what they were."""
    texts = {"web": write_texts(tmp_path, "web", 1)}
    address = served(serve, texts).address
    path, delivered = tmp_path / "state.json", []
    state: dict[str, Any] = {}
    for length in (8, 12):
        with NumpyBatches(address, 4, length, order="shuffled") as feed:
            if state:
                feed.load_state_dict(state, allow=("context_length", "mid_epoch"))
            for _ in range(3):
                delivered += next(feed.batches()).tokens.tolist()
            state = feed.state_dict()
    path.write_text(json.dumps(state))
    words = ("explain", address, "--state", path, "--tokenizer", "bytes")

    for sample, length, title in (
        (5, 8, "sample 5, read at step 1 rank 0 row 1, by"),
        (13, 12, "sample 13, read at step 3 rank 0 row 1, by"),
        (30, 12, "sample 30, not read so far, by"),
    ):
        found = ask(*words, "--sample", sample)
        (stage,), (row,) = found["stages"], found["rows"]
        assert (stage["context_length"], stage["first_sample"]) == (length, 12 if length > 8 else 0)
        assert (stage["sources"][0]["order"], found["seed"]) == ("shuffled-1", 0)
        text = "".join(each["text"] for each in row["ranges"])
        if sample < len(delivered):
            assert text == "".join(map(chr, delivered[sample]))
        assert len(text) == length + 1
        assert main([*map(str, words), "--sample", str(sample)]) == 0
        assert capsys.readouterr().out.startswith(title)


def test_a_sample_that_was_read_twice_is_said_to_be(
    serve: Serve, tmp_path: Path, capsys: Captured
) -> None:
    """A run may go back."""
    address = served(serve, {"web": write_texts(tmp_path, "web", 1)}).address
    with NumpyBatches(address, 4, T, order="shuffled") as feed:
        next(feed.batches())
        stream = read_state(feed.state_dict()).stream
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state_of(stream, 9, [Run(0, 0, 16, 4, 1), Run(4, 5, 9, 4, 1)])))

    assert main(["explain", address, "--state", str(path), "--sample", "6"]) == 0

    assert capsys.readouterr().out.startswith(
        "sample 6, read at step 1 rank 0 row 2 and step 4 rank 0 row 1, by"
    )


def test_padding_of_an_epoch_has_no_place(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, capsys: Captured
) -> None:
    """It was delivered, but nothing was learned from it."""
    address = serve("--data", write_tokens(range(21))).address
    with NumpyBatches(address, 3, 4, order="shuffled") as feed:
        assert len(list(feed.epoch(0, tail="pad"))) == 2
        (tmp_path / "state.json").write_text(json.dumps(feed.state_dict()))

    assert main(["explain", address, "--state", str(tmp_path / "state.json")]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("rank 0 row 0: sample 3 of train, epoch 0")
    assert lines[-1] == "rank 0 row 2: padding behind an epoch or a context length, without targets"


def test_nothing_in_a_name_or_a_text_acts_on_the_terminal(
    serve: Serve, tmp_path: Path, capsys: Captured
) -> None:
    """A document of the web may have any signs, and so may its id."""
    texts = write_texts(tmp_path, "web", 1, files=1, documents=4)
    path = tmp_path / "a\x1b[31m\u202e.ds"
    os.replace(texts.paths[0], path)
    os.replace(f"{texts.paths[0]}.index", f"{path}.index")
    path.write_bytes(path.read_bytes().replace(b"a\0", b"\x1b\0"))
    Path(f"{path}.ids").write_text("\x1b]0;title\x07\n" * 4)
    address = serve("--data", f"web={path}").address
    words = ["explain", address, "--context-length", "8", "--sample", "0", "--tokenizer", "bytes"]

    for more in ([], ["--json"]):
        assert main([*words, *more]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        assert "title" in captured.out
        assert captured.out.replace("\n", "").isprintable()
        assert "\u202e" not in captured.out


def test_a_step_of_any_size_is_bounded(run: SeenRun, target: str, tmp_path: Path, ask: Ask) -> None:
    """A checkpoint may name 2^32 ranks of 2^20 rows."""
    sample, stream, *_ = read_state(run.state)
    path = tmp_path / "huge.json"
    huge = Run(0, 0, 1 << 60, 1 << 20, 1 << 32)
    path.write_text(json.dumps(state_of(stream, sample, [huge])))

    found = ask("explain", target, "--state", path, "--step", 3, "--rows-max", 5)

    assert len(found["rows"]) == 5
    assert found["rows_left_out"] == (1 << 52) - 5
    found = ask("explain", target, "--state", path, "--row", 7, "--rows-max", 5)
    assert [row["rank"] for row in found["rows"]] == list(range(5))


def test_a_server_with_another_corpus_is_named_with_what_differs(
    serve: Serve, run: SeenRun, checkpoint: Path, texts: dict[str, Texts], tmp_path: Path,
    capsys: Captured,
) -> None:  # fmt: skip
    """Its rows would be other ones, and look right."""
    others = texts | {"code": write_texts(tmp_path / "other", "code", 9)}
    address = served(serve, others).address

    assert main(["explain", address, "--state", str(checkpoint)]) == 1

    line = capsys.readouterr().err
    assert line.startswith(f"error: --dataset: 'code' at {address} has the fingerprint ")
    assert line.count("\n") == 1


def test_a_server_that_does_not_tell_says_so(
    serve: Serve, tmp_path: Path, capsys: Captured
) -> None:
    """Its operator has decided it, and an older one does not know."""
    address = served(serve, {"web": write_texts(tmp_path, "web", 1)}, "--no-locate").address

    assert main(["explain", address, "--context-length", "8", "--sample", "3"]) == 1

    problem = "does not tell where rows come from: it was started with --no-locate, or it is an "
    assert capsys.readouterr().err == f"error: {address}: {problem}older tokenfeed server\n"


def test_rows_that_were_read_are_the_rows_that_are_asked_for(run: SeenRun, target: str) -> None:
    """Exactly those, however few."""
    stream = read_state(run.state).stream
    wanted = {row.sample: row.text for row in run.rows}
    for first, end in ((3, 4), (140, 155)):
        for segment in segments(stream, first, end):
            rows = list(read_rows(target, segment))
            found = ["".join(map(chr, row.tolist())) for row in rows if row is not None]
            samples = range(segment.first_sample, segment.end_sample)
            assert found == [wanted[sample] for sample in samples]
            assert all(len(text) == T + 1 for text in found)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--sample", "1"], "--context-length: is missing; pass it, or --state"),
        (["--context-length", "8"], "--step: is missing; pass it, --sample, or --state"),
        (["--context-length", "8", "--step", "1"], "--batch-size: is missing"),
        (["--context-length", "8", "--step", "1", "--sample", "2"], "--step: is given together"),
        (["--context-length", "8", "--sample", str(2**63)], f"--sample: {2**63} is not in"),
        (["--context-length", "8", "--sample", "0", "--long", "drop"], "--long: 'drop' is for"),
        (["--context-length", "8", "--sample", "0", "--feed", "a"], "--feed: is a state within"),
        (["--context-length", "8", "--sample", "0", "--rows-max", "0"], "--rows-max: 0 is not"),
        (["--state", "STATE", "--seed", "3"], "--seed: is part of --state; omit it"),
        (["--state", "STATE", "--step", "99999", "--rank", "3"], "--rank: 3 is not in [0, 2]"),
        (["--state", "STATE", "--row", "3"], "--row: 3 is not in [0, 2]"),
        (["--state", "STATE", "--feed", "elsewhere"], "elsewhere"),
        (["--state", "missing.json"], "missing.json"),
        (["--state", "STATE", "--tokenizer", "/dev/null"], "--tokenizer: /dev/null is neither"),
    ],
)
def test_what_cannot_be_explained_ends_in_one_line(
    tmp_path: Path, capsys: Captured, words: list[str], problem: str
) -> None:
    """With the option that was typed."""
    target = local({"web": write_texts(tmp_path, "web", 1)})
    if "STATE" in words:
        with NumpyBatches(target, 3, 8, order="shuffled", rank=0, world_size=3) as feed:
            next(feed)
            next(feed)
            (tmp_path / "state.json").write_text(json.dumps(feed.state_dict()))
    words = [word.replace("STATE", str(tmp_path / "state.json")) for word in words]

    assert main(["explain", target, *words]) == 1

    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert problem in line
    assert line.count("\n") == 1
