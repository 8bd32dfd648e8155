"""Every row of a feed whose context length grows, against the second implementation: of random
runs, which stop, skip, and resume with other ranks.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from client import NumpyBatches
from tests.conftest import serving
from tests.support import reference

BLOCK = 2**19
CORPORA = {
    "two-groups": (16 * BLOCK + 1, 300_000, BLOCK + 50_000, 70_000, 100),
    "three-groups": (16 * BLOCK + 1, 17 * BLOCK + 35_000),
    "no-rest": (16 * BLOCK + 1,),
    "one-group": (BLOCK + 50_000, 300_000),
    "rests": (300_000, 70_000, 100),
}
"""Tokens of the files of each dataset. The long ones have more than 16 blocks."""
LENGTHS = tuple(2**i for i in range(13, 18))
BATCH_TOKENS = 2**17
"""Each of these lengths has whole rows of it."""
Tokens = npt.NDArray[np.uint8]
Asked = list[tuple[int, int]]
"""From which sample on which context length is asked for."""


class Run(NamedTuple):
    """A run of one stream.  declared: what the arguments have, if they have all lengths.
    parts: what is done one after another, with a feed of its own each.
    """

    dataset: str
    order: str
    seed: int
    group_blocks: int
    asked: Asked
    declared: dict[int | str, int] | None
    first_sample: int
    parts: list[Part]


class Part(NamedTuple):
    """Batches of some ranks.  times: B * T, of the smallest one.  skips: samples that are left out
    behind so many batches each.  is_new: whether the arguments have the length that is in force, if
    the run has none declared.  is_early: whether all lengths are asked for at once.
    """

    world_size: int
    times: int
    skips: list[tuple[int, int]]
    is_new: bool
    is_early: bool
    prefetch_bytes: int


class Progress(NamedTuple):
    """How far a run is.  asked: how many context lengths it has asked for."""

    position: int
    state: dict[str, Any] | None
    asked: int


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run that comes near to where its lengths change."""
    dataset = draw(st.sampled_from(sorted(CORPORA)))
    order = draw(st.sampled_from(["blocks"] * 4 + ["random", "shuffled", "sequential"]))
    group_blocks = draw(st.sampled_from([16, 32]))
    counts, name = list(CORPORA[dataset]), f"{order}-1"
    asked: Asked = [(0, draw(st.sampled_from(LENGTHS)))]
    declared: dict[int | str, int] = dict(asked)
    for _ in range(draw(st.integers(1, 4))):
        stages = reference.length_stages(name, counts, asked, group_blocks)
        begin, length, base = stages[-1]
        epoch = sum(reference.place_counts(name, counts, length))
        # In blocks it may be within the group at whose end the last one begins.
        least = asked[-1][0] + 1 if order == "blocks" else max(begin, asked[-1][0]) + 1
        if order in ("blocks", "random"):
            wanted = draw(st.integers(least, least + min(2 * epoch, 2**12)))
        else:
            wanted = (-(-(base + least - begin) // epoch) + draw(st.integers(0, 1))) * epoch
            wanted += begin - base
        following, key = draw(st.sampled_from(LENGTHS)), str(wanted)
        if draw(st.booleans()):
            tokens = _tokens_before(stages, wanted) - draw(st.integers(0, LENGTHS[0] - 1))
            wanted, key = reference.sample_of_tokens(stages, tokens), f"{tokens} tokens"
        asked.append((wanted, following))
        declared[key if "tokens" in key else wanted] = following
    stages = reference.length_stages(name, counts, asked, group_blocks)
    places = [stage.first_sample for stage in stages] + [0, asked[-1][0]]
    near = st.builds(
        lambda place, less: max(0, place - less), st.sampled_from(places), st.integers(0, 90)
    )
    position = first_sample = draw(near)
    has_all = draw(st.booleans())
    if not has_all:
        # A call for a sample before the first one comes too late.
        position = first_sample = min(first_sample, asked[1][0])
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        skips = []
        for _ in range(draw(st.integers(1, 3))):
            position = max(position, draw(near))
            skips.append((draw(st.integers(1, 4)), position))
        ranks, times = draw(st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3), (3, 2)]))
        prefetch = draw(st.sampled_from([0, 2**25]))
        parts.append(Part(ranks, times, skips, draw(st.booleans()), draw(st.booleans()), prefetch))
    seed = draw(st.sampled_from([0, 7, 2**64 - 1]))
    declares = declared if has_all else None
    return Run(dataset, order, seed, group_blocks, asked, declares, first_sample, parts)


def _tokens_before(stages: list[reference.LengthStage], sample: int) -> int:
    ends = [stage.first_sample for stage in stages[1:]] + [sample]
    return sum(
        max(0, min(end, sample) - stage.first_sample) * stage.context_length
        for stage, end in zip(stages, ends, strict=True)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of files for each dataset; those of as many tokens are the same."""
    path, tokens = tmp_path_factory.mktemp("corpora"), np.random.default_rng(5)
    for n in sorted(set(itertools.chain(*CORPORA.values()))):
        tokens.integers(0, 2**8, n, "u1").tofile(path / f"{n}.bin")
    for name, counts in CORPORA.items():
        (path / name).mkdir()
        for i, n in enumerate(counts):
            os.link(path / f"{n}.bin", path / name / f"{i}.bin")
    return path


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a server of all datasets."""
    with serving(folder) as serve:
        names = [word for name in CORPORA for word in ("--data", f"{name}={folder / name}")]
        yield serve(*names, "--dtype", "uint8").address


@pytest.mark.parametrize(
    "examples", [8, pytest.param(200, marks=[pytest.mark.proof, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("where", ["file", "server"])
def test_each_row_of_a_run_is_that_of_the_second_implementation(
    folder: Path, address: str, where: str, examples: int
) -> None:
    """Whatever lengths follow each other, and where: else a model learns tokens twice, or never."""

    # A smaller run that fails is not looked for: that takes minutes.
    @settings(
        phases=[Phase.generate],
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(runs())
    def every(run: Run) -> None:
        target = (
            address
            if where == "server"
            else f"file:{run.dataset}={folder / run.dataset}?dtype=uint8"
        )
        _read(run, target, [np.fromfile(p, "u1") for p in sorted((folder / run.dataset).iterdir())])

    every()


@settings(max_examples=40)
@given(st.data())
def test_each_target_of_a_whole_block_comes_once_in_an_epoch(data: st.DataObject) -> None:
    """The promise of the page, of the rule as it is written there, with small blocks and groups."""
    group_blocks = data.draw(st.sampled_from([1, 2, 4]))
    size, seed = 16, data.draw(st.integers(0, 9))
    counts = data.draw(
        st.lists(st.integers(1, 90), min_size=1, max_size=4).filter(lambda n: max(n) > 1)
    )
    fitting = [length for length in (1, 2, 4, 8, 16) if length < max(counts)]
    asked: Asked = [(0, data.draw(st.sampled_from(fitting)))]
    for _ in range(data.draw(st.integers(1, 4))):
        wanted = asked[-1][0] + data.draw(st.integers(1, 30))
        asked.append((wanted, data.draw(st.sampled_from(fitting))))
    stages = reference.length_stages("blocks-1", counts, asked, group_blocks, size)

    seen: Counter[tuple[int, int, int]] = Counter()
    sample = epoch = 0
    epochs = 1 + stages[-1].base // _rows(counts, stages[-1].context_length)
    while epoch <= epochs:
        stage = _stage_at(stages, sample)
        own = stage.base + sample - stage.first_sample
        epoch = own // _rows(counts, stage.context_length)
        window = (seed, counts, stage.context_length, group_blocks, own, size)
        file, token = reference.blocks_window(*window)
        seen.update((epoch, file, token + i) for i in range(stage.context_length))
        sample += 1

    for file, n in enumerate(counts):
        targets = (n - 1) // size * size
        assert all(seen[e, file, i] == 1 for e in range(epochs + 1) for i in range(targets))


def _rows(counts: list[int], length: int) -> int:
    return sum(reference.place_counts("blocks-1", counts, length))


TAKEN_BACK: dict[int | str, int] = {0: 2**15, 50: 2**16, 100: 2**15}
"""The last two lengths are asked for within one group, which ends at sample 144."""


def test_a_length_that_is_taken_back_within_its_group_never_begins(folder: Path) -> None:
    """Of two lengths that are asked for within one group the later one begins. It is the length
    that is in force already.
    """
    with _two_groups(folder, TAKEN_BACK, start_sample=130) as feed:
        batches = [next(feed) for _ in range(4)]

    assert [x.shape[1] for x, _ in batches] == [2**15] * 4


def test_a_resume_changes_no_length_that_was_taken_back(folder: Path) -> None:
    """With the same arguments the same rows follow, whether or not a run is interrupted."""
    with _two_groups(folder, TAKEN_BACK, start_sample=196) as feed:
        next(feed)
        state = feed.state_dict()
        whole = [next(feed)[0].shape for _ in range(4)]
    with _two_groups(folder, TAKEN_BACK) as feed:
        feed.load_state_dict(state)
        resumed = [next(feed)[0].shape for _ in range(4)]

    assert resumed == whole


def _two_groups(folder: Path, lengths: dict[int | str, int], **options: Any) -> NumpyBatches:
    return NumpyBatches(
        f"file:{folder / 'two-groups'}?dtype=uint8",
        8,
        lengths,
        order="blocks",
        group_tokens=16 * BLOCK,
        **options,
    )


def _read(run: Run, target: str, files: list[Tokens]) -> None:
    """Read a run, and compare it."""
    progress = Progress(run.first_sample, None, 1)
    for part in run.parts:
        found = [
            _read_rank(run, part, rank, progress, target, files) for rank in range(part.world_size)
        ]
        assert all(each == found[0] for each in found)
        progress = found[-1]


def _read_rank(
    run: Run, part: Part, rank: int, progress: Progress, target: str, files: list[Tokens]
) -> Progress:
    """Read the batches of a rank, and compare them."""
    position, state, asked = progress
    stages, batch_tokens = _stages(run), part.times * BATCH_TOKENS
    lengths: dict[int | str, int] | int = run.declared or run.asked[0][1]
    if part.is_new and state is not None and run.declared is None:
        lengths = _stage_at(stages, position).context_length
    first_length = lengths if isinstance(lengths, int) else lengths[0]
    with NumpyBatches(
        target,
        batch_tokens // first_length,
        lengths,
        order=run.order,
        seed=run.seed,
        group_tokens=run.group_blocks * BLOCK,
        dataset=run.dataset,
        rank=rank,
        world_size=part.world_size,
        prefetch_bytes=part.prefetch_bytes,
        dtype=np.int64,
        **({} if state else {"start_sample": position}),
    ) as feed:
        if state is not None:
            feed.load_state_dict(json.loads(json.dumps(state)))
        batches = feed.batches()
        for count, skipped_to in part.skips:
            asked = _ask(feed, run, asked, part, skipped_to)
            if position < skipped_to:
                feed.skip(skipped_to - position)
                position = skipped_to
            expected = reference.length_batches(
                stages, batch_tokens, position, rank, part.world_size
            )
            for stage, samples, position in itertools.islice(expected, count):
                asked = _ask(feed, run, asked, part, position)
                assert feed.context_length == stage.context_length
                assert feed.batch_size == len(samples)
                batch = next(batches)
                assert feed.position.samples == position
                _compare(batch, run, stage, samples, files)
        return Progress(position, feed.state_dict(), asked)


def _stages(run: Run, count: int | None = None) -> list[reference.LengthStage]:
    """The stages of a run, or of the first lengths that it asks for."""
    counts = list(CORPORA[run.dataset])
    return reference.length_stages(f"{run.order}-1", counts, run.asked[:count], run.group_blocks)


def _stage_at(stages: list[reference.LengthStage], sample: int) -> reference.LengthStage:
    return [stage for stage in stages if stage.first_sample <= sample][-1]


def _ask(feed: NumpyBatches, run: Run, asked: int, part: Part, before: int) -> int:
    """Make the calls for the lengths that a run asks for, as late as possible or all at once.

    asked: of how many that was done.  before: the sample behind what comes next.  Returns: asked.
    """
    if run.declared is None:
        while asked < len(run.asked) and (part.is_early or run.asked[asked][0] <= before):
            sample, length = run.asked[asked]
            asked += 1
            begin = feed.change_context_length(length, at_sample=sample)
            assert begin == _stages(run, asked)[-1].first_sample
    return asked


def _compare(
    batch: Any,
    run: Run,
    stage: reference.LengthStage,
    samples: list[int | None],
    files: list[Tokens],
) -> None:
    """Compare every token of a batch, and what is masked."""
    assert batch.sample_numpy.tolist() == [-1 if sample is None else sample for sample in samples]
    assert batch.x.shape == batch.y.shape == (len(samples), stage.context_length)
    for x, y, sample in zip(batch.x, batch.y, samples, strict=True):
        if sample is None:
            assert (y == -100).all()
            continue
        own, counts = stage.base + sample - stage.first_sample, [file.size for file in files]
        if run.order == "blocks":
            place = reference.blocks_window(
                run.seed, counts, stage.context_length, run.group_blocks, own
            )
        else:
            place = reference.window(f"{run.order}-1", run.seed, counts, stage.context_length, own)
        file, token = place
        window = files[file][token : token + stage.context_length + 1]
        assert np.array_equal(x, window[:-1])
        assert np.array_equal(y, window[1:])
