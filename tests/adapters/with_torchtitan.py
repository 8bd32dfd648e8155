"""torchtitan's real Trainer and checkpoints on a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.conftest import serving
from tests.support.packed_corpora import Corpus, write_corpus

T, BATCH_SIZE, SEED = 16, 2, 3
ORDER = ("packed", None)
LENGTHS = [(5, 30, 11, 3, 9, 4, 21, 40, 6, 17, 12, 8), (60, 20, 8, 17, 40, 35, 9, 14, 5, 50)]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"), LENGTHS)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> dict[str, Any]:
    """What was written by tests/adapters/training/torchtitan.py, by name."""
    folder = tmp_path_factory.mktemp("torchtitan")
    with serving(folder) as serve:
        server = serve(*corpus.words)
        words = ["-m", "tests.adapters.training.torchtitan", str(folder), server.address]
        # Flex attention is not compiled for a CPU.
        environ = os.environ | {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
        done = subprocess.run(
            [sys.executable, *words],
            env=environ,
            timeout=850,
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def of_batches(batches: list[Any]) -> tuple[list[list[int]], list[list[int]]]:
    """x and y of the rows of batches."""
    return [x for xs, _ in batches for x in xs], [y for _, ys in batches for y in ys]


def test_a_run_resumes_at_the_next_row_of_the_stream(found: dict[str, Any], corpus: Corpus) -> None:
    """Rows are those of documents, computed from the files alone."""
    first, second = found["first"]["rows"], found["second"]["rows"]
    assert (len(first), len(second)) == (3, 2)
    assert of_batches(first + second) == corpus.expected(ORDER, T, SEED, range(10))


@pytest.mark.parametrize("name", ["first", "second"])
def test_the_loss_is_that_of_a_plain_forward(found: dict[str, Any], name: str) -> None:
    """Targets are shifted once, and those that count are counted."""
    np.testing.assert_allclose(found[name]["losses"], found[name]["plain"], rtol=1e-4)


def test_documents_are_isolated(found: dict[str, Any]) -> None:
    """Logits of a document in a row are those of the document alone."""
    assert found["second"]["isolation_error"] < 1e-5


def test_a_checkpoint_resumes_on_two_ranks_and_on_one_again(
    found: dict[str, Any], corpus: Corpus
) -> None:
    """torchtitan's own loaders refuse another data-parallel degree."""
    assert of_batches(found["one-0"]) == corpus.expected(ORDER, T, SEED, range(4))
    for rank in range(2):
        samples = [begin + 2 * rank + row for begin in (4, 8) for row in range(2)]
        assert of_batches(found[f"two-{rank}"]) == corpus.expected(ORDER, T, SEED, samples)
    assert of_batches(found["again-0"]) == corpus.expected(ORDER, T, SEED, range(12, 16))
