"""Corpora in an object store give the rows of the same files on a disk: in SeaweedFS."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import NumpyBatches, RemoteBatches
from tests.conftest import Serve, serving
from tests.end_to_end.corpora.test_documents_and_masks import FORMATS, B, Corpus, T, write_corpus
from tests.support.commands import run
from tests.support.seaweed import BUCKET, Seaweed, seaweed
from tokenfeed.errors import CorpusChanged, InvalidCorpus
from tokenfeed.server.storage.documents import starts_builder
from tokenfeed.server.storage.objects import object_bytes
from tokenfeed.tools import inspect, verify
from tokenfeed.tools.__main__ import main

ORDERS = ["sequential", "shuffled", "random", "packed", "padded"]
BATCHES = 40
PREFIX = f"s3://{BUCKET}"


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture(scope="module")
def corpora(weed: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    """Of each format, in folders and in the store."""
    folder = tmp_path_factory.mktemp("corpora")
    found = {form: write_corpus(folder / form, form) for form in FORMATS}
    found["wide"] = write_corpus(folder / "wide", "datatrove", "wide", first=20_000)
    weed.put_folder(folder, "c")
    for each in found.values():
        assert str(folder) in each.target
    return found


@pytest.fixture
def serve(weed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(tmp_path) as start:
        yield start


def remote(corpus: Corpus, text: str) -> str:
    """A target or a word of a corpus on a disk, as one in the store."""
    folder = Path(corpus.target.partition("=")[2].partition(",")[0]).parents[1]
    return text.replace(str(folder), f"{PREFIX}/c")


def parts(batch: Any) -> list[np.ndarray]:
    return [part.numpy().copy() for part in (*batch, batch.positions, batch.sample)]


def rows_of(target: str | list[str], **options: Any) -> list[list[np.ndarray]]:
    given = {"seed": 5, "num_batches": BATCHES, "rank": 0, "world_size": 1} | options
    with RemoteBatches(target, B, T, **given) as feed:
        return [parts(batch) for batch in feed.batches()]


def require_same(found: list[list[np.ndarray]], expected: list[list[np.ndarray]]) -> None:
    assert len(found) == len(expected) == BATCHES
    for one, other in zip(found, expected, strict=True):
        assert all(map(np.array_equal, one, other))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_corpus_in_a_store_has_the_rows_of_the_one_on_disk(
    corpora: dict[str, Corpus], serve: Serve, form: str, order: str
) -> None:
    """With its masks and documents, and the rows that are made of these."""
    target = corpora[form].target
    expected = rows_of(target, order=order)
    require_same(rows_of(remote(corpora[form], target), order=order), expected)


@pytest.mark.parametrize("form", FORMATS)
def test_a_server_serves_a_store(corpora: dict[str, Corpus], serve: Serve, form: str) -> None:
    """To ranks of any world size; what it has opened before it opens with fewer GETs."""
    corpus = corpora[form]
    address = serve(*[remote(corpus, word) for word in corpus.words]).address
    for rank in range(2):
        ranks = {"rank": rank, "world_size": 2, "order": "shuffled"}
        require_same(rows_of(address, **ranks), rows_of(corpus.target, **ranks))


def test_a_server_tells_its_operators_what_it_asks_a_store_for(
    corpora: dict[str, Corpus], serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request is on the bill."""
    corpus = corpora["datatrove"]
    address = serve(*[remote(corpus, word) for word in corpus.words]).address
    rows_of(address, order="shuffled")

    assert main(["top", address, "--json"]) == 0

    told = json.loads(capsys.readouterr().out)["object_requests"]
    requests = {each["reason"]: (each["requests"], each["bytes"]) for each in told}
    assert requests.keys() >= {"row", "index"}
    assert requests["row"][0] > 0
    assert requests["row"][1] > 0


def test_a_mixture_has_a_local_and_a_remote_source(
    corpora: dict[str, Corpus], serve: Serve
) -> None:
    """Most corpora are somewhere else while one is being made here."""
    local, wide = corpora["datatrove"].target, corpora["wide"].target
    options: dict[str, Any] = {"mixture": {"train": 2, "wide": 1}}
    both = [local, remote(corpora["wide"], wide)]
    require_same(rows_of(both, **options), rows_of([local, wide], **options))

    words = [*corpora["datatrove"].words]
    words += [remote(corpora["wide"], word) for word in corpora["wide"].words]
    require_same(rows_of(serve(*words).address, **options), rows_of([local, wide], **options))


@pytest.mark.parametrize("order", ["shuffled", "packed"])
def test_a_state_goes_from_a_store_to_a_server_to_files(
    corpora: dict[str, Corpus], serve: Serve, order: str
) -> None:
    """A run moves from a laptop to a cluster and back, and its rows go on."""
    corpus = corpora["datatrove"]
    in_store = remote(corpus, corpus.target).removeprefix("file:").partition("=")[2]
    address = serve(*[remote(corpus, word) for word in corpus.words]).address
    options: dict[str, Any] = {"seed": 5, "order": order, "rank": 0, "world_size": 1}
    expected = rows_of(corpus.target, order=order)
    found, state = [], None
    for target in (in_store, address, corpus.target, in_store):
        with RemoteBatches(target, B, T, **options) as feed:
            if state is not None:
                feed.load_state_dict(state)
            found += [parts(each) for each in islice(feed.batches(), BATCHES // 4)]
            state = feed.state_dict()
    require_same(found, expected)


def test_names_are_sorted_and_found_by_patterns(corpora: dict[str, Corpus], serve: Serve) -> None:
    """An identity depends on the order of the files; stores list in any."""
    folder = f"{PREFIX}/c/olmo"
    feeds = {}
    for target in (f"{folder}/*.npy", f"{PREFIX}/c/ol*/[01].npy", f"{folder}/0.npy,{folder}/1.npy"):
        with NumpyBatches(f"{target}?dtype=uint16", B, T, rank=0, world_size=1) as feed:
            feeds[target] = next(feed)[0].tolist()
    assert len(set(map(str, feeds.values()))) == 1


def test_commands_read_a_store(
    corpora: dict[str, Corpus], serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they read files: what it is, whether it is intact, and rows that are made beforehand."""
    path = f"{PREFIX}/c/megatron/0.bin"
    local = corpora["megatron"].target.partition("=")[2].partition(",")[0]
    shown = []
    for each in (path, local):
        assert inspect.main([each]) == 0
        shown.append(capsys.readouterr().out)
    assert "read by: s3 (exact GETs)" in shown[0]
    fingerprints = [[line for line in text.splitlines() if "fingerprint" in line] for text in shown]
    assert fingerprints[0] == fingerprints[1] != []
    assert verify.main([path]) == 0
    assert "stored in " in capsys.readouterr().out
    run("-m", "tokenfeed", "pack", path, "--context-length", str(T), "--workers", "2")
    assert list((tmp_path / "cache").rglob("*tokenfeed*")), "what is made lies on this machine"


def test_a_large_corpus_is_not_downloaded_for_its_documents(
    corpora: dict[str, Corpus], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would cost hours and money, for who only wanted a batch."""
    monkeypatch.setattr(starts_builder, "BACKGROUND_BYTES_MIN", 0)
    corpus = corpora["delimiter"]
    with pytest.raises(InvalidCorpus, match="run tokenfeed pack on it once, with"):
        rows_of(remote(corpus, corpus.target))


def test_a_replaced_object_is_data_loss(
    weed: Seaweed,
    serve: Serve,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a real store too: its rows would be those of another corpus."""
    monkeypatch.setattr(object_bytes, "CHANGED_SECONDS", 0.5)
    folder = tmp_path / "changing"
    folder.mkdir()
    np.arange(60_000, dtype="<u2").repeat(20).tofile(folder / "a.bin")
    weed.put_folder(folder, "changing")
    caplog.set_level(logging.ERROR)
    target = f"{PREFIX}/changing/a.bin?dtype=uint16"
    ahead = {"prefetch_bytes": 1 << 16, "rank": 0, "world_size": 1}
    with NumpyBatches(target, B, T, **ahead, num_batches=5000) as feed:
        next(feed)
        np.arange(60_000, dtype="<u2").repeat(20)[::-1].tofile(folder / "a.bin")
        weed.put_folder(folder, "changing")
        with pytest.raises(CorpusChanged):
            list(feed)
    assert "a.bin: has been replaced" in caplog.text
