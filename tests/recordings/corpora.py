"""The corpora of the recordings. Their bytes follow from formulas, and never change: a state names
them by their fingerprints.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.packed_corpora import write_corpus
from tests.support.redacting import redact

T = 15
"""Context length of rows but those of the dataset `long`."""
LIST = "0849ca7d50785b50716448bdfcae6090595ef9728f52315d9bc36fa21fa8dfdf"
"""Hash of the list of redactions of the dataset `web`."""
_DOCUMENTS = ("web", "code", "chat")
_BLOCK = 1 << 19


def write_corpora(folder: Path) -> dict[str, list[Path]]:
    """Write each dataset, and return its files by its name: `web`, `code` and `chat` of documents,
    of which `web` has a list of redactions and `chat` a loss mask; and `long`, of 17 blocks of the
    order "blocks".
    """
    found = {}
    for number, name in enumerate(_DOCUMENTS):
        lengths = [[(7 * n + 13 * file + number) % 41 + 1 for n in range(60)] for file in range(2)]
        masked = frozenset(range(20_000, 30_000, 3)) if name == "chat" else frozenset()
        first = 1 + 10_000 * number
        found[name] = [
            *write_corpus(folder / name, lengths, name, first=first, masked=masked).paths
        ]
    assert redact(found["web"], (0, 100, 400), (1, 7, 300), fill=3) == LIST
    places = np.arange(17 * _BLOCK + 1, dtype=np.uint64)
    found["long"] = [folder / "long.bin"]
    (places * 2_654_435_761 >> 16).astype("<u2").tofile(found["long"][0])
    return found


def list_of(files: dict[str, list[Path]]) -> Path:
    """Return the list of redactions of `web`, which lies beside its files."""
    (path,) = files["web"][0].parent.glob("*.tokenfeed-redactions.jsonl")
    return path


def words(files: dict[str, list[Path]]) -> list[str | Path]:
    """Return the arguments of a server of all datasets."""
    return [
        word
        for name, (first, *others) in files.items()
        for word in ("--data", f"{name}={first}", *others)
    ]


def target(files: dict[str, list[Path]]) -> str:
    """Return the target that reads the same datasets without a server."""
    return "file:" + ",".join(
        f"{name}={','.join(map(str, paths))}" for name, paths in files.items()
    )
