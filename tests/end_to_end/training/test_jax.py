"""JAX: the rows that devices get, and the losses, do not depend on the number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.commands import run_together
from tests.support.offline import offline_rows
from tests.support.ports import free_port

B, T = 16, 64
"""The rows of a step, of all devices together, and the context length, as in the example."""
DEVICES = 4
WINDOWS = 100
END = 0
"""The token that ends a document."""
PARTS = [(2, 3), (1, 2), (4, 3)]
"""Of a run that stops and resumes: processes and steps."""

# A process of the example; saves what each of its devices gets, and the losses.
PROCESS = """
import sys
import numpy as np
sys.path.insert(0, sys.argv.pop(1))
import jax_train

recorded = sys.argv.pop(1)
losses, first_rows, arrays = [], [], []

class Recorder(jax_train.Training):
    def step_on(self, *rows):
        shards = list(zip(*(array.addressable_shards for array in rows)))
        first_rows.append([[one.index[0].start or 0 for one in same] for same in shards])
        arrays.append([[np.asarray(one.data) for one in same] for same in shards])
        losses.append(super().step_on(*rows))
        return losses[-1]

jax_train.Training = Recorder
jax_train.main()
assert "torch" not in sys.modules
np.savez(recorded, losses=losses, first_rows=first_rows, arrays=arrays)
"""


def train(
    address: str | Sequence[str], folder: Path, processes: int, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Train from the checkpoint in a folder on.

    address: of the server; or of each process.  Returns: int32[steps, 4, B, T], what the devices
    got: x, y, segment ids, positions; float64[processes, steps], the losses.
    """
    script = folder / "process.py"
    script.write_text(PROCESS)
    addresses = [address] * processes if isinstance(address, str) else address
    words = ["--processes", processes, "--coordinator", f"localhost:{free_port()}"]
    words += ["--folder", folder / "checkpoints", "--steps", steps]
    records = [folder / f"{processes}-{process}.npz" for process in range(processes)]
    run_together(
        [
            [script, ROOT / "examples", record]
            + [str(word) for word in (*words, "--process", process, "--target", addresses[process])]
            for process, record in enumerate(records)
        ]
    )
    found = [np.load(record) for record in records]
    # [steps, devices, array]: all four arrays are split in the same way.
    first_rows = np.concatenate([one["first_rows"] for one in found], axis=1)
    assert first_rows.shape == (steps, DEVICES, 4)
    expected = np.arange(DEVICES)[:, None] * (B // DEVICES)
    assert np.array_equal(np.sort(first_rows, axis=1), np.broadcast_to(expected, first_rows.shape))
    # [steps, devices, array, row, T], devices by their first row.
    arrays = np.concatenate([one["arrays"] for one in found], axis=1)
    arrays = np.take_along_axis(
        arrays, np.argsort(first_rows[:, :, 0], axis=1)[:, :, None, None, None], axis=1
    )
    assert arrays.dtype == np.int32
    return (
        arrays.swapaxes(1, 2).reshape(steps, 4, B, T),
        np.stack([one["losses"] for one in found]),
    )


def documents_of(row: np.ndarray) -> tuple[list[int], list[int]]:
    """Segment ids and positions of the first T tokens of a row, by a walk along it."""
    segments, positions = [1], [0]
    for before in row[: T - 1]:
        segments.append(segments[-1] + (before == END))
        positions.append(0 if before == END else positions[-1] + 1)
    return segments, positions


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", [[(2, 3), (1, 5)], pytest.param(PARTS, marks=pytest.mark.proof)], ids=len
)
def test_some_processes_stop_and_fewer_or_more_go_on_as_if_there_had_been_one(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path, parts: list[tuple[int, int]]
) -> None:
    """Each device gets its rows of the stream once, and the weights do not know of the stops."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, 30, WINDOWS * T + 1)
    counts = random.random(tokens.size) < 0.7
    path, mask = write_tokens(tokens), write_tokens(counts, "mask.loss", "u1")
    options = ("--data", path, "--loss-mask", mask, "--document-end-token", str(END))

    found = []
    for processes, steps in parts:
        server = serve(*options)
        found.append(train(server.address, tmp_path, processes, steps))
        assert server.stop() == 0
    alone = tmp_path / "alone"
    alone.mkdir()
    steps = sum(steps for _, steps in parts)
    undisturbed, undisturbed_losses = train(serve(*options).address, alone, 1, steps)

    samples = range(steps * B)
    assert len(samples) > WINDOWS  # over the end of an epoch, too
    rows = offline_rows([path], "shuffled-1", 1337, T, samples)
    learned = offline_rows(
        [write_tokens(counts, "mask-as-tokens.bin")], "shuffled-1", 1337, T, samples
    )
    documents = np.array([documents_of(row) for row in rows])
    x, y, segments, positions = (
        np.concatenate([arrays for arrays, _ in found]).swapaxes(0, 1).reshape(4, -1, T)
    )
    assert np.array_equal(x, rows[:, :-1])
    assert np.array_equal(y, np.where(learned[:, 1:] == 1, rows[:, 1:], -100))
    assert np.array_equal(segments, documents[:, 0])
    assert np.array_equal(positions, documents[:, 1])
    assert np.array_equal(np.concatenate([arrays for arrays, _ in found]), undisturbed)

    losses = np.concatenate([part[0] for _, part in found])
    assert all((part == part[0]).all() for _, part in found)
    np.testing.assert_allclose(losses, undisturbed_losses[0], rtol=1e-5)
    # It has learned: a new model again would show at the stops.
    assert losses[0] > 5 > losses[3] > losses[5]
    last = f"checkpoints/{steps * B:012}.npz"
    with np.load(tmp_path / last) as stopped, np.load(alone / last) as never_stopped:
        names = [name for name in stopped if name != "feed"]
        assert {"weights.token", "mean.token", "square.token", "step"} <= set(names)
        for name in names:
            np.testing.assert_allclose(stopped[name], never_stopped[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_processes_of_the_example_whose_servers_have_other_files_do_not_train(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """Without torch.distributed, the feeds themselves do not compare their corpora."""
    paths = [write_tokens(np.arange(5000) % (90 + n), f"{n}.bin") for n in range(2)]
    addresses = [serve("--data", path).address for path in paths]

    with pytest.raises(AssertionError, match="the processes have different states or corpora"):
        train(addresses, tmp_path, 2, 3)

    assert not (tmp_path / "checkpoints").exists()
