"""Data-parallel training with JAX that stops, and resumes on another number of processes.

    for i in 0 1; do python examples/jax_train.py --processes 2 --process $i & done; wait
    python examples/jax_train.py

Needs jax and no torch. Trains on four devices that JAX simulates on the CPU, and that are divided
between the processes; with accelerators, leave out the lines with jax.config. Each process reads
its share of a batch, and the devices get the same rows whatever the number of processes. Weights,
moments and the state of the feed are in one file. The second run resumes at exactly the sample at
which the first one stopped, from another server process.

If the server of --target knows where documents begin, attention stays within them; see
--document-end-token of `tokenfeed serve`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from serving import documentation_server, parser

from tokenfeed import NumpyBatches
from tokenfeed.client import NumpyRichBatch

DEVICES = 4
GLOBAL_BATCH_SIZE, CONTEXT_LENGTH = 16, 64
WIDTH, HEADS = 32, 4
LEARNING_RATE, DECAYS = 1e-2, (0.9, 0.99)

Tree = dict[str, Any]
"""Arrays by name, in several levels."""


def main() -> int:
    """Train some steps from the newest checkpoint on.  Returns: 0."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--processes", type=int, choices=[1, 2, 4], default=1, help="default: %(default)s"
    )
    arguments.add_argument(
        "--process", type=int, default=0, help="number of this one (default: %(default)s)"
    )
    arguments.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        default="localhost:15051",
        help="where process 0 listens for the others (default: %(default)s)",
    )
    arguments.add_argument(
        "--folder",
        type=Path,
        default=Path("jax-checkpoints"),
        help="of the checkpoints (default: %(default)s)",
    )
    arguments.add_argument(
        "--steps", type=int, default=20, help="steps of this run (default: %(default)s)"
    )
    options = arguments.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES // options.processes)
    if options.processes > 1:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    training = Training(options.vocab_size)
    with (
        one_server_at(options.target) as address,
        NumpyBatches(
            address,
            GLOBAL_BATCH_SIZE // jax.process_count(),
            CONTEXT_LENGTH,
            dataset=options.dataset,
            order="shuffled",
            seed=1337,
            rank=jax.process_index(),
            world_size=jax.process_count(),
        ) as feed,
    ):
        load_newest(options.folder, training, feed)
        require_same_state(feed)
        first_sample = feed.position.samples
        losses = [training.step(batch) for batch in islice(feed.batches(), options.steps)]
        save(options.folder, training, feed)
        if jax.process_index() == 0:
            print(
                f"{jax.process_count()} processes, {jax.device_count()} devices, "
                f"{GLOBAL_BATCH_SIZE} x {CONTEXT_LENGTH} a step"
            )
            print(f"samples {first_sample} to {feed.position.samples} in {len(losses)} steps")
            print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}")
            print(feed.stats())
    return 0


class Training:
    """A small language model and its optimizer, Adam, the same on all devices."""

    def __init__(self, vocab_size: int) -> None:
        """Create the weights, the same in every process."""
        mesh = Mesh(np.array(jax.devices()), ("data",))
        self.by_row = NamedSharding(mesh, PartitionSpec("data"))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        weights = new_weights(np.random.default_rng(1337), vocab_size)
        zeros = jax.tree.map(np.zeros_like, weights)
        self.load_state({"step": np.int32(0), "weights": weights, "mean": zeros, "square": zeros})

    def step(self, batch: NumpyRichBatch) -> float:
        """Train on a batch, each process with its own rows.  Returns: the loss of all rows."""
        x, y = batch
        if batch.documents is not None:
            segments, positions = batch.segment_ids, batch.positions
        else:
            segments = np.ones_like(x)
            positions = np.broadcast_to(np.arange(x.shape[1], dtype=x.dtype), x.shape)
        local = (x, y, segments, positions)
        return self.step_on(*jax.make_array_from_process_local_data(self.by_row, local))

    def step_on(self, *rows: jax.Array) -> float:
        """Train on int32[GLOBAL_BATCH_SIZE, T] four times: x, y, segment ids and positions."""
        self.state, loss = updated(self.state, *rows)
        return float(loss)

    def load_state(self, state: Tree) -> None:
        """Put weights and moments on all devices.  state: arrays of NumPy."""
        self.state = jax.device_put(state, self.everywhere)


# --- the model ---


def new_weights(numbers: np.random.Generator, vocab_size: int) -> Tree:
    """Return the weights of a transformer with one layer, float32."""

    def normal(*shape: int, scale: float = WIDTH**-0.5) -> np.ndarray:
        return (numbers.standard_normal(shape) * scale).astype(np.float32)

    return {
        "token": normal(vocab_size, WIDTH, scale=1),
        "position": normal(CONTEXT_LENGTH, WIDTH, scale=0.1),
        "attention": normal(3, WIDTH, HEADS, WIDTH // HEADS),
        "attended": normal(WIDTH, WIDTH),
        "wide": normal(WIDTH, 4 * WIDTH),
        "narrow": normal(4 * WIDTH, WIDTH, scale=0.1),
        "predicted": normal(WIDTH, vocab_size, scale=0.02),
    }


def logits_of(weights: Tree, x: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
    """Return float32[B, T, vocab_size].  x, segments, positions: int32[B, T]."""
    hidden = weights["token"][x] + weights["position"][positions]
    same_document = segments[:, :, None] == segments[:, None, :]
    queries, keys, values = jnp.einsum("btw,awhd->abthd", normalized(hidden), weights["attention"])
    found = jax.nn.dot_product_attention(
        queries, keys, values, mask=same_document[:, None], is_causal=True
    )
    hidden += found.reshape(hidden.shape) @ weights["attended"]
    hidden += jax.nn.gelu(normalized(hidden) @ weights["wide"]) @ weights["narrow"]
    return normalized(hidden) @ weights["predicted"]


def normalized(hidden: jax.Array) -> jax.Array:
    """Return vectors with a mean square of 1."""
    return hidden * jax.lax.rsqrt(jnp.mean(hidden**2, axis=-1, keepdims=True) + 1e-6)


def loss_of(weights: Tree, x: jax.Array, y: jax.Array, *documents: jax.Array) -> jax.Array:
    """Return the mean loss of the targets that count, those that are not -100."""
    counts = y != -100
    log_probabilities = jax.nn.log_softmax(logits_of(weights, x, *documents))
    targets = jnp.where(counts, y, 0)[..., None]
    losses = -jnp.take_along_axis(log_probabilities, targets, axis=-1)[..., 0]
    return jnp.sum(losses * counts) / jnp.maximum(counts.sum(), 1)


@partial(jax.jit, donate_argnums=0)
def updated(state: Tree, *rows: jax.Array) -> tuple[Tree, jax.Array]:
    """Return the state after a step of Adam, and the loss before it."""
    loss, gradients = jax.value_and_grad(loss_of)(state["weights"], *rows)
    step = state["step"] + 1
    first, second = DECAYS
    mean = jax.tree.map(lambda m, g: first * m + (1 - first) * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: second * s + (1 - second) * g**2, state["square"], gradients)
    weights = jax.tree.map(
        lambda w, m, s: (
            w - LEARNING_RATE * m / (1 - first**step) / (jnp.sqrt(s / (1 - second**step)) + 1e-8)
        ),
        state["weights"],
        mean,
        square,
    )
    return {"step": step, "weights": weights, "mean": mean, "square": square}, loss


# --- checkpoints ---


def save(folder: Path, training: Training, feed: NumpyBatches) -> None:
    """Save model and feed in one file, named by the position in the stream."""
    if jax.process_index() != 0:
        return
    path = folder / f"{feed.position.samples:012}"
    arrays = {name_of(key): leaf for key, leaf in jax.tree.leaves_with_path(training.state)}
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: the next run loads every checkpoint that it finds.
    with open(f"{path}.partial", "wb") as file:
        np.savez(file, feed=np.array(json.dumps(feed.state_dict())), **arrays)
    os.replace(f"{path}.partial", f"{path}.npz")


def load_newest(folder: Path, training: Training, feed: NumpyBatches) -> None:
    """Load the checkpoint with the largest position, if there is one; every process loads it."""
    newest = max(folder.glob("*.npz"), default=None)
    if newest is None:
        return
    with np.load(newest) as saved:
        training.load_state(
            jax.tree.map_with_path(lambda key, _: saved[name_of(key)], training.state)
        )
        feed.load_state_dict(json.loads(saved["feed"].item()))


def require_same_state(feed: NumpyBatches) -> None:
    """Compare where the processes continue, and the fingerprints of their corpora: without
    torch.distributed, feeds do not compare them by themselves.

    Raises: AssertionError if they differ.
    """
    state = hashlib.sha256(json.dumps(feed.state_dict()).encode()).digest()
    multihost_utils.assert_equal(
        np.frombuffer(state, np.uint8), "the processes have different states or corpora"
    )


def name_of(key: tuple[Any, ...]) -> str:
    """Return the name of an array in a checkpoint, such as "weights.token"."""
    return jax.tree_util.keystr(key, simple=True, separator=".")


# --- the server ---


@contextmanager
def one_server_at(target: str | None) -> Iterator[str]:
    """Lend the address of a server: target, or a server that process 0 starts for all processes;
    it runs until the last one is done.
    """
    if target is not None:
        yield target
        return
    with ExitStack() as own:
        text = b""
        if jax.process_index() == 0:
            text = own.enter_context(documentation_server()).encode()
        padded = np.frombuffer(text.ljust(32), np.uint8)
        yield bytes(multihost_utils.broadcast_one_to_all(padded)).decode().strip()
        multihost_utils.sync_global_devices("done")


if __name__ == "__main__":
    sys.exit(main())
