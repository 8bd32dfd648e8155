"""Real text, from characters to a trained model and back to characters."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from client import RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.commands import run
from tests.support.offline import received_rows

# Runs a module as `python -m` does, on a machine where torch cannot be imported.
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None
module, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""

Halves = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The training example as a module."""
    import importlib.util

    path = ROOT / "examples" / "train_tinyshakespeare.py"
    spec = importlib.util.spec_from_file_location("train_tinyshakespeare", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # As when the example is run: the module that examples share is beside it.
        patch.syspath_prepend(path.parent)
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def halves(example: ModuleType, shared_data: Path) -> Halves:
    """Training and validation tokens of tiny Shakespeare."""
    found: Halves = example.tokenize_halves(shared_data)
    return found


def test_tiny_shakespeare_has_the_counts_that_nanogpt_publishes(halves: Halves) -> None:
    """The same text and the same tokenizer."""
    train, validation = halves

    assert (len(train), len(validation)) == (301_966, 36_059)


@pytest.mark.parametrize("order", ["random", "shuffled", "sequential"])
def test_served_rows_decode_to_passages_of_the_text(
    halves: Halves, shared_data: Path, serve: Serve, write_tokens: WriteTokens, order: str
) -> None:
    """The only proof that a person believes."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(shared_data / "gpt2-tokenizer.json"))
    text = (shared_data / "tinyshakespeare.txt").read_text(encoding="utf-8")
    server = serve("--data", write_tokens(halves[0]), "--vocab-size", "50257")

    with RemoteBatches(server.address, 8, 128, order=order, num_batches=5) as feed:
        rows = received_rows(feed)

    passages = [tokenizer.decode(row.tolist()) for row in rows]
    assert all(len(passage) > 100 for passage in passages)
    assert [passage for passage in passages if passage not in text] == []


def test_describe_and_show_work_without_torch(
    halves: Halves, shared_data: Path, serve: Serve, write_tokens: WriteTokens
) -> None:
    """The machine that holds the data may not have it."""
    server = serve("--data", write_tokens(halves[0]))
    tokenizer = shared_data / "gpt2-tokenizer.json"

    described = run("-c", WITHOUT_TORCH, "client", "describe", server.address)
    shown = run(
        "-c", WITHOUT_TORCH, "client", "show", server.address,
        "--order", "sequential", "--batch-size", "1", "--tokenizer", tokenizer,
    )  # fmt: skip

    assert "301,966 uint16" in described
    assert shown.startswith("sample 0: 'First Citizen:\\nBefore we proceed any further, hear me")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        pytest.param(["--max-steps=30"], 300, marks=pytest.mark.timeout(400)),
        pytest.param(
            ["--stop-below=5.0"], 900, marks=[pytest.mark.proof, pytest.mark.timeout(1000)]
        ),
    ],
)
def test_a_small_gpt_learns_from_the_feed(
    shared_data: Path, words: list[str], seconds: int
) -> None:
    """The tokens arrive in an order and a shape from which a model learns more than frequencies."""
    printed = run(
        ROOT / "examples" / "train_tinyshakespeare.py", "--data-folder", shared_data,
        "--max-seconds", str(seconds), *words, seconds=seconds + 90,
    )  # fmt: skip

    loss, entropy = map(float, re.findall(r"loss (\S+), unigram entropy (\S+)", printed)[-1])
    assert loss < (5.0 if "--stop-below=5.0" in words else 6.4) < entropy
