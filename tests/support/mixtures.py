"""Corpora of a mixture whose tokens tell their source, and the rows that they have to give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from client import Mixture
from tests.conftest import Serve, Server, WriteTokens
from tests.support import reference

T, B = 8, 4
WEIGHTS = {"web": 0.7, "code": 0.2, "math": 0.1}
STAGES = [
    {"first_sample": 0, "weights": WEIGHTS},
    {"first_tokens": 137 * T - 3, "weights": {"code": 1, "math": 2}},
    {"first_sample": 230, "weights": {"web": 3, "math": 0, "news": 2}},
]
ORDER_OF = {"web": "shuffled-1", "code": "random-1", "math": "sequential-1", "news": "shuffled-1"}
SEED_OF = {"web": 5, "code": 9, "math": 9, "news": 9}
NAMES = list(ORDER_OF)
OPTIONS = {
    "sources": {"web": {"seed": 5}, "code": {"order": "random"}, "math": {"order": "sequential"}},
    "order": "shuffled",
    "seed": 9,
}
MIXTURE = Mixture(stages=STAGES, **OPTIONS)
ASKED = [(0, [70, 20, 10, 0]), (137, [0, 1, 2, 0]), (230, [3, 0, 0, 2])]


def write_sources(write_tokens: WriteTokens) -> dict[str, list[Path]]:
    """Write the corpora; "news" has two files."""
    random = np.random.default_rng(3)
    return {
        name: [
            write_tokens(
                random.integers(10_000 * n + 1, 10_000 * n + 10_000, 400), f"{name}{i}.bin"
            )
            for i in range(2 if name == "news" else 1)
        ]
        for n, name in enumerate(NAMES)
    }


def offline(
    paths: dict[str, list[Path]],
    samples: Sequence[int],
    asked: list[tuple[int, list[int]]] = ASKED,
    token_bytes: dict[str, int] | None = None,
) -> np.ndarray:
    """The rows of samples, by the second implementation."""
    rows = []
    for sample in samples:
        source, own = reference.mixture_place(9, asked, sample)
        name = NAMES[source]
        width = (token_bytes or {}).get(name, 2)
        files = [path.read_bytes() for path in paths[name]]
        (row,) = reference.rows(files, width, ORDER_OF[name], SEED_OF[name], T, [own])
        rows.append(np.frombuffer(row, f"<u{width}").astype(np.int64))
    return np.stack(rows)


def served(serve: Serve, paths: dict[str, list[Path]], *options: str, port: int = 0) -> Server:
    """Serve all corpora."""
    data: list[str | Path] = []
    for name, files in paths.items():
        data += ["--data", f"{name}={files[0]}", *files[1:]]
    return serve(*data, *options, port=port)


def local(paths: dict[str, list[Path]]) -> str:
    """Return the target of a feed that reads them without a server."""
    return "file:" + ",".join(f"{name}={','.join(map(str, each))}" for name, each in paths.items())
