"""The examples, run as their docstrings show.

Those for Lightning and transformers are run by hand: neither package is installed here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import ROOT, WriteTokens
from tests.support.commands import run, run_together, torchrun
from tests.support.ports import free_port

EXAMPLES = ROOT / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    "runs",
    [
        [(2, "distributed"), (1, "torch")],
        pytest.param([(3, "torch"), (2, "distributed"), (1, "torch")], marks=pytest.mark.proof),
    ],
    ids=len,
)
def test_the_ddp_example_goes_on_with_fewer_ranks_in_either_format(
    tmp_path: Path, runs: list[tuple[int, str]]
) -> None:
    """The second run begins at the sample at which the first one ended, and has learnt already."""
    printed = [
        torchrun(ranks, EXAMPLES / "ddp.py", "--save-as", save_as, cwd=tmp_path)
        for ranks, save_as in runs
    ]

    samples = [re.search(r"samples (\d+) to (\d+) in 20 steps", text).groups() for text in printed]
    ends = [0, *accumulate(20 * 8 * ranks for ranks, _ in runs)]
    assert [tuple(map(int, pair)) for pair in samples] == list(pairwise(ends))
    losses = [
        tuple(map(float, re.search(r"loss of rank 0: (\S+) -> (\S+)", text).groups()))
        for text in printed
    ]
    assert losses[0][0] > 5 > losses[1][0]
    assert all(before[0] > after[0] for before, after in pairwise(losses))
    assert all("FeedStats(batches=20, tokens=10240," in text for text in printed)


@pytest.mark.proof
@pytest.mark.slow
def test_the_example_with_a_growing_context_trains_at_three_lengths_on_two_ranks(
    tmp_path: Path,
) -> None:
    """Batches keep their tokens, and the ones before a change are filled up."""
    printed = torchrun(2, EXAMPLES / "growing_context.py", cwd=tmp_path)

    for shape in ("48 x 512", "24 x 1024", "6 x 4096"):
        assert f"{shape}, 24576 tokens a step and rank" in printed
    assert "context length 4096 from sample 15360 on" in printed
    for rank, padding in ((0, 24), (1, 48)):
        assert f"rank {rank}: {padding} of 48 rows fill up a batch" in printed
    losses = re.findall(r"loss of rank 0: (\S+) -> (\S+)", printed)
    assert float(losses[0][0]) > 5 > 4 > float(losses[2][1])
    assert "FeedStats(batches=26, tokens=638976," in printed


@pytest.mark.proof
@pytest.mark.slow
def test_the_jax_example_goes_on_with_fewer_processes(tmp_path: Path) -> None:
    """Like the one before, without torch; process 0 starts the server of all of them. Its short
    form is in tests/end_to_end/training/test_jax.py.
    """
    printed = []
    for processes in (2, 1):
        words = [EXAMPLES / "jax_train.py", "--coordinator", f"localhost:{free_port()}"]
        words += ["--processes", str(processes), "--process"]
        texts = run_together([[*words, str(process)] for process in range(processes)], tmp_path)
        assert not any("samples" in text for text in texts[1:])
        printed.append(texts[0])

    samples = [re.search(r"samples (\d+) to (\d+) in 20 steps", text).groups() for text in printed]
    assert samples == [("0", "320"), ("320", "640")]
    first, second = (
        tuple(map(float, re.search(r"loss: (\S+) -> (\S+)", text).groups())) for text in printed
    )
    assert first[0] > 5 > 4 > second[0] > second[1]
    assert "2 processes, 4 devices, 16 x 64 a step" in printed[0]


@pytest.mark.slow
def test_the_dataloader_example_trains_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """For trainers that require a DataLoader."""
    printed = run(EXAMPLES / "dataloader.py", cwd=tmp_path)

    assert re.search(r"step 30: loss \d\.\d+", printed)
    assert "a new loader resumes with batch 31: yes" in printed


@pytest.mark.slow
def test_the_tensorboard_example_logs_what_the_feed_did(tmp_path: Path) -> None:
    """Read back from the file of events, as TensorBoard does."""
    words = ("--log-dir", tmp_path, "--steps", "40", "--log-every", "10")

    printed = run(EXAMPLES / "tensorboard_metrics.py", *words, cwd=tmp_path)

    assert re.search(r"step 40: loss \d\.\d+", printed)
    events = EventAccumulator(str(tmp_path), {"histograms": 0})
    events.Reload()
    logged = {
        name: [event.value for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
        if [event.step for event in events.Scalars(name)] == [10, 20, 30, 40]
    }
    assert logged["loss"][0] > logged["loss"][-1]
    assert logged["feed/samples"] == [160, 320, 480, 640]
    assert logged["feed/reconnects"] == [0] * 4
    assert logged["feed/queue_depth_batches"][-1] == 0
    assert all(0 <= share < 1 for share in logged["feed/wait_share"])
    assert all(rate > 0 for rate in logged["feed/tokens_per_second"])
    histograms = [event.histogram_value for event in events.Histograms("feed/wait_seconds")]
    assert [histogram.num for histogram in histograms] == [10] * 4
    assert all(sum(histogram.bucket) == 10 for histogram in histograms)
    waited = float(re.search(r"wait_seconds=(\S+),", printed)[1])
    # The end of the stream may have been waited for, too.
    assert 0 < sum(histogram.sum for histogram in histograms) <= waited + 1e-6


def run_mixture_example(tmp_path: Path, shared_data: Path, steps: int) -> list[tuple[float, float]]:
    """Run it, and return the losses on the text and the documentation, at first, at the change of
    the weights, and at the end.
    """
    text = tmp_path / "text.txt"
    text.write_text((shared_data / "tinyshakespeare.txt").read_text()[:150_000])

    printed = run(EXAMPLES / "change_mixture.py", "--text", text, f"--steps={steps}", seconds=100)

    lines = re.findall(r"^ +(\d+) +\d+ +(\d\.\d+) +(\d\.\d+)$", printed, re.MULTILINE)
    assert [int(step) for step, *_ in lines] == [0, steps // 2, steps]
    assert f"from sample {8 * steps} on: {{'text': 1, 'documentation': 9}}" in printed
    assert f"text: {8 * steps} samples" in printed
    assert f"documentation: {8 * steps} samples" in printed
    return [(float(own), float(other)) for _, own, other in lines]


@pytest.mark.slow
def test_the_mixture_example_changes_its_weights_and_learns(
    tmp_path: Path, shared_data: Path
) -> None:
    """The short form of the next one."""
    first, _, last = run_mixture_example(tmp_path, shared_data, 20)

    assert min(first) > max(last) + 0.3


@pytest.mark.proof
def test_the_mixture_example_learns_one_text_and_after_the_change_the_other(
    tmp_path: Path, shared_data: Path
) -> None:
    """With the weights of the beginning, the documentation's loss would fall by 0.2, not 0.9."""
    first, change, last = run_mixture_example(tmp_path, shared_data, 80)

    assert first[0] > change[0] + 2
    assert change[0] < change[1] - 0.2
    assert last[1] < change[1] - 0.5
    assert last[1] < last[0]


TASKS = """#!/bin/bash
# As srun with SLURM_NTASKS tasks, or with --ntasks=1, on this machine.
tasks=$SLURM_NTASKS output=/dev/stdout
while [[ $1 == --* ]]; do
    case $1 in --ntasks=*) tasks=${1#*=} ;; --output=*) output=${1#*=} ;; esac
    shift
done
for rank in $(seq 0 $((tasks - 1))); do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" >> "$output" 2>&1 &
done
wait -f $(jobs -p)
"""
TRAINER = """
import os, sys
from tokenfeed import NumpyBatches
rows = sum(len(x) for x, y in NumpyBatches(sys.argv[1], 4, 64, order="shuffled").epoch(0))
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} read {rows} rows {sys.argv[2:]}")
"""


def run_slurm_job(folder: Path, data: Path, *arguments: str, seconds: float) -> tuple[int, str]:
    """Run examples/slurm.sbatch, with programs in the place of Slurm's that start processes on this
    machine, as it does.  Returns: exit code, and what was printed.
    """
    commands = {
        "srun": TASKS,
        "scontrol": "#!/bin/sh\necho localhost",
        "tokenfeed": f'#!/bin/sh\nexec {sys.executable} -m tokenfeed "$@"',
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"',
    }
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "train.py").write_text(TRAINER)
    port = next(port for port in iter(free_port, None) if port < 30_000)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TRAIN_DATA": str(data),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_ID": str(port - 20_000),
        "SLURM_NTASKS": "2",
    }
    process = subprocess.Popen(
        ["bash", EXAMPLES / "slurm.sbatch", "train.py", *arguments],
        cwd=folder, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        status = process.wait(timeout=seconds)
    finally:
        # As Slurm does at the end of a job: the server is in it, too.
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate(timeout=5)
    return status, printed


@pytest.mark.slow
def test_the_job_of_slurm_serves_its_ranks(write_tokens: WriteTokens, tmp_path: Path) -> None:
    """Each rank reads its share, and gets the arguments of its script."""
    data = write_tokens(np.arange(64 * 100 + 1))

    status, printed = run_slurm_job(tmp_path, data, "--note", "two words", seconds=50)

    assert status == 0
    read = sorted(re.findall("rank . of 2 read .*", printed))
    told = "48 rows ['--note', 'two words']"
    assert read == [f"rank {rank} of 2 read {told}" for rank in range(2)]


@pytest.mark.slow
def test_a_job_of_slurm_whose_server_cannot_start_ends(tmp_path: Path) -> None:
    """Its ranks would hold the GPUs for 480 s, waiting for a server that will not come."""
    status, printed = run_slurm_job(tmp_path, tmp_path / "missing.bin", seconds=50)

    assert status == 1
    assert "the server has ended; server-" in printed
    (log,) = tmp_path.glob("server-*.log")
    assert "missing.bin" in log.read_text()
