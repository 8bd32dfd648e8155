"""Real pipelines of grain, and arrays of JAX, on a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Serve, WriteTokens
from tests.support.offline import offline_rows

B, T, SEED = 2, 16, 3
DOCUMENTS = (5, 30, 11, 3, 9, 4)
"""Lengths, in tokens."""

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def path(write_tokens: WriteTokens) -> Path:
    return write_tokens(np.random.default_rng(0).integers(1, 512, 1000))


def rows_of(batches: list[dict[str, Any]]) -> np.ndarray:
    """The rows, int64[n, T + 1], rebuilt from inputs and targets."""
    whole = [np.column_stack([each["inputs"], each["targets"][:, -1:]]) for each in batches]
    return np.concatenate(whole).astype(np.int64)


def pipeline(target: str, **options: Any) -> Iterator[dict[str, Any]]:
    """A dataset with a transformation, which is read ahead in a thread."""
    from grain import experimental

    from tokenfeed.client.adapters.grain import FeedDataset

    dataset = FeedDataset(target, B, T, order="shuffled", seed=SEED, **options)
    mapped = dataset.map(lambda batch: {**batch, "seen": True})
    return iter(experimental.ThreadPrefetchIterDataset(mapped, prefetch_buffer_size=4))


def test_a_pipeline_resumes_at_the_row_behind_the_last_one(serve: Serve, path: Path) -> None:
    """grain reads ahead; its state is that of what was consumed."""
    server = serve("--data", path)
    first = pipeline(server.address)
    batches = [next(first) for _ in range(3)]
    state = json.loads(json.dumps(first.get_state()))
    resumed = pipeline(server.address)
    resumed.set_state(state)
    batches += [next(resumed) for _ in range(3)]
    assert np.array_equal(rows_of(batches), offline_rows([path], "shuffled-1", SEED, T, range(12)))
    assert all(each["seen"] for each in batches)
    first.close()
    resumed.close()


def test_a_state_of_one_process_resumes_in_two(serve: Serve, path: Path) -> None:
    """grain itself divides data among processes once and for all."""
    server = serve("--data", path)
    one = pipeline(server.address)
    next(one)
    state = one.get_state()
    two = [pipeline(server.address, rank=rank, world_size=2) for rank in range(2)]
    batches = []
    for iterator in two:
        iterator.set_state(state)
    for _ in range(2):
        batches += [next(iterator) for iterator in two]
    assert np.array_equal(
        rows_of(batches), offline_rows([path], "shuffled-1", SEED, T, range(2, 10))
    )


def test_orbax_saves_and_restores_the_iterator(serve: Serve, path: Path, tmp_path: Path) -> None:
    """So a checkpoint has model and data together."""
    import grain.python as grain
    import orbax.checkpoint as ocp

    server = serve("--data", path)
    saved = pipeline(server.address)
    next(saved)
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(1, args=ocp.args.Composite(data=grain.PyGrainCheckpointSave(saved)))
        manager.wait_until_finished()
        restored = pipeline(server.address)
        own = ocp.args.Composite(data=grain.PyGrainCheckpointRestore(restored))
        manager.restore(1, args=own)
    assert np.array_equal(
        rows_of([next(restored)]), offline_rows([path], "shuffled-1", SEED, T, range(2, 4))
    )


def test_workers_that_would_all_read_all_rows_are_refused(serve: Serve, path: Path) -> None:
    """A feed prefetches by itself; in two workers each row would come twice."""
    import grain.python as grain

    from tokenfeed.client.adapters.grain import FeedDataset

    sys.argv = sys.argv[:1]
    from absl import flags

    flags.FLAGS(sys.argv)
    dataset = FeedDataset(serve("--data", path).address, B, T)
    with pytest.raises(ValueError, match="Cannot slice"):
        next(iter(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))))


def test_documents_are_isolated_in_a_model_of_jax(tmp_path: Path, serve: Serve) -> None:
    """Logits of a packed row are those of its documents alone."""
    import jax
    import jax.numpy as jnp

    from tokenfeed.client.adapters.grain import FeedDataset

    tokens = np.concatenate(
        [[*range(n * 10 + 1, n * 10 + length), 0] for n, length in enumerate(DOCUMENTS)]
    )
    path = tmp_path / "documents.bin"
    tokens.astype("<u2").tofile(path)
    server = serve("--data", path, "--document-end-token", "0")
    batches = iter(FeedDataset(server.address, 1, T, order="packed"))
    batch = next(each for each in batches if each["inputs_segmentation"].max() > 1)
    numbers = np.random.default_rng(1)
    embedding, places = numbers.standard_normal((600, 8)), numbers.standard_normal((T, 8))

    def logits(inputs: Any, positions: Any, segments: Any) -> Any:
        hidden = jnp.asarray(embedding)[inputs] + jnp.asarray(places)[positions]
        heads = hidden[:, :, None, :]
        same = segments[:, None, :, None] == segments[:, None, None, :]
        found = jax.nn.dot_product_attention(heads, heads, heads, mask=same, is_causal=True)
        return (hidden + found[:, :, 0]) @ jnp.asarray(embedding).T

    whole = logits(batch["inputs"], batch["inputs_position"], batch["inputs_segmentation"])
    segments = batch["inputs_segmentation"][0]
    for number in range(1, segments.max() + 1):
        inside = segments == number
        alone = batch["inputs"][:, inside]
        expected = logits(
            alone, np.arange(alone.shape[1])[np.newaxis], np.ones_like(alone, dtype=np.int32)
        )
        np.testing.assert_allclose(whole[:, inside], expected, atol=1e-5)
    weights = batch["targets_segmentation"]
    assert ((weights != 0) <= (batch["inputs_segmentation"] != 0)).all()
    assert (batch["targets"][weights == 0] == 0).all()


DEVICES = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
rank, port, target = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(f"localhost:{port}", 2, rank)
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tokenfeed.client.adapters.grain import FeedDataset
mesh = Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
dataset = FeedDataset(target, 2, 16, order="shuffled", seed=3,
                      rank=jax.process_index(), world_size=jax.process_count())
batch = jax.make_array_from_process_local_data(sharding, next(iter(dataset)))
assert batch["inputs"].shape == (4, 16), batch["inputs"].shape
whole = multihost_utils.process_allgather(batch["inputs"], tiled=True)
print(np.asarray(whole).tolist())
"""


def test_two_processes_of_jax_share_a_batch(serve: Serve, path: Path) -> None:
    """Each has its rows, and the array of both is the batch."""
    from tests.support.ports import free_port

    server, port = serve("--data", path), str(free_port())
    words = [sys.executable, "-c", DEVICES]
    processes = [
        subprocess.Popen(
            [*words, str(rank), port, server.address], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    expected = offline_rows([path], "shuffled-1", SEED, T, range(4))[:, :-1].tolist()
    assert [json.loads(output.splitlines()[-1]) for output in outputs] == [expected, expected]
