"""Rows out of the cache are those of the objects, whatever happens to it; each block is fetched
once, and never more is fetched than was allowed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import trustme

from tests.support.gathering import gather_block
from tests.support.object_server import ObjectServer, object_server
from tests.support.waiting import eventually
from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling.spans import Pieces, Spans
from tokenfeed.server.datasets.opening import TokenChecks, open_dataset
from tokenfeed.server.datasets.sources import DatasetSource
from tokenfeed.server.storage.door import StorageOptions
from tokenfeed.server.storage.formats import FormatOptions
from tokenfeed.server.storage.objects import cache_choice, object_cache
from tokenfeed.server.storage.objects.cache_choice import open_cache
from tokenfeed.server.storage.objects.counts import REQUESTS, CacheCounts
from tokenfeed.server.storage.objects.listing import LISTING
from tokenfeed.server.storage.objects.object_cache import ObjectCache
from tokenfeed.server.storage.objects.slab import BLOCK_BYTES, FILE, FOLDER, SLOT_BYTES, size_of
from tokenfeed.server.storage.store import TokenStore, open_store

T = 2048
BLOCK = BLOCK_BYTES // 2
"""Tokens of a block."""
URLS = ["s3://bucket/c/a.npy", "s3://bucket/c/b.npy"]
RAW = FormatOptions.parse("raw", "uint16", None)
_RANDOM = np.random.default_rng(1)
TOKENS = [
    _RANDOM.integers(0, 60_000, 3 * BLOCK + 1).astype("<u2"),  # whose last block is one token
    _RANDOM.integers(0, 60_000, 5 * BLOCK + 12_345).astype("<u2"),
]
BLOCKS = 10
FINGERPRINT = bytes(32)

Opened = Callable[..., tuple[TokenStore, ObjectCache]]


@pytest.fixture
def store() -> Iterator[ObjectServer]:
    with object_server() as found:
        for url, tokens in zip(URLS, TOKENS, strict=True):
            found.put(url.removeprefix("s3://"), tokens.tobytes())
        yield found


@pytest.fixture
def opened(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opened]:
    """Opens the objects with a cache in a folder."""
    monkeypatch.setattr(object_cache, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(object_cache, "_COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(object_cache, "_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(object_cache, "_FIRST_ROWS_SECONDS", 0.0)
    found: list[tuple[TokenStore, ObjectCache]] = []

    def open_one(slots: int = 16, folder: Path = tmp_path) -> tuple[TokenStore, ObjectCache]:
        LISTING.forget()
        tokens, _ = open_store("train", URLS, RAW, StorageOptions())
        tokens.narrow(65_535)
        # Of another dataset each time, as if it had got one more object.
        dataset = tokens.files, os.urandom(32)
        cache = open_cache([dataset], str(folder), size_of(max(16, slots)))
        assert cache is not None
        found.append((tokens, cache))
        return found[-1]

    yield open_one
    for tokens, cache in found:
        cache.close()
        tokens.close()


def rows(random: np.random.Generator, count: int = 64, tokens: int = T + 1) -> Spans:
    """Windows at random, from both objects."""
    shard = random.integers(0, 2, count)
    limits = np.array([each.size - tokens for each in TOKENS])
    return Spans.of_windows(tokens, shard, random.integers(0, limits[shard] + 1))


def require_right(found: np.ndarray, spans: Spans) -> None:
    for row, shard, first in zip(found, spans.shard, spans.token_offset, strict=True):
        np.testing.assert_array_equal(row, TOKENS[shard][first : first + spans.row_tokens])


def require_rows(tokens: TokenStore, seed: int, count: int = 12) -> None:
    spans = rows(np.random.default_rng(seed), count)
    require_right(gather_block(tokens, spans).tokens, spans)


class Stream:
    """Whose groups are held."""


def hold(
    cache: ObjectCache, tokens: TokenStore, owner: Stream, present: list[int], following: list[int]
) -> None:
    numbers = (np.array(each, dtype=np.int64) for each in (present, following))
    cache.hold(owner, tokens.files, *numbers)  # type: ignore[arg-type]


def fill(tokens: TokenStore, cache: ObjectCache) -> CacheCounts:
    require_rows(tokens, 1, 4)
    assert eventually(lambda: cache.counts.cached_blocks == BLOCKS, 20)
    return cache.counts


def slab_of(folder: Path) -> Path:
    return folder / FOLDER / FILE


def test_each_block_is_fetched_once(opened: Opened, store: ObjectServer, tmp_path: Path) -> None:
    """A second epoch, and a second start, make no GET of a row."""
    tokens, cache = opened()
    before = REQUESTS.by_reason["block"]
    assert cache.counts[1:3] == (BLOCKS, 0), "nothing is fetched before a row is"
    fill(tokens, cache)
    after = REQUESTS.by_reason["block"]
    assert after.gets - before.gets == BLOCKS
    size = sum(each.nbytes for each in TOKENS)
    assert size <= after.size_bytes - before.size_bytes <= size + 8 * BLOCKS

    again, second = opened()
    assert second.counts.cached_blocks == BLOCKS
    gets, misses = len(store.gets), cache.counts.misses
    for which in (tokens, again):
        for seed in range(5):
            require_rows(which, seed)
    assert len(store.gets) == gets
    assert cache.counts.misses == misses
    assert (cache.counts.hits, second.counts.hits) == (60, 60)
    assert slab_of(tmp_path).stat().st_size == size_of(16)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_rows_of_any_blocks_are_right(opened: Opened, share: float) -> None:
    """Within a block, over borders of blocks, of several blocks, with padding; cached or not."""
    tokens, cache = opened()
    fill(tokens, cache)
    cache.close()
    blocks = tokens.files.cached  # type: ignore[attr-defined]
    random = np.random.default_rng(3)
    for block in range(BLOCKS):
        if random.random() >= share:
            blocks.set_slot(block, -1)
    for count in (2, T + 1, BLOCK, BLOCK + 1, BLOCK + 2, 3 * BLOCK):
        spans = rows(random, 4, count)
        require_right(gather_block(tokens, spans).tokens, spans)
        tokens.advise(spans)
        assert eventually(lambda spans=spans: tokens.ready_count(spans) == 4)
        require_right(gather_block(tokens, spans).tokens, spans)
    edges = np.array([0, BLOCK - 1, BLOCK, 2 * BLOCK - T, 2 * BLOCK - T - 1, 3 * BLOCK - T])
    spans = Spans.of_windows(T + 1, np.zeros(6, dtype=np.int64), edges)
    require_right(gather_block(tokens, spans).tokens, spans)

    pieces = Pieces(np.array([0, 2, 2, 3]), np.array([5, BLOCK + 3, 7]))
    first = np.array([BLOCK - 2, 4, 9])
    spans = Spans(BLOCK + 20, np.zeros(3, dtype=np.int64), np.array([0, 1, 1]), first, pieces)
    expected = np.zeros((3, BLOCK + 20), dtype="<u2")
    expected[0, :5] = TOKENS[0][BLOCK - 2 : BLOCK + 3]
    expected[0, 5 : BLOCK + 8] = TOKENS[1][4 : BLOCK + 7]
    expected[2, :7] = TOKENS[1][9:16]
    np.testing.assert_array_equal(gather_block(tokens, spans).tokens, expected)
    files = tokens.files
    assert not files._held, "nothing is held that was gathered"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "calls", [8, pytest.param(200, marks=[pytest.mark.proof, pytest.mark.slow])]
)
def test_rows_are_right_while_blocks_make_room(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """A slot gets another block under a copy, also in another process: then the copy is thrown
    away. Never more is fetched than the cache and the rows.
    """
    monkeypatch.setattr(cache_choice, "SLOTS_MIN", 1)
    monkeypatch.setattr(object_cache, "_COMMIT_BLOCKS", 2)
    both = []
    for _ in range(2):
        LISTING.forget()
        tokens, _ = open_store("train", URLS, RAW, StorageOptions())
        tokens.narrow(65_535)
        cache = open_cache([(tokens.files, FINGERPRINT)], str(tmp_path), size_of(4))
        assert cache is not None
        assert not cache.fits
        both.append((tokens, cache))
    before = REQUESTS.by_reason["block"].size_bytes
    failed: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            owner, (tokens, cache) = Stream(), both[number % 2]
            for seed in range(calls):
                hold(
                    cache, tokens, owner, [(number + seed) % BLOCKS], [(number + seed + 1) % BLOCKS]
                )
                require_rows(tokens, 1000 * number + seed)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for tokens, cache in both:
        cache.close()
        tokens.close()
    assert not failed
    evictions = [cache._slab.evictions - cache._slab.known_evictions for _, cache in both]  # type: ignore[union-attr]
    assert min(evictions) == 0
    assert sum(cache.counts.hits for _, cache in both) > 0
    blocks = REQUESTS.by_reason["block"].size_bytes - before
    row_bytes = 4 * calls * 12 * 2 * (T + 1)
    assert 4 * BLOCK_BYTES < blocks <= 2 * (size_of(4) + SLOT_BYTES) + row_bytes
    assert slab_of(tmp_path).stat().st_size == size_of(4)


def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int) -> tuple:
    """The objects with a cache that has not room for them."""
    monkeypatch.setattr(cache_choice, "SLOTS_MIN", 1)
    timers = {"_PAUSE_SECONDS": 0.01, "_COMMIT_SECONDS": 0.05, "_FIRST_ROWS_SECONDS": 0.0}
    for name, seconds in timers.items():
        monkeypatch.setattr(object_cache, name, seconds)
    tokens, _ = open_store("train", URLS, RAW, StorageOptions())
    tokens.narrow(65_535)
    cache = open_cache([(tokens.files, FINGERPRINT)], str(tmp_path), size_of(slots))
    assert cache is not None
    return tokens, cache


def cached(tokens: TokenStore) -> list[int]:
    return np.flatnonzero(tokens.files.cached.slots >= 0).tolist()  # type: ignore[attr-defined]


def test_groups_of_streams_are_fetched_ahead_and_let_go_of(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slowest stream keeps its blocks; those of one that has ended stay while there is room, so
    that it can go on without a GET.
    """
    tokens, cache = small(tmp_path, monkeypatch, 4)
    require_rows(tokens, 1, 40)
    assert cached(tokens) == [], "without a group, each would fetch 256 times what a row needs"
    first, second = Stream(), Stream()
    steps = [
        (first, [0, 1], [2, 3], [0, 1, 2, 3]),
        (first, [2, 3], [4, 5], [2, 3, 4, 5]),
        (second, [2, 3], [4, 5], [2, 3, 4, 5]),
        (first, [4, 5], [6, 7], [2, 3, 4, 5]),  # the second one is still there
        (second, [4, 5], [6, 7], [4, 5, 6, 7]),
    ]
    for owner, present, following, expected in steps:
        hold(cache, tokens, owner, present, following)
        # As many bytes as the blocks, or more are not fetched.
        spans = rows(np.random.default_rng(2), 8, BLOCK // 2)
        require_right(gather_block(tokens, spans).tokens, spans)
        assert eventually(lambda expected=expected: cached(tokens) == expected), expected
    del first, second, owner, steps
    blocks = REQUESTS.by_reason["block"].gets
    time.sleep(0.1)
    require_rows(tokens, 3)
    assert cached(tokens) == [4, 5, 6, 7]
    again = Stream()
    hold(cache, tokens, again, [4, 5], [6, 7])
    require_rows(tokens, 3)
    assert REQUESTS.by_reason["block"].gets == blocks
    hold(cache, tokens, again, [6, 7], [8, 9])
    require_rows(tokens, 3)
    assert eventually(lambda: cached(tokens) == [6, 7, 8, 9])
    cache.close()
    tokens.close()


def test_groups_are_fetched_while_a_stream_makes_no_call(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer at its pace asks for what it has room for, and then nothing for long; its next
    group is to be there when it is. Who has gone for good is not fetched for, and what streams that
    are there need comes first.
    """
    tokens, cache = small(tmp_path, monkeypatch, 4)
    # As many bytes as the blocks, or more are not fetched.
    spans = rows(np.random.default_rng(2), 8, BLOCK // 2)
    there = Stream()
    for owner, present, following in (
        (None, [0, 1], [2, 3]),
        (None, [2, 3], [4, 5]),
        (there, [0, 1], [6, 7]),
        (None, [8, 9], [2, 3]),  # without room
    ):
        hold(cache, tokens, owner or Stream(), present, following)
        require_right(gather_block(tokens, spans).tokens, spans)
        expected = sorted(present + following) if present != [8, 9] else [0, 1, 6, 7]
        assert eventually(lambda expected=expected: cached(tokens) == expected), expected
    del there, owner
    monkeypatch.setattr(object_cache, "IDLE_SECONDS", 0.2)
    hold(cache, tokens, Stream(), [8, 9], [4, 5])
    time.sleep(0.3)
    require_rows(tokens, 2)
    time.sleep(0.1)
    blocks = REQUESTS.by_reason["block"].gets
    for _ in range(5):
        require_rows(tokens, 2)
        time.sleep(0.05)
    assert REQUESTS.by_reason["block"].gets == blocks
    cache.close()
    tokens.close()


def test_a_group_without_room_is_refused_with_its_ways_out(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks would make room for each other, and be fetched for each row again. Not so in the
    middle of an epoch, where a run could not go on: what has no room comes row by row.
    """
    tokens, cache = small(tmp_path, monkeypatch, 4)
    problem = r"order: reads 5 blocks .* has 4, .*group_tokens.*--object-cache-bytes \d+ .*shuffled"
    with pytest.raises(InvalidRequest, match=problem):
        cache.require_room(np.arange(5))
    hold(cache, tokens, Stream(), [0, 1, 2, 3, 4], [5])
    require_rows(tokens, 2)
    cache.close()
    tokens.close()


def test_a_row_waits_for_its_block_once_few_rows_came_before_theirs(
    opened: Opened, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a fast reader would fetch a large part of a corpus twice."""
    tokens, _ = opened()
    before = REQUESTS.by_reason["row"].size_bytes
    for seed in range(100):
        require_rows(tokens, seed, 64)
    early = REQUESTS.by_reason["row"].size_bytes - before
    size = sum(each.nbytes for each in TOKENS)
    assert 0 < early <= 1.25 * object_cache.EARLY_SHARE * size + 64 * 2 * T


def test_an_object_that_cannot_be_read_holds_up_no_other(
    opened: Opened, store: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two buckets one may be denied."""
    tokens, cache = opened()
    (lost,) = store.objects.pop("bucket/c/a.npy")
    cache.note_use()
    assert eventually(lambda: cached(tokens) == [4, 5, 6, 7, 8, 9])
    assert "block not fetched, trying again later reason=has been removed" in caplog.text
    store.objects["bucket/c/a.npy"] = [lost]
    fill(tokens, cache)


def test_an_object_that_is_replaced_is_cached_again(opened: Opened, store: ObjectServer) -> None:
    """The cache goes by the content that was opened, and not by the name."""
    fill(*opened())
    changed = TOKENS[0][::-1].copy()
    store.put("bucket/c/a.npy", changed.tobytes())
    tokens, cache = opened()
    assert cache.counts.cached_blocks == 6
    spans = Spans.of_windows(T + 1, np.zeros(2, dtype=np.int64), np.array([0, 5000]))
    for _ in range(2):
        found = gather_block(tokens, spans).tokens
        np.testing.assert_array_equal(found[0], changed[: T + 1])
        np.testing.assert_array_equal(found[1], changed[5000 : 5000 + T + 1])
        assert eventually(lambda: cache.counts.cached_blocks == BLOCKS)
    assert cache.counts.hits >= 2


@pytest.mark.parametrize("scheme", ["s3", "https"])
def test_content_with_the_etag_of_another_one_is_not_read_out_of_its_blocks(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers make strong ETags of time and size, to the second; a web framework even hashes
    them. The fingerprint of the dataset tells these contents apart.
    """
    monkeypatch.setattr(object_cache, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(object_cache, "_FIRST_ROWS_SECONDS", 0.0)
    context = None
    if scheme == "https":
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
    spans = Spans.of_windows(T + 1, np.zeros(2, dtype=np.int64), np.array([0, 5000]))
    versions = np.random.default_rng(4).integers(1, 60_000, (2, BLOCK)).astype("<u2")
    with object_server(context) as store:
        place = f"https://{store.address}/bucket" if context else "s3://bucket"
        source = DatasetSource("train", (f"{place}/a.bin", f"{place}/b.bin"))
        for number, tokens in enumerate(versions):
            # The other file grows: else nothing would be read again.
            for name, content in (("a", tokens), ("b", tokens[: 1000 + number])):
                key = f"bucket/{name}.bin"
                store.put(key, content.tobytes())
                (one,) = store.objects[key]
                etag = f"{one.written:x}-{len(one.content):x}"
                etag = hashlib.md5(etag.encode()).hexdigest() if context else etag
                one.etag = f'"{etag}"'
            LISTING.forget()
            dataset = open_dataset(source, RAW, TokenChecks())
            contents = [(dataset.store.files, dataset.fingerprint)]
            cache = open_cache(contents, str(tmp_path), size_of(16))
            assert cache is not None
            for _ in range(2):
                found = gather_block(dataset.store, spans).tokens
                np.testing.assert_array_equal(found, [tokens[: T + 1], tokens[5000 : 5001 + T]])
                assert eventually(lambda cache=cache: cache.counts.cached_blocks == 2)
            assert cache.counts.hits >= 2
            cache.close()
            dataset.close()


def test_what_only_has_a_time_is_not_cached(opened: Opened, store: ObjectServer) -> None:
    """It may be replaced twice in a second, by content of the same size."""
    store.weak = True
    tokens, cache = opened()
    assert cache.counts.blocks == 0
    require_rows(tokens, 1)
    assert cache.counts.cached_blocks == 0


@pytest.mark.parametrize("how", ["truncated", "deleted", "extended"])
def test_a_slab_that_is_lost_is_a_second_get(
    opened: Opened, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A clean-up of a disk ends no run, and changes no row."""
    tokens, cache = opened()
    fill(tokens, cache)
    path = slab_of(tmp_path)
    if how == "deleted":
        path.unlink()
    else:
        os.truncate(path, 0)
    if how == "extended":
        os.truncate(path, size_of(16))
    require_rows(tokens, 5)
    if how != "extended":
        assert eventually(lambda: cache.counts.size_bytes == 0)
        assert "object cache deleted or truncated" in caplog.text
    require_rows(tokens, 9)


def test_a_changed_byte_is_found_and_the_block_fetched_again(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that errs gives a wrong row until then, as one with local files does."""
    tokens, cache = opened()
    fill(tokens, cache)
    cache.close()
    content = slab_of(tmp_path).read_bytes()
    place = content.index(TOKENS[1][BLOCK : BLOCK + 50].tobytes())
    with slab_of(tmp_path).open("r+b") as file:
        file.seek(place)
        file.write(bytes([content[place] ^ 1]))

    monkeypatch.setattr(object_cache, "SCRUB_SECONDS", 0.2)
    tokens, cache = opened()
    assert eventually(lambda: cache.counts.damaged == 1)
    fill(tokens, cache)
    spans = Spans.of_windows(T + 1, np.array([1]), np.array([BLOCK]))
    require_right(gather_block(tokens, spans).tokens, spans)


def test_a_disk_that_fails_is_a_second_get(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be full in spite of what it has promised, as with snapshots."""
    write, sync = os.pwrite, os.fdatasync
    fails = {"pwrite": True, "fdatasync": True}

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tokens, cache = opened(64)  # whose size is what may be fetched for nothing
    monkeypatch.setattr(os, "pwrite", lambda *a: refuse() if fails["pwrite"] else write(*a))
    monkeypatch.setattr(os, "fdatasync", lambda *a: refuse() if fails["fdatasync"] else sync(*a))
    for failing in ("pwrite", "fdatasync"):
        caplog.clear()
        require_rows(tokens, 5, 4)
        assert eventually(lambda: "cache failed, trying again later reason=No sp" in caplog.text)
        require_rows(tokens, 5, 4)
        assert cache.counts.cached_blocks == 0
        fails[failing] = False
    fill(tokens, cache)
    require_rows(tokens, 6)


def test_a_store_that_is_away_stops_the_filling_alone(
    opened: Opened, store: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that are cached come as before."""
    tokens, cache = opened()
    store.always_fault = "503"
    cache.note_use()
    assert eventually(lambda: "block not fetched, trying again later" in caplog.text, 20)
    store.always_fault = ""
    fill(tokens, cache)
    store.always_fault = "503"
    for seed in range(5):
        require_rows(tokens, seed)


def test_blocks_of_other_corpora_make_room_first(
    opened: Opened, store: ObjectServer, tmp_path: Path
) -> None:
    """A folder is used for one corpus after another."""
    fill(*opened())
    for number in range(2):
        store.put(URLS[number].removeprefix("s3://"), TOKENS[number][::-1].tobytes())
    LISTING.forget()
    tokens, cache = opened()
    assert cache.counts.cached_blocks == 0
    spans = Spans.of_windows(T + 1, np.array([1]), np.array([7]))
    for _ in range(2):
        found = gather_block(tokens, spans).tokens
        np.testing.assert_array_equal(found[0], TOKENS[1][::-1][7 : T + 8])
        assert eventually(lambda: cache.counts.cached_blocks == BLOCKS, 20)


def test_a_folder_that_cannot_be_used_is_refused_by_name(
    store: ObjectServer, tmp_path: Path
) -> None:
    """Who names one expects it to be used."""
    tokens, _ = open_store("train", URLS, RAW, StorageOptions())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidRequest, match=r"--object-cache: .*file.* cannot be used"):
        open_cache([(tokens.files, FINGERPRINT)], str(tmp_path / "file"), size_of(16))
    with pytest.raises(InvalidRequest, match=r"--object-cache-bytes: is 1000; it takes 16"):
        open_cache([(tokens.files, FINGERPRINT)], str(tmp_path), 1000)
    assert open_cache([(tokens.files, FINGERPRINT)], "none", None) is None
    tokens.close()


@pytest.mark.parametrize(
    ("free", "system", "expected"),
    [
        (1 << 40, "ext4", size_of(16)),  # as much as the corpus needs
        (60 << 30, "ext4", size_of(16)),
        (50 << 30, "ext4", 0),  # which is left to others
        (1 << 40, "nfs4", 0),
        (1 << 40, "tmpfs", 0),
    ],
)
def test_the_default_is_a_local_disk_with_room(
    store: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free: int,
    system: str,
    expected: int,
) -> None:
    """Who names none gets one where it does no harm; else the log says why there is none."""
    caplog.set_level("INFO")
    monkeypatch.setattr(cache_choice, "cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr(cache_choice, "_SHARED_FOLDER", str(tmp_path / "shared"))
    monkeypatch.setattr(cache_choice, "file_systems", lambda _: [system])
    usage = type("", (), {"free": free})
    monkeypatch.setattr(cache_choice.shutil, "disk_usage", lambda _: usage)
    tokens, _ = open_store("train", URLS, RAW, StorageOptions())
    cache = open_cache([(tokens.files, FINGERPRINT)], None, None)
    if expected:
        assert cache is not None
        assert slab_of(tmp_path).stat().st_size == expected
        assert f"object cache folder={tmp_path} bytes={expected}" in caplog.text
        cache.close()
    else:
        assert cache is None
        assert "object cache off, each epoch fetches its rows again: " in caplog.text
    tokens.close()


def test_slots_that_were_just_written_to_are_not_emptied(opened: Opened) -> None:
    """Their blocks are about to be said to be there, and another one would be in their place."""
    _, cache = opened(16)
    cache.close()
    assert cache._slab is not None
    assert not {*cache._evicted(cache._slab, range(14))} & {*range(14)}


def test_what_is_needed_makes_no_room_for_what_is_needed(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two calls a stream seems to have ended. Its blocks would be fetched twice."""
    tokens, cache = small(tmp_path, monkeypatch, 8)
    owner = Stream()
    hold(cache, tokens, owner, [0, 1, 2, 3], [4, 5])
    for seed in range(20):
        require_rows(tokens, seed)
    assert eventually(lambda: cached(tokens) == [0, 1, 2, 3, 4, 5])
    hold(cache, tokens, owner, [4, 5], [6, 7])
    require_rows(tokens, 1)
    assert eventually(lambda: cached(tokens) == [*range(8)])
    cache.close()
    del owner
    cache._prioritize()
    assert cache._slab is not None
    assert cache._evicted(cache._slab, []) == [], "there is room for all"
    hold(cache, tokens, Stream(), [8, 9], [])
    cache._prioritize()
    left = tokens.files.cached.slots[[2, 3]].tolist()  # type: ignore[attr-defined]
    assert cache._evicted(cache._slab, [])[0] in left, "of the group that was left first"
    tokens.close()


def test_few_groups_are_known_whatever_streams_come(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who asks for a row here and there would fill the memory in the minutes of the grace."""
    tokens, cache = small(tmp_path, monkeypatch, 4)
    random = np.random.default_rng(1)
    for _ in range(200):
        hold(cache, tokens, Stream(), *random.permutation(BLOCKS)[:4].reshape(2, 2).tolist())
    with cache._changed:
        cache._prioritize()
        assert len(cache._groups) <= 4
    cache.close()
    tokens.close()


def test_an_object_of_two_datasets_is_fetched_once(
    store: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One corpus may be served under two names. What one of them needs stays, too."""
    monkeypatch.setattr(cache_choice, "SLOTS_MIN", 1)
    both = [open_store("train", URLS[at:], RAW, StorageOptions())[0] for at in (0, 1)]
    for each in both:
        each.narrow(65_535)
    before = REQUESTS.by_reason["block"].gets
    datasets = [(each.files, os.urandom(32)) for each in both]
    cache = open_cache(datasets, str(tmp_path), size_of(BLOCKS))
    assert cache is not None
    assert cache.fits
    require_rows(both[0], 1)
    assert eventually(lambda: [*map(len, map(cached, both))] == [BLOCKS, 6])
    assert cache.counts[1:3] == (BLOCKS, BLOCKS)
    assert REQUESTS.by_reason["block"].gets - before == BLOCKS
    cache.close()
    cache.fits = False
    owner = Stream()
    hold(cache, both[0], owner, [4, 5], [])
    assert cache._slab is not None
    kept = both[0].files.cached.slots[[4, 5]].tolist()  # type: ignore[attr-defined]
    for _ in range(BLOCKS):
        empty = np.flatnonzero(cache._slab.entries["stamp"] == 0).tolist()
        assert not {*cache._evicted(cache._slab, empty)} & {*kept}
    assert cached(both[0]) == [4, 5]
    for each in both:
        each.close()


def test_a_row_of_a_block_that_comes_has_no_get_of_its_own(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of such rows is for those whose block nobody has asked for."""
    tokens, cache = opened()
    cache.close()
    cache._fills, files = True, tokens.files
    block = object_cache._Block(files, files.cached, 3)  # type: ignore[arg-type, attr-defined]
    with cache._changed:
        cache._begun([block], 0.0, 1)
    assert cache.wanted_rows(files, [3, 3], [4098, 4098]) == [False, False]  # type: ignore[arg-type]
    assert cache.wanted_rows(files, [4, -1], [4098, 4098]) == [True, True]  # type: ignore[arg-type]
    assert cache._early_bytes == 4098
    monkeypatch.setattr(cache, "_grants", lambda _: False)
    assert not any(cache.wanted_rows(files, [7, 5, 7, 9], [4098] * 4))  # type: ignore[arg-type]
    with cache._changed:
        found = [cache._next() for _ in range(3)]
    assert [each.number for each in found if each is not None] == [7, 5, 9], "the first ones first"
