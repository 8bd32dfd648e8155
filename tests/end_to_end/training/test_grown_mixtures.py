"""Mixtures whose context length grows, against the second implementation and a count of targets."""

from __future__ import annotations

import itertools
import json
import logging
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from client import InvalidRequest, Mixture, NumpyBatches, StreamMismatch
from tests.conftest import Serve, serving
from tests.support import reference
from tests.support.redacting import redact
from tokenfeed.stream.stage import LENGTH
from tokenfeed.tools.__main__ import main

U = 1 << 19
COUNTS = {
    "web": [17 * U + 1, 300_000, 18 * U + 50_000],
    "code": [19 * U, 70_000, 100],
    "math": [300_000, 16 * U + 5],
}
"""Tokens of the files of each dataset; the names in the order of their numbers."""
LENGTHS = [1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17]
TOKENS = 1 << 17
"""Of a batch of a rank, at least; each length has whole rows of it."""
GROUP_BLOCKS = 16
SEED = 9
Tokens = npt.NDArray[np.uint8]
Sources = list[tuple[str, list[int], int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files for each dataset."""
    path, tokens = tmp_path_factory.mktemp("datasets"), np.random.default_rng(3)
    for name, counts in COUNTS.items():
        (path / name).mkdir()
        for n, count in enumerate(counts):
            tokens.integers(1, 2**8, count, "u1").tofile(path / name / f"{n}.bin")
    return path


@pytest.fixture(scope="module")
def target(folder: Path) -> str:
    listed = ",".join(f"{name}={folder / name}" for name in COUNTS)
    return f"file:{listed}?dtype=uint8"


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a server of all datasets."""
    with serving(folder) as serve:
        names = [word for name in COUNTS for word in ("--data", f"{name}={folder / name}")]
        yield serve(*names, "--dtype", "uint8").address


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, list[Tokens]]:
    return {
        name: [np.fromfile(each, "u1") for each in sorted((folder / name).iterdir())]
        for name in COUNTS
    }


def feed_of(target: Any, length: Any, weights: Any, **options: Any) -> NumpyBatches:
    mixture = weights
    if not isinstance(weights, Mixture):
        own = {"math": {"order": options.pop("of_math")}} if "of_math" in options else None
        # They are numbered in the order in which they are named.
        mixture = Mixture({name: weights[name] for name in COUNTS}, sources=own)
    first = length[0] if isinstance(length, dict) else length
    size = options.pop("batch_size", None) or TOKENS // first
    given = {"order": "blocks", "seed": SEED, "group_tokens": GROUP_BLOCKS * U, "dtype": np.int64}
    return NumpyBatches(target, size, length, mixture=mixture, **given | options)


class Expected:
    """The rows of a run by the second implementation, from the stages that it was asked for."""

    def __init__(self, state: dict[str, Any], of_math: str = "blocks") -> None:
        """Compare where the stages of a state begin, and with which rows."""
        orders = {"web": "blocks-1", "code": "blocks-1", "math": f"{of_math}-1"}
        self.sources: Sources = [
            (order, COUNTS[name], GROUP_BLOCKS if order == "blocks-1" else 0)
            for name, order in orders.items()
        ]
        given = state["stream"][4]
        asked: list[tuple[int, int | list[int]]] = [(0, given[0][1]), (0, self._weights(given[0]))]
        for before, stage in pairwise(given):
            _, length, sample, origin, _ = stage
            assert origin & LENGTH or length == before[1]
            asked.append((sample, length if origin & LENGTH else self._weights(stage)))
        self.stages = reference.grown_stages(self.sources, asked)
        for own, (first_sample, length, _, _, shares) in zip(self.stages, given, strict=True):
            assert (own.stage.first_sample, own.context_length) == (first_sample, length)
            bases = {number: base for number, _, base in shares}
            assert bases == {
                n: base for n, base in enumerate(own.stage.bases) if n in bases or base
            }
        self.begins = [each.stage.first_sample for each in self.stages]

    @staticmethod
    def _weights(stage: list[Any]) -> list[int]:
        found = {number: weight for number, weight, _ in stage[4]}
        return [found.get(n, 0) for n in range(len(COUNTS))]

    @property
    def left_out(self) -> dict[tuple[int, str], tuple[int, int]]:
        """By sample and dataset: rows and tokens that are left out where the length changes."""
        return {
            (later.stage.first_sample, name): (rows, rows * one.context_length)
            for one, later in pairwise(self.stages)
            for name, rows in zip(COUNTS, later.left_out, strict=True)
            if rows
        }

    def length_end(self, sample: int) -> int:
        length = self.at(sample).context_length
        later = [each for each in self.stages if each.stage.first_sample > sample]
        ends = [each.stage.first_sample for each in later if each.context_length != length]
        return min(ends, default=1 << 63)

    def at(self, sample: int) -> reference.GrownStage:
        return self.stages[self.number(sample)]

    def number(self, sample: int) -> int:
        return max(n for n, begin in enumerate(self.begins) if begin <= sample)

    def place(self, sample: int) -> tuple[str, int, int]:
        """Dataset, file and first token of a row."""
        number = self.number(sample)
        stage = self.stages[number]
        source, own = reference.stage_place(SEED, number, stage.stage, sample)
        order, counts, blocks = self.sources[source]
        if order == "blocks-1":
            window = reference.blocks_window(SEED, counts, stage.context_length, blocks, own)
        else:
            window = reference.window(order, SEED, counts, stage.context_length, own)
        return list(COUNTS)[source], *window

    def require(self, batch: Any, first: int, rank: int, files: dict[str, list[Tokens]]) -> None:
        """Compare every token of a batch.  first: sample of row 0 of this rank."""
        first_of_all = first - rank * len(batch.x)
        length, end = self.at(first_of_all).context_length, self.length_end(first_of_all)
        assert batch.x.shape == (len(batch.x), length)
        samples = [s if s < end else -1 for s in range(first, first + len(batch.x))]
        assert batch.sample_numpy.tolist() == samples
        for x, y, sample in zip(batch.x, batch.y, samples, strict=True):
            if sample < 0:
                assert (y == -100).all()
                continue
            name, file, token = self.place(sample)
            window = files[name][file][token : token + length + 1]
            assert np.array_equal(x, window[:-1])
            assert np.array_equal(y, window[1:])


class Part(NamedTuple):
    """What feeds of some ranks do.  steps: of each what is asked for first (a length, weights, or
    nothing) and how far ahead, the samples that are skipped, and the batches that are read.
    """

    world_size: int
    times: int
    steps: list[tuple[int | dict[str, int] | None, int, int, int]]


WEIGHTS = st.fixed_dictionaries(
    {"web": st.integers(1, 5), "code": st.integers(0, 4), "math": st.integers(0, 3)}
)
STEPS = st.tuples(
    st.one_of(st.sampled_from(LENGTHS), st.sampled_from(LENGTHS), WEIGHTS, st.none()),
    st.integers(0, 40),
    st.sampled_from([0, 0, 3, 200, 600, 5000]),
    st.integers(1, 3),
)
PARTS = st.builds(Part, st.just(0), st.sampled_from([1, 1, 2, 4]), st.lists(STEPS, max_size=4))


@pytest.mark.parametrize(
    "examples", [4, pytest.param(150, marks=[pytest.mark.proof, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("where", ["file", "server"])
def test_each_row_of_a_mixture_that_grows_is_that_of_the_second_implementation(
    target: str,
    address: str,
    files: dict[str, list[Tokens]],
    caplog: pytest.LogCaptureFixture,
    where: str,
    examples: int,
) -> None:
    """Through changes of length and of weights, skips, other batches, and restarts with 3, 5 and 2
    ranks; and the log has all that is left out.
    """

    @settings(
        phases=[Phase.generate],
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(
        WEIGHTS,
        st.sampled_from(LENGTHS[:3]),
        st.sampled_from(["blocks", "blocks", "random"]),
        st.tuples(PARTS, PARTS, PARTS),
    )
    def every(weights: dict[str, int], length: int, of_math: str, parts: Sequence[Part]) -> None:
        caplog.clear()
        state, read = None, set[int]()
        for ranks, part in zip((3, 5, 2), parts, strict=True):
            with ExitStack() as stack:
                options = {"world_size": ranks, "batch_size": part.times * TOKENS // length}
                feeds = [
                    stack.enter_context(
                        feed_of(
                            target if where == "file" else address,
                            length,
                            weights,
                            rank=rank,
                            of_math=of_math,
                            **options,
                        )
                    )
                    for rank in range(ranks)
                ]
                if state is not None:
                    for feed in feeds:
                        feed.load_state_dict(state)
                for step in part.steps:
                    _do(feeds, step, of_math, files, read)
                states = [feed.state_dict() for feed in feeds]
                assert all(each == states[0] for each in states)
                state = json.loads(json.dumps(states[0]))
        expected = Expected(state, of_math)
        assert {*expected.left_out.items()} <= {*logged(caplog).items()}

    with caplog.at_level(logging.WARNING, "tokenfeed.client"):
        every()


def _do(
    feeds: list[NumpyBatches],
    step: tuple[int | dict[str, int] | None, int, int, int],
    of_math: str,
    files: dict[str, list[Tokens]],
    read: set[int],
) -> None:
    change, ahead, skipped, batches = step
    at = feeds[0].position.samples + ahead
    begins = {_ask(feed, change, at) for feed in feeds}
    assert len(begins) <= 1
    for message in begins:
        if isinstance(message, str):
            assert re.search("leaves? no block|more than a group|first sample that may", message)
    expected = Expected(feeds[0].state_dict(), of_math)
    for feed in feeds:
        feed.skip(skipped)
    for _ in range(batches):
        first = feeds[0].position.samples
        for rank, feed in enumerate(feeds):
            size = feed.batch_size
            batch = next(feed.batches())
            expected.require(batch, first + rank * size, rank, files)
            own = {sample for sample in batch.sample_numpy.tolist() if sample >= 0}
            assert not own & read
            read |= own
        assert {feed.position.samples for feed in feeds} == {
            min(first + len(feeds) * size, expected.length_end(first))
        }


def _ask(feed: NumpyBatches, change: int | dict[str, int] | None, at: int) -> int | str | None:
    """Ask for a change; return where it begins, or why not, without numbers."""
    try:
        if isinstance(change, int):
            return feed.change_context_length(change, at)
        return None if change is None else feed.change_mixture(change, at)
    except InvalidRequest as refusal:
        return re.sub(r"\d+", "", str(refusal))


def logged(caplog: pytest.LogCaptureFixture) -> dict[tuple[int, str], tuple[int, int]]:
    """What the log has of rows that are left out, as `left_out`; of several the last one."""
    pattern = r"rows are left out sample=(\d+) source=(\w+) rows=(\d+) tokens=(\d+)"
    return {
        (int(sample), name): (int(rows), int(tokens))
        for sample, name, rows, tokens in re.findall(pattern, caplog.text)
    }


GROWING: dict[int | str, int] = {0: 1 << 14, 300: 1 << 15, f"{31 * U} tokens": 1 << 17}
FILE = """
order = "blocks"
seed = 9

[[stages]]
weights = {web = 3, code = 2}

[[stages]]
first_sample = 401
weights = {web = 2, code = 1, math = 1}
"""


def test_plan_prints_what_a_run_logs_and_leaves_out(
    target: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before a GPU is paid for, one sees how many tokens a change costs, and where."""
    path = tmp_path / "mixture.toml"
    path.write_text(FILE)
    with (
        caplog.at_level(logging.INFO, "tokenfeed.client"),
        feed_of(target, GROWING, Mixture.load(path)) as feed,
    ):
        next(feed)
        state = feed.state_dict()
    (tmp_path / "state.json").write_text(json.dumps(state))
    words = ["--context-length", "16384", "--group-tokens", str(GROUP_BLOCKS * U)]
    for when, length in list(GROWING.items())[1:]:
        words += ["--change-context-length", f"{when}={length}"]
    given = ["plan", str(path), *words, "--tokens", "40e6", "--global-batch-size", "16", target]

    found = _printed(capsys, *given, "--json")
    assert main(given) == 0
    text = capsys.readouterr().out
    of_state = _printed(
        capsys,
        "plan",
        "--state",
        str(tmp_path / "state.json"),
        "--tokens",
        "40e6",
        target,
        "--json",
    )

    expected = Expected(state)
    assert [each["first_sample"] for each in found["stages"]] == expected.begins
    assert [each["context_length"] for each in found["stages"]] == [
        1 << 14,
        1 << 15,
        1 << 15,
        1 << 17,
    ]
    assert logged(caplog) == expected.left_out
    assert len(expected.left_out) == 5
    for plan in (found, of_state):
        assert {
            (stage["first_sample"], name): tokens
            for stage in plan["stages"]
            for name, tokens in stage["left_out_tokens"].items()
        } == {place: tokens for place, (_, tokens) in expected.left_out.items()}
    for (_, name), (_, tokens) in expected.left_out.items():
        assert f"{name} {tokens:,} tokens" in text
    assert caplog.text.count("context length changes sample=") == 2


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_explain_find_and_manifest_tell_every_row_of_a_mixture_that_grew(
    target: str, files: dict[str, list[Tokens]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record of a run has every row at its length, and what was left out."""
    path, rows, step = tmp_path / "mixture.toml", list[tuple[int, int, int, int]](), 0
    path.write_text(FILE)
    with ExitStack() as stack:
        feeds = [
            stack.enter_context(
                feed_of(target, GROWING, Mixture.load(path), rank=rank, world_size=2)
            )
            for rank in range(2)
        ]
        next(feeds[0].batches())  # describes the datasets
        feeds[0].load_state_dict(feeds[1].state_dict())
        expected = Expected(feeds[0].state_dict())
        for begin in [*expected.begins[1:], None]:
            for number in range(4):
                first = feeds[0].position.samples
                if number == 2 and begin is not None:
                    for feed in feeds:
                        feed.skip(max(0, begin - 2 * feed.batch_size - 3 - first))
                    first = feeds[0].position.samples
                for rank, feed in enumerate(feeds):
                    size, batch = feed.batch_size, next(feed.batches())
                    expected.require(batch, first + rank * size, rank, files)
                    samples = enumerate(batch.sample_numpy.tolist())
                    rows += [(step, rank, row, sample) for row, sample in samples]
                step += 1
        (tmp_path / "state.json").write_text(json.dumps(feeds[0].state_dict()))
    state = ["--state", str(tmp_path / "state.json")]

    left = dict[tuple[int, str], int]()
    for number in range(step):
        found = _printed(
            capsys, "explain", *state, "--step", str(number), "--rows-max", "99", "--json", target
        )
        own = {row[1:3]: row[3] for row in rows if row[0] == number}
        assert len(found["rows"]) == len(own)
        for row in found["rows"]:
            sample = own[row["rank"], row["row"]]
            assert row.get("is_padding", False) == (sample < 0)
            if sample >= 0:
                name, file, token = expected.place(sample)
                (piece,) = row["ranges"]
                end = token + expected.at(sample).context_length + 1
                assert (row["sample"], row["dataset"]) == (sample, name)
                assert (piece["file"], piece["tokens"]) == (file, [token, end])
        for stage in found["stages"]:
            for name, tokens in stage["left_out_tokens"].items():
                left[stage["first_sample"], name] = tokens
    assert left == {place: tokens for place, (_, tokens) in expected.left_out.items()}

    assert main(["manifest", *state, "--expand", target]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {
        (stage["first_sample"], name): tokens
        for stage in lines[1]["stages"]
        for name, tokens in stage["left_out_tokens"].items()
    } == left
    arrived = {name: [np.zeros(n, np.int64) for n in counts] for name, counts in COUNTS.items()}
    samples = {row[3] for row in rows if row[3] >= 0}
    for sample in samples:
        name, file, token = expected.place(sample)
        arrived[name][file][token : token + expected.at(sample).context_length + 1] = 1
    listed = {name: [np.zeros(n, np.int64) for n in counts] for name, counts in COUNTS.items()}
    for line in lines:
        if line["kind"] == "range":
            listed[line["dataset"]][line["file"]][slice(*line["tokens"])] = 1
    for name in COUNTS:
        assert all(map(np.array_equal, arrived[name], listed[name]))
    assert lines[0]["samples"] == len(samples)

    for name, file, token in [("web", 0, 5 * U + 77), ("code", 0, 9 * U), ("math", 1, 3 * U)]:
        where = ["--dataset", name, "--file-number", str(file), "--token", str(token)]
        width = 200_000
        words = ["find", *state, *where, "--tokens", str(width), "--rows-max", "999"]
        found = _printed(capsys, *words, "--json", target)
        wanted = {
            sample: (step, rank, row)
            for step, rank, row, sample in rows
            if sample >= 0 and _has(expected, sample, (name, file, token, token + width))
        }
        assert {
            row["sample"]: tuple(row["places"][0].values())
            for row in found["rows"]
            if row["when"] == "seen"
        } == wanted


def _has(expected: Expected, sample: int, tokens: tuple[str, int, int, int]) -> bool:
    name, file, token = expected.place(sample)
    end = token + expected.at(sample).context_length + 1
    return (name, file) == tokens[:2] and token < tokens[3] and end > tokens[2]


def test_a_redaction_and_a_server_that_is_killed_change_no_other_row_of_a_mixture(
    serve: Serve, folder: Path, files: dict[str, list[Tokens]], tmp_path: Path
) -> None:
    """The change is in the state of nobody but the feed: any replica continues."""
    copies, own = [], tmp_path / "web"
    own.mkdir()
    for path in sorted((folder / "web").iterdir()):
        copies.append(own / path.name)
        copies[-1].hardlink_to(path)
    listed = redact(copies, (0, 1000, 7 * U), options=["--dtype", "uint8"])
    data = ["--data", f"web={own}"]
    for name in ("code", "math"):
        data += ["--data", f"{name}={folder / name}"]
    servers = [serve(*data, "--dtype", "uint8") for _ in range(2)]
    length, weights = 1 << 14, {"web": 2, "code": 1, "math": 0}
    with feed_of([server.address for server in servers], length, weights) as feed:
        begin = feed.change_context_length(1 << 16, at_sample=20)
        assert feed.redact(listed, at_sample=begin + 9, dataset="web") == begin + 9
        expected, count = Expected(feed.state_dict()), 0
        for number in range(16):
            first = feed.position.samples
            batch = next(feed.batches())
            if number == 3:
                servers[0].stop(signal.SIGKILL)
            samples = [sample for sample in batch.sample_numpy.tolist() if sample >= 0]
            assert samples == list(range(first, first + len(samples)))
            for x, y, sample in zip(batch.x, batch.y, samples, strict=False):
                name, file, token = expected.place(sample)
                window = files[name][file][token : token + x.size + 1]
                places = np.arange(token, token + x.size + 1)
                gone = (places >= 1000) & (places < 7 * U)
                gone &= (name, file) == ("web", 0) and sample >= begin + 9
                assert np.array_equal(x[~gone[:-1]], window[:-1][~gone[:-1]])
                assert np.array_equal(y[~gone[1:]], window[1:][~gone[1:]])
                assert (y[gone[1:]] == -100).all()
                count += gone.sum()
    assert begin == 21
    assert count


def test_ranks_of_a_mixture_change_together_or_not_at_all(
    target: str, in_ranks: Callable[..., list[object]]
) -> None:
    """A rank with rows of another length would wait in a collective for ever."""
    weights = {"web": 2, "code": 1, "math": 0}

    def train(rank: int, feed: NumpyBatches) -> list[tuple[int, ...]]:
        with pytest.raises(StreamMismatch, match=r"context_length: rank \d changes it to another"):
            feed.change_context_length(1 << 16 if rank else 1 << 15, at_sample=20)
        assert feed.change_context_length(1 << 16, at_sample=20) == 21
        return [next(feed)[0].shape for _ in range(3)]

    def declares(rank: int, feed: NumpyBatches) -> str:
        try:
            next(feed)
        except StreamMismatch as error:
            return str(error)
        return ""  # the first one

    def made(rank: int, length: Any = 1 << 14) -> NumpyBatches:
        return feed_of(target, length, weights, rank=rank, world_size=2)

    found = in_ranks(train, 2, made)
    told = in_ranks(declares, 2, lambda rank: made(rank, {0: 1 << 14, 99: 1 << 15 + rank}))

    assert found == [[(8, 1 << 14), (8, 1 << 14), (2, 1 << 16)]] * 2
    assert "".join(map(str, told)).startswith("context_length: rank")


def test_a_mixture_may_begin_behind_a_declared_change(
    target: str, files: dict[str, list[Tokens]], tmp_path: Path
) -> None:
    """The stream is a function of its definition: a sample has the row that it has in a run."""
    path = tmp_path / "mixture.toml"
    path.write_text(FILE)
    mixture = Mixture.load(path)
    with feed_of(target, GROWING, mixture, start_sample=333) as feed:
        assert (feed.context_length, feed.batch_size) == (1 << 15, 4)
        batch, state = next(feed.batches()), feed.state_dict()
    with feed_of(target, GROWING, mixture) as feed:
        feed.load_state_dict(state)
        again = next(feed.batches())

    expected = Expected(state)
    expected.require(batch, 333, 0, files)
    expected.require(again, 337, 0, files)


def test_the_end_of_a_mixture_that_grows_is_the_one_that_plan_prints(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source with max_epochs has fewer rows in each at another length."""
    path = tmp_path / "mixture.toml"
    path.write_text(FILE + "\n[sources.math]\nmax_epochs = 2\n")
    words = ["--context-length", "16384", "--group-tokens", str(GROUP_BLOCKS * U)]
    for when, length in list(GROWING.items())[1:]:
        words += ["--change-context-length", f"{when}={length}"]

    found = _printed(capsys, "plan", str(path), *words, "--tokens", "1e9", target, "--json")
    with feed_of(target, GROWING, Mixture.load(path), start_sample=found["end_sample"] - 2) as feed:
        shapes = [x.shape for x, _ in feed]

    math = sum((count - 1) // (1 << 17) for count in COUNTS["math"])
    # Of which it has read less, since it left out a part of its group.
    assert (found["ended_by"], shapes) == ("math", [(1, 1 << 17)] * 2)
    assert found["sources"]["math"]["epochs_at_end"] == pytest.approx(2, abs=1 / math)
    assert found["sources"]["math"]["epochs"] < 1.5


@pytest.mark.parametrize("length", [1 << 14, 1 << 15])
def test_tokens_of_a_mixture_that_a_state_counts_at_another_length_are_refused(
    target: str, length: int
) -> None:
    """As by a feed that makes the change: the stage would begin elsewhere, at either length."""
    with feed_of(target, 1 << 14, Mixture({"web": 1, "code": 1}), order="random") as feed:
        feed.change_context_length(1 << 15, at_sample=20)
        feed.skip(24)
        state = feed.state_dict()
    weights = [{"web": 1, "code": 1}, {"web": 1, "code": 3}]
    stages = [{"weights": weights[0]}, {"first_tokens": 4_000_000, "weights": weights[1]}]
    with feed_of(target, length, Mixture(stages=stages), order="random") as feed:
        with pytest.raises(
            StreamMismatch, match=r"first_tokens up to .*; write first_sample there"
        ):
            feed.load_state_dict(state)


def test_rows_by_their_index_have_the_groups_of_a_state(folder: Path) -> None:
    """A source keeps the groups that it began with, whatever the arguments say."""
    options = {"order": "blocks", "seed": SEED, "rank": 0, "world_size": 1}
    web = f"file:{folder / 'web'}?dtype=uint8"
    with NumpyBatches(web, 4, 1 << 14, group_tokens=GROUP_BLOCKS * U, **options) as feed:
        state, expected = feed.state_dict(), next(feed)[0]
    with NumpyBatches(web, 4, 1 << 14, **options) as feed:
        feed.load_state_dict(state)
        dataset = feed.as_dataset()
        assert np.array_equal([dataset[row][0] for row in range(4)], expected)
    options["order"] = "shuffled"
    with NumpyBatches(web, 4, 1 << 14, **options) as feed:
        next(feed)
        state = feed.state_dict()
    with NumpyBatches(web, 4, 1 << 14, **options | {"seed": 1}) as feed:
        feed.load_state_dict(state, allow=("seed",))
        with pytest.raises(InvalidRequest, match=r"^state: changed the stream"):
            feed.as_dataset()


@pytest.mark.parametrize("is_declared", [True, False])
def test_the_batches_that_are_left_are_of_all_lengths(target: str, is_declared: bool) -> None:
    """A framework ends the training by their number."""
    mixture = Mixture(
        {"web": 1, "math": 1},
        sources={"web": {"order": "random"}, "math": {"order": "blocks", "max_epochs": 1}},
    )
    lengths = {0: 1 << 14, 100: 1 << 15} if is_declared else 1 << 14
    with feed_of(target, lengths, mixture) as feed:
        if not is_declared:
            feed.change_context_length(1 << 15, at_sample=100)
        left = feed.batches_left
        assert left == sum(1 for _ in feed)
        assert feed.batches_left == 0


def test_a_source_that_has_paused_is_not_judged_by_its_rows_at_a_later_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has enough for its block at the first length. Plan and find answer too."""
    for name, count in (("web", 300_000), ("math", 20_000)):
        np.full(count, 7, "u1").tofile(tmp_path / f"{name}.bin")
    own = f"file:web={tmp_path / 'web.bin'},math={tmp_path / 'math.bin'}?dtype=uint8"
    path = tmp_path / "mixture.toml"
    path.write_text(
        'order = "random"\nseed = 9\nblock = 10\n'
        "[[stages]]\nweights = {web = 6, math = 4}\n"
        "[[stages]]\nfirst_sample = 10\nweights = {web = 1}\n"
        '[sources.math]\norder = "blocks"\nmax_epochs = 1\n'
    )
    with NumpyBatches(own, 32, {0: 1 << 10, 64: 1 << 15}, mixture=Mixture.load(path)) as feed:
        (tmp_path / "state.json").write_text(json.dumps(feed.state_dict()))
        shapes = [x.shape for x, _ in itertools.islice(feed, 3)]
    assert shapes == [(32, 1 << 10), (32, 1 << 10), (1, 1 << 15)]
    words = ["--change-context-length", "64=32768", "--tokens", "1e6", own, "--json"]
    found = _printed(capsys, "plan", str(path), "--context-length", "1024", *words)
    assert found["sources"]["math"]["epochs_at_end"] is None
    assert found["sources"]["math"]["samples"] == 4
    words = ["--state", str(tmp_path / "state.json"), "--dataset", "math", "--file", "math.bin"]
    found = _printed(capsys, "find", *words, "--token", "0", "--tokens", "9000", own, "--json")
    assert found["counts"]["to come"] == 1


@pytest.mark.parametrize("change", ["5=" + "9" * 5000, "9" * 5000 + "=16", "x=16x"])
def test_a_change_that_is_no_number_is_said_in_a_line(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    """Also of more digits than Python reads."""
    path = tmp_path / "mixture.toml"
    path.write_text("weights = {web = 1}\n")
    words = ["plan", str(path), "--context-length=1024", "--tokens=1e6", target]
    assert main([*words, "--change-context-length", change]) == 1
    assert re.match(r"error: --(change-)?context-length: .*\n$", capsys.readouterr().err)


def test_a_length_that_a_source_has_no_row_of_is_refused(target: str) -> None:
    """Before the change, and by the name of its dataset."""
    with feed_of(target, 1 << 14, {"web": 1, "code": 1, "math": 1}, order="random") as feed:
        with pytest.raises(InvalidRequest, match=r"9437184 is not below .* of 'math'"):
            feed.change_context_length(18 * U, at_sample=20, batch_size=1)
        assert next(feed)[0].shape == (8, 1 << 14)


def test_plan_knows_the_short_files_and_the_paused_sources_that_a_run_has(
    target: str,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also of a state alone, which has a dataset that a call has brought and paused again; and so
    do explain and manifest. A file that has no whole block is no reason to refuse.
    """
    path, chat = tmp_path / "mixture.toml", tmp_path / "chat"
    path.write_text('order = "blocks"\nseed = 9\nweights = {web = 3, chat = 1}\n')
    chat.mkdir()
    for n in range(5):
        np.full(300_000, 7, "u1").tofile(chat / f"{n}.bin")
    own = f"{target.partition('?')[0]},chat={chat}?dtype=uint8"
    length = {0: 1 << 14, 60: 1 << 15}
    changes = ["--change-context-length", "60=32768", "--group-tokens", str(GROUP_BLOCKS * U)]
    words = ["plan", str(path), "--tokens", "9e6", "--context-length", "16384", *changes]
    fresh = _printed(capsys, *words, own, "--json")
    caplog.set_level(logging.WARNING, "tokenfeed.client")
    with feed_of(own, length, Mixture.load(path)) as feed:
        next(feed)
        of_file = logged(caplog)
    with feed_of(own, 1 << 14, Mixture.load(path)) as feed:
        feed.change_mixture({"web": 1, "math": 1}, at_sample=12)
        feed.change_mixture({"web": 3, "chat": 1}, at_sample=24)
        assert feed.change_context_length(1 << 15, at_sample=60) == 60
        state, left = feed.state_dict(), logged(caplog)
        feed.skip(24)
        next(feed)
        paused = feed.state_dict()
        for _ in range(8):
            next(feed)
        done = feed.state_dict()

    assert {key: tokens for key, (_, tokens) in of_file.items()} == _left_out(fresh)
    assert {name for _, name in left} == {"web", "chat", "math"}
    expected = {key: tokens for key, (_, tokens) in left.items()}
    for n, each in enumerate((state, paused)):
        where = tmp_path / f"{n}.json"
        where.write_text(json.dumps(each))
        given = ["--state", str(where), "--tokens", "9e6"]
        assert _left_out(_printed(capsys, "plan", *given, own, "--json")) == expected
        given += ["--context-length", "16384", *changes]
        found = _printed(capsys, "plan", str(path), *given, own, "--json")
        assert _left_out(found) == expected
        assert "math" not in found["sources"] or each is state
    (tmp_path / "done.json").write_text(json.dumps(done))
    last = ["--state", str(tmp_path / "done.json")]
    assert _left_out(_printed(capsys, "explain", *last, "--step", "9", "--json", own)) == expected
    assert main(["manifest", *last, own]) == 0
    assert _left_out(json.loads(capsys.readouterr().out.splitlines()[1])) == expected
    gone = own.replace(f"math={folder / 'math'},", "")
    without = _printed(capsys, "explain", *last, "--step", "9", "--json", gone)
    assert {key[1]: tokens for key, tokens in _left_out(without).items()}["math"] is None


def test_what_is_left_out_of_two_sources_of_one_dataset_is_counted_together(
    target: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run over `web` in blocks that goes on as a mixture with `web` at random, which leaves out
    nothing.
    """
    caplog.set_level(logging.WARNING, "tokenfeed.client")
    options: Any = {"order": "blocks", "group_tokens": GROUP_BLOCKS * U, "dtype": np.int64}
    with NumpyBatches(target, 16, 1 << 13, dataset="web", seed=1, **options) as feed:
        for _ in range(3):
            next(feed)
        state = feed.state_dict()
    mixture = Mixture({"web": 1, "code": 1}, sources={"web": {"order": "random"}})
    with NumpyBatches(target, 16, 1 << 13, mixture=mixture, seed=2, **options) as feed:
        feed.load_state_dict(state, allow=("mixture", "seed", "order"))
        for _ in range(3):
            next(feed)
        feed.change_context_length(1 << 14)
        for _ in range(6):
            next(feed)
        (tmp_path / "state.json").write_text(json.dumps(feed.state_dict()))

    assert main(["manifest", "--state", str(tmp_path / "state.json"), target]) == 0

    printed = _left_out(json.loads(capsys.readouterr().out.splitlines()[1]))
    found = {place: tokens for place, (_, tokens) in logged(caplog).items()}
    assert {name for _, name in printed} == {"web", "code"}
    assert printed == found


def _left_out(printed: dict[str, Any]) -> dict[tuple[int, str], int | None]:
    """Sample and dataset -> tokens that are left out, of what a command has printed."""
    return {
        (stage["first_sample"], name): tokens
        for stage in printed["stages"]
        for name, tokens in stage["left_out_tokens"].items()
    }


def test_plan_of_one_source_that_reads_its_group_to_the_end_offers_no_smaller_blocks(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The change comes hundreds of steps late, and the size of a block is not the reason."""
    path = tmp_path / "mixture.toml"
    path.write_text('order = "blocks"\nweights = {web = 1}\n')
    changes = ["--change-context-length", "2=32768", "--group-tokens", str(GROUP_BLOCKS * U)]
    words = ["plan", str(path), "--tokens", "9e6", "--context-length", "16384", *changes]

    found = _printed(capsys, *words, "--global-batch-size", "1", target, "--json")

    assert found["stages"][1]["delay_steps"] > 50
    assert found["smaller_blocks"] is None


@pytest.mark.parametrize("where", ["file", "server"])
def test_a_source_that_a_restart_does_not_name_is_asked_for_where_the_length_changes(
    target: str,
    address: str,
    folder: Path,
    files: dict[str, list[Tokens]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    where: str,
) -> None:
    """It goes on with its next group if it ever comes back, and `plan` knows it too. If it is gone,
    the run goes on without the change, and the error says what is missing.
    """
    served = target if where == "file" else address
    with feed_of(served, LENGTHS[0], {"web": 1, "code": 0, "math": 1}) as feed:
        next(feed)
        state = feed.state_dict()
    others = Mixture({"web": 3, "code": 1})

    with caplog.at_level(logging.INFO), feed_of(served, LENGTHS[0], others) as feed:
        feed.load_state_dict(state, allow=("mixture",))
        begin = feed.change_context_length(LENGTHS[1], at_sample=100)
        grown = feed.state_dict()
        expected = Expected(grown)
        feed.skip(begin - feed.position.samples)
        for _ in range(2):
            first = feed.position.samples
            expected.require(next(feed.batches()), first, 0, files)
        brought_back = feed.change_mixture({"web": 1, "math": 1})
        expected = Expected(feed.state_dict())
        feed.skip(brought_back - feed.position.samples)
        expected.require(next(feed.batches()), brought_back, 0, files)
    assert logged(caplog) == expected.left_out
    assert {name for _, name in expected.left_out} == {"web", "code", "math"}
    path, saved = tmp_path / "mixture.toml", tmp_path / "state.json"
    path.write_text('order = "blocks"\nseed = 9\nweights = {web = 3, code = 1}\n')
    saved.write_text(json.dumps(state))
    words = [str(path), "--state", str(saved), "--allow-mixture", "--tokens", "9e6"]
    words += ["--context-length", str(LENGTHS[0]), "--group-tokens", str(GROUP_BLOCKS * U)]
    words += ["--change-context-length", f"100={LENGTHS[1]}", served, "--json"]
    assert _left_out(_printed(capsys, "plan", *words)) == {
        place: tokens for place, (_, tokens) in expected.left_out.items()
    }
    gone = f"file:web={folder / 'web'},code={folder / 'code'}?dtype=uint8"
    with feed_of(gone, LENGTHS[0], others) as feed:
        feed.load_state_dict(state, allow=("mixture",))
        with pytest.raises(InvalidRequest, match=r"rows of 'math' are not known .*; serve it"):
            feed.change_context_length(LENGTHS[1], at_sample=100)
        next(feed)
