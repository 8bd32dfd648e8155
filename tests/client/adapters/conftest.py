"""Frameworks that are not installed here, as packages of a few lines in their place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

T = 8
Documents = tuple[int, ...]
LENGTHS: Documents = (5, 11, 3, 8, 6, 20, 4, 7)
"""Of documents in the corpus, with the end token of each, which is 0."""

Adapter = Callable[[str, Mapping[str, str]], ModuleType]


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Adapter]:
    """Import an adapter: adapter("torchtitan", {"torchtitan/trainer.py": "..."}), with the files of
    stand-ins for what it imports.
    """
    folder = tmp_path / "stand-ins"
    names: set[str] = set()

    def imported(name: str, files: Mapping[str, str]) -> ModuleType:
        for path, text in files.items():
            names.add(Path(path).parts[0].removesuffix(".py"))
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.syspath_prepend(folder)
        _forget(names)
        return import_module(f"tokenfeed.client.adapters.{name}")

    yield imported
    _forget(names)


def _forget(packages: set[str]) -> None:
    """Remove stand-ins, and adapters, from what is imported."""
    for name in list(sys.modules):
        if name.partition(".")[0] in packages or name.startswith("tokenfeed.client.adapters."):
            del sys.modules[name]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """The target of a corpus of documents, which end with 0; all other tokens tell their place."""
    tokens = np.arange(1, sum(LENGTHS) + 1)
    tokens[np.cumsum(LENGTHS) - 1] = 0
    path = tmp_path / "train.bin"
    tokens.astype("<u2").tofile(path)
    return f"file:{path}?document-end-token=0"
