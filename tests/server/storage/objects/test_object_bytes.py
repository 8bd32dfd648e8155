"""Bytes of objects: exactly what was opened, whatever a store answers; else an error."""

from __future__ import annotations

import _thread
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.gathering import gather_block
from tests.support.object_server import FAULTS, ObjectServer, forget_buckets, object_server
from tests.support.waiting import eventually
from tokenfeed.errors import CorpusChanged, InvalidCorpus, Unreadable
from tokenfeed.sampling.spans import Spans
from tokenfeed.server.storage.door import StorageOptions, door_of
from tokenfeed.server.storage.formats import FormatOptions, read_layout
from tokenfeed.server.storage.objects import buckets, credentials, door, object_bytes
from tokenfeed.server.storage.objects.counts import REQUESTS
from tokenfeed.server.storage.objects.fetcher import Fetcher
from tokenfeed.server.storage.objects.listing import LISTING
from tokenfeed.server.storage.objects.urls import Url
from tokenfeed.server.storage.store import TokenStore, open_store

T = 64
TOKENS = [np.arange(20_000, dtype="<u2"), np.arange(50_000, 40_000, -1).astype("<u2")]
URLS = ["s3://bucket/c/a.bin", "s3://bucket/c/b.bin"]
RAW = FormatOptions.parse("raw", "uint16", None)


@pytest.fixture
def store() -> Iterator[ObjectServer]:
    with object_server() as found:
        for url, tokens in zip(URLS, TOKENS, strict=True):
            found.put(url.removeprefix("s3://"), tokens.tobytes())
        yield found


@pytest.fixture
def opened(store: ObjectServer) -> Iterator[TokenStore]:
    found, _ = open_store("train", URLS, RAW, StorageOptions())
    found.narrow(65_535)
    yield found
    found.close()


def rows(random: np.random.Generator, count: int = 64) -> Spans:
    """Windows at random, from both objects."""
    shard = random.integers(0, 2, count)
    limits = np.array([tokens.size - T - 1 for tokens in TOKENS])
    return Spans.of_windows(T + 1, shard, random.integers(0, limits[shard]))


def require_right(found: np.ndarray, spans: Spans) -> None:
    for row, shard, first in zip(found, spans.shard, spans.token_offset, strict=True):
        np.testing.assert_array_equal(row, TOKENS[shard][first : first + T + 1])


@pytest.mark.parametrize(
    ("e_tag", "version", "expected"),
    [
        ('"900150983cd24fb0d6963f7d28e17f72"', None, True),
        ('"900150983cd24fb0d6963f7d28e17f72-12"', None, True),
        ('"0x8DC582FEC1B2B3A"', None, True),
        ('"65533f00-200000"', "v1", True),
        ('"65533f00-200000"', None, False),  # nginx
        ('"00000000000000000000000000000000-1"', None, False),  # MinIO, of files it has not written
        ('"1700000000000"', None, False),
        ('""', None, False),
        (None, None, False),
    ],
)
def test_an_etag_of_size_and_time_is_not_taken_for_that_of_one_content(
    e_tag: str | None, version: str | None, expected: bool
) -> None:
    """Blocks that were cached of a content would be served as those of another one."""
    written = datetime.fromtimestamp(1_700_000_000, timezone.utc)
    assert buckets.Pin(1 << 21, e_tag, version, written).has_unique_tag is expected


@pytest.mark.parametrize("advised", [True, False])
def test_rows_are_those_of_the_objects(opened: TokenStore, advised: bool) -> None:
    """Fetched ahead or not, twice in one call, or by two readers at once."""
    random = np.random.default_rng(1)
    for _ in range(5):
        spans = rows(random)
        twice = Spans.of_windows(T + 1, np.tile(spans.shard, 2), np.tile(spans.token_offset, 2))
        if advised:
            opened.advise(spans, due_seconds=0.1)
            opened.advise(twice)
        require_right(gather_block(opened, spans).tokens, spans)
        require_right(gather_block(opened, twice).tokens, twice)
    files = opened.files
    assert isinstance(files, object_bytes.ObjectBytes)
    left = sum(users for _, users, _ in files._held.values())
    assert left == 0, "nothing is held that was gathered"
    assert files._held_bytes == 0


def test_extents_that_are_close_together_are_one_get(
    opened: TokenStore, store: ObjectServer
) -> None:
    """A store bills each GET, and each takes as long as the bytes between two rows."""
    near = Spans.of_windows(T + 1, np.zeros(3, dtype=np.int64), np.array([5000, 0, 9000]))
    before = len(store.gets), REQUESTS.by_reason["row"]
    require_right(gather_block(opened, near).tokens, near)

    assert [each.headers["range"] for each in store.gets[before[0] :]] == ["bytes=0-18129"]
    after = REQUESTS.by_reason["row"]
    assert after.gets - before[1].gets == 1
    assert after.size_bytes - before[1].size_bytes == 18_130


def test_the_rows_that_have_come_are_counted(opened: TokenStore) -> None:
    """A frame has those before it waits for others."""
    spans = rows(np.random.default_rng(2), 8)
    assert opened.ready_count(spans) == 0
    with pytest.raises(Unreadable, match="not here yet"):
        opened.gather(spans, np.empty((8, T + 1), dtype="<u2"), patient=False)
    opened.advise(spans)
    opened.advise(spans)
    require_right(gather_block(opened, spans).tokens, spans)
    assert opened.ready_count(spans) == 8
    tokens = np.empty((8, T + 1), dtype="<u2")
    opened.gather(spans, tokens, patient=False)
    require_right(tokens, spans)


PASSING = FAULTS
"""All of them: an answer that is wrong once shows nothing, nor does a 404."""


@pytest.mark.parametrize("fault", PASSING)
def test_an_answer_that_is_wrong_once_costs_another_get(
    opened: TokenStore, store: ObjectServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores fail now and then, and a proxy may answer in their place; no row is another one."""
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", (0.01, 0.01))
    random = np.random.default_rng(3)
    for _ in range(4):
        store.faults.append(fault)
        spans = rows(random, 4)
        require_right(gather_block(opened, spans).tokens, spans)
    assert not opened.files.failed


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_answers_wrongly_is_no_lost_dataset(
    opened: TokenStore, store: ObjectServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the call, and the next one may succeed. A store that restarts, or what answers in
    its place, says 404 for a moment too.
    """
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", (0.01, 0.01))
    store.always_fault = fault
    spans = rows(np.random.default_rng(4), 4)
    if fault == "slow":
        require_right(gather_block(opened, spans).tokens, spans)
    else:
        with pytest.raises(Unreadable, match="'train' has an object that cannot be read"):
            gather_block(opened, spans)
    store.always_fault = ""
    assert not opened.files.failed
    require_right(gather_block(opened, spans).tokens, spans)


@pytest.mark.parametrize("fault", ["404", "412", "other etag"])
def test_content_that_stays_gone_loses_the_dataset(
    opened: TokenStore, store: ObjectServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever get its rows, so that clients are told to end. Only what is gone for long
    and without an answer in between is: each lost dataset ends runs.
    """
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", ())
    monkeypatch.setattr(object_bytes, "CHANGED_SECONDS", 0.5)
    spans = rows(np.random.default_rng(4), 4)
    for _ in range(3):
        store.faults.extend([fault] * 8)
        with pytest.raises(Unreadable):
            gather_block(opened, spans)
        store.faults.clear()
        require_right(gather_block(opened, spans).tokens, spans)
        time.sleep(0.3)

    store.always_fault = fault
    with pytest.raises(Unreadable):
        gather_block(opened, spans)
    assert not opened.files.failed
    time.sleep(0.6)
    with pytest.raises(CorpusChanged, match="'train' changed while it was served"):
        gather_block(opened, spans)
    store.always_fault = ""
    assert opened.files.failed


def test_two_misses_hours_apart_do_not_lose_the_dataset(
    opened: TokenStore, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers went to another replica after the first one, so that nobody saw it there again."""
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", ())
    monkeypatch.setattr(object_bytes, "CHANGED_SECONDS", 0.2)
    monkeypatch.setattr(object_bytes, "UNASKED_SECONDS", 0.4)
    spans = rows(np.random.default_rng(4), 4)
    for _ in range(2):
        store.faults.extend(["404"] * 8)
        with pytest.raises(Unreadable):
            gather_block(opened, spans)
        store.faults.clear()
        time.sleep(0.5)
    require_right(gather_block(opened, spans).tokens, spans)


def test_an_answer_without_etag_shows_no_change(
    opened: TokenStore, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy on the way may weaken it, for as long as it likes."""
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(object_bytes, "CHANGED_SECONDS", 0.0)
    store.always_fault = "weak"
    with pytest.raises(Unreadable):
        gather_block(opened, rows(np.random.default_rng(4), 4))
    assert not opened.files.failed


def test_rows_come_without_a_thread(opened: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have a limit of them; a gather then does its GETs itself, and no later one
    waits for threads that never were.
    """
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", (0.01, 0.01))
    own = Fetcher()
    monkeypatch.setattr(object_bytes, "fetcher", lambda: own)
    spans = rows(np.random.default_rng(9), 4)

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(_thread, "start_new_thread", refuse)
        for _ in range(2):
            opened.advise(spans)
            require_right(gather_block(opened, spans).tokens, spans)
    opened.advise(spans)
    files = opened.files
    assert isinstance(files, object_bytes.ObjectBytes)
    assert eventually(lambda: opened.ready_count(spans) == 4), "threads are tried again"


def test_a_fork_hears_of_it_before_it_takes_a_lock(opened: TokenStore) -> None:
    """A thread of the parent may hold it, and is not there to let it go."""
    files = opened.files
    assert isinstance(files, object_bytes.ObjectBytes)
    spans = rows(np.random.default_rng(10), 4)
    opened.advise(spans)
    with files._lock, REQUESTS._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            told = 0
            for use in (
                lambda: gather_block(opened, spans),
                lambda: opened.advise(spans),
                lambda: opened.ready_count(spans),
                lambda: files.read_served(0, 0, 2),
                lambda: files.shards[0].get(0, 2, "row"),
            ):
                with suppress(InvalidCorpus):
                    use()
                    break
                told += 1
            os._exit(0 if told == 5 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("weak", [False, True])
def test_an_object_that_is_replaced_is_lost_by_name(
    store: ObjectServer,
    weak: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its rows would be those of another corpus. A weak ETag compares nothing (RFC 9110), so that
    the time does.
    """
    store.weak = weak
    found, _ = open_store("train", URLS, RAW, StorageOptions())
    found.narrow(65_535)
    spans = rows(np.random.default_rng(5))
    require_right(gather_block(found, spans).tokens, spans)
    condition = "if-unmodified-since" if weak else "if-match"
    assert all(condition in each.headers for each in store.gets[-2:])

    monkeypatch.setattr(object_bytes, "CHANGED_SECONDS", 0.0)
    store.put("bucket/c/b.bin", TOKENS[1][::-1].tobytes(), written=1_700_000_001)
    with pytest.raises(CorpusChanged):
        gather_block(found, spans)
    assert "b.bin: has been replaced" in caplog.text
    with pytest.raises(CorpusChanged):
        found.files.read_served(0, 0, 2)
    found.close()


def test_a_bucket_with_versions_keeps_what_was_opened(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overwrite then ends no run, only the end of that version does."""
    store.keeps_versions = True
    for url, tokens in zip(URLS, TOKENS, strict=True):
        store.put(url.removeprefix("s3://"), tokens.tobytes())
    LISTING.forget()
    found, _ = open_store("train", URLS, RAW, StorageOptions())
    found.narrow(65_535)
    for url in URLS:
        store.put(url.removeprefix("s3://"), b"other")
    spans = rows(np.random.default_rng(6))
    require_right(gather_block(found, spans).tokens, spans)

    monkeypatch.setattr(object_bytes, "CHANGED_SECONDS", 0.0)
    del store.objects["bucket/c/a.bin"][-2]
    with pytest.raises(CorpusChanged):
        gather_block(found, spans)
    found.close()


def test_an_object_without_etag_and_time_is_refused(store: ObjectServer) -> None:
    """Nothing would tell its content from another one."""
    store.objects["bucket/c/a.bin"][-1].has_etag = False
    store.objects["bucket/c/a.bin"][-1].written = 0
    with pytest.raises(InvalidCorpus, match=r"a\.bin: cannot be read: has neither ETag nor time"):
        open_store("train", URLS, RAW, StorageOptions())


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("503", "Server returned .*503"),
        ("403", "access denied .*; check AWS_ACCESS_KEY_ID"),
        ("404", "No such file or directory"),
        ("200", "the answer is not the range that was asked for"),
        ("gzip", "content encoding gzip, so that it has no ranges; upload it unpacked"),
    ],
)
def test_an_object_that_cannot_be_opened_is_named(
    store: ObjectServer, fault: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts the server reads what to change."""
    monkeypatch.setattr(object_bytes, "OPENING_SECONDS", 0.0)
    store.always_fault = fault
    with pytest.raises(InvalidCorpus, match=rf"s3://bucket/c/a\.bin: cannot be read: .*{problem}"):
        door_of(URLS[0]).open(URLS[0])


def test_a_store_that_is_away_is_waited_for(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may restart at the moment when a job that was preempted does."""
    monkeypatch.setattr(door, "_PAUSE_SECONDS", 0.01)
    store.faults.extend(["503"] * 7)
    with door_of(URLS[0]).open(URLS[0]) as file:
        assert file.read(0, 4) == TOKENS[0][:2].tobytes()
    assert not store.faults


def test_a_store_that_is_away_while_tokens_are_first_read_is_waited_for(
    opened: TokenStore, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fingerprint is thousands of reads: one that fails would end the start of a server."""
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", ())
    store.faults.extend(["503"] * 3)  # one GET of obstore, with its retries
    assert opened.files.read(0, 100, 10) == TOKENS[0].tobytes()[100:110]
    assert not store.faults
    monkeypatch.setattr(object_bytes, "OPENING_SECONDS", 0.0)
    store.always_fault = "503"
    with pytest.raises(InvalidCorpus, match="cannot be read: Server returned"):
        opened.files.read(0, 100, 10)


def test_a_version_that_is_denied_names_the_permission(store: ObjectServer) -> None:
    """Who may read an object may not read its versions; the usual policy grants only the first."""
    store.keeps_versions = True
    store.put("bucket/c/a.bin", TOKENS[0].tobytes())
    with door_of(URLS[0]).open(URLS[0]) as file:
        store.always_fault = "403"
        with pytest.raises(InvalidCorpus, match="keeps versions needs s3:GetObjectVersion"):
            file.read(30_000, 4)


def test_credentials_are_read_again_once(
    opened: TokenStore, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a session expire within hours, and a run lasts for weeks."""
    spans = rows(np.random.default_rng(7), 4)
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", ())
    monkeypatch.setattr(buckets, "_RENEW_SECONDS", 0.0)
    store.accepted_keys = {"second"}
    with pytest.raises(Unreadable):
        gather_block(opened, spans)
    # What is set is read as a whole: half of a pair is no reason to end a run.
    del os.environ["AWS_ACCESS_KEY_ID"]
    with pytest.raises(Unreadable):
        gather_block(opened, spans)
    os.environ["AWS_ACCESS_KEY_ID"] = "second"
    require_right(gather_block(opened, spans).tokens, spans)


def test_one_denied_object_leaves_the_connections_of_all(
    opened: TokenStore, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of credentials makes new ones: for 128 threads, at each GET of it."""
    monkeypatch.setattr(object_bytes, "_PAUSES_SECONDS", ())
    bucket = buckets.bucket_of(Url.parse(URLS[0]))
    store.always_fault = "403"
    before = bucket._renewed
    for _ in range(5):
        with pytest.raises(Unreadable):
            gather_block(opened, rows(np.random.default_rng(12), 4))
    assert bucket._renewed == before + 1


@pytest.fixture
def keyless(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """A store whose keys the environment does not have."""
    forget_buckets()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    return store


def test_a_profile_that_nothing_reads_is_an_error(
    keyless: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore reads no profiles; it would ask the metadata of an instance, and time out."""
    monkeypatch.setattr(credentials, "find_spec", lambda _: None)
    monkeypatch.setenv("AWS_PROFILE", "research")
    with pytest.raises(InvalidCorpus, match=r"the profile 'research' .*boto3.*pip install boto3"):
        door_of(URLS[0]).exists(URLS[0])
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert door_of(URLS[0]).exists(URLS[0])
    assert "authorization" not in keyless.requests[-1].headers


@pytest.mark.parametrize(("profile", "key"), [("", "mine"), ("research", "theirs")])
def test_boto3_reads_the_files_of_profiles(
    keyless: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, key: str
) -> None:
    """The store accepts only the key of that profile."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = mine\naws_secret_access_key = secret\n"
        "[research]\naws_access_key_id = theirs\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    keyless.accepted_keys = {key}
    assert door_of(URLS[0]).exists(URLS[0])


def test_a_profile_that_no_file_has_is_an_error(
    keyless: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the default one instead."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidCorpus, match=r"the profile 'nobody' cannot be read: .*not be found"):
        door_of(URLS[0]).exists(URLS[0])


def test_who_pays_is_told_to_the_store(
    store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets of others may require it."""
    forget_buckets()
    monkeypatch.setenv("AWS_REQUEST_PAYER", "true")
    with door_of(URLS[0]).open(URLS[0]) as file:
        assert file.read(0, 4) == TOKENS[0][:2].tobytes()
    assert store.gets[-1].headers["x-amz-request-payer"] == "requester"


def test_nothing_is_fetched_ahead_without_room(
    opened: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams that go away leave what was fetched for them; memory is bounded, and rows are right
    in any case.
    """
    monkeypatch.setattr(object_bytes, "HELD_BYTES_MAX", 3 * 2 * (T + 1))
    monkeypatch.setattr(object_bytes, "MERGED_GAP_BYTES", 0)
    random = np.random.default_rng(8)
    files = opened.files
    assert isinstance(files, object_bytes.ObjectBytes)
    for _ in range(10):
        opened.advise(rows(random, 2))
    assert files._held_bytes == 4 * 2 * (T + 1)
    spans = rows(random)
    require_right(gather_block(opened, spans).tokens, spans)

    monkeypatch.setattr(object_bytes, "_LEFT_SECONDS", 0.0)
    opened.advise(spans[:3])
    assert files._held_bytes <= 2 * 3 * 2 * (T + 1)
    require_right(gather_block(opened, spans).tokens, spans)


def test_what_one_stream_wants_again_and_again_leaves_room(
    opened: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation rows are advised in each round; behind them, streams leave what nobody gathers."""
    monkeypatch.setattr(object_bytes, "MERGED_GAP_BYTES", 0)
    monkeypatch.setattr(object_bytes, "HELD_BYTES_MAX", 3 * 2 * (T + 1))
    monkeypatch.setattr(object_bytes, "_LEFT_SECONDS", 0.2)
    again, left, ahead = (
        rows(np.random.default_rng(11), 3)[:1],
        *(
            Spans.of_windows(T + 1, np.zeros(2, dtype=np.int64), np.array(firsts))
            for firsts in ([1000, 2000], [3000, 4000])
        ),
    )
    opened.advise(again)
    opened.advise(left)
    for _ in range(3):
        time.sleep(0.1)
        opened.advise(again)
    opened.advise(ahead)
    assert eventually(lambda: opened.ready_count(ahead) == 2)


def test_a_closed_dataset_delivers_nothing(store: ObjectServer) -> None:
    """Also while a gather waits."""
    layout = partial(read_layout, options=RAW)
    files, why = door_of(URLS[0]).bytes_of("train", URLS, layout, StorageOptions())
    assert (files.kind, why) == ("s3", "exact GETs")
    files.close()
    with pytest.raises(CorpusChanged):
        files.read_served(0, 0, 2)


def test_the_option_read_is_refused(store: ObjectServer) -> None:
    """It chooses between ways to read files of this machine."""
    layout = partial(read_layout, options=RAW)
    with pytest.raises(InvalidCorpus, match="so omit it"):
        door_of(URLS[0]).bytes_of("train", URLS, layout, StorageOptions(read="map"))
