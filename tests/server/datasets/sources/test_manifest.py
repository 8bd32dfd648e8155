"""A manifest's record of its shards: the fingerprint is compared, the digest is trusted."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets.dataset import Dataset
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import parse_datasets
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.stream.identity import COMPLETE_BYTES_MAX

DIGEST = bytes(range(32))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What an ingest of more tokens than are read at every start leaves, nearly all of it holes."""
    tokens = COMPLETE_BYTES_MAX // 2 + 1000
    shard = tmp_path / "train" / "000000.ds"
    shard.parent.mkdir()
    with shard.open("wb") as file:
        file.truncate(2 * tokens)
        file.seek(2 * tokens - 2)
        file.write(b"\1\1")
    shard.with_suffix(".ds.metadata").write_text(f"bytes|2\n{tokens}\n")
    alone = opened(shard)
    split = {
        "fingerprint": alone.fingerprint.hex(),
        "digest": DIGEST.hex(),
        "shards": [{"name": shard.name, "tokens": tokens}],
    }
    alone.close()
    manifest = {"version": 1, "job": {}, "splits": {"train": split}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def opened(path: Path) -> Dataset:
    (source,) = parse_datasets([str(path)])
    return open_dataset(source, FormatOptions(), TokenChecks())


def test_a_corpus_that_was_ingested_may_be_taken_as_rows(folder: Path) -> None:
    """Its fingerprint is another one then, and its shards are those of the manifest."""
    (source,) = parse_datasets([str(folder)])
    tokens = opened(folder).store.shape.token_count
    options = FormatOptions(row_tokens=tokens // 8)

    with closing(open_dataset(source, options, TokenChecks())) as dataset:
        assert dataset.describe().row_tokens == tokens // 8
        assert dataset.digest == DIGEST


def test_its_digest_is_that_of_a_corpus_too_large_to_be_read_at_every_start(folder: Path) -> None:
    """So servers of ingested text are compared by all of it, without a verify."""
    dataset = opened(folder)
    alone = opened(folder / "train")

    assert dataset.digest == DIGEST
    assert alone.digest == b""
    assert dataset.fingerprint == alone.fingerprint
    for one in (dataset, alone):
        one.close()


@pytest.mark.parametrize("name", ["fingerprint", "digest"])
def test_a_hash_of_another_length_is_refused(folder: Path, name: str) -> None:
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["splits"]["train"][name] = "ab"
    manifest.write_text(json.dumps(content))

    with pytest.raises(InvalidCorpus) as caught:
        parse_datasets([str(folder)])

    assert caught.value.problem == "is not a manifest of tokenfeed, or is damaged"


@pytest.mark.parametrize("size_bytes", [1 << 20, COMPLETE_BYTES_MAX + 4000])
def test_shards_of_another_length_are_refused(folder: Path, size_bytes: int) -> None:
    shard = folder / "train" / "000000.ds"
    os.truncate(shard, size_bytes)
    shard.with_suffix(".ds.metadata").unlink()

    with pytest.raises(InvalidCorpus) as caught:
        opened(folder)

    assert caught.value.problem.startswith("does not match its manifest")
