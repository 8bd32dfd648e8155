"""What was read of objects when they were opened is read from this machine the next time, and
whatever happens to it there, only what the store has is believed.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.server.storage.formats.fuzz import Seeds, valid_files
from tests.support.object_server import ObjectServer, forget_buckets, object_server
from tokenfeed.server.runtime import once_a_machine
from tokenfeed.server.runtime.once_a_machine import OPENING_SUFFIX
from tokenfeed.server.runtime.small_files import sealed, unsealed
from tokenfeed.server.storage.door import door_of, open_file
from tokenfeed.server.storage.formats import FormatOptions, read_layout
from tokenfeed.server.storage.objects import openings
from tokenfeed.server.storage.objects.buckets import Pin, bucket_of
from tokenfeed.server.storage.objects.listing import LISTING
from tokenfeed.server.storage.objects.openings import Opening, Openings
from tokenfeed.server.storage.objects.urls import Url

SIZE_BYTES = 5000
NAMES = ("a.bin", "b.bin", "c.bin")


def content_of(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(SIZE_BYTES)


@pytest.fixture
def store() -> Iterator[ObjectServer]:
    with object_server() as found:
        for seed, name in enumerate(NAMES):
            found.put(f"bucket/c/{name}", content_of(seed))
        yield found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Where files go if the first folder cannot be used: another test may have had the same port.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "cache" / "tokenfeed"


def the_file(cache: Path) -> Path:
    (found,) = cache.glob(f"*{OPENING_SUFFIX}")
    return found


def start(store: ObjectServer, *, opening: bool = True) -> list[str]:
    """Read the beginning, the middle and the end of each object, as a process that has just begun;
    return the names of those that took GETs.
    """
    forget_buckets()
    before = len(store.gets)
    with door_of("s3://").opening() if opening else nullcontext():
        for name in NAMES:
            content = store.objects[f"bucket/c/{name}"][-1].content
            with open_file(f"s3://bucket/c/{name}") as file:
                assert file.head == content[:1024]
                assert file.size_bytes == len(content)
                for first in (1000, 3000, SIZE_BYTES - 8):
                    assert file.read(first, 8) == content[first : first + 8]
    return sorted({os.path.basename(each.key) for each in store.gets[before:]})


def test_objects_are_opened_again_without_a_get(store: ObjectServer, cache: Path) -> None:
    """10,000 GETs at each start of each server and trainer. Nothing lies in memory in between."""
    assert start(store) == list(NAMES)
    gets = len(store.gets)
    for _ in range(2):
        assert start(store) == []
    assert len(store.gets) == gets
    assert openings.OPENINGS._folders == {}
    assert start(store, opening=False) == list(NAMES), "only an opening asks for what was kept"


def test_what_is_kept_of_a_private_bucket_is_for_its_user_alone(
    store: ObjectServer, cache: Path
) -> None:
    """Others of the machine may not have its credentials."""
    start(store)
    assert stat.S_IMODE(the_file(cache).stat().st_mode) == 0o600


def test_an_object_that_is_opened_again_takes_room_once(store: ObjectServer, cache: Path) -> None:
    """A start opens an object several times, as tokens and beside them."""
    start(store)
    forget_buckets()
    with door_of("s3://").opening():
        left = []
        for _ in range(3):
            with open_file(f"s3://bucket/c/{NAMES[0]}"):
                left.append(openings.OPENINGS._left_bytes)
    assert left[0] < openings._BYTES_MAX
    assert len(set(left)) == 1


@pytest.mark.parametrize("seeds", valid_files(), ids=lambda seeds: seeds.name)
def test_every_format_is_opened_again_without_a_get(
    store: ObjectServer, tmp_path: Path, seeds: Seeds
) -> None:
    """With the indices beside it, and where documents begin."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for suffix, content in seeds.files.items():
        name = suffix.removeprefix("/") if suffix.startswith("/") else seeds.name + suffix
        if suffix in (".idx", ".csv.gz"):
            name = os.path.splitext(seeds.name)[0] + suffix
        (folder / name).write_bytes(content)
    store.put_folder(folder, "bucket")
    found = []
    for _ in range(2):
        before = len(store.gets)
        with (
            door_of("s3://").opening(),
            open_file(f"s3://bucket/{seeds.name}") as file,
        ):
            layout = read_layout(file, FormatOptions())
            ends = [] if layout.documents is None else np.concatenate([*layout.documents.ends()])
        found.append((replace(layout, documents=None), list(ends)))
        gets = len(store.gets) - before
    assert found[0] == found[1]
    assert gets == 0


def damaged(version: int = 1, **changes: object) -> Callable[[bytes], bytes]:
    """Return what writes other facts into a file, with a valid hash."""

    def change(content: bytes) -> bytes:
        head, _, rest = unsealed(content).partition(b"\n")
        facts = json.loads(head) | {"version": version} | changes
        return sealed(json.dumps(facts).encode() + b"\n" + rest)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda content: content[:-1], id="a byte less"),
        pytest.param(lambda content: content[: len(content) // 2], id="half of it"),
        pytest.param(lambda content: content[:40], id="within the hash"),
        pytest.param(lambda content: content + b"x", id="a byte more"),
        pytest.param(lambda content: content[:-9] + b"\0" + content[-8:], id="another byte"),
        pytest.param(lambda content: bytes(len(content)), id="zeros"),
        pytest.param(damaged(version=2), id="of another version"),
        pytest.param(damaged(of=["s3://other", "c"]), id="of another folder"),
        pytest.param(damaged(objects=[["a.bin"]]), id="of another form"),
        pytest.param(damaged(objects=7), id="no objects"),
        pytest.param(lambda _: sealed(b"7\n"), id="another value"),
        pytest.param(lambda _: sealed(b"no line"), id="no line"),
    ],
)
def test_a_damaged_file_costs_gets_and_nothing_else(
    store: ObjectServer, cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    """A disk that is full, a machine that loses power, another version of tokenfeed."""
    start(store)
    intact = the_file(cache).read_bytes()
    the_file(cache).write_bytes(damage(intact))
    assert start(store) == list(NAMES)
    assert start(store) == []
    assert the_file(cache).read_bytes() == intact


@pytest.mark.parametrize("kind", ["folder", "link", "writable by others"])
def test_a_place_that_is_no_file_of_ours_is_left_alone(
    store: ObjectServer, cache: Path, tmp_path: Path, kind: str
) -> None:
    """A cache folder that others may write to could have any bytes."""
    start(store)
    path, content = the_file(cache), the_file(cache).read_bytes()
    if kind == "writable by others":
        cache.chmod(0o777)
    else:
        path.unlink()
    if kind == "folder":
        (path / "within").mkdir(parents=True)
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    assert start(store) == list(NAMES)


@pytest.mark.parametrize("keeps_versions", [False, True])
def test_an_object_that_was_replaced_is_read_again(
    store: ObjectServer, keeps_versions: bool
) -> None:
    """The others are not; also in a process that goes on, where names are known for a while."""
    store.keeps_versions = keeps_versions
    store.put("bucket/c/b.bin", content_of(4))
    start(store)
    store.put("bucket/c/b.bin", content_of(5))  # of the same size and time
    assert start(store) == ["b.bin"]
    assert start(store) == []
    for seed in (6, 7):
        store.put("bucket/c/b.bin", content_of(seed))
        with door_of("s3://").opening(), open_file("s3://bucket/c/b.bin") as file:
            assert file.head == content_of(seed)[:1024]
    # The same bytes, but the version that was opened may be gone.
    store.put("bucket/c/b.bin", content_of(7), written=1_700_000_009)
    assert start(store) == ["b.bin"]
    del store.objects["bucket/c/b.bin"]
    with pytest.raises(KeyError):
        start(store)


def test_an_object_without_a_strong_etag_is_read_at_each_start(
    store: ObjectServer, cache: Path
) -> None:
    """Its time is to the second: other content may have it."""
    store.weak = True
    for _ in range(2):
        assert start(store) == list(NAMES)
    assert list(cache.glob(f"*{OPENING_SUFFIX}")) == []


def test_the_times_and_quotes_of_lists_are_no_other_content() -> None:
    """Lists of S3 and GCS may have fractions of seconds, and those of Azure no quotes."""
    store_time = "2026-11-27T10:00:00"
    pin = Pin(5, '"0x8D"', "v1", openings.datetime.fromisoformat(f"{store_time}+00:00"))
    finer = openings.datetime.fromisoformat(f"{store_time}.123+00:00")
    assert pin.is_listed_as(Pin(5, "0x8D", None, finer))
    assert not pin.is_listed_as(Pin(6, "0x8D", None, finer))
    assert not pin.is_listed_as(Pin(5, "0x8E", None, finer))
    assert not pin.is_listed_as(Pin(5, None, None, finer))
    assert not Pin(5, None, "v1", finer).is_listed_as(Pin(5, None, "v1", finer))


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [("_OBJECT_BYTES_MAX", 2048, NAMES), ("_BYTES_MAX", 6000, ("c.bin",))],
)
def test_what_is_kept_has_a_limit(
    store: ObjectServer,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    limit: int,
    expected: tuple[str, ...],
) -> None:
    """An index may have gigabytes. What was used last stays, and the file does not change."""
    monkeypatch.setattr(openings, name, limit)
    monkeypatch.setattr(openings.OPENINGS, "_left_bytes", openings._BYTES_MAX)
    start(store)
    written = the_file(cache).stat().st_ino
    for _ in range(3):
        assert start(store) == list(expected)
    assert the_file(cache).stat().st_ino == written
    assert the_file(cache).stat().st_size < 8000


def test_files_that_were_not_used_for_a_month_are_removed(store: ObjectServer, cache: Path) -> None:
    """And what a process has left that was killed while it wrote one."""
    start(store)
    partial = Path(f"{the_file(cache)}k1_2xyz8")
    partial.write_bytes(b"half")
    other = cache / "a.objects.bin.tokenfeed-digest.json"
    other.write_bytes(b"{}")
    for path in (the_file(cache), partial, other):
        os.utime(path, (1, 1))
    once_a_machine.remove_unused()
    assert [path.name for path in cache.iterdir()] == [other.name]


def test_two_processes_keep_what_each_has_read(store: ObjectServer, cache: Path) -> None:
    """Servers of one machine start at the same time, with other objects of a folder."""
    urls = [Url.parse(f"s3://bucket/c/{name}") for name in NAMES]
    bucket = bucket_of(urls[0])
    first, second = Openings(), Openings()
    with second.during():
        with first.during():
            for process, url, seed in ((first, urls[0], 0), (second, urls[1], 1)):
                assert process.find(bucket, url) is None
                pin = LISTING.look(url)
                assert isinstance(pin, Pin)
                process.add(bucket, url, Opening(pin, (0, content_of(seed)[:1024])))
    third = Openings()
    with third.during():
        for seed, url in enumerate(urls[:2]):
            found = third.find(bucket, url)
            assert found is not None
            assert bytes(found.parts[0][1]) == content_of(seed)[:1024]
        assert third.find(bucket, urls[2]) is None
