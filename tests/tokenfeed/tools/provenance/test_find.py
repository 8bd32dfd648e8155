"""tokenfeed find: every place that it names holds the document, and no other row does."""

from __future__ import annotations

import io
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import Mixture
from tests.conftest import Serve, WriteTokens
from tests.support.packed_corpora import write_corpus
from tests.support.seen_runs import SeenRun, T, Texts, local, served, write_texts
from tests.support.states import state_of
from tests.tokenfeed.tools.provenance.conftest import Ask
from tokenfeed.client.batches.arrays import NumpyBatches
from tokenfeed.client.feed.history import Run
from tokenfeed.client.feed.state import read_state
from tokenfeed.tools.__main__ import main
from tokenfeed.tools.provenance.find import Progress

Captured = pytest.CaptureFixture[str]
Pieces = dict[tuple[str, int], list[tuple[int, int, int]]]


def holders(
    run: SeenRun, target: str, checkpoint: Path, texts: dict[str, Texts], ask: Ask
) -> dict[tuple[str, int], set[tuple[int, int, int]]]:
    """Step, rank and row of each row that holds tokens of a document: by all rows of the run."""
    found = defaultdict(set)
    words = ("explain", target, "--state", checkpoint, "--rows-max", 1000)
    for step in range(run.steps):
        for row in ask(*words, "--step", step)["rows"]:
            of = texts[row["dataset"]]
            for each in row["ranges"]:
                number = of.document_at(each["file"], each["tokens"][0])[0]
                found[row["dataset"], number].add((step, row["rank"], row["row"]))
    return found


def test_find_names_all_rows_that_hold_a_document_and_no_other(
    run: SeenRun, checkpoint: Path, texts: dict[str, Texts], target: str, ask: Ask
) -> None:
    """By a search through all rows of a run with a skip, a ramp, other weights and other ranks."""
    expected = holders(run, target, checkpoint, texts, ask)
    skipped = range(*run.skipped[0])
    is_skipped = False

    for name, of in texts.items():
        words = ("find", target, "--dataset", name, "--state", checkpoint, "--rows-max", 1000)
        for number in range(0, len(of.ids), 3):
            by = ("--id", of.ids[number]) if number % 2 else ("--document", number)
            found = ask(*words, *by)
            file, first, end = of.place(number)
            (looked_for,) = found["looked_for"]
            assert looked_for == {
                "file": file, "file_name": of.paths[file].name, "tokens": [first, end],
                "document": number, "id": of.ids[number],
            }  # fmt: skip
            seen = [row for row in found["rows"] if row["when"] == "seen"]
            places = [tuple(place.values()) for row in seen for place in row["places"]]
            assert sorted(places) == sorted(expected[name, number])
            assert found["counts"]["seen"] == len(seen) == found["times_seen"]
            for row in found["rows"]:
                is_gap = row["sample"] in skipped
                assert (row["when"] == "skipped") == is_gap
                assert (row["when"] == "to come") == (row["sample"] >= run.state["sample"])
                is_skipped |= is_gap
    assert is_skipped


def test_what_is_to_come_is_where_it_was_said_to_be(
    run: SeenRun, checkpoint: Path, texts: dict[str, Texts], target: str, ask: Ask
) -> None:
    """A document that has to go can be taken out before it is read."""
    sample = run.state["sample"]
    words = ("find", target, "--dataset", "code", "--state", checkpoint, "--document", 3)
    found = ask(*words, "--end-sample", sample + 90)
    assert found["end_sample"] == sample + 90
    coming = [row for row in found["rows"] if row["when"] == "to come"]
    assert coming

    run.go(3, 3, (10,))

    read = {(row.step, row.rank, row.row): row for row in run.rows}
    for row in coming:
        (place,) = row["places"]
        delivered = read[place["step"], place["rank"], place["row"]]
        assert (delivered.sample, delivered.dataset) == (row["sample"], "code")
        file, first, end = texts["code"].place(3)
        content = texts["code"].content(file)[first:end]
        for begin, finish in row["tokens"]:
            assert delivered.text[begin:finish] in content
    other = ask(*words, "--end-sample", sample + 90, "--batch-size", 4, "--world-size", 1)
    at = {row["sample"]: row["places"][0] for row in other["rows"] if row["when"] == "to come"}
    since = coming[0]["sample"] - sample
    assert at[coming[0]["sample"]] == {
        "step": found_step(checkpoint) + since // 4, "rank": 0, "row": since % 4,
    }  # fmt: skip


def found_step(checkpoint: Path) -> int:
    """The next step of a checkpoint."""
    step = json.loads(checkpoint.read_text())["step"]
    assert isinstance(step, int)
    return step


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
def test_a_range_of_tokens_is_found_in_windows(
    serve: Serve, write_tokens: WriteTokens, ask: Ask, order: str
) -> None:
    """A bad range after a loss spike, in files that know no documents."""
    tokens = np.arange(1, 3_001)
    address = serve(
        "--data", write_tokens(tokens[:1000], "a.bin"), write_tokens(tokens[1000:], "b.bin")
    ).address
    stream = ("--order", order, "--context-length", 10, "--seed", 3, "--rows-max", 10_000)

    found = ask(
        "find", address, *stream, "--file", "b.bin", "--token", 500, "--tokens", 25,
        "--end-sample", 450, "--batch-size", 2, "--world-size", 3,
    )  # fmt: skip

    wanted = set(range(1501, 1526))
    with NumpyBatches(
        address, 1, 10, order=order, seed=3, num_batches=450, rank=0, world_size=1
    ) as feed:
        rows = [batch.tokens[0].tolist() for batch in feed.batches()]
    expected = {n: [at for at, t in enumerate(row) if t in wanted] for n, row in enumerate(rows)}
    expected = {sample: at for sample, at in expected.items() if at}
    assert expected
    assert {row["sample"]: row["tokens"] for row in found["rows"]} == {
        sample: [[at[0], at[-1] + 1]] for sample, at in expected.items()
    }
    for row in found["rows"]:
        step, within = divmod(row["sample"], 6)
        assert row["places"] == [{"step": step, "rank": within // 2, "row": within % 2}]
    by_number = ask(
        "find", address, *stream, "--file-number", 1, "--token", 500, "--tokens", 25,
        "--end-sample", 450,
    )  # fmt: skip
    assert [row["sample"] for row in by_number["rows"]] == sorted(expected)


def test_without_a_checkpoint_the_first_epoch_is_looked_at(
    serve: Serve, tmp_path: Path, ask: Ask, capsys: Captured
) -> None:
    """Each token is once in an epoch, or twice where it is the first of a window."""
    corpus = write_corpus(tmp_path / "corpus", [[30, 20, 50], [70]])
    address = serve(*corpus.words).address
    words = ["find", address, "--context-length", "9", "--document", "2"]

    for order, most in (("shuffled", 7), ("packed", 6)):
        found = ask(*words, "--order", order)
        assert {row["epoch"] for row in found["rows"]} == {0}
        assert 5 <= len(found["rows"]) <= most
        twice = ask(*words, "--order", order, "--epochs", 2)
        assert len(twice["rows"]) == 2 * len(found["rows"])
    assert main([*words, "--order", "packed", "--rows-max", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "document 2: 0.ds tokens [50, 100)"
    assert lines[1].startswith("assumed: the stream of train, packed-1, seed 0, T=9")
    assert lines[-2].endswith("rows left out; --rows-max prints more")
    assert lines[-1] == "in 6 rows"


def test_a_run_of_epochs_has_read_a_document_in_each(
    serve: Serve, tmp_path: Path, ask: Ask
) -> None:
    """One dataset, and an epoch that was read again."""
    texts = {name: write_texts(tmp_path / name, name, n) for n, name in enumerate(["a", "b"])}
    address = served(serve, texts).address
    with NumpyBatches(address, 4, 15, order="shuffled", dataset="b") as feed:
        for epoch in (0, 1, 1):
            assert len(list(feed.epoch(epoch, tail="pad"))) > 4
        path = tmp_path / "state.json"
        path.write_text(json.dumps(feed.state_dict()))
        rows = feed.position.samples // 2

    found = ask("find", address, "--dataset", "b", "--document", 7, "--state", path)

    by_epoch: dict[Any, list[int]] = defaultdict(list)
    for row in found["rows"]:
        by_epoch[row["epoch"]].append(len(row["places"]))
        assert row["when"] == ("to come" if row["epoch"] == 2 else "seen")
        assert row["sample"] // rows == row["epoch"]
    assert set(by_epoch[0]) == {1}
    assert set(by_epoch[1]) == {2}
    assert len(by_epoch[0]) == len(by_epoch[1]) == len(by_epoch[2])
    assert found["times_seen"] == 3 * len(by_epoch[0])


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_what_a_cut_history_does_not_have_is_unknown(
    serve: Serve,
    tmp_path: Path,
    ask: Ask,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
) -> None:
    """A document that was read in a dropped run was not "seen in 0 rows; 0 skipped"."""
    monkeypatch.setattr("tokenfeed.client.feed.state.HISTORY_RUNS_MAX", 2)
    texts = {"web": write_texts(tmp_path, "web", 1)}
    address = served(serve, texts).address
    with NumpyBatches(address, 4, 15, order=order) as feed:
        for count in (5, 3, 6):
            for _ in range(count):
                next(feed)
            feed.skip(8)
        whole = feed.state_dict()
    sample, stream, history, _ = read_state(whole)
    runs = history.runs
    cut = state_of(stream, sample, list(runs[1:]))
    paths = {}
    for name, state in (("whole", whole), ("cut", cut)):
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_text(json.dumps(state))
    words = (
        "find", address, "--file", "web-0.ds", "--token", 0, "--tokens", 400,
        "--end-sample", sample, "--rows-max", 1000,
    )  # fmt: skip

    complete = ask(*words, "--state", paths["whole"])
    assert (complete["is_complete"], complete["first_step"]) == (True, 0)
    begin = runs[1].first_sample
    assert any(row["sample"] < begin for row in complete["rows"] if row["when"] == "seen")
    assert any(row["sample"] >= begin for row in complete["rows"] if row["when"] == "seen")
    assert complete["counts"]["unknown"] == 0
    found = ask(*words, "--state", paths["cut"])
    assert (found["is_complete"], found["counts"]["skipped"]) == (False, 0)
    assert found["first_step"] == runs[1].first_batch
    assert len(found["rows"]) == len(complete["rows"])
    for row, same in zip(found["rows"], complete["rows"], strict=True):
        is_seen = same["when"] == "seen" and row["sample"] >= begin
        assert row["when"] == ("seen" if is_seen else "unknown")
        assert row["places"] == (same["places"] if is_seen else [])
    assert found["known"].endswith("is unknown")

    assert main([*map(str, words), "--state", str(paths["cut"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith(
        "; the history begins with step 5, and what was read before is unknown"
    )
    counts = ask(*words, "--state", paths["cut"])["counts"]
    assert lines[-1] == (
        f"seen in {counts['seen']} rows; {counts['unknown']} unknown, which the history does not "
        "reach, 0 to come"
    ).replace("in 1 rows", "in 1 row")
    for name in paths:
        (run, *_) = _manifest(capsys, address, paths[name])
        assert run["is_complete"] == (name == "whole")
        title = _title(capsys, address, paths[name], 3)
        assert ("sample 3, read at step 0 " in title) == (name == "whole")
        assert ("sample 3, unknown whether it was read, by" in title) == (name != "whole")
        assert "not read so far, by" in _title(capsys, address, paths[name], sample)


def _manifest(capsys: Captured, address: str, state: Path) -> list[dict[str, Any]]:
    assert main(["manifest", address, "--state", str(state)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _title(capsys: Captured, address: str, state: Path, sample: int) -> str:
    assert main(["explain", address, "--state", str(state), "--sample", str(sample)]) == 0
    return capsys.readouterr().out.splitlines()[0]


def test_what_a_later_stage_drops_is_to_come_until_then(
    texts: dict[str, Texts], tmp_path: Path, ask: Ask
) -> None:
    """The source never ends its epoch, but its last rows are still read."""
    target, path = local(texts), tmp_path / "state.json"
    mixture = Mixture({"web": 2, "code": 1}, order="shuffled", block=3)
    with NumpyBatches(target, 1, T, mixture=mixture) as feed:
        batches = feed.batches()
        for _ in range(21):
            next(batches)
        feed.change_mixture({"code": 1}, at_sample=30)
        path.write_text(json.dumps(feed.state_dict()))

    coming = set()
    for number in range(len(texts["web"].ids)):
        found = ask(
            "find", target, "--dataset", "web", "--document", number, "--state", path,
            "--rows-max", 1000,
        )  # fmt: skip
        assert found["end_sample"] in (29, 30)
        coming |= {row["sample"] for row in found["rows"] if row["when"] == "to come"}

    rows = ask("explain", target, "--state", path, "--step", 21, "--batch-size", 9)["rows"]
    assert coming == {row["sample"] for row in rows if row["dataset"] == "web"}
    assert len(coming) == 6


def test_a_skip_counts_before_a_batch_has_followed_it(
    texts: dict[str, Texts], tmp_path: Path, ask: Ask
) -> None:
    """At the begin of a run too."""
    target, path = local({"web": texts["web"]}), tmp_path / "state.json"
    for steps in (0, 5):
        with NumpyBatches(target, 1, T, order="sequential") as feed:
            batches = feed.batches()
            for _ in range(steps):
                next(batches)
            feed.skip(20)
            path.write_text(json.dumps(feed.state_dict()))
        found = ask("find", target, "--file-number", 0, "--token", 0, "--tokens", 300, "--state",
                    path)  # fmt: skip
        # A window shares its last token with the next one.
        counts = found["counts"]
        assert (counts["seen"], counts["skipped"]) == (steps, 20 - steps)


def test_a_dataset_that_a_run_has_left_is_still_found(
    texts: dict[str, Texts], tmp_path: Path, ask: Ask, capsys: Captured
) -> None:
    """It went on with another seed, with longer rows, and with another dataset: each row is that of
    its own stage.
    """
    target, path = local(texts), tmp_path / "state.json"
    parts = ("seed", "context_length", "mid_epoch", "fingerprint")
    state: dict[str, Any] = {}
    delivered: list[tuple[int, str]] = []
    for dataset, seed, length in (("web", 1, 15), ("web", 2, 15), ("web", 2, 31), ("code", 2, 31)):
        options: dict[str, Any] = {"order": "shuffled", "seed": seed, "dataset": dataset}
        with NumpyBatches(target, 2, length, **options) as feed:
            if state:
                feed.load_state_dict(state, allow=parts)
            for batch in itertools.islice(feed.batches(), 4):
                delivered += [(len(delivered), dataset)] * 2
                assert batch.tokens.shape[1] == length + 1
            state = feed.state_dict()
    path.write_text(json.dumps(state))
    held: dict[str, dict[int, set[int]]] = {name: defaultdict(set) for name in ("web", "code")}
    for step, name in enumerate(["web"] * 12 + ["code"] * 4):
        for row in ask("explain", target, "--state", path, "--step", step)["rows"]:
            assert row["dataset"] == name
            for each in row["ranges"]:
                held[name][each["document"]["number"]].add(row["sample"])

    for name, rows_of in held.items():
        for number in range(len(texts[name].ids)):
            words = ("find", target, "--dataset", name, "--document", number, "--state", path)
            rows = ask(*words, "--rows-max", 1000)["rows"]
            seen = [row for row in rows if row["when"] == "seen"]
            assert {row["sample"] for row in seen} == rows_of[number]
            for row in seen:
                ((step, _, _),) = (place.values() for place in row["places"])
                assert row["context_length"] == (15 if step < 8 else 31)
                assert row["source"] == {0: 0, 1: 1, 2: 1, 3: 2}[step // 4]
            assert {row["when"] for row in rows} <= {"seen", "to come"}
            assert all(row["source"] == 2 for row in rows if row["when"] == "to come")
    assert main(["find", target, "--document", "1", "--state", str(path)]) == 1
    assert capsys.readouterr().err == (
        "error: --dataset: has to name one of the sources: code, web\n"
    )


def test_a_run_is_found_in_a_dataset_that_is_named_otherwise(
    serve: Serve, texts: dict[str, Texts], tmp_path: Path, ask: Ask
) -> None:
    """By its content: a feed over the only dataset does not even name it."""
    path = tmp_path / "state.json"
    words = ("find", "--file-number", 0, "--token", 0, "--tokens", 90, "--state", path)
    others = {"code": texts["code"], "news": texts["web"]}
    targets = served(serve, others).address, local({"news": texts["web"]}), local(others)
    for name in ("", "web"):
        with NumpyBatches(
            local({"web": texts["web"]}), 2, T, order="shuffled", dataset=name
        ) as own:
            next(own.batches())
            path.write_text(json.dumps(own.state_dict()))
        found = ask(*words, local({"web": texts["web"]}))
        assert found["counts"]["to come"]
        for target in targets:
            named = ("--dataset", "news") if target == targets[-1] else ()
            assert ask(*words, target, *named) == found


def test_stages_that_a_state_has_dropped_are_unknown(
    texts: dict[str, Texts], tmp_path: Path, ask: Ask, capsys: Captured
) -> None:
    """A state keeps the last 1,000; those before it may have read anything."""
    target, path = local(texts), tmp_path / "state.json"
    mixture = Mixture({"web": 2, "code": 1}, order="shuffled", block=3)
    with NumpyBatches(target, 3, T, mixture=mixture) as feed:
        for weights in ({"web": 1, "code": 2}, {"web": 1, "code": 1}):
            for _ in range(4):
                next(feed.batches())
            feed.change_mixture(weights)
        state = read_state(feed.state_dict())
    begin = state.stream.stages[1].first_sample
    stream = state.stream.with_stages(state.stream.stages[1:])
    whole = json.dumps(state_of(state.stream, state.sample, state.history))
    path.write_text(whole)
    words = ("find", target, "--dataset", "web", "--file-number", 0, "--token", 0, "--tokens", 300)
    known = ask(*words, "--state", path)
    runs = [Run(4, begin, state.sample, 3, 1)]
    for history, lacks in (
        (runs, "the history begins with step 4"),
        ([], f"the state begins with sample {begin}"),
    ):
        path.write_text(json.dumps(state_of(stream, state.sample, history)))
        found = ask(*words, "--state", path)
        assert not found["is_complete"]
        assert found["known"].endswith(f"; {lacks}, and what was read before is unknown")
        expected = [row for row in known["rows"] if row["sample"] >= begin]
        assert [row["sample"] for row in found["rows"]] == [row["sample"] for row in expected]
        is_read = [row["when"] == "seen" for row in expected]
        assert [row["when"] in ("seen", "unknown") for row in found["rows"]] == is_read
    assert main(["explain", target, "--state", str(path), "--sample", "1"]) == 1
    assert "--sample: 1 is of a stage that the state has dropped" in capsys.readouterr().err


def test_a_long_search_shows_how_far_it_is() -> None:
    """The order random has no inverse: a run of 10^9 samples is scanned for minutes."""
    stream = io.StringIO()
    clock = iter([0.0, 0.5, 1.2, 1.3, 2.4])

    with Progress(4, stream, lambda: next(clock)) as progress:
        for done in (0.1, 0.25, 0.3, 0.5):
            progress.show(done)

    assert stream.getvalue() == "looked at 25.0 % of the rows\nlooked at 50.0 % of the rows\n"


def test_a_search_of_days_says_so_once() -> None:
    """ "0.0 %" for ever does not tell that it is hopeless."""
    stream = io.StringIO()
    clock = iter([0.0, 2.0, 4.0])

    with Progress(1 << 40, stream, lambda: next(clock)) as progress:
        progress.show(1e-6)
        progress.show(2e-6)

    assert stream.getvalue().splitlines() == [
        "warning: to look at 1,099,511,627,776 samples takes about 23 days at this rate; Ctrl-C "
        "ends it, and an earlier --end-sample takes less",
        "looked at 0.0 % of the rows",
        "looked at 0.0 % of the rows",
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "--document: has to be given by one of --document, --id, or --file with --token"),
        (["--document", "1", "--id", "x"], "--document: has to be given by one of"),
        (["--document", "-1"], "--document: -1 is not in"),
        (["--document", "999"], "--document: 999 is not"),
        (["--id", "elsewhere"], "--id: no document of 'web' has the id 'elsewhere'"),
        (["--file", "web-0.ds"], "--token: is missing"),
        (["--file", "other.ds", "--token", "0"], "--file: 'other.ds' is not in the dataset"),
        (["--file-number", "7", "--token", "0"], "--file-number: 7 is not in"),
        (["--id", "\udcff"], r"--id: '\udcff' is not text"),
        (["--file", "\udcff", "--token", "0"], r"--file: '\udcff' is not text"),
        (["--document", "1", "--context-length", "1000000"], "--context-length: 1000000 is not b"),
        (["--file", "other.ds", "--token", "0"], "other.ds"),
        (["--file", "web-0.ds", "--token", "5", "--tokens", "0"], "--tokens: 0 is not in"),
        (["--file", "web-0.ds", "--token", "99999"], "--token: [99999, 100000) has no token"),
        (["--document", "1", "--order", "random"], "--end-sample: the order random has no epochs"),
        (["--document", "1", "--order", "random", "--epochs", "2"], "--epochs: the order random"),
        (["--document", "1", "--epochs", "0"], "--epochs: 0 is not in"),
        (["--document", "1", "--epochs", "1", "--end-sample", "5"], "--epochs: is given together"),
    ],
)
def test_what_cannot_be_found_ends_in_one_line(
    tmp_path: Path, capsys: Captured, words: list[str], problem: str
) -> None:
    """With the option that was typed, where there is one."""
    target = local({"web": write_texts(tmp_path, "web", 1)})
    order = [] if "--order" in words else ["--order", "shuffled"]

    assert main(["find", target, "--context-length", "8", *order, *words]) == 1

    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert problem in line
    assert line.count("\n") == 1


def test_a_dataset_that_the_run_has_not_read_is_an_error(
    run: SeenRun, checkpoint: Path, target: str, capsys: Captured
) -> None:
    """ "Not seen" would be true, and wrong."""
    words = ["find", target, "--dataset", "webb", "--document", "1", "--state", str(checkpoint)]

    assert main(words) == 1

    line = capsys.readouterr().err
    assert line == "error: --dataset: 'webb' is not read by this run, only chat, code, web\n"
