"""Corpora in an object store give the rows of the same files on a disk: in SeaweedFS."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

from client import NumpyBatches, RemoteBatches
from tests.conftest import ROOT, Serve
from tests.end_to_end.corpora.test_documents_and_masks import FORMATS, B, Corpus, T, write_corpus
from tests.server.ingest.corpus import documents, tree, write_jsonl, write_parquet
from tests.server.ingest.running import ingest, ingested
from tests.support.commands import run
from tests.support.seaweed import BUCKET, Seaweed, seaweed
from tokenfeed.errors import CorpusChanged, InvalidCorpus
from tokenfeed.server.datasets import shared_scan
from tokenfeed.server.storage.documents import document_search
from tokenfeed.server.storage.objects import object_bytes
from tokenfeed.server.storage.objects.counts import REQUESTS
from tokenfeed.server.storage.objects.slab import size_of
from tokenfeed.tools import inspect, verify
from tokenfeed.tools.__main__ import main

pytestmark = pytest.mark.usefixtures("own_cache")
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


def require_opened_without_get(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open files of a store twice; the second time only names are asked for."""
    monkeypatch.setattr(shared_scan, "SETTLED_SECONDS", -2.0)  # whenever they were uploaded
    counts = []
    for _ in range(3):
        before = REQUESTS.by_reason
        with NumpyBatches(target, B, T, seed=1, order="shuffled", rank=0, world_size=1) as feed:
            assert feed.batches_per_epoch
        now = REQUESTS.by_reason
        # Of names no bytes are counted.
        index_bytes = now["index"].size_bytes - before["index"].size_bytes
        counts.append((index_bytes > 0, now["block"].gets > before["block"].gets))
    assert counts == [(True, True), (False, False), (False, False)]


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_opening_makes_no_get_of_an_object(
    corpora: dict[str, Corpus], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of a store name the ETags and times of its answers to GETs, each in its own way."""
    require_opened_without_get(remote(corpora[form], corpora[form].target), monkeypatch)


@pytest.mark.parametrize("form", FORMATS)
def test_a_server_serves_a_store(
    corpora: dict[str, Corpus], serve: Serve, tmp_path: Path, form: str
) -> None:
    """To ranks of any world size, with its cache; what it has opened it opens with fewer GETs."""
    corpus = corpora[form]
    cache = ["--object-cache", str(tmp_path), "--object-cache-bytes", str(size_of(64))]
    address = serve(*[remote(corpus, word) for word in corpus.words], *cache).address
    for rank in range(2):
        ranks = {"rank": rank, "world_size": 2, "order": "shuffled"}
        require_same(rows_of(address, **ranks), rows_of(corpus.target, **ranks))


def test_inspect_shows_the_loss_masks_of_a_store(
    corpora: dict[str, Corpus], capsys: pytest.CaptureFixture[str]
) -> None:
    """As many as there are files, although none of them is looked at again."""
    corpus = corpora["datatrove"]
    words = [remote(corpus, word).removeprefix("train=") for word in corpus.words[1:]]
    assert inspect.main(words) == 0
    said = capsys.readouterr().out
    assert f"  loss masks: of {len(words)} file(s), the first is {words[0]}.loss\n" in said


def test_a_server_tells_its_operators_what_it_asks_a_store_for(
    corpora: dict[str, Corpus], serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request is on the bill, and whether its cache helps."""
    corpus = corpora["datatrove"]
    cache = ["--object-cache", str(tmp_path), "--object-cache-bytes", str(size_of(64))]
    address = serve(*[remote(corpus, word) for word in corpus.words], *cache).address
    rows_of(address, order="shuffled")

    assert main(["top", address, "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["object_cache"]["size_bytes"] == size_of(64)
    requests = {
        each["reason"]: (each["requests"], each["bytes"]) for each in told["object_requests"]
    }
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
    monkeypatch.setattr(document_search, "BACKGROUND_BYTES_MIN", 0)
    corpus = corpora["delimiter"]
    with pytest.raises(InvalidCorpus, match="run tokenfeed pack on it once, with"):
        rows_of(remote(corpus, corpus.target))


def require_data_loss(
    prefix: str,
    put_folder: Callable[[Path, str], object],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replace an object that is read.  prefix: of the store's paths."""
    monkeypatch.setattr(object_bytes, "CHANGED_SECONDS", 0.5)
    tokens = np.arange(60_000, dtype="<u2").repeat(20)
    folder.mkdir()
    tokens.tofile(folder / "a.bin")
    put_folder(folder, "changing")
    caplog.set_level(logging.ERROR)
    target = f"{prefix}/changing/a.bin?dtype=uint16"
    ahead = {"prefetch_bytes": 1 << 16, "rank": 0, "world_size": 1, "num_batches": 5000}
    with NumpyBatches(target, B, T, **ahead) as feed:  # type: ignore[arg-type]
        next(feed)
        tokens[::-1].tofile(folder / "a.bin")
        put_folder(folder, "changing")
        with pytest.raises(CorpusChanged):
            list(feed)
    assert "a.bin: has been re" in caplog.text


def test_a_replaced_object_is_data_loss(
    weed: Seaweed,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a real store too: its rows would be those of another corpus."""
    require_data_loss(PREFIX, weed.put_folder, tmp_path / "changing", caplog, monkeypatch)


@pytest.fixture(scope="module")
def texts(weed: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of three kinds, in a folder and in the store."""
    folder = tmp_path_factory.mktemp("texts")
    pages = documents(900)
    write_parquet(folder / "a.parquet", {"text": pages[:400]})
    write_jsonl(folder / "b.jsonl.gz", ({"text": text} for text in pages[400:]))
    (folder / "c.txt").write_text("\n".join(documents(300, seed=5)))
    weed.put_folder(folder, "texts")
    return folder


def words(texts: Path | str, out: Path | str) -> list[str]:
    """Arguments of an ingest into several shards of two splits."""
    given = ["--tokenizer", "bytes", "--append-token", "<|endoftext|>", "--workers", "1"]
    return [str(texts), "--out", str(out), *given, "--val-fraction", "0.2", "--shard-tokens=50000"]


def stored(weed: Seaweed, folder: str) -> dict[str, bytes]:
    """The objects of a folder."""
    keys = [each["path"] for part in obstore.list(weed.store, f"{folder}/") for each in part]
    return {
        key.removeprefix(f"{folder}/"): bytes(obstore.get(weed.store, key).bytes()) for key in keys
    }


def without_manifest(tree: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in tree.items() if name != "manifest.json"}


def test_text_of_a_store_becomes_shards_in_a_store_as_it_does_on_a_disk(
    weed: Seaweed, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has to be downloaded by hand, and nothing stays on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ingested(*words(texts, tmp_path / "local"))
    out = f"{PREFIX}/made"
    said = ingested(*words(f"{PREFIX}/texts", out))
    made, expected = stored(weed, "made"), tree(tmp_path / "local")
    assert f"{out}/train" in said
    assert without_manifest(made) == without_manifest(expected)
    facts = [json.loads(each["manifest.json"]) for each in (made, expected)]
    assert facts[0]["splits"] == facts[1]["splits"]
    hashes = [[each["sha256"] for each in one["sources"]] for one in facts]
    assert hashes[0] == hashes[1]
    assert not list((tmp_path / "cache").rglob("*.ds"))

    with NumpyBatches(f"{out}/", 4, 64, dataset="train", num_batches=5) as feed:
        assert len(list(feed)) == 5
    assert "tokens/s" in said
    assert "tokens/s" not in ingested(*words(f"{PREFIX}/texts", out)), "it was done already"
    other = ingest(*words(f"{PREFIX}/texts", out), "--seed", "3", "--shuffle-buffer", "9")
    assert other.returncode == 1
    assert "contains an ingest with other shuffle_buffer" in other.stderr
    assert stored(weed, "made") == made


DYING = """
import os, signal, sys
from tokenfeed.server.ingest.__main__ import main
from tokenfeed.server.storage.objects.buckets import Bucket
put, moment, count = Bucket.put_new, int(sys.argv[1]), 0
def put_new(self, key, content):
    global count
    count += 1
    own = count
    if own == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    found = put(self, key, content)
    if own == -moment:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
Bucket.put_new = put_new
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.proof)])
def test_an_upload_that_was_killed_goes_on_and_makes_the_same_objects(
    weed: Seaweed, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """Before a request, behind one whose answer nobody noted, and before the manifest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ingested(*words(texts, tmp_path / "local"))
    expected = without_manifest(tree(tmp_path / "local"))
    numbers = [1 + number % len(expected) for number in range(kills - 1)]
    moments = [len(expected) + 1, *(n * (-1) ** n for n in numbers)]
    for number, moment in enumerate(moments):
        folder = f"killed-{kills}-{number}"
        given = words(f"{PREFIX}/texts", f"{PREFIX}/{folder}")
        command = [sys.executable, "-c", DYING, str(moment), *given]
        died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert died.returncode == -signal.SIGKILL, died.stderr
        there = stored(weed, folder)
        assert "manifest.json" not in there
        assert there.items() <= expected.items()
        ingested(*given)
        made = stored(weed, folder)
        assert without_manifest(made) == expected
        assert "manifest.json" in made


def test_the_folder_for_the_work_keeps_what_else_is_there(
    weed: Seaweed, texts: Path, tmp_path: Path
) -> None:
    """It may be a disk for everything; and an ingest that is done looks at what is in the store."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "thesis.txt").write_text("mine")
    given = [*words(f"{PREFIX}/texts", f"{PREFIX}/worked"), "--work-dir", str(scratch)]
    for _ in range(2):
        ingested(*given)
        assert [path.name for path in scratch.iterdir()] == ["thesis.txt"]
    obstore.delete(weed.store, "worked/train/000001.ds.index")
    done = ingest(*given)
    assert done.returncode == 1
    assert "worked/train/000001.ds.index: is damaged" in done.stderr


def test_objects_of_somebody_else_are_left_alone(
    weed: Seaweed, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two teams may choose the same folder of a bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    obstore.put(weed.store, "taken/train/000000.ds", b"of somebody else")
    done = ingest(*words(f"{PREFIX}/texts", f"{PREFIX}/taken"))
    assert done.returncode == 1
    assert f"{PREFIX}/taken/train/000000.ds: is there already" in done.stderr
    there = stored(weed, "taken")
    assert there["train/000000.ds"] == b"of somebody else"
    assert "manifest.json" not in there
