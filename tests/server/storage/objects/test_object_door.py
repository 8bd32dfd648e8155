"""Objects are found and opened as files are: names, patterns, formats; and what cannot be."""

from __future__ import annotations

import json
import os
import signal
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trustme

from client import NumpyBatches
from tests.server.storage.formats.fuzz import Seeds, valid_files
from tests.support.object_server import ObjectServer, forget_buckets, object_server
from tests.support.ports import free_port
from tokenfeed.errors import InvalidCorpus
from tokenfeed.server.datasets.sources import parse_datasets, parse_text
from tokenfeed.server.storage.beside import file_facts
from tokenfeed.server.storage.documents.known_documents import index_facts
from tokenfeed.server.storage.door import (
    StorageOptions,
    absolute,
    door_of,
    exists,
    is_folder,
    open_file,
    size_of,
)
from tokenfeed.server.storage.formats import FormatOptions, read_layout
from tokenfeed.server.storage.objects import door, listing, object_bytes
from tokenfeed.server.storage.objects.urls import Url
from tokenfeed.server.storage.store import open_store

NAMES = ("c/b.bin", "c/a.bin", "c/.hidden.bin", "c/deep/er/d.bin", "c/deep/e.bin", "other.bin")


@pytest.fixture
def store() -> Iterator[ObjectServer]:
    with object_server() as found:
        for name in NAMES:
            found.put(f"bucket/{name}", np.arange(500, dtype="<u2").tobytes())
        yield found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/a/b.bin", ("s3", "bucket", "a/b.bin")),
        ("gs://bucket/a//b/./c/", ("gs", "bucket", "a/b/c")),
        ("az://box", ("az", "box", "")),
        ("https://host:8443/a b.bin", ("https", "host:8443", "a b.bin")),
        ("s3://bucket/../../a", ("s3", "bucket", "a")),
    ],
)
def test_a_path_is_a_bucket_and_a_key(path: str, expected: tuple[str, str, str]) -> None:
    """Written as a path of files is."""
    assert Url.parse(path) == expected


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("c/*.bin", {"c/a.bin", "c/b.bin"}),
        ("c/.*.bin", {"c/.hidden.bin"}),
        ("*/[ab].bin", {"c/a.bin", "c/b.bin"}),
        ("c/[!a].bin", {"c/b.bin"}),
        ("c/*", {"c/a.bin", "c/b.bin", "c/deep"}),
        ("c/*/*.bin", {"c/deep/e.bin"}),
        ("**/d.bin", {"c/deep/er/d.bin"}),
        ("c/**/*.bin", {"c/a.bin", "c/b.bin", "c/deep/e.bin", "c/deep/er/d.bin"}),
        ("nothing/*.bin", set()),
    ],
)
def test_a_pattern_finds_what_the_one_of_a_folder_finds(
    store: ObjectServer, tmp_path: Path, pattern: str, names: set[str]
) -> None:
    """Whoever moves a corpus into a bucket changes the beginning of a path, and nothing else."""
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")

    found = door_of("s3://").glob(f"s3://bucket/{pattern}")

    assert sorted(found) == sorted(f"s3://bucket/{name}" for name in names)
    on_disk = door_of("").glob(f"{tmp_path}/{pattern}")
    assert {os.path.relpath(path, tmp_path) for path in on_disk} == names


def test_a_folder_is_what_has_objects_below_it(store: ObjectServer) -> None:
    """Stores have none; and what is not there is no error."""
    store.put("bucket/marked/", b"")
    assert is_folder("s3://bucket/c")
    assert is_folder("s3://bucket")
    assert not is_folder("s3://bucket/c/a.bin")
    assert not exists("s3://bucket/c/missing.bin")
    assert size_of("s3://bucket/c/a.bin") == 1000
    found = {entry.name: entry.is_folder for entry in door_of("s3://").entries("s3://bucket/c")}
    assert found == {"a.bin": False, "b.bin": False, ".hidden.bin": False, "deep": True}
    assert parse_datasets(["s3://bucket/c"])[0].paths == (
        "s3://bucket/c/a.bin",
        "s3://bucket/c/b.bin",
    )
    assert absolute("s3://bucket/c/../c/a.bin") == "s3://bucket/c/a.bin"


def test_a_list_is_asked_for_once(store: ObjectServer) -> None:
    """Whether each of 10,000 objects has an index is one list, not 10,000 requests."""
    for number in range(50):
        assert not exists(f"s3://bucket/c/{number}.idx")
    asked = len(store.requests)
    assert asked == 2 * listing._LOOKS_MAX + 1
    for number in range(50):
        assert exists(f"s3://bucket/c/{'ab'[number % 2]}.bin")
        assert is_folder("s3://bucket/c/deep")
    assert len(store.requests) == asked


def test_one_look_lists_no_folder(store: ObjectServer) -> None:
    """It may have millions of other names: minutes of lists, and gigabytes of names."""
    assert exists("s3://bucket/c/a.bin")
    assert [(each.method, each.key) for each in store.requests] == [("HEAD", "bucket/c/a.bin")]
    assert is_folder("s3://bucket/c/deep")
    assert not exists("s3://bucket/c/dee")


def test_a_folder_with_too_many_names_is_looked_at_one_by_one(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in it, what is asked for is found, and few names are kept."""
    monkeypatch.setattr(listing, "_PAGES_MAX", 2)
    monkeypatch.setattr(listing, "_LOOKS_MAX", 0)
    for number in range(2500):
        store.put(f"bucket/c/many/{number}", b"1")
    for _ in range(2):
        assert exists("s3://bucket/c/many/2499")
        assert is_folder("s3://bucket/c/many")
        assert not exists("s3://bucket/c/many/2500")
    # Folders of c, too, since those of many are below it.
    assert sum(each.method == "GET" and "/c/" not in each.key for each in store.requests) <= 4
    monkeypatch.setattr(listing, "_NAMES_MAX", 1000)
    assert len(door_of("s3://").entries("s3://bucket/c/many")) == 2500
    assert sum(each.name_count for each in listing.LISTING._folders.values()) <= 1000


def test_many_threads_list_a_folder_once(store: ObjectServer) -> None:
    """Those that open 10,000 objects look at the same time."""
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(exists, [f"s3://bucket/c/{number}.idx" for number in range(200)]))
    lists = [each for each in store.requests if each.prefix == "c/"]
    assert len(lists) == 1


@pytest.mark.parametrize("seeds", valid_files(), ids=lambda seeds: seeds.name)
def test_every_format_has_the_layout_of_its_file(
    store: ObjectServer, tmp_path: Path, seeds: Seeds
) -> None:
    """With the indices beside it. Formats know nothing of where files are."""
    for suffix, content in seeds.files.items():
        name = suffix.removeprefix("/") if suffix.startswith("/") else seeds.name + suffix
        if suffix in (".idx", ".csv.gz"):
            name = os.path.splitext(seeds.name)[0] + suffix
        (tmp_path / name).write_bytes(content)
    store.put_folder(tmp_path, "bucket")
    layouts = []
    for path in (f"s3://bucket/{seeds.name}", str(tmp_path / seeds.name)):
        with open_file(path) as file:
            layout = read_layout(file, FormatOptions())
        ends = [] if layout.documents is None else np.concatenate([*layout.documents.ends()])
        layouts.append((replace(layout, documents=None), list(ends)))
    assert layouts[0] == layouts[1]


def test_a_bucket_without_a_list_is_read_by_names(store: ObjectServer) -> None:
    """Public buckets often allow reading only."""
    store.has_list = False
    assert exists("s3://bucket/c/a.bin")
    assert not exists("s3://bucket/c/a.idx")
    with NumpyBatches("s3://bucket/c/a.bin?dtype=uint16", 2, 8, rank=0, world_size=1) as feed:
        assert next(feed)[0].shape == (2, 8)
    with pytest.raises(InvalidCorpus, match=r"has no list of names here, .* name each file"):
        parse_datasets(["s3://bucket/c/*.bin"])


@pytest.mark.parametrize(
    "path", ["s3://nobucket/c/*.bin", "s3://nobucket/c/", "s3://nobucket/*.bin"]
)
def test_a_bucket_that_is_not_there_is_named(
    store: ObjectServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a wrong name or the store of somebody else; a store that starts has it soon."""
    monkeypatch.setattr(door, "_BUCKET_SECONDS", 0.0)
    problem = "there is no bucket 'nobucket': check its name, and that http://127.0.0.1:[0-9]+ is"
    with pytest.raises(InvalidCorpus, match=problem):
        parse_datasets([path])
    assert len(store.requests) <= 2


def test_an_address_where_no_store_answers_is_named(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What obstore says of it is a request that was not sent."""
    monkeypatch.setattr(object_bytes, "OPENING_SECONDS", 0.0)
    address = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    forget_buckets()
    with pytest.raises(InvalidCorpus, match=f"no store answers at {address} "):
        open_file("s3://bucket/c/a.bin")


def test_a_web_server_is_read_by_names(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no lists, and no credentials."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with object_server(context) as web:
        tokens = np.arange(5000, dtype="<u2")
        web.put("corpus/a.bin", tokens.tobytes())
        target = f"https://{web.address}/corpus/a.bin"
        options = {"order": "sequential", "rank": 0, "world_size": 1}
        with NumpyBatches(f"{target}?dtype=uint16", 2, 8, **options) as feed:
            assert next(feed)[0].tolist() == [list(range(8)), list(range(8, 16))]
        with pytest.raises(InvalidCorpus, match="has no list of names here"):
            parse_datasets([f"https://{web.address}/corpus/*.bin"])
        with pytest.raises(InvalidCorpus, match="No such file"):
            open_file(f"https://{web.address}/corpus/b.bin")
        signed = f"https://{web.address}/corpus/a.bin?X-Amz-Signature=secret"
        with pytest.raises(InvalidCorpus, match=r"a\.bin: is a signed URL") as refused:
            open_file(signed)
        assert "secret" not in str(refused.value)
        web.accepted_keys = {"none"}  # 403, as some web servers say of what is not there
        assert not exists(f"https://{web.address}/corpus/b.idx")


def test_erased_tokens_in_a_store_name_the_option_of_their_list(store: ObjectServer) -> None:
    """There is no list beside an object that could be restored."""
    store.put("bucket/c/a.bin", bytes(1000))
    record = {"name": "a.bin", "fill": 0, "ranges": [[5, 9]]}
    store.put("bucket/c/.tokenfeed-erased.jsonl", json.dumps(record).encode() + b"\n")
    told = r"says, and no list was given\..* pass its list with .redactions"
    target = "s3://bucket/c/a.bin?dtype=uint16"
    with (
        pytest.raises(InvalidCorpus, match=told),
        NumpyBatches(target, 2, 8, rank=0, world_size=1) as feed,
    ):
        next(feed)


def test_an_empty_object_is_named(store: ObjectServer) -> None:
    """No range of it can be asked for."""
    store.put("bucket/empty.bin", b"")
    with open_file("s3://bucket/empty.bin") as file:
        assert (file.head, file.size_bytes) == (b"", 0)


def test_a_server_does_not_ingest_text_of_a_store(store: ObjectServer) -> None:
    """What its cache has of it could not be compared with what is there at the next start."""
    store.put("bucket/text/a.jsonl", b'{"text": "a"}\n')
    with pytest.raises(InvalidCorpus, match="is text in an object store: make tokens of it first"):
        parse_text(["s3://bucket/text"])


def test_a_missing_library_is_named(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    forget_buckets()
    with pytest.raises(InvalidCorpus, match=r"pip install 'tokenfeed\[object-store\]'"):
        exists("s3://bucket/c/a.bin")


def test_a_fork_of_a_process_that_has_used_a_store_is_refused(store: ObjectServer) -> None:
    """The library would hang there for ever: a DataLoader with workers would stand still."""
    target = "s3://bucket/c/a.bin?dtype=uint16"
    with NumpyBatches(target, 2, 8, rank=0, world_size=1) as feed:
        next(feed)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            code = 1
            try:
                for make in (
                    lambda: feed,
                    lambda: NumpyBatches(target, 2, 8, rank=0, world_size=1),
                ):
                    try:
                        next(make())
                    except Exception as error:  # noqa: BLE001 - told by the exit code
                        code = 0 if "fork" in str(error) else 2
                    if code:
                        break
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        next(feed)


def test_what_is_kept_of_objects_goes_by_their_content(store: ObjectServer) -> None:
    """The time of an object is to the second, and a copy may set it back; a digest of what was
    replaced would be believed.
    """
    found = []
    for content in (np.arange(500, dtype="<u2"), np.arange(500, 0, -1).astype("<u2")):
        store.put("bucket/c/a.bin", content.tobytes())
        raw = FormatOptions.parse("raw", "uint16", None)
        tokens, _ = open_store("train", ["s3://bucket/c/a.bin"], raw, StorageOptions())
        found.append((file_facts(tokens.files), index_facts(["s3://bucket/c/a.bin"])))
        tokens.close()
    assert found[0][0][0][:3] == found[1][0][0][:3], "by name, size and time"
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_a_list_that_grows_between_two_requests_is_read_whole(
    store: ObjectServer,
) -> None:
    """A part of it would be taken for a damaged one."""
    path = "s3://bucket/c/a.bin"
    before = door_of(path).entry(path)
    assert before is not None
    store.put("bucket/c/a.bin", b"longer" * 500)
    assert door_of(path).content(path, 1 << 20) == b"longer" * 500
    store.put("bucket/c/a.bin", b"other" * 100)
    now = door_of(path).entry(path, at_once=True)
    assert now is not None
    assert now.size_bytes == 500
