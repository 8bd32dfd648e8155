"""Trains a small GPT on tiny Shakespeare from RemoteBatches, on the CPU, in a few minutes.

One server serves two datasets: training windows are shuffled, validation windows in order. There
are only 300,000 tokens for a vocabulary of 50,257. So each of the 4,095 most frequent tokens has
its own output, and all others share one and are distinguished by their frequency. The loss still
covers the whole vocabulary.

    python examples/train_tinyshakespeare.py --data-folder FOLDER

FOLDER contains tinyshakespeare.txt, and GPT-2's tokenizer.json as gpt2-tokenizer.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from gpt import GPT, make_optimizer
from serving import serving
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from tokenfeed import RemoteBatches

DATA_FOLDER = os.environ.get(
    "TOKENFEED_TEST_DATA", str(Path(__file__).parents[2] / "shared" / "data")
)
TEXT, TOKENIZER = "tinyshakespeare.txt", "gpt2-tokenizer.json"
VOCAB_SIZE = 50_257
FREQUENT = 4096
CONTEXT_LENGTH, BATCH_SIZE = 32, 16
WARMUP_STEPS = 20
EVALUATE_EVERY = 250


def main() -> int:
    """Train and evaluate.  Returns: 0, or 1 if --require-below is missed."""
    arguments = parse_arguments()
    # On 2 shared cores, two threads took 1.1 s per step and one 0.09 s: in such a small model the
    # threads wait for each other at every operation (2026-11).
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        train, validation = tokenize_halves(Path(arguments.data_folder))
        train.tofile(Path(folder) / "train.bin")
        validation.tofile(Path(folder) / "val.bin")
        print(f"{len(train):,} tokens to train on, {len(validation):,} to validate")
        classes = Classes(train)
        entropy = classes.unigram_loss(validation)
        with serving(Path(folder) / "train.bin", Path(folder) / "val.bin") as address:
            loss = fit(address, classes, arguments, (len(validation) - 1) // CONTEXT_LENGTH)
    print(f"validation loss {loss:.3f}, unigram entropy {entropy:.3f}")
    return int(arguments.require_below is not None and loss >= arguments.require_below)


def parse_arguments() -> argparse.Namespace:
    """Return the command line arguments."""
    parser = argparse.ArgumentParser(description="Trains a small GPT from a tokenfeed server.")
    parser.add_argument(
        "--data-folder", default=DATA_FOLDER, help=f"folder with {TEXT} and {TOKENIZER}"
    )
    parser.add_argument(
        "--max-seconds", type=float, default=240.0, help="training time (default: %(default)s)"
    )
    parser.add_argument(
        "--max-steps", type=int, default=1500, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument(
        "--stop-below", type=float, help="stop when the validation loss is below this"
    )
    parser.add_argument(
        "--require-below", type=float, help="exit 1 if the final loss is not below this"
    )
    return parser.parse_args()


def tokenize_halves(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the GPT-2 tokens, uint16, of the first 90 % of the characters, and of the rest."""
    for path in (folder / TEXT, folder / TOKENIZER):
        if not path.exists():
            sys.exit(f"error: {path} is missing; pass --data-folder with {TEXT} and {TOKENIZER}")
    text = (folder / TEXT).read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    cut = int(len(text) * 0.9)
    train, validation = (
        np.array(tokenizer.encode(part).ids, dtype=np.uint16) for part in (text[:cut], text[cut:])
    )
    return train, validation


class Classes:
    """The outputs of the model: one per frequent token, and one for all others together."""

    def __init__(self, train: np.ndarray) -> None:
        """Count the training tokens."""
        counts = torch.bincount(torch.from_numpy(train.astype(np.int64)), minlength=VOCAB_SIZE)
        rank = torch.argsort(torch.argsort(counts, descending=True, stable=True))
        self.of_token = rank.clamp(max=FREQUENT - 1)
        self.counts = torch.bincount(self.of_token, counts.double(), FREQUENT)
        rare = self.of_token == FREQUENT - 1
        # Tokens that do not occur in training are possible too: they count as a fifth of one.
        share = torch.where(rare, counts.double() + 1 / 5, 1.0)
        share[rare] /= share[rare].sum()
        self.nats_within_class = -share.log().float()

    def unigram_loss(self, validation: np.ndarray) -> float:
        """Return the loss of a model that knows only the token frequencies, in nats per token."""
        tokens = torch.from_numpy(validation.astype(np.int64))
        class_nats = -((self.counts + 1) / (self.counts + 1).sum()).log().float()
        return float((class_nats[self.of_token[tokens]] + self.nats_within_class[tokens]).mean())


def fit(address: str, classes: Classes, arguments: argparse.Namespace, windows: int) -> float:
    """Train until the time, step or loss limit is reached.  Returns: the validation loss."""
    model = GPT(classes.counts, CONTEXT_LENGTH)
    optimizer = make_optimizer(model)
    loss, waited, begun = float("inf"), 0.0, time.perf_counter()
    with RemoteBatches(
        address, BATCH_SIZE, CONTEXT_LENGTH, dataset="train", order="shuffled", seed=arguments.seed
    ) as feed:
        for step in range(1, arguments.max_steps + 1):
            wait_begun = time.perf_counter()
            x, y = next(feed)
            waited += time.perf_counter() - wait_begun
            decay = 0.05 + 0.95 * (1 - step / arguments.max_steps)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * min(1, step / WARMUP_STEPS) * decay
            optimizer.zero_grad()
            class_loss(model, classes, x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seconds = time.perf_counter() - begun
            over = step == arguments.max_steps or seconds > arguments.max_seconds
            if over or step % EVALUATE_EVERY == 0:
                loss = validation_loss(address, model, classes, windows)
                print(
                    f"step {step}: {step * x.numel():,} tokens, validation loss {loss:.3f},",
                    end=" ",
                )
                print(f"{seconds:.0f} s, of which {waited:.2f} s waited for data", flush=True)
            if over or (arguments.stop_below is not None and loss < arguments.stop_below):
                break
    return loss


def class_loss(model: GPT, classes: Classes, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss of the classes, in nats per token."""
    logits = model(classes.of_token[x])
    return functional.cross_entropy(logits.flatten(0, 1), classes.of_token[y].flatten())


@torch.no_grad()
def validation_loss(address: str, model: GPT, classes: Classes, windows: int) -> float:
    """Return the loss over the validation windows and the vocabulary, in nats per token."""
    model.eval()
    total = 0.0
    with RemoteBatches(
        address, windows // 2, CONTEXT_LENGTH, dataset="val", order="sequential", num_batches=2
    ) as feed:
        for x, y in feed:
            within = classes.nats_within_class[y].mean()
            total += float(class_loss(model, classes, x, y) + within)
    model.train()
    return total / 2


if __name__ == "__main__":
    sys.exit(main())
