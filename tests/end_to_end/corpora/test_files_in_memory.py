"""Files behind another door give the same rows: in memory, each of whose reads takes its time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from client import RemoteBatches
from tests.end_to_end.corpora.test_documents_and_masks import FORMATS, B, Corpus, T, write_corpus
from tests.server.rpc.test_service import serving
from tests.support.memory_files import MemoryDoor, files_in_memory
from tests.support.redacting import redact
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.options import PlaneOptions
from tokenfeed.server.datasets.redactions.list_file import SUFFIX
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.formats import FormatOptions

READ_SECONDS = 0.001
BATCHES = 40


@pytest.fixture(params=FORMATS)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    return write_corpus(tmp_path / "corpus", request.param)


@pytest.fixture
def memory(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryDoor]:
    """The files of the corpus, and a cache folder of its own for what is made of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    files = {f"corpus/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with files_in_memory(files, READ_SECONDS) as door:
        yield door


@pytest.mark.parametrize("order", ["sequential", "shuffled", "random", "packed", "padded"])
def test_a_corpus_in_memory_has_the_rows_of_the_one_on_disk(
    corpus: Corpus, memory: MemoryDoor, tmp_path: Path, order: str
) -> None:
    """With its masks and documents, and the rows that are made of these."""
    options = {"seed": 5, "order": order, "num_batches": BATCHES, "rank": 0, "world_size": 1}

    def rows_of(target: str) -> list[list[np.ndarray]]:
        with RemoteBatches(target, B, T, **options) as feed:
            return [
                [part.numpy().copy() for part in (*batch, batch.positions, batch.sample)]
                for batch in feed.batches()
            ]

    on_disk = rows_of(corpus.target)
    in_memory = rows_of(corpus.target.replace(str(tmp_path), "memory:/"))

    assert len(in_memory) == BATCHES
    for parts in zip(on_disk, in_memory, strict=True):
        assert all(map(np.array_equal, *parts))
    assert not Path("memory:").exists(), "nothing is written beside files that are elsewhere"


def test_a_server_has_files_in_memory_beside_those_on_disk(
    memory: MemoryDoor, tmp_path: Path
) -> None:
    """In a mixture with tokens that are stored in a wider type, and with some taken out."""
    path, wide = tmp_path / "web.bin", tmp_path / "wide.bin"
    np.arange(10_000, 14_000, dtype="<u2").tofile(path)
    np.arange(5_000, dtype="<i8").tofile(wide)
    list_hash = redact([path], (0, 100, 180), fill=7)
    (listed,) = tmp_path.glob(f".web.bin.*{SUFFIX}")
    memory.files["web.bin"] = path.read_bytes()
    options = {"seed": 3, "mixture": {"web": 2, "wide": 1}, "rank": 0, "world_size": 1}

    def rows_of(target: str) -> list[list[list[int]]]:
        web = open_dataset(
            DatasetSource("web", (target,)),
            FormatOptions(),
            TokenChecks(),
            planes=PlaneOptions(redactions=str(listed)),
        )
        other = open_dataset(
            DatasetSource("wide", (str(wide),)),
            FormatOptions.parse(None, "int64", None),
            TokenChecks(),
        )
        with (
            serving({"web": web, "wide": other}) as peer,
            RemoteBatches(peer.address, B, T, **options) as feed,
        ):
            feed.redact(list_hash, at_sample=0, dataset="web")
            return [next(feed)[0].tolist() for _ in range(BATCHES)]

    in_memory = rows_of("memory://web.bin")

    assert in_memory == rows_of(str(path))
    tokens = {token for batch in in_memory for row in batch for token in row}
    assert tokens & set(range(8, 5_000))
    assert tokens & set(range(10_200, 14_000))
    assert not tokens & set(range(10_100, 10_180))
