"""torchtitan's HuggingFaceTextDataLoader: documents end to end, cut every T tokens.

Targets do not cross documents. The tokens that do not fill a row yet are part of the state, which
each rank has of its own. Here its tokenizer returns the tokens of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
from torchtitan.hf_datasets import DatasetConfig, text_datasets

from benchmarks.packing_resume_run import BATCH_SIZE, CONTEXT_LENGTH, Batch, Make, main

SETTINGS = {"in the trainer": {"workers": 0}, "one worker": {"workers": 1}}
_NAME = "tokens of a file"


class TextLoader:
    """One rank."""

    def __init__(self, path: Path, rank: int, world_size: int, state: Any, workers: int) -> None:
        """Begin, or go on from a state."""
        config = text_datasets.HuggingFaceTextDataLoader.Config(
            dataset=_NAME, dataset_path=str(path), infinite=False, num_workers=workers
        )
        self._loader = text_datasets.HuggingFaceTextDataLoader(
            config,
            dp_world_size=world_size,
            dp_rank=rank,
            tokenizer=_NoTokenizer(),
            seq_len=CONTEXT_LENGTH,
            local_batch_size=BATCH_SIZE,
        )
        if state:
            self._loader.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches; the last one may be smaller."""
        for inputs, labels in self._loader:
            yield inputs["input"], labels

    def state_dict(self) -> Any:
        """Return the state of this rank."""
        return self._loader.state_dict()


class _NoTokenizer:
    def encode(self, tokens: list[int], **_: bool) -> list[int]:
        return tokens


def _tokens_of(sample: dict[str, list[int]]) -> list[int]:
    return sample["tokens"]


def _streamed(path: str) -> datasets.IterableDataset:
    return datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)


@contextmanager
def loaders(folder: Path, *, workers: int) -> Iterator[Make]:
    """Yield what makes loaders."""
    text_datasets.DATASETS[_NAME] = DatasetConfig(
        path="", loader=_streamed, sample_processor=_tokens_of
    )
    yield lambda rank, world_size, state: TextLoader(
        folder / "corpus.parquet", rank, world_size, state, workers
    )


if __name__ == "__main__":
    main(loaders, SETTINGS)
